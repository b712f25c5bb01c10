"""The operators as torch sees them: registered, with their derivatives, for both fast implementations at once.

    gkn::kernel_sum            out(x) = scale(x) sum_y rho(x, y) v(y) kappa(x, y)
    gkn::kernel_sum_backward   its derivative with respect to h, W, B and v
    gkn::edge_relu, gkn::edge_relu_backward

The form is linear in each of its arguments, so derivatives of the backward are sums of the two themselves: any order exists.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from gkn.graph.graph import Graph
from gkn.ops import factored, reference
from gkn.ops.factored import close_where as close_where
from gkn.ops.factored import segment_sum as segment_sum
from gkn.ops.last import Found, Last
from gkn.system.memory import check_room

BLOCK_BYTES = {"cpu": 17 * 2**20, "cuda": 2**29}  # of A, the sums of h (x) v, at a time


def kernel_sum(
    h: Tensor, W: Tensor, B: Tensor, v: Tensor, graph: Graph, rho: Tensor | None, scale: Tensor, backend: str
) -> Tensor:
    if backend == "reference" or is_transformed():
        check_room(2 * h.shape[0] * W.shape[1] * W.shape[2] * v.element_size(), f"a matrix for every edge of {graph}", v.device)
        return reference.kernel_sum(h, W, B, v, graph.ptr, graph.src, rho, scale).to(v.dtype)
    out: Tensor = torch.ops.gkn.kernel_sum(*_contiguous(h, W, B, v), *_arrays(graph, h, W, B, v), rho, scale, backend)
    return out


def kernel_sum_chained(
    h: Tensor, W: Tensor, B: Tensor, v: Tensor, graph: Graph, rho: Tensor | None, scale: Tensor, backend: str
) -> tuple[Tensor, Tensor]:
    """The same, and h again. Steps that pass h on to each other this way add up its gradient in place, in one array."""
    if backend == "reference" or is_transformed() or torch.compiler.is_compiling() or not torch.is_grad_enabled():
        return kernel_sum(h, W, B, v, graph, rho, scale, backend), h
    out, h = _Chained.apply(*_contiguous(h, W, B, v), *_arrays(graph, h, W, B, v), rho, scale, backend)
    return out, h


def edge_relu(p: Tensor, q: Tensor, graph: Graph, dtype: torch.dtype, backend: str) -> Tensor:
    if backend == "reference" or is_transformed():
        return reference.edge_relu(p, q, graph.ptr, graph.src).to(dtype)
    arrays = _arrays(graph, p, q)
    out: Tensor = torch.ops.gkn.edge_relu(*_contiguous(p, q), *arrays, dtype, backend)
    return out


class implementation:
    """The operations themselves, without torch's dispatch: for functions that bring their own derivatives, where it costs more
    than the arithmetic of a small block."""

    @staticmethod
    def forward(
        h: Tensor, last: Last, v: Tensor, graph: Graph, rho: Tensor | None, scale: Tensor, backend: str, relu: bool = False
    ) -> Tensor:
        sizes = _block(v, last.W), graph.max_degree
        out: Tensor = _module(backend).forward(h, last, v.contiguous(), graph.ptr, graph.src, rho, scale, *sizes, relu)
        return out

    @staticmethod
    def backward(
        d: Tensor,
        h: Tensor,
        last: Last,
        found: Found,
        v: Tensor,
        graph: Graph,
        rho: Tensor | None,
        scale: Tensor,
        backend: str,
        dh: Tensor,
        add: bool = False,
        door: Tensor | None = None,
        close: bool = True,
    ) -> Tensor:
        """dv, closed where door <= 0; dh is written, or added to, and closed where h <= 0; `found` takes what is of `last`."""
        arrays = graph.ptr, graph.src, graph.by_source
        sizes = _block(v, last.W), graph.max_degree
        dv: Tensor = _module(backend).backward(
            d.contiguous(), h, last, found, v.contiguous(), *arrays, rho, scale, dh, *sizes, add, close, door
        )
        return dv

    @staticmethod
    def edge_relu(p: Tensor, q: Tensor, graph: Graph, dtype: torch.dtype, backend: str) -> Tensor:
        out: Tensor = _module(backend).edge_relu(p, q, graph.ptr, graph.src, dtype, graph.max_degree)
        return out

    @staticmethod
    def edge_relu_backward(d: Tensor, out: Tensor, graph: Graph, dtype: torch.dtype, backend: str) -> tuple[Tensor, Tensor]:
        """d is overwritten."""
        dp, dq = _module(backend).edge_relu_backward(d, out, graph.ptr, graph.by_source, dtype, own=True)
        return dp, dq


def is_transformed() -> bool:
    """Inside forward-mode or functional transforms, which know the reference's operations and not ours."""
    if torch.compiler.is_compiling():
        return False
    return forward_ad._current_level >= 0 or torch._C._functorch.peek_interpreter_stack() is not None


