"""Integrals over small balls with a smooth window, divided by the integral of the window.

    out(x) = sum_y w(y) window(x, y) v(y) kappa(x, y) / sum_y w(y) window(x, y)

or, given values t(x) of the targets, of differences: all of kappa but its constant B is applied to v(y) - t(x). If the graph
has moments, the window is corrected so that polynomials are integrated exactly (corrected.py). `make_balls` computes what does
not depend on the kernel once, and chooses between

    ChipBalls    no hidden features of edges are ever stored: small kernels (near.py)
    EdgeBalls    hidden features of all edges, kept for the backward pass
    BlockBalls   hidden features of a block of targets at a time, computed again in the backward pass
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from functools import cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from gkn.graph.graph import Graph, window
from gkn.ops import Backend, autocast, edge_silu, inverse, library, near, near_cpp, pick, quadrature
from gkn.ops.corrected import coefficients, corrected_window
from gkn.ops.edges import Measure
from gkn.ops.hidden import differentiable
from gkn.ops.integral import plan_integral
from gkn.ops.kernel import Kernel
from gkn.system.memory import available_memory


class Neighbourhoods(NamedTuple):
    """Balls around targets, and the sources in them.

    graph        targets <- sources within the radius
    of_x, of_y   features of targets and of sources, see `ball_features`; the first `dim` are their points over the radius
    weights      quadrature weights of the sources; None: all equal
    """

    graph: Graph
    of_x: Tensor
    of_y: Tensor
    dim: int
    weights: Tensor | None


def ball_features(x: Tensor, a: Tensor, radius: float, which: tuple[int, ...]) -> Tensor:
    """Return the features kernels see of a point: its coordinates over the radius, and some of the fields."""
    if x.requires_grad and torch.is_grad_enabled():
        raise ValueError("a gradient is asked of points, but balls and windows take them as constants; detach them")
    return torch.cat([x / radius, *(a[:, i : i + 1] for i in which)], 1)


def make_balls(
    where: Neighbourhoods, like: Kernel, count: int, *, recompute: bool | None = None, backend: Backend | None = None
) -> Balls:
    """Prepare integrals over balls.

    like        a kernel of the kind that will be integrated
    count       number of integrals whose derivative is needed together; decides whether features fit into memory
    recompute   do not keep hidden features; None: keep them if they fit
    """
    dtype = autocast(where.of_x)[0].dtype
    chosen = pick("factored" if backend == "compiled" else backend, where.of_x.device, dtype, like.W.shape[1])
    where = where._replace(weights=quadrature(where.weights, where.graph, mean=True))
    constant = not (torch.is_grad_enabled() and (where.of_x.requires_grad or where.of_y.requires_grad))
    plain = constant and not (library.is_transformed() or torch.compiler.is_compiling())
    if plain and where.graph.moments is None and fits_chip(like, where.of_x, dtype, chosen):
        return ChipBalls(where)
    if (plain or backend == "compiled") and _compiled(like, where.of_x, dtype, backend) and plain:
        return ChipBalls(where, compiled=True)
    kept = where.graph.num_edges * sum(like.sizes) * dtype.itemsize * (3 * count if torch.is_grad_enabled() else 1)
    if kept > available_memory(where.of_x.device) // 2 if recompute is None else recompute:
        return BlockBalls(where, chosen)
    return EdgeBalls(where, chosen)


def fits_chip(like: Kernel, of_x: Tensor, dtype: torch.dtype, backend: Backend) -> bool:
    """True if integrals of such a kernel of such features can be computed on a GPU without storing anything per edge."""
    if backend != "fused" or not like.smooth or of_x.dtype != torch.float32:
        return False
    from gkn.ops import near_triton

    return near_triton.fits(like.sizes, of_x.shape[1], max(like.W.shape[1:]), dtype)


def _compiled(like: Kernel, of_x: Tensor, dtype: torch.dtype, backend: Backend | None) -> bool:
    """True if integrals of such a kernel of such features are computed by near.cpp."""
    if backend not in (None, "compiled"):
        return False
    suits = of_x.device.type == "cpu" and of_x.dtype == torch.float32 and like.smooth and near_cpp.fits(like.sizes, dtype)
    if not suits and backend is None:
        return False
    reason = near_cpp.why_not() if suits else "needed a CPU, float32, and a smooth kernel with two layers of at most 64 and 32"
    if reason and backend is None:
        _say_once(f"NearFar and Multigrid are several times slower here than they could be: {reason}")
    if reason and backend is not None:
        raise ValueError(f"backend='compiled' cannot be used here: {reason}")
    return reason is None


@cache
def _say_once(text: str) -> None:
    warnings.warn(text, stacklevel=2)


class Balls(ABC):
    """Integrals over the balls of one graph."""

    @abstractmethod
    def __call__(self, kernel: Kernel, v: Tensor, target_v: Tensor | None = None) -> Tensor:
        """Integrate v (sources, n), or with `target_v` (targets, n) its differences; 0 where nothing is in the ball."""


class EdgeBalls(Balls):
    """Integrals with the hidden features of all edges in memory."""

    def __init__(self, where: Neighbourhoods, backend: Backend) -> None:
        graph, of_x, back = where.graph, where.of_x, None
        if backend == "factored" and not graph.is_sorted:
            graph, order = graph.by_degree
            of_x, back = of_x.index_select(0, order), torch.argsort(order)
        self.where, self.backend, self._back = where._replace(graph=graph, of_x=of_x), backend, back
        self._rho, self._scale = _window_and_scale(self.where, _correction(self.where))

    def __call__(self, kernel: Kernel, v: Tensor, target_v: Tensor | None = None) -> Tensor:
        p, q = kernel.parts(self.where.of_x, self.where.of_y)
        h = kernel.edges(p, q, self.where.graph, self.backend, overwrite=target_v is None)
        over = Measure(self.where.graph, self._rho, self._scale, self.backend)
        return _of_features(h, (kernel.W, kernel.B), (v, target_v), self.where.weights, over, self._back)


class BlockBalls(Balls):
    """Integrals in memory that does not grow with the number of edges."""

    def __init__(self, where: Neighbourhoods, backend: Backend) -> None:
        self.where, self.backend = where, backend
        self._x, self._window = where.of_x[:, : where.dim], window
        c = _correction(where)
        if c is not None:
            self._x, self._window = torch.cat([self._x, c.to(self._x)], 1), partial(_corrected, where.dim)
        self._scale = _window_and_scale(where, c)[1]

    def __call__(self, kernel: Kernel, v: Tensor, target_v: Tensor | None = None) -> Tensor:
        out = self._integral(kernel, v)
        if target_v is None:
            return out
        return out - _moved(self._integral(_Means(kernel), v.new_ones(len(v), 1)), kernel.W, target_v)

    def _integral(self, kernel: Kernel, v: Tensor) -> Tensor:
        graph, of_x, of_y, dim, weights = self.where
        options: dict[str, Any] = {"weights": weights, "rho": self._window, "points": (self._x, of_y[:, :dim]), "mean": False}
        plan = plan_integral(kernel, graph, of_x, of_y, **options, recompute=True, backend=self.backend)
        return plan.integral()(v) * self._scale.to(v.dtype)[:, None]


class ChipBalls(Balls):
    """Integrals of small kernels by near.py. Points and fields are constants."""

    def __init__(self, where: Neighbourhoods, compiled: bool = False) -> None:
        graph, of_x, of_y, dim, weights = where
        weights = None if weights is None else weights.float()
        with torch.no_grad():
            if compiled:
                c = _correction(where)
                windows = None if c is None else corrected_window(*_ends(where), c.index_select(0, graph.targets)).float()
                self.near: near.Near = near_cpp.CompiledNear(graph, of_x, of_y, dim, weights, windows)
            else:
                from gkn.ops import near_triton

                self.near = near_triton.TritonNear(graph, of_x, of_y, dim, weights)

    def __call__(self, kernel: Kernel, v: Tensor, target_v: Tensor | None = None) -> Tensor:
        (weight, bias), last = kernel.layers()[0], (kernel.W, kernel.B)
        v, *more = autocast(v) if target_v is None else autocast(v, target_v)
        out: Tensor = _OnChip.apply(  # type: ignore[no-untyped-call]
            self.near, kernel.first_weight(), kernel.first.bias, weight, bias, *last, v, *more
        )
        return out


@torch.no_grad()
def _window_and_scale(where: Neighbourhoods, c: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the window on every edge, and for every target 1 / its integral, or 0 if nothing is in its ball.

    c   coefficients by which the windows are corrected, if they are
    """
    graph, kind = where.graph, torch.promote_types(where.of_x.dtype, torch.float32)
    at, of = _ends(where)
    rho = (window(at, of) if c is None else corrected_window(at, of, c.index_select(0, graph.targets))).to(kind)
    mass = rho if where.weights is None else rho * where.weights.to(kind).index_select(0, graph.src)
    edges = torch.arange(graph.num_edges, device=graph.device, dtype=torch.int32)
    whole = library.segment_sum(mass[:, None], graph.ptr, edges)[:, 0]
    return rho, inverse(whole)


