"""GreenNet: one linear integral whose kernel is the learned Green's function (Examples 1 and 2 of the paper)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gkn.graph.graph import Graph
from gkn.ops import Backend
from gkn.ops.integral import plan_integral
from gkn.ops.kernel import Kernel
from gkn.ops.matrices import matrix_integral


class GreenNet(nn.Module):
    """A graph kernel network with sigma the identity and W = 0: one integral, linear in f whatever the parameters.

    u(x) = sum over y in N(x) of w(y) kappa(x, y) f(y)

    dim         of the points
    kernel      sizes of the hidden layers of kappa
    fields      of f, and of u
    symmetric   make G(x, y) = G(y, x), as for every self-adjoint equation, by the mean of kappa both ways
    distance    |x - y| enters kappa beside x and y
    factor      a function of points, (P, d) -> (P,), by which kappa is multiplied at x and at y: one that is 0 on the
                boundary makes G and u so
    """

    def __init__(
        self,
        dim: int,
        kernel: Sequence[int] = (256, 256),
        fields: int = 1,
        *,
        symmetric: bool = False,
        distance: bool = False,
        factor: Callable[[Tensor], Tensor] | None = None,
        recompute: bool | None = None,
        backend: Backend | None = None,
    ) -> None:
        super().__init__()
        if dim < 1 or fields < 1:
            raise ValueError(f"GreenNet(dim={dim}, fields={fields}): needed at least 1 of each")
        self.dim, self.fields, self.recompute, self.backend = dim, fields, recompute, backend
        self.kappa = Kernel(dim, kernel, fields, fields)
        self.symmetric, self.distance, self.factor = symmetric, distance, factor
        bound = (2 * dim) ** -0.5
        self.of_distance = nn.Parameter(torch.empty(kernel[0]).uniform_(-bound, bound)) if distance else None

    def forward(self, graph: Graph, x: Tensor, f: Tensor, weights: Tensor, at: Tensor | None = None) -> Tensor:
        """Return u at the points `at` (or x): (K, d), f (K, fields), quadrature weights (K,) -> (P, fields).

        `graph`: points <- x. Several f at once are more columns: (K, n * fields), the fields of one f side by side.
        """
        like = self.kappa.W
        at = x if at is None else at
        if x.ndim != 2 or x.shape[1] != self.dim or at.shape != (len(at), self.dim):
            raise ValueError(
                f"GreenNet: points {tuple(x.shape)} and {tuple(at.shape)}; needed (K, {self.dim}) and (P, {self.dim})"
            )
        if f.ndim != 2 or len(f) != len(x) or not f.shape[1] or f.shape[1] % self.fields:
            raise ValueError(
                f"GreenNet: f of shape {tuple(f.shape)}; needed ({len(x)}, {self.fields}), or more f's side by side"
            )
        if weights.shape != (len(x),) or (graph.num_targets, graph.num_sources) != (len(at), len(x)):
            raise ValueError(f"GreenNet: weights {tuple(weights.shape)} and {graph}; needed ({len(x)},), {len(at)} <- {len(x)}")
        if self.symmetric or self.distance or self.factor is not None:
            columns = (weights[:, None] * f).to(like.dtype).reshape(len(x), -1, self.fields)
            return matrix_integral(self._matrices, graph, (at.to(like.dtype), x.to(like.dtype)), columns).flatten(1)
        options: dict[str, Any] = {"mean": False, "recompute": self.recompute, "backend": self.backend}
        plan = plan_integral(self.kappa, graph, at.to(like.dtype), x.to(like.dtype), weights=weights, **options)
        integral = plan.integral()
        return torch.cat([integral(part) for part in f.to(like.dtype).split(self.fields, 1)], 1)

    def read(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the kernel at pairs of points: (P, d), (P, d) -> (P,), or (P, fields, fields) for several, as G[out, in]."""
        like = self.kappa.W
        if x.shape != y.shape or x.shape != (len(x), self.dim):
            raise ValueError(f"GreenNet.read: points {tuple(x.shape)} and {tuple(y.shape)}; needed pairs, (P, {self.dim}) each")
        out = self._matrices(x.to(like.dtype), y.to(like.dtype))
        return out[:, 0, 0] if self.fields == 1 else out

    def _matrices(self, x: Tensor, y: Tensor) -> Tensor:
        """Return kappa at pairs of points: (P, fields, fields), as G[out, in]."""
        more = None
        if self.of_distance is not None:
            more = (x - y).square().sum(1, keepdim=True).clamp_min(1e-24).sqrt() * self.of_distance
        out = self.kappa.matrices(x, y, more).transpose(1, 2)
        if self.symmetric:
            out = (out + self.kappa.matrices(y, x, more)) / 2  # G(y, x) has in and out exchanged, too
        return out if self.factor is None else out * (self.factor(x) * self.factor(y))[:, None, None]
