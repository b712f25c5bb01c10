"""Rules: how points become graphs."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gkn.geometry.domain import Domain
from gkn.graph.graph import Graph
from gkn.graph.neighbors import radius_graph

_AT_A_TIME = 2**24  # nodes that are given a number

BALL = 80
"""Points in a ball whose sum is an integral to a few parts in a thousand, if what is summed is smooth."""


def usual_radius(domain: Domain, points: int | None = None) -> float:
    """Of balls that have about `BALL` of so many points spread over a domain, or of its own."""
    unit = math.pi ** (domain.dim / 2) / math.gamma(domain.dim / 2 + 1)  # the volume of a ball of radius 1
    share = BALL / (len(domain) if points is None else points)
    return float((share * float(domain.weights.sum()) / unit) ** (1 / domain.dim))


@dataclass(frozen=True)
class Radius:
    """All points, each with its neighbours within r."""

    r: float

    def __post_init__(self) -> None:
        _check_radius(self)

    def graph(self, x: Tensor, at: Tensor | None = None, r: float | None = None) -> Graph:
        """Who is near whom among the nodes x, or which nodes are near the points `at`."""
        return radius_graph(x, at, self.r if r is None else r)


@dataclass(frozen=True)
class Nystrom:
    """Sub-graphs of m nodes, drawn uniformly without replacement, l for each sample; neighbours within r."""

    r: float
    m: int
    l: int = 1

    def __post_init__(self) -> None:
        _check_radius(self)
        check_draws(self)

    def graph(self, x: Tensor, at: Tensor | None = None, r: float | None = None) -> Graph:
        return radius_graph(x, at, self.r if r is None else r)

    def draws(
        self, points: int, samples: Sequence[int], *, seed: int = 0, epoch: int = 0, device: torch.device | str = "cpu"
    ) -> Tensor:
        """(samples, l, m): the nodes of each sub-graph, in ascending order.

        They depend on (seed, sample, draw, epoch) and nothing else: not on the device, not on which other samples are asked
        for, nor on what was drawn before. So a run that goes on sees what it would have seen, on any number of machines.
        """
        if self.m > points:
            raise ValueError(
                f"{self}: {self.m} nodes of a domain that has {points}; use m <= {points}, or Radius({self.r}) for all"
            )
        whole = torch.arange(points, device=device) * _ODD
        key = _mixed(_mixed(torch.tensor([_signed(seed)], device=device)) + epoch)
        sample = torch.as_tensor(samples, device=device, dtype=torch.long)
        keys = _mixed(_mixed(key + sample)[:, None] + torch.arange(self.l, device=device)).reshape(-1, 1)
        rows = max(1, _AT_A_TIME // points)
        # Each node gets a number at random; those with the smallest are the draw.
        few = [_mixed(part + whole).topk(self.m, largest=False, sorted=False).indices for part in keys.split(rows)]
        return torch.cat(few).sort().values.reshape(len(sample), self.l, self.m)


Rule = Radius | Nystrom


def draw_nodes(points: int, m: int, rng: torch.Generator) -> Tensor:
    """m of the points, uniformly without replacement, in ascending order."""
    return torch.randperm(points, generator=rng)[:m].sort().values


def _signed(x: int) -> int:
    """The same 64 bits, as torch's int64 has them."""
    return (x + 2**63) % 2**64 - 2**63


_ODD, _FIRST, _SECOND = (_signed(x) for x in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


def _mixed(x: Tensor) -> Tensor:
    """The output function of SplitMix64 (Steele, Lea, Flood 2014): 64 bits to 64 bits, one to one, each depending on all.

    In integers, which wrap around in the same way on every device.
    """
    x = (x ^ (x >> 30 & 2**34 - 1)) * _FIRST
    x = (x ^ (x >> 27 & 2**37 - 1)) * _SECOND
    return x ^ (x >> 31 & 2**33 - 1)


def check_draws(choice: Any) -> None:
    """Of a frozen choice of m nodes, l times: both are whole numbers, at least 1."""
    for name in ("m", "l"):
        object.__setattr__(choice, name, operator.index(getattr(choice, name)))
    if choice.m < 1 or choice.l < 1:
        raise ValueError(f"{choice}: needed at least one node and one draw")


def _check_radius(rule: Radius | Nystrom) -> None:
    try:
        object.__setattr__(rule, "r", float(rule.r))
    except (TypeError, ValueError):
        raise ValueError(f"{rule}: the radius must be a finite number > 0") from None
    if not (math.isfinite(rule.r) and rule.r > 0):
        raise ValueError(f"{rule}: the radius must be a finite number > 0")
