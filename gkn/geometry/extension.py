"""Extension: a function that is known on the boundary of a domain, extended to all of its points."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from gkn.geometry.domain import Domain

_KEPT = 2**25  # numbers of a matrix that is kept for further functions
_BLOCK = 2**22  # numbers of such a matrix at a time


def extension(domain: Domain) -> Callable[[Tensor], Tensor]:
    """Return the map from functions (*batch, K), of which values on the boundary alone count, to their extensions (*batch, K):

        g(x) = sum_y w(y) |x - y|^-d g(y) / sum_y w(y) |x - y|^-d    over the points y of the boundary

    Points of the boundary keep their values. In a ball and on an interval this is the solution of Laplace's equation with these
    boundary values, but for the quadrature; elsewhere it is close to it near the boundary.
    """
    edge = domain.boundary
    if not edge.any():
        raise ValueError(f"{domain.describe()} has no boundary to extend values from")
    order, some = domain.measure_dim, edge & (domain.weights > 0)
    mass = domain.weights[some] ** (1 - 1 / order)  # measures of the boundary, up to a factor
    if not len(mass):  # weights that leave the boundary out
        some, mass = edge, torch.ones(int(edge.sum()), dtype=torch.float64)
    inside = (~edge).nonzero()[:, 0]
    x, y = domain.points[inside], domain.points[some]
    periods = torch.full((x.shape[1],), torch.inf) if domain.periods is None else domain.periods

    def means(part: Tensor) -> Tensor:
        far = torch.full((len(part), len(y)), torch.finfo(torch.float64).tiny, dtype=torch.float64)
        for axis, period in enumerate(periods.tolist()):
            step = part[:, axis, None] - y[:, axis]
            far += (step if period == torch.inf else step - period * (step / period).round()).square()
        weights = mass * (far.amin(1, keepdim=True) / far) ** (order / 2)  # relative to the largest, so that none overflows
        return weights / weights.sum(1, keepdim=True)

    rows = max(1, _BLOCK // len(y))
    kept = [means(part) for part in x.split(rows)] if len(x) * len(y) <= _KEPT else None

    def extended(g: Tensor) -> Tensor:
        if g.ndim < 1 or g.shape[-1] != len(domain):
            raise ValueError(f"extension: a function of shape {tuple(g.shape)} on a domain of {len(domain)} points")
        values = g.double()
        known = values[..., some].reshape(-1, len(y))
        found = [torch.stack([block @ each for each in known]) for block in kept or map(means, x.split(rows))]
        return values.index_copy(-1, inside, torch.cat(found, -1).reshape(*g.shape[:-1], len(x)))

    return extended
