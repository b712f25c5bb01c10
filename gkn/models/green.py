"""The linear case, Examples 1 and 2 of the paper: u(x) = integral over D of kappa(x, y) f(y) dy, a kernel to be read out."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from gkn.graph import Graph
from gkn.models.kernel import Kernel
from gkn.ops import Backend


class GreenNet(nn.Module):
    """Linear in f whatever its parameters: with sigma the identity and W = 0 the network is one integral, and its kernel is
    what it takes for the Green's function.

        u(x) = sum over y in N(x) of w(y) kappa(x, y) f(y)

        dim      of the points
        kernel   sizes of the hidden layers of kappa
        fields   of f, and of u
    """

    def __init__(
        self,
        dim: int,
        kernel: Sequence[int] = (256, 256),
        fields: int = 1,
        *,
        recompute: bool | None = None,
        backend: Backend | None = None,
    ) -> None:
        super().__init__()
        if dim < 1 or fields < 1:
            raise ValueError(f"GreenNet(dim={dim}, fields={fields}): needed at least 1 of each")
        self.dim, self.fields, self.recompute, self.backend = dim, fields, recompute, backend
        self.kappa = Kernel(dim, kernel, fields, fields)

    def forward(self, graph: Graph, x: Tensor, f: Tensor, weights: Tensor, at: Tensor | None = None) -> Tensor:
        """u at the points `at` (or x): (K, d), f (K, fields), quadrature weights (K,) -> (P, fields). `graph`: points <- x.

        Several f at once are more columns: (K, n * fields), the fields of one f side by side.
        """
        own = self.kappa.W
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
        options = {"mean": False, "recompute": self.recompute, "backend": self.backend}
        integral = self.kappa.on(graph, at.to(own.dtype), x.to(own.dtype), weights=weights, **options)
        return torch.cat([integral(part) for part in f.to(own.dtype).split(self.fields, 1)], 1)

    def read(self, x: Tensor, y: Tensor) -> Tensor:
        """The kernel at pairs of points: (P, d), (P, d) -> (P,), or (P, fields, fields) for several fields, as G[out, in]."""
        own = self.kappa.W
        if x.shape != y.shape or x.shape != (len(x), self.dim):
            raise ValueError(f"GreenNet.read: points {tuple(x.shape)} and {tuple(y.shape)}; needed pairs, (P, {self.dim}) each")
        out = self.kappa.matrices(x.to(own.dtype), y.to(own.dtype)).transpose(1, 2)
        return out[:, 0, 0] if self.fields == 1 else out