def kernel_sum_through(
    p: Tensor,
    q: Tensor,
    weight: Tensor,
    bias: Tensor,
    W: Tensor,
    B: Tensor,
    v: Tensor,
    graph: Graph,
    scale: Tensor,
) -> Tensor:
    """kernel_sum of h = relu(weight relu(p + q) + bias), where h is neither given nor ever stored. Forward only, fused only."""
    p, q, weight, bias, W, B, v = _contiguous(p, q, weight, bias, W, B, v)
    out: Tensor = _module("fused").through(p, q, weight, bias, Last(W, B), v, graph.ptr, graph.src, scale, _block(v, W))
    return out


def fits_through(kernel_sizes: tuple[int, ...], n: int, backend: str) -> bool:
    """Whether kernel_sum_through can be used."""
    return backend == "fused" and len(kernel_sizes) == 2 and bool(_module("fused").fits_through(kernel_sizes[0], n))


def edge_relu_backward(d: Tensor, out: Tensor, graph: Graph, dtype: torch.dtype, backend: str) -> tuple[Tensor, Tensor]:
    """The gradients of p and q, of type `dtype`; `out` is what edge_relu gave."""
    dp, dq = torch.ops.gkn.edge_relu_backward(d, out, graph.ptr, graph.src, *graph.by_source, dtype, backend)
    return dp, dq


def _contiguous(*tensors: Tensor) -> list[Tensor]:
    return [tensor.contiguous() for tensor in tensors]


def _arrays(graph: Graph, *inputs: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, int]:
    """ptr, src, the edges by source (only for a backward pass), and the largest degree."""
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in inputs):
        return graph.ptr, graph.src, *graph.by_source, graph.max_degree
    return graph.ptr, graph.src, graph.ptr[:0], graph.src[:0], graph.max_degree


