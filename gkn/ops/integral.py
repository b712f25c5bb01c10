"""The integral of a kernel network over the neighbourhoods of a graph: a plan, and three ways to carry it out.

`plan_integral` collects what does not depend on v. `Plan.integral` then chooses how v -> integral of kappa v is computed:

    Kept        hidden features h of all edges are computed once and kept
    OnChip      h is computed inside the kernel that sums, and never stored; forward only
    InBlocks    h is computed for a block of targets at a time, in every step and again in its backward pass

`Plan.march` carries out all steps of a network in one function (march.py); it is used in training.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TypeAlias

import torch
from torch import Tensor, nn

from gkn.graph.graph import Graph
from gkn.ops import Backend, autocast, check, library, pick, quadrature, scales
from gkn.ops.blocks import Blocks
from gkn.ops.edges import Measure
from gkn.ops.kernel import Kernel, is_plain
from gkn.ops.march import Group, March
from gkn.system.memory import available_memory, check_memory

Density: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""rho(x, y) of (edges, d) points each -> (edges,): the density of the measure nu_x with respect to dy."""

# Bytes of hidden features that exist at a time. Temporaries of the same size come and go beside them.
BLOCK_BYTES = {"cpu": 2**26, "cuda": 2**29}  # of a block of targets, computed again in every step
GROUP_BYTES = {"cpu": 2**26, "cuda": 2**26}  # of a group of graphs, computed again for the backward pass; more if it fits
KEPT_BYTES = {"cpu": 2**26, "cuda": 2**32}  # of a group of graphs, if they are kept for the backward pass


