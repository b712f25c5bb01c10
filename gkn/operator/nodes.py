"""Nodes, query points and periods of one prediction."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeAlias
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from gkn.geometry.domain import Domain
from gkn.graph.graph import Graph
from gkn.graph.moments import ball_moments
from gkn.graph.neighbors import lumped
from gkn.graph.rules import Rule
from gkn.models import Model

Progress: TypeAlias = Callable[[int, int], None]


def periods_for(model: Model, domain: Domain) -> Tensor | None:
    """Return the periods (d,) of a domain along the periodic axes of a model, inf for other axes; None if it has none."""
    if not model.periodic:
        return None
    periods = domain.periods
    if periods is None or not bool(torch.isfinite(periods[[*model.periodic]]).all()):
        raise ValueError(
            f"the axes {model.periodic} of this {type(model).__name__} are periodic, those of {domain.describe()} are not"
        )
    kept = torch.full_like(periods, torch.inf)
    kept[[*model.periodic]] = periods[[*model.periodic]]
    return kept


def moments_for(model: Model, rule: Rule, domain: Domain, periods: Tensor | None) -> Callable[..., Tensor] | None:
    """Return the function that computes moments of balls around points, if the model needs them."""
    if not model.moments or rule.r is None:
        return None
    usual = rule.r

    def moments(at: Tensor, r: float | None) -> Tensor:
        return ball_moments(domain, at, usual if r is None else r, model.moments, periods).to(model.like.dtype)

    return moments


def into_box(at: Tensor, domain: Domain, periods: Tensor) -> Tensor:
    """Return query points moved by whole periods into the box of a domain."""
    low, finite = domain.box[0].to(at.device), torch.isfinite(periods).to(at.device)
    length = torch.where(finite, periods.to(at.device), 1.0)
    return torch.where(finite, low + torch.remainder(at.double() - low, length), at.double())


@dataclass(frozen=True, eq=False)
class Queries:
    x: Tensor  # in the type it came in, on which ties at the radius depend
    a: Callable[[slice], Tensor]  # computed when needed: any number of queries, in flat memory


@dataclass(frozen=True, eq=False)
class Nodes:
    x: Tensor
    a: Tensor
    weights: Tensor
    periods: Tensor | None = None
    moments: Callable[[Tensor, float | None], Tensor] | None = None  # of balls around points, of a radius or that of the rule

    def graph(self, rule: Rule, at: Tensor | None, r: float | None) -> Graph:
        """Return the graph of the nodes, or of targets that receive from them."""
        graph = rule.wrapped(self.x, at, r, self.periods)
        return graph if self.moments is None else graph.with_moments(self.moments(self.x if at is None else at, r))

    def take(self, parts: list[Tensor], weighted: bool) -> Nodes:
        """Return the nodes of parts, one part after the other. If weights count, every node adds its own to the nearest."""
        which = torch.cat(parts)
        weights = torch.cat([lumped(self.x, self.weights, part) for part in parts]) if weighted else self.weights[which]
        return Nodes(self.x[which], self.a[which], weights, self.periods, self.moments)


class PointReport:
    """Calls `progress` with the number of points done, as points are carried through the steps of a network together."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self.progress, self.total, self.done = progress, total, 0

    def steps(self, points: int) -> Progress:
        before = self.done

        def step(done: int, of: int) -> None:
            self(before + points * done // of - self.done)

        return step

    def __call__(self, more: int) -> None:
        self.done += more
        if self.progress is not None:
            self.progress(self.done, self.total)


_EVALUATING: WeakKeyDictionary[torch.nn.Module, tuple[int, bool]] = WeakKeyDictionary()
_TURN = threading.Lock()


@contextmanager
def evaluating(model: torch.nn.Module) -> Iterator[None]:
    """Put a model into evaluation mode. It leaves that mode with the last of several threads."""
    with _TURN:
        count, was = _EVALUATING.get(model, (0, model.training))
        _EVALUATING[model] = (count + 1, was)
        if not count:
            model.eval()
    try:
        yield
    finally:
        with _TURN:
            count, was = _EVALUATING.pop(model)
            if count > 1:
                _EVALUATING[model] = (count - 1, was)
            else:
                model.train(was)