def _ends(where: Neighbourhoods) -> tuple[Tensor, Tensor]:
    """Return the points of target and source of every edge, in units of the radius."""
    x, y = where.of_x[:, : where.dim], where.of_y[:, : where.dim]
    return x.index_select(0, where.graph.targets), y.index_select(0, where.graph.src)


def _correction(where: Neighbourhoods) -> Tensor | None:
    """Return the coefficients by which the windows of the targets are corrected, if the graph has moments."""
    if where.graph.moments is None:
        return None
    return coefficients(where.graph, where.of_x[:, : where.dim], where.of_y[:, : where.dim], where.weights, where.graph.moments)


def _corrected(dim: int, x: Tensor, y: Tensor) -> Tensor:
    """Return the corrected window, given targets whose coefficients follow their points."""
    return corrected_window(x[:, :dim], y, x[:, dim:])


class _Means(Kernel):
    """A kernel with the same hidden layers. Its integral of v = 1 is the mean of the last hidden features."""

    def __init__(self, kernel: Kernel) -> None:
        nn.Module.__init__(self)
        self.features, self.first, self.hidden, self.sizes = kernel.features, kernel.first, kernel.hidden, kernel.sizes
        self.smooth, self.relative = kernel.smooth, kernel.relative
        self.register_buffer("tied", kernel.tied, persistent=False)
        self.W, self.B = (nn.Parameter(x, requires_grad=False) for x in _each(kernel.W))


