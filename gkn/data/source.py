"""Sources of samples: memory, or another source with fields computed from it."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gkn.geometry.domain import Domain
from gkn.geometry.smoothing import smoother
from gkn.system.files import digest

_TOGETHER = 2**22  # points of functions that are smoothed in one call on a GPU


class Source(ABC):
    """n samples of named fields. `stored.Stored` reads them from a folder; those below hold or compute them.

    n            number of samples
    names        names of the fields
    common_domain   the domain of all samples, or None if each has its own
    """

    n: int
    names: tuple[str, ...]
    common_domain: Domain | None

    @abstractmethod
    def read(self, name: str, i: int) -> Tensor:
        """Return one field (K,) of one sample."""

    @abstractmethod
    def identity(self) -> str:
        """Return a digest of the data: two sources with one identity hold the same numbers."""

    def domain(self, i: int) -> Domain:
        """Return the domain of one sample."""
        if self.common_domain is None:
            raise NotImplementedError(f"{type(self).__name__} has no common domain and does not say which one sample {i} has")
        return self.common_domain

    def read_all(self, name: str, indices: Sequence[int]) -> Tensor:
        """Return one field (n, K) of many samples on one domain."""
        return torch.stack([self.read(name, i) for i in indices])

    def read_at(self, name: str, indices: Sequence[int], nodes: Tensor | None, device: torch.device) -> Tensor:
        """Return one field of many samples at some of the nodes, on the CPU. `device` is where anything is computed."""
        rows = [self.read(name, i) for i in indices]
        return torch.stack([x if nodes is None else x[nodes] for x in rows])

    def number(self, i: int) -> int:
        """Return the index of sample i in the data this source was made from."""
        return i

    def smoothings(self) -> list[Smoothed]:
        """Return the smoothed sources below this one and itself, in the order in which they were made."""
        return []

    def read_from(self) -> Path | None:
        """Return the folder the data are read from, if there is one."""
        return None

    def damaged(self) -> list[str]:
        """Compare all files with their hashes; return a list of problems."""
        return []


class Memory(Source):
    """Fields in memory: (n, K) tensors on one domain, or lists of (K_i,) tensors on one domain per sample."""

    def __init__(self, domain: Domain | Sequence[Domain], fields: Mapping[str, Tensor | Sequence[Tensor]]) -> None:
        self.names = tuple(fields)
        self.fields = dict(fields)
        for name, values in fields.items():
            if not name or "/" in name or "\0" in name or name.startswith("."):
                raise ValueError(f"Dataset: a field cannot be called {name!r}; use letters, digits and _")
            if isinstance(values, Tensor) and values.ndim != 2:
                raise ValueError(f"Dataset: field {name!r} of shape {tuple(values.shape)}; needed (samples, points)")
        counts = {name: len(values) for name, values in fields.items()}
        self.n = next(iter(counts.values()))
        if len({*counts.values()}) != 1:
            raise ValueError(f"Dataset: the fields have different numbers of samples: {counts}")
        many = isinstance(domain, Sequence)
        self.domains = [*domain] if many else None  # type: ignore[misc]
        self.common_domain = None if many else domain  # type: ignore[assignment]
        if self.domains is not None and len(self.domains) != self.n:
            raise ValueError(f"Dataset: {len(self.domains)} domains for {self.n} samples")
        for name, values in fields.items():
            for i in range(min(1, self.n) if isinstance(values, Tensor) and self.domains is None else self.n):
                if values[i].shape != (len(self.domain(i)),):
                    raise ValueError(
                        f"Dataset: field {name!r} of sample {i} has shape {tuple(values[i].shape)}, "
                        f"but its domain has {len(self.domain(i))} points"
                    )

    def domain(self, i: int) -> Domain:
        return super().domain(i) if self.domains is None else self.domains[i]

    def read(self, name: str, i: int) -> Tensor:
        return self.fields[name][i]

    def read_all(self, name: str, indices: Sequence[int]) -> Tensor:
        values = self.fields[name]
        return values[list(indices)] if isinstance(values, Tensor) else super().read_all(name, indices)

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
        return seal.hexdigest()


class Smoothed(Source):
    """A source with a_eps and grad a_eps of one field beside the other fields. They are computed when read."""

    def __init__(self, source: Source, name: str, width: float) -> None:
        self.source, self.name, self.width = source, name, width
        self.n, self.common_domain = source.n, source.common_domain
        dim = source.domain(0).dim
        self._smooth: Callable[[Tensor], tuple[Tensor, Tensor]] | None = None
        self.added = (f"{name}_smooth", *(f"{name}_smooth_{axis}" for axis in "xyz"[:dim]))
        self.names = (*source.names, *self.added)
        self._last: tuple[int, Tensor] | None = None
        smoother(source.domain(0), width)  # raises now if the width makes no sense

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_smooth": None, "_last": None}  # another process computes them again

    def domain(self, i: int) -> Domain:
        return self.source.domain(i)

    def read(self, name: str, i: int) -> Tensor:
        if name not in self.added:
            return self.source.read(name, i)
        if self._last is None or self._last[0] != i:  # the added fields of a sample are read one after the other
            self._last = (i, self._compute(i))
        return self._last[1][self.added.index(name)]

    def read_all(self, name: str, indices: Sequence[int]) -> Tensor:
        return self.source.read_all(name, indices) if name not in self.added else super().read_all(name, indices)

    def read_at(self, name: str, indices: Sequence[int], nodes: Tensor | None, device: torch.device) -> Tensor:
        """Smooth many samples at once where that is faster."""
        if self.common_domain is None:
            return super().read_at(name, indices, nodes, device)
        if name not in self.added:
            return self.source.read_at(name, indices, nodes, device)
        apply, place = smoother(self.common_domain, self.width), self.added.index(name)
        # On a CPU one by one: products of the same size have the same bits.
        chunk = 1 if device.type == "cpu" else max(1, _TOGETHER // len(self.common_domain))
        found = []
        for start in range(0, len(indices), chunk):
            values = torch.stack([self.source.read(self.name, i) for i in indices[start : start + chunk]]).to(device)
            smoothed, gradient = apply(values)
            chosen = smoothed if place == 0 else gradient[..., place - 1]
            found.append((chosen if nodes is None else chosen[:, nodes.to(device)]).cpu())
        return torch.cat(found)

    def identity(self) -> str:
        return digest([self.source.identity(), self.name, self.width])

    def number(self, i: int) -> int:
        return self.source.number(i)

    def smoothings(self) -> list[Smoothed]:
        return [*self.source.smoothings(), self]

    def read_from(self) -> Path | None:
        return self.source.read_from()

    def _compute(self, i: int) -> Tensor:
        apply = self._smooth or smoother(self.domain(i), self.width)
        if self.common_domain is not None:
            self._smooth = apply
        smoothed, gradient = apply(self.source.read(self.name, i))
        return torch.cat([smoothed[None], gradient.T])


class Kept(Source):
    """Values (n, K) of all fields of some samples, computed once and held in memory.

    source     source they were read or computed from
    numbers    numbers of the samples there
    """

    def __init__(
        self, source: Source, domain: Domain, values: Mapping[str, Tensor], numbers: Sequence[int], identity: str
    ) -> None:
        self.source, self.names, self.n = source, tuple(values), len(numbers)
        self.common_domain: Domain | None = domain
        self._values, self._numbers, self._identity = dict(values), [*numbers], identity

    def read(self, name: str, i: int) -> Tensor:
        return self._values[name][i]

    def read_all(self, name: str, indices: Sequence[int]) -> Tensor:
        return self._values[name] if [*indices] == [*range(self.n)] else self._values[name][[*indices]]

    def identity(self) -> str:
        return self._identity

    def number(self, i: int) -> int:
        return self._numbers[i]

    def smoothings(self) -> list[Smoothed]:
        return self.source.smoothings()

    def read_from(self) -> Path | None:
        return self.source.read_from()
