"""A dataset on disk: a folder with dataset.json and immutable HDF5 shards.

    dataset.json        schema, recipe, seed, versions, domain, fields, and the sha256 of every shard; sealed by its own
    domain.h5           points (and cells) of the one domain of all samples, unless it is a grid
    shard-00000.h5      fields of samples 0, 1, ...: (n, K) where all share a domain, else flat, cut by node_ptr

A shard is written under a temporary name, synced, renamed, and only then listed; what is listed is never written
again. So whatever kills the writer, everything listed is whole, and a rerun makes just what is missing.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gkn.domain import Cloud, Domain, Grid, Mesh
from gkn.durable import CorruptFile, digest, read_sealed_json, remove_unfinished, replacing, sha256, write_sealed_json

Array = NDArray[Any]
SCHEMA = 1
MANIFEST = "dataset.json"
DOMAIN = "domain.h5"
_MOST_OPEN = 64  # files, of the 1024 a process may have
_FILTERS = {"gzip", None}
_TYPES = {"float64", "float32", "int64", "bool"}


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
        except (TypeError, KeyError) as error:
            raise CorruptFile(f"{path}: fields missing or unknown ({error})") from error
        end = 0
        for shard in shards:
            if shard.start < end or shard.count < 1 or Path(shard.file).name != shard.file:
                raise CorruptFile(f"{path}: the entry of shard {shard.file!r} makes no sense")
            end = shard.start + shard.count
        return manifest


def versions() -> dict[str, str]:
    packages = ("gkn", "torch", "numpy", "scipy", "h5py", "scikit-fem", "netgen-mesher")
    found = {"python": platform.python_version()}
    for name in packages:
        try:
            found[name] = version(name)
        except ModuleNotFoundError:
            continue
    return found


# --- writing ---------------------------------------------------------------------------------------------------------


@contextmanager
def writing(folder: Path, header: Manifest, domain: Domain | None, force: bool = False) -> Iterator[Manifest]:
    """Own `folder` for writing. Yields what is in it already: a new manifest, or that of an interrupted run of the same.

    Refuses a folder that holds another dataset or other files, unless `force`, which then removes the dataset only.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lock = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # goes with the process, however that ends
        except BlockingIOError:
            raise ExistingDataset(f"{folder}: another process is writing here; wait for it or choose another folder") from None
        yield _prepare(folder, header, domain, force)
    finally:
        os.close(lock)


def _prepare(folder: Path, header: Manifest, domain: Domain | None, force: bool) -> Manifest:
    header = replace(header, domain=None if domain is None else _describe(folder, domain))
    remove_unfinished(folder)
    if force:
        remove(folder)
    if (folder / MANIFEST).exists():
        found = Manifest.read(folder)
        if digest(found.header().json()) != digest(header.json()):
            raise ExistingDataset(f"{folder} holds another dataset: {_difference(found, header)}; --force overwrites it")
        _remove_unlisted(folder, found)
        return found
    others = sorted(path.name for path in folder.iterdir() if path.name != DOMAIN and not _is_shard(path))
    if others and not force:
        raise ExistingDataset(f"{folder} is not empty and holds no dataset ({', '.join(others[:3])}); choose another folder")
    _remove_unlisted(folder, header)
    if domain is not None and not isinstance(domain, Grid):
        seal = _write_h5(folder / DOMAIN, _domain_arrays([domain], flat=False))
        header = replace(header, domain={**(header.domain or {}), "sha256": seal})
    header.write(folder)
    return header


def remove(folder: Path) -> None:
    """Remove a dataset's own files, dataset.json first, so that nothing is ever listed and gone."""
    for path in [folder / MANIFEST, folder / DOMAIN, *folder.glob("shard-*.h5")]:
        path.unlink(missing_ok=True)


def _remove_unlisted(folder: Path, manifest: Manifest) -> None:
    listed = {shard.file for shard in manifest.shards}
    for path in folder.iterdir():
        if _is_shard(path) and path.name not in listed:
            path.unlink(missing_ok=True)


def _is_shard(path: Path) -> bool:
    return path.name.startswith("shard-") and path.suffix == ".h5"


def _difference(found: Manifest, wanted: Manifest) -> str:
    def leaves(value: Any, name: str = "") -> dict[str, Any]:
        if isinstance(value, Mapping):
            return {k: v for key, inner in value.items() for k, v in leaves(inner, f"{name}.{key}" if name else key).items()}
        return {name: value}

    there, here = leaves(found.header().json()), leaves(wanted.json())
    keys = [key for key in {**there, **here} if there.get(key) != here.get(key)]
    return ", ".join(f"{key} = {there.get(key)} there, {here.get(key)} here" for key in keys)


