"""A dataset on disk: a folder with dataset.json and immutable HDF5 shards.

    dataset.json        schema, recipe, seed, versions, domain, fields, and the sha256 of every shard and of itself
    domain.h5           points (and cells) of the one domain of all samples, unless it is a grid
    shard-00000.h5      fields of samples 0, 1, ...: (n, K) where all share a domain, else flat, cut by node_ptr

A shard is written under a temporary name, synced, renamed, and only then listed. Listed shards are never written again. If the
writer is killed at any moment, all listed shards are complete, and a rerun makes only the missing ones.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from gkn.geometry.domain import DOMAINS, Domain
from gkn.system.checks import has_types
from gkn.system.files import (
    LOCK,
    CorruptFile,
    difference,
    digest,
    locked,
    no_folder,
    place,
    prepare,
    read_sealed_json,
    sha256,
    unfinished,
    write,
    write_sealed_json,
)
from gkn.system.hdf5 import Array, image_of

SCHEMA = 1
MANIFEST = "dataset.json"
DOMAIN = "domain.h5"
TYPES = ("float64", "float32", "int64", "bool")
_TEXTS = {"kind": str, "sha256": str}  # entries of a domain; all others are whole numbers


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
    """Content of dataset.json.

    domain       that of all samples; None if every sample has its own
    groups       vectors and tensors, with the names of their components
    parameters   names of fields that are one number per sample
    files        the file that each sample was imported from, if they were
    evolving     names of fields that are functions of time
    """

    n: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    domain: dict[str, Any] | None
    origin: dict[str, Any]
    seed: int | None
    versions: dict[str, str]
    shards: tuple[Shard, ...] = field(default=())
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    parameters: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    evolving: tuple[str, ...] = ()

    @property
    def complete(self) -> bool:
        return sum(shard.count for shard in self.shards) == self.n

    @property
    def hash(self) -> str:
        """Hash of the data: equal for the same recipe, seed and bits, whatever the number of workers."""
        return digest(self.json())

    def header(self) -> Manifest:
        """Return the entries that must agree for a rerun to resume this dataset."""
        return replace(self, shards=())

    def json(self) -> dict[str, Any]:
        shards = [vars(shard) for shard in self.shards]
        entries = {("recipe" if name == "origin" else name): value for name, value in vars(self).items()}
        lists: dict[str, Any] = {"inputs": [*self.inputs], "outputs": [*self.outputs], "shards": shards}
        del entries["groups"], entries["parameters"], entries["files"], entries["evolving"]
        # Written only if there are any, so that older datasets keep their hash.
        lists |= {"groups": {name: [*parts] for name, parts in self.groups.items()}} if self.groups else {}
        lists |= {"parameters": [*self.parameters]} if self.parameters else {}
        lists |= {"files": [*self.files]} if self.files else {}
        lists |= {"evolving": [*self.evolving]} if self.evolving else {}
        return {"schema": SCHEMA, **entries, **lists}

    def write(self, folder: Path) -> None:
        write_sealed_json(folder / MANIFEST, self.json())

    @staticmethod
    def read(folder: Path) -> Manifest:
        path = folder / MANIFEST
        if not path.exists():
            raise FileNotFoundError(no_folder(folder, "a dataset") or f"{folder}: not a dataset, it has no {MANIFEST}")
        value = read_sealed_json(path)
        schema = value.pop("schema", None)
        if schema != SCHEMA:
            raise CorruptFile(f"{path}: schema {schema}, but this version of gkn reads schema {SCHEMA}; update gkn")
        try:
            shards = tuple(Shard(**shard) for shard in value.pop("shards"))
            inputs, outputs = (tuple(value.pop(key)) for key in ("inputs", "outputs"))
            origin = value.pop("recipe")  # its name in files
            groups = {name: tuple(parts) for name, parts in value.pop("groups", {}).items()}
            lists = {key: tuple(value.pop(key, ())) for key in ("parameters", "files", "evolving")}
            more: dict[str, Any] = {"groups": groups, **lists}
            manifest = Manifest(**value, inputs=inputs, outputs=outputs, origin=origin, shards=shards, **more)
        except (TypeError, KeyError, AttributeError) as error:
            raise CorruptFile(f"{path}: fields missing or unknown ({error})") from error
        manifest._validate(path)
        return manifest

    def _validate(self, path: Path) -> None:
        """Raise an error if entries have other types than gkn writes. The seal only says that they are as they were written."""
        names = (*self.inputs, *self.outputs)
        parts = {part for group in self.groups.values() for part in group}
        sound = has_types(vars(self), {"n": int, "origin": dict}) and all(type(name) is str for name in names)
        sound = sound and parts | {*self.parameters} | {*self.evolving} <= {*names}
        sound = sound and not {*self.parameters} & {*self.evolving}
        sound = sound and len(self.files) in (0, self.n) and all(type(file) is str for file in self.files)
        if self.domain is not None:
            needed = ("kind", "points") if "sha256" in self.domain else ("kind",)
            sound = sound and has_types(self.domain, {key: _TEXTS.get(key, int) for key in (*needed, *self.domain)})
        if not sound:
            raise CorruptFile(f"{path}: its entries are not of the kinds that gkn writes")
        if self.domain is not None and self.domain["kind"] not in DOMAINS:
            raise CorruptFile(
                f"{path}: a domain of kind {self.domain['kind']!r}; there are {', '.join(DOMAINS)}: import the module that "
                "defines it first"
            )
        end = 0
        for shard in self.shards:
            typed = has_types(vars(shard), {"start": int, "count": int, "bytes": int, "file": str})
            if not (typed and end <= shard.start and shard.count >= 1 and _is_shard(shard.file)):
                raise CorruptFile(f"{path}: the entry of shard {shard.file!r} makes no sense")
            end = shard.start + shard.count


@contextmanager
def writing(
    folder: Path, header: Manifest, domain: Domain | None, force: bool = False, wait: float = 0.0
) -> Iterator[Manifest]:
    """Lock `folder` for writing and yield its manifest: a new one, or that of an interrupted run with the same header.

    Shards that are damaged or missing are not listed in it. Refuses a folder that holds another dataset or other files, unless
    `force`, which then removes the dataset only. `wait`: seconds to wait for another process that is writing there.
    """
    with locked(folder, ExistingDataset, wait):
        try:
            yield _prepare(folder, header, domain, force)
        finally:
            for path in unfinished(folder, _is_ours):
                path.unlink(missing_ok=True)


def _prepare(folder: Path, header: Manifest, domain: Domain | None, force: bool) -> Manifest:
    """Return the manifest to continue with. Files are removed only if gkn wrote them and this run will go on."""
    arrays = {} if domain is None else {name: array.numpy() for name, array in domain.arrays().items()}
    image = image_of(arrays) if arrays else None
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
    if found is not None:
        found = replace(found, shards=tuple(shard for shard in found.shards if _is_whole(folder, shard)))
        if image is not None and not _is_rest(folder / DOMAIN, image):
            write(folder / DOMAIN, image)
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


def _is_whole(folder: Path, shard: Shard) -> bool:
    """True if the file of a shard is as it was written."""
    path = folder / shard.file
    try:
        return path.stat().st_size == shard.bytes and sha256(path) == shard.sha256
    except (FileNotFoundError, CorruptFile):
        return False


def remove(folder: Path) -> None:
    """Remove the files of a dataset, dataset.json first, so that no listed file is ever missing."""
    shards = [path for path in folder.iterdir() if _is_shard(path.name)]
    for path in [folder / MANIFEST, folder / DOMAIN, *shards]:
        path.unlink(missing_ok=True)


def _is_shard(name: str) -> bool:
    return re.fullmatch(r"shard-\d{5,}\.h5", name) is not None


def _is_ours(name: str) -> bool:
    return name in (MANIFEST, DOMAIN) or _is_shard(name)


def _is_rest(path: Path, image: bytes | None) -> bool:
    """True for files that a run of gkn may have left if it was killed before it wrote dataset.json. Shards come later."""
    if path.name == LOCK or path in unfinished(path.parent, _is_ours):
        return True
    return path.name == DOMAIN and image is not None and path.is_file() and path.read_bytes() == image


@dataclass(frozen=True)
class Prepared:
    """A shard on disk under a temporary name. Any process may prepare one; only the process with the lock lists it."""

    temporary: Path
    shard: Shard


def prepare_shard(
    folder: Path,
    number: int,
    start: int,
    fields: Mapping[str, Tensor | Sequence[Tensor]],
    domains: Sequence[Domain] | None = None,
    times: Mapping[str, Sequence[Tensor]] | None = None,
) -> Prepared:
    """Write samples start, start+1, ... to a temporary file.

    fields    (n, K) each, n tensors (K,), or (n,) numbers; those that are functions of time have n tensors (T_i, K_i)
    domains   of the samples, if each has its own
    times     of the samples, for each field that is a function of time
    """
    arrays: dict[str, Array] = {} if domains is None else _domain_arrays(domains)
    evolving = times or {}
    for each in [*evolving.values()][:1]:
        arrays["times"] = np.concatenate([row.numpy() for row in each])
        arrays["frame_ptr"] = np.cumsum([0, *map(len, each)])
    for name, rows in fields.items():
        if name in evolving:  # frames of one domain are rows; those of domains that differ follow each other
            frames = [row.cpu().numpy() for row in rows]
            array = np.concatenate(frames if domains is None else [each.reshape(-1) for each in frames])
        elif isinstance(rows, Tensor):  # parameters too
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
    """Rename a shard, then list it.

    Only the process that holds the lock does this. A worker that outlives its run can leave a temporary file, but cannot change
    a dataset that another run has begun meanwhile.
    """
    place(prepared.temporary, folder / prepared.shard.file)
    manifest = replace(manifest, shards=tuple(sorted([*manifest.shards, prepared.shard], key=lambda each: each.start)))
    manifest.write(folder)
    return manifest


def _domain_arrays(domains: Sequence[Domain]) -> dict[str, Array]:
    """Return the arrays of domains of one kind, one domain after the other, with the offsets at which each begins."""
    kinds = {domain.kind for domain in domains}
    if len(kinds) > 1 or any(domain.numbers() or "points" not in domain.arrays() for domain in domains):
        raise ValueError(
            f"domains of {', '.join(sorted(kinds))}: domains that differ from sample to sample must be of one kind, which is "
            "stored by arrays alone, points among them, as meshes and clouds are"
        )
    same = len({tuple(domain.arrays()) for domain in domains}) == 1
    each = [{name: array.numpy() for name, array in (d.arrays() if same else d.general_arrays()).items()} for d in domains]
    arrays = {name: np.concatenate([one[name] for one in each]) for name in each[0]}
    for name in each[0]:
        if name not in _PER_POINT:
            arrays[ptr_of(name)] = np.cumsum([0, *(len(one[name]) for one in each)])
    arrays["node_ptr"] = np.cumsum([0, *map(len, domains)])
    if kinds - {"mesh", "cloud"} or (kinds == {"mesh"} and "cells" not in each[0]):  # others are distinguished by their cells
        arrays["kind"] = np.frombuffer(domains[0].kind.encode(), np.uint8).astype(np.int64)
    return arrays


_PER_POINT = ("points", "weights", "boundary")  # arrays with a row for each point, which share node_ptr


def ptr_of(name: str) -> str:
    return "node_ptr" if name in _PER_POINT else "cell_ptr" if name == "cells" else f"{name}_ptr"


def _describe(domain: Domain, image: bytes | None) -> dict[str, Any]:
    if image is None:
        return {"kind": domain.kind, **domain.numbers()}
    seal = hashlib.sha256(image).hexdigest()
    return {"kind": domain.kind, "points": len(domain), "dim": domain.dim, "sha256": seal, **domain.numbers()}
