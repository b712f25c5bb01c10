"""Domains: K points of D with quadrature weights. Grids of [0,1]^d, triangle meshes, and clouds of points."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any, TypeAlias

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

from gkn.system.checks import check_finite, check_inside, real

Data: TypeAlias = float | Tensor | NDArray[Any] | Callable[[Tensor], Tensor]
"""Values of a function on a domain: a constant, an array whose last axis is the points, or a function of (K, d) points."""


@dataclass(frozen=True)
class Grid:
    """The uniform grid of [0,1]^dim with `size` nodes a side, the boundary included: node i of an axis is i/(size-1).

    Functions on it are arrays whose last axis runs over the nodes in C order, the first coordinate slowest.
    """

    size: int
    dim: int = 2

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", operator.index(self.size))
        object.__setattr__(self, "dim", operator.index(self.dim))
        if self.dim not in (1, 2, 3):
            raise ValueError(f"Grid(size={self.size}, dim={self.dim}): dim must be 1, 2 or 3")
        if self.size**self.dim > 2**40:
            raise ValueError(
                f"Grid(size={self.size}, dim={self.dim}): {self.size**self.dim:.1e} nodes are too many for any machine"
            )
        if self.size < 2:
            raise ValueError(f"Grid(size={self.size}): a grid has its boundary, so at least 2 nodes a side")

    def __len__(self) -> int:
        return int(self.size**self.dim)

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.size,) * self.dim

    @property
    def spacing(self) -> float:
        return 1.0 / (self.size - 1)

    @property
    def measure(self) -> float:
        return 1.0

    @cached_property
    def axis(self) -> Float[Tensor, " s"]:
        # i/(s-1) and not linspace: shared nodes of two grids are then the same floating-point numbers.
        return torch.arange(self.size, dtype=torch.float64) / (self.size - 1)

    @cached_property
    def points(self) -> Float[Tensor, "K d"]:
        return torch.stack(torch.meshgrid([self.axis] * self.dim, indexing="ij"), -1).reshape(-1, self.dim)

    @cached_property
    def weights(self) -> Float[Tensor, " K"]:
        """The trapezoid rule."""
        one = torch.full((self.size,), self.spacing, dtype=torch.float64)
        one[[0, -1]] /= 2
        return reduce(torch.kron, [one] * self.dim)

    @cached_property
    def boundary(self) -> Bool[Tensor, " K"]:
        return ((self.points == 0) | (self.points == 1)).any(-1)

    def contains(self, points: Float[Tensor, "P d"], tolerance: float = 1e-12) -> Bool[Tensor, " P"]:
        return ((points >= -tolerance) & (points <= 1 + tolerance)).all(-1)

    def stride(self, k: int) -> Int[Tensor, " kept"]:
        """Which nodes of this grid `every(k)` keeps."""
        coarse = self.every(k)
        kept = torch.arange(coarse.size) * k
        index = torch.zeros(coarse.shape, dtype=torch.long)
        for axis in range(self.dim):
            index = index * self.size + kept.reshape([-1 if i == axis else 1 for i in range(self.dim)])
        return index.reshape(-1)

    def every(self, k: int) -> Grid:
        """Every k-th node of each axis, both ends kept: 241 -> 121, 61, 31, 16."""
        if k < 1 or (self.size - 1) % k:
            strides = [str(i) for i in range(1, self.size) if (self.size - 1) % i == 0]
            raise ValueError(
                f"Grid.every({k}): the stride must divide size-1 = {self.size - 1}; use one of {', '.join(strides)}"
            )
        return Grid((self.size - 1) // k + 1, self.dim)

    def refined(self) -> Grid:
        """Half the spacing; every node is kept."""
        return Grid(2 * self.size - 1, self.dim)


@dataclass(frozen=True, eq=False)
class Mesh:
    """A triangle mesh in the plane. Every cell is counter-clockwise, and every point belongs to a cell.

    `weights` integrates the piecewise linear interpolant exactly, so its sum is the area.
    """

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

    def __len__(self) -> int:
        return len(self.points)

    @property
    def dim(self) -> int:
        return 2

    @cached_property
    def areas(self) -> Float[Tensor, " C"]:
        """Signed areas of the cells."""
        p, q, r = self.points[self.cells].unbind(1)
        return ((q - p)[:, 0] * (r - p)[:, 1] - (q - p)[:, 1] * (r - p)[:, 0]) / 2

    @property
    def measure(self) -> float:
        return float(self.areas.sum())

    @cached_property
    def weights(self) -> Float[Tensor, " K"]:
        return _shares(self.cells.numpy(), self.areas, len(self))

    @cached_property
    def _edges(self) -> tuple[Int[Tensor, "E 2"], Int[Tensor, " E"]]:
        """The edges, and to how many cells each belongs."""
        sides = self.cells[:, [[0, 1], [1, 2], [2, 0]]].reshape(-1, 2).sort(1).values
        edges, count = torch.unique(sides, dim=0, return_counts=True)
        return edges, count

    @cached_property
    def boundary(self) -> Bool[Tensor, " K"]:
        """The ends of the edges that belong to one cell only."""
        edges, count = self._edges
        mask = torch.zeros(len(self), dtype=torch.bool)
        mask[edges[count == 1].reshape(-1)] = True
        return mask

    def contains(self, points: Float[Tensor, "P 2"], tolerance: float = 1e-12) -> Bool[Tensor, " P"]:
        return self.locate(points, tolerance)[0] >= 0

    def locate(self, points: Float[Tensor, "P 2"], tolerance: float = 1e-12) -> tuple[Int[Tensor, " P"], Float[Tensor, "P 3"]]:
        """The cell each point lies in, or -1, and its barycentric coordinates there."""
        from scipy.spatial import cKDTree

        corners = self.points[self.cells]
        centres = corners.mean(1)
        # A cell that holds a point has its centre no farther from it than the farthest of all corners from its centre.
        reach = float((corners - centres[:, None]).norm(dim=-1).max()) * (1 + 1e-9)
        near = cKDTree(centres.numpy()).query_ball_point(points.numpy(), reach)
        counts = torch.tensor([len(cells) for cells in near], dtype=torch.long)
        point = torch.arange(len(points)).repeat_interleave(counts)
        cell = torch.from_numpy(
            np.concatenate([np.asarray(cells, dtype=np.int64) for cells in near] or [np.empty(0, np.int64)])
        )
        x, (p, q, r) = points[point], corners[cell].unbind(1)

        def twice(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
            return (b - a)[:, 0] * (c - a)[:, 1] - (b - a)[:, 1] * (c - a)[:, 0]

        area = torch.stack([twice(q, r, x), twice(r, p, x), twice(p, q, x)], 1) / (2 * self.areas[cell, None])
        inside = (area >= -tolerance).all(1)
        home, share = torch.full((len(points),), -1), torch.zeros(len(points), 3, dtype=torch.float64)
        home[point[inside]] = cell[inside]
        share[point[inside]] = area[inside]
        return home, share

    def refined(self) -> Mesh:
        """Every cell cut into four; the points are kept and the midpoints of the edges come after them."""
        edges, _ = self._edges
        sides = self.cells[:, [[1, 2], [2, 0], [0, 1]]].sort(-1).values
        place = torch.searchsorted(edges[:, 0] * len(self) + edges[:, 1], sides[..., 0] * len(self) + sides[..., 1])
        (i, j, k), (jk, ki, ij) = self.cells.unbind(1), (place + len(self)).unbind(1)
        cells = torch.cat([torch.stack(t, 1) for t in ((i, ij, ki), (j, jk, ij), (k, ki, jk), (ij, jk, ki))])
        return Mesh(torch.cat([self.points, self.points[edges].mean(1)]), cells)

    @staticmethod
    def repaired(points: Any, cells: Any) -> tuple[Mesh, Int[Tensor, " K"]]:
        """Turn clockwise cells round, drop flat cells and unused points. Also returns which points were kept."""
        points, cells = real(points, "points"), _indices(cells, len(points))
        p, q, r = points[cells].unbind(1)
        area = (q - p)[:, 0] * (r - p)[:, 1] - (q - p)[:, 1] * (r - p)[:, 0]
        cells = torch.where(area[:, None] < 0, cells[:, [0, 2, 1]], cells)[area != 0]
        kept, flat = torch.unique(cells, return_inverse=True)
        return Mesh(points[kept], flat.reshape(-1, 3)), kept

    @staticmethod
    def square(h: float) -> Mesh:
        """An unstructured mesh of [0,1]^2 with edges of about length h."""
        return Mesh.holes(h, ())

    @staticmethod
    def holes(h: float, holes: Sequence[tuple[float, float, float]] = ((0.3, 0.35, 0.12), (0.65, 0.7, 0.15))) -> Mesh:
        """[0,1]^2 less the disks (x, y, radius) of `holes`, which must lie inside and apart."""
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
        """[0,1]^2 less its upper right quarter."""

        def outline(geometry: Any) -> None:
            corners = [(0, 0), (1, 0), (1, 0.5), (0.5, 0.5), (0.5, 1), (0, 1)]
            ids = [geometry.AppendPoint(*corner) for corner in corners]
            for i, j in zip(ids, ids[1:] + ids[:1], strict=True):
                geometry.Append(["line", i, j])

        return _netgen(outline, h)

    @staticmethod
    def disk(h: float) -> Mesh:
        """The unit disk round the origin: a polygon whose corners lie on the circle."""
        return _netgen(lambda geometry: geometry.AddCircle((0, 0), 1), h)


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


@dataclass(frozen=True, eq=False)
class Cloud:
    """Points of D and nothing else. Without `weights` every point counts 1/K; without `boundary` none is on it."""

    points: Tensor  # (K, d), float64
    weights: Tensor = None  # type: ignore[assignment]  # (K,)
    boundary: Tensor = None  # type: ignore[assignment]  # (K,), bool

    def __post_init__(self) -> None:
        points = real(self.points, "points").contiguous()
        if points.ndim != 2 or points.shape[1] not in (1, 2, 3) or not len(points):
            raise ValueError(f"Cloud: points of shape {tuple(points.shape)}; needed (K, d) with d = 1, 2 or 3 and K >= 1")
        check_finite(points, "Cloud: points")
        K = len(points)
        weights = torch.full((K,), 1 / K, dtype=torch.float64) if self.weights is None else self.weights
        boundary = torch.zeros(K) if self.boundary is None else self.boundary
        weights, boundary = real(weights, "weights"), torch.as_tensor(boundary).bool()
        for name, given in (("weights", weights), ("boundary", boundary)):
            if given.shape != (K,):
                raise ValueError(f"Cloud: {name} of shape {tuple(given.shape)} for {K} points; needed ({K},)")
        check_finite(weights, "Cloud: weights")
        if (weights < 0).any():
            raise ValueError(f"Cloud: weight {int((weights < 0).nonzero()[0])} is negative; quadrature weights are >= 0")
        for name, value in (("points", points), ("weights", weights), ("boundary", boundary)):
            object.__setattr__(self, name, value)

    def __len__(self) -> int:
        return len(self.points)

    @property
    def dim(self) -> int:
        return int(self.points.shape[1])

    @property
    def measure(self) -> float:
        return float(self.weights.sum())

    def weighed(self) -> Cloud:
        """The same points with weights of their own: of a triangulation of them, each point has its share of the cells it is a
        corner of. Points that no triangulation can be made of, as those on a line in the plane, stay as they are."""
        from scipy.spatial import Delaunay, QhullError

        points = self.points.numpy()
        try:
            cells = _steps(points) if self.dim == 1 else Delaunay(points).simplices
        except (QhullError, ValueError):
            return self
        corners = torch.from_numpy(points[cells])
        sizes = torch.linalg.det(corners[:, 1:] - corners[:, :1]).abs() / math.factorial(self.dim)
        weights = _shares(cells, sizes, len(self))
        return Cloud(self.points, weights, self.boundary) if float(weights.sum()) > 0 else self


def _shares(cells: np.ndarray, sizes: Tensor, points: int) -> Float[Tensor, " K"]:
    """Each corner's share of the cells it belongs to."""
    corners = cells.shape[1]
    each = (sizes / corners).repeat_interleave(corners).numpy()
    return torch.from_numpy(np.bincount(cells.reshape(-1), each, minlength=points)).double()  # of no cells it counts integers


