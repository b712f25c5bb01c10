"""Points spread evenly over a domain, chosen among its own."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

CANDIDATES, MOST = 32, 200_000  # points that are looked at for each point that is chosen, and in all


def farthest_points(points: Tensor, m: int, rng: torch.Generator) -> Tensor:
    """Return the indices of at most m of the points (K, d), in ascending order. Each is the farthest from those before it.

    They lie up to the boundary, with about equal distances, as the nodes of a mesh do. Of very many points a random part is
    looked at.
    """
    count = len(points)
    if m >= count:
        return torch.arange(count)
    which = np.arange(count)
    looked_at = min(CANDIDATES * m, max(4 * m, MOST))
    if count > looked_at:
        which = torch.randperm(count, generator=rng)[:looked_at].sort().values.numpy()
    axes = [np.ascontiguousarray(axis) for axis in points.detach().cpu().double().numpy()[which].T]
    distance = np.full(len(which), np.inf)
    place = int(sum((axis - axis.mean()) ** 2 for axis in axes).argmax())
    chosen = np.empty(m, dtype=np.int64)
    for k in range(m):
        chosen[k] = place
        np.minimum(distance, sum((axis - axis[place]) ** 2 for axis in axes), out=distance)
        place = int(distance.argmax())
        if distance[place] == 0:  # fewer points than m lie at different places
            chosen = chosen[: k + 1]
            break
    return torch.from_numpy(np.sort(which[chosen]))
