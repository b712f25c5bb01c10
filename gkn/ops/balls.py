"""Integrals over small balls, with a smooth window: what does not depend on the kernel is worked out once."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from gkn.graph.graph import Graph
from gkn.ops import Backend, autocast, inverse, library, pick, quadrature
from gkn.ops.hidden import differentiable, edge_silu
from gkn.ops.kernel import Integral, Kernel
from gkn.system.memory import available_memory


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

    def __call__(self, kernel: Kernel, v: Tensor, own: Tensor | None = None) -> Tensor:
        """Of v on the sources; 0 where nothing is in the ball. With values of the targets' own, of differences: all of kappa
        but its constant, B, meets v(y) - own(x)."""
        if self.near is not None:
            (weight, bias), small = kernel.layers()[0], (kernel.W, kernel.B)
            v, *more = autocast(v) if own is None else autocast(v, own)
            out: Tensor = _OnChip.apply(  # type: ignore[no-untyped-call]
                self.near, kernel.first.weight, kernel.first.bias, weight, bias, *small, v, *more
            )
            return out
        if self.recompute:
            return self._in_blocks(kernel, v, own)
        p, q = kernel.parts(self.of_x, self.of_y)
        h = kernel.edges(p, q, self.graph, self.backend, own=own is None)
        given = self.weights, self.graph, self.rho, self.scale, self.backend, self.back
        return _of_features(h, kernel.W, kernel.B, v, own, *given)

    def _in_blocks(self, kernel: Kernel, v: Tensor, own: Tensor | None) -> Tensor:
        """In memory that does not grow with the edges."""

        def integral(kernel: Kernel, v: Tensor) -> Tensor:
            graph, of_x, of_y = self.given
            options: dict[str, Any] = {"weights": self.weights, "rho": window, "points": self.points, "mean": False}
            whole = Integral(kernel, graph, of_x, of_y, **options, recompute=True, backend=self.backend)
            return whole(v) * self.scale.to(v.dtype)[:, None]

        out = integral(kernel, v)
        if own is None:
            return out
        return out - _moved(integral(_Means(kernel), v.new_ones(len(v), 1)), kernel.W, own)


class _Means(Kernel):
    """A kernel with the same hidden layers, whose integral of 1 is that of the last of them."""

    def __init__(self, kernel: Kernel) -> None:
        nn.Module.__init__(self)
        self.features, self.first, self.hidden, self.sizes = kernel.features, kernel.first, kernel.hidden, kernel.sizes
        self.smooth = kernel.smooth
        self.W, self.B = (nn.Parameter(x, requires_grad=False) for x in _each(kernel.W))


def _each(W: Tensor) -> tuple[Tensor, Tensor]:
    """W and B that give every feature as it is, of v = 1."""
    return torch.eye(len(W), dtype=W.dtype, device=W.device)[:, None], W.new_zeros(1, len(W))


def _moved(means: Tensor, W: Tensor, own: Tensor) -> Tensor:
    """sum_k means(x)_k W_k own(x)."""
    W, own = autocast(W, own)
    moved: Tensor = (means.to(own.dtype)[:, :, None] * own[:, None, :]).flatten(1) @ W.flatten(0, 1)
    return moved


def _of_features(
    h: Tensor,
    W: Tensor,
    B: Tensor,
    v: Tensor,
    own: Tensor | None,
    weights: Tensor | None,
    graph: Graph,
    rho: Tensor,
    scale: Tensor,
    backend: Backend,
    back: Tensor | None = None,
) -> Tensor:
    """The integral, of hidden features on all edges. `back`: where each target is, if they are in another order."""

    def integral(W: Tensor, B: Tensor, v: Tensor) -> Tensor:
        W, B, v = autocast(W, B, v)
        if weights is not None:
            v = v * weights.to(v.dtype)[:, None]
        out = library.kernel_sum(h, W, B, v, graph, rho.to(v.dtype), scale, backend)
        return out if back is None else out.index_select(0, back)

    out = integral(W, B, v)
    return out if own is None else out - _moved(integral(*_each(W), v.new_ones(len(v), 1)), W, own)


def on_chip(like: Kernel, features: int, dtype: torch.dtype, backend: Backend) -> bool:
    """Whether integrals of such a kernel can be done without anything of an edge in memory."""
    if backend != "fused" or not like.smooth:
        return False
    from gkn.ops import near

    return near.fits(like.sizes, features, max(like.W.shape[1:]), dtype)


class _OnChip(torch.autograd.Function):
    """The integral of a small network, by `gkn.ops.near`. Points and fields are constants."""

    @staticmethod
    def forward(ctx: Any, near: Any, first: Tensor, shift: Tensor, *others: Tensor) -> Tensor:
        weight, bias, W, B, v, *own = others
        with torch.autocast(v.device.type, enabled=False):
            p, q = _parts_of(near, first, shift)
            small = (x.to(v.dtype).contiguous() for x in (weight, bias, W, B))
            out: Tensor = near.forward(p, q, *small, v.contiguous(), own[0].contiguous() if own else None)
        ctx.near = near
        ctx.save_for_backward(first, shift, *others)
        return out

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> tuple[Any, ...]:
        near, given = ctx.near, ctx.saved_tensors
        if torch.is_grad_enabled():  # somebody will differentiate once more
            return None, *differentiable(lambda *some: _on_edges(near, *some), given, d)
        first, shift, weight, bias, W, B, v, *own = given
        with torch.autocast(v.device.type, enabled=False):
            p, q = _parts_of(near, first, shift)
            small = (x.to(v.dtype).contiguous() for x in (weight, bias, W, B))
            values = v.contiguous(), own[0].contiguous() if own else None
            dp, moved, *rest = near.backward(d.to(v.dtype).contiguous(), p, q, *small, *values)
            of_x = dp.T @ near.of_x
            found = torch.cat([of_x, of_x + moved], 1), dp.sum(0), *rest
        return None, *(x.to(like.dtype) for x, like in zip(found, given, strict=False))


def _parts_of(near: Any, first: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
    """The first layer's share of targets and of sources."""
    of_x, of_y = first.chunk(2, dim=1)
    return torch.addmm(shift, near.of_x, of_x.T), near.of_y @ of_y.T


def _on_edges(
    near: Any,
    first: Tensor,
    shift: Tensor,
    weight: Tensor,
    bias: Tensor,
    W: Tensor,
    B: Tensor,
    v: Tensor,
    own: Tensor | None = None,
) -> Tensor:
    """The same by operations that can be differentiated as often as one likes."""
    graph, kind = near.graph, v.dtype
    h = edge_silu(*_parts_of(near, first, shift), graph, kind)
    h = nn.functional.silu(nn.functional.linear(h, weight.to(kind), bias.to(kind)))
    rho = window(near.x.index_select(0, graph.targets), near.y.index_select(0, graph.src)).to(kind)
    return _of_features(h, W.to(kind), B.to(kind), v, own, near.weights, graph, rho, near.scale, "factored")


def window(x: Tensor, y: Tensor) -> Tensor:
    """(1 - |x - y|^2)^2 in a ball of radius 1: smooth, so that a point that crosses the radius makes no difference."""
    return (1 - (x - y).square().sum(1)).clamp_min(0).square()


def features(x: Tensor, a: Tensor, radius: float, which: tuple[int, ...]) -> Tensor:
    """Of points and fields, for kernels: points over the radius, and some of the fields."""
    return torch.cat([x / radius, *(a[:, i : i + 1] for i in which)], 1)
