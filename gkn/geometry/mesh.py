"""Mesh: triangles in the plane, and meshes of named shapes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

from gkn.geometry.cloud import corner_shares
from gkn.geometry.domain import Domain
from gkn.system.checks import check_finite, check_inside, real


@dataclass(frozen=True, eq=False)
class Mesh(Domain):
    """A triangle mesh in the plane. Every cell is counter-clockwise, and every point belongs to a cell.

    `weights` integrates the piecewise linear interpolant exactly, so its sum is the area.
    """

    kind: ClassVar[str] = "mesh"
    points: Tensor  # (K, 2), float64
    cells: Tensor  # (C, 3)

    def __post_init__(self) -> None:
        points = real(self.points, "points").contiguous()
        cells = _indices(self.cells, len(points))
        object.__setattr__(self, "points", points)
        object.__setattr__(self, "cells", cells)
        if points.ndim != 2 or points.shape[1] != 2:
            raise ValueError(f"Mesh: points of shape {tuple(points.shape)}; needed (K, 2)")
        check_finite(points, "Mesh: points")
        flat = (~((self.areas > 0) & torch.isfinite(self.areas))).nonzero()
        if len(flat):
            bad = int(flat[0])
            raise ValueError(
                f"Mesh: {len(flat)} of {len(cells)} cells are inverted or flat, the first is cell {bad} with signed area "
                f"{float(self.areas[bad]):.3g}; cells are counter-clockwise: Mesh.repaired(points, cells) turns them round"
            )
        used = torch.zeros(len(points), dtype=torch.bool)
        used[cells.reshape(-1)] = True
        if not used.all():
            raise ValueError(
                f"Mesh: {int((~used).sum())} of {len(points)} points belong to no cell, the first is point "
                f"{int((~used).nonzero()[0])}; Mesh.repaired(points, cells) drops them"
            )
        # Neighbours run through their common edge in opposite directions; cells that overlap, in the same.
        sides, count = torch.unique(self.cells[:, [[0, 1], [1, 2], [2, 0]]].reshape(-1, 2), dim=0, return_counts=True)
        if (count > 1).any():
            i, j = sides[count > 1][0].tolist()
            raise ValueError(f"Mesh: two cells lie on the same side of the edge from point {i} to point {j}: they overlap")

    @property
    def dim(self) -> int:
        return 2

    @cached_property
    def areas(self) -> Float[Tensor, " C"]:
        """Signed areas of the cells."""
        p, q, r = self.points[self.cells].unbind(1)
        return _twice_area(p, q, r) / 2

    @property
    def measure(self) -> float:
        return float(self.areas.sum())

    @cached_property
    def weights(self) -> Float[Tensor, " K"]:  # type: ignore[override]
        return corner_shares(self.cells.numpy(), self.areas, len(self))

    @cached_property
    def _edges(self) -> tuple[Int[Tensor, "E 2"], Int[Tensor, " E"]]:
        """Edges, and the number of cells each belongs to."""
        sides = self.cells[:, [[0, 1], [1, 2], [2, 0]]].reshape(-1, 2).sort(1).values
        edges, count = torch.unique(sides, dim=0, return_counts=True)
        return edges, count

    @cached_property
    def boundary(self) -> Bool[Tensor, " K"]:  # type: ignore[override]
        """True for the ends of edges that belong to one cell only."""
        edges, count = self._edges
        mask = torch.zeros(len(self), dtype=torch.bool)
        mask[edges[count == 1].reshape(-1)] = True
        return mask

    def arrays(self) -> dict[str, Tensor]:
        return {"points": self.points, "cells": self.cells}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Tensor], numbers: Mapping[str, int]) -> Mesh:
        return Mesh(arrays["points"], arrays["cells"])

    def contains(self, points: Float[Tensor, "P 2"], tolerance: float = 1e-12) -> Bool[Tensor, " P"]:
        """Return True for each point that lies in a cell."""
        return self.locate(points, tolerance)[0] >= 0

    def locate(self, points: Float[Tensor, "P 2"], tolerance: float = 1e-12) -> tuple[Int[Tensor, " P"], Float[Tensor, "P 3"]]:
        """Return the cell each point lies in, or -1, and its barycentric coordinates there."""
        from scipy.spatial import cKDTree

        corners = self.points[self.cells]
        centres = corners.mean(1)
        # The centre of the cell of a point is within `reach` of it: the largest distance of a corner from its centre.
        reach = float((corners - centres[:, None]).norm(dim=-1).max()) * (1 + 1e-9)
        near = cKDTree(centres.numpy()).query_ball_point(points.numpy(), reach)
        counts = torch.tensor([len(cells) for cells in near], dtype=torch.long)
        point = torch.arange(len(points)).repeat_interleave(counts)
        cell = torch.from_numpy(
            np.concatenate([np.asarray(cells, dtype=np.int64) for cells in near] or [np.empty(0, np.int64)])
        )
        x, (p, q, r) = points[point], corners[cell].unbind(1)
        area = torch.stack([_twice_area(q, r, x), _twice_area(r, p, x), _twice_area(p, q, x)], 1) / (2 * self.areas[cell, None])
        inside = (area >= -tolerance).all(1)
        home, share = torch.full((len(points),), -1), torch.zeros(len(points), 3, dtype=torch.float64)
        home[point[inside]] = cell[inside]
        share[point[inside]] = area[inside]
        return home, share

    def _interpolate(self, values: Tensor, at: Tensor) -> Tensor:
        """Interpolate linearly in the cells."""
        low, high = self.points.amin(0), self.points.amax(0)
        cell, share = self.locate(at.clamp(2 * low - high, 2 * high - low))
        check_inside(cell >= 0, at, "interpolate", "the domain")
        return (share[..., None] * values[self.cells[cell]]).sum(1)

    def cell_blocks(self) -> list[tuple[str, NDArray[Any]]]:
        return [("triangle", self.cells.numpy())]

    def draw(self, axis: Any, function: NDArray[Any], **style: Any) -> Any:
        from matplotlib.tri import Triangulation

        x, y = self.points.T.numpy()
        axis.margins(0)
        return axis.tripcolor(Triangulation(x, y, self.cells.numpy()), function, shading="gouraud", **style)

    def refined(self) -> Mesh:
        """Return the mesh with every cell cut into four. The midpoints of the edges come after the points, which are kept."""
        edges, _ = self._edges
        sides = self.cells[:, [[1, 2], [2, 0], [0, 1]]].sort(-1).values
        place = torch.searchsorted(edges[:, 0] * len(self) + edges[:, 1], sides[..., 0] * len(self) + sides[..., 1])
        (i, j, k), (jk, ki, ij) = self.cells.unbind(1), (place + len(self)).unbind(1)
        cells = torch.cat([torch.stack(t, 1) for t in ((i, ij, ki), (j, jk, ij), (k, ki, jk), (ij, jk, ki))])
        return Mesh(torch.cat([self.points, self.points[edges].mean(1)]), cells)

    @staticmethod
    def repaired(points: Any, cells: Any) -> tuple[Mesh, Int[Tensor, " K"]]:
        """Turn clockwise cells round, drop flat cells and unused points. Also return the indices of the points kept."""
        points, cells = real(points, "points"), _indices(cells, len(points))
        area = _twice_area(*points[cells].unbind(1))
        cells = torch.where(area[:, None] < 0, cells[:, [0, 2, 1]], cells)[area != 0]
        kept, flat = torch.unique(cells, return_inverse=True)
        return Mesh(points[kept], flat.reshape(-1, 3)), kept

    # --- named shapes

    @staticmethod
    def square(h: float) -> Mesh:
        """Mesh [0,1]^2 with edges of about length h."""
        return Mesh.holes(h, ())

    @staticmethod
    def holes(h: float, holes: Sequence[tuple[float, float, float]] = ((0.3, 0.35, 0.12), (0.65, 0.7, 0.15))) -> Mesh:
        """Mesh [0,1]^2 without the disks (x, y, radius) in `holes`, which must lie inside and apart."""
        for n, (x, y, radius) in enumerate(holes):
            if not (radius > 0 and radius < min(x, 1 - x) and radius < min(y, 1 - y)):
                raise ValueError(f"Mesh.holes: the disk ({x}, {y}, {radius}) must lie inside the square")
            for other in holes[:n]:
                if np.hypot(x - other[0], y - other[1]) <= radius + other[2]:
                    raise ValueError(f"Mesh.holes: the disks {other} and {(x, y, radius)} overlap")

        def outline(geometry: Any) -> None:
            geometry.AddRectangle((0, 0), (1, 1))
            for x, y, radius in holes:
                geometry.AddCircle((x, y), radius, leftdomain=0, rightdomain=1)

        return _netgen(outline, h)

    @staticmethod
    def l_shape(h: float) -> Mesh:
        """Mesh [0,1]^2 without its upper right quarter."""

        def outline(geometry: Any) -> None:
            corners = [(0, 0), (1, 0), (1, 0.5), (0.5, 0.5), (0.5, 1), (0, 1)]
            ids = [geometry.AppendPoint(*corner) for corner in corners]
            for i, j in zip(ids, ids[1:] + ids[:1], strict=True):
                geometry.Append(["line", i, j])

        return _netgen(outline, h)

    @staticmethod
    def disk(h: float) -> Mesh:
        """Mesh the unit disk around the origin, as a polygon whose corners lie on the circle."""
        return _netgen(lambda geometry: geometry.AddCircle((0, 0), 1), h)


def _twice_area(p: Tensor, q: Tensor, r: Tensor) -> Tensor:
    """Twice the signed areas of triangles with corners (C, 2) each; positive if counter-clockwise."""
    return (q - p)[:, 0] * (r - p)[:, 1] - (q - p)[:, 1] * (r - p)[:, 0]


def _indices(given: Any, count: int) -> Int[Tensor, "C 3"]:
    cells: Tensor = torch.as_tensor(given)
    if cells.dtype.is_floating_point or cells.dtype.is_complex or cells.dtype == torch.bool:
        raise ValueError(f"Mesh: cells are indices of points, but they came as {cells.dtype}; use integers")
    if cells.ndim != 2 or cells.shape[1] != 3 or not len(cells):
        raise ValueError(f"Mesh: cells of shape {tuple(cells.shape)}; needed (C, 3) with at least one triangle")
    if cells.min() < 0 or cells.max() >= count:
        raise ValueError(f"Mesh: cells name points {int(cells.min())} to {int(cells.max())}, there are only 0 to {count - 1}")
    return cells.long().contiguous()


def _netgen(outline: Callable[[Any], None], h: float) -> Mesh:
    if not 0 < h <= 1:
        raise ValueError(f"Mesh: edge length h = {h}; needed 0 < h <= 1")
    try:
        from netgen.geom2d import SplineGeometry
    except ImportError as error:
        raise ImportError("meshes of named shapes need netgen: pip install 'gkn[fem]'") from error
    geometry = SplineGeometry()
    outline(geometry)
    try:
        made = geometry.GenerateMesh(maxh=h, quad_dominated=False)
    except Exception as error:
        raise ValueError(f"Mesh: netgen cannot mesh this shape with h = {h}: {error}") from error
    points = np.array([point.p[:2] for point in made.Points()])
    cells = np.array([[vertex.nr - 1 for vertex in cell.vertices] for cell in made.Elements2D()])
    return Mesh(torch.from_numpy(points), torch.from_numpy(cells))
