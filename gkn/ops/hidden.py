"""The hidden layers of the kernel network on the edges of a graph, and their derivative, without torch's record of either."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from gkn.graph.graph import Graph
from gkn.ops import Backend, library
from gkn.ops.last import plus_product


def hidden(
    p: Tensor,
    q: Tensor,
    graph: Graph,
    layers: list[Tensor],
    dtype: torch.dtype,
    backend: Backend,
    last: Tensor | None = None,
) -> list[Tensor]:
    """The features of the edges after every layer: relu(p + q), then each of `layers` (weight, bias, weight, ...).

    `last`: those after the last layer, where they are known already.
    """
    if last is not None:
        return [*hidden(p, q, graph, layers[:-2], dtype, backend), last] if layers else [last]
    found = [library.implementation.edge_relu(p, q, graph, dtype, backend)]
    for weight, bias in zip(layers[::2], layers[1::2], strict=True):
        found.append(linear_relu_now(found[-1], weight, bias))
    return found


def hidden_backward(
    g: Tensor,
    features: list[Tensor],
    graph: Graph,
    layers: list[Tensor],
    dlayers: list[Tensor],
    dtype: torch.dtype,
    backend: Backend,
) -> tuple[Tensor, Tensor]:
    """The gradients of p and q, of type `dtype`; those of `layers` are added to `dlayers`. g, which is overwritten, is the
    gradient of the last features, closed where they are 0."""
    for i in range(len(layers) - 2, -1, -2):
        x = features[i // 2]
        plus_product(dlayers[i], g.T, x)
        dlayers[i + 1] += g.sum(0, dtype=dlayers[i + 1].dtype)
        g = g @ layers[i]
        if i:
            g = library.close_where(g, x)
    return library.implementation.edge_relu_backward(g, features[0], graph, dtype, backend)


def edge_silu(p: Tensor, q: Tensor, graph: Graph, dtype: torch.dtype) -> Tensor:
    """silu(p(x) + q(y)) for every edge (x, y), by torch's own operations."""
    return nn.functional.silu(p.index_select(0, graph.targets) + q.index_select(0, graph.src)).to(dtype)


def zeros(given: Sequence[Tensor]) -> list[Tensor]:
    """Where gradients are added up: in float32 at least."""
    return [torch.zeros_like(x, dtype=torch.promote_types(x.dtype, torch.float32)) for x in given]


def differentiable(function: Callable[..., Tensor], given: Sequence[Tensor], d: Tensor) -> list[Tensor | None]:
    """The gradients of a function of `given`, as functions of `given` and d themselves.

    Of views of them: of one that was made from another, or is there twice, only its own share is asked for.
    """
    given = [x.view_as(x) for x in given]
    wanted = [x for x in given if x.requires_grad]
    with torch.autocast(d.device.type, enabled=False):  # as in the forward pass
        found = iter(torch.autograd.grad(function(*given), wanted, d, create_graph=True))
    return [next(found) if x.requires_grad else None for x in given]


def linear_relu_now(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """relu(x weight^T + bias), not differentiated; on the GPU bias and ReLU are done as the product is written."""
    if x.device.type == "cuda" and len(x):
        return torch._addmm_activation(bias, x, weight.T)
    return torch.relu_(nn.functional.linear(x, weight, bias))