def _block(v: Tensor, W: Tensor) -> int:
    room = BLOCK_BYTES.get(v.device.type, BLOCK_BYTES["cpu"]) // (2 if v.device.type == "cuda" and v.element_size() > 2 else 1)
    return max(1, room // (W.shape[0] * W.shape[1] * v.element_size()))


def _module(backend: str) -> Any:
    if backend != "fused":
        return factored
    try:
        from gkn.ops import fused
    except ImportError as error:
        raise ImportError("the fused implementation needs Triton: pip install 'gkn[gpu]'") from error
    return fused


_ARRAYS = "Tensor ptr, Tensor src, Tensor source_ptr, Tensor source_edges"
_INPUTS = f"Tensor h, Tensor W, Tensor B, Tensor v, {_ARRAYS}, int max_degree, Tensor? rho, Tensor scale, str backend"


@torch.library.custom_op("gkn::kernel_sum", mutates_args=(), schema=f"({_INPUTS}) -> Tensor")
def _kernel_sum(h, W, B, v, ptr, src, source_ptr, source_edges, max_degree, rho, scale, backend):
    return _now(h, W, B, v, ptr, src, source_ptr, source_edges, max_degree, rho, scale, backend)


def _now(h, W, B, v, ptr, src, source_ptr, source_edges, max_degree, rho, scale, backend):
    with torch.autocast(v.device.type, enabled=False):  # all is of one type already, also in a backward pass inside autocast
        return _module(backend).forward(h, Last(W, B), v, ptr, src, rho, scale, _block(v, W), max_degree)


@_kernel_sum.register_fake
def _(h, W, B, v, ptr, src, source_ptr, source_edges, max_degree, rho, scale, backend):
    return v.new_empty(scale.shape[0], W.shape[2])


@torch.library.custom_op(
    "gkn::kernel_sum_backward", mutates_args=(), schema=f"(Tensor d, {_INPUTS}) -> (Tensor, Tensor, Tensor, Tensor)"
)
def _kernel_sum_backward(d, h, W, B, v, ptr, src, source_ptr, source_edges, max_degree, rho, scale, backend):
    dh = torch.empty_like(h)
    return dh, *_into(dh, False, d, h, W, B, v, ptr, src, source_ptr, source_edges, max_degree, rho, scale, backend)


@_kernel_sum_backward.register_fake
def _(d, h, W, B, v, ptr, src, source_ptr, source_edges, max_degree, rho, scale, backend):
    return tuple(torch.empty_like(x) for x in (h, W, B, v))


def _into(dh, add, d, h, W, B, v, ptr, src, source_ptr, source_edges, max_degree, rho, scale, backend):
    """dW, dB and dv; dh is written, or added to."""
    last = Last(W, B)
    found, arrays = Found(last), (ptr, src, (source_ptr, source_edges))
    sizes = _block(v, W), max_degree
    with torch.autocast(v.device.type, enabled=False):  # it may be on in a backward pass, though it was off in the forward pass
        dv = _module(backend).backward(d.contiguous(), h, last, found, v, *arrays, rho, scale, dh, *sizes, add)
    return *(sums.to(W.dtype) for sums in found.done()), dv


def _save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    *ctx.arrays, ctx.max_degree, ctx.rho, ctx.scale, ctx.backend = inputs[4:]
    ctx.save_for_backward(*inputs[:4])


def _rest(ctx: Any) -> tuple[Any, ...]:
    return *ctx.arrays, ctx.max_degree, ctx.rho, ctx.scale, ctx.backend


def _backward(ctx: Any, d: Tensor) -> tuple[Any, ...]:
    return *torch.ops.gkn.kernel_sum_backward(d, *ctx.saved_tensors, *_rest(ctx)), *[None] * 8


_kernel_sum.register_autograd(_backward, setup_context=_save)


def _save_backward(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    _save(ctx, inputs[1:], output)
    ctx.save_for_backward(*inputs[:5])


def _double_backward(ctx: Any, *given: Tensor | None) -> tuple[Any, ...]:
    """<d, out(h, W, B, v)> in the direction of `given`: one of h, (W, B) and v at a time is replaced by its direction."""
    d, h, W, B, v = ctx.saved_tensors
    gh, gW, gB, gv = (torch.zeros_like(x) if g is None else g for g, x in zip(given, (h, W, B, v), strict=True))
    terms = ((gh, W, torch.zeros_like(B), v), (h, gW, gB, v), (h, W, B, gv))
    out = sum(torch.ops.gkn.kernel_sum(*_contiguous(*term), *_rest(ctx)) for term in terms)
    (_, W1, _, v1), (h2, _, _, v2), (h3, W3, B3, _) = (
        torch.ops.gkn.kernel_sum_backward(d, *_contiguous(*term), *_rest(ctx)) for term in terms
    )
    return out, h2 + h3, W1 + W3, B3, v1 + v2, *[None] * 8


_kernel_sum_backward.register_autograd(_double_backward, setup_context=_save_backward)


class _Chained(torch.autograd.Function):
    """kernel_sum that hands h on: the gradient of h arrives with what later steps added, and leaves with this step's added."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, Tensor]:
        _save(ctx, inputs, None)
        ctx.set_materialize_grads(False)
        return _now(*inputs), inputs[0].view_as(inputs[0])

    @staticmethod
    def backward(ctx: Any, d: Tensor | None, dh: Tensor | None) -> tuple[Any, ...]:
        if d is None:
            return dh, *[None] * 11
        saved = ctx.saved_tensors
        if torch.is_grad_enabled():  # somebody will differentiate once more: nothing in place
            own, *others = torch.ops.gkn.kernel_sum_backward(d, *saved, *_rest(ctx))
            return own if dh is None else own + dh, *others, *[None] * 8
        add = dh is not None
        total = torch.empty_like(saved[0]) if dh is None else dh.contiguous()
        return total, *_into(total, add, d, *saved, *_rest(ctx)), *[None] * 8


@torch.library.custom_op(
    "gkn::edge_relu",
    mutates_args=(),
    schema=f"(Tensor p, Tensor q, {_ARRAYS}, int max_degree, ScalarType dtype, str backend) -> Tensor",
)
def _edge_relu(p, q, ptr, src, source_ptr, source_edges, max_degree, dtype, backend):
    return _module(backend).edge_relu(p, q, ptr, src, dtype, max_degree)


@_edge_relu.register_fake
def _(p, q, ptr, src, source_ptr, source_edges, max_degree, dtype, backend):
    return q.new_empty(src.shape[0], q.shape[1], dtype=dtype)


@torch.library.custom_op(
    "gkn::edge_relu_backward",
    mutates_args=(),
    schema=f"(Tensor d, Tensor out, {_ARRAYS}, ScalarType dtype, str backend) -> (Tensor, Tensor)",
)
def _edge_relu_backward(d, out, ptr, src, source_ptr, source_edges, dtype, backend):
    return _module(backend).edge_relu_backward(d.contiguous(), out, ptr, (source_ptr, source_edges), dtype)


@_edge_relu_backward.register_fake
def _(d, out, ptr, src, source_ptr, source_edges, dtype, backend):
    return tuple(d.new_empty(p.shape[0] - 1, d.shape[1], dtype=dtype) for p in (ptr, source_ptr))


def _save_edge(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.arrays, ctx.dtype, ctx.backend = inputs[2:6], inputs[0].dtype, inputs[8]
    ctx.save_for_backward(output)


def _edge_backward(ctx: Any, d: Tensor) -> tuple[Any, ...]:
    return *torch.ops.gkn.edge_relu_backward(d, *ctx.saved_tensors, *ctx.arrays, ctx.dtype, ctx.backend), *[None] * 7


_edge_relu.register_autograd(_edge_backward, setup_context=_save_edge)


def _save_edge_backward(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.ptr, ctx.src, ctx.dtype = inputs[2], inputs[3], inputs[0].dtype
    ctx.save_for_backward(inputs[1])


def _edge_double_backward(ctx: Any, dp: Tensor, dq: Tensor) -> tuple[Any, ...]:
    (out,) = ctx.saved_tensors
    target = torch.arange(len(dp), device=out.device).repeat_interleave(ctx.ptr.diff(), output_size=len(out))
    sent = dp.index_select(0, target) + dq.index_select(0, ctx.src)
    return (sent * (out > 0)).to(ctx.dtype), *[None] * 7


_edge_relu_backward.register_autograd(_edge_double_backward, setup_context=_save_edge_backward)
