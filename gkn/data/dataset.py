"""Dataset: pairs of functions {a_j, u_j} as named fields on one domain, or on one domain per sample."""

from __future__ import annotations

import hashlib
import operator
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, SupportsIndex, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from gkn.data import storage
from gkn.geometry.domain import Domain, Grid, Mesh
from gkn.geometry.smoothing import smoother
from gkn.system.checks import check_device
from gkn.system.files import digest
from gkn.system.machine import versions

SHARD_BYTES = 2**26
_TOGETHER = 2**22  # points of functions that are smoothed at once


class BadNumbers(ArithmeticError):
    """Somewhere a number is not finite: in the data, the loss, or a gradient."""


@dataclass(frozen=True, eq=False)
class Sample:
    """One pair: c input and o output functions on the K points of a domain."""

    domain: Domain
    a: Float[Tensor, "K c"]
    u: Float[Tensor, "K o"]

    @property
    def x(self) -> Float[Tensor, "K d"]:
        return self.domain.points

    @property
    def weights(self) -> Float[Tensor, " K"]:
        return self.domain.weights


def check_sample(values: Tensor, names: Sequence[str], sample: int, how: str = "") -> None:
    """Fields (K, c) of a sample must be finite; else say which is not, and where."""
    bad = ~torch.isfinite(values)
    if bad.any():
        field = int(bad.any(0).nonzero()[0])
        count, first = int(bad[:, field].sum()), int(bad[:, field].nonzero()[0])
        raise BadNumbers(
            f"sample {sample}, field {names[field]!r}{how}: {count} of {len(values)} values are not finite, the first is "
            f"{float(values[first, field])} at point {first}"
        )


@runtime_checkable
class Source(Protocol):
    """Where samples come from: memory, a folder, or another source with something computed from it."""

    n: int
    names: tuple[str, ...]
    one_domain: Domain | None

    def domain(self, i: int) -> Domain: ...
    def read(self, name: str, i: int) -> Tensor: ...
    def read_all(self, name: str, indices: Sequence[int]) -> Tensor: ...
    def identity(self) -> str: ...