def write_shard(
    folder: Path,
    number: int,
    start: int,
    fields: Mapping[str, Tensor | Sequence[Tensor]],
    domains: Sequence[Domain] | None = None,
) -> Shard:
    """Write samples start, start+1, ...: each field (n, K), or n tensors of (K,); and the domains where they differ."""
    count = len(next(iter(fields.values())))
    arrays: dict[str, Array] = {} if domains is None else _domain_arrays(domains, flat=True)
    for name, rows in fields.items():
        if isinstance(rows, Tensor):
            array = rows.numpy()
        elif domains is None:
            array = np.stack([row.numpy() for row in rows])
        else:
            array = np.concatenate([row.numpy() for row in rows])
        if array.dtype.name not in _TYPES:
            raise ValueError(f"field {name!r} has type {array.dtype}; a dataset holds {', '.join(sorted(_TYPES))}")
        arrays[f"fields/{name}"] = array
    path = folder / f"shard-{number:05d}.h5"
    seal = _write_h5(path, arrays)
    return Shard(path.name, start, count, path.stat().st_size, seal)


def listing(folder: Path, manifest: Manifest, shard: Shard) -> Manifest:
    """List a shard that is whole on disk; the manifest with it in its place."""
    manifest = replace(manifest, shards=tuple(sorted([*manifest.shards, shard], key=lambda each: each.start)))
    manifest.write(folder)
    return manifest


def _write_h5(path: Path, arrays: Mapping[str, Array]) -> str:
    """Lay the file out in memory and write it in one go: HDF5 never sees the disk, so neither do its half-written states.

    Returns the sha256 of the file.
    """
    with h5py.File(path.name, "w", libver="v110", driver="core", backing_store=False) as file:
        for name, array in arrays.items():
            file.create_dataset(name, data=array, **_layout(array))
        file.flush()
        image = file.id.get_file_image()
    with replacing(path) as temporary:
        temporary.write_bytes(image)
    return hashlib.sha256(image).hexdigest()


def _layout(array: Array) -> dict[str, Any]:
    """Compress what shrinks to less than half, as a two-phase coefficient does, a sample a chunk; solutions do not."""
    if array.ndim < 2 or not array.size or not array[0].nbytes >= 4096:
        return {}
    first = np.ascontiguousarray(array[0])
    if len(zlib.compress(first.tobytes(), 1)) > first.nbytes / 2:
        return {}
    return {"chunks": (1, *array.shape[1:]), "compression": "gzip", "compression_opts": 1, "shuffle": True}


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


def _describe(folder: Path, domain: Domain) -> dict[str, Any]:
    if isinstance(domain, Grid):
        return {"kind": "grid", "size": domain.size, "dim": domain.dim}
    described: dict[str, Any] = {"kind": type(domain).__name__.lower(), "points": len(domain), "dim": domain.dim}
    arrays = _domain_arrays([domain], flat=False)
    described["content"] = digest({name: hashlib.sha256(array.tobytes()).hexdigest() for name, array in arrays.items()})
    path = folder / DOMAIN
    if path.exists():
        described["sha256"] = sha256(path)
    return described


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
            nodes = slice(*self._ptr(file, "node_ptr", shard)[k : k + 2])
            points = torch.from_numpy(self._dataset(file, "points", shard.file)[nodes])
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
        arrays = {name: torch.from_numpy(self._dataset(file, name, DOMAIN)[...]) for name in file}
        return Mesh(**arrays) if described["kind"] == "mesh" else Cloud(**arrays)

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
        ptr = np.asarray(self._dataset(file, name, shard.file)[...])
        self._expect(
            ptr.shape == (shard.count + 1,) and bool((np.diff(ptr) > 0).all()),
            shard.file,
            f"{name} is no list of offsets",
        )
        return ptr

    def _dataset(self, file: h5py.File, name: str, where: str) -> h5py.Dataset:
        link = file.get(name, getlink=True)
        self._expect(isinstance(link, h5py.HardLink), where, f"no array {name!r}")
        data = file[name]
        plain = isinstance(data, h5py.Dataset) and data.external is None and not data.is_virtual
        self._expect(plain and data.compression in _FILTERS and data.dtype.name in _TYPES, where, f"{name!r} is no plain array")
        return data

    def _expect(self, condition: bool, where: str, what: str) -> None:
        if not condition:
            raise CorruptFile(f"{self.folder / where}: {what}; it was not written by gkn, or not by this version")
