"""The integral where hidden features are not kept: made for a block of targets at a time, and again in the backward pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from gkn.graph import Graph
from gkn.ops import Backend, edge_relu, library


@dataclass(frozen=True, eq=False)
class Blocks:
    """What does not change from step to step.

    ranges   (first, last + 1) of the targets of each block
    scale    (targets,) of `kernel_sum`
    density  of a part of the graph and its range: rho on its edges, or None
    dtype    of hidden features and products
    """

    graph: Graph
    ranges: list[tuple[int, int]]
    scale: Tensor
    density: Callable[[Graph, int, int], Tensor | None]
    backend: Backend
    dtype: torch.dtype

    def __call__(self, v: Tensor, p: Tensor, q: Tensor, W: Tensor, B: Tensor, *layers: Tensor) -> Tensor:
        """v -> integral of kappa v: of the first layer's parts p and q, hidden `layers` (weight, bias, ...), W and B."""
        if not self.ranges:
            return v.new_zeros(0, W.shape[2])
        if torch.compiler.is_compiling() or library.is_transformed() or self.backend == "reference":
            return self.plain(v, p, q, W, B, *layers)
        out: Tensor = _InBlocks.apply(self, v, p, q, W, B, *layers)  # type: ignore[no-untyped-call]
        return out

    def plain(self, v: Tensor, p: Tensor, q: Tensor, W: Tensor, B: Tensor, *layers: Tensor) -> Tensor:
        """The same in operations that torch can differentiate as often as it likes."""

        def block(start: int, stop: int, *given: Tensor) -> Tensor:
            v, p, q, W, B, *layers = given
            graph = self.graph.part(start, stop)
            h = edge_relu(p[start:stop], q, graph, dtype=self.dtype, backend=self.backend)
            for weight, bias in zip(layers[::2], layers[1::2], strict=True):
                h = torch.relu(nn.functional.linear(h, weight.to(self.dtype), bias.to(self.dtype)))
            density = self.density(graph, start, stop)
            cast = W.to(self.dtype), B.to(self.dtype)
            return library.kernel_sum(h, *cast, v, graph, density, self.scale[start:stop], self.backend)

        given = v, p, q, W, B, *layers
        if not torch.is_grad_enabled():
            return torch.cat([block(*span, *given) for span in self.ranges])
        return torch.cat(
            [checkpoint(block, *span, *given, use_reentrant=False, preserve_rng_state=False) for span in self.ranges]
        )

    def hidden(self, p: Tensor, q: Tensor, graph: Graph, layers: list[Tensor]) -> list[Tensor]:
        """The features of the edges of a block after every layer."""
        found = [library.implementation.edge_relu(p, q, graph, self.dtype, self.backend)]
        for weight, bias in zip(layers[::2], layers[1::2], strict=True):
            found.append(linear_relu_now(found[-1], weight, bias))
        return found


def linear_relu_now(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """relu(x weight^T + bias), not differentiated; on the GPU bias and ReLU are done as the product is written."""
    if x.device.type == "cuda" and len(x):
        return torch._addmm_activation(bias, x, weight.T)
    return torch.relu_(nn.functional.linear(x, weight, bias))


class _InBlocks(torch.autograd.Function):
    """Nothing but the inputs is kept; gradients are added up in place, in the type of what they are gradients of."""

    @staticmethod
    def forward(ctx: Any, blocks: Blocks, *given: Tensor) -> Tensor:
        ctx.blocks = blocks
        ctx.save_for_backward(*given)
        v, p, q, *rest = given
        W, B, *layers = (x.to(blocks.dtype) for x in rest)
        out = v.new_empty(len(blocks.scale), W.shape[2])
        with torch.autocast(v.device.type, enabled=False):
            for start, stop in blocks.ranges:
                graph = blocks.graph.part(start, stop)
                h = blocks.hidden(p[start:stop], q, graph, layers)[-1]
                density = blocks.density(graph, start, stop)
                out[start:stop] = library.implementation.kernel_sum(
                    h, W, B, v, graph, density, blocks.scale[start:stop], blocks.backend
                )
        return out

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> tuple[Any, ...]:
        blocks: Blocks = ctx.blocks
        given = ctx.saved_tensors
        if torch.is_grad_enabled():  # somebody will differentiate once more
            wanted = [x for x in given if x.requires_grad]
            found = iter(torch.autograd.grad(blocks.plain(*given), wanted, d, create_graph=True))
            return None, *(next(found) if x.requires_grad else None for x in given)
        v, p, q, *rest = given
        W, B, *layers = (x.to(blocks.dtype) for x in rest)
        totals = [torch.zeros_like(x, dtype=torch.promote_types(x.dtype, torch.float32)) for x in given]
        dv, dp, dq, dW, dB, *dlayers = totals
        for start, stop in blocks.ranges:
            whole = blocks.graph.part(start, stop)
            graph, left = whole.compact  # only the sources of this block, so that their gradients are no larger than it
            some_q, some_v = q.index_select(0, left), v.index_select(0, left)
            features = blocks.hidden(p[start:stop], some_q, graph, layers)
            g = torch.empty_like(features[-1])
            density, scale = blocks.density(whole, start, stop), blocks.scale[start:stop]
            arguments = features[-1], W, B, some_v, graph, density, scale, blocks.backend
            of_W, of_B, of_v = library.implementation.kernel_sum_backward(g, d[start:stop], *arguments)
            dW += of_W
            dB += of_B
            dv.index_add_(0, left, of_v.to(dv.dtype))  # every source is there once, so this is the same sum every time
            for i in range(len(layers) - 2, -1, -2):
                g = torch.ops.aten.threshold_backward.grad_input(g, features[i // 2 + 1], 0, grad_input=g)
                dlayers[i] += g.T @ features[i // 2]
                dlayers[i + 1] += g.sum(0)
                g = g @ layers[i]
            of_x, of_y = library.implementation.edge_relu_backward(g, features[0], graph, dp.dtype, blocks.backend)
            dp[start:stop] = of_x
            dq.index_add_(0, left, of_y)
        return None, *(total.to(x.dtype) for total, x in zip(totals, given, strict=True))
