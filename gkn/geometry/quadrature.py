"""Quadrature weights of points without cells."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from gkn.geometry.search import sizes

Array = NDArray[Any]

_MOST = 300_000  # points that are still triangulated
_LONGEST = 7.0  # longest edge of a simplex that is kept, relative to the spacing of the points at its corners
_ON_CIRCLE = 1e-6  # relative error of the in-circle test up to which four points lie on one circle
_BALL = {1: 2.0, 2: math.pi, 3: 4 * math.pi / 3}  # measure of the unit ball


def point_weights(points: Float[Tensor, "K d"]) -> Float[Tensor, " K"]:
    """Return the share of each point in the region the points fill.

    1-D: half the gaps to the neighbours. 2-D and 3-D: its share of the simplices of a Delaunay triangulation, without those
    much longer than the spacing of the points, so that holes and notches stay empty. If the points cannot be triangulated, or
    are more than 300,000: the volume of a ball through the nearest neighbours. Points that coincide share their weight.
    """
    low, high = points.amin(0), points.amax(0)
    # Computed in a unit that is a power of two: the same points in another such unit get the same weights to the last bit.
    unit = 2.0 ** math.frexp(float((high - low).max()))[1]
    x, place, count = np.unique(((points - low) / unit).numpy(), axis=0, return_inverse=True, return_counts=True)
    if len(x) == 1:
        return torch.full((len(points),), 1 / len(points), dtype=torch.float64)
    weights = _intervals(x) if x.shape[1] == 1 else _triangulated(x)
    if weights is None:
        weights = _balls(x)
    return torch.from_numpy((weights / count)[place.reshape(-1)]) * math.prod([unit] * x.shape[1])


def simplex_quadrature(corners: Float[Tensor, "S m1 d"], measures: Float[Tensor, " S"]) -> tuple[Tensor, Tensor]:
    """Return points and weights that integrate quadratic functions on simplices exactly: as many as there are corners."""
    m = corners.shape[1] - 1
    near = (1 + m / math.sqrt(m + 2)) / (m + 1)  # barycentric coordinate of a point to its own corner
    far = (1 - near) / m
    points = far * corners.sum(1, keepdim=True) + (near - far) * corners
    return points.flatten(0, 1), (measures / (m + 1)).repeat_interleave(m + 1)


def cloud_quadrature(points: Float[Tensor, "K d"]) -> tuple[Tensor, Tensor] | None:
    """Return a quadrature on the simplices between points; None if the points have none, or lie on a line."""
    low, high = points.amin(0), points.amax(0)
    unit = 2.0 ** math.frexp(float((high - low).max()))[1]
    x = np.unique(((points - low) / unit).numpy(), axis=0)
    if x.shape[1] == 1:
        return None
    found = _simplices(x)
    if found is None:
        return None
    cells, volumes, _, _ = found
    at, weights = simplex_quadrature(torch.from_numpy(x[cells[volumes > 0]]), torch.from_numpy(volumes[volumes > 0]))
    return at * unit + low, weights * math.prod([unit] * x.shape[1])


def _intervals(x: Array) -> Array:
    """Return half the gaps between neighbouring points, which are sorted."""
    gaps = np.diff(x[:, 0])
    weights = np.zeros(len(x))
    weights[:-1] += gaps / 2
    weights[1:] += gaps / 2
    return weights


def _simplices(x: Array) -> tuple[Array, Array, Array, Array] | None:
    """Return the simplices of a triangulation, their volumes, neighbours, and which are kept; None if there is none.

    Simplices that are left out have a volume of 0.
    """
    from scipy.spatial import Delaunay, QhullError

    dim = x.shape[1]
    if not dim < len(x) <= _MOST:
        return None
    try:
        found = Delaunay(x)
    except (QhullError, ValueError):
        return None
    cells: Array = found.simplices
    corners = x[cells]
    spacing = _neighbours(x, 2 * dim + 1)
    pairs = [(i, j) for i in range(dim + 1) for j in range(i)]
    longest = np.max([np.sqrt(((corners[:, i] - corners[:, j]) ** 2).sum(1)) for i, j in pairs], 0)
    kept = longest <= _LONGEST * spacing[cells].max(1)
    return cells, np.where(kept, np.abs(sizes(corners)), 0.0), found.neighbors, kept


def _triangulated(x: Array) -> Array | None:
    """Return the shares of the simplices of a triangulation; None if there is no triangulation."""
    found = _simplices(x)
    if found is None:
        return None
    (cells, volumes, neighbors, kept), dim = found, x.shape[1]
    shares = np.repeat(volumes[:, None] / (dim + 1), dim + 1, 1)
    if dim == 2:
        shares = _either_diagonal(x, cells, np.where(kept[:, None], neighbors, -1), kept, volumes, shares)
    weights = np.bincount(cells.reshape(-1), shares.reshape(-1), len(x))
    if not volumes.sum() > 1e-12 * np.prod(x.max(0)) or not weights.any():
        return None
    weights[weights == 0] = np.median(weights[weights > 0])  # a point apart from all others
    return weights


def _either_diagonal(x: Array, cells: Array, neighbors: Array, kept: Array, areas: Array, thirds: Array) -> Array:
    """Return the share (C, 3) of each corner in each triangle: a third, as it integrates linear functions exactly.

    Two triangles whose four corners lie on one circle could have been cut along the other diagonal as well. For points on a
    lattice rounding decides that, and the unit of length with it. There the mean of both ways is taken: a quarter of a
    rectangle for each corner. Where more than four points lie on one circle, thirds stay.
    """
    shares = thirds.copy()
    first, i = np.nonzero((neighbors > np.arange(len(cells))[:, None]) & kept[np.maximum(neighbors, 0)])
    second = neighbors[first, i]
    j = (neighbors[second] == first[:, None]).argmax(1)
    opposite = cells[second, j]
    a, b, c = (x[cells[first, k]] for k in range(3))
    # The determinant of the in-circle test, relative to its terms: 0 if the fourth point lies on the circle of the others.
    rows = np.stack([a, b, c], 1) - x[opposite][:, None]
    squares = (rows**2).sum(2)
    cross = np.stack([rows[:, k - 2, 0] * rows[:, k - 1, 1] - rows[:, k - 2, 1] * rows[:, k - 1, 0] for k in range(3)], 1)
    terms = squares * cross
    even = np.abs(terms.sum(1)) <= _ON_CIRCLE * np.abs(terms).max(1)
    first, i, second, j, opposite = (each[even] for each in (first, i, second, j, opposite))
    count = np.bincount(np.concatenate([first, second]), minlength=len(cells))
    crowded = count > 1
    crowded[first] |= count[second] > 1
    crowded[second] |= count[first] > 1
    alone = ~crowded[first] & ~crowded[second]
    first, i, second, j, opposite = (each[alone] for each in (first, i, second, j, opposite))
    whole = areas[first] + areas[second]
    for end in ((i + 1) % 3, (i + 2) % 3):  # the ends of the common edge; what they have in both triangles counts in the first
        other = np.abs(sizes(np.stack([x[cells[first, i]], x[opposite], x[cells[first, end]]], 1)))
        shares[first, end] = (whole + other) / 6
        shares[second, _place(cells[second], cells[first, end])] = 0.0
    shares[first, i] = (whole + areas[first]) / 6
    shares[second, j] = (whole + areas[second]) / 6
    return shares


def _place(rows: Array, wanted: Array) -> Array:
    """Return the position of a number in each row."""
    found: Array = (rows == wanted[:, None]).argmax(1)
    return found


def _balls(x: Array) -> Array:
    """Return the volume of a ball about each point, from its mean distance to a few neighbours.

    The factor makes the volume right on average for random points, where neighbour j is at a distance of about j^(1/d).
    """
    count = min(2 * x.shape[1], len(x) - 1)
    radius = _neighbours(x, count) / float((np.arange(1, count + 1) ** (1 / x.shape[1])).mean())
    volumes: Array = _BALL[x.shape[1]] * np.prod([radius] * x.shape[1], 0)
    return volumes


def _neighbours(x: Array, count: int) -> Array:
    """Return the mean distance of each point to its `count` nearest neighbours."""
    from scipy.spatial import cKDTree

    mean: Array = cKDTree(x).query(x, min(count, len(x) - 1) + 1)[0][:, 1:].mean(1)
    return mean