def _steps(points: np.ndarray) -> np.ndarray:
    """From each point of a line to the next."""
    order = np.argsort(points[:, 0], kind="stable")
    return np.stack([order[:-1], order[1:]], 1)


Domain: TypeAlias = Grid | Mesh | Cloud


def interpolate(domain: Domain, given: Tensor, points: Tensor) -> Float[Tensor, "P c"]:
    """Fields (K, c) of a domain at any of its points (P, d): multilinear on a grid, linear in the cells of a mesh, and of the
    nearest point of a cloud. At a node it is the value there."""
    given, points = real(given, "fields"), real(points, "points")
    if given.ndim != 2 or len(given) != len(domain) or points.ndim != 2 or points.shape[1] != domain.dim:
        raise ValueError(
            f"interpolate: fields {tuple(given.shape)} at points {tuple(points.shape)}; needed ({len(domain)}, c) and "
            f"(P, {domain.dim})"
        )
    check_finite(points, "interpolate: points")
    if isinstance(domain, Cloud):
        from scipy.spatial import cKDTree

        low, high = domain.points.amin(0), domain.points.amax(0)
        near = points.clamp(2 * low - high - 1, 2 * high - low + 1)  # far points are moved near, where squares do not overflow
        return given[torch.from_numpy(cKDTree(domain.points.numpy()).query(near.numpy())[1]).long()]
    if isinstance(domain, Mesh):
        low, high = domain.points.amin(0), domain.points.amax(0)
        cell, share = domain.locate(points.clamp(2 * low - high, 2 * high - low))
        check_inside(cell >= 0, points, "interpolate", "the domain")
        return (share[..., None] * given[domain.cells[cell]]).sum(1)
    check_inside(domain.contains(points), points, "interpolate", "the domain")
    place = points.clamp(0, 1) * (domain.size - 1)
    near = place.round()
    place = torch.where((place - near).abs() < 1e-9, near, place)  # a node is a node, however it was rounded
    low = place.floor().clamp(max=domain.size - 2)
    share, low = place - low, low.long()
    out = given.new_zeros(len(points), given.shape[1])
    for corner in range(2**domain.dim):
        weight, index = torch.ones(len(points), dtype=torch.float64), torch.zeros(len(points), dtype=torch.long)
        for axis in range(domain.dim):
            up = corner >> axis & 1
            weight = weight * (share[:, axis] if up else 1 - share[:, axis])
            index = index * domain.size + low[:, axis] + up
        out += weight[:, None] * given[index]
    return out


