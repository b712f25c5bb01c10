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
    if any(properties.get_filter(i)[0] not in known for i in range(properties.get_nfilters())):
        raise CorruptFile(f"{path}: {name} uses a filter that is not part of HDF5")
    if place.dtype.kind not in "fiub":
        raise CorruptFile(f"{path}: {name} holds {place.dtype}, not numbers")
    check_fits(path, {name: (place.shape, place.dtype.itemsize)})
    return place


def check_fits(path: Path | str, claims: Mapping[str, tuple[Sequence[int], int]]) -> None:
    """Refuse arrays that cannot fit, by the shapes and item sizes their headers claim, before anything is allocated."""
    total = sum(math.prod(int(extent) for extent in shape) * itemsize for shape, itemsize in claims.values())
    free = available_memory()
    if total > free // 2:
        said = ", ".join(f"{name} {tuple(int(n) for n in shape)}" for name, (shape, _) in claims.items())
        raise CorruptFile(f"{path}: claims {total / 2**30:.3g} GiB ({said}), but {free / 2**30:.3g} GiB are free")