def _each(W: Tensor) -> tuple[Tensor, Tensor]:
    """Return W and B for which the integral of v = 1 is every hidden feature by itself."""
    return torch.eye(len(W), dtype=W.dtype, device=W.device)[:, None], W.new_zeros(1, len(W))


def _moved(means: Tensor, W: Tensor, target_v: Tensor) -> Tensor:
    """Return sum_k means(x)_k W_k target_v(x)."""
    W, target_v = autocast(W, target_v)
    moved: Tensor = (means.to(target_v.dtype)[:, :, None] * target_v[:, None, :]).flatten(1) @ W.flatten(0, 1)
    return moved


def _of_features(
    h: Tensor,
    last: tuple[Tensor, Tensor],
    values: tuple[Tensor, Tensor | None],
    weights: Tensor | None,
    over: Measure,
    back: Tensor | None = None,
) -> Tensor:
    """Return the integral, given hidden features on all edges. `back`: the place of each target, if they are sorted."""

    def integral(W: Tensor, B: Tensor, v: Tensor) -> Tensor:
        W, B, v = autocast(W, B, v)
        if weights is not None:
            v = v * weights.to(v.dtype)[:, None]
        assert over.rho is not None
        out = library.kernel_sum(h, W, B, v, over._replace(rho=over.rho.to(v.dtype)))
        return out if back is None else out.index_select(0, back)

    (W, B), (v, target_v) = last, values
    out = integral(W, B, v)
    return out if target_v is None else out - _moved(integral(*_each(W), v.new_ones(len(v), 1)), W, target_v)


class _OnChip(torch.autograd.Function):
    """The integral of a small network by near.py, with its derivative."""

    @staticmethod
    def forward(ctx: Any, balls: near.Near, first: Tensor, shift: Tensor, *others: Tensor) -> Tensor:
        weight, bias, W, B, v, *target_v = others
        with torch.autocast(v.device.type, enabled=False):
            net, last = _rounded(balls, (first, shift, weight, bias), (W, B), v.dtype)
            out: Tensor = balls.forward(net, *last, v.contiguous(), target_v[0].contiguous() if target_v else None)
        ctx.balls = balls
        ctx.save_for_backward(first, shift, *others)
        return out

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> tuple[Any, ...]:
        balls, given = ctx.balls, ctx.saved_tensors
        if torch.is_grad_enabled():  # the derivative is differentiated again
            return None, *differentiable(lambda *some: _on_edges(balls, *some), given, d)
        first, shift, weight, bias, W, B, v, *target_v = given
        with torch.autocast(v.device.type, enabled=False):
            net, last = _rounded(balls, (first, shift, weight, bias), (W, B), v.dtype)
            values = v.contiguous(), target_v[0].contiguous() if target_v else None
            dp, moved, *rest = balls.backward(d.to(v.dtype).contiguous(), net, *last, *values)
            of_x = dp.T @ balls.of_x
            found = torch.cat([of_x, of_x + moved], 1), dp.sum(0), *rest
        return None, *(x.to(like.dtype) for x, like in zip(found, given, strict=False))


def _rounded(
    balls: near.Near, layers: tuple[Tensor, ...], last: tuple[Tensor, Tensor], dtype: torch.dtype
) -> tuple[near.Network, tuple[Tensor, Tensor]]:
    """Return the network near.py takes, with all but its first layer in the type of the values."""
    first, shift, weight, bias = layers
    net = near.Network(*_parts_of(balls, first, shift), *(x.to(dtype).contiguous() for x in (weight, bias)))
    W, B = (x.to(dtype).contiguous() for x in last)
    return net, (W, B)


def _parts_of(balls: near.Near, first: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
    """Return the first layer's share of targets and of sources."""
    of_x, of_y = first.chunk(2, dim=1)
    return torch.addmm(shift, balls.of_x, of_x.T), balls.of_y @ of_y.T


def _on_edges(balls: near.Near, first: Tensor, shift: Tensor, *others: Tensor) -> Tensor:
    """Return the integral by operations that can be differentiated any number of times."""
    weight, bias, W, B, v, *target_v = others
    graph, kind = balls.graph, v.dtype
    h = edge_silu(*_parts_of(balls, first, shift), graph, kind)
    h = nn.functional.silu(nn.functional.linear(h, weight.to(kind), bias.to(kind)))
    values = v, target_v[0] if target_v else None
    return _of_features(h, (W.to(kind), B.to(kind)), values, balls.weights, balls.measure(kind))
