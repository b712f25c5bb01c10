"""NumPy files: `.npz` with named arrays; `.npy` with points."""

from __future__ import annotations

import io
import math
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gkn.data.foreign.raw import Array, UnreadableFile
from gkn.data.readers.arrays import plain
from gkn.data.readers.format import Content, ReadOptions, reader
from gkn.system.files import CorruptFile, check_regular
from gkn.system.hdf5 import check_fits

_MOST_HEADER = 2**16  # bytes; numpy's own headers have about 100


@reader(".npz")
def read_npz(path: Path, options: ReadOptions) -> Content:
    arrays: dict[str, Array] = {}
    with zipfile.ZipFile(path) as archive:
        entries = {entry.filename.removesuffix(".npy"): entry for entry in archive.infolist()}
        if len(entries) != len(archive.infolist()):
            raise UnreadableFile(f"{path}: an array is there twice")
        claims = {}
        for name, entry in entries.items():
            with archive.open(entry) as stream:
                claims[name] = _claim(path, name, stream, entry.file_size)
        check_fits(path, claims)
        for name, entry in entries.items():
            with archive.open(entry) as stream:
                arrays[name] = np.lib.format.read_array(stream, allow_pickle=False)
    return plain(path, arrays, options)


def read_points(path: str | os.PathLike[str]) -> Tensor:
    """Read points (P, d) from a .npy file."""
    file = Path(path)
    check_regular(file)
    try:
        with open(file, "rb") as stream:
            check_fits(file, {"points": _claim(file, "points", stream, file.stat().st_size)})
        array = np.load(file, allow_pickle=False)
    except UnreadableFile:
        raise
    except CorruptFile as error:
        raise UnreadableFile(str(error)) from error
    except Exception as error:  # a damaged header raises anything at all
        raise UnreadableFile(f"{file}: cannot be read as an array of points: {error}") from error
    if array.ndim != 2 or array.dtype.kind not in "fiu":
        raise UnreadableFile(f"{file}: {array.dtype} of shape {array.shape}; needed numbers, (points, dimension)")
    return torch.from_numpy(np.ascontiguousarray(array, dtype=np.float64))


def _claim(path: Path, name: str, stream: Any, size: int) -> tuple[tuple[int, ...], int]:
    """Return the shape and item size that the header of an array claims, after comparing them with the `size` of its file.

    Nothing is allocated for a claim: neither for the length of the header nor for the array.
    """
    head = stream.read(12)
    width = 2 if head[6:7] == b"\x01" else 4
    length = int.from_bytes(head[8 : 8 + width], "little")
    if head[:6] != b"\x93NUMPY" or length > _MOST_HEADER:
        raise UnreadableFile(f"{path}: {name} cannot be read: it does not begin as an array of numpy does")
    whole = io.BytesIO(head + stream.read(max(0, length + 8 + width - 12)))
    version = np.lib.format.read_magic(whole)
    header = np.lib.format.read_array_header_1_0 if version[0] == 1 else np.lib.format.read_array_header_2_0
    shape, _, dtype = header(whole)
    if dtype.hasobject:
        raise UnreadableFile(f"{path}: {name} cannot be read: it holds Python objects")
    claimed = math.prod(int(extent) for extent in shape) * dtype.itemsize
    if claimed != size - whole.tell():
        raise UnreadableFile(f"{path}: {name} claims {claimed} bytes, but there are {size - whole.tell()}")
    return shape, max(8, dtype.itemsize)
