"""Memory: samples held in memory, made of numpy arrays, tensors or numbers."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from torch import Tensor

from gkn.data.groups import component_names
from gkn.data.source import Source
from gkn.geometry.domain import Domain
from gkn.system.checks import as_real, check_finite

Given: TypeAlias = Any
"""A field of all samples: (n, K) or (n, K, c) on one domain, n arrays (K,) or (K, c), or n numbers; numpy or torch.

A field that is a function of time has a further axis of times before that of the points."""


class Memory(Source):
    """Fields in memory: (n, K) tensors on one domain, or lists of (K_i,) tensors on one domain per sample.

    Arrays with a further axis are vectors: each component becomes a field. n numbers are a parameter.

    times            (T,) of all samples, or (T_i,) of each
    evolving         names of the fields (n, T, K) that are functions of these times
    files            the name of the file of each sample, if they were imported
    keep_gradients   tensors stay part of the computation that they came from; otherwise they are detached from it
    """

    def __init__(
        self,
        domain: Domain | Sequence[Domain],
        fields: Mapping[str, Given],
        files: Sequence[str] = (),
        keep_gradients: bool = False,
        times: Given = None,
        evolving: Sequence[str] = (),
    ) -> None:
        many = isinstance(domain, Sequence)
        self.domains = [*domain] if many else None  # type: ignore[misc]
        self.common_domain = None if many else domain  # type: ignore[assignment]
        self.fields: dict[str, Tensor | list[Tensor]] = {}
        self.groups: dict[str, tuple[str, ...]] = {}
        self.parameters: tuple[str, ...] = ()
        self.files = tuple(files)
        for name, given in fields.items():
            self._add(name, _as_tensors(name, given, keep_gradients), name in evolving)
        self.names = tuple(self.fields)
        counts = {name: len(values) for name, values in self.fields.items()}
        self.n = next(iter(counts.values()), 0)
        if len({*counts.values()}) > 1:
            raise ValueError(f"Dataset: the fields have different numbers of samples: {counts}")
        if self.domains is not None and len(self.domains) != self.n:
            raise ValueError(f"Dataset: {len(self.domains)} domains for {self.n} samples")
        if self.domains and len({each.dim for each in self.domains}) > 1:
            where = next(i for i, each in enumerate(self.domains) if each.dim != self.domains[0].dim)
            raise ValueError(
                f"Dataset: sample {where} has points of dimension {self.domains[where].dim}, sample 0 of dimension "
                f"{self.domains[0].dim}; needed one dimension for all"
            )
        self._times = times_of(times, self.n) if self.evolving else []
        for name in self.names:
            self._check_shape(name)

    def _add(self, name: str, values: Tensor | list[Tensor], evolves: bool) -> None:
        if not name or "/" in name or "\0" in name or name.startswith("."):
            raise ValueError(f"Dataset: a field cannot be called {name!r}; use letters, digits and _")
        axes = values.ndim if isinstance(values, Tensor) else 1 + max((row.ndim for row in values), default=1)
        before, axes = axes, axes - evolves
        if axes == 1 and not evolves:
            self.parameters = (*self.parameters, name)
            parts: dict[str, Tensor | list[Tensor]] = {name: values}
        elif axes == 2:
            parts = {name: values}
        elif axes == 3:
            widths = {values.shape[-1]} if isinstance(values, Tensor) else {row.shape[-1] for row in values}
            if len(widths) > 1:
                raise ValueError(f"Dataset: field {name!r} has {sorted(widths)} components; needed the same in all samples")
            names = component_names(name, width := widths.pop())
            if width > 1:
                self.groups[name] = names
            parts = {
                part: values[..., j] if isinstance(values, Tensor) else [row[..., j] for row in values]
                for j, part in enumerate(names)
            }
        else:
            shape = tuple(values.shape) if isinstance(values, Tensor) else tuple(values[0].shape)
            needed = (
                "(samples, times, points), with components (samples, times, points, c)"
                if evolves
                else "(samples, points), with components (samples, points, c), or one number per sample"
            )
            raise ValueError(f"Dataset: field {name!r} of shape {shape} with {before} axes; needed {needed}")
        for part, rows in parts.items():
            if part in self.fields:
                raise ValueError(f"Dataset: two fields would be called {part!r}; rename one")
            self.fields[part] = rows
            self.evolving = (*self.evolving, part) if evolves else self.evolving

    def _check_shape(self, name: str) -> None:
        values = self.fields[name]
        if name in self.parameters:
            return
        if name in self.evolving:
            for i in range(self.n):
                needed = (len(self._times[i]), len(self.domain(i)))
                if values[i].shape != needed:
                    raise ValueError(
                        f"Dataset: field {name!r} of sample {i} has shape {tuple(values[i].shape)}; needed {needed}, its times "
                        "and points: are frames missing, or does the mesh change within the trajectory?"
                    )
            return
        for i in range(min(1, self.n) if isinstance(values, Tensor) and self.domains is None else self.n):
            if values[i].shape != (len(self.domain(i)),):
                raise ValueError(
                    f"Dataset: field {name!r} of sample {i} has shape {tuple(values[i].shape)}, "
                    f"but its domain has {len(self.domain(i))} points"
                )

    def domain(self, i: int) -> Domain:
        return super().domain(i) if self.domains is None else self.domains[i]

    def file(self, i: int) -> str:
        return self.files[i] if self.files else ""

    def times(self, i: int) -> Tensor:
        return self._times[i] if self.evolving else super().times(i)

    def read(self, name: str, i: int) -> Tensor:
        value = self.fields[name][i]
        return value.expand(len(self.domain(i))) if name in self.parameters else value

    def read_all(self, name: str, indices: Sequence[int]) -> Tensor:
        values = self.fields[name]
        if name in self.parameters or not isinstance(values, Tensor):
            return super().read_all(name, indices)
        return values[list(indices)]

    def identity(self) -> str:
        seal = hashlib.sha256()
        for name, values in self.fields.items():
            seal.update(f"{name} {values[0].dtype if self.n else ''}".encode())
            for row in values:
                seal.update(row.cpu().contiguous().numpy().tobytes())
        for domain in self.domains or [self.domain(0)] if self.n else []:
            seal.update(type(domain).__name__.encode())
            for part in (domain.points, domain.weights if domain.cells is None else domain.cells, domain.boundary):
                seal.update(part.contiguous().numpy().tobytes())
        for each in self._times:
            seal.update(each.numpy().tobytes())
        if self.groups:
            seal.update(repr(sorted(self.groups.items())).encode())
        return seal.hexdigest()


def times_of(given: Given, count: int) -> list[Tensor]:
    """Return the times (T_i,) of each of so many samples, given one list for all or one for each, after checking them."""
    if given is None:
        raise ValueError("Dataset: fields that are functions of time need their times: times=...")
    rows = _as_tensors("times", given, False)
    many = rows if isinstance(rows, list) else [*rows] if rows.ndim == 2 else [rows] * count
    if len(many) != count:
        raise ValueError(f"Dataset: times of {len(many)} samples for {count}; needed one list for all, or one for each")
    found = [row.double() for row in many]
    for i, times in enumerate(found if isinstance(rows, list) or rows.ndim == 2 else found[:1]):
        check_times(times, f"Dataset: the times of sample {i}")
    return found


def check_times(times: Tensor, name: str) -> None:
    """Raise an error unless times (T,) are finite and increase, and there are at least two."""
    if times.ndim != 1 or len(times) < 2:
        raise ValueError(f"{name} have shape {tuple(times.shape)}; needed (T,), at least two")
    check_finite(times, name)
    wrong = (times.diff() <= 0).nonzero()
    if len(wrong):
        frame = int(wrong[0, 0])
        raise ValueError(
            f"{name} do not increase: {float(times[frame + 1]):.10g} after {float(times[frame]):.10g} (frame {frame + 1}); "
            "sort the frames, and remove those that are there twice"
        )


def _as_tensors(name: str, given: Given, keep_gradients: bool) -> Tensor | list[Tensor]:
    """Return what was given as one tensor, or as a list of tensors if it is a sequence of arrays."""
    if isinstance(given, Tensor):
        return _as_tensor(name, given, keep_gradients)
    if isinstance(given, Sequence) and len(given) and not isinstance(given[0], float | int | np.number | np.bool_):
        return [_as_tensor(name, row, keep_gradients) for row in given]
    return _as_tensor(name, given, keep_gradients)


def _as_tensor(name: str, given: Any, keep_gradients: bool) -> Tensor:
    values = as_real(given, f"Dataset: field {name!r}")
    return values if keep_gradients else values.detach()
