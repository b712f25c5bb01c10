"""Images: copies of the nodes near a periodic face, moved by a period, so that neighbourhoods reach across the face."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Images:
    """Further sources of a graph, numbered after its nodes.

    nodes   (I,) the node each is a copy of
    shift   (I, d) by which its point is moved: whole periods, float64
    periods (d,) of the axes, inf where there is none
    """

    nodes: Tensor
    shift: Tensor
    periods: Tensor

    def __len__(self) -> int:
        return len(self.nodes)

    def lend(self, values: Tensor) -> Tensor:
        """Return the values of the nodes, followed by those of their images."""
        return torch.cat([values, values.index_select(0, self.nodes)])

    def points(self, x: Tensor) -> Tensor:
        """Return the points of the nodes, followed by those of their images."""
        return torch.cat([x, x.index_select(0, self.nodes) + self.shift.to(x)])

    @staticmethod
    def of(x: Tensor, periods: Tensor, r: float) -> Images:
        """Return the images of points (K, d) within r of the others' box, for periods (d,), inf where there is none."""
        points, periods = x.double(), periods.to(x.device)
        low, high = points.amin(0), points.amax(0)
        gap = torch.where(torch.isfinite(periods), periods - (high - low), 0.0)  # the box may begin so much earlier
        reach = r * (1 + 1e-6)
        nodes, shifts = [], []
        most = [math.ceil(reach / period) if math.isfinite(period) else 0 for period in periods.tolist()]
        axes = [range(-count, count + 1) for count in most]
        for turns in itertools.product(*axes):
            if not any(turns):
                continue
            shift = torch.tensor(turns, dtype=torch.float64, device=x.device) * torch.where(
                torch.isfinite(periods), periods, 0.0
            )
            moved = points + shift
            near = ((moved >= low - gap - reach) & (moved <= high + gap + reach)).all(1).nonzero()[:, 0]
            nodes.append(near)
            shifts.append(shift.expand(len(near), -1))
        return Images(torch.cat(nodes), torch.cat(shifts), periods)

    @staticmethod
    def batch(parts: Sequence[Images], sizes: Sequence[int]) -> Images:
        """Return the images of graphs side by side, given the number of nodes of each."""
        starts = [0, *itertools.accumulate(sizes)]
        nodes = torch.cat([part.nodes + start for part, start in zip(parts, starts, strict=False)])
        return Images(nodes, torch.cat([part.shift for part in parts]), parts[0].periods)

    def to(self, device: torch.device | str) -> Images:
        return Images(self.nodes.to(device), self.shift.to(device), self.periods.to(device))
