"""Rules: how points become graphs."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass

import torch
from torch import Tensor

from gkn.fields import stream
from gkn.graph import Graph
from gkn.neighbors import radius_graph


@dataclass(frozen=True)
class Radius:
    """All points, each with its neighbours within r."""

    r: float

    def __post_init__(self) -> None:
        _check_radius(self)

    def graph(self, x: Tensor, at: Tensor | None = None, r: float | None = None) -> Graph:
        """Who is near whom among the nodes x, or which nodes are near the points `at`."""
        return radius_graph(x, at, self.r if r is None else r)

    def draws(self, points: int, *, seed: int = 0, sample: int = 0, epoch: int = 0) -> Tensor:
        """(1, K): every node, once."""
        return torch.arange(points)[None]


@dataclass(frozen=True)
class Nystrom:
    """Sub-graphs of m nodes, drawn uniformly without replacement, l for each sample; neighbours within r.

    `fresh=False`: the same l draws in every epoch, as in the paper. `fresh=True`: new ones every epoch, which costs nothing and
    is better. Draws depend on (seed, sample, epoch) and nothing else: a run that goes on sees what it would have seen.
    """

    r: float
    m: int
    l: int = 1
    fresh: bool = False

    def __post_init__(self) -> None:
        _check_radius(self)
        object.__setattr__(self, "m", operator.index(self.m))
        object.__setattr__(self, "l", operator.index(self.l))
        if self.m < 1 or self.l < 1:
            raise ValueError(f"{self}: needed at least one node and one draw")

    def graph(self, x: Tensor, at: Tensor | None = None, r: float | None = None) -> Graph:
        return radius_graph(x, at, self.r if r is None else r)

    def draws(self, points: int, *, seed: int = 0, sample: int = 0, epoch: int = 0) -> Tensor:
        """(l, m): the nodes of each sub-graph, in ascending order."""
        if self.m > points:
            raise ValueError(
                f"{self}: {self.m} nodes of a domain that has {points}; use m <= {points}, or Radius({self.r}) for all"
            )
        rng = stream(seed, sample, epoch if self.fresh else 0, 2)  # another stream than those of the data
        return torch.stack([draw_nodes(points, self.m, rng) for _ in range(self.l)])


Rule = Radius | Nystrom


def draw_nodes(points: int, m: int, rng: torch.Generator) -> Tensor:
    """m of the points, uniformly without replacement, in ascending order."""
    return torch.randperm(points, generator=rng)[:m].sort().values


def _check_radius(rule: Radius | Nystrom) -> None:
    try:
        object.__setattr__(rule, "r", float(rule.r))
    except (TypeError, ValueError):
        raise ValueError(f"{rule}: the radius must be a finite number > 0") from None
    if not (math.isfinite(rule.r) and rule.r > 0):
        raise ValueError(f"{rule}: the radius must be a finite number > 0")
