"""Arguments of the sums over neighbours, as named tuples."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from gkn.graph.graph import Graph


class Measure(NamedTuple):
    """Edges to sum over, their weights, and the implementation that does it.

    graph     its neighbourhoods
    rho       (edges,) density, or None
    scale     (targets,) factors of the sums
    backend   reference, factored or fused
    """

    graph: Graph
    rho: Tensor | None
    scale: Tensor
    backend: str


class Edges(NamedTuple):
    """The edges of a graph and the measure on them.

    ptr, src     of the graph: target i receives from src[ptr[i]:ptr[i+1]]
    by_source    offsets and numbers of the edges of each source; only a backward pass needs them
    max_degree   largest number of neighbours of a target
    rho          (edges,) density, or None
    scale        (targets,) factors of the sums
    block        number of targets whose sums exist at a time
    """

    ptr: Tensor
    src: Tensor
    by_source: tuple[Tensor, Tensor]
    max_degree: int
    rho: Tensor | None
    scale: Tensor
    block: int


class Into(NamedTuple):
    """Destination of the gradient of h.

    dh      array that is overwritten, or added to
    add     add to `dh` instead of overwriting it
    close   set the gradient of h to 0 where h <= 0: the derivative of the ReLU that made h
    door    set the gradient of v to 0 where this is <= 0: the derivative of the ReLU that made v
    """

    dh: Tensor
    add: bool = False
    close: bool = False
    door: Tensor | None = None
