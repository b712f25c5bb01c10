"""The operators as torch sees them: registered, with their derivatives, for both fast implementations.

    gkn::kernel_sum            out(x) = scale(x) sum_y rho(x, y) v(y) kappa(x, y)
    gkn::kernel_sum_backward   its derivative with respect to h, W, B and v
    gkn::edge_relu, gkn::edge_relu_backward

The form is linear in each of its arguments, so derivatives of the backward pass are sums of the two: every order exists.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from gkn.graph.graph import Graph
from gkn.ops import factored, reference
from gkn.ops.dense import is_transformed as is_transformed
from gkn.ops.edges import Edges, Into, Measure
from gkn.ops.factored import close_where as close_where
from gkn.ops.factored import segment_sum as segment_sum
from gkn.ops.last import Found, Last
from gkn.system.memory import check_memory

BLOCK_BYTES = {"cpu": 17 * 2**20, "cuda": 2**29}  # of A, the sums of h (x) v, at a time


class Inputs(NamedTuple):
    """The arguments of gkn::kernel_sum, in the order of its schema."""

    h: Tensor
    W: Tensor
    B: Tensor
    v: Tensor
    ptr: Tensor
    src: Tensor
    source_ptr: Tensor
    source_edges: Tensor
    max_degree: int
    rho: Tensor | None
    scale: Tensor
    backend: str

    def edges(self) -> Edges:
        by_source = self.source_ptr, self.source_edges
        return Edges(self.ptr, self.src, by_source, self.max_degree, self.rho, self.scale, _block(self.v, self.W))


_REST = len(Inputs._fields) - 4  # arguments without a gradient


class RectifiedInputs(NamedTuple):
    """The arguments of gkn::edge_relu, in the order of its schema."""

    p: Tensor
    q: Tensor
    ptr: Tensor
    src: Tensor
    source_ptr: Tensor
    source_edges: Tensor
    max_degree: int
    dtype: torch.dtype
    backend: str


def kernel_sum(h: Tensor, W: Tensor, B: Tensor, v: Tensor, over: Measure) -> Tensor:
    """Return out(x) = scale(x) sum_y rho(x, y) v(y) kappa(x, y)."""
    if over.backend == "reference" or is_transformed():
        needed, graph = 2 * h.shape[0] * W.shape[1] * W.shape[2] * v.element_size(), over.graph
        check_memory(needed, f"a matrix for every edge of {graph}", v.device)
        edges = Edges(graph.ptr, graph.src, (graph.ptr[:0], graph.src[:0]), 0, over.rho, over.scale, 0)
        return reference.forward(h, Last(W, B), v, edges).to(v.dtype)
    out: Tensor = torch.ops.gkn.kernel_sum(*_inputs((h, W, B, v), over))
    return out


def kernel_sum_chained(h: Tensor, W: Tensor, B: Tensor, v: Tensor, over: Measure) -> tuple[Tensor, Tensor]:
    """Return the sum, and h again. Steps that hand h on to each other this way add up its gradient in place, in one array."""
    unrecorded = over.backend == "reference" or is_transformed() or torch.compiler.is_compiling()
    if unrecorded or not torch.is_grad_enabled():
        return kernel_sum(h, W, B, v, over), h
    out, h = _Chained.apply(*_inputs((h, W, B, v), over))
    return out, h


def kernel_sum_through(
    p: Tensor, q: Tensor, layer: tuple[Tensor, Tensor], last: tuple[Tensor, Tensor], v: Tensor, graph: Graph, scale: Tensor
) -> Tensor:
    """Return the sum for h = relu(weight relu(p + q) + bias), which is neither given nor stored. Forward only, fused only."""
    p, q, weight, bias, W, B, v = _contiguous(p, q, *layer, *last, v)
    edges = Edges(graph.ptr, graph.src, (graph.ptr[:0], graph.src[:0]), 0, None, scale, _block(v, W))
    out: Tensor = _module("fused").through(p, q, (weight, bias), Last(W, B), v, edges)
    return out


def fits_through(kernel_sizes: tuple[int, ...], n: int, backend: str) -> bool:
    """True if `kernel_sum_through` can be used."""
    return backend == "fused" and len(kernel_sizes) == 2 and bool(_module("fused").fits_through(kernel_sizes[0], n))


def edge_relu(p: Tensor, q: Tensor, graph: Graph, dtype: torch.dtype, backend: str) -> Tensor:
    """Return relu(p(x) + q(y)) on every edge, in type `dtype`."""
    if backend == "reference" or is_transformed():
        return reference.edge_relu(p, q, graph.ptr, graph.src).to(dtype)
    arrays = _arrays(graph, p, q)
    out: Tensor = torch.ops.gkn.edge_relu(*_contiguous(p, q), *arrays, dtype, backend)
    return out


def edge_relu_backward(d: Tensor, out: Tensor, graph: Graph, dtype: torch.dtype, backend: str) -> tuple[Tensor, Tensor]:
    """Return the gradients of p and q in type `dtype`; `out` is the result of edge_relu."""
    dp, dq = torch.ops.gkn.edge_relu_backward(d, out, graph.ptr, graph.src, *graph.by_source, dtype, backend)
    return dp, dq


class implementation:
    """The operations without torch's dispatch, for functions that bring their own derivatives. For small blocks the dispatch
    costs more than the arithmetic."""

    @staticmethod
    def edges(graph: Graph, rho: Tensor | None, scale: Tensor, v: Tensor, W: Tensor, backward: bool = False) -> Edges:
        by_source = graph.by_source if backward else (graph.ptr[:0], graph.src[:0])
        return Edges(graph.ptr, graph.src, by_source, graph.max_degree, rho, scale, _block(v, W))

    @staticmethod
    def forward(h: Tensor, last: Last, v: Tensor, edges: Edges, backend: str, relu: bool = False) -> Tensor:
        out: Tensor = _module(backend).forward(h, last, v.contiguous(), edges, relu)
        return out

    @staticmethod
    def backward(d: Tensor, h: Tensor, found: Found, v: Tensor, edges: Edges, into: Into, backend: str) -> Tensor:
        """Return dv; write dh; add the gradients of the last layer to `found`."""
        dv: Tensor = _module(backend).backward(d.contiguous(), h, found, v.contiguous(), edges, into)
        return dv

    @staticmethod
    def edge_relu(p: Tensor, q: Tensor, graph: Graph, dtype: torch.dtype, backend: str) -> Tensor:
        out: Tensor = _module(backend).edge_relu(p, q, graph.ptr, graph.src, dtype, graph.max_degree)
        return out

    @staticmethod
    def edge_relu_backward(d: Tensor, out: Tensor, graph: Graph, dtype: torch.dtype, backend: str) -> tuple[Tensor, Tensor]:
        """Return the gradients of p and q. d is overwritten."""
        dp, dq = _module(backend).edge_relu_backward(d, out, graph.ptr, graph.by_source, dtype, overwrite=True)
        return dp, dq


def _contiguous(*tensors: Tensor) -> list[Tensor]:
    return [tensor.contiguous() for tensor in tensors]


def _inputs(given: tuple[Tensor, ...], over: Measure) -> Inputs:
    h, W, B, v = _contiguous(*given)
    return Inputs(h, W, B, v, *_arrays(over.graph, *given), over.rho, over.scale, over.backend)


def _arrays(graph: Graph, *inputs: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, int]:
    """Return ptr, src, the edges by source (only for a backward pass), and the largest degree."""
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in inputs):
        return graph.ptr, graph.src, *graph.by_source, graph.max_degree
    return graph.ptr, graph.src, graph.ptr[:0], graph.src[:0], graph.max_degree


def _block(v: Tensor, W: Tensor) -> int:
    limit = BLOCK_BYTES.get(v.device.type, BLOCK_BYTES["cpu"]) // (2 if v.device.type == "cuda" and v.element_size() > 2 else 1)
    return max(1, limit // (W.shape[0] * W.shape[1] * v.element_size()))


def _module(backend: str) -> Any:
    if backend != "fused":
        return factored
    try:
        from gkn.ops import fused
    except ImportError as error:
        raise ImportError("the fused implementation needs Triton: pip install 'gkn[gpu]'") from error
    return fused


# --- gkn::kernel_sum -------------------------------------------------------------------------------------------------

_ARRAYS = "Tensor ptr, Tensor src, Tensor source_ptr, Tensor source_edges"
_INPUTS = f"Tensor h, Tensor W, Tensor B, Tensor v, {_ARRAYS}, int max_degree, Tensor? rho, Tensor scale, str backend"


@torch.library.custom_op("gkn::kernel_sum", mutates_args=(), schema=f"({_INPUTS}) -> Tensor")
def _kernel_sum(*given):
    return _now(Inputs(*given))


def _now(inputs):
    with torch.autocast(inputs.v.device.type, enabled=False):  # all have one type already, also in a backward pass
        return _module(inputs.backend).forward(inputs.h, Last(inputs.W, inputs.B), inputs.v, inputs.edges())


@_kernel_sum.register_fake
def _(*given):
    inputs = Inputs(*given)
    return inputs.v.new_empty(inputs.scale.shape[0], inputs.W.shape[2])


@torch.library.custom_op(
    "gkn::kernel_sum_backward", mutates_args=(), schema=f"(Tensor d, {_INPUTS}) -> (Tensor, Tensor, Tensor, Tensor)"
)
def _kernel_sum_backward(d, *given):
    inputs = Inputs(*given)
    dh = torch.empty_like(inputs.h)
    return dh, *_gradients(d, inputs, Into(dh))


@_kernel_sum_backward.register_fake
def _(d, *given):
    return tuple(torch.empty_like(x) for x in Inputs(*given)[:4])


def _gradients(d, inputs, into):
    """Return dW, dB and dv; write dh."""
    found = Found(Last(inputs.W, inputs.B))
    with torch.autocast(inputs.v.device.type, enabled=False):  # may be on in a backward pass, though it was off before
        dv = _module(inputs.backend).backward(d.contiguous(), inputs.h, found, inputs.v, inputs.edges(), into)
    return *(sums.to(inputs.W.dtype) for sums in found.done()), dv


def _save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.rest = inputs[4:]
    ctx.save_for_backward(*inputs[:4])


def _backward(ctx: Any, d: Tensor) -> tuple[Any, ...]:
    return *torch.ops.gkn.kernel_sum_backward(d, *ctx.saved_tensors, *ctx.rest), *[None] * _REST


_kernel_sum.register_autograd(_backward, setup_context=_save)


def _save_backward(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.rest = inputs[5:]
    ctx.save_for_backward(*inputs[:5])


def _double_backward(ctx: Any, *given: Tensor | None) -> tuple[Any, ...]:
    """Differentiate <d, out(h, W, B, v)> in the direction of `given`: h, (W, B) and v are replaced by it one at a time."""
    d, h, W, B, v = ctx.saved_tensors
    gh, gW, gB, gv = (torch.zeros_like(x) if g is None else g for g, x in zip(given, (h, W, B, v), strict=True))
    terms = ((gh, W, torch.zeros_like(B), v), (h, gW, gB, v), (h, W, B, gv))
    out = sum(torch.ops.gkn.kernel_sum(*_contiguous(*term), *ctx.rest) for term in terms)
    (_, W1, _, v1), (h2, _, _, v2), (h3, W3, B3, _) = (
        torch.ops.gkn.kernel_sum_backward(d, *_contiguous(*term), *ctx.rest) for term in terms
    )
    return out, h2 + h3, W1 + W3, B3, v1 + v2, *[None] * _REST


_kernel_sum_backward.register_autograd(_double_backward, setup_context=_save_backward)


class _Chained(torch.autograd.Function):
    """kernel_sum that hands h on: its gradient arrives with what later steps added, and leaves with this step's added."""

    @staticmethod
    def forward(ctx: Any, *given: Any) -> tuple[Tensor, Tensor]:
        _save(ctx, given, None)
        ctx.set_materialize_grads(False)
        return _now(Inputs(*given)), given[0].view_as(given[0])

    @staticmethod
    def backward(ctx: Any, d: Tensor | None, dh: Tensor | None) -> tuple[Any, ...]:
        if d is None:
            return dh, *[None] * (_REST + 3)
        saved = ctx.saved_tensors
        if torch.is_grad_enabled():  # the derivative is differentiated again: nothing in place
            new, *others = torch.ops.gkn.kernel_sum_backward(d, *saved, *ctx.rest)
            return new if dh is None else new + dh, *others, *[None] * _REST
        total = torch.empty_like(saved[0]) if dh is None else dh.contiguous()
        return total, *_gradients(d, Inputs(*saved, *ctx.rest), Into(total, add=dh is not None)), *[None] * _REST


