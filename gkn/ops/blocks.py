"""The integral without stored hidden features: they are computed for a block of targets at a time, and again backward."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from gkn.graph.graph import Graph
from gkn.ops import Backend, edge_relu, edge_silu, library
from gkn.ops.edges import Into, Measure
from gkn.ops.hidden import differentiable, gradient_sums, hidden, hidden_backward
from gkn.ops.last import Found, Last


@dataclass(frozen=True, eq=False)
class Blocks:
    """Constants of an integral that is computed in blocks, the same in every step.

    ranges   (first, last + 1) of the targets of each block
    scale    (targets,) of `kernel_sum`
    density  of a part of the graph and its range: rho on its edges, or None
    dtype    of hidden features and products
    smooth   SiLU, and not ReLU, after hidden layers
    """

    graph: Graph
    ranges: list[tuple[int, int]]
    scale: Tensor
    density: Callable[[Graph, int, int], Tensor | None]
    backend: Backend
    dtype: torch.dtype
    smooth: bool = False

    def __call__(self, v: Tensor, p: Tensor, q: Tensor, W: Tensor, B: Tensor, *layers: Tensor) -> Tensor:
        """Return the integral of kappa v, given parts p and q of the first layer, hidden `layers` (weight, bias, ...), W, B."""
        if not self.ranges:
            return v.new_zeros(0, W.shape[2])
        if torch.compiler.is_compiling() or library.is_transformed() or self.backend == "reference" or self.smooth:
            return self.plain(v, p, q, W, B, *layers)
        out: Tensor = _InBlocks.apply(self, v, p, q, W, B, *layers)  # type: ignore[no-untyped-call]
        return out

    def plain(self, v: Tensor, p: Tensor, q: Tensor, W: Tensor, B: Tensor, *layers: Tensor) -> Tensor:
        """Compute the same in operations that torch can differentiate any number of times."""

        def block(start: int, stop: int, *given: Tensor) -> Tensor:
            v, p, q, W, B, *layers = given
            graph = self.graph.part(start, stop)
            h = (
                edge_silu(p[start:stop], q, graph, self.dtype)
                if self.smooth
                else edge_relu(p[start:stop], q, graph, dtype=self.dtype, backend=self.backend)
            )
            for weight, bias in zip(layers[::2], layers[1::2], strict=True):
                h = nn.functional.linear(h, weight.to(self.dtype), bias.to(self.dtype))
                h = nn.functional.silu(h) if self.smooth else torch.relu(h)
            density = self.density(graph, start, stop)
            cast = W.to(self.dtype), B.to(self.dtype)
            over = Measure(graph, density, self.scale[start:stop], self.backend)
            return library.kernel_sum(h, *cast, v, over)

        given = v, p, q, W, B, *layers
        if not torch.is_grad_enabled() or library.is_transformed():  # functional transforms do not support checkpoints
            return torch.cat([block(*span, *given) for span in self.ranges])
        return torch.cat(
            [checkpoint(block, *span, *given, use_reentrant=False, preserve_rng_state=False) for span in self.ranges]
        )


class _InBlocks(torch.autograd.Function):
    """The integral with its own derivative. Only inputs are kept; gradients are added up in place, in their type."""

    @staticmethod
    def forward(ctx: Any, blocks: Blocks, *given: Tensor) -> Tensor:
        ctx.blocks = blocks
        ctx.save_for_backward(*given)
        v, p, q, *rest = given
        W, B, *layers = (x.to(blocks.dtype) for x in rest)
        out, last = v.new_empty(len(blocks.scale), W.shape[2]), Last(W, B)
        with torch.autocast(v.device.type, enabled=False):
            for start, stop in blocks.ranges:
                graph = blocks.graph.part(start, stop)
                h = hidden(p[start:stop], q, graph, layers, blocks.dtype, blocks.backend)[-1]
                density, scale = blocks.density(graph, start, stop), blocks.scale[start:stop]
                edges = library.implementation.edges(graph, density, scale, v, W)
                out[start:stop] = library.implementation.forward(h, last, v, edges, blocks.backend)
        return out

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> tuple[Any, ...]:
        blocks: Blocks = ctx.blocks
        given = ctx.saved_tensors
        if torch.is_grad_enabled():  # the derivative will be differentiated again
            return None, *differentiable(blocks.plain, given, d)
        v, p, q, *rest = given
        W, B, *layers = (x.to(blocks.dtype) for x in rest)
        last = Last(W, B)
        found, (dv, dp, dq), dlayers = Found(last), gradient_sums(given[:3]), gradient_sums(given[5:])
        with torch.autocast(d.device.type, enabled=False):
            for start, stop in blocks.ranges:
                whole = blocks.graph.part(start, stop)
                graph, left = whole.compact  # only the sources of this block, so that their gradients are no larger than it
                some_q, some_v = q.index_select(0, left), v.index_select(0, left)
                features = hidden(p[start:stop], some_q, graph, layers, blocks.dtype, blocks.backend)
                g = torch.empty_like(features[-1])
                density, scale = blocks.density(whole, start, stop), blocks.scale[start:stop]
                edges = library.implementation.edges(graph, density, scale, some_v, W, backward=True)
                into = Into(g, close=True)
                of_v = library.implementation.backward(d[start:stop], features[-1], found, some_v, edges, into, blocks.backend)
                dv.index_add_(0, left, of_v.to(dv.dtype))  # every source is there once, so this is the same sum every time
                of_x, of_y = hidden_backward(g, features, graph, layers, dlayers, dp.dtype, blocks.backend)
                dp[start:stop] = of_x
                dq.index_add_(0, left, of_y)
        totals = [dv, dp, dq, *found.done(), *dlayers]
        return None, *(total.to(x.dtype) for total, x in zip(totals, given, strict=True))
