"""A dataset on disk: a folder with dataset.json and immutable HDF5 shards.

    dataset.json        schema, recipe, seed, versions, domain, fields, and the sha256 of every shard; sealed by its own
    domain.h5           points (and cells) of the one domain of all samples, unless it is a grid
    shard-00000.h5      fields of samples 0, 1, ...: (n, K) where all share a domain, else flat, cut by node_ptr

A shard is written under a temporary name, synced, renamed, and only then listed; what is listed is never written
again. So whatever kills the writer, everything listed is whole, and a rerun makes just what is missing.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from torch import Tensor

from gkn.geometry.domain import Cloud, Domain, Grid, Mesh
from gkn.system.files import (
    LOCK,
    CorruptFile,
    difference,
    digest,
    locked,
    place,
    prepare,
    read_sealed_json,
    sha256,
    unfinished,
    write,
    write_sealed_json,
)
from gkn.system.hdf5 import Array, check_fits, image_of, plain_array

SCHEMA = 1
MANIFEST = "dataset.json"
DOMAIN = "domain.h5"
_MOST_OPEN = 64  # files, of the 1024 a process may have
TYPES = ("float64", "float32", "int64", "bool")


class ExistingDataset(ValueError):
    """The output folder holds something else."""


@dataclass(frozen=True)
class Shard:
    file: str
    start: int  # the first sample in it
    count: int
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """What dataset.json says. `domain` is None where every sample has its own."""

    n: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    domain: dict[str, Any] | None
    recipe: dict[str, Any]
    seed: int | None
    versions: dict[str, str]
    shards: tuple[Shard, ...] = field(default=())

    @property
    def complete(self) -> bool:
        return sum(shard.count for shard in self.shards) == self.n

    @property
    def hash(self) -> str:
        """Names the data: the same recipe, seed and bits give the same hash, however many workers made them."""
        return digest(self.json())

    def header(self) -> Manifest:
        """What must agree for a rerun to go on where this one stopped."""
        return replace(self, shards=())

    def json(self) -> dict[str, Any]:
        shards = [vars(shard) for shard in self.shards]
        return {"schema": SCHEMA, **vars(self), "inputs": [*self.inputs], "outputs": [*self.outputs], "shards": shards}

    def write(self, folder: Path) -> None:
        write_sealed_json(folder / MANIFEST, self.json())

    @staticmethod
    def read(folder: Path) -> Manifest:
        path = folder / MANIFEST
        if not path.is_file():
            raise FileNotFoundError(f"{folder}: not a dataset, it has no {MANIFEST}")
        value = read_sealed_json(path)
        schema = value.pop("schema", None)
        if schema != SCHEMA:
            raise CorruptFile(f"{path}: schema {schema}, but this version of gkn reads schema {SCHEMA}; update gkn")
        try:
            shards = tuple(Shard(**shard) for shard in value.pop("shards"))
            manifest = Manifest(
                **{**value, "inputs": tuple(value["inputs"]), "outputs": tuple(value["outputs"])}, shards=shards
            )
        except (TypeError, KeyError, AttributeError) as error:
            raise CorruptFile(f"{path}: fields missing or unknown ({error})") from error
        manifest._validate(path)
        return manifest

    def _validate(self, path: Path) -> None:
        """The seal says that nobody changed it since; this, that whoever wrote it made sense."""
        names = (*self.inputs, *self.outputs)
        sound = isinstance(self.n, int) and isinstance(self.recipe, dict) and all(isinstance(name, str) for name in names)
        if self.domain is not None:
            kind = self.domain.get("kind") if isinstance(self.domain, dict) else None
            sound = sound and kind in ("grid", "mesh", "cloud")
            needed = ("size", "dim") if kind == "grid" else ("points", "dim")
            sound = sound and all(isinstance(self.domain.get(key), int) for key in needed)
            sound = sound and (kind == "grid" or isinstance(self.domain.get("sha256"), str))
        if not sound:
            raise CorruptFile(f"{path}: its entries are not of the kinds that gkn writes")
        end = 0
        for shard in self.shards:
            whole = all(isinstance(value, int) for value in (shard.start, shard.count, shard.bytes))
            if not (
                whole and end <= shard.start and shard.count >= 1 and isinstance(shard.file, str) and _is_shard(shard.file)
            ):
                raise CorruptFile(f"{path}: the entry of shard {shard.file!r} makes no sense")
            end = shard.start + shard.count


# --- writing ---------------------------------------------------------------------------------------------------------


@contextmanager
def writing(folder: Path, header: Manifest, domain: Domain | None, force: bool = False) -> Iterator[Manifest]:
    """Own `folder` for writing. Yields what is in it already: a new manifest, or that of an interrupted run of the same.

    Refuses a folder that holds another dataset or other files, unless `force`, which then removes the dataset only.
    """
    with locked(folder, ExistingDataset):
        try:
            yield _prepare(folder, header, domain, force)
        finally:
            for path in unfinished(folder, _is_ours):
                path.unlink(missing_ok=True)


def _prepare(folder: Path, header: Manifest, domain: Domain | None, force: bool) -> Manifest:
    """Look first; remove only what is ours, and only once it is clear that this run goes on."""
    image = None if domain is None or isinstance(domain, Grid) else image_of(_domain_arrays([domain], flat=False))
    header = replace(header, domain=None if domain is None else _describe(domain, image))
    found = Manifest.read(folder) if (folder / MANIFEST).exists() and not force else None
    if found is not None and digest(found.header().json()) != digest(header.json()):
        raise ExistingDataset(
            f"{folder} holds another dataset: {difference(found.header().json(), header.json())}; --force overwrites it"
        )
    if found is None and not force:
        others = [path.name for path in sorted(folder.iterdir()) if not _is_rest(path, image)]
        if others:
            some = ", ".join(others[:3])
            raise ExistingDataset(f"{folder} is not empty and holds no dataset ({some}); choose another folder, or --force")
    if force:
        remove(folder)
    listed = {shard.file for shard in found.shards} if found else set()
    unlisted = [path for path in folder.iterdir() if _is_shard(path.name) and path.name not in listed]
    for path in [*unlisted, *unfinished(folder, _is_ours)]:
        path.unlink(missing_ok=True)
    if found is not None:
        return found
    if image is not None:
        write(folder / DOMAIN, image)
    header.write(folder)
    return header


def remove(folder: Path) -> None:
    """Remove a dataset's own files, dataset.json first, so that nothing is ever listed and gone."""
    shards = [path for path in folder.iterdir() if _is_shard(path.name)]
    for path in [folder / MANIFEST, folder / DOMAIN, *shards]:
        path.unlink(missing_ok=True)


