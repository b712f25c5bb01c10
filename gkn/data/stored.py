"""Stored: the samples of a dataset folder, read when needed and checked against their hashes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import h5py
import numpy as np
import torch
from torch import Tensor

from gkn.data.source import Source
from gkn.data.storage import DOMAIN, MANIFEST, TYPES, Manifest, Shard, ptr_of
from gkn.geometry.domain import DOMAINS, Domain
from gkn.system.files import CorruptFile, sha256, version_of
from gkn.system.hdf5 import Array, check_fits, plain_array, stored_rows

P = ParamSpec("P")
T = TypeVar("T")
_MOST_OPEN = 64  # open files; a process may have 1024


def _in_turn(method: Callable[Concatenate[Stored, P], T]) -> Callable[Concatenate[Stored, P], T]:
    """Let one thread at a time into the methods of a source that use its open files."""

    @wraps(method)
    def call(self: Stored, /, *args: P.args, **kwargs: P.kwargs) -> T:
        with self._turn:
            return method(self, *args, **kwargs)

    return call


class Stored(Source):
    """The samples of a dataset folder, read when needed. A file is compared with its hash when it is first opened.

    Any number of threads may read. They take turns: a file that one of them reads must not be closed by another.
    """

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
        self.groups, self.parameters = self.manifest.groups, self.manifest.parameters
        self.evolving = self.manifest.evolving
        self._firsts = np.cumsum([0] + [shard.count for shard in self.shards])
        self._open: dict[str, h5py.File] = {}
        self._turn = threading.RLock()
        self._checked: dict[str, tuple[int, ...]] = {}
        self._domains: dict[tuple[str, int], Domain] = {}
        self._times: dict[tuple[str, int], Tensor] = {}
        self._latest: dict[str, tuple[int, Array]] = {}
        described = self.manifest.domain
        self.common_domain = None if described is None else self._read_domain(described)

    def __getstate__(self) -> dict[str, Any]:
        state = {name: value for name, value in self.__dict__.items() if name != "_turn"}
        # Files are opened and checked again in the other process.
        return {**state, "_open": {}, "_checked": {}, "_latest": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= {**state, "_turn": threading.RLock()}

    def identity(self) -> str:
        return self.manifest.hash

    def file(self, i: int) -> str:
        return self.manifest.files[i] if self.manifest.files else ""

    def read_from(self) -> Path:
        return self.folder

    @_in_turn
    def damaged(self) -> list[str]:
        """Compare every shard with its entry in dataset.json; return a list of problems."""
        found = []
        for shard in self.shards:
            try:
                self._file(shard.file, shard.sha256)
            except (CorruptFile, OSError) as error:
                found.append(str(error))
        return found

    @_in_turn
    def read(self, name: str, i: int) -> Tensor:
        """Return the field `name` (K,) of sample i, or (T, K) if it is a function of time."""
        if name in self.evolving:
            return torch.from_numpy(self._of_latest(name, i, self._states).copy())
        if name in self.parameters:
            return torch.tensor(self.parameter(name, i), dtype=torch.float64).expand(len(self.domain(i)))
        return torch.from_numpy(self._of_latest(name, i, self._steady).copy())

    def _steady(self, name: str, i: int) -> Array:
        shard, file, k = self._find(i)
        data = self._field(name, shard, file)
        if self.common_domain is not None:
            row: Array = self._rows(data, k, k + 1, shard.file)[0]
            return row
        ptr = self._ptr(file, "node_ptr", shard)
        return self._rows(data, int(ptr[k]), int(ptr[k + 1]), shard.file)

    def _of_latest(self, name: str, i: int, read: Callable[[str, int], Array]) -> Array:
        """Return a field that is kept until one of another sample is read, since pairs of one trajectory are read together."""
        if not self.evolving:
            return read(name, i)
        if self._latest.get(name, (None,))[0] != i:
            self._latest[name] = i, read(name, i)
        return self._latest[name][1]

    @_in_turn
    def times(self, i: int) -> Tensor:
        if not self.evolving:
            return super().times(i)
        shard, file, k = self._find(i)
        key = (shard.file, k)
        if key not in self._times:
            ptr, data = self._ptr(file, "frame_ptr", shard), self._dataset(file, "times", shard.file)
            self._expect(data.shape == (int(ptr[-1]),), shard.file, f"times have shape {data.shape}")
            times = torch.from_numpy(self._rows(data, int(ptr[k]), int(ptr[k + 1]), shard.file))
            sound = len(times) > 1 and bool(torch.isfinite(times).all()) and bool((times.diff() > 0).all())
            self._expect(sound, shard.file, f"the times of sample {i} do not increase")
            self._times[key] = times
        return self._times[key]

    @_in_turn
    def frames(self, name: str, i: int, which: Sequence[int]) -> Tensor:
        return torch.from_numpy(self._of_latest(name, i, self._states)[[*which]])

    def _states(self, name: str, i: int) -> Array:
        """Read all states (T, K) of a trajectory."""
        shard, file, k = self._find(i)
        ptr, data = self._ptr(file, "frame_ptr", shard), self._dataset(file, f"fields/{name}", shard.file)
        first, last = int(ptr[k]), int(ptr[k + 1])
        if self.common_domain is not None:
            expected: tuple[int, ...] = (int(ptr[-1]), len(self.common_domain))
        else:
            nodes = np.diff(self._ptr(file, "node_ptr", shard))
            ends = np.cumsum([0, *(nodes * np.diff(ptr))])
            first, last, expected = int(ends[k]), int(ends[k + 1]), (int(ends[-1]),)
        self._expect(data.shape == expected, shard.file, f"field {name} has shape {data.shape}, not {expected}")
        return self._rows(data, first, last, shard.file).reshape(int(ptr[k + 1] - ptr[k]), -1)

    @_in_turn
    def parameter(self, name: str, i: int) -> float:
        shard, file, k = self._find(i)
        data = self._dataset(file, f"fields/{name}", shard.file)
        self._expect(data.shape == (shard.count,), shard.file, f"parameter {name} has shape {data.shape}")
        return float(self._rows(data, k, k + 1, shard.file)[0])

    @_in_turn
    def read_all(self, name: str, indices: Sequence[int]) -> Tensor:
        """Return the field `name` (n, K) of many samples on one domain, reading consecutive samples of a shard together."""
        assert self.common_domain is not None
        if name in (*self.parameters, *self.evolving):
            return super().read_all(name, indices)
        indices = list(indices)
        dtype = self.read(name, indices[0]).dtype if indices else torch.float64
        check_fits(self.folder, {name: ((len(indices), len(self.common_domain)), dtype.itemsize)})
        out = torch.empty(len(indices), len(self.common_domain), dtype=dtype)
        at = 0
        while at < len(indices):
            shard, file, k = self._find(indices[at])
            run = 1
            while at + run < len(indices) and indices[at + run] == indices[at] + run and k + run < shard.count:
                run += 1
            out[at : at + run] = torch.from_numpy(self._rows(self._field(name, shard, file), k, k + run, shard.file))
            at += run
        return out

    def _field(self, name: str, shard: Shard, file: h5py.File) -> h5py.Dataset:
        """Return a field after checking that it has the shape dataset.json implies, before any memory is allocated."""
        data = self._dataset(file, f"fields/{name}", shard.file)
        if self.common_domain is not None:
            expected: tuple[int, ...] = (shard.count, len(self.common_domain))
        else:
            expected = (int(self._ptr(file, "node_ptr", shard)[-1]),)
        self._expect(data.shape == expected, shard.file, f"field {name} has shape {data.shape}, not {expected}")
        return data

    @_in_turn
    def domain(self, i: int) -> Domain:
        if self.common_domain is not None:
            return self.common_domain
        shard, file, k = self._find(i)
        key = (shard.file, k)
        if key not in self._domains:
            ptr, stored = self._ptr(file, "node_ptr", shard), self._dataset(file, "points", shard.file)
            self._expect(stored.ndim == 2 and len(stored) == ptr[-1], shard.file, f"points have shape {stored.shape}")
            names = [name for name in file if name not in ("fields", "kind", "times") and not name.endswith("_ptr")]
            arrays = {}
            for name in names:
                rows = slice(*self._ptr(file, ptr_of(name), shard)[k : k + 2])
                data = self._dataset(file, name, shard.file)
                arrays[name] = torch.from_numpy(self._rows(data, int(rows.start), int(rows.stop), shard.file))
            self._domains[key] = self._made(self._kind(file, shard.file), arrays, {}, shard.file)
        return self._domains[key]

    def _kind(self, file: h5py.File, where: str) -> str:
        """Return the kind of the domains in a shard."""
        if "kind" not in file:
            return "mesh" if "cells" in file else "cloud"
        kind = bytes(self._whole(file, "kind", where).astype(np.uint8)).decode(errors="replace")
        self._expect(kind in DOMAINS, where, f"domains of kind {kind!r}")
        return kind

    def _read_domain(self, described: dict[str, Any]) -> Domain:
        numbers = {name: value for name, value in described.items() if isinstance(value, int)}
        if "sha256" not in described:
            return self._made(described["kind"], {}, numbers, MANIFEST)
        file = self._file(DOMAIN, described["sha256"])
        arrays = {name: torch.from_numpy(self._whole(file, name, DOMAIN)) for name in file}
        domain = self._made(described["kind"], arrays, numbers, DOMAIN)
        self._expect(len(domain) == described["points"], DOMAIN, f"{len(domain)} points, not {described['points']}")
        return domain

    def _made(self, kind: str, arrays: dict[str, Tensor], numbers: dict[str, int], where: str) -> Domain:
        try:
            return DOMAINS[kind].from_arrays(arrays, numbers)
        except KeyError as error:
            raise CorruptFile(f"{self.folder / where}: no {error} of a {kind}; it was not written by gkn") from error

    def _find(self, i: int) -> tuple[Shard, h5py.File, int]:
        place = int(np.searchsorted(self._firsts, i, side="right")) - 1
        shard = self.shards[place]
        return shard, self._file(shard.file, shard.sha256), i - int(self._firsts[place])

    def _file(self, name: str, expected: str) -> h5py.File:
        if name not in self._open:
            path = self.folder / name
            version = version_of(path)  # before the check: a file that is replaced meanwhile is checked again
            if self._checked.get(name) != version:
                self._check(path, expected)
                self._checked[name] = version
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
        ptr = self._rows(data, 0, len(data), shard.file)
        self._expect(ptr[0] == 0 and bool((np.diff(ptr) > 0).all()), shard.file, f"{name} is no list of offsets")
        return ptr

    def _dataset(self, file: h5py.File, name: str, where: str) -> h5py.Dataset:
        data = plain_array(file, name, self.folder / where)
        self._expect(data.dtype.name in TYPES, where, f"{name} holds {data.dtype}")
        return data

    def _rows(self, data: h5py.Dataset, start: int, stop: int, where: str) -> Array:
        return stored_rows(data, start, stop, self.folder / where)

    def _whole(self, file: h5py.File, name: str, where: str) -> Array:
        data = self._dataset(file, name, where)
        return self._rows(data, 0, len(data), where) if data.shape else np.asarray(data[()])

    def _expect(self, condition: object, where: str, what: str) -> None:
        if not condition:
            raise CorruptFile(f"{self.folder / where}: {what}; it was not written by gkn, or not by this version")