# --- gkn::edge_relu --------------------------------------------------------------------------------------------------


@torch.library.custom_op(
    "gkn::edge_relu",
    mutates_args=(),
    schema=f"(Tensor p, Tensor q, {_ARRAYS}, int max_degree, ScalarType dtype, str backend) -> Tensor",
)
def _edge_relu(*given):
    each = RectifiedInputs(*given)
    return _module(each.backend).edge_relu(each.p, each.q, each.ptr, each.src, each.dtype, each.max_degree)


@_edge_relu.register_fake
def _(*given):
    each = RectifiedInputs(*given)
    return each.q.new_empty(each.src.shape[0], each.q.shape[1], dtype=each.dtype)


@torch.library.custom_op(
    "gkn::edge_relu_backward",
    mutates_args=(),
    schema=f"(Tensor d, Tensor out, {_ARRAYS}, ScalarType dtype, str backend) -> (Tensor, Tensor)",
)
def _edge_relu_backward(d, out, *given):
    ptr, _, source_ptr, source_edges, dtype, backend = given
    return _module(backend).edge_relu_backward(d.contiguous(), out, ptr, (source_ptr, source_edges), dtype)


@_edge_relu_backward.register_fake
def _(d, out, *given):
    ptr, _, source_ptr, _, dtype, _ = given
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
