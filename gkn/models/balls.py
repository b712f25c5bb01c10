"""Integrals over small balls, with a smooth window: what does not depend on the kernel."""

from __future__ import annotations

import torch
from torch import Tensor

from gkn.graph import Graph
from gkn.models.kernel import Integral, Kernel
from gkn.ops import Backend, library, quadrature


class Balls:
    """(kernel, v) -> integral of window kappa v over the ball of each target, over the integral of the window.

    graph          who is in whose ball
    of_x, of_y     features of targets and of sources for the kernels; the first `dim` are their points over the radius
    weights        quadrature weights of the sources; None: all alike
    recompute, backend   as of `GKN`
    """

    def __init__(
        self,
        graph: Graph,
        of_x: Tensor,
        of_y: Tensor,
        dim: int,
        weights: Tensor | None = None,
        *,
        recompute: bool | None = None,
        backend: Backend | None = None,
    ) -> None:
        self.graph, self.of_x, self.of_y, self.weights = graph, of_x, of_y, weights
        self.recompute, self.backend = recompute, backend
        self.points = of_x[:, :dim], of_y[:, :dim]
        with torch.no_grad():
            rho = window(self.points[0].index_select(0, graph.targets), self.points[1].index_select(0, graph.src))
            used = quadrature(weights, graph, mean=True)
            mass = rho if used is None else rho * used.to(rho.dtype).index_select(0, graph.src)
            edges = torch.arange(graph.num_edges, device=graph.device, dtype=torch.int32)
            windowed = library.segment_sum(mass[:, None], graph.ptr, edges)[:, 0]
            plain = graph.degrees.to(rho.dtype)
            if used is not None:
                plain = library.segment_sum(used.to(rho.dtype)[:, None], graph.ptr, graph.src)[:, 0]
            tiny = torch.finfo(rho.dtype).tiny
            self.scale = torch.where(windowed > tiny, plain / windowed.clamp_min(tiny), 0)[:, None]

    def __call__(self, kernel: Kernel, v: Tensor) -> Tensor:
        """Of v on the sources; 0 where nothing is in the ball."""
        integral = Integral(
            kernel,
            self.graph,
            self.of_x,
            self.of_y,
            weights=self.weights,
            rho=window,
            points=self.points,
            recompute=self.recompute,
            backend=self.backend,
        )
        return integral(v) * self.scale


def window(x: Tensor, y: Tensor) -> Tensor:
    """(1 - |x - y|^2)^2 in a ball of radius 1: smooth, so that a point that crosses the radius makes no difference."""
    return (1 - (x - y).square().sum(1)).clamp_min(0).square()


def features(x: Tensor, a: Tensor, radius: float, which: tuple[int, ...]) -> Tensor:
    """Of points and fields, for kernels: points over the radius, and some of the fields."""
    return torch.cat([x / radius, *(a[:, i : i + 1] for i in which)], 1)
