"""MATLAB files of the GKN and FNO authors, v5 and v7.3: coeff, Kcoeff, Kcoeff_x, Kcoeff_y, sol."""

from __future__ import annotations

from pathlib import Path

import h5py

from gkn.data.readers.arrays import Array, numbers, on_square
from gkn.data.readers.format import Part, ReadOptions, UnreadableFile, reader
from gkn.data.readers.hdf5 import h5_array
from gkn.system.hdf5 import check_fits

FIELDS = {"coeff": "a", "Kcoeff": "a_smooth", "Kcoeff_x": "a_smooth_x", "Kcoeff_y": "a_smooth_y", "sol": "u"}
_KINDS = ("double", "single", "logical", *(f"{u}int{b}" for u in ("", "u") for b in (8, 16, 32, 64)))


@reader(".mat")
def read_mat(path: Path, options: ReadOptions) -> Part:
    arrays: dict[str, Array] = {}
    if h5py.is_hdf5(path):  # v7.3
        with h5py.File(path, "r") as file:
            for name in FIELDS:
                if name in file:
                    data = h5_array(path, file, name)
                    arrays[name] = data.transpose(*reversed(range(data.ndim)))  # MATLAB stores arrays in Fortran order
    else:
        from scipy.io import loadmat, whosmat

        listed = [entry for entry in whosmat(path) if entry[0] in FIELDS]
        present = {name: (shape, kind) for name, shape, kind in listed}
        if len(present) != len(listed):
            raise UnreadableFile(f"{path}: an array is there twice")
        for name, (_, kind) in present.items():
            if kind not in _KINDS:
                raise UnreadableFile(f"{path}: {name} is a MATLAB {kind}, not an array of numbers")
        check_fits(path, {name: (shape, 8) for name, (shape, _) in present.items()})
        arrays = loadmat(path, variable_names=[*present]) if present else {}
    found = {ours: numbers(path, theirs, arrays[theirs]) for theirs, ours in FIELDS.items() if theirs in arrays}
    if not {"a", "u"} <= {*found}:
        raise UnreadableFile(f"{path}: no coeff and sol in it; a GKN/FNO file has {', '.join(FIELDS)}")
    return on_square(path, found, options.nodes)
