"""From points, blocks of cells and data at points and cells, as mesh files hold them, to a domain and fields."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gkn.data.foreign.raw import SHAPES, SIMPLICES, Array, RawMesh, UnreadableFile
from gkn.data.readers.format import Content, ReadOptions
from gkn.geometry.cloud import Cloud
from gkn.geometry.domain import Domain
from gkn.geometry.grid import Grid
from gkn.geometry.mesh import Mesh

# VTK's cells with parallel sides number their corners row by row.
_REORDERED = {"pixel": ("quad", [0, 1, 3, 2]), "voxel": ("hexahedron", [0, 1, 3, 2, 4, 5, 7, 6])}
# Whole numbers at cells that mark materials and parts of the boundary.
_IDS: tuple[str, ...] = (
    "gmsh:physical",
    "medit:ref",
    "su2:tag",
    "avsucd:material",
    "netgen:index",
    "cell_tags",
    "materialids",
    "materialid",
)
_IDS += ("material", "cellentityids", "regionid")
_IGNORED = ("gmsh:geometrical", "gmsh:dim_tags", "gmsh:bounding_entities")
MAX_IDS = 32
MAX_SETS = 256
ROUNDING = 1e-12  # of the size of a mesh: what a plane may lose in a file, and less than any surface is inclined by


def numbers(path: Path, name: str, array: Array) -> Array:
    """Return real numbers in a type that a dataset holds."""
    if array.dtype.kind == "f":
        native = array.astype(array.dtype.newbyteorder("="), copy=False)
        return native if array.dtype.itemsize in (4, 8) else array.astype(np.float64)
    if array.dtype.kind in "iub":
        return array.astype(np.float64)
    raise UnreadableFile(f"{path}: {name} holds {array.dtype}, not real numbers")


def content_of(path: Path, raw: RawMesh, options: ReadOptions) -> Content:
    """Return the domain of the cells of the highest dimension, with the fields at its points."""
    notes = [*raw.notes]
    points = np.ascontiguousarray(numbers(path, "points", np.asarray(raw.points)).astype(np.float64))
    if points.ndim != 2 or points.shape[1] not in (1, 2, 3) or not len(points):
        raise UnreadableFile(f"{path}: points of shape {points.shape}; needed (K, 1), (K, 2) or (K, 3)")
    blocks = [_checked(path, kind, np.asarray(corners), len(points)) for kind, corners in raw.cells]
    dims = [0 if kind == "vertex" else SHAPES[kind][1] for kind, _ in blocks]
    top = max(dims, default=0)
    points, flat = without_constant_axes(path, points, top, notes)
    dropped = max(flat, default=None)
    fields = {
        name: _columns(path, name, np.asarray(values), len(points), dropped)
        for name, values in raw.point_data.items()
        if name not in _IGNORED
    }
    masks = _sets(raw, blocks, dims, top, len(points), notes)
    # Blocks of one type become one: gmsh, for example, writes a block per entity.
    members: dict[str, list[int]] = {}
    for i, (kind, _) in enumerate(blocks):
        if dims[i] == top > 0:
            members.setdefault(kind, []).append(i)
    cells = {kind: np.concatenate([blocks[i][1] for i in which]) for kind, which in members.items()}
    cell_data = _joined_data(raw.cell_data, [*members.values()], notes)
    sizes = {kind: measures(points, kind, corners) for kind, corners in cells.items()}
    if options.repair:
        solid = {kind: size > 0 for kind, size in sizes.items()}
        without_size = sum(int((~mask).sum()) for mask in solid.values())
        if without_size:
            notes.append(f"cells dropped, because their size is 0: {without_size}")
            cell_data = {
                name: [array[mask] for array, mask in zip(arrays, solid.values(), strict=True) if mask.any()]
                for name, arrays in cell_data.items()
            }
            cells, sizes = (
                {kind: array[solid[kind]] for kind, array in each.items() if solid[kind].any()} for each in (cells, sizes)
            )
    domain, kept = _domain(path, points, cells, options.repair, notes)

    moved, twice = [], []
    for name, arrays in cell_data.items():
        if _is_id(name, arrays):
            continue
        if name in fields:
            twice.append(name)
            continue
        together = np.concatenate(arrays)
        values = _columns(path, name, together, len(together), dropped)
        fields[name] = _at_points(values, cells, sizes, len(points))
        moved.append(name)
    if moved:
        notes.append(f"cell data moved to points, as means weighted by the size of the cells: {', '.join(moved)}")
    if twice:
        notes.append(f"cell data left out, because point data have the same name: {', '.join(twice)}")
    fields |= {name: mask.astype(np.float64) for name, mask in masks.items() if name not in fields}
    return Content(
        domain,
        {name: torch.from_numpy(np.ascontiguousarray(values[kept]))[None] for name, values in fields.items()},
        {name: torch.tensor([value], dtype=torch.float64) for name, value in raw.parameters.items()},
        cell_data=cell_data,
        notes=tuple(notes),
        flat_axes=flat,
    )


def measures(points: Array, kind: str, cells: Array) -> Array:
    """Return the length, area or volume (C,) of each cell, from its corners."""
    shape, dim, _ = SHAPES[kind]
    total = np.zeros(len(cells))
    for simplex in SIMPLICES[shape]:
        corners = points[cells[:, simplex]]
        edges = corners[:, 1:] - corners[:, :1]
        if edges.shape[1] == edges.shape[2]:
            volume = np.abs(np.linalg.det(edges))
        else:
            volume = np.sqrt(np.maximum(np.linalg.det(edges @ edges.transpose(0, 2, 1)), 0))
        total += volume / math.factorial(dim)
    return total


def _checked(path: Path, kind: str, corners: Array, points: int) -> tuple[str, Array]:
    """Return a block with a type that meshes have and corners that exist."""
    if kind in _REORDERED:
        kind, order = _REORDERED[kind]
        corners = corners[:, order]
    if kind == "polygon" and corners.ndim == 2 and corners.shape[1] in (3, 4):
        kind = "triangle" if corners.shape[1] == 3 else "quad"
    if kind != "vertex" and kind not in SHAPES:
        raise UnreadableFile(f"{path}: cells of type {kind}; needed {', '.join(SHAPES)}")
    nodes = 1 if kind == "vertex" else SHAPES[kind][2]
    if corners.dtype.kind not in "iu" or corners.ndim != 2 or corners.shape[1] != nodes:
        raise UnreadableFile(f"{path}: cells of type {kind} with {corners.dtype} of shape {corners.shape}; needed (C, {nodes})")
    if len(corners) and not (int(corners.min()) >= 0 and int(corners.max()) < points):
        first, last = int(corners.min()), int(corners.max())
        raise UnreadableFile(f"{path}: cells name points {first} to {last}, there are only 0 to {points - 1}")
    return kind, np.ascontiguousarray(corners, dtype=np.int64)


def without_constant_axes(path: Path, points: Array, top: int, notes: list[str]) -> tuple[Array, dict[int, float]]:
    """Return points without the axes on which they do not vary, and these axes with their coordinate.

    Surfaces in space keep their three coordinates.
    """
    if not np.isfinite(points).all():
        bad = int(np.flatnonzero(~np.isfinite(points).all(axis=1))[0])
        raise UnreadableFile(f"{path}: point {bad} is {points[bad].tolist()}; coordinates must be finite")
    extent = np.ptp(points, 0)
    varies = extent > ROUNDING * max(float(extent.max()), 1e-300)
    if varies.sum() < max(top, 1):
        axes = "".join("xyz"[i] for i in range(len(varies)) if varies[i]) or "no axis"
        what = f"cells of dimension {top}" if top else "points"
        raise UnreadableFile(f"{path}: {what}, but the points differ along {axes} only")
    if varies.all():
        return points, {}
    flat = {i: float(points[0, i]) for i in range(len(varies)) if not varies[i]}
    said = ", ".join(f"{'xyz'[i]} = {at:g}" for i, at in flat.items())
    same = "the same" if not extent[[*flat]].any() else f"the same up to {ROUNDING:g} of the size"
    notes.append(f"coordinates dropped, because they are {same} at all points: {said}")
    return np.ascontiguousarray(points[:, varies]), flat


def _columns(path: Path, name: str, array: Array, count: int, dropped: int | None) -> Array:
    """Return values (count,) or (count, c). In the plane, VTK's vectors lose the component across it if that is 0."""
    values = numbers(path, name, array)
    if len(values) != count:
        raise UnreadableFile(f"{path}: field {name} of shape {array.shape} for {count} points or cells")
    values = values.reshape(count, -1)
    if not values.shape[1]:
        raise UnreadableFile(f"{path}: field {name} has no components")
    if values.shape[1] == 3 and dropped is not None and not values[:, dropped].any():
        values = np.delete(values, dropped, 1)
    return values[:, 0] if values.shape[1] == 1 else values


