"""Hidden layers of the kernel network on the edges of a graph, and their derivatives.

`edge_linear_relu` and `linear_relu` are differentiable. `hidden` and `hidden_backward` are the passes without torch's record,
for functions that bring their own derivative.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gkn.graph.graph import Graph
from gkn.ops import Backend, autocast, edge_relu, library
from gkn.ops.dense import mm, plus_mm


def hidden(
    p: Tensor,
    q: Tensor,
    graph: Graph,
    layers: list[Tensor],
    dtype: torch.dtype,
    backend: Backend,
    last: Tensor | None = None,
) -> list[Tensor]:
    """Return the features of the edges after every layer: relu(p + q), then each of `layers` (weight, bias, weight, ...).

    `last`: the features after the last layer, if they are known already.
    """
    if last is not None:
        return [*hidden(p, q, graph, layers[:-2], dtype, backend), last] if layers else [last]
    features = [library.implementation.edge_relu(p, q, graph, dtype, backend)]
    for weight, bias in zip(layers[::2], layers[1::2], strict=True):
        features.append(linear_relu_now(features[-1], weight, bias))
    return features


def hidden_backward(
    g: Tensor,
    features: list[Tensor],
    graph: Graph,
    layers: list[Tensor],
    dlayers: list[Tensor],
    dtype: torch.dtype,
    backend: Backend,
) -> tuple[Tensor, Tensor]:
    """Return the gradients of p and q in type `dtype`; add those of `layers` to `dlayers`.

    g, which is overwritten, is the gradient of the last features, already 0 where they are 0.
    """
    for i in range(len(layers) - 2, -1, -2):
        x = features[i // 2]
        plus_mm(dlayers[i], g.T, x)
        dlayers[i + 1] += g.sum(0, dtype=dlayers[i + 1].dtype)
        g = mm(g, layers[i])
        if i:
            g = library.close_where(g, x)
    return library.implementation.edge_relu_backward(g, features[0], graph, dtype, backend)


def linear_relu_now(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return relu(x weight^T + bias) without a gradient. On a GPU bias and ReLU are applied as the product is written."""
    if x.device.type == "cuda" and len(x):
        return torch._addmm_activation(bias, x, weight.T)
    return torch.relu_(nn.functional.linear(x, weight, bias))


def linear_relu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return relu(x weight^T + bias)."""
    x, weight, bias = autocast(x, weight, bias)
    if torch.compiler.is_compiling() or library.is_transformed():
        return torch.relu(nn.functional.linear(x, weight, bias))
    out: Tensor = _LinearReLU.apply(x, weight, bias)  # type: ignore[no-untyped-call]
    return out


def edge_linear_relu(
    p: Tensor, q: Tensor, layer: tuple[Tensor, Tensor], graph: Graph, backend: Backend, overwrite: bool
) -> Tensor:
    """Return relu(weight relu(p + q) + bias) on every edge. The inner features are computed again in the backward pass.

    overwrite   the gradient that arrives may be overwritten
    """
    weight, bias = autocast(*layer)
    if torch.compiler.is_compiling() or library.is_transformed():
        return linear_relu(edge_relu(p, q, graph, dtype=weight.dtype, backend=backend), weight, bias)
    out: Tensor = _EdgeLinearReLU.apply(p, q, weight, bias, graph, backend, overwrite)  # type: ignore[no-untyped-call]
    return out


def gradient_sums(given: Sequence[Tensor]) -> list[Tensor]:
    """Return zeros in which gradients are added up, in float32 at least."""
    return [torch.zeros_like(x, dtype=torch.promote_types(x.dtype, torch.float32)) for x in given]


def differentiable(function: Callable[..., Tensor], given: Sequence[Tensor], d: Tensor) -> list[Tensor | None]:
    """Return the gradients of a function of `given`, as differentiable functions of `given` and d.

    The function gets views of `given`: if one tensor was made from another, or is given twice, each gradient is its own share.
    """
    given = [x.view_as(x) for x in given]
    wanted = [x for x in given if x.requires_grad]
    with torch.autocast(d.device.type, enabled=False):  # as in the forward pass
        found = iter(torch.autograd.grad(function(*given), wanted, d, create_graph=True))
    return [next(found) if x.requires_grad else None for x in given]


def _closed(d: Tensor, out: Tensor) -> Tensor:
    closed: Tensor = torch.ops.aten.threshold_backward(d, out, 0)
    return closed


class _LinearReLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        out = linear_relu_now(x, weight, bias)
        ctx.save_for_backward(x, weight, out)
        return out

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, weight, out = ctx.saved_tensors
        d = _closed(d, out)
        return d @ weight, d.T @ x, d.sum(0)


class _EdgeLinearReLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, p: Tensor, q: Tensor, weight: Tensor, bias: Tensor, *rest: Any) -> Tensor:
        ctx.graph, ctx.backend, ctx.overwrite = rest
        out = linear_relu_now(edge_relu(p, q, ctx.graph, dtype=weight.dtype, backend=ctx.backend), weight, bias)
        ctx.save_for_backward(p, q, weight, out)
        return out

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> tuple[Any, ...]:
        p, q, weight, out = ctx.saved_tensors
        if torch.is_grad_enabled() or not ctx.overwrite or not d.is_contiguous():
            d = _closed(d, out)
        else:
            d = torch.ops.aten.threshold_backward.grad_input(d, out, 0, grad_input=d)
        x = edge_relu(p, q, ctx.graph, dtype=weight.dtype, backend=ctx.backend)
        of_weight, of_bias, back = d.T @ x, d.sum(0), d @ weight
        step = library.edge_relu_backward if torch.is_grad_enabled() else library.implementation.edge_relu_backward
        return *step(back, x, ctx.graph, p.dtype, ctx.backend), of_weight, of_bias, None, None, None
