"""Operator: a network with its normalisation and its rule. Raw a in, raw u out, at any points of D."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from operator import index
from typing import TypeAlias

import torch
from torch import Tensor

from gkn.dataset import Normalizer, Sample
from gkn.domain import Domain, Grid, check_finite, interpolate
from gkn.models import GKN
from gkn.rules import Nystrom, Radius, Rule, draw_nodes

Progress: TypeAlias = Callable[[int, int], None]
LEAST_QUERIES, QUERIES = 2**12, 2**16  # at a time


@dataclass(frozen=True)
class Exact:
    """Every point of the sample is a node."""


@dataclass(frozen=True)
class Support:
    """m' random nodes carry the computation, everything else asks them; the mean over l' draws."""

    m: int
    l: int = 1

    def __post_init__(self) -> None:
        for name in ("m", "l"):
            object.__setattr__(self, name, index(getattr(self, name)))
        if self.m < 1 or self.l < 1:
            raise ValueError(f"{self}: needed at least one node and one draw")


@dataclass(frozen=True)
class Partition:
    """The paper's way: the points are split into sub-graphs of m nodes, each predicted by itself.

    On a grid the parts are strided sub-grids, shifted against each other, filled up to m with random further nodes; elsewhere
    they are random. A node is predicted by its own part. A query has none: it asks all of them and gets the mean, so that here,
    and only here, a query at a node is not the value of that node.
    """

    m: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "m", index(self.m))
        if self.m < 1:
            raise ValueError(f"{self}: needed at least one node")


How: TypeAlias = Exact | Support | Partition


class Operator:
    """F(., theta): functions in, functions out.

        operator(sample)                               on the sample's own points
        operator(sample, at=points)                    anywhere: queries receive from the nodes and never send
        operator(sample, how=Support(200, l=4))        from 200 of the points, averaged over 4 draws
        operator(sample, r=0.15)                       with another radius than in training

    model      takes normalised fields
    rule       how points become graphs; its radius is used unless another is given
    inputs     normaliser of a; None: a as it is
    outputs    normaliser of u; None: u as it is
    weighted   neighbours count with the domain's quadrature weights: for meshes of uneven density
    """

    def __init__(
        self,
        model: GKN,
        rule: Rule,
        inputs: Normalizer | None = None,
        outputs: Normalizer | None = None,
        weighted: bool = False,
    ) -> None:
        if not isinstance(model, GKN) or not isinstance(rule, Radius | Nystrom):
            raise ValueError(f"Operator({type(model).__name__}, {type(rule).__name__}): needed a GKN and a Radius or Nystrom")
        self.model, self.rule, self.weighted = model, rule, weighted
        self.inputs = inputs or Normalizer.none(model.in_channels)
        self.outputs = outputs or Normalizer.none(model.out_channels)
        for name, normalizer, needed in (
            ("inputs", self.inputs, model.in_channels),
            ("outputs", self.outputs, model.out_channels),
        ):
            if len(normalizer.mean) != needed:
                raise ValueError(f"Operator({name}=...): normalises {len(normalizer.mean)} fields, the network has {needed}")

    def __call__(
        self,
        sample: Sample,
        at: Tensor | None = None,
        *,
        a: Tensor | None = None,
        how: How = Exact(),  # noqa: B008
        r: float | None = None,
        rng: torch.Generator | None = None,
        progress: Progress | None = None,
    ) -> Tensor:
        """u at the points `at` (P, d), or at the sample's own: (P, out_channels).

        a         (P, in_channels) raw fields at the queries; without them they are interpolated from the sample
        rng       for the draws of `Support` and `Partition`
        progress  called with (done, of how many) points
        """
        model, device = self.model, self.model.P.weight.device
        a_shape, K, d = tuple(sample.a.shape), len(sample.domain), sample.x.shape[1]
        if a_shape != (K, model.in_channels) or d != model.dim:
            raise ValueError(
                f"operator(sample): fields {a_shape} on {K} points of dimension {d}; this network was made for "
                f"{model.in_channels} fields in dimension {model.dim}"
            )
        if not isinstance(how, Exact | Support | Partition):
            raise ValueError(f"operator(sample, how={how!r}): use Exact(), Support(m, l) or Partition(m)")
        nodes = _Nodes(sample.x.to(device), self._encode(sample.a, "operator(sample): a"), sample.weights.to(device))
        queries = self._queries(sample, at, a)
        if queries is None and isinstance(how, Support):  # everything asks, the support nodes, too
            queries = _Queries(sample.x, lambda part: nodes.a[part])
        rng = rng or torch.Generator().manual_seed(0)
        with torch.no_grad(), _evaluating(model):
            parts = [*_parts(sample.domain, how, rng)]
            report = _Report(progress, K if queries is None else len(queries.x) * len(parts))
            wide = torch.promote_types(model.P.weight.dtype, torch.float32)  # whatever autocast does inside
            total = torch.zeros(K if queries is None else len(queries.x), model.out_channels, dtype=wide, device=device)
            for part in parts:
                some = nodes.take(part.nodes.to(device)) if part.nodes is not None else nodes
                graph = self.rule.graph(some.x, None, r)
                weights = some.weights if self.weighted else None
                if queries is None:
                    states = model.states(graph, some.x, some.a, weights, report.steps(part.own))
                    found = model.project(states[-1])[: part.own].to(wide)
                    total[slice(None) if part.nodes is None else part.nodes[: part.own].to(device)] = found
                else:
                    states = model.states(graph, some.x, some.a, weights)
                    self._ask(total, states, some, queries, r, report)
        return self.outputs.decode(total if queries is None else total / len(parts))

    def _ask(
        self,
        total: Tensor,
        states: Sequence[Tensor],
        nodes: _Nodes,
        queries: _Queries,
        r: float | None,
        report: _Report,
    ) -> None:
        """Add the answers to `total`, in chunks: what is asked at one point does not depend on what else is asked."""
        chunk = max(LEAST_QUERIES, min(QUERIES, 2**24 // len(nodes.x)))
        weights = nodes.weights if self.weighted else None
        for start in range(0, len(queries.x), chunk):
            part = slice(start, start + chunk)
            x, a = queries.x[part].to(nodes.x.device), queries.a(part)
            graph = self.rule.graph(nodes.x, x, r)
            total[part] += self.model.at(states, graph, (x, a), (nodes.x, nodes.a), weights).to(total.dtype)
            report(len(x))

    def _queries(self, sample: Sample, at: Tensor | None, a: Tensor | None) -> _Queries | None:
        if at is None:
            if a is not None:
                raise ValueError("operator(sample, a=...): fields of queries without the queries; say where: at=points")
            return None
        points = torch.as_tensor(at).detach()
        if points.ndim != 2 or points.shape[1] != self.model.dim or not points.is_floating_point():
            what = f"{points.dtype} of shape {tuple(points.shape)}"
            raise ValueError(f"operator(sample, at=...): {what}; needed points (P, {self.model.dim})")
        check_finite(points, "operator(sample, at=...): points")
        if a is None:
            domain, fields = sample.domain, sample.a.cpu()
            return _Queries(
                points, lambda part: self._encode(interpolate(domain, fields, points[part].cpu()), "interpolated a")
            )
        given = torch.as_tensor(a)
        if given.shape != (len(points), self.model.in_channels):
            raise ValueError(
                f"operator(..., a=...): shape {tuple(given.shape)}; needed ({len(points)}, {self.model.in_channels})"
            )
        encoded = self._encode(given, "operator(..., a=...)")
        return _Queries(points, lambda part: encoded[part])

    def _encode(self, a: Tensor, name: str) -> Tensor:
        """Normalised, in the network's type and on its device."""
        check_finite(a, name)
        encoded = self.inputs.encode(a).to(self.model.P.weight)
        check_finite(encoded, f"{name}, normalised, in {encoded.dtype},")
        return encoded


