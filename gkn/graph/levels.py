"""Levels: coarser and coarser subsets of the points, with graphs on and between them. Edges are linear in the points."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from gkn.graph.graph import Graph
from gkn.graph.neighbors import periodic_graph, radius_graph

PER_BALL = 2.5  # cells of a level in the radius of its balls: some 20 nodes in a ball of the plane


@dataclass(frozen=True, eq=False)
class Level:
    """Some of the points of a batch.

    nodes     (n,) indices of the points
    weights   (n,) quadrature weights, including those of points that are left out
    within    graph of these nodes, in balls of this level's radius; None for the first level
    down      graph: these <- the finer level, in balls of this level's radius; None for the first level
    up        graph: the finer level <- these, likewise
    """

    nodes: Tensor
    weights: Tensor
    within: Graph | None
    down: Graph | None
    up: Graph | None


def levels_of(graph: Graph, x: Tensor, weights: Tensor | None, radius: float, count: int) -> list[Level]:
    """Return levels of the points of a batch. The first has all points and this radius; every next one has twice the radius.

    A level has one node per cell of a lattice: of the nodes of the finer level in that cell, the one nearest to its centre.
    Each function of a batch has its own levels. They depend on the points, not on their order. If the graph holds the points it
    was made of, the levels are cached with it, and symmetries do not change them. Along periodic axes balls wrap around, and a
    whole number of cells fits into a period.
    """
    if graph.made_of is None:
        return _made(graph, x.double(), _all(x, weights), radius, count)
    points, masses = graph.made_of[0], None if weights is None else graph.made_of[1]
    key = ("levels", radius, count, weights is None)
    return graph.cached(key, lambda: _made(graph, points.double(), _all(points, masses), radius, count))


def _all(x: Tensor, weights: Tensor | None) -> Tensor:
    return torch.ones(len(x), dtype=torch.float64, device=x.device) if weights is None else weights.double()


def _made(graph: Graph, x: Tensor, weights: Tensor, radius: float, count: int) -> list[Level]:
    periods = None if graph.images is None else graph.images.periods
    cuts = torch.tensor(graph.cuts, device=x.device)
    function = torch.arange(len(cuts) - 1, device=x.device).repeat_interleave(cuts.diff(), output_size=len(x))
    nodes = torch.arange(len(x), device=x.device)
    found = [Level(nodes, weights, None, None, None)]
    for level in range(1, count):
        r = radius * 2**level
        chosen, cell = _thinned(x[nodes], function[nodes], weights, _cell_sizes(r / PER_BALL, x, periods))
        coarse = nodes[chosen]
        weights = torch.zeros(len(chosen), dtype=weights.dtype, device=x.device).index_add_(0, cell, weights)
        pairs = ((coarse, coarse), (coarse, nodes), (nodes, coarse))
        within, down, up = (_between(x, function, *ends, r, periods) for ends in pairs)
        found.append(Level(coarse, weights, within, down, up))
        nodes = coarse
    return found


def _cell_sizes(size: float, x: Tensor, periods: Tensor | None) -> Tensor:
    """Return the size (d,) of cells along each axis, about as asked for."""
    sizes = x.new_full((x.shape[1],), size)
    if periods is None:
        return sizes
    periods = periods.to(x)
    return torch.where(torch.isfinite(periods), periods / (periods / sizes).round().clamp(min=1), sizes)


def _thinned(x: Tensor, function: Tensor, weights: Tensor, size: Tensor) -> tuple[Tensor, Tensor]:
    """Return the points that are kept, one per cell, in the order of functions; and for each point the one kept in its cell.

    A point on the edge of a cell, up to the rounding of float32, is in the next one."""
    place = torch.cat([function[:, None], torch.floor(x / size + 1e-5).long()], 1)
    cells, cell = torch.unique(place, dim=0, return_inverse=True)
    mass = torch.zeros(len(cells), dtype=x.dtype, device=x.device).index_add_(0, cell, weights)
    middle = torch.zeros(len(cells), x.shape[1], dtype=x.dtype, device=x.device).index_add_(0, cell, weights[:, None] * x)
    distance = (x - (middle / mass[:, None])[cell]).square().sum(1)
    # Nearest first; among equals, up to rounding, the one with the smallest coordinates, whatever their order.
    order = torch.arange(len(x), device=x.device)
    for key in (*x.T.flip(0), (distance / size.prod() ** (2 / len(size))).mul(2**20).round(), cell.double()):
        order = order[torch.argsort(key[order], stable=True)]
    first = torch.cat([order.new_ones(1, dtype=torch.bool), cell[order].diff() != 0])
    return order[first], cell


def _between(x: Tensor, function: Tensor, targets: Tensor, sources: Tensor, r: float, periods: Tensor | None = None) -> Graph:
    """Return the graph of sources in the balls of targets, function by function."""
    count = int(function[-1]) + 1
    numbers, parts = torch.arange(count + 1, device=x.device), []
    ends = [torch.searchsorted(function[each].contiguous(), numbers).tolist() for each in (targets, sources)]
    for (t0, t1), (s0, s1) in zip(pairwise(ends[0]), pairwise(ends[1]), strict=True):
        parts.append(graph_between(x[sources[s0:s1]], x[targets[t0:t1]], r, periods))
    return Graph.batch(parts)


def graph_between(sources: Tensor, targets: Tensor, r: float, periods: Tensor | None) -> Graph:
    """Return the sources in the ball of each target, around periodic axes if there are any."""
    return radius_graph(sources, targets, r) if periods is None else periodic_graph(sources, targets, r, periods)
