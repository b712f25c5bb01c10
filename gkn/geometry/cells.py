"""Cell types of meshes, by their meshio names, and their split into simplices.

A node of a cell is described by the vertices it is the mean of: (0,) is the first vertex, (0, 1) the middle of an edge.
The nodes of a facet and of a mirrored cell follow from this description, in VTK's order of nodes for every type.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[Any]
Node = tuple[int, ...]


@dataclass(frozen=True)
class CellType:
    """A type of cell: its name, VTK number, dimension, nodes, facets (outward) and the vertex order of its mirror image."""

    name: str
    vtk: int
    dim: int
    nodes: tuple[Node, ...]
    facets: tuple[Node, ...]
    mirror: Node

    @property
    def vertices(self) -> int:
        return len(self.mirror)

    @property
    def linear(self) -> bool:
        """True if all nodes are vertices."""
        return len(self.nodes) == self.vertices

    @cached_property
    def mirrored(self) -> list[int]:
        """Nodes of the cell in the order of its mirror image."""
        place = {frozenset(node): i for i, node in enumerate(self.nodes)}
        return [place[frozenset(self.mirror[vertex] for vertex in node)] for node in self.nodes]

    def facet_nodes(self, facet: Node) -> list[int]:
        """Return all nodes of a facet: its vertices and the nodes between them."""
        return [i for i, node in enumerate(self.nodes) if set(node) <= set(facet)]


_TRIANGLE = ((0, 1), (1, 2), (2, 0))
_QUAD = ((0, 1), (1, 2), (2, 3), (3, 0))
_TETRA = ((0, 2, 1), (0, 1, 3), (0, 3, 2), (1, 2, 3))
_HEXAHEDRON = ((0, 4, 7, 3), (1, 2, 6, 5), (0, 1, 5, 4), (3, 7, 6, 2), (0, 3, 2, 1), (4, 5, 6, 7))
_WEDGE = ((0, 2, 1), (3, 4, 5), (0, 1, 4, 3), (1, 2, 5, 4), (2, 0, 3, 5))
_PYRAMID = ((0, 3, 2, 1), (0, 1, 4), (1, 2, 4), (2, 3, 4), (3, 0, 4))
_LIFT = ((0, 4), (1, 5), (2, 6), (3, 7))  # upright edges of a hexahedron
_CUBE = (*_QUAD, (4, 5), (5, 6), (6, 7), (7, 4), *_LIFT)  # all of its edges
_PRISM = (*_TRIANGLE, (3, 4), (4, 5), (5, 3), (0, 3), (1, 4), (2, 5))


def _type(name: str, vtk: int, dim: int, facets: Sequence[Node], mirror: Node, *between: Node) -> CellType:
    vertices = tuple((i,) for i in range(len(mirror)))
    return CellType(name, vtk, dim, vertices + between, tuple(facets), mirror)


_FLIP = {"line": (1, 0), "triangle": (0, 2, 1), "quad": (0, 3, 2, 1), "tetra": (0, 2, 1, 3)}
_TURN = (0, 3, 2, 1, 4, 7, 6, 5)
_ALL = (
    _type("line", 3, 1, ((1,), (0,)), _FLIP["line"]),
    _type("triangle", 5, 2, _TRIANGLE, _FLIP["triangle"]),
    _type("quad", 9, 2, _QUAD, _FLIP["quad"]),
    _type("tetra", 10, 3, _TETRA, _FLIP["tetra"]),
    _type("hexahedron", 12, 3, _HEXAHEDRON, _TURN),
    _type("wedge", 13, 3, _WEDGE, (0, 2, 1, 3, 5, 4)),
    _type("pyramid", 14, 3, _PYRAMID, (0, 3, 2, 1, 4)),
    _type("line3", 21, 1, ((1,), (0,)), _FLIP["line"], (0, 1)),
    _type("triangle6", 22, 2, _TRIANGLE, _FLIP["triangle"], *_TRIANGLE),
    _type("triangle7", 34, 2, _TRIANGLE, _FLIP["triangle"], *_TRIANGLE, (0, 1, 2)),
    _type("quad8", 23, 2, _QUAD, _FLIP["quad"], *_QUAD),
    _type("quad9", 28, 2, _QUAD, _FLIP["quad"], *_QUAD, (0, 1, 2, 3)),
    _type("tetra10", 24, 3, _TETRA, _FLIP["tetra"], *_TRIANGLE, (0, 3), (1, 3), (2, 3)),
    _type("hexahedron20", 25, 3, _HEXAHEDRON, _TURN, *_CUBE),
    _type("hexahedron27", 29, 3, _HEXAHEDRON, _TURN, *_CUBE, *_HEXAHEDRON, tuple(range(8))),
    _type("wedge15", 26, 3, _WEDGE, (0, 2, 1, 3, 5, 4), *_PRISM),
    _type("pyramid13", 27, 3, _PYRAMID, (0, 3, 2, 1, 4), *_QUAD, (0, 4), (1, 4), (2, 4), (3, 4)),
)
TYPES: dict[str, CellType] = {kind.name: kind for kind in _ALL}
BY_VTK: dict[int, CellType] = {kind.vtk: kind for kind in _ALL}


def blocks_of(cells: Any, points: Tensor) -> dict[str, Tensor]:
    """Return cells, given as an array or as {type: array}, as {type: (C, nodes) int64}. Raise an error if they are wrong."""
    dim = points.shape[1]
    if not isinstance(cells, Mapping):
        cells = _integers(cells)
        cells = {_name(tuple(cells.shape), dim): cells}
    blocks = {name: _integers(block) for name, block in cells.items()}
    for name, block in blocks.items():
        if name not in TYPES:
            raise ValueError(f"Mesh: cells of type {name!r} are not known; use one of {', '.join(TYPES)}")
        if block.ndim != 2 or block.shape[1] != len(TYPES[name].nodes):
            raise ValueError(f"Mesh: {name} cells of shape {tuple(block.shape)}; needed (C, {len(TYPES[name].nodes)})")
    blocks = {name: block for name, block in blocks.items() if len(block)}
    if not blocks:
        raise ValueError("Mesh: there are no cells; needed (C, k) indices of points with at least one cell")
    dims = {name: TYPES[name].dim for name in blocks}
    if len(set(dims.values())) > 1:
        named = ", ".join(f"{name} ({size}-D)" for name, size in dims.items())
        raise ValueError(f"Mesh: cells of different dimensions: {named}; keep those of the highest dimension only")
    if max(dims.values()) > dim:
        name, size = dims.popitem()
        raise ValueError(f"Mesh: {name} cells on points of dimension {dim}; needed points of dimension {size} or more")
    low, high = min(int(block.min()) for block in blocks.values()), max(int(block.max()) for block in blocks.values())
    if low < 0 or high >= len(points):
        raise ValueError(f"Mesh: cells name points {low} to {high}, there are only 0 to {len(points) - 1}")
    return blocks


def mirror_cells(blocks: dict[str, Tensor], wrong: Array) -> dict[str, Tensor]:
    """Return the blocks with the cells of the mask `wrong` (all blocks in turn) replaced by their mirror images."""
    out, start = {}, 0
    for name, block in blocks.items():
        mask = torch.from_numpy(wrong[start : start + len(block)])
        out[name] = torch.where(mask[:, None], block[:, TYPES[name].mirrored], block)
        start += len(block)
    return out


def split(points: Array, blocks: dict[str, Tensor]) -> tuple[Array, Array]:
    """Split all cells into simplices by their vertices: the simplices (S, dim + 1), and the cell each belongs to (S,).

    A cell is the cone of its smallest vertex over the facets that do not contain it, and so are these facets. Two cells that
    share a facet cut it in the same way, so that the simplices of a mesh fit together even where facets are not plane.
    """
    parts, owners, start = [], [], 0
    for name, block in blocks.items():
        kind = TYPES[name]
        corners = block[:, : kind.vertices].numpy()
        if kind.vertices == kind.dim + 1:
            made = corners[:, None]
        elif kind.dim == 2:
            made = _split_quads(points, corners)
        else:
            made = np.concatenate([_cone(corners, facet) for facet in kind.facets], 1)
        owner = np.repeat(np.arange(start, start + len(block)), made.shape[1])
        made = made.reshape(-1, kind.dim + 1)
        if kind.vertices > kind.dim + 1:  # facets that contain the smallest vertex, and edges of length 0, give flat simplices
            ordered = np.sort(made, 1)
            whole = (ordered[:, 1:] != ordered[:, :-1]).all(1)
            made, owner = made[whole], owner[whole]
        parts.append(made)
        owners.append(owner)
        start += len(block)
    return np.ascontiguousarray(np.concatenate(parts)), np.concatenate(owners)


def _cone(corners: Array, facet: Node) -> Array:
    """Return the tetrahedra (C, 1 or 2, 4) of the smallest vertex of each cell over the triangles of a facet."""
    apex = corners.min(1)
    vertices = fan(corners[:, facet])
    return np.concatenate([np.broadcast_to(apex[:, None, None], (*vertices.shape[:2], 1)), vertices], 2)


def fan(facets: Array) -> Array:
    """Split facets (C, 3 or 4) into triangles (C, 1 or 2, 3) by the diagonal through their smallest vertex."""
    if facets.shape[1] < 4:
        return facets[:, None]
    turned = np.take_along_axis(facets, (facets.argmin(1)[:, None] + np.arange(4)) % 4, 1)
    return turned[:, [[0, 1, 2], [0, 2, 3]]]


def _split_quads(points: Array, corners: Array) -> Array:
    """Split quads (C, 4) into triangles (C, 2, 3). If one of the two would be flat or inverted, take the other diagonal."""
    turned = np.take_along_axis(corners, (corners.argmin(1)[:, None] + np.arange(4)) % 4, 1)
    one, other = turned[:, [[0, 1, 2], [0, 2, 3]]], turned[:, [[1, 2, 3], [1, 3, 0]]]
    x = np.zeros((len(points), 3))
    x[:, : points.shape[1]] = points

    def least(triangles: Array) -> Array:
        p, q, r = np.moveaxis(x[triangles], 2, 0)
        areas = np.cross(q - p, r - p)
        total = areas.sum(1, keepdims=True)
        share: Array = (areas * total).sum(-1).min(1) / np.maximum((total**2).sum(-1)[:, 0], np.finfo(float).tiny)
        return share

    worst = least(one)
    return np.where(((worst < 1e-9) & (least(other) > worst))[:, None, None], other, one)


def _integers(given: Any) -> Tensor:
    cells: Tensor = torch.as_tensor(given)
    if cells.dtype.is_floating_point or cells.dtype.is_complex or cells.dtype == torch.bool:
        raise ValueError(f"Mesh: cells are indices of points, but they came as {cells.dtype}; use integers")
    return cells.long().contiguous()


def _name(shape: tuple[int, ...], dim: int) -> str:
    """Return the type of the cells of an array of this shape on points of this dimension."""
    names = {
        1: {2: "line"},
        2: {2: "line", 3: "triangle", 4: "quad"},
        3: {2: "line", 3: "triangle", 4: "tetra", 8: "hexahedron"},
    }
    known = names[dim]
    if len(shape) != 2 or shape[1] not in known or not shape[0]:
        needed = ", ".join(f"(C, {count}) for {name} cells" for count, name in known.items())
        raise ValueError(f"Mesh: cells of shape {shape}; needed at least one cell, as {needed}, or a mapping {{type: cells}}")
    return known[shape[1]]