def values(domain: Domain, data: Data, name: str) -> Float[Tensor, "*batch K"]:
    """`data` on the points of `domain`, float64, finite."""
    out = at_points(data, domain.points, name)
    check_finite(out, name)
    return out


def boundary_values(domain: Domain, g: Data) -> Float[Tensor, "*batch K"]:
    """g where it counts, on the boundary, and 0 elsewhere."""
    edge = domain.boundary
    if callable(g):
        given = at_points(g, domain.points[edge], "g")
    else:
        given = at_points(g, domain.points, "g")
        given = given[..., edge.to(given.device)]
    check_finite(given, "g")
    out = given.new_zeros(*given.shape[:-1], len(domain))
    out[..., edge.to(given.device)] = given
    return out


def at_points(data: Data, points: Float[Tensor, "P d"], name: str) -> Float[Tensor, "*batch P"]:
    """A number, an array, or a function, as an array whose last axis is the points."""
    out = real(data(points) if callable(data) else data, name)
    if out.ndim == 0:
        out = out.expand(len(points))
    if out.shape[-1] != len(points):
        raise ValueError(
            f"{name} of shape {tuple(out.shape)} on a domain of {len(points)} points; the last axis must be the points"
        )
    return out


def flat_batch(*arrays: Tensor) -> tuple[tuple[int, ...], list[Tensor]]:
    """Broadcast all axes but the last against each other, and make them one: the batch shape, and (n, K_i) arrays."""
    batch = tuple(np.broadcast_shapes(*(array.shape[:-1] for array in arrays)))
    return batch, [array.expand(*batch, array.shape[-1]).reshape(-1, array.shape[-1]) for array in arrays]
