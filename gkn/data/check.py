"""Checks of a dataset: hashes, finite values, ranges, boundary values, the residual of the PDE, and no sample twice."""

from __future__ import annotations

import hashlib
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, Literal

import torch
from torch import Tensor

from gkn.data.dataset import Dataset
from gkn.data.problems import PROBLEMS, Darcy, PoissonSquare, Problem
from gkn.geometry.domain import Domain
from gkn.pde import is_discretised
from gkn.system.checks import check_device

Pde = Literal["darcy", "poisson"]
# Relative residuals that rounding explains, for solutions stored in each type.
_RESIDUAL = {torch.float64: 1e-8, torch.float32: 1e-3}
_CHUNK = 16  # samples looked at together


@dataclass(frozen=True)
class Finding:
    """One line of the report. `ok` is None if there was nothing to check; the text then says why."""

    what: str
    ok: bool | None
    text: str


def check_dataset(
    path: str | os.PathLike[str],
    *,
    pde: Pde | None = None,
    device: str = "cpu",
    progress: Callable[[int, int], None] | None = None,
) -> list[Finding]:
    """Check everything that can be checked. `pde` names the equation imported data should satisfy (darcy: with f = 1)."""
    dataset = Dataset.open(path, partial=True)
    assert dataset.manifest is not None
    check_device(device)
    origin, n = dataset.manifest.origin, dataset.manifest.n
    broken = dataset.damaged()
    files = f"{len(dataset.manifest.shards)} shards are as they were written"
    findings = [
        Finding("complete", len(dataset) == n, f"{len(dataset)} of {n} samples"),
        Finding("hashes", not broken, "; ".join(broken) or files),
    ]
    if broken or not len(dataset):
        return findings
    low, high = _number(origin, "low"), _number(origin, "high")
    problem = _problem(pde, origin)
    looks: list[_Look] = [_Finite()]
    if "a" in dataset.names:
        looks.append(_Range(low, high))
    looks += [_Boundary(problem, dataset.outputs), _Residual(problem, device)]
    looks.append(_Distinct(dataset.names if dataset.in_time else dataset.inputs, dataset.one_domain))
    for start in range(0, len(dataset), _CHUNK):
        part = range(start, min(start + _CHUNK, len(dataset)))
        for batch in [part] if dataset.one_domain else [range(i, i + 1) for i in part]:
            domain, values = _read(dataset, batch)
            for look in looks:
                look.see(domain, batch, values)
        if progress:
            progress(part.stop, len(dataset))
    return findings + [look.finding() for look in looks]


def _number(origin: dict[str, Any], key: str) -> float | None:
    value = origin.get(key)
    if value is not None and not isinstance(value, int | float):
        raise ValueError(f"the dataset's problem has {key} = {value!r}, which is no number")
    return value


def _problem(pde: Pde | None, origin: dict[str, Any]) -> Problem | None:
    """Return the problem whose equation the data should satisfy, if it is known."""
    f = _number(origin, "f")
    equations: dict[str, type[Problem]] = {"darcy": Darcy, "poisson": PoissonSquare}
    kind = equations[pde] if pde else PROBLEMS.get(str(origin.get("name")))
    if kind is None:
        return None
    given = {field.name: origin[field.name] for field in fields(kind) if field.name in origin} if pde is None else {}
    if pde == "darcy" and f is not None:
        given["f"] = f
    try:
        return kind(**given)
    except (TypeError, ValueError) as error:
        raise ValueError(f"invalid parameters of the problem in dataset.json: {error}") from error


def _read(dataset: Dataset, batch: range) -> tuple[Domain, dict[str, Tensor]]:
    """Return the domain and all fields (n, K) of samples that share it."""
    if dataset.one_domain:
        part = dataset.take([*batch])
        return dataset.domain, {name: _same_times(part, name) for name in dataset.names}
    return dataset.domain_of(batch[0]), {name: dataset.value(name, batch[0])[None] for name in dataset.names}


def _same_times(dataset: Dataset, name: str) -> Tensor:
    """Return a field (n, K), or (n, T, K) with the last state repeated for trajectories that have fewer times than others."""
    if not dataset.in_time or name not in dataset.outputs:
        return dataset.field(name)
    rows = [dataset.value(name, i) for i in range(len(dataset))]
    most = max(map(len, rows))
    return torch.stack([torch.cat([row, row[-1:].expand(most - len(row), -1)]) for row in rows])


def _some(items: list[str], most: int = 5) -> str:
    return ", ".join(items[:most]) + (f" and {len(items) - most} more" if len(items) > most else "")


class _Look(ABC):
    """One check, shown every batch of samples."""

    @abstractmethod
    def see(self, domain: Domain, batch: range, values: dict[str, Tensor]) -> None: ...

    @abstractmethod
    def finding(self) -> Finding: ...