def _is_shard(name: str) -> bool:
    return re.fullmatch(r"shard-\d{5,}\.h5", name) is not None


def _is_ours(name: str) -> bool:
    return name in (MANIFEST, DOMAIN) or _is_shard(name)


def _is_rest(path: Path, image: bytes | None) -> bool:
    """May a run of ours, killed before it wrote dataset.json, have left this? Shards come later, so they are not ours."""
    if path.name == LOCK or path in unfinished(path.parent, _is_ours):
        return True
    return path.name == DOMAIN and image is not None and path.read_bytes() == image


@dataclass(frozen=True)
class Prepared:
    """A shard whose bytes are safe on disk, under a temporary name. Any process may prepare; only the writer lists."""

    temporary: Path
    shard: Shard


def prepare_shard(
    folder: Path,
    number: int,
    start: int,
    fields: Mapping[str, Tensor | Sequence[Tensor]],
    domains: Sequence[Domain] | None = None,
) -> Prepared:
    """Samples start, start+1, ...: each field (n, K), or n tensors of (K,); and the domains where they differ."""
    arrays: dict[str, Array] = {} if domains is None else _domain_arrays(domains, flat=True)
    for name, rows in fields.items():
        if isinstance(rows, Tensor):
            array = rows.cpu().numpy()
        elif domains is None:
            array = np.stack([row.cpu().numpy() for row in rows])
        else:
            array = np.concatenate([row.cpu().numpy() for row in rows])
        arrays[f"fields/{name}"] = array
    image = image_of(arrays)
    count = len(next(iter(fields.values())))
    shard = Shard(f"shard-{number:05d}.h5", start, count, len(image), hashlib.sha256(image).hexdigest())
    return Prepared(prepare(folder / shard.file, image), shard)


