"""Normalizer: fields in units in which a network sees them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from gkn.data.dataset import Dataset
from gkn.data.groups import ranges_of
from gkn.data.sample import check_sample
from gkn.data.walls import Wall
from gkn.geometry.domain import Domain
from gkn.system.checks import check_real, power_of_two

LARGE = 30.0
"""Standard deviations above which the mean of a field is left out of the loss, which then is relative to the variation."""
FLOOR = 0.01
"""Lower bound of the denominator of that loss, in standard deviations of the field."""
ROUNDING = 1e-13
"""Relative variation below which a field counts as constant: rounding errors of a solver."""
PRECISE = 1000.0
"""Standard deviations above which the mean of a field leaves single precision too few digits for its variation."""


@dataclass(frozen=True, eq=False)
class Normalizer:
    """(values - mean) / std, with one mean and one standard deviation per field, or, on a `domain`, one per field and point.

    The second kind holds the mean solution; between the points of its domain it is interpolated. With `zero`, a `Wall` or its
    name, std is multiplied by a function that is 0 on that boundary. There every output of a network is decoded to the mean.
    Components of a vector share one standard deviation.
    """

    mean: Tensor  # (c,), or (K, c) on a domain of K points; float64
    std: Tensor  # likewise, > 0
    domain: Domain | None = None
    zero: Wall | str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.zero, str):
            object.__setattr__(self, "zero", Wall(self.zero))
        if self.zero is not None and self.domain is not None:
            raise ValueError(f"Normalizer(zero={self.zero!r}, domain=...): needed one or the other")
        for given in (self.mean, self.std):
            check_real(given, "Normalizer: mean and std")
        mean, std = (torch.as_tensor(given, dtype=torch.float64) for given in (self.mean, self.std))
        shape = () if self.domain is None else (len(self.domain),)
        if mean.shape[:-1] != shape or mean.ndim != len(shape) + 1 or mean.shape != std.shape:
            needed = "(fields,) each" if self.domain is None else f"({len(self.domain)}, fields) each"
            raise ValueError(f"Normalizer: mean of shape {tuple(mean.shape)}, std of {tuple(std.shape)}; needed {needed}")
        if not torch.isfinite(mean).all() or not (torch.isfinite(1 / std) & (std > 0)).all():
            raise ValueError(
                f"Normalizer(mean={_shown(mean)}, std={_shown(std)}): needed a finite mean and a std > 0 per field"
            )
        object.__setattr__(self, "mean", mean)
        object.__setattr__(self, "std", std)

    @property
    def fields(self) -> int:
        return self.mean.shape[-1]

    @cached_property
    def unit(self) -> Tensor:
        """(c,) a power of 2 near the standard deviation of each field, in which its values are numbers of moderate size."""
        return power_of_two(self.std.reshape(-1, self.fields).square().mean(0).sqrt())

    @cached_property
    def _ratio(self) -> Tensor:
        mean, std = ((x / self.unit).reshape(-1, self.fields).square().mean(0).sqrt() for x in (self.mean, self.std))
        return mean / std

    @cached_property
    def _beyond_single(self) -> bool:
        """True if single precision cannot hold the values: too large, too small, or a mean that hides how they vary."""
        size = torch.maximum(self.mean.abs().amax(), self.std.amax())
        return bool((self._ratio > PRECISE).any() or size > 1e36 or self.std.amin() < 1e-30)

    @staticmethod
    def none(fields: int) -> Normalizer:
        return Normalizer(torch.zeros(fields), torch.ones(fields))

    @staticmethod
    def fit(
        dataset: Dataset | Sequence[Dataset], names: Sequence[str], pointwise: bool = False, zero: str | None = None
    ) -> Normalizer:
        """Compute mean and std over all points of all samples of one or several datasets. A constant field is only shifted.

        With `zero` the mean is 0, and std such that fields over std have the mean square 1.
        """
        datasets = [dataset] if isinstance(dataset, Dataset) else [*dataset]
        if not datasets or not all(len(each) for each in datasets):
            raise ValueError("Normalizer.fit: this dataset has no samples")
        if pointwise and zero is not None:
            raise ValueError(f"Normalizer.fit(pointwise=True, zero={zero!r}): needed one or the other")
        if pointwise:
            return Normalizer._fit_pointwise(datasets, names)
        if zero is not None:
            return Normalizer._fit_zero(datasets, names, zero)
        means, stds = [], []
        for moments in _moments(datasets, names, lambda values: values.flatten()):
            means.append(float(moments.mean))
            stds.append(float(moments.square / max(moments.count, 1)) ** 0.5)
        mean = torch.tensor(means, dtype=torch.float64)
        std = _shared(torch.tensor(stds, dtype=torch.float64), datasets[0], names)
        constant = std <= ROUNDING * mean.abs().clamp_min(1e-300)
        return Normalizer(mean, torch.where(constant, 1.0, std))

    @staticmethod
    def _fit_pointwise(datasets: Sequence[Dataset], names: Sequence[str]) -> Normalizer:
        if len(datasets) != 1 or not datasets[0].one_domain:
            raise ValueError(
                "Normalizer.fit(pointwise=True): a mean at every point needs samples on one domain; use a scalar normaliser"
            )
        means, stds = [], []
        for moments in _moments(datasets, names, lambda values: values.T):
            std = (moments.square / moments.count).sqrt()
            # Where all samples agree, as on a boundary, std is a small share of that elsewhere: nothing is divided by 0.
            least = 1e-3 * float(std.square().mean().sqrt())
            means.append(moments.mean)
            stds.append(std + least if least > 0 else torch.ones_like(std))
        return Normalizer(torch.stack(means, -1), torch.stack(stds, -1), datasets[0].domain)

    @staticmethod
    def _fit_zero(datasets: Sequence[Dataset], names: Sequence[str], zero: str) -> Normalizer:
        """Multiply the std of the fields that are 0 on the boundary by a function that is 0 there; others are as usual."""
        wall = Wall.around(zero, [domain for each in datasets for domain in each.domains()])
        squares, walls = torch.zeros(len(names), dtype=torch.float64), 0.0
        vanishes, first, largest = torch.ones(len(names), dtype=torch.bool), -1, torch.zeros(len(names), dtype=torch.float64)
        for each in datasets:
            common = wall(each.domain.points, each.domain) if each.one_domain else None
            for which, fields in each.blocks(names):
                domain = each.domain_of(which[0])
                here = wall(domain.points, domain) if common is None else common
                values = torch.stack(fields, 1).double()  # (samples, fields, K)
                largest = torch.maximum(largest, values.abs().amax((0, 2)))
                squares, walls = squares + values.square().sum((0, 2)), walls + len(which) * float(here.square().sum())
                beyond = values[..., here == 0].abs()
                if beyond.shape[2]:  # a sample may have no point on the boundary
                    now = beyond.amax(2) <= 1e-6 * values.abs().amax(2)
                    if first < 0 and not bool(now.any(1).all()):
                        first = each.number(which[int((~now.any(1)).nonzero()[0])])
                    vanishes &= now.all(0)
                if not vanishes.any():
                    break
        for name, size in zip(names, largest.tolist(), strict=True):
            _check_size(name, size)
        if not vanishes.any():
            raise ValueError(f"zero={zero!r}: {', '.join(names)} of sample {max(first, 0)} is not 0 on the {zero} or beyond")
        std = _shared((squares / max(walls, 1e-300)).sqrt(), datasets[0], names)
        std = torch.where(std > 0, std, 1.0)
        if vanishes.all():
            return Normalizer(torch.zeros_like(std), std, None, wall)
        usual = Normalizer.fit(datasets, names)
        mean, std = torch.where(vanishes, 0.0, usual.mean), torch.where(vanishes, std, usual.std)
        return Normalizer(mean, std, None, replace(wall, fields=tuple(vanishes.tolist())))

    def at(self, points: Tensor | None, domain: Domain | None = None) -> tuple[Tensor, Tensor]:
        """Return mean and std at points (P, d) of a domain: (P, c) each, or (c,) if they are the same everywhere."""
        if self.domain is None and self.zero is None:
            return self.mean, self.std
        if points is None:
            raise ValueError("Normalizer: this one differs from point to point; say where the values are")
        if isinstance(self.zero, Wall):
            wall = self.zero(points.cpu().double(), domain)[:, None]
            factor = torch.where(self.zero.of_fields(self.fields), wall, 1.0)
            return self.mean.expand(len(wall), -1), factor * self.std
        assert self.domain is not None
        known = self.domain.points
        if points.shape == known.shape and torch.equal(points.cpu().double(), known):
            return self.mean, self.std
        both = self.domain.interpolate(torch.cat([self.mean, self.std], 1), points.cpu())
        mean, std = both.split(self.fields, 1)
        return mean, std

    def encode(self, values: Tensor, points: Tensor | None = None) -> Tensor:
        """Normalise fields at points, in float64."""
        if self.zero is not None:
            raise ValueError(f"Normalizer(zero={self.zero!r}): where it is 0 there is nothing to divide by; it only decodes")
        check_real(values, "Normalizer.encode: values")
        mean, std = (x.to(values.device) for x in self.at(points))
        return (values.double() - mean) / std

    def decode(self, values: Tensor, points: Tensor | None = None, domain: Domain | None = None) -> Tensor:
        """Undo `encode`, in the type of `values`; in float64 if single precision cannot hold the result."""
        mean, std = (x.to(values.device) for x in self.at(points, domain))
        decoded = values.double() * std + mean
        return decoded if self._beyond_single else decoded.to(values.dtype)

    def deviation(self, values: Tensor, points: Tensor) -> Tensor:
        """Return fields at points minus their mean, in float64."""
        return values.double() - (self.mean if self.domain is None else self.at(points)[0])


def hidden_scales(datasets: Sequence[Dataset], known: Normalizer | None = None) -> Tensor:
    """Return (o,) the standard deviation of outputs whose mean hides how they vary, 0 for others.

    The relative error of such a field says nothing. A field that does not vary within any sample is not hidden.

    known   a normaliser that was fitted to the outputs of these datasets
    """
    first = datasets[0]
    fitted = Normalizer.fit(datasets, first.outputs) if known is None else known
    large = fitted.mean.abs() > LARGE * fitted.std
    for k in large.nonzero()[:, 0].tolist():
        ends = (each.value(first.outputs[k], i).double().aminmax() for each in datasets for i in range(len(each)))
        large[k] = any(float(high - low) > 8 * ROUNDING * abs(float(high)) for low, high in ends)
    for start, stop in first.output_fields.values():
        large[start:stop] = large[start:stop].any()
    return torch.where(large, fitted.std, 0.0)


def _shared(std: Tensor, dataset: Dataset, names: Sequence[str]) -> Tensor:
    """Return standard deviations in which the components of a vector share one: the root of their mean square."""
    out = std.clone()
    for start, stop in ranges_of(names, dataset.groups).values():
        if stop - start > 1:
            out[start:stop] = std[start:stop].square().mean().sqrt()
    return out


class _Moments:
    """Mean and sum of squared deviations, merged part by part, so that nothing cancels and nothing has to fit in memory.

    They are those of all entries of a vector; for (K, 1), those of each row.
    """

    def __init__(self) -> None:
        self.count, self.mean, self.square = 0, torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
        self.largest = 0.0

    def see(self, values: Tensor) -> None:
        n, m = values.shape[-1], values.mean(-1)
        self.square = self.square + (values - m[..., None]).square().sum(-1)
        self.square = self.square + (m - self.mean) ** 2 * (self.count * n / (self.count + n))
        self.mean = self.mean + (m - self.mean) * (n / (self.count + n))
        self.count += n
        self.largest = max(self.largest, float(values.abs().max()))


def _moments(datasets: Sequence[Dataset], names: Sequence[str], form: Callable[[Tensor], Tensor]) -> list[_Moments]:
    """Return the moments of each field, given the form (..., n) in which its values (samples, K) count."""
    found = [_Moments() for _ in names]
    for dataset in datasets:
        for which, fields in dataset.blocks(names):
            for name, values, moments in zip(names, fields, found, strict=True):
                for k in () if bool(torch.isfinite(values).all()) else range(len(values)):
                    check_sample(values[k][:, None], [name], dataset.label(which[k]))
                moments.see(form(values.double()))
    for name, moments in zip(names, found, strict=True):
        _check_size(name, moments.largest)
    return found


def _check_size(name: str, largest: float) -> None:
    """Raise an error if squares of the values of a field leave the range of double precision."""
    if largest > 1e150 or 0 < largest < 1e-150:
        what, ends = ("large", "overflow") if largest > 1 else ("small", "underflow")
        raise ValueError(f"the values of {name} are so {what} that their squares {ends}; use another unit")


def _shown(x: Tensor) -> list[float] | str:
    return x.tolist() if x.numel() <= 8 else f"{tuple(x.shape)} numbers"
