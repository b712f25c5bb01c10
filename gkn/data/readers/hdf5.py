"""HDF5 files: PDEBench's Darcy flow (nu, tensor), or plain arrays with the names that `.npz` files have."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import torch

from gkn.data.readers.arrays import Array, numbers, on_square, plain
from gkn.data.readers.format import Part, ReadOptions, UnreadableFile, reader
from gkn.geometry.cloud import Cloud
from gkn.system.hdf5 import check_fits, plain_array


@reader(".h5", ".hdf5")
def read_hdf5(path: Path, options: ReadOptions) -> Part:
    with h5py.File(path, "r") as file:
        if "nu" in file and "tensor" in file:
            return _pdebench(path, file)
        arrays = {name: plain_array(file, name, path) for name in file}
        check_fits(path, {name: (array.shape, 8) for name, array in arrays.items()})
        return plain(path, {name: np.asarray(array[...]) for name, array in arrays.items()}, options.repair)


def _pdebench(path: Path, file: h5py.File) -> Part:
    nu, tensor = (numbers(path, name, h5_array(path, file, name)) for name in ("nu", "tensor"))
    if tensor.ndim == 4 and tensor.shape[1] == 1:
        tensor = tensor[:, 0]
    fields = {"a": nu, "u": tensor}
    if "x-coordinate" not in file:
        return on_square(path, fields, "centres")
    axes = [numbers(path, name, h5_array(path, file, name)).astype(np.float64) for name in ("x-coordinate", "y-coordinate")]
    grid, flat = on_square(path, fields, "vertices")
    points = torch.from_numpy(np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, 2))
    if len(points) != len(grid):
        raise UnreadableFile(f"{path}: {len(axes[0])} x {len(axes[1])} coordinates for fields of shape {nu.shape}")
    on_nodes = torch.allclose(points, grid.points, atol=1e-6, rtol=0)  # type: ignore[union-attr]
    return (grid if on_nodes else Cloud(points)), flat


def h5_array(path: Path, file: h5py.File, name: str) -> Array:
    """Read one array whose bytes are in the file itself."""
    return np.asarray(plain_array(file, name, path)[...])
