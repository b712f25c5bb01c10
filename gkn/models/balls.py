"""Integrals over small balls, with a smooth window: what does not depend on the kernel is worked out once."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gkn.graph import Graph
from gkn.memory import available_memory
from gkn.models.hidden import differentiable
from gkn.models.kernel import Integral, Kernel, linear_relu
from gkn.ops import Backend, autocast, edge_relu, inverse, library, pick, quadrature


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
        self.weights = quadrature(weights, graph, mean=True)
        self.near = self._small(graph, of_x, of_y, dim, like, dtype)
        if self.near is not None:
            return
        kept = graph.num_edges * sum(like.sizes) * dtype.itemsize * (3 * many if torch.is_grad_enabled() else 1)
        self.recompute = kept > available_memory(of_x.device) // 2 if recompute is None else recompute
        self.back: Tensor | None = None
        if self.backend == "factored" and not graph.is_sorted and not self.recompute:
            graph, order = graph.by_degree
            of_x, self.back = of_x.index_select(0, order), torch.argsort(order)
        self.graph, self.of_x, self.of_y = graph, of_x, of_y
        self.rho, self.scale = self._measure(dim)

    @torch.no_grad()
    def _small(self, graph: Graph, of_x: Tensor, of_y: Tensor, dim: int, like: Kernel, dtype: torch.dtype) -> Any:
        """Where all of it can be done on the chip: how."""
        if library.is_transformed() or of_x.dtype != torch.float32 or not on_chip(like, of_x.shape[1], dtype, self.backend):
            return None
        from gkn.ops import near

        return near.Near(graph, of_x, of_y, dim, None if self.weights is None else self.weights.float())

    @torch.no_grad()
    def _measure(self, dim: int) -> tuple[Tensor, Tensor]:
        """The window on every edge, and for every target 1 / its integral, or 0 if there is nothing in its ball."""
        graph, kind = self.graph, torch.promote_types(self.of_x.dtype, torch.float32)
        rho = window(self.of_x[:, :dim].index_select(0, graph.targets), self.of_y[:, :dim].index_select(0, graph.src)).to(kind)
        mass = rho if self.weights is None else rho * self.weights.to(kind).index_select(0, graph.src)
        edges = torch.arange(graph.num_edges, device=graph.device, dtype=torch.int32)
        whole = library.segment_sum(mass[:, None], graph.ptr, edges)[:, 0]
        return rho, inverse(whole)

    def __call__(self, kernel: Kernel, v: Tensor) -> Tensor:
        """Of v on the sources; 0 where nothing is in the ball."""
        if self.near is not None:
            if self.weights is not None:
                v = v * self.weights.to(v.dtype)[:, None]
            (weight, bias), v = kernel.layers()[0], autocast(v)[0]
            out: Tensor = _OnChip.apply(  # type: ignore[no-untyped-call]
                self.near, kernel.first.weight, kernel.first.bias, weight, bias, kernel.W, kernel.B, v
            )
            return out
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


def on_chip(like: Kernel, features: int, dtype: torch.dtype, backend: Backend) -> bool:
    """Whether integrals of such a kernel can be done without anything of an edge in memory."""
    if backend != "fused":
        return False
    from gkn.ops import near

    return near.fits(like.sizes, features, max(like.W.shape[1:]), dtype)


class _OnChip(torch.autograd.Function):
    """The integral of a small network, by `gkn.ops.near`. Points and fields are constants."""

    @staticmethod
    def forward(ctx: Any, near: Any, first: Tensor, shift: Tensor, *others: Tensor) -> Tensor:
        *small, v = others
        with torch.autocast(v.device.type, enabled=False):
            p, q = _parts_of(near, first, shift)
            out: Tensor = near.forward(p, q, *(x.to(v.dtype).contiguous() for x in small), v.contiguous())
        ctx.near = near
        ctx.save_for_backward(first, shift, *others)
        return out

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> tuple[Any, ...]:
        near, given = ctx.near, ctx.saved_tensors
        if torch.is_grad_enabled():  # somebody will differentiate once more
            return None, *differentiable(lambda *some: _on_edges(near, *some), given, d)
        first, shift, *small, v = given
        with torch.autocast(v.device.type, enabled=False):
            p, q = _parts_of(near, first, shift)
            all_of_them = (x.to(v.dtype).contiguous() for x in small)
            dp, moved, *rest, dv = near.backward(d.to(v.dtype).contiguous(), p, q, *all_of_them, v.contiguous())
            of_x = dp.T @ near.of_x
            found = torch.cat([of_x, of_x + moved], 1), dp.sum(0), *rest
        return None, *(x.to(like.dtype) for x, like in zip(found, given, strict=False)), dv


def _parts_of(near: Any, first: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
    """The first layer's share of targets and of sources."""
    of_x, of_y = first.chunk(2, dim=1)
    return torch.addmm(shift, near.of_x, of_x.T), near.of_y @ of_y.T


def _on_edges(near: Any, first: Tensor, shift: Tensor, weight: Tensor, bias: Tensor, W: Tensor, B: Tensor, v: Tensor) -> Tensor:
    """The same by operations that can be differentiated as often as one likes."""
    graph, kind = near.graph, v.dtype
    h = edge_relu(*_parts_of(near, first, shift), graph, dtype=kind, backend="factored")
    h = linear_relu(h, weight.to(kind), bias.to(kind))
    rho = window(near.x.index_select(0, graph.targets), near.y.index_select(0, graph.src)).to(kind)
    return library.kernel_sum(h, W.to(kind), B.to(kind), v, graph, rho, near.scale, "factored")


def window(x: Tensor, y: Tensor) -> Tensor:
    """(1 - |x - y|^2)^2 in a ball of radius 1: smooth, so that a point that crosses the radius makes no difference."""
    return (1 - (x - y).square().sum(1)).clamp_min(0).square()


def features(x: Tensor, a: Tensor, radius: float, which: tuple[int, ...]) -> Tensor:
    """Of points and fields, for kernels: points over the radius, and some of the fields."""
    return torch.cat([x / radius, *(a[:, i : i + 1] for i in which)], 1)
