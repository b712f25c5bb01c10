"""Integrals with a matrix for every edge, for kernels whose sums do not factor."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from gkn.graph.graph import Graph

ENTRIES = 2**24  # edges times numbers of f, at a time


def matrix_integral(
    matrices: Callable[[Tensor, Tensor], Tensor], graph: Graph, points: tuple[Tensor, Tensor], f: Tensor
) -> Tensor:
    """Return sum over y in N(x) of kappa(x, y) f(y), with a matrix for every edge, some edges at a time.

    A kernel that is no function of p(x) + q(y) does not factor.

        matrices   points of targets and of sources, one pair per edge -> (edges, o, i)
        points     of targets and of sources
        f          (sources, n, i) n functions at once
        ->         (targets, n, o)
    """
    at, x = points
    targets = torch.repeat_interleave(torch.arange(graph.num_targets, device=x.device), graph.degrees.to(x.device))
    total = f.new_zeros(graph.num_targets, *f.shape[1:])
    for some in torch.arange(graph.num_edges, device=x.device).split(max(1, ENTRIES // f[0].numel())):
        to, source = targets[some], graph.src[some]
        total = total.index_add(0, to, torch.einsum("eoi,eni->eno", matrices(at[to], x[source]), f[source]))
    return total
