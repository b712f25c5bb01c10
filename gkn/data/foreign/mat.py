"""MATLAB files, v5 and v7.3, parsed by scipy and h5py."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np

from gkn.data.foreign.raw import Array, UnreadableFile
from gkn.system.hdf5 import check_fits, plain_array

NAMED = ("coeff", "Kcoeff", "Kcoeff_x", "Kcoeff_y", "sol", "X", "Y", "F", "U")
"""Names of arrays that known files have, which must hold numbers."""
_KINDS = ("double", "single", "logical", *(f"{u}int{b}" for u in ("", "u") for b in (8, 16, 32, 64)))


def parse_mat(path: Path) -> tuple[dict[str, Array], list[str]]:
    """Return the arrays of numbers by name, and the names of everything else."""
    return _read_v73(path) if h5py.is_hdf5(path) else _read_v5(path)


def _read_v73(path: Path) -> tuple[dict[str, Array], list[str]]:
    """Read a file that is HDF5. MATLAB stores arrays in Fortran order."""
    with h5py.File(path, "r") as file:
        names = [name for name in file if not name.startswith("#")]
        wanted = [
            name for name in names if not isinstance(file.get(name, getlink=True), h5py.HardLink) or _is_array(file[name])
        ]
        stored = {name: plain_array(file, name, path) for name in wanted}
        check_fits(path, {name: (array.shape, 8) for name, array in stored.items()})
        arrays = {name: np.asarray(array[...]) for name, array in stored.items()}
    return {name: array.transpose(*reversed(range(array.ndim))) for name, array in arrays.items()}, [
        name for name in names if name not in arrays
    ]


def _is_array(value: object) -> bool:
    """True for numbers, but not for MATLAB's texts, structures and cells."""
    if not isinstance(value, h5py.Dataset):
        return False
    kind = value.attrs.get("MATLAB_class", b"double")
    return (kind.decode() if isinstance(kind, bytes) else str(kind)) in _KINDS


def _read_v5(path: Path) -> tuple[dict[str, Array], list[str]]:
    from scipy.io import loadmat, whosmat

    listed = whosmat(path)
    present = {name: (shape, kind) for name, shape, kind in listed}
    if len(present) != len(listed):
        raise UnreadableFile(f"{path}: an array is there twice")
    skipped = [name for name, (_, kind) in present.items() if kind not in _KINDS]
    for name in skipped:
        if name in NAMED:
            raise UnreadableFile(f"{path}: {name} is a MATLAB {present[name][1]}, not an array of numbers")
    wanted = [name for name in present if name not in skipped]
    check_fits(path, {name: (present[name][0], 8) for name in wanted})
    loaded = loadmat(path, variable_names=wanted) if wanted else {}
    return {name: np.asarray(loaded[name]) for name in wanted}, skipped
