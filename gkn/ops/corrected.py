"""Corrected windows: the weights of the sources in a ball, changed as little as needed to integrate polynomials exactly.

    window(x, y) (c_0 + c_1 . z + z . c_2 z),   z = y - x in units of the radius

with coefficients c(x) for which sums over the sources have given moments (gkn/graph/moments.py). The factor is at least 0 and
at most MOST times its mean, so that no source counts against the others.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gkn.graph.graph import Graph, window
from gkn.graph.moments import degree_of, polynomials

RIDGE = 1e-9
"""Relative size of what is added to the equations of a ball, which may have fewer sources than there are polynomials."""
MOST = 2.5
EDGES = 2**22
"""Edges at a time."""


@torch.no_grad()
def coefficients(graph: Graph, x: Tensor, y: Tensor, weights: Tensor | None, moments: Tensor) -> Tensor:
    """Return c (targets, polynomials), given points in units of the radius and the moments of the balls of the targets.

    Balls without sources, or whose moments are not finite, get (1, 0, ..., 0).
    """
    targets, count = moments.shape
    degree, found = degree_of(count, x.shape[1]), []
    for start, stop in graph.blocks(EDGES, max(1, targets)):
        part = graph.part(start, stop)
        target, source = part.targets.long(), part.src.long()
        z = (y.index_select(0, source) - x[start:stop].index_select(0, target)).double()
        rho = window(z, torch.zeros_like(z)) * (1.0 if weights is None else weights.index_select(0, source).double())
        P = polynomials(z, degree)
        G = z.new_zeros(stop - start, count, count)
        G.index_add_(0, target, rho[:, None, None] * P[:, :, None] * P[:, None, :])
        found.append(_solved(G, moments[start:stop].double()))
    return torch.cat(found) if found else moments.new_zeros(0, count)


def _solved(G: Tensor, moments: Tensor) -> Tensor:
    """Return c with G c = moments, as close to a constant as that allows."""
    unit = torch.eye(G.shape[1], dtype=G.dtype, device=G.device)
    mass = G[:, :1, 0]
    plain = unit[:1].expand(len(G), -1)
    wanted = moments - G[:, :, 0] / mass
    change = torch.linalg.solve(G / mass[..., None] + RIDGE * unit, wanted)
    known = torch.isfinite(change).all(1, keepdim=True)
    return torch.where(known, plain + torch.where(known, change, 0.0), plain)


def corrected_window(x: Tensor, y: Tensor, c: Tensor) -> Tensor:
    """Return the window on edges, times its correction: points (E, d) and coefficients (E, polynomials) of the targets."""
    factor = (polynomials((y - x).to(c), degree_of(c.shape[1], x.shape[1])) * c).sum(1).clamp(0, MOST)
    return window(x, y) * factor.to(x)
