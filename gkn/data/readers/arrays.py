"""From arrays to domains and fields: values on a square without coordinates, or plain arrays with their points."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gkn.data.readers.format import Nodes, Part, UnreadableFile
from gkn.geometry.cloud import Cloud
from gkn.geometry.domain import Domain
from gkn.geometry.grid import Grid
from gkn.geometry.mesh import Mesh

Array = NDArray[Any]
GEOMETRY = ("points", "cells", "weights", "boundary")


def on_square(path: Path, fields: Mapping[str, Array], nodes: Nodes) -> Part:
    """Return fields (n, s, s), or (s, s) for one sample, on the unit square."""
    fields = {name: array[None] if array.ndim == 2 else array for name, array in fields.items()}
    shapes = {name: array.shape for name, array in fields.items()}
    shape = next(iter(shapes.values()))
    if len({*shapes.values()}) != 1 or len(shape) != 3 or len({*shape[1:]}) != 1 or shape[1] < 2:
        raise UnreadableFile(f"{path}: fields of shapes {shapes}; needed (n, s, s), the same for all")
    grid = Grid(shape[1])
    flat = {name: torch.from_numpy(np.ascontiguousarray(array)).reshape(len(array), -1) for name, array in fields.items()}
    if nodes == "vertices":
        return grid, flat
    centres = (grid.points * (grid.size - 1) + 0.5) / grid.size
    return Cloud(centres), flat


def numbers(path: Path, name: str, array: Array) -> Array:
    """Return real numbers in a type that a dataset holds."""
    if array.dtype.kind == "f":
        native = array.astype(array.dtype.newbyteorder("="), copy=False)
        return native if array.dtype.itemsize in (4, 8) else array.astype(np.float64)
    if array.dtype.kind in "iub":
        return array.astype(np.float64)
    raise UnreadableFile(f"{path}: {name} holds {array.dtype}, not real numbers")


def plain(path: Path, arrays: Mapping[str, Array], repair: bool) -> Part:
    """Read named arrays: points (K, d), perhaps cells, weights and boundary; every other one is a field, (K,) or (n, K)."""
    if "points" not in arrays:
        raise UnreadableFile(f"{path}: no array 'points'; it has {', '.join(arrays) or 'nothing'}")
    points = numbers(path, "points", arrays["points"]).astype(np.float64)
    domain, kept = _domain(path, points, arrays, repair)
    fields = {}
    for name, array in arrays.items():
        if name in GEOMETRY:
            continue
        values = np.atleast_2d(numbers(path, name, array))
        if values.ndim != 2 or values.shape[1] != len(points):
            raise UnreadableFile(
                f"{path}: field {name} of shape {array.shape} for {len(points)} points; needed (n, {len(points)})"
            )
        fields[name] = torch.from_numpy(np.ascontiguousarray(values))[:, kept]
    counts = {name: len(rows) for name, rows in fields.items()}
    if len({*counts.values()}) > 1:
        raise UnreadableFile(f"{path}: the fields have different numbers of samples: {counts}")
    return domain, fields


def _domain(path: Path, points: Array, arrays: Mapping[str, Array], repair: bool) -> tuple[Domain, Tensor]:
    """Return the domain, and the indices of the points that are in it."""
    everything = torch.arange(len(points))
    given = {name: torch.from_numpy(numbers(path, name, arrays[name])) for name in ("weights", "boundary") if name in arrays}
    for name, each in given.items():
        if each.shape != (len(points),):
            raise UnreadableFile(f"{path}: {name} of shape {tuple(each.shape)} for {len(points)} points")
    if "cells" not in arrays:
        return _grid_or_cloud(torch.from_numpy(points), given), everything
    cells = np.ascontiguousarray(arrays["cells"])
    if cells.dtype.kind in "iu":
        cells = cells.astype(np.int64)
    try:
        mesh, kept = (
            Mesh.repaired(points, cells) if repair else (Mesh(torch.from_numpy(points), torch.from_numpy(cells)), everything)
        )
    except ValueError as error:
        raise UnreadableFile(f"{path}: {error}" + ("" if repair else " (gkn data import --repair does it)")) from error
    if not _agrees(mesh, {name: values[kept] for name, values in given.items()}):
        raise UnreadableFile(f"{path}: weights or boundary are not those of the cells; leave them out, or leave the cells out")
    return mesh, kept


def _grid_or_cloud(points: Tensor, given: dict[str, Tensor]) -> Domain:
    """Return a grid if the points are those of one, in its order and with its weights and boundary; else a cloud."""
    if points.ndim == 2 and points.shape[1] in (1, 2, 3):
        size = round(len(points) ** (1 / points.shape[1]))
        if size >= 2 and size ** points.shape[1] == len(points):
            grid = Grid(size, points.shape[1])
            if torch.allclose(points, grid.points, atol=1e-9, rtol=0) and _agrees(grid, given):
                return grid
    return Cloud(points, **given)


def _agrees(domain: Domain, given: Mapping[str, Tensor]) -> bool:
    weights, boundary = given.get("weights", domain.weights), given.get("boundary", domain.boundary)
    return torch.allclose(weights.double(), domain.weights, rtol=1e-6) and torch.equal(boundary.bool(), domain.boundary)
