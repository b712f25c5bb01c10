"""Ways to predict: which of a sample's points are nodes, and in how many parts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from operator import index
from typing import ClassVar

import torch
from torch import Tensor

from gkn.geometry.domain import Domain
from gkn.geometry.spread import farthest_points
from gkn.graph.rules import Rule, check_draws, draw_nodes


@dataclass(frozen=True)
class Test(ABC):
    """A way to evaluate an operator on the functions of a dataset."""

    @abstractmethod
    def batched(self, rule: Rule, r: float | None = None) -> Rule | None:
        """Return the rule for evaluating many samples as one batch, or None if samples are evaluated one by one.

        rule   the operator's
        r      another radius than in training
        """


@dataclass(frozen=True)
class How(Test):
    """A way to predict: the nodes that carry the computation.

    all_queries   every point of the sample is a query point, the nodes included
    """

    all_queries: ClassVar[bool] = False

    def batched(self, rule: Rule, r: float | None = None) -> Rule | None:
        return None

    @abstractmethod
    def parts(self, domain: Domain, rng: torch.Generator) -> Iterator[Part]:
        """Yield the sub-graphs of a sample, each predicted by itself."""


@dataclass(frozen=True)
class Exact(How):
    """Every point of the sample is a node."""

    def batched(self, rule: Rule, r: float | None = None) -> Rule:
        return rule.whole(r)

    def parts(self, domain: Domain, rng: torch.Generator) -> Iterator[Part]:
        yield Part(None, len(domain))


@dataclass(frozen=True)
class Support(How):
    """m' random nodes carry the computation, all points are queries; the answer is the mean over l' draws."""

    all_queries = True
    m: int
    l: int = 1

    def __post_init__(self) -> None:
        check_draws(self)

    def parts(self, domain: Domain, rng: torch.Generator) -> Iterator[Part]:
        _check_points(self, self.m, len(domain))
        for _ in range(self.l):
            nodes = draw_nodes(len(domain), self.m, rng)
            yield Part(nodes, len(nodes))


@dataclass(frozen=True)
class Spread(How):
    """m nodes spread evenly over the points carry the computation, all points are queries.

    For meshes that are much finer than those of training: with as many nodes as training samples have, balls hold as many
    nodes as the network is used to. On 99,452 nodes of a cube, 2500 spread nodes have an error of 0.032, 2500 random nodes
    0.095 (results/own-data).
    """

    all_queries = True
    m: int

    def __post_init__(self) -> None:
        _check_nodes(self)

    def parts(self, domain: Domain, rng: torch.Generator) -> Iterator[Part]:
        _check_points(self, self.m, len(domain))
        nodes = farthest_points(domain.points, self.m, rng)
        yield Part(nodes, len(nodes))


@dataclass(frozen=True)
class Partition(How):
    """The paper's way: the points are split into sub-graphs of m nodes, each predicted by itself.

    On a grid the parts are strided sub-grids, shifted against each other, filled up to m with random further nodes; elsewhere
    they are random. A node is predicted by its own part. A query point gets the mean of the answers of all parts; so here, and
    only here, the answer to a query at a node is not the value of that node.
    """

    m: int

    def __post_init__(self) -> None:
        _check_nodes(self)

    def parts(self, domain: Domain, rng: torch.Generator) -> Iterator[Part]:
        _check_points(self, self.m, len(domain))
        for part in domain.parts(self.m, rng):
            yield Part(torch.cat([part, _others(len(domain), part, self.m - len(part), rng)]), len(part))


@dataclass(frozen=True)
class Sampled(Test):
    """The paper's test: m' random nodes of each function, predicted from each other and compared there; l' times."""

    m: int
    l: int = 1

    def __post_init__(self) -> None:
        check_draws(self)

    def batched(self, rule: Rule, r: float | None = None) -> Rule:
        return rule.sampled(self.m, self.l, r)


@dataclass(frozen=True, eq=False)
class Part:
    """Nodes of one sub-graph: all if None. The first `predicted` are predicted by it, the others only fill it up."""

    nodes: Tensor | None
    predicted: int


def together(parts: list[Part], least: int) -> Iterator[list[Part]]:
    """Yield as many parts at a time as make up `least` nodes: small graphs side by side take little longer than one."""
    some: list[Part] = []
    for part in parts:
        some.append(part)
        if sum(0 if each.nodes is None else len(each.nodes) for each in some) >= least:
            yield some
            some = []
    if some:
        yield some


def _check_nodes(how: Spread | Partition) -> None:
    object.__setattr__(how, "m", 0 if isinstance(how.m, bool) else index(how.m))
    if how.m < 1:
        raise ValueError(f"{how}: needed at least one node")


def _check_points(how: How, m: int, points: int) -> None:
    if m > points:
        raise ValueError(f"{how}: the sample has {points} points; use m <= {points}, or Exact() for all")


def _others(K: int, part: Tensor, count: int, rng: torch.Generator) -> Tensor:
    """Draw `count` nodes that are not among `part`, uniformly without replacement.

    A few of many are drawn one by one, and drawn again if they were drawn before.
    """
    if 4 * (count + len(part)) > K:
        others = torch.ones(K, dtype=torch.bool)
        others[part] = False
        rest = others.nonzero()[:, 0]
        return rest[torch.randperm(len(rest), generator=rng)[:count]]
    taken: set[int] = {*part.tolist()}
    drawn: list[int] = []
    while len(drawn) < count:
        for node in torch.randint(K, (2 * count,), generator=rng).tolist():
            if node not in taken and len(drawn) < count:
                taken.add(node)
                drawn.append(node)
    return torch.tensor(drawn, dtype=torch.long)
