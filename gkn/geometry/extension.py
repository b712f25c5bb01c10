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
    inside, order = (~edge).nonzero()[:, 0], domain.measure_dim
    x, y = domain.points[inside], domain.points[edge]
    mass = domain.weights[edge] ** (1 - 1 / order)  # measures of the boundary, up to a factor
    rows = max(1, _BLOCK // len(y))

    periods = torch.full((x.shape[1],), torch.inf) if domain.periods is None else domain.periods

    def means(part: Tensor) -> Tensor:
        far = torch.full((len(part), len(y)), torch.finfo(torch.float64).tiny, dtype=torch.float64)
        for axis, period in enumerate(periods.tolist()):
            step = part[:, axis, None] - y[:, axis]
            far += (step if period == torch.inf else step - period * (step / period).round()).square()
        weights = mass * (far.amin(1, keepdim=True) / far) ** (order / 2)  # relative to the largest, so that none overflows
        return weights / weights.sum(1, keepdim=True)

    whole = means(x) if len(x) * len(y) <= _KEPT else None

    def extended(g: Tensor) -> Tensor:
        if g.ndim < 1 or g.shape[-1] != len(domain):
            raise ValueError(f"extension: a function of shape {tuple(g.shape)} on a domain of {len(domain)} points")
        values = g.double()
        known = values[..., edge]
        blocks = [whole] if whole is not None else (means(part) for part in x.split(rows))
        found = torch.cat([known @ block.T for block in blocks], -1)
        return values.index_copy(-1, inside, found)

    return extended