def _joined_data(
    cell_data: Mapping[str, list[Array | None]], members: list[list[int]], notes: list[str]
) -> dict[str, list[Array]]:
    """Return one array per type of cell, for the data that all of these blocks have."""
    kept: dict[str, list[Array]] = {}
    for name, arrays in cell_data.items():
        given = [[arrays[i] for i in which] for which in members]
        some = [np.asarray(each) for which in given for each in which if each is not None]
        if name in _IGNORED or not some:
            continue
        if len(some) == sum(map(len, given)) and len({each.shape[1:] for each in some}) == 1:
            rest = iter(some)
            kept[name] = [np.concatenate([next(rest) for _ in which]) for which in given]
        else:
            notes.append(f"cell data left out, because some cells have none: {name}")
    return kept


def _domain(path: Path, points: Array, cells: Mapping[str, Array], repair: bool, notes: list[str]) -> tuple[Domain, Array]:
    """Return the domain, and the indices of the points that are in it."""
    everything = np.arange(len(points))
    if not cells:
        domain = grid_or_cloud(torch.from_numpy(points), {})
        if domain.shape is None:
            notes.append("no cells: read as points, with quadrature weights computed from them")
        return domain, everything
    kept = everything
    if repair:
        used = np.zeros(len(points), dtype=bool)
        for corners in cells.values():
            used[corners] = True
        kept = used.nonzero()[0]
        if len(kept) < len(points):
            notes.append(f"points dropped, because they belong to no cell: {len(points) - len(kept)}")
            cells = {kind: np.searchsorted(kept, corners) for kind, corners in cells.items()}
    return mesh_of(path, points[kept], cells, repair), kept


