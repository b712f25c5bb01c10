"""Sources of samples: the interface, and sources that compute their samples from those of another."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from gkn.data.groups import Groups
from gkn.data.stepping import Stepping
from gkn.geometry.domain import Domain
from gkn.geometry.extension import extension
from gkn.geometry.frame import Frame
from gkn.geometry.smoothing import check_width, smoother
from gkn.system.files import digest

_TOGETHER = 2**22  # points of functions that are smoothed in one call on a GPU
_KEPT = 2**25  # numbers of extensions that are kept


class Source(ABC):
    """n samples of named scalar fields. `Memory` holds them, `Stored` reads them from a folder, those below compute them.

    n               number of samples
    names           names of the fields, components of vectors each by itself
    common_domain   the domain of all samples, or None if each has its own
    groups          vectors and tensors, with the names of their components
    parameters      names of fields that are one number per sample
    frame           the frame that the domains are in; None: they are in the user's unit
    evolving        names of fields that are functions of time; a sample with such fields is a trajectory
    stepping        how pairs of states were made of trajectories; None: the samples are no such pairs
    """

    n: int
    names: tuple[str, ...]
    common_domain: Domain | None
    groups: Groups = MappingProxyType({})
    parameters: tuple[str, ...] = ()
    frame: Frame | None = None
    evolving: tuple[str, ...] = ()
    stepping: Stepping | None = None

    @abstractmethod
    def read(self, name: str, i: int) -> Tensor:
        """Return one field (K,) of one sample; an evolving field (T, K) at all its times."""

    @abstractmethod
    def identity(self) -> str:
        """Return a digest of the data: two sources with one identity hold the same numbers."""

    def domain(self, i: int) -> Domain:
        """Return the domain of one sample."""
        if self.common_domain is None:
            raise NotImplementedError(f"{type(self).__name__} has no common domain and does not say which one sample {i} has")
        return self.common_domain

    def times(self, i: int) -> Tensor:
        """Return the times (T,) of one trajectory."""
        raise NotImplementedError(f"{type(self).__name__} has no fields that are functions of time")

    def frames(self, name: str, i: int, which: Sequence[int]) -> Tensor:
        """Return an evolving field (F, K) of one sample at some of its times, given by their numbers."""
        return self.read(name, i)[[*which]]

    def reference(self, i: int) -> Mapping[str, Tensor] | None:
        """Return fields (K,) that are added to outputs before a relative error is taken of them; None: nothing is added.

        An output that is a change of the state is judged by the error of the state that follows from it.
        """
        return None

    def leads(self) -> Source | None:
        """Return pairs that end where those of this source begin, sample by sample; None if these are no pairs."""
        return None

    def read_all(self, name: str, indices: Sequence[int]) -> Tensor:
        """Return one field (n, K) of many samples on one domain."""
        return torch.stack([self.read(name, i) for i in indices])

    def read_at(self, name: str, indices: Sequence[int], nodes: Tensor | None, device: torch.device) -> Tensor:
        """Return one field of many samples at some of the nodes, on the CPU. `device` is where anything is computed."""
        rows = [self.read(name, i) for i in indices]
        return torch.stack([x if nodes is None else x[nodes] for x in rows])

    def parameter(self, name: str, i: int) -> float:
        """Return a number of one sample."""
        return float(self.read(name, i)[0])

    def framed(self, frame: Frame) -> Source:
        """Return the same samples with their domains in a frame. Lengths that fields were computed with are scaled as well."""
        return self if frame.is_identity else Framed(self, frame)

    def number(self, i: int) -> int:
        """Return the index of sample i in the data this source was made from."""
        return i

    def file(self, i: int) -> str:
        """Return the name of the file that sample i was imported from, or an empty string."""
        return ""

    def part(self, i: int) -> str:
        """Return which part of a trajectory sample i is, for messages; an empty string for a whole one."""
        return ""

    def computed(self) -> list[Smoothed | Extended]:
        """Return the smoothed and extended sources below this one and itself, in the order in which they were made."""
        return []

    def read_from(self) -> Path | None:
        """Return the folder the data are read from, if there is one."""
        return None

    def damaged(self) -> list[str]:
        """Compare all files with their hashes; return a list of problems."""
        return []


class Derived(Source):
    """A source whose samples are those of another one, perhaps with further fields."""

    def __init__(self, source: Source) -> None:
        self.source, self.names, self.n, self.common_domain = source, source.names, source.n, source.common_domain
        self.groups, self.parameters, self.frame = source.groups, source.parameters, source.frame
        self.evolving, self.stepping = source.evolving, source.stepping

    def domain(self, i: int) -> Domain:
        return self.source.domain(i)

    def read(self, name: str, i: int) -> Tensor:
        return self.source.read(name, i)

    def times(self, i: int) -> Tensor:
        return self.source.times(i)

    def frames(self, name: str, i: int, which: Sequence[int]) -> Tensor:
        return self.source.frames(name, i, which)

    def reference(self, i: int) -> Mapping[str, Tensor] | None:
        return self.source.reference(i)

    @abstractmethod
    def over(self, source: Source) -> Source:
        """Return what this source makes of its own, made of another one."""

    def leads(self) -> Source | None:
        leads = self.source.leads()
        return None if leads is None else self.over(leads)

    def parameter(self, name: str, i: int) -> float:
        return self.source.parameter(name, i)

    def number(self, i: int) -> int:
        return self.source.number(i)

    def file(self, i: int) -> str:
        return self.source.file(i)

    def part(self, i: int) -> str:
        return self.source.part(i)

    def computed(self) -> list[Smoothed | Extended]:
        return self.source.computed()

    def read_from(self) -> Path | None:
        return self.source.read_from()

    def damaged(self) -> list[str]:
        return self.source.damaged()


class Window(Derived):
    """Trajectories with some of their times only: those with the numbers first, ..., last - 1."""

    def __init__(self, source: Source, first: int | None, last: int | None) -> None:
        super().__init__(source)
        self.first, self.last = first, last

    def over(self, source: Source) -> Source:
        return Window(source, self.first, self.last)

    def times(self, i: int) -> Tensor:
        return self.source.times(i)[self.first : self.last]

    def read(self, name: str, i: int) -> Tensor:
        values = self.source.read(name, i)
        return values[self.first : self.last] if name in self.evolving else values

    def frames(self, name: str, i: int, which: Sequence[int]) -> Tensor:
        kept = range(len(self.source.times(i)))[self.first : self.last]
        return self.source.frames(name, i, [kept[j] for j in which])

    def identity(self) -> str:
        return digest([self.source.identity(), "window", self.first, self.last])


class Framed(Derived):
    """A source whose domains are in a frame. Fields that are derivatives are scaled with them.

    slopes   names of fields that are derivatives with respect to the points
    """

    def __init__(self, source: Source, frame: Frame, slopes: Sequence[str] = ()) -> None:
        super().__init__(source)
        self.frame, self.slopes = frame, tuple(slopes)
        self.common_domain = None if source.common_domain is None else frame.domain(source.common_domain)
        self._domains: dict[int, Domain] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_domains": {}}

    def over(self, source: Source) -> Source:
        assert self.frame is not None
        return Framed(source, self.frame, self.slopes)

    def domain(self, i: int) -> Domain:
        if self.common_domain is not None:
            return self.common_domain
        if i not in self._domains:
            assert self.frame is not None
            self._domains[i] = self.frame.domain(self.source.domain(i))
        return self._domains[i]

    def read(self, name: str, i: int) -> Tensor:
        return self._scaled(name, self.source.read(name, i))

    def read_all(self, name: str, indices: Sequence[int]) -> Tensor:
        return self._scaled(name, self.source.read_all(name, indices))

    def read_at(self, name: str, indices: Sequence[int], nodes: Tensor | None, device: torch.device) -> Tensor:
        return self._scaled(name, self.source.read_at(name, indices, nodes, device))

    def _scaled(self, name: str, values: Tensor) -> Tensor:
        assert self.frame is not None
        return values * self.frame.scale if name in self.slopes else values

    def identity(self) -> str:
        assert self.frame is not None
        return digest([self.source.identity(), self.frame.json()])


class Smoothed(Derived):
    """A source with a_eps and grad a_eps of one field beside the other fields. They are computed when read."""

    def __init__(self, source: Source, name: str, width: float) -> None:
        super().__init__(source)
        self.name, self.width = name, width
        dim = source.domain(0).dim
        self._smooth: Callable[[Tensor], tuple[Tensor, Tensor]] | None = None
        self.added = (f"{name}_smooth", *(f"{name}_smooth_{axis}" for axis in "xyz"[:dim]))
        self.names = (*source.names, *self.added)
        self._last: tuple[int, Tensor] | None = None
        check_width(width)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_smooth": None, "_last": None}  # another process computes them again

    def over(self, source: Source) -> Source:
        return Smoothed(source, self.name, self.width)

    def framed(self, frame: Frame) -> Source:
        return self if frame.is_identity else Smoothed(self.source.framed(frame), self.name, self.width / frame.scale)

    def read(self, name: str, i: int) -> Tensor:
        if name not in self.added:
            return self.source.read(name, i)
        last = self._last  # read once: another thread may replace it
        if last is None or last[0] != i:  # the added fields of a sample are read one after the other
            last = self._last = (i, self._compute(i))
        return last[1][self.added.index(name)]

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

    def computed(self) -> list[Smoothed | Extended]:
        return [*self.source.computed(), self]

    def _compute(self, i: int) -> Tensor:
        apply = self._smooth or smoother(self.domain(i), self.width)
        if self.common_domain is not None:
            self._smooth = apply
        smoothed, gradient = apply(self.source.read(self.name, i))
        return torch.cat([smoothed[None], gradient.T])


class Extended(Derived):
    """A source with one field, of which values on the boundary alone count, extended to all points.

    The extension is computed when read; see gkn/geometry/extension.py. It is called as `inside` says.
    """

    def __init__(self, source: Source, name: str) -> None:
        super().__init__(source)
        self.name, self.added = name, (inside(name),)
        self.names = (*source.names, *self.added)
        self._last: tuple[Domain, Callable[[Tensor], Tensor]] | None = None
        self._computed: dict[int, Tensor] = {}
        first = source.domain(0)
        if not first.boundary.any():
            raise ValueError(f"{first.describe()} has no boundary to extend {name} from")

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_last": None, "_computed": {}}  # another process computes them again

    def over(self, source: Source) -> Source:
        return Extended(source, self.name)

    def framed(self, frame: Frame) -> Source:
        return self if frame.is_identity else Extended(self.source.framed(frame), self.name)

    def read(self, name: str, i: int) -> Tensor:
        if name not in self.added:
            return self.source.read(name, i)
        if i not in self._computed:
            found = self._extend(self.domain(i))(self.source.read(self.name, i))
            if (len(self._computed) + 1) * len(found) > _KEPT or found.requires_grad:
                return found
            self._computed[i] = found
        return self._computed[i]

    def read_all(self, name: str, indices: Sequence[int]) -> Tensor:
        return self.source.read_all(name, indices) if name not in self.added else self._together(indices)

    def read_at(self, name: str, indices: Sequence[int], nodes: Tensor | None, device: torch.device) -> Tensor:
        if name not in self.added:
            return self.source.read_at(name, indices, nodes, device)
        if self.common_domain is None:
            return super().read_at(name, indices, nodes, device)
        found = self._together(indices)
        return found if nodes is None else found[:, nodes]

    def _together(self, indices: Sequence[int]) -> Tensor:
        """Extend many functions on one domain: on a large one the weights are then computed once for all of them."""
        if all(i in self._computed for i in indices):
            return torch.stack([self._computed[i] for i in indices])
        return self._extend(self.domain(indices[0]))(self.source.read_all(self.name, indices))

    def _extend(self, domain: Domain) -> Callable[[Tensor], Tensor]:
        for each in self.computed():  # other components of a vector may have it; pairs of one trajectory have one domain
            last = each._last if isinstance(each, Extended) else None  # read once: another thread may replace it
            if last is not None and last[0] is domain:
                return last[1]
        self._last = (domain, extension(domain))
        return self._last[1]

    def identity(self) -> str:
        return digest([self.source.identity(), "extended", self.name])

    def computed(self) -> list[Smoothed | Extended]:
        return [*self.source.computed(), self]


def inside(name: str) -> str:
    """Return the name of the extension of a field: g_inside, and g_inside_x for the component g_x of a vector."""
    stem, _, axes = name.rpartition("_")
    return f"{stem}_inside_{axes}" if stem and {*axes} <= {*"xyz"} else f"{name}_inside"


class Kept(Derived):
    """Values (n, K) of all fields of some samples, computed once and held in memory.

    source     source they were read or computed from
    samples    number of each sample in the original data, and its file
    """

    def __init__(
        self, source: Source, domain: Domain, values: Mapping[str, Tensor], samples: Sequence[tuple[int, str]], identity: str
    ) -> None:
        super().__init__(source)
        self.names, self.n, self.common_domain = tuple(values), len(samples), domain
        self._values, self._samples, self._identity = dict(values), [*samples], identity

    def domain(self, i: int) -> Domain:
        assert self.common_domain is not None
        return self.common_domain

    def over(self, source: Source) -> Source:
        raise ValueError("a kept dataset cannot be made of other samples")

    def framed(self, frame: Frame) -> Source:
        slopes = [name for source in self.computed() if isinstance(source, Smoothed) for name in source.added[1:]]
        return self if frame.is_identity else Framed(self, frame, slopes)

    def parameter(self, name: str, i: int) -> float:
        return float(self.read(name, i)[0])

    def read(self, name: str, i: int) -> Tensor:
        return self._values[name][i]

    def read_all(self, name: str, indices: Sequence[int]) -> Tensor:
        return self._values[name] if [*indices] == [*range(self.n)] else self._values[name][[*indices]]

    def identity(self) -> str:
        return self._identity

    def number(self, i: int) -> int:
        return self._samples[i][0]

    def file(self, i: int) -> str:
        return self._samples[i][1]
