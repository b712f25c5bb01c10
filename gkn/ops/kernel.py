"""kappa: the kernel network, and the integral it defines on a graph."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from gkn.graph.graph import Graph
from gkn.ops import Backend, autocast, check, edge_relu, library, pick, quadrature, scales
from gkn.ops.blocks import Blocks
from gkn.ops.hidden import edge_silu, linear_relu_now
from gkn.ops.march import Group, March
from gkn.system.memory import available_memory, check_room

Density: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""rho(x, y) of (edges, d) points each -> (edges,): the density of nu_x with respect to dy."""

# Bytes of hidden features that are there at a time. Others, as large, come and go beside them.
BLOCK_BYTES = {"cpu": 2**26, "cuda": 2**29}  # of a block of targets, which is made again in every step
GROUP_BYTES = {"cpu": 2**26, "cuda": 2**26}  # of a group of graphs, made again for the backward pass; more if there is room
KEPT_BYTES = {"cpu": 2**26, "cuda": 2**32}  # of a group of graphs, where they are kept for the backward pass


class Kernel(nn.Module):
    """kappa(x, y) in R^(n x m): a network of (features of x, features of y), the last layer linear, after the others ReLU, or,
    if it is to be `smooth`, SiLU: without kinks the sum over a few dozen points is an integral to one or two more digits.

    The first layer is linear in the features of x and those of y, so it is computed once a node; the last one is W and B of
    `kernel_integral`, so no edge ever has a matrix.
    """

    def __init__(self, features: int, hidden: Sequence[int], n: int, m: int, smooth: bool = False) -> None:
        super().__init__()
        if not hidden or any(not isinstance(size, int) or size < 1 for size in hidden):
            raise ValueError(f"kernel={tuple(hidden)}: needed the sizes of the hidden layers, at least one, e.g. (512, 1024)")
        self.features, self.smooth = features, smooth
        self.first = nn.Linear(2 * features, hidden[0])
        self.hidden = nn.ModuleList(nn.Linear(*sizes) for sizes in pairwise(hidden))
        self.sizes = tuple(hidden)
        bound = 1 / math.sqrt(hidden[-1])
        self.W = nn.Parameter(torch.empty(hidden[-1], n, m).uniform_(-bound, bound))
        self.B = nn.Parameter(torch.empty(n, m).uniform_(-bound, bound))

    def parts(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """The first layer's share of targets and of sources, not rounded by autocast: where they meet, they may cancel."""
        of_x, of_y = self.first.weight.split(self.features, dim=1)
        with torch.autocast(x.device.type, enabled=False):
            return nn.functional.linear(x, of_x, self.first.bias), nn.functional.linear(y, of_y)

    def edges(self, p: Tensor, q: Tensor, graph: Graph, backend: Backend, own: bool = False) -> Tensor:
        """h(x, y), the last hidden features of every edge. `own`: the caller gives their gradient away, to be overwritten."""
        if self.smooth:
            h = edge_silu(p, q, graph, autocast(p)[0].dtype)
            for layer in self.hidden:
                h = nn.functional.silu(layer(h))
            return h
        if not self.hidden:
            return edge_relu(p, q, graph, backend=backend)
        (weight, bias), *rest = self.layers()
        h = edge_linear_relu(p, q, weight, bias, graph, backend, own or bool(rest))
        for weight, bias in rest:
            h = linear_relu(h, weight, bias)
        return h

    def layers(self) -> list[tuple[Tensor, Tensor]]:
        """Weights and biases between the first and the last layer."""
        return [(layer.weight, layer.bias) for layer in self.hidden if isinstance(layer, nn.Linear)]

    def matrices(self, x: Tensor, y: Tensor, more: Tensor | None = None) -> Tensor:
        """kappa itself, for pairs of features: (P, f), (P, f) -> (P, n, m). `more`: (P, k), added to the first layer."""
        p, q = self.parts(x, y)
        sigma = nn.functional.silu if self.smooth else torch.relu
        h = sigma(p + q if more is None else p + q + more)
        for layer in self.hidden:
            h = sigma(layer(h))
        return torch.einsum("ek,kji->eji", h, self.W) + self.B

    def on(self, graph: Graph, x: Tensor, y: Tensor, **options: Any) -> Integral:
        """The integral over N(x), for features x of the targets and y of the sources."""
        return Integral(self, graph, x, y, **options)


class Integral:
    """v -> integral of kappa(x, y) v(y) over N(x), on one graph, for as many v as there are steps.

    h is computed once and kept, or, where that would take too much memory, for a block of targets at a time and again in every
    step and in its backward pass: memory then does not grow with the number of edges. In `march`, which knows all steps, it is
    computed again only once, for a group of graphs at a time.
    """

    def __init__(
        self,
        kernel: Kernel,
        graph: Graph,
        x: Tensor,
        y: Tensor,
        *,
        weights: Tensor | None = None,
        rho: Density | None = None,
        points: tuple[Tensor, Tensor] | None = None,
        mean: bool = True,
        recompute: bool | None = None,
        backend: Backend | None = None,
    ) -> None:
        self.kernel, self.rho, self.points = kernel, rho, points
        self.p, self.q = kernel.parts(x, y)
        self.dtype = autocast(self.p)[0].dtype
        n = kernel.W.shape[1]
        self.backend: Backend = pick(backend, self.p.device, self.dtype, n)
        self.graph = graph
        self.back: Tensor | None = None
        self.weights = quadrature(weights, graph, mean)
        self.scale = scales(graph, self.weights, mean, self.dtype)
        self.bytes = sum(kernel.sizes) * self.dtype.itemsize  # of an edge
        needed = graph.num_edges * self.bytes * (3 if torch.is_grad_enabled() else 1)
        alone = not torch.is_grad_enabled() and not library.is_transformed()  # nobody wants derivatives of any kind
        self.through = alone and rho is None and not kernel.smooth and library.fits_through(kernel.sizes, n, self.backend)
        free = available_memory(self.p.device) if recompute is None else 0
        self.recompute = needed > free // 2 if recompute is None else recompute
        # A power of two: groups, and with them the bits of gradients, must not depend on every byte that is free.
        self.room = max(1 << (free // 8).bit_length() >> 1, GROUP_BYTES.get(self.p.device.type, GROUP_BYTES["cpu"]))
        if recompute is False:
            check_room(needed // 3, f"recompute=False: hidden features of {graph}", self.p.device)
        self.density: Tensor | None = None
        self._check_density()
        self._started = False
        self._h: Tensor | None = None

    def _start(self) -> None:
        """Targets of one degree side by side, where that helps, and h, where it is kept."""
        self._started = True
        if self.backend == "factored" and not self.graph.is_sorted:
            self.graph, order = self.graph.by_degree
            self.p, self.scale, self.back = self.p.index_select(0, order), self.scale[order], torch.argsort(order)
            if self.points is not None:
                self.points = self.points[0][order], self.points[1]
        if not self.recompute:
            self.density = self._density(self.graph, self.points)
            self._h = self.kernel.edges(self.p, self.q, self.graph, self.backend, own=True)

    def march(self, v: Tensor, own: nn.Module, steps: int, last_relu: bool) -> Tensor | None:
        """v_T of v <- relu(own(v) + integral of kappa v), in one function; None where it must be done step by step."""
        if torch.compiler.is_compiling() or library.is_transformed() or self.backend == "reference" or self.kernel.smooth:
            return None
        linear = [own, *self.kernel.hidden]
        if not all(is_plain(layer) and layer.weight.dtype == self.kernel.W.dtype for layer in linear) or not isinstance(
            own, nn.Linear
        ):
            return None
        groups = self._groups()
        if groups is None:
            return None
        march = March(groups, steps, last_relu, not self.recompute, self.backend, self.dtype)
        W, B, v = autocast(self.kernel.W, self.kernel.B, v)
        check(None, W, B, v, self.graph)
        layers = [tensor for layer in self.kernel.layers() for tensor in layer]
        return march(v, self.p, self.q, self.kernel.W, self.kernel.B, own.weight, own.bias, *layers)

    def _groups(self) -> list[Group] | None:
        """Nodes between cuts of the graph, as many together as fit; None where that is too many."""
        kind, cuts = self.p.device.type, self.graph.cuts
        if not self.graph.num_targets or self.graph.num_targets != self.graph.num_sources:
            return None
        room = self.room if self.recompute else KEPT_BYTES.get(kind, KEPT_BYTES["cpu"])
        ends = [edges * self.bytes for edges in self.graph.edges_before(cuts)]
        if self.recompute and max(stop - start for start, stop in pairwise(ends)) > 4 * room:
            return None
        chosen = [0]
        for i in range(1, len(cuts)):
            if ends[i] - ends[chosen[-1]] > room and i - 1 > chosen[-1]:
                chosen.append(i - 1)
        return [self._group(cuts[i], cuts[j]) for i, j in pairwise([*chosen, len(cuts) - 1])]

    def _group(self, start: int, stop: int) -> Group:
        graph, order, scale = self.graph.between(start, stop), None, self.scale[start:stop]
        points = None if self.points is None else (self.points[0][start:stop], self.points[1][start:stop])
        rho = self._density(graph, points)
        if self.weights is not None:
            weights = self.weights[start:stop].to(self.dtype).index_select(0, graph.src)
            rho = weights if rho is None else rho * weights
        if self.backend == "factored" and not graph.is_sorted:
            rho = None if rho is None else rho.index_select(0, graph.edges_by_degree)
            graph, order = graph.nodes_by_degree
            scale = scale[order]
        return Group(start, stop, graph, order, scale, rho)

    def _check_density(self) -> None:
        """On the first edge, before anything is computed, and where gradients are still seen."""
        if self.rho is not None and self.points is None:
            raise ValueError("a density rho(x, y) needs the points of targets and sources")
        if self.rho is not None and self.points is not None and self.graph.num_edges:
            first = int(torch.searchsorted(self.graph.ptr, 0, right=True)) - 1
            ends = torch.tensor([0, 1], device=self.graph.device)
            edge = Graph.trusted(ends, self.graph.src[:1], self.graph.num_sources)
            self._density(edge, (self.points[0][first : first + 1], self.points[1]))

    def _density(self, graph: Graph, points: tuple[Tensor, Tensor] | None) -> Tensor | None:
        if self.rho is None or points is None:
            return None
        values = self.rho(points[0].index_select(0, graph.targets), points[1].index_select(0, graph.src))
        if values.shape != (graph.num_edges,):
            raise ValueError(
                f"rho(x, y) gave shape {tuple(values.shape)} for {graph.num_edges} edges; needed one number an edge"
            )
        if values.requires_grad and torch.is_grad_enabled():
            raise ValueError("rho(x, y) asks for a gradient, but a density is a constant here; detach it")
        return values.to(self.dtype).contiguous()

    def __call__(self, v: Tensor) -> Tensor:
        W, B, v = autocast(self.kernel.W, self.kernel.B, v)
        if not self._started:
            self._start()
        check(self._h, W, B, v, self.graph, self.density)
        if self.weights is not None:
            v = v * self.weights.to(v.dtype)[:, None]
        if self._h is not None:
            out, self._h = library.kernel_sum_chained(self._h, W, B, v, self.graph, self.density, self.scale, self.backend)
        elif self.through:
            weight, bias = autocast(*self.kernel.layers()[0])
            out = library.kernel_sum_through(self.p, self.q, weight, bias, W, B, v, self.graph, self.scale)
        else:
            options = self._part_density, self.backend, self.dtype, self.kernel.smooth
            blocks = Blocks(self.graph, self._ranges(), self.scale, *options)
            layers = [tensor for layer in self.kernel.layers() for tensor in layer]
            # W and B as they are: gradients of blocks add up in their own type, not in autocast's.
            out = blocks(v, self.p, self.q, self.kernel.W, self.kernel.B, *layers)
        return out if self.back is None else out.index_select(0, self.back)

    def _ranges(self) -> list[tuple[int, int]]:
        """Blocks of targets, at least one each, whose features and sums fit into the room there is."""
        kind = self.p.device.type
        room = BLOCK_BYTES.get(kind, BLOCK_BYTES["cpu"]) // (7 if torch.is_grad_enabled() and kind == "cuda" else 1)
        sums = self.kernel.W.shape[0] * self.kernel.W.shape[1] * self.dtype.itemsize
        return [*self.graph.blocks(max(1, room // self.bytes), max(1, room // sums))]

    def _part_density(self, graph: Graph, start: int, stop: int) -> Tensor | None:
        return self._density(graph, None if self.points is None else (self.points[0][start:stop], self.points[1]))


def is_plain(layer: nn.Module) -> bool:
    """A linear layer that does nothing but what its weight and bias say."""
    hooks = (layer._forward_hooks, layer._forward_pre_hooks, layer._backward_hooks, layer._backward_pre_hooks)
    return type(layer) is nn.Linear and layer.bias is not None and not any(hooks)


def linear_relu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """relu(x weight^T + bias); on the GPU bias and ReLU are done as the product is written."""
    x, weight, bias = autocast(x, weight, bias)
    if torch.compiler.is_compiling() or library.is_transformed():
        return torch.relu(nn.functional.linear(x, weight, bias))
    out: Tensor = _LinearReLU.apply(x, weight, bias)  # type: ignore[no-untyped-call]
    return out


def edge_linear_relu(p: Tensor, q: Tensor, weight: Tensor, bias: Tensor, graph: Graph, backend: Backend, own: bool) -> Tensor:
    """The same of x = edge_relu(p, q, graph), which is not kept: for the backward pass it is computed again."""
    weight, bias = autocast(weight, bias)
    if torch.compiler.is_compiling() or library.is_transformed():
        return linear_relu(edge_relu(p, q, graph, dtype=weight.dtype, backend=backend), weight, bias)
    out: Tensor = _EdgeLinearReLU.apply(p, q, weight, bias, graph, backend, own)  # type: ignore[no-untyped-call]
    return out


def _gated(d: Tensor, out: Tensor) -> Tensor:
    gated: Tensor = torch.ops.aten.threshold_backward(d, out, 0)
    return gated


class _LinearReLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        out = linear_relu_now(x, weight, bias)
        ctx.save_for_backward(x, weight, out)
        return out

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, weight, out = ctx.saved_tensors
        d = _gated(d, out)
        return d @ weight, d.T @ x, d.sum(0)


class _EdgeLinearReLU(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, p: Tensor, q: Tensor, weight: Tensor, bias: Tensor, graph: Graph, backend: Backend, own: bool
    ) -> Tensor:
        out = linear_relu_now(edge_relu(p, q, graph, dtype=weight.dtype, backend=backend), weight, bias)
        ctx.graph, ctx.backend, ctx.own = graph, backend, own
        ctx.save_for_backward(p, q, weight, out)
        return out

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> tuple[Any, ...]:
        p, q, weight, out = ctx.saved_tensors
        if torch.is_grad_enabled() or not ctx.own or not d.is_contiguous():
            d = _gated(d, out)
        else:
            d = torch.ops.aten.threshold_backward.grad_input(d, out, 0, grad_input=d)
        x = edge_relu(p, q, ctx.graph, dtype=weight.dtype, backend=ctx.backend)
        of_weight, of_bias, back = d.T @ x, d.sum(0), d @ weight
        step = library.edge_relu_backward if torch.is_grad_enabled() else library.implementation.edge_relu_backward
        return *step(back, x, ctx.graph, p.dtype, ctx.backend), of_weight, of_bias, None, None, None
