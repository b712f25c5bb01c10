"""HDF5 files: PDEBench's Darcy flow (nu, tensor), or plain arrays with the names that `.npz` files have."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import torch

from gkn.data.readers.arrays import grid_of, on_grid, plain
from gkn.data.readers.cells import numbers
from gkn.data.readers.format import Array, Content, Nodes, ReadOptions, UnreadableFile, reader
from gkn.geometry.cloud import Cloud
from gkn.system.hdf5 import check_fits, plain_array


@reader(".h5", ".hdf5")
def read_hdf5(path: Path, options: ReadOptions) -> Content:
    with h5py.File(path, "r") as file:
        if "nu" in file and "tensor" in file:
            return _pdebench(path, file, options)
        arrays = {name: plain_array(file, name, path) for name in file}
        check_fits(path, {name: (array.shape, 8) for name, array in arrays.items()})
        return plain(path, {name: np.asarray(array[...]) for name, array in arrays.items()}, options)


def _pdebench(path: Path, file: h5py.File, options: ReadOptions) -> Content:
    nu, tensor = (numbers(path, name, h5_array(path, file, name)) for name in ("nu", "tensor"))
    if tensor.ndim == 4 and tensor.shape[1] == 1:
        tensor = tensor[:, 0]
    if "x-coordinate" not in file:
        return on_grid(path, {"a": nu, "u": tensor}, options, "centres", inputs=("a",))
    axes = [numbers(path, name, h5_array(path, file, name)).astype(np.float64) for name in ("x-coordinate", "y-coordinate")]
    if nu.ndim != 3 or tuple(map(len, axes)) != nu.shape[1:] or nu.shape != tensor.shape:
        coordinates = f"{len(axes[0])} x {len(axes[1])} coordinates"
        raise UnreadableFile(f"{path}: {coordinates} for fields of shapes nu {nu.shape}, tensor {tensor.shape}")
    points = torch.from_numpy(np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, 2))
    flat = {name: torch.from_numpy(np.ascontiguousarray(v)).reshape(len(v), -1) for name, v in (("a", nu), ("u", tensor))}
    candidates: tuple[Nodes, ...] = ("vertices", "centres", "left")
    for nodes in candidates:  # coordinates are float32: those of a grid are meant
        grid = grid_of(path, nu.shape[1:], ReadOptions(nodes=nodes), nodes)
        if torch.allclose(points, grid.points, atol=1e-6, rtol=0):
            return Content(grid, {**flat}, inputs=("a",))
    return Content(Cloud(points), {**flat}, inputs=("a",))


def h5_array(path: Path, file: h5py.File, name: str) -> Array:
    """Read one array whose bytes are in the file itself."""
    return np.asarray(plain_array(file, name, path)[...])