@dataclass(frozen=True, eq=False)
class _Queries:
    x: Tensor  # in the type it came in, on which ties at the radius depend
    a: Callable[[slice], Tensor]  # made when asked for: any number of queries, in flat memory


@dataclass(frozen=True, eq=False)
class _Nodes:
    x: Tensor
    a: Tensor
    weights: Tensor

    def take(self, which: Tensor) -> _Nodes:
        return _Nodes(self.x[which], self.a[which], self.weights[which])


@dataclass(frozen=True, eq=False)
class _Part:
    nodes: Tensor | None  # None: all
    own: int  # the first so many are predicted here, the others only fill up


class _Report:
    def __init__(self, progress: Progress | None, total: int) -> None:
        self.progress, self.total, self.done = progress, total, 0

    def steps(self, points: int) -> Progress:
        """As so many points are carried through the steps together."""
        before = self.done

        def step(done: int, of: int) -> None:
            self(before + points * done // of - self.done)

        return step

    def __call__(self, more: int) -> None:
        self.done += more
        if self.progress is not None:
            self.progress(self.done, self.total)


def _parts(domain: Domain, how: How, rng: torch.Generator) -> Iterator[_Part]:
    K = len(domain)
    if isinstance(how, Exact):
        yield _Part(None, K)
        return
    if how.m > K:
        raise ValueError(f"{how}: the sample has {K} points; use m <= {K}, or Exact() for all")
    if isinstance(how, Support):
        for _ in range(how.l):
            nodes = draw_nodes(K, how.m, rng)
            yield _Part(nodes, len(nodes))
        return
    for own in _subgrids(domain, how.m) if isinstance(domain, Grid) else torch.randperm(K, generator=rng).split(how.m):
        others = torch.ones(K, dtype=torch.bool)
        others[own] = False
        rest = others.nonzero()[:, 0]
        more = rest[torch.randperm(len(rest), generator=rng)[: how.m - len(own)]]
        yield _Part(torch.cat([own, more]), len(own))


def _subgrids(grid: Grid, m: int) -> Iterator[Tensor]:
    """Every t-th node of each axis, for each of the t^d shifts; t is as small as parts of m nodes allow."""
    side = max(1, math.floor(m ** (1 / grid.dim) + 1e-9))
    t = math.ceil(grid.size / side)
    index = torch.arange(len(grid)).reshape(grid.shape)
    for shift in range(t**grid.dim):
        part = index
        for axis in range(grid.dim):
            start = shift // t**axis % t
            if start >= grid.size:
                break
            part = part[(slice(None),) * axis + (slice(start, None, t),)]
        else:
            yield part.reshape(-1)


@contextmanager
def _evaluating(model: torch.nn.Module) -> Iterator[None]:
    was = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was)
