"""Integrals over small balls, with a smooth window: what does not depend on the kernel is worked out once."""

from __future__ import annotations

import torch
from torch import Tensor

from gkn.graph import Graph
from gkn.memory import available_memory
from gkn.models.kernel import Integral, Kernel
from gkn.ops import Backend, autocast, library, pick, quadrature


class Balls:
    """(kernel, v) -> integral of window kappa v over the ball of each target, over the integral of the window.

    graph          who is in whose ball
    of_x, of_y     features of targets and of sources for the kernels; the first `dim` are their points over the radius
    weights        quadrature weights of the sources; None: all alike
    like           a kernel of those it will be called with
    many           with how many of them: what is kept for their derivatives must fit into memory, else it is computed again
    recompute, backend   as of `GKN`
    """

    def __init__(
        self,
        graph: Graph,
        of_x: Tensor,
        of_y: Tensor,
        dim: int,
        weights: Tensor | None,
        like: Kernel,
        many: int,
        *,
        recompute: bool | None = None,
        backend: Backend | None = None,
    ) -> None:
        if (of_x.requires_grad or of_y.requires_grad) and torch.is_grad_enabled():
            raise ValueError(
                "a gradient is asked of points or fields that kernels and windows depend on, which are constants here"
            )
        self.given = graph, of_x, of_y
        self.points = of_x[:, :dim], of_y[:, :dim]
        dtype = autocast(of_x)[0].dtype
        self.backend = pick(backend, of_x.device, dtype, like.W.shape[1])
        kept = graph.num_edges * sum(like.sizes) * dtype.itemsize * (3 * many if torch.is_grad_enabled() else 1)
        self.recompute = kept > available_memory(of_x.device) // 2 if recompute is None else recompute
        self.weights = quadrature(weights, graph, mean=True)
        self.back: Tensor | None = None
        if self.backend == "factored" and not graph.is_sorted and not self.recompute:
            graph, order = graph.by_degree
            of_x, self.back = of_x.index_select(0, order), torch.argsort(order)
        self.graph, self.of_x, self.of_y = graph, of_x, of_y
        self.rho, self.scale = self._measure(dim)

    @torch.no_grad()
    def _measure(self, dim: int) -> tuple[Tensor, Tensor]:
        """The window on every edge, and for every target 1 / its integral, or 0 if there is nothing in its ball."""
        graph, kind = self.graph, torch.promote_types(self.of_x.dtype, torch.float32)
        rho = window(self.of_x[:, :dim].index_select(0, graph.targets), self.of_y[:, :dim].index_select(0, graph.src)).to(kind)
        mass = rho if self.weights is None else rho * self.weights.to(kind).index_select(0, graph.src)
        edges = torch.arange(graph.num_edges, device=graph.device, dtype=torch.int32)
        whole = library.segment_sum(mass[:, None], graph.ptr, edges)[:, 0]
        tiny = torch.finfo(kind).tiny
        return rho, torch.where(whole > tiny, 1 / whole.clamp_min(tiny), 0)

    def __call__(self, kernel: Kernel, v: Tensor) -> Tensor:
        """Of v on the sources; 0 where nothing is in the ball."""
        if self.recompute:
            return self._in_blocks(kernel, v)
        p, q = kernel.parts(self.of_x, self.of_y)
        h = kernel.edges(p, q, self.graph, self.backend, own=True)
        W, B, v = autocast(kernel.W, kernel.B, v)
        if self.weights is not None:
            v = v * self.weights.to(v.dtype)[:, None]
        out = library.kernel_sum(h, W, B, v, self.graph, self.rho.to(v.dtype), self.scale, self.backend)
        return out if self.back is None else out.index_select(0, self.back)

    def _in_blocks(self, kernel: Kernel, v: Tensor) -> Tensor:
        """In memory that does not grow with the edges."""
        graph, of_x, of_y = self.given
        integral = Integral(
            kernel,
            graph,
            of_x,
            of_y,
            weights=self.weights,
            rho=window,
            points=self.points,
            mean=False,
            recompute=True,
            backend=self.backend,
        )
        return integral(v) * self.scale.to(v.dtype)[:, None]


def window(x: Tensor, y: Tensor) -> Tensor:
    """(1 - |x - y|^2)^2 in a ball of radius 1: smooth, so that a point that crosses the radius makes no difference."""
    return (1 - (x - y).square().sum(1)).clamp_min(0).square()


def features(x: Tensor, a: Tensor, radius: float, which: tuple[int, ...]) -> Tensor:
    """Of points and fields, for kernels: points over the radius, and some of the fields."""
    return torch.cat([x / radius, *(a[:, i : i + 1] for i in which)], 1)
