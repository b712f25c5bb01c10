"""Facets of simplices: which simplices share them, which lie on the boundary, how to orient a surface."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

# Facets of a positive simplex, outward, by its dimension; facet i is opposite to vertex _OPPOSITE[i].
_FACETS = {1: [[1], [0]], 2: [[0, 1], [1, 2], [2, 0]], 3: [[0, 2, 1], [0, 1, 3], [0, 3, 2], [1, 2, 3]]}
_OPPOSITE = {1: [0, 1], 2: [2, 0, 1], 3: [3, 2, 1, 0]}


@dataclass(frozen=True, eq=False)
class Facets:
    """All facets of S simplices of dimension m, m + 1 rows per simplex.

    rows       (N, m) vertices, outward
    opposite   (N,) the vertex of the simplex that is not in the facet
    key        (N,) equal for facets with the same vertices
    count      (N,) how many simplices have this facet
    forward    (N,) bool: the direction of the facet; two simplices on different sides of a facet have different ones
    """

    rows: Array
    opposite: Array
    key: Array
    count: Array
    forward: Array

    @staticmethod
    def of(simplices: Array, points: int) -> Facets:
        dim = simplices.shape[1] - 1
        rows = simplices[:, _FACETS[dim]].reshape(-1, dim)
        opposite = simplices[:, _OPPOSITE[dim]].reshape(-1)
        if dim == 1:
            forward = np.tile([True, False], len(simplices))
        elif dim == 2:
            forward = rows[:, 0] < rows[:, 1]
        else:
            a, b, c = rows.T
            forward = ((a > b).astype(int) + (a > c) + (b > c)) % 2 == 0
        _, key, count = np.unique(row_keys(np.sort(rows, 1), points), return_inverse=True, return_counts=True)
        return Facets(rows, opposite, key, count[key], forward)

    def boundary(self) -> Array:
        """Return the indices of facets that belong to one simplex only."""
        return np.flatnonzero(self.count == 1)

    def overlap(self) -> Array | None:
        """Return the vertices of the first facet that has two simplices on the same side, or None if there is none."""
        if int(self.count.max()) == 1:
            return None
        side = 2 * self.key + self.forward
        order = np.argsort(side, kind="stable")
        twice = np.flatnonzero(side[order][1:] == side[order][:-1])
        return None if not len(twice) else self.rows[order[twice[0]]]


def row_keys(rows: Array, points: int) -> Array:
    """Return a number for each row of up to three indices below `points`, equal for equal rows only."""
    key = rows[:, 0].astype(np.int64)
    for column in rows.T[1:]:
        if int(key.max(initial=0)) > (2**62) // points:
            key = np.unique(key, return_inverse=True)[1]
        key = key * points + column
    return key


def orient(facets: Facets, owner: Array, cells: int) -> Array:
    """Return a mask of the cells of a surface to turn round, so that neighbours have the same orientation.

    Each connected part keeps the orientation of its first cell. A part without orientation, as a Moebius strip, is not changed.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    shared = np.flatnonzero(facets.count == 2)
    pairs = shared[np.argsort(facets.key[shared], kind="stable")].reshape(-1, 2)
    owner = np.repeat(owner, len(facets.rows) // len(owner))
    (i, j), same = owner[pairs].T, facets.forward[pairs[:, 0]] == facets.forward[pairs[:, 1]]
    # A graph of (cell, as given) and (cell, turned): neighbours that run through their edge alike need different states.
    start = np.concatenate([i, i + cells])
    end = np.concatenate([j + cells * same, j + cells * ~same])
    graph = coo_array((np.ones(len(start), dtype=np.int8), (start, end)), shape=(2 * cells, 2 * cells))
    label = connected_components(graph, directed=False)[1]
    given, turned = label[:cells], label[cells:]
    part = connected_components(coo_array((np.ones(len(i), dtype=np.int8), (i, j)), shape=(cells, cells)), directed=False)[1]
    first = np.unique(part, return_index=True)[1][part]
    wrong: Array = (given != given[first]) & (given != turned)
    return wrong


def normals_outward(rows: Array, opposite: Array, points: Array) -> tuple[Array, Array]:
    """Return unit normals (B, d) of boundary facets, in the plane of their simplex, and the measures (B,) of the facets."""
    first, dim = points[rows[:, 0]], points.shape[1]
    outward = first - points[opposite]
    if rows.shape[1] == 1:
        size = np.ones(len(rows))
    elif rows.shape[1] == 2:
        edge = points[rows[:, 1]] - first
        size = np.sqrt((edge**2).sum(1))
        if dim == 2:
            outward = np.stack([edge[:, 1], -edge[:, 0]], 1)
        else:
            along = edge / size[:, None]
            outward = outward - (outward * along).sum(1, keepdims=True) * along
    else:
        outward = np.cross(points[rows[:, 1]] - first, points[rows[:, 2]] - first)
        size = np.sqrt((outward**2).sum(1)) / 2
    return outward / np.sqrt((outward**2).sum(1, keepdims=True)), size
