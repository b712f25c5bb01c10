"""Is a dataset what it says it is? Hashes, finite values, ranges, boundary values, the PDE itself, no sample twice."""

from __future__ import annotations

import hashlib
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from gkn.data.dataset import Dataset
from gkn.geometry.domain import Cloud, Domain
from gkn.pde import darcy_residual
from gkn.system.checks import check_device

Pde = Literal["darcy", "poisson"]
_EQUATION: dict[str, Pde] = {
    "darcy": "darcy",
    "darcy-mesh": "darcy",
    "poisson-interval": "poisson",
    "poisson-square": "poisson",
    "poisson-disk": "poisson",
}
# Relative residuals that rounding explains, for solutions stored in each type.
_RESIDUAL = {torch.float64: 1e-8, torch.float32: 1e-3}
_CHUNK = 16  # samples looked at together


@dataclass(frozen=True)
class Finding:
    """One line of the report. `ok` is None where there was nothing to check, with the reason as its text."""

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
    """Check everything that can be checked; `pde` says which equation imported data should satisfy (darcy: with f = 1)."""
    dataset = Dataset.open(path, partial=True)
    assert dataset.manifest is not None
    check_device(device)
    recipe, n = dataset.manifest.recipe, dataset.manifest.n
    broken = dataset.damaged()
    files = f"{len(dataset.manifest.shards)} shards are as they were written"
    findings = [
        Finding("complete", len(dataset) == n, f"{len(dataset)} of {n} samples"),
        Finding("hashes", not broken, "; ".join(broken) or files),
    ]
    if broken or not len(dataset):
        return findings
    equation = pde or _EQUATION.get(recipe.get("name", ""))
    looks: list[_Look] = [_Finite()]
    if "a" in dataset.names:
        looks.append(_Range(_number(recipe, "low"), _number(recipe, "high")))
    if "u" in dataset.names:
        f = _number(recipe, "f")
        looks += [_Boundary(equation), _Residual(equation, 1.0 if f is None else f, device)]
    looks.append(_Distinct(dataset.inputs, dataset.one_domain))
    for start in range(0, len(dataset), _CHUNK):
        part = range(start, min(start + _CHUNK, len(dataset)))
        for batch in [part] if dataset.one_domain else [range(i, i + 1) for i in part]:
            domain, values = _read(dataset, batch)
            for look in looks:
                look.see(domain, batch, values)
        if progress:
            progress(part.stop, len(dataset))
    return findings + [look.finding() for look in looks]


def _number(recipe: dict[str, Any], key: str) -> float | None:
    value = recipe.get(key)
    if value is not None and not isinstance(value, int | float):
        raise ValueError(f"the dataset's recipe has {key} = {value!r}, which is no number")
    return value


def _read(dataset: Dataset, batch: range) -> tuple[Domain, dict[str, Tensor]]:
    """Samples that share a domain: all fields, (n, K) each."""
    if dataset.one_domain:
        part = dataset.take([*batch])
        return dataset.domain, {name: part.field(name) for name in dataset.names}
    return dataset[batch[0]].domain, {name: dataset.value(name, batch[0])[None] for name in dataset.names}


def _some(items: list[str], most: int = 5) -> str:
    return ", ".join(items[:most]) + (f" and {len(items) - most} more" if len(items) > most else "")


class _Look(ABC):
    """One question, asked of every batch."""

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
            wrong = (~torch.isfinite(rows)).any(1).nonzero()[:, 0].tolist()
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
    pde: Pde | None
    edge: float = 0.0
    inside: float = 0.0
    seen: bool = False

    def see(self, domain: Domain, batch: range, values: dict[str, Tensor]) -> None:
        size = values["u"].double().abs()
        self.inside = max(self.inside, float(size.max()))
        if domain.boundary.any():
            self.seen = True
            self.edge = max(self.edge, float(size[:, domain.boundary].max()))

    def finding(self) -> Finding:
        text = f"largest |u| on the boundary {self.edge:g}, anywhere {self.inside:g}"
        if self.pde is None or not self.seen:
            why = "imported data; name the equation with --pde" if self.pde is None else "no point is marked as boundary"
            return Finding("boundary", None, why)
        return Finding("boundary", self.edge == 0, text)


@dataclass
class _Residual(_Look):
    pde: Pde | None
    f: float
    device: str
    precision: torch.dtype = torch.float64
    each: list[tuple[float, int]] = field(default_factory=list)

    def see(self, domain: Domain, batch: range, values: dict[str, Tensor]) -> None:
        needed = {"darcy": "a", "poisson": "f"}.get(self.pde or "")
        if needed is None or isinstance(domain, Cloud) or needed not in values:
            return
        given, u = values[needed].double(), values["u"].double()
        good = (torch.isfinite(given) & torch.isfinite(u)).all(1)
        if self.pde == "darcy":
            good &= (given > 0).all(1)
        if not good.any():
            return
        self.precision = values["u"].dtype
        given, u = given[good].to(self.device), u[good].to(self.device)
        a, f = (given, self.f) if self.pde == "darcy" else (1.0, given)
        found = darcy_residual(domain, a, u, f, per="node").tolist()
        self.each += zip(found, [batch[k] for k in good.nonzero()[:, 0].tolist()], strict=True)

    def finding(self) -> Finding:
        if not self.each:
            why = "imported data; name the equation with --pde" if self.pde is None else "no finite sample on a grid or a mesh"
            return Finding("residual", None, why)
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
