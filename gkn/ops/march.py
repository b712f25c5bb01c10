"""T steps with one kernel, v <- relu(W v + b + integral of kappa v), as one function of what they are made of.

Step by step, torch would record every operation of every step, and every record costs more than the arithmetic of a small
batch. Here a batch falls into groups of graphs without edges between them (`Graph.cuts`). Hidden features of a group are
kept for the backward pass or computed again in it, once for all steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gkn.graph.graph import Graph
from gkn.ops import Backend, edge_relu, library
from gkn.ops.edges import Into, Measure
from gkn.ops.hidden import differentiable, gradient_sums, hidden, hidden_backward
from gkn.ops.last import Found, Last


@dataclass(frozen=True, eq=False)
class Group:
    """Nodes `start` to `stop`, which have no edges to other nodes.

    graph    of these nodes
    order    node at each position of the graph; None: in their own order
    scale    (nodes,) of `kernel_sum`
    rho      on the edges of the graph
    """

    start: int
    stop: int
    graph: Graph
    order: Tensor | None
    scale: Tensor
    rho: Tensor | None

    def of(self, x: Tensor) -> Tensor:
        x = x[self.start : self.stop]
        return x if self.order is None else x.index_select(0, self.order)

    def back(self, x: Tensor) -> Tensor:
        return x if self.order is None else torch.empty_like(x).index_copy_(0, self.order, x)


@dataclass(frozen=True, eq=False)
class March:
    """Constants of the steps: everything but the tensors that have gradients.

    last_relu  also after the last step
    keep       hidden features for the backward pass
    """

    groups: list[Group]
    steps: int
    last_relu: bool
    keep: bool
    backend: Backend
    dtype: torch.dtype

    def __call__(
        self, v: Tensor, p: Tensor, q: Tensor, W: Tensor, B: Tensor, step: Tensor, bias: Tensor, *layers: Tensor
    ) -> Tensor:
        """Return v_T, given v_0, parts p and q of the first layer, hidden `layers` (weight, bias, ...), W, B, step, bias."""
        out: Tensor = _March.apply(self, v, p, q, W, B, step, bias, *layers)  # type: ignore[no-untyped-call]
        return out

    def relu(self, t: int) -> bool:
        return self.last_relu or t < self.steps - 1

    def plain(
        self, v: Tensor, p: Tensor, q: Tensor, W: Tensor, B: Tensor, step: Tensor, bias: Tensor, *layers: Tensor
    ) -> Tensor:
        """Compute the same in operations that torch can differentiate any number of times."""
        W, B, step, bias, *layers = (x.to(self.dtype) for x in (W, B, step, bias, *layers))  # type: ignore[assignment]
        out = torch.empty_like(v)
        for group in self.groups:
            h = edge_relu(group.of(p), group.of(q), group.graph, dtype=self.dtype, backend=self.backend)
            for weight, shift in zip(layers[::2], layers[1::2], strict=True):
                h = torch.relu(nn.functional.linear(h, weight, shift))
            state = group.of(v)
            for t in range(self.steps):
                over = Measure(group.graph, group.rho, group.scale, self.backend)
                state = nn.functional.linear(state, step, bias) + library.kernel_sum(h, W, B, state, over)
                state = torch.relu(state) if self.relu(t) else state
            nodes = torch.arange(group.start, group.stop, device=v.device)
            out = out.index_copy(0, nodes if group.order is None else nodes[group.order], state)
        return out


class _March(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, march: March, *given: Tensor) -> Tensor:
        v, p, q, *rest = given
        W, B, step, bias, *layers = (x.to(march.dtype) for x in rest)
        last, kept, outs = Last(W, B, step.T.contiguous(), bias), [], []
        with torch.autocast(v.device.type, enabled=False):
            for group in march.groups:
                h = hidden(group.of(p), group.of(q), group.graph, layers, march.dtype, march.backend)[-1]
                states = [group.of(v)]
                edges = library.implementation.edges(group.graph, group.rho, group.scale, v, W)
                for t in range(march.steps):
                    states.append(library.implementation.forward(h, last, states[-1], edges, march.backend, march.relu(t)))
                outs.append(group.back(states[-1]))
                kept += [*([h] if march.keep else []), *states]
        ctx.march = march
        ctx.save_for_backward(*given, *kept)
        return joined(outs)

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> tuple[Any, ...]:
        march: March = ctx.march
        count = len(ctx.needs_input_grad) - 1
        saved = ctx.saved_tensors
        given, kept = saved[:count], iter(saved[count:])
        if torch.is_grad_enabled():  # the derivative will be differentiated again
            return None, *differentiable(march.plain, given, d)
        _, p, q, *rest = given
        W, B, step, bias, *layers = (x.to(march.dtype) for x in rest)
        last = Last(W, B, step.T.contiguous(), bias)
        found, dlayers = Found(last), gradient_sums(given[7:])
        of_group: list[list[Tensor]] = []
        with torch.autocast(d.device.type, enabled=False):
            for group in march.groups:
                network = group.of(p), group.of(q), group.graph, layers, march.dtype, march.backend
                h = next(kept) if march.keep else hidden(*network)[-1]
                states = [next(kept) for _ in range(march.steps + 1)]
                g, dh = group.of(d), torch.empty_like(h)
                if march.last_relu:
                    g = library.close_where(g.clone(), states[-1])
                edges = library.implementation.edges(group.graph, group.rho, group.scale, states[0], W, backward=True)
                for t in range(march.steps - 1, -1, -1):
                    into = Into(dh, add=t < march.steps - 1, close=not t, door=states[t] if t else None)
                    g = library.implementation.backward(g, h, found, states[t], edges, into, march.backend)
                features = hidden(*network, last=h)  # the others are computed again, to save memory
                of_nodes = g, *hidden_backward(dh, features, group.graph, layers, dlayers, p.dtype, march.backend)
                of_group.append([group.back(x) for x in of_nodes])
        dv, dp, dq = (joined(parts) for parts in zip(*of_group, strict=True))
        dW, dB, down, dbias = found.done()
        totals = [dv, dp, dq, dW, dB, down.T, dbias, *dlayers]
        return None, *(total.to(x.dtype) for total, x in zip(totals, given, strict=True))


def joined(parts: Sequence[Tensor]) -> Tensor:
    return torch.cat(list(parts)) if len(parts) > 1 else parts[0]
