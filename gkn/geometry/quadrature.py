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
_LONGEST = 5.0  # longest edge of a simplex that is kept, relative to the spacing of the points at its corners
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


def _intervals(x: Array) -> Array:
    """Return half the gaps between neighbouring points, which are sorted."""
    gaps = np.diff(x[:, 0])
    weights = np.zeros(len(x))
    weights[:-1] += gaps / 2
    weights[1:] += gaps / 2
    return weights


def _triangulated(x: Array) -> Array | None:
    """Return the shares of the simplices of a triangulation; None if there is no triangulation."""
    from scipy.spatial import Delaunay, QhullError

    dim = x.shape[1]
    if not dim < len(x) <= _MOST:
        return None
    try:
        cells = Delaunay(x).simplices
    except (QhullError, ValueError):
        return None
    corners = x[cells]
    spacing = _neighbours(x, 2 * dim + 1)
    pairs = [(i, j) for i in range(dim + 1) for j in range(i)]
    longest = np.max([np.sqrt(((corners[:, i] - corners[:, j]) ** 2).sum(1)) for i, j in pairs], 0)
    kept = longest <= _LONGEST * spacing[cells].max(1)
    volumes = np.abs(sizes(corners[kept]))
    shares = _dual_areas(corners[kept], volumes) if dim == 2 else np.repeat(volumes[:, None] / (dim + 1), dim + 1, 1)
    weights = np.bincount(cells[kept].reshape(-1), shares.reshape(-1), len(x))
    if not volumes.sum() > 1e-12 * np.prod(x.max(0)) or not weights.any():
        return None
    weights[weights == 0] = np.median(weights[weights > 0])  # a point apart from all others
    return weights


def _dual_areas(corners: Array, areas: Array) -> Array:
    """Return the part (C, 3) of each triangle that is nearest to each of its corners. They add up to the areas.

    The obtuse corner of a triangle gets half of it. Unlike thirds of the areas, these parts do not depend on which diagonal of
    a rectangle the triangulation took. For points on a lattice rounding decides that.
    """
    edges = np.stack([corners[:, (i + 2) % 3] - corners[:, (i + 1) % 3] for i in range(3)], 1)  # opposite to each corner
    squares = (edges**2).sum(2)
    # Dot product of the two edges that meet at a corner; its ratio to twice the area is the cotangent of the angle there.
    cosine = np.stack([-(edges[:, (i + 1) % 3] * edges[:, (i + 2) % 3]).sum(1) for i in range(3)], 1)
    cotangent = cosine / np.maximum(2 * areas, np.finfo(float).tiny)[:, None]
    product = squares * cotangent
    nearest = np.stack([product[:, (i + 1) % 3] + product[:, (i + 2) % 3] for i in range(3)], 1) / 8
    blunt: Array = cosine < 0
    halves = np.where(blunt, areas[:, None] / 2, areas[:, None] / 4)
    out: Array = np.where(blunt.any(axis=1, keepdims=True), halves, nearest)
    return out


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
