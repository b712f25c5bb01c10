"""Moments of balls: what integrals over a ball of radius r should give for polynomials, whatever points there are in it.

A sum over a few random points is off by some percent even for linear functions. With these moments the weights of the points
in a ball can be corrected (gkn/ops/corrected.py) until all polynomials up to some degree are integrated as on the whole domain.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from gkn.geometry.domain import Domain
from gkn.graph.graph import window
from gkn.graph.neighbors import periodic_graph, radius_graph

EDGES = 2**24
"""Pairs of a target and a point of the domain at a time."""
DEGREES = (0, 1, 2)


def polynomials(z: Tensor, degree: int) -> Tensor:
    """Return 1, the coordinates of z (E, d) and their products, up to a degree of 2: (E, columns)."""
    columns = [torch.ones_like(z[:, :1])]
    if degree > 0:
        columns.append(z)
    if degree > 1:
        columns += [z[:, i : i + 1] * z[:, j : j + 1] for i, j in _pairs(z.shape[1])]
    return torch.cat(columns, 1)


def _pairs(dim: int) -> list[tuple[int, int]]:
    return [*itertools.combinations_with_replacement(range(dim), 2)]


def degree_of(columns: int, dim: int) -> int:
    """Return the degree of so many polynomials of z in a dimension."""
    return {1: 0, 1 + dim: 1}.get(columns, 2)


def turned(moments: Tensor, axes: Tensor, reversed: Tensor) -> Tensor:
    """Return the moments (T, count) in coordinates whose axis i is axis `axes[:, i]` of before, some of them reversed."""
    dim = axes.shape[1]
    degree = degree_of(moments.shape[1], dim)
    sign = torch.where(reversed, -1.0, 1.0).to(moments)
    parts = [moments[:, :1]]
    if degree > 0:
        parts.append(moments[:, 1 : 1 + dim].gather(1, axes) * sign)
    if degree > 1:
        number = torch.zeros(dim, dim, dtype=torch.long, device=moments.device)
        for k, (i, j) in enumerate(_pairs(dim)):
            number[i, j] = number[j, i] = 1 + dim + k
        for i, j in _pairs(dim):
            column = number[axes[:, i], axes[:, j]]
            parts.append(moments.gather(1, column[:, None]) * (sign[:, i] * sign[:, j])[:, None])
    return torch.cat(parts, 1)


def ball_moments(domain: Domain, at: Tensor, r: float, degree: int, periods: Tensor | None = None) -> Tensor:
    """Return the windowed means of polynomials of (y - x) / r over the part of D in the ball around each x = at (T, d).

    They are those of the finest quadrature that the domain has. Rows of balls without any point of it are NaN.
    """
    points, weights = (x.to(at.device) for x in domain.fine_quadrature(r))
    found = []
    for part in at.double().split(max(1, EDGES // max(1, len(points)))):
        graph = radius_graph(points, part, r) if periods is None else periodic_graph(points, part, r, periods)
        y, mass = (points, weights) if graph.images is None else (graph.images.points(points), graph.images.lend(weights))
        target, source = graph.targets.long(), graph.src.long()
        z = (y[source] - part[target]) / r
        rho = window(z, torch.zeros_like(z)) * mass[source]
        sums = torch.zeros(len(part), polynomials(z[:1], degree).shape[1] if len(z) else 1, dtype=z.dtype, device=z.device)
        if len(z):
            sums.index_add_(0, target, rho[:, None] * polynomials(z, degree))
        found.append(sums / sums[:, :1])
    width = max((part.shape[1] for part in found), default=1)
    return torch.cat([part if part.shape[1] == width else part.new_full((len(part), width), torch.nan) for part in found])
