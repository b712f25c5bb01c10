"""Cloud: points without cells."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from gkn.geometry.domain import Domain
from gkn.system.checks import check_finite, real


@dataclass(frozen=True, eq=False)
class Cloud(Domain):
    """Points of D and nothing else. Without `weights` every point counts 1/K; without `boundary` none is on it."""

    kind: ClassVar[str] = "cloud"
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

    def arrays(self) -> dict[str, Tensor]:
        return {"points": self.points, "weights": self.weights, "boundary": self.boundary}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Tensor], numbers: Mapping[str, int]) -> Cloud:
        return Cloud(arrays["points"], arrays["weights"], arrays["boundary"])

    def weighed(self) -> Cloud:
        """Return the same points with quadrature weights: each has its share of the cells of a triangulation of the points.

        The cloud is returned unchanged if its points cannot be triangulated, as points on a line in the plane.
        """
        from scipy.spatial import Delaunay, QhullError

        points = self.points.numpy()
        try:
            cells = _steps(points) if self.dim == 1 else Delaunay(points).simplices
        except (QhullError, ValueError):
            return self
        corners = torch.from_numpy(points[cells])
        sizes = torch.linalg.det(corners[:, 1:] - corners[:, :1]).abs() / math.factorial(self.dim)
        weights = corner_shares(cells, sizes, len(self))
        return Cloud(self.points, weights, self.boundary) if float(weights.sum()) > 0 else self

    def _interpolate(self, values: Tensor, at: Tensor) -> Tensor:
        """Take the value of the nearest point."""
        from scipy.spatial import cKDTree

        low, high = self.points.amin(0), self.points.amax(0)
        near = at.clamp(2 * low - high - 1, 2 * high - low + 1)  # far points are moved near, where squares do not overflow
        return values[torch.from_numpy(cKDTree(self.points.numpy()).query(near.numpy())[1]).long()]


def corner_shares(cells: NDArray[Any], sizes: Tensor, points: int) -> Float[Tensor, " K"]:
    """Return quadrature weights (K,): each point gets its share of the size of every cell it is a corner of."""
    corners = cells.shape[1]
    each = (sizes / corners).repeat_interleave(corners).numpy()
    # Without cells, bincount would count integers.
    return torch.from_numpy(np.bincount(cells.reshape(-1), each, minlength=points)).double()


def _steps(points: NDArray[Any]) -> NDArray[Any]:
    """Return the intervals between neighbouring points of a line."""
    order = np.argsort(points[:, 0], kind="stable")
    return np.stack([order[:-1], order[1:]], 1)