class Dataset:
    """Named fields of n samples. A field whose name is in `outputs` ("u" unless said otherwise) is what is to be learned.

        Dataset(grid, a=a, u=u)                          (n, K) tensors on one domain
        Dataset([mesh_0, mesh_1], a=[a_0, a_1], u=...)   one domain per sample
        Dataset.open("data/darcy241")                    from disk, read when needed

    `take`, `split`, `every` and `smoothed` return views: nothing is copied or computed until it is asked for.
    """

    def __init__(
        self, domain: Domain | Sequence[Domain], /, *, outputs: Sequence[str] = ("u",), **fields: Tensor | Sequence[Tensor]
    ) -> None:
        self._fill(domain, fields, outputs)

    @staticmethod
    def of(
        domain: Domain | Sequence[Domain], fields: Mapping[str, Tensor | Sequence[Tensor]], outputs: Sequence[str] = ("u",)
    ) -> Dataset:
        """The same with the fields in a dictionary, whatever their names."""
        return Dataset.__new__(Dataset)._fill(domain, fields, outputs)

    def _fill(
        self, domain: Domain | Sequence[Domain], fields: Mapping[str, Tensor | Sequence[Tensor]], outputs: Sequence[str]
    ) -> Dataset:
        missing = [name for name in outputs if name not in fields]
        if missing or not outputs or len({*outputs}) != len(outputs) or len(fields) == len(outputs):
            raise ValueError(
                f"Dataset(outputs={[*outputs]}, fields {[*fields]}): needed every output among the fields, and an input too"
            )
        source = _Memory(domain, fields)
        inputs = tuple(name for name in fields if name not in outputs)
        return self._set(source, range(source.n), 1, inputs, tuple(outputs), None)

    def _set(
        self,
        source: Source,
        index: Sequence[int],
        stride: int,
        inputs: tuple[str, ...],
        outputs: tuple[str, ...],
        manifest: storage.Manifest | None,
    ) -> Dataset:
        self._source, self._index, self._stride = source, index, stride
        self.inputs, self.outputs, self.manifest = inputs, outputs, manifest
        whole = source.one_domain
        self._domain, self._nodes = whole, None
        if stride != 1:
            if not isinstance(whole, Grid):
                raise ValueError(f"Dataset.every({stride}): only a grid has strides; this dataset is on {described(whole)}")
            self._domain, self._nodes = whole.every(stride), whole.stride(stride)
        return self

    @staticmethod
    def open(path: str | os.PathLike[str], partial: bool = False) -> Dataset:
        """A dataset folder. Bytes are compared with their hashes when first read."""
        reader = storage.Reader(Path(path), partial)
        manifest = reader.manifest
        return Dataset.__new__(Dataset)._set(reader, range(reader.n), 1, manifest.inputs, manifest.outputs, manifest)

    def damaged(self) -> list[str]:
        """What is wrong with the files of a dataset on disk: every shard is compared with its hash, once."""
        return self._source.damaged() if isinstance(self._source, storage.Reader) else []

    def _view(self, **changes: Any) -> Dataset:
        now = {"source": self._source, "index": self._index, "stride": self._stride}
        names = {"inputs": self.inputs, "outputs": self.outputs}
        return Dataset.__new__(Dataset)._set(**{**now, **names, **changes}, manifest=self.manifest)

    def __len__(self) -> int:
        return len(self._index)

    def __repr__(self) -> str:
        fields = f"{', '.join(self.inputs)} -> {', '.join(self.outputs)}"
        return f"Dataset({len(self)} samples, {fields}, on {described(self._domain)})"

    @property
    def names(self) -> tuple[str, ...]:
        return (*self.inputs, *self.outputs)

    @property
    def domain(self) -> Domain:
        """The one domain of all samples."""
        if self._domain is None:
            raise ValueError("every sample of this dataset has a domain of its own: dataset[i].domain")
        return self._domain

    @property
    def one_domain(self) -> bool:
        return self._domain is not None

    def field(self, name: str) -> Float[Tensor, "n K"]:
        """All values of a field, where the samples share their domain."""
        self._known(name)
        if self._domain is None:
            raise ValueError(f"Dataset.field({name!r}): every sample has a domain of its own: use dataset[i]")
        values = self._source.read_all(name, self._index)
        return values if self._nodes is None else values[:, self._nodes]

    def value(self, name: str, i: int) -> Float[Tensor, " K"]:
        """One field of one sample."""
        self._known(name)
        values = self._source.read(name, self._index[self._position(i)])
        return values if self._nodes is None else values[self._nodes]

    def __getitem__(self, i: int) -> Sample:
        place = self._index[self._position(i)]
        domain = self._source.domain(place) if self._domain is None else self._domain
        a, u = (torch.stack([self.value(name, i) for name in names], -1) for names in (self.inputs, self.outputs))
        return Sample(domain, a, u)

    def number(self, i: int) -> int:
        """Which sample this is where the data came from, of which this may be a part."""
        place = int(self._index[self._position(i)])
        return self._source.number(place) if isinstance(self._source, _Kept) else place

    def __iter__(self) -> Iterator[Sample]:
        return (self[i] for i in range(len(self)))

    def _position(self, i: int) -> int:
        if not -len(self) <= i < len(self):
            raise IndexError(f"sample {i} of a dataset of {len(self)}")
        return i % len(self)

    def _known(self, name: str) -> None:
        if name not in self.names:
            raise KeyError(f"no field {name!r} in this dataset; it has {', '.join(self.names)}")

    def take(self, which: SupportsIndex | Sequence[SupportsIndex]) -> Dataset:
        """The first `which` samples, or those whose numbers are given."""
        if isinstance(which, SupportsIndex):
            which = operator.index(which)
            if not 0 <= which <= len(self):
                raise ValueError(f"Dataset.take({which}): this dataset has {len(self)} samples")
            return self._view(index=self._index[:which])
        if any(isinstance(i, bool) for i in which):
            raise ValueError("Dataset.take: numbers of samples are needed, not a mask")
        return self._view(index=[self._index[self._position(operator.index(i))] for i in which])

    def split(self, *sizes: int) -> tuple[Dataset, ...]:
        """Disjoint parts of the given sizes, in order from the first sample on."""
        if sum(sizes) > len(self) or any(size < 0 for size in sizes):
            raise ValueError(f"Dataset.split{sizes}: {sum(sizes)} samples asked for, this dataset has {len(self)}")
        parts, start = [], 0
        for size in sizes:
            parts.append(self._view(index=self._index[start : start + size]))
            start += size
        return tuple(parts)

    def every(self, k: int) -> Dataset:
        """The same functions on every k-th node of each axis of their grid."""
        if isinstance(self._domain, Grid):
            self._domain.every(k)  # says which strides there are, in terms of the grid as it is now
        return self._view(stride=self._stride * k)

    def smoothed(self, width: float, name: str = "a") -> Dataset:
        """With further inputs: `name` smoothed by a Gaussian of standard deviation `width`, and its gradient.

        Computed on all points the samples have, before any `every`: lower resolutions see the same smooth function.
        """
        if name not in self.inputs:
            raise KeyError(f"no input {name!r} to smooth in this dataset; it has {', '.join(self.inputs)}")
        if not self._source.n:
            raise ValueError("Dataset.smoothed: this dataset has no samples")
        if isinstance(self._source, _Kept):
            raise ValueError("Dataset.smoothed: of a kept dataset some points may be gone; smooth first, keep afterwards")
        source = _Smoothed(self._source, name, width)
        twice = [added for added in source.added if added in self.names]
        if twice:
            raise ValueError(f"Dataset.smoothed({width}, {name!r}): there is a field {twice[0]!r} already")
        return self._view(source=source, inputs=(*self.inputs, *source.added))

    def kept(self, device: torch.device | str = "cpu") -> Dataset:
        """The same samples with all their values in memory, smoothed ones computed once, together, on a device.

        Values are given out as they are, and not to be written to.
        """
        check_device(str(device))
        if not len(self) or not self.one_domain:
            what = "no samples" if not len(self) else "a domain per sample"
            raise ValueError(f"Dataset.kept: this dataset has {what}; needed samples on one domain")
        source = _Kept(self, torch.device(device))
        return Dataset.__new__(Dataset)._set(source, range(len(self)), 1, self.inputs, self.outputs, None)

    def elsewhere(self, domain: Domain, values: Mapping[str, Tensor]) -> Dataset:
        """The same functions on another domain, with all their fields (n, K) there: smoothed ones are still known as such."""
        source = _Elsewhere(self, domain, values)
        return Dataset.__new__(Dataset)._set(source, range(len(self)), 1, self.inputs, self.outputs, None)

    def using(self, inputs: Sequence[str] | None = None, outputs: Sequence[str] | None = None) -> Dataset:
        """With these fields as a and as u, and no others."""
        inputs, outputs = (
            tuple(now if given is None else given) for now, given in ((self.inputs, inputs), (self.outputs, outputs))
        )
        for name in (*inputs, *outputs):
            self._known(name)
        if not outputs or len({*inputs, *outputs}) != len(inputs) + len(outputs):
            raise ValueError(f"Dataset.using({[*inputs]}, {[*outputs]}): needed an output, and no field twice")
        return self._view(inputs=inputs, outputs=outputs)

    @property
    def smoothing(self) -> list[tuple[str, float]]:
        """Which fields are here smoothed as well, and by how much, in the order in which that was asked for."""
        return [(source.name, source.width) for source in self._smoothed()]

    @property
    def given(self) -> tuple[str, ...]:
        """The inputs that are not made of others."""
        made = {name for source in self._smoothed() for name in source.added}
        return tuple(name for name in self.inputs if name not in made)

    def _smoothed(self) -> list[_Smoothed]:
        found, source = [], self._source
        while isinstance(source, _Smoothed | _Kept):
            if isinstance(source, _Smoothed):
                found.append(source)
            source = source.source
        return found[::-1]

    def identity(self) -> dict[str, Any]:
        """What these data are: of two datasets with one identity, one may go on where writing the other stopped."""
        chosen = digest([*self._index])
        names = {"inputs": [*self.inputs], "outputs": [*self.outputs]}
        return {"source": self._source.identity(), "samples": chosen, "every": self._stride, **names}

    def _origin(self) -> dict[str, Any]:
        """Where the data came from: a view is not what its recipe alone would make."""
        if self.manifest is None:
            return {"name": "unnamed"}
        if self._stride == 1 and self.names == (*self.manifest.inputs, *self.manifest.outputs):
            return self.manifest.recipe
        smoothed = {"smoothed": self._source.width} if isinstance(self._source, _Smoothed) else {}
        return {"name": "view", "every": self._stride, **smoothed, "of": self.manifest.recipe, "hash": self.manifest.hash}

    def save(self, path: str | os.PathLike[str], *, recipe: Mapping[str, Any] | None = None, force: bool = False) -> None:
        """Write to a folder, as everything else that writes datasets does: whole shards, synced, renamed, then listed."""
        folder = Path(path)
        one = self._domain
        source = self._source
        while isinstance(source, _Smoothed | _Kept):
            source = source.source
        if isinstance(source, storage.Reader) and folder.resolve() == source.folder.resolve():
            raise ValueError(f"Dataset.save({str(path)!r}): this dataset is read from there; save it to another folder")
        if not len(self):
            raise ValueError("Dataset.save: this dataset has no samples")
        for name in self.names:
            kind = str(self.value(name, 0).dtype).removeprefix("torch.")
            if kind not in storage.TYPES:
                raise ValueError(f"field {name!r} has type {kind}; a dataset on disk holds {', '.join(storage.TYPES)}")
        header = storage.Manifest(
            n=len(self),
            inputs=self.inputs,
            outputs=self.outputs,
            domain=None,
            recipe={**(self._origin() if recipe is None else recipe), "saved": digest(self.identity())},
            seed=self.manifest.seed if self.manifest else None,
            versions=versions(),
        )
        with storage.writing(folder, header, one, force) as manifest:
            listed = {shard.start for shard in manifest.shards}
            count = max(1, SHARD_BYTES // sum(self.value(name, 0).nbytes for name in self.names))
            for number, start in enumerate(range(0, len(self), count)):
                if start in listed:
                    continue
                part = range(start, min(start + count, len(self)))
                fields = {name: [self.value(name, i) for i in part] for name in self.names}
                domains = None if one is not None else [self._source.domain(self._index[i]) for i in part]
                prepared = storage.prepare_shard(folder, number, start, fields, domains)
                manifest = storage.listing(folder, manifest, prepared)


class _Memory:
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
        self.domains = [*domain] if isinstance(domain, Sequence) else None
        self.one_domain = None if isinstance(domain, Sequence) else domain
        if self.domains is not None and len(self.domains) != self.n:
            raise ValueError(f"Dataset: {len(self.domains)} domains for {self.n} samples")
        for name, values in fields.items():
            for i in range(min(1, self.n) if isinstance(values, Tensor) and self.domains is None else self.n):
                if values[i].shape != (len(self.domain(i)),):
                    raise ValueError(
                        f"Dataset: field {name!r} of sample {i} has shape {tuple(values[i].shape)}, "
                        f"but its domain has {len(self.domain(i))} points"
                    )

    def identity(self) -> str:
        seal = hashlib.sha256()
        for name, values in self.fields.items():
            seal.update(f"{name} {values[0].dtype if self.n else ''}".encode())
            for row in values:
                seal.update(row.cpu().contiguous().numpy().tobytes())
        for domain in self.domains or [self.domain(0)] if self.n else []:
            seal.update(type(domain).__name__.encode())
            for part in (domain.points, domain.cells if isinstance(domain, Mesh) else domain.weights, domain.boundary):
                seal.update(part.contiguous().numpy().tobytes())
        return seal.hexdigest()

    def domain(self, i: int) -> Domain:
        if self.domains is not None:
            return self.domains[i]
        assert self.one_domain is not None
        return self.one_domain

    def read(self, name: str, i: int) -> Tensor:
        return self.fields[name][i]

    def read_all(self, name: str, indices: Sequence[int]) -> Tensor:
        values = self.fields[name]
        return values[list(indices)] if isinstance(values, Tensor) else torch.stack([values[i] for i in indices])


class _Smoothed:
    """A source with a_eps and grad a_eps of a field beside the rest, computed when asked for."""

    def __init__(self, source: Source, name: str, width: float) -> None:
        self.source, self.name, self.width = source, name, width
        self.n, self.one_domain = source.n, source.one_domain
        dim = source.domain(0).dim
        self._smooth: Callable[[Tensor], tuple[Tensor, Tensor]] | None = None
        self.added = (f"{name}_smooth", *(f"{name}_smooth_{axis}" for axis in "xyz"[:dim]))
        self.names = (*source.names, *self.added)
        self._last: tuple[int, Tensor] | None = None
        smoother(source.domain(0), width)  # says now if the width makes no sense

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_smooth": None, "_last": None}  # made again on the other side

    def domain(self, i: int) -> Domain:
        return self.source.domain(i)

    def read(self, name: str, i: int) -> Tensor:
        if name not in self.added:
            return self.source.read(name, i)
        if self._last is None or self._last[0] != i:  # the added fields of a sample are read one after the other
            self._last = (i, self._compute(i))
        return self._last[1][self.added.index(name)]

    def identity(self) -> str:
        return digest([self.source.identity(), self.name, self.width])

    def read_all(self, name: str, indices: Sequence[int]) -> Tensor:
        if name not in self.added:
            return self.source.read_all(name, indices)
        return torch.stack([self.read(name, i) for i in indices])

    def _compute(self, i: int) -> Tensor:
        apply = self._smooth or smoother(self.domain(i), self.width)
        if self.one_domain is not None:
            self._smooth = apply
        smoothed, gradient = apply(self.source.read(self.name, i))
        return torch.cat([smoothed[None], gradient.T])


class _Kept:
    """Values of a dataset, read and computed once."""

    def __init__(self, dataset: Dataset, device: torch.device) -> None:
        self.source, self.n, self.names = dataset._source, len(dataset), dataset.names
        self.one_domain: Domain | None = dataset.domain
        self._identity, self._numbers = digest(dataset.identity()), [dataset.number(i) for i in range(len(dataset))]
        self._values = {name: _bulk(dataset._source, name, dataset._index, dataset._nodes, device) for name in dataset.names}

    def domain(self, i: int) -> Domain:
        assert self.one_domain is not None
        return self.one_domain

    def read(self, name: str, i: int) -> Tensor:
        return self._values[name][i]

    def read_all(self, name: str, indices: Sequence[int]) -> Tensor:
        return self._values[name] if [*indices] == [*range(self.n)] else self._values[name][[*indices]]

    def identity(self) -> str:
        return self._identity

    def number(self, i: int) -> int:
        return self._numbers[i]


class _Elsewhere(_Kept):
    """Values somebody worked out, on another domain than the source's."""

    def __init__(self, dataset: Dataset, domain: Domain, values: Mapping[str, Tensor]) -> None:
        for name in dataset.names:
            if values[name].shape != (len(dataset), len(domain)):
                shape = tuple(values[name].shape)
                raise ValueError(f"Dataset.elsewhere: {name} {shape}; needed ({len(dataset)}, {len(domain)})")
        self.source, self.n, self.names, self.one_domain = dataset._source, len(dataset), dataset.names, domain
        self._identity = digest([dataset.identity(), domain.points.tolist()])
        self._numbers, self._values = [dataset.number(i) for i in range(len(dataset))], dict(values)


def _bulk(source: Source, name: str, index: Sequence[int], nodes: Tensor | None, device: torch.device) -> Tensor:
    """A field of many samples at some nodes. A smoothed one is computed for many samples at once where that is faster."""
    if not isinstance(source, _Smoothed) or source.one_domain is None:
        parts = [source.read(name, i) for i in index]
        return torch.stack([x if nodes is None else x[nodes] for x in parts])
    if name not in source.added:
        return _bulk(source.source, name, index, nodes, device)
    apply, place = smoother(source.one_domain, source.width), source.added.index(name)
    found = []
    few = 1 if device.type == "cpu" else max(1, _TOGETHER // len(source.one_domain))  # products of the same size: the same bits
    for start in range(0, len(index), few):
        values = torch.stack([source.source.read(source.name, i) for i in index[start : start + few]]).to(device)
        smoothed, gradient = apply(values)
        chosen = smoothed if place == 0 else gradient[..., place - 1]
        found.append((chosen if nodes is None else chosen[:, nodes.to(device)]).cpu())
    return torch.cat(found)


def described(domain: Domain | None) -> str:
    """A domain in a few words, for messages."""
    if domain is None:
        return "a domain per sample"
    if isinstance(domain, Grid):
        return f"a grid of {' x '.join([str(domain.size)] * domain.dim)}"
    return f"a {type(domain).__name__.lower()} of {len(domain)} points"
