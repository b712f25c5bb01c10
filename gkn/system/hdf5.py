"""HDF5: files laid out in memory, and arrays of files from unknown sources."""

from __future__ import annotations

import math
import secrets
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from gkn.system.files import CorruptFile
from gkn.system.memory import available_memory

Array = NDArray[Any]
MOST_PACKED = 2000
"""Times that packed bytes may be larger when they are unpacked: deflate reaches 1032."""


def image_of(arrays: Mapping[str, Array]) -> bytes:
    """Return an HDF5 file laid out in memory. HDF5 never writes to the disk, so no half-written file can exist."""
    name = secrets.token_hex(16)  # not stored, but two threads must not open files of the same name
    with h5py.File(name, "w", libver="v110", driver="core", backing_store=False) as file:
        for path, array in arrays.items():
            file.create_dataset(path, data=array, **_layout(array))
        file.flush()
        image: bytes = file.id.get_file_image()
    return image


def _layout(array: Array) -> dict[str, Any]:
    """Return storage options: one chunk per sample; arrays that shrink to less than half are compressed."""
    if array.ndim < 2 or not array.size or not array[0].nbytes >= 4096:
        return {}
    first = np.ascontiguousarray(array[0])
    if len(zlib.compress(first.tobytes(), 1)) > first.nbytes / 2:
        return {}
    return {"chunks": (1, *array.shape[1:]), "compression": "gzip", "compression_opts": 1, "shuffle": True}


def plain_array(file: h5py.File, name: str, path: Path) -> h5py.Dataset:
    """Return an array whose bytes are in this file.

    Links, external storage, plug-in filters, and sizes beyond the available memory are refused.
    """
    place: h5py.Group = file
    parts = name.split("/")
    for depth, part in enumerate(parts, start=1):
        if not isinstance(place, h5py.Group) or not isinstance(place.get(part, getlink=True), h5py.HardLink):
            raise CorruptFile(f"{path}: {'/'.join(parts[:depth])} is missing, or a link to somewhere else")
        place = place[part]
    if not isinstance(place, h5py.Dataset) or place.external is not None or place.is_virtual:
        raise CorruptFile(f"{path}: {name} is not an array stored in this file")
    properties = place.id.get_create_plist()
    known = {h5py.h5z.FILTER_DEFLATE, h5py.h5z.FILTER_SHUFFLE, h5py.h5z.FILTER_FLETCHER32, h5py.h5z.FILTER_LZF}
    filters = [properties.get_filter(i)[0] for i in range(properties.get_nfilters())]
    if not {*filters} <= known:
        raise CorruptFile(f"{path}: {name} uses a filter that is not part of HDF5")
    if len({*filters}) != len(filters):
        raise CorruptFile(f"{path}: {name} is compressed twice")
    if place.dtype.kind not in "fiub":
        raise CorruptFile(f"{path}: {name} holds {place.dtype}, not numbers")
    claimed, stored = math.prod(place.shape) * place.dtype.itemsize, place.id.get_storage_size()
    if claimed > stored * (1 if place.chunks is None else MOST_PACKED):  # also if nothing was ever stored
        raise CorruptFile(f"{path}: {name} {place.shape} claims {claimed} bytes, but the file holds {stored} of them")
    check_fits(path, {name: (place.shape, place.dtype.itemsize)})
    return place


def stored_rows(data: h5py.Dataset, start: int, stop: int, path: Path) -> Array:
    """Return rows of an array that `image_of` laid out.

    Compressed rows are unpacked here: HDF5 would unpack whatever is in the file, however much larger than the row it is. A
    packed row is read into memory of a fixed size, whatever length the file claims for it.
    """
    if data.chunks is None:
        return np.asarray(data[start:stop])
    properties, row = data.id.get_create_plist(), data.shape[1:]
    filters = [properties.get_filter(i)[0] for i in range(properties.get_nfilters())]
    if data.chunks != (1, *row) or filters != [h5py.h5z.FILTER_SHUFFLE, h5py.h5z.FILTER_DEFLATE]:
        raise CorruptFile(f"{path}: {data.name} is not laid out as gkn does it")
    size = data.dtype.itemsize * math.prod(row)
    out, buffer = np.empty((stop - start, *row), data.dtype), np.empty(2 * size + 1024, np.uint8)
    for i in range(start, stop):
        try:
            mask, packed = data.id.read_direct_chunk((i, *(0 for _ in row)), out=buffer)
            unpacked = zlib.decompressobj().decompress(packed, size + 1) if mask == 0 else b""
        except (OSError, RuntimeError, ValueError, zlib.error):  # not there, larger than the buffer, or damaged
            unpacked = b""
        if len(unpacked) != size:
            raise CorruptFile(f"{path}: row {i} of {data.name} does not have the {size} bytes that it should have")
        columns = np.frombuffer(unpacked, np.uint8).reshape(data.dtype.itemsize, -1)
        out[i - start] = np.ascontiguousarray(columns.T).view(data.dtype).reshape(row)
    return out


def check_fits(path: Path | str, claims: Mapping[str, tuple[Sequence[int], int]]) -> None:
    """Refuse arrays that cannot fit, by the shapes and item sizes their headers claim, before anything is allocated."""
    total = sum(math.prod(int(extent) for extent in shape) * itemsize for shape, itemsize in claims.values())
    free = available_memory()
    if total > free // 2:
        said = ", ".join(f"{name} {tuple(int(n) for n in shape)}" for name, (shape, _) in claims.items())
        raise CorruptFile(f"{path}: claims {total / 2**30:.3g} GiB ({said}), but {free / 2**30:.3g} GiB are free")
