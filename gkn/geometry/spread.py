"""Points spread evenly over a domain, chosen among its own."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

CANDIDATES = 32  # points that are looked at for each point that is chosen


def farthest_points(points: Tensor, m: int, rng: torch.Generator) -> Tensor:
    """Return the indices of m of the points (K, d), in ascending order. Each is the one farthest from those chosen before.

    They lie up to the boundary, with about equal distances, as the nodes of a mesh do. Of very many points a random part is
    looked at.
    """
    count = len(points)
    if m >= count:
        return torch.arange(count)
    which = np.arange(count)
    if count > CANDIDATES * m:
        which = torch.randperm(count, generator=rng)[: CANDIDATES * m].sort().values.numpy()
    axes = [np.ascontiguousarray(axis) for axis in points.detach().cpu().double().numpy()[which].T]
    distance = np.full(len(which), np.inf)
    place = int(sum((axis - axis.mean()) ** 2 for axis in axes).argmax())
    chosen = np.empty(m, dtype=np.int64)
    for k in range(m):
        chosen[k] = place
        np.minimum(distance, sum((axis - axis[place]) ** 2 for axis in axes), out=distance)
        place = int(distance.argmax())
    return torch.from_numpy(np.sort(which[chosen]))
