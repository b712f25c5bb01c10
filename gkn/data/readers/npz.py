"""NumPy files: `.npz` with named arrays; `.npy` with points."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gkn.data.readers.arrays import plain
from gkn.data.readers.format import Content, ReadOptions, UnreadableFile, reader
from gkn.system.files import CorruptFile
from gkn.system.hdf5 import check_fits


@reader(".npz")
def read_npz(path: Path, options: ReadOptions) -> Content:
    claims = {}
    with zipfile.ZipFile(path) as archive:
        for entry in archive.infolist():
            with archive.open(entry) as stream:
                claims[entry.filename.removesuffix(".npy")] = _claim(stream)
    check_fits(path, claims)
    with np.load(path, allow_pickle=False) as file:
        return plain(path, {name: file[name] for name in file.files}, options)


def read_points(path: str | os.PathLike[str]) -> Tensor:
    """Read points (P, d) from a .npy file."""
    file = Path(path)
    if not file.is_file():
        raise FileNotFoundError(f"{file}: no such file")
    try:
        with open(file, "rb") as stream:
            check_fits(file, {"points": _claim(stream)})
        array = np.load(file, allow_pickle=False)
    except CorruptFile as error:
        raise UnreadableFile(str(error)) from error
    except Exception as error:  # a damaged header raises anything at all
        raise UnreadableFile(f"{file}: cannot be read as an array of points: {error}") from error
    if array.ndim != 2 or array.dtype.kind not in "fiu":
        raise UnreadableFile(f"{file}: {array.dtype} of shape {array.shape}; needed numbers, (points, dimension)")
    return torch.from_numpy(np.ascontiguousarray(array, dtype=np.float64))


def _claim(stream: Any) -> tuple[Any, int]:
    """Return the shape and item size that the header of an array claims, before anything is allocated."""
    major, _ = np.lib.format.read_magic(stream)
    header = np.lib.format.read_array_header_1_0 if major == 1 else np.lib.format.read_array_header_2_0
    shape, _, dtype = header(stream)
    return shape, max(8, dtype.itemsize)