def mesh_of(path: Path, points: Array, cells: Mapping[str, Array], repair: bool) -> Mesh:
    """Return the mesh of blocks of cells by type."""
    blocks: Any = {kind: torch.from_numpy(np.ascontiguousarray(corners)) for kind, corners in cells.items()}
    try:
        return Mesh(torch.from_numpy(np.ascontiguousarray(points)), blocks)
    except ValueError as error:
        hint = " (gkn data import --repair does it)" if not repair and _can_be_repaired(points, cells) else ""
        raise UnreadableFile(f"{path}: {error}{hint}") from error


def _can_be_repaired(points: Array, cells: Mapping[str, Array]) -> bool:
    """True if the mesh is one without its points that belong to no cell and its cells of size 0."""
    solid = {kind: corners[measures(points, kind, corners) > 0] for kind, corners in cells.items()}
    solid = {kind: corners for kind, corners in solid.items() if len(corners)}
    if not solid:
        return False
    kept = np.unique(np.concatenate([corners.reshape(-1) for corners in solid.values()]))
    try:
        blocks: Any = {kind: torch.from_numpy(np.searchsorted(kept, corners)) for kind, corners in solid.items()}
        Mesh(torch.from_numpy(np.ascontiguousarray(points[kept])), blocks)
    except ValueError:
        return False
    return True