def listing(folder: Path, manifest: Manifest, prepared: Prepared) -> Manifest:
    """Give a shard its name, then list it.

    This is done by the process that holds the lock alone: a worker that outlives its run can leave a temporary file,
    but never touch a dataset that somebody else has begun meanwhile.
    """
    place(prepared.temporary, folder / prepared.shard.file)
    manifest = replace(manifest, shards=tuple(sorted([*manifest.shards, prepared.shard], key=lambda each: each.start)))
    manifest.write(folder)
    return manifest


def _domain_arrays(domains: Sequence[Domain], flat: bool) -> dict[str, Array]:
    """The points, and cells or weights, of domains of one kind, one after the other."""
    arrays = {"points": np.concatenate([domain.points.numpy() for domain in domains])}
    if all(isinstance(domain, Mesh) for domain in domains):
        cells = [domain.cells.numpy() for domain in domains]  # type: ignore[union-attr]
        arrays["cells"] = np.concatenate(cells)
        if flat:
            arrays["cell_ptr"] = np.cumsum([0, *map(len, cells)])
    elif all(isinstance(domain, Cloud) for domain in domains):
        arrays["weights"] = np.concatenate([domain.weights.numpy() for domain in domains])
        arrays["boundary"] = np.concatenate([domain.boundary.numpy() for domain in domains])
    else:
        raise ValueError("domains that differ from sample to sample must all be meshes, or all clouds")
    if flat:
        arrays["node_ptr"] = np.cumsum([0, *map(len, domains)])
    return arrays


def _describe(domain: Domain, image: bytes | None) -> dict[str, Any]:
    if isinstance(domain, Grid):
        return {"kind": "grid", "size": domain.size, "dim": domain.dim}
    assert image is not None
    kind = type(domain).__name__.lower()
    return {"kind": kind, "points": len(domain), "dim": domain.dim, "sha256": hashlib.sha256(image).hexdigest()}


# --- reading ---------------------------------------------------------------------------------------------------------


