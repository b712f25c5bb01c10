"""Readers of files from other programs, one module per format. A new format is a function registered with `reader`.

No code inside a file is ever run, and no size that a file claims is trusted."""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from gkn.data.dataset import Dataset
from gkn.data.readers import hdf5, mat, mesh, npz, pt
from gkn.data.readers.format import READERS, Nodes, Part, ReadOptions, UnreadableFile, read_file, reader
from gkn.data.readers.npz import read_points
from gkn.geometry.domain import Domain

__all__ = [
    "READERS",
    "Nodes",
    "Part",
    "ReadOptions",
    "UnreadableFile",
    "hdf5",
    "import_files",
    "mat",
    "mesh",
    "npz",
    "pt",
    "read_points",
    "read_sample",
    "reader",
]


def import_files(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    outputs: Sequence[str] = ("u",),
    nodes: Nodes = "vertices",
    low: float = 3.0,
    high: float = 12.0,
    repair: bool = False,
) -> Dataset:
    """Read files of one kind into one dataset, sample after sample.

    paths      files, or a pattern such as "run*.vtu"
    outputs    the fields to be learned; all others are inputs
    others     see `ReadOptions`
    """
    files = [Path(path) for path in _listed(paths)]
    if not files:
        raise ValueError("no file to import was given")
    options = ReadOptions(nodes, low, high, repair)
    parts = [read_file(path, options) for path in files]
    domains, fields = parts[0] if len(parts) == 1 else _joined(files, parts)
    if not fields:
        raise UnreadableFile(f"{files[0]}: no fields in it, only points")
    missing = [name for name in outputs if name not in fields]
    if missing:
        raise ValueError(
            f"{files[0]}: no field {missing[0]!r} to be the output; it has {', '.join(fields)}: name it with outputs"
        )
    for name, values in fields.items():
        for i, row in enumerate(values):
            if not bool(torch.isfinite(row).all()):
                raise UnreadableFile(f"{files[0]}: field {name} of sample {i} is not finite everywhere")
    return Dataset.of(domains, fields, outputs)


def _listed(paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> Sequence[str | os.PathLike[str]]:
    """Return the files a pattern stands for, in order of their names; or the files given."""
    if isinstance(paths, str) and any(character in paths for character in "*?["):
        found = sorted(glob.glob(paths))
        if not found:
            raise FileNotFoundError(f"{paths}: no such files")
        return found
    return [paths] if isinstance(paths, str | os.PathLike) else paths


def read_sample(path: str | os.PathLike[str], sample: int = 0, repair: bool = False) -> tuple[Domain, dict[str, Tensor]]:
    """Read one sample of a file of functions: its domain and its fields (K,)."""
    domain, fields = read_file(Path(path), ReadOptions(repair=repair))
    count = len(next(iter(fields.values()))) if fields else 0
    if not 0 <= sample < count:
        raise UnreadableFile(f"{path}: no sample {sample} in it, it has {count}")
    for name, rows in fields.items():
        if not bool(torch.isfinite(rows[sample]).all()):
            raise UnreadableFile(f"{path}: field {name} of sample {sample} is not finite everywhere")
    one = domain[sample] if isinstance(domain, Sequence) else domain
    return one, {name: rows[sample] for name, rows in fields.items()}


def _joined(paths: list[Path], parts: list[Part]) -> Part:
    first = [*parts[0][1]]
    if not first:
        raise UnreadableFile(f"{paths[0]}: no fields in it, only points")
    for path, (_, fields) in zip(paths, parts, strict=True):
        if [*fields] != first:
            raise UnreadableFile(f"{path}: has the fields {', '.join(fields)}; the first file has {', '.join(first)}")
    domains: list[Domain] = []
    rows: dict[str, list[Tensor]] = {name: [] for name in first}
    for domain, fields in parts:
        domains += domain if isinstance(domain, Sequence) else [domain] * len(fields[first[0]])
        for name in first:
            rows[name] += [*fields[name]]
    one = domains[0]
    if all(each is one or one.same_as(each) for each in domains):
        return one, {name: torch.stack(values) for name, values in rows.items()}
    if any(domain.shape is not None for domain in domains):
        raise UnreadableFile(f"{paths[0]} and the others are on different grids; import them one by one")
    return domains, rows
