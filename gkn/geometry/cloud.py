"""Cloud: points without cells."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from gkn.geometry.domain import Domain, is_identity, map_points, power
from gkn.geometry.quadrature import cloud_quadrature, point_weights
from gkn.system.checks import check_finite, real


@dataclass(frozen=True, eq=False, init=False)
class Cloud(Domain):
    """Points of D and nothing else.

    points     (K, d), float64
    weights    (K,), by default computed from the points when first needed
    boundary   (K,) bool, by default no point is on the boundary
    """

    kind: ClassVar[str] = "cloud"
    points: Tensor  # (K, d), float64
    boundary: Tensor  # (K,), bool
    _given: Tensor | None = field(repr=False)
    _origin: tuple[Cloud, float] | None = field(repr=False)  # the cloud this one was mapped from, and the scale

    def __init__(self, points: Any, weights: Any = None, boundary: Any = None) -> None:
        points = real(points, "points").contiguous()
        if points.ndim != 2 or points.shape[1] not in (1, 2, 3) or not len(points):
            raise ValueError(f"Cloud: points of shape {tuple(points.shape)}; needed (K, d) with d = 1, 2 or 3 and K >= 1")
        check_finite(points, "Cloud: points")
        K = len(points)
        boundary = torch.zeros(K, dtype=torch.bool) if boundary is None else torch.as_tensor(boundary).bool()
        weights = None if weights is None else real(weights, "weights")
        for name, given in (("weights", weights), ("boundary", boundary)):
            if given is not None and given.shape != (K,):
                raise ValueError(f"Cloud: {name} of shape {tuple(given.shape)} for {K} points; needed ({K},)")
        if weights is not None:
            check_finite(weights, "Cloud: weights")
            if (weights < 0).any():
                raise ValueError(f"Cloud: weight {int((weights < 0).nonzero()[0])} is negative; quadrature weights are >= 0")
        self._set(points, weights, boundary)

    def _set(self, points: Tensor, weights: Tensor | None, boundary: Tensor, origin: tuple[Cloud, float] | None = None) -> None:
        for name, value in (("points", points), ("boundary", boundary), ("_given", weights), ("_origin", origin)):
            object.__setattr__(self, name, value)

    @cached_property
    def weights(self) -> Float[Tensor, " K"]:  # type: ignore[override]
        if self._given is not None:
            return self._given
        if self._origin is not None:
            return self._origin[0].weights / power(self._origin[1], self.dim)
        return point_weights(self.points)

    def fine_quadrature(self, length: float) -> tuple[Tensor, Tensor]:
        """Return a quadrature on the simplices between the points, if they can be triangulated."""
        found = cloud_quadrature(self.points)
        return (self.points, self.weights) if found is None else found

    def arrays(self) -> dict[str, Tensor]:
        return {"points": self.points, "weights": self.weights, "boundary": self.boundary}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Tensor], numbers: Mapping[str, int]) -> Cloud:
        return Cloud(arrays["points"], arrays["weights"], arrays["boundary"])

    def mapped(self, shift: Tensor, scale: float) -> Cloud:
        if is_identity(shift, scale):
            return self
        out = object.__new__(Cloud)
        out._set(map_points(self.points, shift, scale), None, self.boundary, (self, scale))
        return out

    def _interpolate(self, values: Tensor, at: Tensor) -> Tensor:
        """Take the value of the nearest point."""
        low, high = self.points.amin(0), self.points.amax(0)
        near = at.clamp(2 * low - high - 1, 2 * high - low + 1)  # far points are moved near, where squares do not overflow
        return values[torch.from_numpy(self._tree.query(near.numpy())[1]).long()]

    @cached_property
    def _tree(self) -> Any:
        from scipy.spatial import cKDTree

        return cKDTree(self.points.numpy())
