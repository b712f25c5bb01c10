"""Search among simplices: the one that contains a point, and the nearest one. Memory is bounded by working in chunks."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gkn.geometry.topology import row_keys

Array = NDArray[Any]

_CHUNK = 2**19  # pairs of a point and a simplex held at once
_MANY = 2**14  # points that are worth all processors
_TRIED = (12, 48, 192)  # candidates for the nearest simplex, until it is certain; more only tie


class Simplices:
    """Search trees of S simplices (points (K, d) and corners (S, m + 1)), built when first needed."""

    def __init__(self, points: Array, corners: Array) -> None:
        self.points = points
        self.corners = corners
        self.centres = points[corners].mean(1)
        self.radii = np.sqrt(((points[corners] - self.centres[:, None]) ** 2).sum(-1)).max(1)

    @cached_property
    def _tree(self) -> Any:
        from scipy.spatial import cKDTree

        return cKDTree(self.centres)

    @cached_property
    def _levels(self) -> list[tuple[Any, Array, float]]:
        """Tree, members and largest radius for each class of simplices of about the same size, within a factor of 2."""
        from scipy.spatial import cKDTree

        smaller = self.radii / max(float(self.radii.max()), np.finfo(float).tiny)
        level = np.clip(-np.log2(np.maximum(smaller, 2.0**-40)), 0, 40).astype(int)
        members = [np.flatnonzero(level == each) for each in np.unique(level)]
        return [(cKDTree(self.centres[some]), some, float(self.radii[some].max())) for some in members]

    # --- the simplex that contains a point

    def containing(self, x: Array, tolerance: float) -> tuple[Array, Array]:
        """Return the simplex of each point (P, d), or -1, and barycentric coordinates (P, d + 1); all >= -tolerance inside."""
        home = np.full(len(x), -1)
        share = np.zeros((len(x), self.corners.shape[1]))
        count = min(8, len(self.corners))
        step = max(1, _CHUNK // count)
        for start in range(0, len(x), step):
            part = np.arange(start, min(start + step, len(x)))
            near = self._tree.query(x[part], count)[1].reshape(len(part), count)
            self._choose(x, np.repeat(part, count), near.reshape(-1), tolerance, home, share)
        lost = np.flatnonzero((home < 0) | (share.min(1) < 0))  # on the edge of a cell another one may fit better
        for tree, members, radius in self._levels:
            for part, near in self._within(tree, x, lost, radius * (1 + 1e-5)):
                self._choose(x, part, members[near], tolerance, home, share)
        return home, share

    @staticmethod
    def _within(tree: Any, x: Array, which: Array, radius: float) -> Iterator[tuple[Array, Array]]:
        """Yield pairs (index of a point, index in the tree) within `radius`, in chunks."""
        counts = np.concatenate(
            [tree.query_ball_point(x[which[i : i + _CHUNK]], radius, return_length=True) for i in range(0, len(which), _CHUNK)]
            or [np.empty(0, int)]
        )
        which, counts = which[counts > 0], counts[counts > 0]
        chunk = np.cumsum(counts) // _CHUNK
        for each in np.unique(chunk):
            part = which[chunk == each]
            found = tree.query_ball_point(x[part], radius)
            yield np.repeat(part, counts[chunk == each]), np.concatenate([np.asarray(some, int) for some in found])

    def _choose(self, x: Array, point: Array, cell: Array, tolerance: float, home: Array, share: Array) -> None:
        """Give each point, among these pairs and what it had, the simplex with the largest least coordinate."""
        if not len(point):
            return
        inside = barycentric(x[point], self.points[self.corners[cell]])
        worst = inside.min(1)
        order = np.lexsort((cell, -worst, point))
        best = order[np.concatenate([[True], point[order][1:] != point[order][:-1]])]
        had = np.where(home[point[best]] >= 0, share[point[best]].min(1), -np.inf)
        best = best[(worst[best] >= -tolerance) & (worst[best] > had)]
        home[point[best]] = cell[best]
        share[point[best]] = inside[best]

    # --- the nearest simplex

    @cached_property
    def _faces(self) -> tuple[Any, Array, float]:
        """Search tree of the centres of all simplices, edges and corners, the simplex of each, and the largest radius.

        The nearest point f of the simplices lies in the interior of one of these, with centre c and radius r, and x - f is
        perpendicular to it: |x - c|^2 = |x - f|^2 + |f - c|^2 <= |x - f|^2 + r^2. A further coordinate sqrt(R^2 - r^2), with
        R the largest radius, makes |x - c|^2 - r^2 + R^2 a distance squared, whose least values belong to the candidates.
        """
        from scipy.spatial import cKDTree

        centres, radii, members = [self.centres], [self.radii], [np.arange(len(self.corners))]
        for size in range(1, self.corners.shape[1]):
            sets = [list(pick) for pick in itertools.combinations(range(self.corners.shape[1]), size)]
            rows = np.sort(self.corners[:, sets], -1).reshape(-1, size)
            first = np.unique(row_keys(rows, len(self.points)), return_index=True)[1]
            x = self.points[rows[first]]
            centres.append(x.mean(1))
            radii.append(np.sqrt(((x - centres[-1][:, None]) ** 2).sum(-1)).max(1))
            members.append(first // len(sets))
        radius = np.concatenate(radii)
        lift = np.sqrt(radius.max() ** 2 - radius**2)
        tree = cKDTree(np.concatenate([np.concatenate(centres), lift[:, None]], 1), leafsize=32)
        return tree, np.concatenate(members), float(radius.max())

    def nearest(self, x: Array) -> tuple[Array, Array, Array, Array]:
        """Return the nearest simplex of each point (P, d), coordinates there (P, m + 1), the nearest point and the distance."""
        tree, members, radius = self._faces
        home, share = np.zeros(len(x), int), np.zeros((len(x), self.corners.shape[1]))
        foot, distance = np.zeros_like(x), np.full(len(x), np.inf)
        todo = np.arange(len(x))
        for width in _TRIED:
            count, later = min(width, len(members)), [np.empty(0, int)]
            step = max(1, _CHUNK // count)
            for start in range(0, len(todo), step):
                part = todo[start : start + step]
                at = np.concatenate([x[part], np.zeros((len(part), 1))], 1)
                found = tree.query(at, count, workers=-1 if len(part) > _MANY else 1)
                gap, near = (array.reshape(len(part), count) for array in found)
                self._nearer(x, part, members[near], home, share, foot, distance)
                # All others are farther by the bound above, unless the last candidate could still have been better.
                later.append(part[gap[:, -1] ** 2 - radius**2 < distance[part] ** 2])
            todo = np.concatenate(later) if count < len(members) else later[0]
        return home, share, foot, distance

    def _nearer(self, x: Array, part: Array, near: Array, home: Array, share: Array, foot: Array, distance: Array) -> None:
        """Update the nearest simplices of the points `part` by the candidates (P, k)."""
        corners = self.points[self.corners[near]]
        there = closest(np.repeat(x[part], near.shape[1], 0), corners.reshape(-1, *corners.shape[2:]))
        there = there.reshape(*near.shape, corners.shape[2])
        feet = np.einsum("pki,pkid->pkd", there, corners)
        off = x[part][:, None] - feet
        gaps = np.sqrt(_dot(off, off))
        best, row = gaps.argmin(1), np.arange(len(part))
        better = gaps[row, best] < distance[part]
        row, best, part = row[better], best[better], part[better]
        home[part], share[part] = near[row, best], there[row, best]
        foot[part], distance[part] = feet[row, best], gaps[row, best]


def sizes(corners: Array) -> Array:
    """Return the measures of simplices (S, m + 1, d): signed if m = d, else positive."""
    dim, edges = corners.shape[2], corners[:, 1:] - corners[:, :1]
    with np.errstate(over="ignore", invalid="ignore"):  # what is too large is refused later, as a cell that is not finite
        return _sizes(edges, dim)


def _sizes(edges: Array, dim: int) -> Array:
    if edges.shape[1] == dim:
        return _volumes(edges) / (1, 1, 2, 6)[dim]
    if edges.shape[1] == 1:
        lengths: Array = np.sqrt((edges[:, 0] ** 2).sum(1))
        return lengths
    areas: Array = np.sqrt((np.cross(edges[:, 0], edges[:, 1]) ** 2).sum(1)) / 2
    return areas


def _volumes(edges: Array) -> Array:
    """Return determinants of (S, d, d) edge vectors."""
    dim = edges.shape[1]
    if dim == 1:
        return edges[:, 0, 0]
    if dim == 2:
        area: Array = edges[:, 0, 0] * edges[:, 1, 1] - edges[:, 0, 1] * edges[:, 1, 0]
        return area
    volume: Array = (np.cross(edges[:, 0], edges[:, 1]) * edges[:, 2]).sum(1)
    return volume


def barycentric(x: Array, corners: Array) -> Array:
    """Return barycentric coordinates (N, d + 1) of points (N, d) in simplices (N, d + 1, d); exactly 0 and 1 at corners."""
    whole = _volumes(corners[:, 1:] - corners[:, :1])
    out = np.empty((len(x), corners.shape[1]))
    for i in range(corners.shape[1]):
        if i == 0:
            part = corners[:, 1:] - x[:, None]
        else:
            part = corners[:, 1:] - corners[:, :1]
            part[:, i - 1] = x - corners[:, 0]
        with np.errstate(divide="ignore", invalid="ignore"):
            out[:, i] = _volumes(part) / whole
    return np.nan_to_num(out, nan=-np.inf, posinf=-np.inf, neginf=-np.inf)  # a flat simplex contains nothing


def closest(x: Array, corners: Array) -> Array:
    """Return barycentric coordinates (N, m + 1) of the points of simplices (N, m + 1, d) nearest to (N, d) points, m < 3."""
    count = corners.shape[1]
    if count == 1:
        return np.ones((len(x), 1))
    if count == 2:
        return _on_segment(x, corners)
    # In the plane of a triangle the foot of the perpendicular, if it lies inside; else the nearest point of the three edges.
    edges = corners[:, 1:] - corners[:, :1]
    to = x - corners[:, 0]
    aa, ab, bb = (_dot(edges[:, i], edges[:, j]) for i, j in ((0, 0), (0, 1), (1, 1)))
    xa, xb = _dot(to, edges[:, 0]), _dot(to, edges[:, 1])
    with np.errstate(divide="ignore", invalid="ignore"):
        area = aa * bb - ab * ab
        s, t = (bb * xa - ab * xb) / area, (aa * xb - ab * xa) / area
    best = np.stack([1 - s - t, s, t], 1)
    outside = np.flatnonzero(~((s >= 0) & (t >= 0) & (s + t <= 1)))
    x, corners = x[outside], corners[outside]
    gap = np.full(len(outside), np.inf)
    for i, j in ((0, 1), (1, 2), (2, 0)):
        part = _on_segment(x, corners[:, [i, j]])
        off = x - part[:, :1] * corners[:, i] - part[:, 1:] * corners[:, j]
        square = _dot(off, off)
        nearer = np.flatnonzero(square < gap)
        gap[nearer] = square[nearer]
        rows = outside[nearer]
        best[rows, i], best[rows, j], best[rows, 3 - i - j] = part[nearer, 0], part[nearer, 1], 0.0
    return best


def _dot(a: Array, b: Array) -> Array:
    product: Array = np.einsum("...i,...i->...", a, b)
    return product


def _on_segment(x: Array, ends: Array) -> Array:
    along = ends[:, 1] - ends[:, 0]
    t = _dot(x - ends[:, 0], along) / np.maximum(_dot(along, along), np.finfo(float).tiny)
    t = np.clip(t, 0, 1)
    return np.stack([1 - t, t], 1)