def grid_or_cloud(points: Tensor, given: Mapping[str, Tensor]) -> Domain:
    """Return a grid if the points are those of one, in its order and with its weights and boundary; else a cloud."""
    if points.ndim == 2 and points.shape[1] in (1, 2, 3):
        size = round(len(points) ** (1 / points.shape[1]))
        if size >= 2 and size ** points.shape[1] == len(points):
            grid = Grid(size, points.shape[1])
            if torch.allclose(points, grid.points, atol=1e-9, rtol=0) and agrees(grid, given):
                return grid
    return Cloud(points, **given)


def agrees(domain: Domain, given: Mapping[str, Tensor]) -> bool:
    """True if weights and boundary, where given, are those of the domain."""
    weights, boundary = given.get("weights", domain.weights), given.get("boundary", domain.boundary)
    return torch.allclose(weights.double(), domain.weights, rtol=1e-6) and torch.equal(boundary.bool(), domain.boundary)


def _is_id(name: str, arrays: list[Array]) -> bool:
    """True for cell data that number materials or regions."""
    if name.lower() not in _IDS or any(array.ndim > 1 and array[0:1].size > 1 for array in arrays):
        return False
    values = np.concatenate([array.reshape(-1) for array in arrays])
    return bool((values == np.round(values)).all()) and len(np.unique(values)) <= MAX_IDS


def _sets(
    raw: RawMesh, cells: list[tuple[str, Array]], dims: list[int], top: int, count: int, notes: list[str]
) -> dict[str, Array]:
    """Return masks (K,) of points: named sets as set:NAME, and materials and regions of the domain as region:NAME."""
    sets: dict[str, Array] = {}
    regions: dict[str, Array] = {}
    if len({*raw.point_sets, *raw.cell_sets}) > MAX_SETS:
        notes.append(f"named sets left out, because there are more than {MAX_SETS}: {len({*raw.point_sets, *raw.cell_sets})}")
        raw = replace(raw, point_sets={}, cell_sets={})

    def add(name: str, dim: int, corners: Array) -> None:
        into = regions if dim == top and top > 0 else sets
        into.setdefault(name, np.zeros(count, dtype=bool))[corners.reshape(-1)] = True

    for name, indices in raw.point_sets.items():
        add(name, -1, np.asarray(indices, dtype=np.int64))
    for name, members in raw.cell_sets.items():
        if name in _IGNORED:
            continue
        for (_, corners), dim, chosen in zip(cells, dims, members, strict=True):
            if chosen is not None and len(chosen):
                add(name, dim, corners[np.asarray(chosen)])
    for name, arrays in raw.cell_data.items():
        given = [np.asarray(a).reshape(-1) if a is not None else None for a in arrays]
        whole = [a for a in given if a is not None]
        if not whole or not _is_id(name, whole):
            continue
        for (_, corners), dim, ids in zip(cells, dims, given, strict=True):
            for number in [] if ids is None or len(ids) != len(corners) else np.unique(ids):
                if number or name != "gmsh:physical":  # 0 is gmsh's number for cells without a group
                    add(raw.group_names.get((int(number), dim), str(int(number))), dim, corners[ids == number])
    if len(regions) == 1:
        regions = {name: mask for name, mask in regions.items() if not mask.all()}
    named = {f"set:{name}": mask for name, mask in sets.items()}
    return named | {f"region:{name}": mask for name, mask in regions.items()}


def _at_points(values: Array, cells: Mapping[str, Array], sizes: Mapping[str, Array], count: int) -> Array:
    """Return the mean of the cells around each point, weighted by their size. Points without cells have 0."""
    columns = values.reshape(len(values), -1).astype(np.float64)
    total, out = np.zeros(count), np.zeros((count, columns.shape[1]))
    start = 0
    for kind, corners in cells.items():
        size = sizes[kind]
        weighted = columns[start : start + len(corners)] * size[:, None]
        start += len(corners)
        for node in corners.T:
            total += np.bincount(node, size, minlength=count)
            for c in range(columns.shape[1]):
                out[:, c] += np.bincount(node, weighted[:, c], minlength=count)
    mean = np.divide(out, total[:, None], out=np.zeros_like(out), where=total[:, None] > 0)
    return mean.reshape(count, *values.shape[1:])