def plan_integral(
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
) -> Plan:
    """Plan the integral of a kernel over N(x).

    x, y        features of targets and of sources
    weights     quadrature weights of the sources; None: all equal
    rho         density of the measure, which needs the `points` of targets and of sources
    mean        divide by the sum of the weights
    recompute   do not keep h; None: keep it if it fits into half of the free memory
    """
    p, q = kernel.parts(x, y)
    dtype = autocast(p)[0].dtype
    backend = pick(backend, p.device, dtype, kernel.W.shape[1])
    weights = quadrature(weights, graph, mean)
    scale = scales(graph, weights, mean, dtype)
    needed = graph.num_edges * sum(kernel.sizes) * dtype.itemsize * (3 if torch.is_grad_enabled() else 1)
    free = available_memory(p.device) if recompute is None else 0
    if recompute is False:
        check_memory(needed // 3, f"recompute=False: hidden features of {graph}", p.device)
    recompute = needed > free // 2 if recompute is None else recompute
    plan = Plan(kernel, graph, p, q, weights, scale, rho, points, backend, dtype, recompute, free)
    plan.check_density()
    return plan


@dataclass(frozen=True, eq=False)
class Plan:
    """Parts of the integral over one graph that do not depend on v.

    p, q    the first layer's share of targets and of sources
    scale   (targets,) factors of the sums
    free    bytes of memory that were free, if memory decides
    """

    kernel: Kernel
    graph: Graph
    p: Tensor
    q: Tensor
    weights: Tensor | None
    scale: Tensor
    rho: Density | None
    points: tuple[Tensor, Tensor] | None
    backend: Backend
    dtype: torch.dtype
    recompute: bool
    free: int

    @property
    def edge_bytes(self) -> int:
        """Bytes of the hidden features of one edge."""
        return sum(self.kernel.sizes) * self.dtype.itemsize

    @property
    def group_bytes(self) -> int:
        """Bytes of the features of a group that is computed again.

        A power of two: groups, and with them the bits of gradients, must not depend on every byte that is free.
        """
        return max(1 << (self.free // 8).bit_length() >> 1, GROUP_BYTES.get(self.p.device.type, GROUP_BYTES["cpu"]))

    def integral(self) -> Integral:
        """Choose how to compute the integral step by step."""
        plan, back = self._sorted()
        if not self.recompute:
            return Kept(plan, back)
        alone = not torch.is_grad_enabled() and not library.is_transformed()  # no derivatives of any kind are needed
        plain = self.rho is None and not self.kernel.smooth
        if alone and plain and library.fits_through(self.kernel.sizes, self.kernel.W.shape[1], self.backend):
            return OnChip(plan, back)
        return InBlocks(plan, back)

    def _sorted(self) -> tuple[Plan, Tensor | None]:
        """Sort targets by degree where that makes sums faster; also return where each target went."""
        if self.backend != "factored" or self.graph.is_sorted:
            return self, None
        graph, order = self.graph.by_degree
        points = None if self.points is None else (self.points[0][order], self.points[1])
        p, scale = self.p.index_select(0, order), self.scale[order]
        return replace(self, graph=graph, p=p, scale=scale, points=points), torch.argsort(order)

    # --- the density

    def check_density(self) -> None:
        """Evaluate rho on the first edge, so that errors appear before anything is computed."""
        if self.rho is not None and self.points is None:
            raise ValueError("a density rho(x, y) needs the points of targets and sources")
        if self.rho is not None and self.points is not None and self.graph.num_edges:
            first = int(torch.searchsorted(self.graph.ptr, 0, right=True)) - 1
            ends = torch.tensor([0, 1], device=self.graph.device)
            edge = Graph.trusted(ends, self.graph.src[:1], self.graph.num_sources)
            self.density(edge, (self.points[0][first : first + 1], self.points[1]))

    def density(self, graph: Graph, points: tuple[Tensor, Tensor] | None) -> Tensor | None:
        """Return rho on the edges of a graph, or None."""
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

    def block_density(self, graph: Graph, start: int, stop: int) -> Tensor | None:
        """Return rho on the edges of a block of targets, or None."""
        return self.density(graph, None if self.points is None else (self.points[0][start:stop], self.points[1]))

    # --- all steps at once

    def march(self, v: Tensor, step: nn.Module, steps: int, last_relu: bool) -> Tensor | None:
        """Return v_T of v <- relu(step(v) + integral of kappa v), in one function; None if it must be done step by step."""
        if torch.compiler.is_compiling() or library.is_transformed() or self.backend == "reference" or self.kernel.smooth:
            return None
        linear = [step, *self.kernel.hidden]
        if not all(is_plain(layer) and layer.weight.dtype == self.kernel.W.dtype for layer in linear) or not isinstance(
            step, nn.Linear
        ):
            return None
        groups = self._groups()
        if groups is None:
            return None
        march = March(groups, steps, last_relu, not self.recompute, self.backend, self.dtype)
        W, B, v = autocast(self.kernel.W, self.kernel.B, v)
        check(None, W, B, v, self.graph)
        layers = [tensor for layer in self.kernel.layers() for tensor in layer]
        return march(v, self.p, self.q, self.kernel.W, self.kernel.B, step.weight, step.bias, *layers)

    def _groups(self) -> list[Group] | None:
        """Divide the nodes at cuts of the graph, as many graphs together as fit; None if one graph alone is too large."""
        kind, cuts = self.p.device.type, self.graph.cuts
        if not self.graph.num_targets or self.graph.num_targets != self.graph.num_sources:
            return None
        limit = self.group_bytes if self.recompute else KEPT_BYTES.get(kind, KEPT_BYTES["cpu"])
        ends = [edges * self.edge_bytes for edges in self.graph.edges_before(cuts)]
        if self.recompute and max(stop - start for start, stop in pairwise(ends)) > 4 * limit:
            return None
        chosen = [0]
        for i in range(1, len(cuts)):
            if ends[i] - ends[chosen[-1]] > limit and i - 1 > chosen[-1]:
                chosen.append(i - 1)
        return [self._group(cuts[i], cuts[j]) for i, j in pairwise([*chosen, len(cuts) - 1])]

    def _group(self, start: int, stop: int) -> Group:
        graph, order, scale = self.graph.between(start, stop), None, self.scale[start:stop]
        points = None if self.points is None else (self.points[0][start:stop], self.points[1][start:stop])
        rho = self.density(graph, points)
        if self.weights is not None:
            weights = self.weights[start:stop].to(self.dtype).index_select(0, graph.src)
            rho = weights if rho is None else rho * weights
        if self.backend == "factored" and not graph.is_sorted:
            rho = None if rho is None else rho.index_select(0, graph.edges_by_degree)
            graph, order = graph.nodes_by_degree
            scale = scale[order]
        return Group(start, stop, graph, order, scale, rho)


class Integral(ABC):
    """v -> integral of kappa(x, y) v(y) over N(x), on one graph, for as many v as there are steps."""

    def __init__(self, plan: Plan, back: Tensor | None) -> None:
        self.plan, self._back = plan, back

    def __call__(self, v: Tensor) -> Tensor:
        """Integrate v (sources, n): (targets, m)."""
        plan = self.plan
        W, B, v = autocast(plan.kernel.W, plan.kernel.B, v)
        check(None, W, B, v, plan.graph)
        if plan.weights is not None:
            v = v * plan.weights.to(v.dtype)[:, None]
        out = self._sum(W, B, v)
        return out if self._back is None else out.index_select(0, self._back)

    @abstractmethod
    def _sum(self, W: Tensor, B: Tensor, v: Tensor) -> Tensor: ...


class Kept(Integral):
    """The integral with h kept. Steps hand h on to each other, so that its gradient is added up in one array."""

    def __init__(self, plan: Plan, back: Tensor | None) -> None:
        super().__init__(plan, back)
        self._density = plan.density(plan.graph, plan.points)
        self._h = plan.kernel.edges(plan.p, plan.q, plan.graph, plan.backend, overwrite=True)

    def _sum(self, W: Tensor, B: Tensor, v: Tensor) -> Tensor:
        plan = self.plan
        check(self._h, W, B, v, plan.graph, self._density)
        over = Measure(plan.graph, self._density, plan.scale, plan.backend)
        out, self._h = library.kernel_sum_chained(self._h, W, B, v, over)
        return out


class OnChip(Integral):
    """The integral with h computed inside the kernel that sums: for two hidden layers, forward only."""

    def _sum(self, W: Tensor, B: Tensor, v: Tensor) -> Tensor:
        plan = self.plan
        weight, bias = autocast(*plan.kernel.layers()[0])
        return library.kernel_sum_through(plan.p, plan.q, (weight, bias), (W, B), v, plan.graph, plan.scale)


class InBlocks(Integral):
    """The integral in memory that does not grow with the number of edges."""

    def _sum(self, W: Tensor, B: Tensor, v: Tensor) -> Tensor:
        plan = self.plan
        options = plan.block_density, plan.backend, plan.dtype, plan.kernel.smooth
        blocks = Blocks(plan.graph, self._ranges(), plan.scale, *options)
        layers = [tensor for layer in plan.kernel.layers() for tensor in layer]
        # W and B without autocast: gradients of blocks are added up in their own type.
        return blocks(v, plan.p, plan.q, plan.kernel.W, plan.kernel.B, *layers)

    def _ranges(self) -> list[tuple[int, int]]:
        """Divide the targets into blocks whose features and sums fit into the memory set aside for them."""
        plan, kind = self.plan, self.plan.p.device.type
        limit = BLOCK_BYTES.get(kind, BLOCK_BYTES["cpu"]) // (7 if torch.is_grad_enabled() and kind == "cuda" else 1)
        sums = plan.kernel.W.shape[0] * plan.kernel.W.shape[1] * plan.dtype.itemsize
        return [*plan.graph.blocks(max(1, limit // plan.edge_bytes), max(1, limit // sums))]
