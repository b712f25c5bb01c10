"""Rules: the choice of nodes and edges for the graphs of a sample."""

from __future__ import annotations

import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from gkn.geometry.domain import Domain
from gkn.graph.graph import Graph
from gkn.graph.neighbors import periodic_graph, radius_graph, radius_graphs

_AT_A_TIME = 2**24  # nodes that get a random number in one call

BALL = {1: 20, 2: 80, 3: 80}
"""Points in a ball, by their dimension, for which a sum over them is an integral to a few parts in a thousand, if the
integrand is smooth. On a line 20 are 10 to each side; in the plane 80 are 5 in every direction."""

RULES: dict[str, type[Rule]] = {}
"""Every rule by the name of its class. A subclass of `Rule` registers itself."""


class Rule(ABC):
    """A way to turn the points of a sample into graphs.

    A new rule defines `graph`. By default a sample is one graph of all its points; a rule that draws nodes sets `drawn` and
    `graphs`. Attributes of a rule are plain numbers: they are stored with operators and runs.

        r        radius of the neighbourhoods, or None if the rule has none
        drawn    number of nodes drawn for each graph; None: all points are nodes
        graphs   number of graphs per sample
    """

    r: float | None

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        RULES[cls.__name__] = cls

    @property
    def drawn(self) -> int | None:
        return None

    @property
    def graphs(self) -> int:
        return 1

    @abstractmethod
    def graph(self, x: Tensor, at: Tensor | None = None, r: float | None = None) -> Graph:
        """Connect the nodes x with each other, or with targets `at` if given; with another radius if `r` is given."""

    def wrapped(self, x: Tensor, at: Tensor | None = None, r: float | None = None, periods: Tensor | None = None) -> Graph:
        """Connect nodes of a domain with periods (d,), inf where an axis has none; None: no axis is periodic."""
        if periods is None:
            return self.graph(x, at, r)
        raise ValueError(f"{self}: this rule knows no periodic axes; use Radius or Nystrom")

    def graphs_of(self, x: Tensor, r: float | None = None, periods: Tensor | None = None) -> Graph:
        """Return the graphs of many node sets (G, m, d) of equal size, side by side."""
        return Graph.batch([self.wrapped(nodes, None, r, periods) for nodes in x])

    def draws(
        self, points: int, samples: Sequence[int], *, seed: int = 0, epoch: int = 0, device: torch.device | str = "cpu"
    ) -> Tensor:
        """Draw the nodes (samples, graphs, drawn) of each graph, in ascending order.

        They depend on (seed, sample, draw, epoch) and nothing else: not on the device, not on which other samples are drawn
        for, nor on what was drawn before. So a resumed run sees what it would have seen, on any number of machines.
        """
        assert self.drawn is not None
        if self.drawn > points:
            raise ValueError(
                f"{self}: {self.drawn} nodes of a domain that has {points}; use m <= {points}, or Radius({self.r}) for all"
            )
        whole = torch.arange(points, device=device) * _ODD
        key = _mixed(_mixed(torch.tensor([_signed(seed)], device=device)) + epoch)
        sample = torch.as_tensor(samples, device=device, dtype=torch.long)
        keys = _mixed(_mixed(key + sample)[:, None] + torch.arange(self.graphs, device=device)).reshape(-1, 1)
        rows = max(1, _AT_A_TIME // points)
        # Each node gets a random number; those with the smallest numbers are drawn.
        few = [_mixed(part + whole).topk(self.drawn, largest=False, sorted=False).indices for part in keys.split(rows)]
        return torch.cat(few).sort().values.reshape(len(sample), self.graphs, self.drawn)

    def whole(self, r: float | None = None) -> Rule:
        """Return the rule with the same edges for all points of a sample."""
        if self.drawn is not None:
            raise NotImplementedError(f"{type(self).__name__} draws nodes; it must define `whole`, the rule for all points")
        return self

    def sampled(self, m: int, l: int = 1, r: float | None = None) -> Rule:
        """Return the rule with the same edges for m drawn nodes, l draws per sample."""
        raise ValueError(f"{self}: this rule does not draw nodes; evaluate on all points")

    def scaled(self, factor: float) -> Rule:
        """Return the rule for points whose coordinates were multiplied by a factor."""
        return self

    def config(self) -> dict[str, Any]:
        """Return the name and the numbers of the rule, as they are stored."""
        return {"kind": type(self).__name__, **vars(self)}


def rule_from(config: Mapping[str, Any]) -> Rule:
    """Return the rule that `config` described."""
    if config["kind"] not in RULES:
        known = ", ".join(RULES)
        raise ValueError(f"a rule called {config['kind']!r}; there are {known}: import the module that defines it first")
    return RULES[config["kind"]](**{key: value for key, value in config.items() if key != "kind"})


@dataclass(frozen=True)
class Radius(Rule):
    """All points are nodes; every node is connected with all nodes within the distance r."""

    r: float

    def __post_init__(self) -> None:
        _check_radius(self)

    def graph(self, x: Tensor, at: Tensor | None = None, r: float | None = None) -> Graph:
        return radius_graph(x, at, self.r if r is None else r)

    def wrapped(self, x: Tensor, at: Tensor | None = None, r: float | None = None, periods: Tensor | None = None) -> Graph:
        if periods is None:
            return self.graph(x, at, r)
        return periodic_graph(x, at, self.r if r is None else r, periods)

    def graphs_of(self, x: Tensor, r: float | None = None, periods: Tensor | None = None) -> Graph:
        if periods is not None:
            return super().graphs_of(x, r, periods)
        return radius_graphs(x, self.r if r is None else r)

    def scaled(self, factor: float) -> Radius:
        return self if factor == 1 else replace(self, r=self.r * factor)

    def whole(self, r: float | None = None) -> Radius:
        return Radius(self.r if r is None else r)

    def sampled(self, m: int, l: int = 1, r: float | None = None) -> Nystrom:
        return Nystrom(self.r if r is None else r, m, l)


@dataclass(frozen=True)
class Nystrom(Radius):
    """l sub-graphs of each sample, each of m nodes drawn uniformly without replacement; neighbours within r."""

    m: int
    l: int = 1

    def __post_init__(self) -> None:
        _check_radius(self)
        check_draws(self)

    @property
    def drawn(self) -> int:
        return self.m

    @property
    def graphs(self) -> int:
        return self.l


@dataclass(frozen=True)
class Points(Rule):
    """Points without edges, for models that need none: all points of a sample, or m drawn ones, l draws per sample."""

    r: ClassVar[None] = None  # type: ignore[misc]
    m: int | None = None
    l: int = 1

    def __post_init__(self) -> None:
        if self.m is not None:
            check_draws(self)

    @property
    def drawn(self) -> int | None:
        return self.m

    @property
    def graphs(self) -> int:
        return self.l

    def wrapped(self, x: Tensor, at: Tensor | None = None, r: float | None = None, periods: Tensor | None = None) -> Graph:
        return self.graph(x, at, r)  # no edges, so none that wrap

    def graph(self, x: Tensor, at: Tensor | None = None, r: float | None = None) -> Graph:
        targets = len(x if at is None else at)
        none = torch.zeros(targets + 1, dtype=torch.long, device=x.device)
        return Graph.trusted(none, torch.zeros(0, dtype=torch.int32, device=x.device), len(x))

    def whole(self, r: float | None = None) -> Points:
        return Points()

    def sampled(self, m: int, l: int = 1, r: float | None = None) -> Points:
        return Points(m, l)


def usual_radius(domain: Domain, points: int | None = None) -> float:
    """Return the radius of balls with as many points as `BALL` says, of so many spread over a domain; by default, its own.

    It is at most half of each period, so that no ball meets itself.
    """
    dim = domain.measure_dim
    unit = math.pi ** (dim / 2) / math.gamma(dim / 2 + 1)  # volume of the ball of radius 1
    share = BALL[domain.dim] / (len(domain) if points is None else points)
    radius = float((share * float(domain.weights.sum()) / unit) ** (1 / dim))
    return radius if domain.periods is None else min(radius, float(domain.periods.min()) / 2)


def draw_nodes(points: int, m: int, rng: torch.Generator) -> Tensor:
    """Draw m of the points, uniformly without replacement, in ascending order."""
    return torch.randperm(points, generator=rng)[:m].sort().values


def _signed(x: int) -> int:
    """Return the int64 with the same 64 bits."""
    return (x + 2**63) % 2**64 - 2**63


_ODD, _FIRST, _SECOND = (_signed(x) for x in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


def _mixed(x: Tensor) -> Tensor:
    """Apply the output function of SplitMix64 (Steele, Lea, Flood 2014): 64 bits to 64 bits, one to one, each depending on all.

    It is computed in integers, which wrap around in the same way on every device.
    """
    x = (x ^ (x >> 30 & 2**34 - 1)) * _FIRST
    x = (x ^ (x >> 27 & 2**37 - 1)) * _SECOND
    return x ^ (x >> 31 & 2**33 - 1)


def check_draws(choice: Any) -> None:
    """Raise an error unless m and l of a frozen dataclass are whole numbers, at least 1."""
    if choice.m is True or choice.l is True:
        raise ValueError(f"{choice}: needed whole numbers of nodes and draws")
    for name in ("m", "l"):
        object.__setattr__(choice, name, operator.index(getattr(choice, name)))
    if choice.m < 1 or choice.l < 1:
        raise ValueError(f"{choice}: needed at least one node and one draw")


def _check_radius(rule: Radius) -> None:
    try:
        object.__setattr__(rule, "r", math.nan if isinstance(rule.r, bool) else float(rule.r))
    except (TypeError, ValueError):
        raise ValueError(f"{rule}: the radius must be a finite number > 0") from None
    if not (math.isfinite(rule.r) and rule.r > 0):
        raise ValueError(f"{rule}: the radius must be a finite number > 0")
