"""HDF5 files with arrays at their top, parsed by h5py."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np

from gkn.data.foreign.raw import Array
from gkn.system.hdf5 import check_fits, plain_array

_PDEBENCH = ("nu", "tensor", "x-coordinate", "y-coordinate")


def parse_hdf5(path: Path) -> tuple[dict[str, Array], list[str]]:
    """Return the arrays by name; of PDEBench's files those that are used, whatever else they hold."""
    with h5py.File(path, "r") as file:
        names = [name for name in file if name in _PDEBENCH] if {"nu", "tensor"} <= {*file} else [*file]
        arrays = {name: plain_array(file, name, path) for name in names}
        check_fits(path, {name: (array.shape, 8) for name, array in arrays.items()})
        return {name: np.asarray(array[...]) for name, array in arrays.items()}, []