class Reader:
    """Reads a dataset folder, lazily. The first touch of a file compares it with its hash; later touches trust it."""

    def __init__(self, folder: Path, partial: bool = False) -> None:
        self.folder = Path(folder)
        self.manifest = Manifest.read(self.folder)
        self.shards = self.manifest.shards
        self.n = sum(shard.count for shard in self.shards)
        if not self.manifest.complete and not partial:
            raise ValueError(
                f"{folder}: unfinished, {self.n} of {self.manifest.n} samples are there; run the command that makes it again, "
                f"or open it with partial=True"
            )
        self.names = (*self.manifest.inputs, *self.manifest.outputs)
        self._firsts = np.cumsum([0] + [shard.count for shard in self.shards])
        self._open: dict[str, h5py.File] = {}
        self._checked: set[str] = set()
        self._domains: dict[tuple[str, int], Domain] = {}
        described = self.manifest.domain
        self.one_domain = None if described is None else self._read_domain(described)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": {}, "_checked": set()}  # opened, and checked, again on the other side

    def identity(self) -> str:
        return self.manifest.hash

    def damaged(self) -> list[str]:
        """Compare every shard with what dataset.json says of it; what is wrong, in words."""
        found = []
        for shard in self.shards:
            try:
                self._file(shard.file, shard.sha256)
            except (CorruptFile, OSError) as error:
                found.append(str(error))
        return found

    def read(self, name: str, i: int) -> Tensor:
        """Field `name` of sample i: (K,)."""
        shard, file, k = self._find(i)
        data = self._field(name, shard, file)
        if self.one_domain is not None:
            return torch.from_numpy(data[k])
        ptr = self._ptr(file, "node_ptr", shard)
        return torch.from_numpy(data[ptr[k] : ptr[k + 1]])

    def read_all(self, name: str, indices: Sequence[int]) -> Tensor:
        """Field `name` of many samples on one domain: (n, K), read a run of a shard at a time."""
        assert self.one_domain is not None
        indices = list(indices)
        dtype = self.read(name, indices[0]).dtype if indices else torch.float64
        check_fits(self.folder, {name: ((len(indices), len(self.one_domain)), dtype.itemsize)})
        out = torch.empty(len(indices), len(self.one_domain), dtype=dtype)
        at = 0
        while at < len(indices):
            shard, file, k = self._find(indices[at])
            run = 1
            while at + run < len(indices) and indices[at + run] == indices[at] + run and k + run < shard.count:
                run += 1
            self._field(name, shard, file).read_direct(out[at : at + run].numpy(), np.s_[k : k + run])
            at += run
        return out

    def _field(self, name: str, shard: Shard, file: h5py.File) -> h5py.Dataset:
        """Of the shape that dataset.json implies, checked before anything of that shape is allocated."""
        data = self._dataset(file, f"fields/{name}", shard.file)
        if self.one_domain is not None:
            expected: tuple[int, ...] = (shard.count, len(self.one_domain))
        else:
            expected = (int(self._ptr(file, "node_ptr", shard)[-1]),)
        self._expect(data.shape == expected, shard.file, f"field {name} has shape {data.shape}, not {expected}")
        return data

    def domain(self, i: int) -> Domain:
        if self.one_domain is not None:
            return self.one_domain
        shard, file, k = self._find(i)
        key = (shard.file, k)
        if key not in self._domains:
            ptr, stored = self._ptr(file, "node_ptr", shard), self._dataset(file, "points", shard.file)
            self._expect(stored.ndim == 2 and len(stored) == ptr[-1], shard.file, f"points have shape {stored.shape}")
            nodes = slice(*ptr[k : k + 2])
            points = torch.from_numpy(stored[nodes])
            if "cells" in file:
                cells = slice(*self._ptr(file, "cell_ptr", shard)[k : k + 2])
                self._domains[key] = Mesh(points, torch.from_numpy(self._dataset(file, "cells", shard.file)[cells]))
            else:
                rest = (torch.from_numpy(self._dataset(file, name, shard.file)[nodes]) for name in ("weights", "boundary"))
                self._domains[key] = Cloud(points, *rest)
        return self._domains[key]

    def _read_domain(self, described: dict[str, Any]) -> Domain:
        if described["kind"] == "grid":
            return Grid(described["size"], described["dim"])
        file = self._file(DOMAIN, described["sha256"])
        names = ("points", "cells") if described["kind"] == "mesh" else ("points", "weights", "boundary")
        arrays = {name: torch.from_numpy(self._dataset(file, name, DOMAIN)[...]) for name in names}
        domain = Mesh(**arrays) if described["kind"] == "mesh" else Cloud(**arrays)
        self._expect(len(domain) == described["points"], DOMAIN, f"{len(domain)} points, not {described['points']}")
        return domain

    def _find(self, i: int) -> tuple[Shard, h5py.File, int]:
        place = int(np.searchsorted(self._firsts, i, side="right")) - 1
        shard = self.shards[place]
        return shard, self._file(shard.file, shard.sha256), i - int(self._firsts[place])

    def _file(self, name: str, expected: str) -> h5py.File:
        if name not in self._open:
            path = self.folder / name
            if name not in self._checked:
                self._check(path, expected)
                self._checked.add(name)
            if len(self._open) >= _MOST_OPEN:
                self._open.pop(next(iter(self._open))).close()
            self._open[name] = h5py.File(path, "r")
        return self._open[name]

    def _check(self, path: Path, expected: str) -> None:
        if not path.is_file():
            raise CorruptFile(f"{path}: listed in {MANIFEST}, but not there; restore it or make the dataset again")
        if sha256(path) != expected:
            raise CorruptFile(f"{path}: not the bytes that were written (sha256 differs); restore it or make the dataset again")

    def _ptr(self, file: h5py.File, name: str, shard: Shard) -> Array:
        data = self._dataset(file, name, shard.file)
        self._expect(data.shape == (shard.count + 1,), shard.file, f"{name} has shape {data.shape}")
        ptr = np.asarray(data[...])
        self._expect(ptr[0] == 0 and bool((np.diff(ptr) > 0).all()), shard.file, f"{name} is no list of offsets")
        return ptr

    def _dataset(self, file: h5py.File, name: str, where: str) -> h5py.Dataset:
        data = plain_array(file, name, self.folder / where)
        self._expect(data.dtype.name in TYPES, where, f"{name} holds {data.dtype}")
        return data

    def _expect(self, condition: object, where: str, what: str) -> None:
        if not condition:
            raise CorruptFile(f"{self.folder / where}: {what}; it was not written by gkn, or not by this version")
