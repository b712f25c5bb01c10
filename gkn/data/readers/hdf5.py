"""HDF5 files: PDEBench's Darcy flow (nu, tensor), or plain arrays with the names that `.npz` files have."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from gkn.data.foreign.process import parsed_arrays
from gkn.data.foreign.raw import Array, UnreadableFile
from gkn.data.readers.arrays import grid_of, on_grid, plain
from gkn.data.readers.cells import numbers
from gkn.data.readers.format import Content, Nodes, ReadOptions, reader
from gkn.geometry.cloud import Cloud


@reader(".h5", ".hdf5")
def read_hdf5(path: Path, options: ReadOptions) -> Content:
    arrays, _ = parsed_arrays("hdf5", path)
    return _pdebench(path, arrays, options) if {"nu", "tensor"} <= {*arrays} else plain(path, arrays, options)


def _pdebench(path: Path, arrays: Mapping[str, Array], options: ReadOptions) -> Content:
    nu, tensor = (numbers(path, name, arrays[name]) for name in ("nu", "tensor"))
    if tensor.ndim == 4 and tensor.shape[1] == 1:
        tensor = tensor[:, 0]
    if "x-coordinate" not in arrays:
        return on_grid(path, {"a": nu, "u": tensor}, options, "centres", inputs=("a",))
    axes = [numbers(path, name, arrays[name]).astype(np.float64) for name in ("x-coordinate", "y-coordinate")]
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
