"""Distance to the boundary of a domain, and the direction to it: boxes, facets of meshes, flagged points."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy.typing import NDArray
from torch import Tensor

from gkn.geometry.search import Simplices
from gkn.geometry.topology import normals_outward

Array = NDArray[Any]
Distance = tuple[Float[Tensor, " P"], Float[Tensor, "P d"]]

_NEIGHBOURS = 8
_ON = 1e-12  # closer than this share of the domain a point lies on the boundary


def distance_to_points(points: Float[Tensor, "K d"], boundary: Bool[Tensor, " K"], at: Float[Tensor, "P d"]) -> Distance:
    """Return distance and direction to the nearest flagged point. Its normal points away from the nearest points inside."""
    from scipy.spatial import cKDTree

    flagged = points[boundary].numpy()
    distance, nearest = cKDTree(flagged).query(at.numpy())
    inside = points[~boundary].numpy()
    if len(inside):
        near = cKDTree(inside).query(flagged, min(_NEIGHBOURS, len(inside)))[1].reshape(len(flagged), -1)
        centre = inside[near].mean(1)
    else:
        centre = flagged.mean(0, keepdims=True)
    return _join(distance, flagged[nearest] - at.numpy(), _unit(flagged - centre)[nearest], distance == 0)


def distance_to_box(low: Tensor, high: Tensor, closed: Bool[Tensor, " d"], at: Float[Tensor, "P d"]) -> Distance:
    """Return distance and direction to the faces of a box across the axes of the mask `closed`. The others are periodic."""
    gaps = torch.stack([at - low, high - at], 1)  # (P, 2, d): negative outside
    gaps[..., ~closed] = torch.inf
    outside = torch.where(gaps < 0, -gaps, 0.0)
    beyond = (outside > 0).any(-1).any(-1)
    sign = torch.tensor([-1.0, 1.0], dtype=torch.float64)[:, None]
    # Inside, the nearest face; on the boundary, the mean normal of the faces there; outside, the nearest point of the box.
    least = gaps.flatten(1).amin(1)
    faces = gaps == least[:, None, None]
    one = torch.zeros_like(gaps).flatten(1)
    one[torch.arange(len(at)), gaps.flatten(1).argmin(1)] = 1.0
    chosen = torch.where((least == 0)[:, None, None], faces.double(), one.reshape(gaps.shape))
    towards = torch.where(beyond[:, None, None], -outside, chosen)
    direction = (sign * towards).sum(1)
    return torch.where(beyond, outside.sum(1).norm(dim=1), least), direction / direction.norm(dim=1, keepdim=True)


class FacetBoundary:
    """The boundary of a mesh: B facets (B, m) of simplices, each with the opposite vertex, and all boundary nodes."""

    def __init__(self, points: Array, rows: Array, opposite: Array, nodes: Array, scale: float) -> None:
        from scipy.spatial import cKDTree

        self.facets = Simplices(points, rows)
        self.normals, size = normals_outward(rows, opposite, points)
        self.scale = scale
        self.nodes = nodes
        self.tree = cKDTree(points[nodes])
        # Normals at nodes are means over their facets; nodes in the middle of an edge or face have none and take the facet's.
        mean = np.zeros_like(points)
        for column in rows.T:
            np.add.at(mean, column, self.normals * size[:, None])
        weak = np.sqrt((mean**2).sum(1)) <= 1e-6 * size.max()
        self.node_normals = np.where(weak[:, None], 0.0, _unit(mean))[nodes]

    def distance(self, at: Float[Tensor, "P d"]) -> Distance:
        """Return distance and direction to the nearest point of the facets; exactly 0 at boundary nodes."""
        x = at.numpy()
        facet, _, foot, distance = self.facets.nearest(x)
        gap, node = self.tree.query(x, distance_upper_bound=_ON * self.scale)  # a bound saves most of the search
        own = gap == 0
        node = np.where(own, node, 0)
        normal = self.normals[facet]
        known = own & self.node_normals[node].any(1)
        normal[known] = self.node_normals[node[known]]
        distance = np.where(own, 0.0, distance)
        return _join(distance, foot - x, normal, own | (distance <= _ON * self.scale))


def _join(distance: Array, towards: Array, normal: Array, on: Array) -> Distance:
    direction = np.where(on[:, None], normal, _unit(towards))
    return torch.from_numpy(np.ascontiguousarray(distance)).double(), torch.from_numpy(direction).double()


def _unit(vectors: Array) -> Array:
    """Return vectors of length 1; the first axis for those of length 0."""
    length = np.sqrt((vectors**2).sum(-1, keepdims=True))
    first = np.zeros(vectors.shape[-1])
    first[0] = 1.0
    unit: Array = np.where(length > 0, vectors / np.where(length > 0, length, 1.0), first)
    return unit
