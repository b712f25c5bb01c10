"""Mesh: cells of any kind, in one, two or three dimensions, surfaces and curves included."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

from gkn.geometry import cells as kinds
from gkn.geometry import shapes
from gkn.geometry.boundary import FacetBoundary
from gkn.geometry.domain import Domain, is_identity, map_points
from gkn.geometry.quadrature import simplex_quadrature
from gkn.geometry.search import Simplices, sizes
from gkn.geometry.topology import Facets, orient, row_keys
from gkn.system.checks import check_finite, check_inside, real

Array = NDArray[Any]

_FLAT = 1e-14  # measure of a flat cell, relative to the power of its extent
_GAP = 1e-6  # least barycentric coordinate, with the sign changed, of a point that still belongs to a cell
_OFF_SURFACE = 1e-3  # largest distance of a point from a surface or curve it is projected on, relative to the scale
_SELF = 1e-12  # points nearer than this, relative to the scale, are the same


@dataclass(frozen=True, eq=False, init=False)
class Mesh(Domain):
    """Points (K, d) and cells, in dimension d = 1, 2 or 3.

    points   (K, d), float64; every point belongs to a cell
    cells    (C, k) indices of points: intervals (k = 2), triangles (3), quads (4 in the plane), tetrahedra (4 in space),
             hexahedra (8); or {type: (C, nodes)} with the names and node order of meshio, second-order types included.
             Triangles and quads in space are a surface, lines in the plane and in space a curve

    Cells are turned round if needed: in the end they are counter-clockwise or positive, and the normals of a closed surface
    point outwards. Afterwards `cells` is the array of the only block of linear cells, or else `simplices`.

    blocks      {type: (C, nodes)}: the cells
    simplices   (S, m + 1): the cells split into intervals, triangles or tetrahedra by their vertices

    `weights` gives every node of a cell the same share of the measure of the cell. On simplices it integrates the piecewise
    linear interpolant exactly. Cells of second order are used by their vertices; their other nodes have weights and values.
    """

    kind: ClassVar[str] = "mesh"
    points: Tensor  # (K, d), float64
    cells: Tensor  # (C, k)
    blocks: dict[str, Tensor] = field(repr=False)
    simplices: Tensor = field(repr=False)  # (S, m + 1)
    _owner: Array = field(repr=False)  # (S,), the cell of each simplex

    def __init__(self, points: Any, cells: Any) -> None:
        points = _points(points)
        self._set(points, _oriented(points, kinds.blocks_of(cells, points)))
        self._check()

    def _set(self, points: Tensor, blocks: dict[str, Tensor]) -> None:
        corners, owner = kinds.split(points.numpy(), blocks)
        simplices = torch.from_numpy(corners)
        linear = len(blocks) == 1 and kinds.TYPES[next(iter(blocks))].linear
        for name, value in (
            ("points", points),
            ("blocks", blocks),
            ("simplices", simplices),
            ("_owner", owner),
            ("cells", next(iter(blocks.values())) if linear else simplices),
        ):
            object.__setattr__(self, name, value)

    def _check(self) -> None:
        flat = np.flatnonzero(_flat(self.points.numpy(), self.blocks, self._measures))
        if len(flat):
            raise ValueError(
                f"Mesh: {len(flat)} of {len(self._measures)} cells are flat or not finite, the first is cell {flat[0]} with "
                f"measure {self._measures[flat[0]]:.3g}; Mesh.repaired(points, cells) drops them"
            )
        used = torch.zeros(len(self), dtype=torch.bool)
        for block in self.blocks.values():
            used[block.reshape(-1)] = True
        if not used.all():
            raise ValueError(
                f"Mesh: {int((~used).sum())} of {len(self)} points belong to no cell, the first is point "
                f"{int((~used).nonzero()[0])}; Mesh.repaired(points, cells) drops them"
            )
        # Neighbours run through their common facet in opposite directions; cells that overlap, in the same.
        overlap = self._facets.overlap() if self.measure_dim == self.dim else None
        if overlap is not None:
            names = ("point {}", "the edge from point {} to point {}", "the face of points {}, {} and {}")
            where = names[len(overlap) - 1].format(*overlap)
            raise ValueError(f"Mesh: two cells lie on the same side of {where}: they overlap")

    # --- measures

    @property
    def dim(self) -> int:
        return int(self.points.shape[1])

    @property
    def measure_dim(self) -> int:
        return int(self.simplices.shape[1]) - 1

    @cached_property
    def areas(self) -> Float[Tensor, " S"]:
        """Lengths, areas or volumes of the simplices."""
        return torch.from_numpy(sizes(self.points.numpy()[self.simplices.numpy()]))

    @cached_property
    def _measures(self) -> Array:
        """Measures of the cells, all blocks in turn."""
        count = sum(map(len, self.blocks.values()))
        return self.areas.numpy() if len(self.areas) == count else np.bincount(self._owner, self.areas.numpy(), count)

    @property
    def measure(self) -> float:
        return float(self.areas.sum())

    @cached_property
    def weights(self) -> Float[Tensor, " K"]:  # type: ignore[override]
        parts = np.split(self._measures, np.cumsum([len(block) for block in self.blocks.values()])[:-1])
        shares = [np.repeat(part / b.shape[1], b.shape[1]) for part, b in zip(parts, self.blocks.values(), strict=True)]
        return torch.from_numpy(np.bincount(self._corners.numpy(), np.concatenate(shares), minlength=len(self)))

    def fine_quadrature(self, length: float) -> tuple[Tensor, Tensor]:
        return simplex_quadrature(self.points[self.simplices], self.areas)

    @property
    def _corners(self) -> Int[Tensor, " N"]:
        """Nodes of all cells, one after the other."""
        return torch.cat([block.reshape(-1) for block in self.blocks.values()])

    def normals(self) -> Float[Tensor, "K 3"] | None:
        if (self.measure_dim, self.dim) != (2, 3):
            return None
        p, q, r = self.points[self.simplices].unbind(1)
        of_cells = np.zeros((len(self._measures), 3))
        np.add.at(of_cells, self._owner, torch.linalg.cross(q - p, r - p).numpy())
        out, start = np.zeros((len(self), 3)), 0
        for block in self.blocks.values():
            for column in block.numpy().T:
                np.add.at(out, column, of_cells[start : start + len(block)])
            start += len(block)
        length = np.sqrt((out**2).sum(1, keepdims=True))
        return torch.from_numpy(out / np.maximum(length, np.finfo(float).tiny))

    # --- boundary

    @cached_property
    def _facets(self) -> Facets:
        return Facets.of(self.simplices.numpy(), len(self))

    @cached_property
    def boundary(self) -> Bool[Tensor, " K"]:  # type: ignore[override]
        """True for the nodes of facets that belong to one cell only."""
        rim = self._facets.rows[self._facets.boundary()]
        mask = torch.zeros(len(self), dtype=torch.bool)
        mask[rim.reshape(-1)] = True
        for name, block in self.blocks.items():
            kind = kinds.TYPES[name]
            for facet in kind.facets if not kind.linear and kind.dim > 1 else ():
                # All triangles of a facet are on the boundary or none, so that one of them shows whether it is.
                rows = kinds.fan(block.numpy()[:, facet])[:, 0]
                keys = row_keys(np.sort(np.concatenate([rim, rows]), 1), len(self))
                outer = block[np.isin(keys[len(rim) :], keys[: len(rim)])]
                mask[outer[:, kind.facet_nodes(facet)].reshape(-1)] = True
        return mask

    def distance(self, at: Tensor | None = None) -> tuple[Float[Tensor, " P"], Float[Tensor, "P d"]] | None:
        return None if self._rim is None else self._rim.distance(self.query(at, "distance"))

    @cached_property
    def _rim(self) -> FacetBoundary | None:
        which = self._facets.boundary()
        if not len(which):
            return None
        nodes = self.boundary.nonzero()[:, 0].numpy()
        return FacetBoundary(self.points.numpy(), self._facets.rows[which], self._facets.opposite[which], nodes, self.scale)

    # --- storage

    def arrays(self) -> dict[str, Tensor]:
        if self.dim == 2 and [*self.blocks] == ["triangle"]:
            return {"points": self.points, "cells": self.cells}
        return self.general_arrays()

    def general_arrays(self) -> dict[str, Tensor]:
        """Return the form of `arrays` that fits any mesh: all nodes of all cells, and the VTK number of each cell's type."""
        types = [torch.full((len(block),), kinds.TYPES[name].vtk) for name, block in self.blocks.items()]
        return {"points": self.points, "corners": self._corners, "types": torch.cat(types)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Tensor], numbers: Mapping[str, int]) -> Mesh:
        if "cells" in arrays:
            return Mesh(arrays["points"], arrays["cells"])
        corners, types = (np.asarray(arrays[name]) for name in ("corners", "types"))
        unknown = set(types.tolist()) - set(kinds.BY_VTK)
        if unknown:
            known = ", ".join(map(str, kinds.BY_VTK))
            raise ValueError(f"Mesh: cells of VTK type {min(unknown)} are not known; use one of {known}")
        nodes = np.zeros(max(kinds.BY_VTK) + 1, dtype=int)
        nodes[[*kinds.BY_VTK]] = [len(kind.nodes) for kind in kinds.BY_VTK.values()]
        end = np.cumsum(nodes[types])
        if not len(types) or end[-1] != len(corners):
            raise ValueError(f"Mesh: {len(corners)} corners for {len(types)} cells of {int(end[-1]) if len(end) else 0} nodes")
        blocks = {}
        for vtk in dict.fromkeys(types.tolist()):
            rows = np.flatnonzero(types == vtk)
            blocks[kinds.BY_VTK[vtk].name] = corners[(end[rows] - nodes[vtk])[:, None] + np.arange(nodes[vtk])]
        return Mesh(arrays["points"], blocks)

    def mapped(self, shift: Tensor, scale: float) -> Mesh:
        if is_identity(shift, scale):
            return self
        out = object.__new__(Mesh)
        for name in ("blocks", "simplices", "_owner", "cells"):
            object.__setattr__(out, name, getattr(self, name))
        object.__setattr__(out, "points", map_points(self.points, shift, scale))
        for name in ("_facets", "boundary"):  # these depend on the cells only
            out.__dict__[name] = getattr(self, name)
        return out

    # --- functions on the mesh

    @cached_property
    def _search(self) -> Simplices:
        return Simplices(self.points.numpy(), self.simplices.numpy())

    def contains(self, points: Float[Tensor, "P d"] | NDArray[Any], tolerance: float = 1e-12) -> Bool[Tensor, " P"]:
        """Return True for each point that lies in a cell."""
        return self.locate(torch.as_tensor(points), tolerance)[0] >= 0

    def locate(self, points: Float[Tensor, "P d"], tolerance: float = 1e-12) -> tuple[Int[Tensor, " P"], Float[Tensor, "P m"]]:
        """Return the simplex each point lies in, or -1, and its barycentric coordinates there.

        Points near a surface or a curve are projected on it.
        """
        if self.measure_dim == self.dim:
            home, share = self._search.containing(points.numpy(), tolerance)
        else:
            home, share, _, distance = self._search.nearest(points.numpy())
            home[distance > _OFF_SURFACE * self.scale] = -1
        return torch.from_numpy(home), torch.from_numpy(share)

    def _interpolate(self, values: Tensor, at: Tensor) -> Tensor:
        """Interpolate linearly in the simplices."""
        low, high = self.points.amin(0), self.points.amax(0)
        margin = 0.1 * self.scale + (high - low)
        near = at.clamp(low - margin, high + margin)  # far points are moved near, where squares do not overflow
        cell, share = self.locate(near, _GAP)
        node = self._middle_nodes(near)
        check_inside((cell >= 0) | (node >= 0), at, "interpolate", "the domain")
        at_vertex = share.amax(1) > 1 - 1e-12  # there the result is exactly the value of the vertex
        share = torch.where(at_vertex[:, None], (share > 0.5).double(), share)
        out = (share[..., None] * values[self.simplices[cell.clamp(min=0)]]).sum(1)
        return torch.where((node >= 0)[:, None], values[node.clamp(min=0)], out)

    def _middle_nodes(self, at: Float[Tensor, "P d"]) -> Int[Tensor, " P"]:
        """Return the node that is no vertex of a simplex and lies at each point, or -1."""
        from scipy.spatial import cKDTree

        vertex = torch.zeros(len(self), dtype=torch.bool)
        vertex[self.simplices.reshape(-1)] = True
        middle = (~vertex).nonzero()[:, 0]
        if not len(middle):
            return torch.full((len(at),), -1)
        tree = cKDTree(self.points[middle].numpy())
        found = torch.from_numpy(tree.query(at.numpy(), distance_upper_bound=_SELF * self.scale)[1])
        return torch.cat([middle, torch.tensor([-1])])[found]  # the tree answers with their number if none is near

    def cell_blocks(self) -> list[tuple[str, NDArray[Any]]]:
        return [(name, block.numpy()) for name, block in self.blocks.items()]

    def draw(self, axis: Any, function: NDArray[Any], **style: Any) -> Any:
        from gkn.geometry.draw import draw_mesh

        return draw_mesh(axis, self, function, **style)

    def refined(self) -> Mesh:
        """Return the mesh with every triangle cut into four. The midpoints of the edges come after the points."""
        if [*self.blocks] != ["triangle"]:
            raise ValueError(f"Mesh.refined: only triangles can be cut; this mesh has {', '.join(self.blocks)} cells")
        sides = self.cells[:, [[1, 2], [2, 0], [0, 1]]].sort(-1).values
        edges, place = torch.unique(sides[..., 0] * len(self) + sides[..., 1], return_inverse=True)
        ends = torch.stack([edges // len(self), edges % len(self)], 1)
        (i, j, k), (jk, ki, ij) = self.cells.unbind(1), (place + len(self)).unbind(1)
        cells = torch.cat([torch.stack(t, 1) for t in ((i, ij, ki), (j, jk, ij), (k, ki, jk), (ij, jk, ki))])
        return Mesh(torch.cat([self.points, self.points[ends].mean(1)]), cells)

    @staticmethod
    def repaired(points: Any, cells: Any) -> tuple[Mesh, Int[Tensor, " K"]]:
        """Drop flat cells and unused points. Also return the indices of the points kept."""
        points = _points(points)
        blocks = kinds.blocks_of(cells, points)
        corners, owner = kinds.split(points.numpy(), blocks)
        measures = np.bincount(owner, sizes(points.numpy()[corners]), sum(map(len, blocks.values())))
        whole = torch.from_numpy(~_flat(points.numpy(), blocks, np.abs(measures))).split([len(b) for b in blocks.values()])
        left = {name: block[mask] for (name, block), mask in zip(blocks.items(), whole, strict=True)}
        kept, place = torch.unique(torch.cat([block.reshape(-1) for block in left.values()]), return_inverse=True)
        parts = place.split([block.numel() for block in left.values()])
        new = {name: part.reshape(block.shape) for (name, block), part in zip(left.items(), parts, strict=True)}
        return Mesh(points[kept], new), kept

    # --- named shapes

    @staticmethod
    def square(h: float) -> Mesh:
        """Mesh [0,1]^2 with edges of about length h."""
        return Mesh.holes(h, ())

    @staticmethod
    def holes(h: float, holes: Sequence[tuple[float, float, float]] = ((0.3, 0.35, 0.12), (0.65, 0.7, 0.15))) -> Mesh:
        """Mesh [0,1]^2 without the disks (x, y, radius) in `holes`, which must lie inside and apart."""
        return Mesh(*shapes.square_with_holes(h, holes))

    @staticmethod
    def l_shape(h: float) -> Mesh:
        """Mesh [0,1]^2 without its upper right quarter."""
        return Mesh(*shapes.l_shape(h))

    @staticmethod
    def disk(h: float) -> Mesh:
        """Mesh the unit disk around the origin, as a polygon whose corners lie on the circle."""
        return Mesh(*shapes.disk(h))

    @staticmethod
    def interval(h: float) -> Mesh:
        """Mesh [0, 1] with equal intervals of about length h."""
        return Mesh(*shapes.interval(h))

    @staticmethod
    def cube(h: float) -> Mesh:
        """Mesh [0,1]^3 with tetrahedra."""
        return Mesh(*shapes.cube(h))

    @staticmethod
    def ball(h: float) -> Mesh:
        """Mesh the unit ball around the origin with tetrahedra, as a polyhedron whose corners lie on the sphere."""
        return Mesh(*shapes.ball(h))


def _points(given: Any) -> Float[Tensor, "K d"]:
    points = real(given, "points").contiguous()
    if points.ndim != 2 or points.shape[1] not in (1, 2, 3):
        raise ValueError(f"Mesh: points of shape {tuple(points.shape)}; needed (K, d) with d = 1, 2 or 3")
    check_finite(points, "Mesh: points")
    return points


def _flat(points: Array, blocks: dict[str, Tensor], measures: Array) -> Array:
    """Return a mask of the cells whose measure is 0 or less to rounding, or not finite."""
    out, start = [], 0
    for name, block in blocks.items():
        corners = points[block.numpy()]
        extent = (corners.max(1) - corners.min(1)).max(1)
        part = measures[start : start + len(block)]
        with np.errstate(over="ignore"):
            least = _FLAT * np.prod([extent] * kinds.TYPES[name].dim, 0)
        out.append(~((part > least) & np.isfinite(part)))
        start += len(block)
    return np.concatenate(out)


def _oriented(points: Tensor, blocks: dict[str, Tensor]) -> dict[str, Tensor]:
    """Turn cells round that are clockwise or negative; on surfaces those that do not fit their neighbours."""
    x, dim = points.numpy(), kinds.TYPES[next(iter(blocks))].dim
    count = sum(map(len, blocks.values()))
    corners, owner = kinds.split(x, blocks)
    if dim == x.shape[1]:
        with np.errstate(all="ignore"):
            negative = np.bincount(owner, sizes(x[corners]), count) < 0
        return kinds.mirror_cells(blocks, negative) if negative.any() else blocks
    if dim == 1:
        return blocks
    facets = Facets.of(corners, len(x))
    wrong = orient(facets, owner, count)
    if wrong.any():
        blocks = kinds.mirror_cells(blocks, wrong)
        corners, owner = kinds.split(x, blocks)
    if (facets.count == 2).all():  # closed: the signed volume tells whether normals point outwards
        p, q, r = np.moveaxis(x[corners] - x.mean(0), 1, 0)
        if float((np.cross(p, q) * r).sum()) < 0:
            blocks = kinds.mirror_cells(blocks, np.ones(count, dtype=bool))
    return blocks