@dataclass
class _Finite(_Look):
    bad: list[str] = field(default_factory=list)
    names: tuple[str, ...] = ()

    def see(self, domain: Domain, batch: range, values: dict[str, Tensor]) -> None:
        self.names = tuple(values)
        for name, rows in values.items():
            wrong = (~torch.isfinite(rows)).flatten(1).any(1).nonzero()[:, 0].tolist()
            self.bad += [f"{name} of sample {batch[k]}" for k in wrong]

    def finding(self) -> Finding:
        return Finding("finite", not self.bad, _some(self.bad) or f"every value of {', '.join(self.names)}")


@dataclass
class _Range(_Look):
    low: float | None
    high: float | None
    smallest: float = torch.inf
    largest: float = -torch.inf

    def see(self, domain: Domain, batch: range, values: dict[str, Tensor]) -> None:
        a = values["a"][torch.isfinite(values["a"])]
        if len(a):
            self.smallest, self.largest = min(self.smallest, float(a.min())), max(self.largest, float(a.max()))

    def finding(self) -> Finding:
        ok, wanted = self.smallest > 0, "> 0"
        if self.low is not None and self.high is not None:
            ok, wanted = self.low <= self.smallest and self.largest <= self.high, f"in [{self.low:g}, {self.high:g}]"
        return Finding("range", ok, f"a is in [{self.smallest:g}, {self.largest:g}], needed {wanted}")


@dataclass
class _Boundary(_Look):
    problem: Problem | None
    outputs: tuple[str, ...]
    edge: float = 0.0
    inside: float = 0.0
    seen: bool = False

    def see(self, domain: Domain, batch: range, values: dict[str, Tensor]) -> None:
        size = torch.stack([values[name].double().abs() for name in self.outputs]).amax(0)
        self.inside = max(self.inside, float(size.max()))
        if domain.boundary.any():
            self.seen = True
            self.edge = max(self.edge, float(size[..., domain.boundary].max()))

    def finding(self) -> Finding:
        text = f"largest |{', '.join(self.outputs)}| on the boundary {self.edge:g}, anywhere {self.inside:g}"
        if self.problem is None:
            return Finding("boundary", None, "imported data; name the equation with --pde")
        if not self.problem.zero_boundary:
            return Finding("boundary", None, f"{self.problem.name} does not say what its outputs are there")
        if not self.seen:
            return Finding("boundary", None, "no point is marked as boundary")
        return Finding("boundary", self.edge == 0, text)


@dataclass
class _Residual(_Look):
    problem: Problem | None
    device: str
    precision: torch.dtype = torch.float64
    each: list[tuple[float, int]] = field(default_factory=list)

    def see(self, domain: Domain, batch: range, values: dict[str, Tensor]) -> None:
        if self.problem is None or not is_discretised(domain):
            return
        names = (*self.problem.inputs, *self.problem.outputs)
        if any(name not in values for name in names):
            return
        needed = {name: values[name].double() for name in names}
        good = self.problem.admissible(needed)
        if not good.any():
            return
        self.precision = values[self.problem.outputs[0]].dtype
        found = self.problem.residual(domain, {name: rows[good].to(self.device) for name, rows in needed.items()})
        if found is not None:
            self.each += zip(found.tolist(), [batch[k] for k in good.nonzero()[:, 0].tolist()], strict=True)

    def finding(self) -> Finding:
        if not self.each:
            unknown = "imported data; name the equation with --pde"
            none = "no residual is known of this problem, or no sample is finite and on a grid or a mesh"
            return Finding("residual", None, unknown if self.problem is None else none)
        ranked = sorted((value if math.isfinite(value) else math.inf, sample) for value, sample in self.each)
        (worst, sample), median = ranked[-1], ranked[len(ranked) // 2][0]
        limit = _RESIDUAL.get(self.precision, 1e-3)
        text = f"relative residual at most {worst:.1e} (sample {sample}), median {median:.1e}, needed {limit:.0e}"
        return Finding("residual", worst <= limit, text)


@dataclass
class _Distinct(_Look):
    inputs: tuple[str, ...]
    one_domain: bool
    seen: dict[bytes, int] = field(default_factory=dict)
    twice: list[str] = field(default_factory=list)

    def see(self, domain: Domain, batch: range, values: dict[str, Tensor]) -> None:
        for k, i in enumerate(batch):
            parts = [values[name][k] for name in self.inputs] + ([] if self.one_domain else [domain.points])
            key = hashlib.sha256(b"".join(part.numpy().tobytes() for part in parts)).digest()
            first = self.seen.setdefault(key, i)
            if first != i:
                self.twice.append(f"samples {first} and {i}")

    def finding(self) -> Finding:
        return Finding("distinct", not self.twice, _some(self.twice) or f"{len(self.seen)} samples, no two with the same input")
