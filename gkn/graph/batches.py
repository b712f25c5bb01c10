"""Batches: samples as graphs side by side, normalised, on the device that computes with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from gkn.data.dataset import Dataset
from gkn.data.normalizer import FLOOR, Normalizer
from gkn.data.sample import check_sample
from gkn.geometry.domain import Domain
from gkn.graph.graph import Graph, filled_rows
from gkn.graph.moments import ball_moments
from gkn.graph.neighbors import CANDIDATES, lumped
from gkn.graph.rules import Rule
from gkn.system.memory import available_memory

WASTE = 2.5
"""Times the mean number of nodes up to which graphs are filled up."""


@dataclass(frozen=True, eq=False)
class Batch:
    """G graphs without an edge between them, their nodes one after the other.

    graph      of all nodes
    x          (nodes, d) points
    a          (nodes, c) inputs, normalised
    deviation  (nodes, o) outputs minus their mean, in a unit of each field
    std        (nodes or 1, o) standard deviation, in the same units; the target of the network is deviation / std
    counted    (nodes or 1, o) offset: deviation + counted is the denominator of the relative loss, which is u or, for hidden
               fields, u minus the mean of the sample; if outputs are changes of a state, the state they lead to
    profile    (nodes or 1, o) the mean, shifted to 0 at one node, for differences between nodes; likewise with the state
    weights    (nodes,) quadrature weights, or None
    sizes      number of nodes of each graph
    samples    number of the sample of each graph, in the data it came from
    fixed      every batch of as many graphs has this graph and these weights, standard deviations and profiles
    fields     columns (first, last + 1) of each output field, the components of a vector together; empty: one field
    u          (nodes, o) outputs with their mean, likewise with the state, in the same units, in float64; None for training
    floor      (o,) lower bound of that denominator for hidden fields; None if no field is hidden
    lead       the pairs that end where those of this batch begin; None if they are not needed
    edge       (nodes,) bool: True on the boundary
    """

    graph: Graph
    x: Tensor
    a: Tensor
    deviation: Tensor
    std: Tensor
    counted: Tensor
    profile: Tensor
    weights: Tensor | None
    sizes: tuple[int, ...]
    samples: tuple[int, ...]
    fixed: bool = False
    fields: tuple[tuple[int, int], ...] = ()
    u: Tensor | None = None
    floor: Tensor | None = None
    lead: Batch | None = None
    edge: Tensor | None = None

    def split(self, counts: Sequence[int]) -> list[Batch]:
        """Split into batches of so many graphs each, whose graphs keep what was computed for the whole."""
        graphs, nodes = ([0, *accumulate(some)] for some in (counts, self.sizes))
        cuts = [nodes[graph] for graph in graphs]
        pieces = []
        for i, graph in enumerate(self.graph.split(cuts)):
            some, which = slice(cuts[i], cuts[i + 1]), slice(graphs[i], graphs[i + 1])
            std, counted, profile = (x[some] if len(x) > 1 else x for x in (self.std, self.counted, self.profile))
            weights, u = (None if x is None else x[some] for x in (self.weights, self.u))
            x, a, deviation = self.x[some], self.a[some], self.deviation[some]
            sizes, samples = self.sizes[which], self.samples[which]
            more: dict[str, Any] = {"fields": self.fields, "u": u, "floor": self.floor}
            more["lead"] = None if self.lead is None else self.lead.split(counts)[i]
            more["edge"] = None if self.edge is None else self.edge[some]
            pieces.append(Batch(graph, x, a, deviation, std, counted, profile, weights, sizes, samples, **more))
        return pieces

    def used_by(self, stream: torch.cuda.Stream) -> None:
        """Tell the allocator that another stream uses the batch, so that its memory is not reused before that is done."""
        graph = self.graph
        arrays = (graph.ptr, graph.src, graph.degrees, *graph.by_source, *(graph.made_of or ()), graph.present)
        own = (self.x, self.a, self.deviation, self.std, self.counted, self.profile, self.weights, self.u, self.edge)
        for tensor in (*own, *arrays):
            if tensor is not None:
                tensor.record_stream(stream)

    def by_field(self, values: Tensor) -> list[Tensor]:
        """Return the columns (nodes, c) of each output field."""
        return [values] if len(self.fields) < 2 else [values[:, start:stop] for start, stop in self.fields]

    def sums(self, values: Tensor) -> Tensor:
        """Sum (nodes, c) over each graph: (G,)."""
        if len({*self.sizes}) == 1:
            return values.reshape(len(self.sizes), -1).sum(1)
        return torch.stack([part.sum() for part in values.split(self.sizes)])

    def norms(self, values: Tensor) -> Tensor:
        """Return the l2 norm of (nodes, c) over each graph: (G,). Its derivative at 0 is 0."""
        if len({*self.sizes}) == 1:
            norms: Tensor = torch.linalg.vector_norm(values.reshape(len(self.sizes), -1), dim=1)
            return norms
        return torch.stack([torch.linalg.vector_norm(part) for part in values.split(self.sizes)])


def relative(error: Tensor, truth: Tensor, batch: Batch, weights: Tensor | None, floor: Tensor | None = None) -> Tensor:
    """Return |error| / |truth| of (nodes, o) for each graph and output field of a batch: (G, fields).

    Norms are quadratures with the weights (nodes,), or sums without.

    floor   (o,) a constant field whose norm is a lower bound of |truth|
    """
    w = torch.ones_like(error[:, :1]) if weights is None else weights.to(error.dtype).sqrt()[:, None]
    errors, truths = (torch.stack([batch.norms(x) for x in batch.by_field(w * each)], 1) for each in (error, truth))
    if floor is not None:
        least = torch.stack([batch.norms(x) for x in batch.by_field(w * floor.to(error.dtype))], 1)
        truths = torch.maximum(truths, least)
    return errors / truths


class Batches:
    """All graphs of one epoch of a dataset, a batch at a time.

    Graph `i` of an epoch is draw `i % rule.graphs` of sample `i // rule.graphs`. If the samples share their points and fit into
    half of the memory, everything is on the device, and batches of any graphs are made there without the host.

        inputs, outputs   normalisers of a and of u
        weighted          batches carry quadrature weights; those of drawn nodes include all points near them
        precise           batches have outputs in float64, with and without their mean
        hidden            (o,) the standard deviation of fields whose mean is large, 0 for others; see `hidden_scales`
        degree            degree of the polynomials whose moments graphs have, see gkn/graph/moments.py; 0: none
        periods           (d,) periods of the axes along which edges wrap around, inf for the others; None: no axis
        lead              the pairs that end where these begin, for batches with `leading`
        leading           batches carry those pairs
        fill              nodes without weight fill up graphs of samples that have their own points, so that all graphs have as
                          many nodes
    """

    def __init__(
        self,
        dataset: Dataset,
        rule: Rule,
        inputs: Normalizer,
        outputs: Normalizer,
        *,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        weighted: bool = False,
        periods: Tensor | None = None,
        precise: bool = False,
        hidden: Tensor | None = None,
        lead: Batches | None = None,
        degree: int = 0,
        fill: bool = False,
    ) -> None:
        self.lead, self.leading = lead, False
        self.periods, self.precise, self.degree = periods, precise, degree
        if not len(dataset):
            raise ValueError("Batches: this dataset has no samples")
        self.dataset, self.rule, self.normalizers = dataset, rule, (inputs, outputs)
        self._numbers = [dataset.number(i) for i in range(len(dataset))]
        self._one_domain = dataset.one_domain
        self._fields = tuple(dataset.output_fields.values())
        self.unit = outputs.unit.clone()
        for start, stop in self._fields:  # components of a vector have one unit
            self.unit[start:stop] = self.unit[start:stop].max()
        self._hidden = None if hidden is None or not bool(hidden.any()) else hidden > 0
        self._floor = None if self._hidden is None or hidden is None else (FLOOR * hidden / self.unit).to(device)
        self.device, self.dtype, self.weighted = torch.device(device), dtype, weighted
        self._drawn: tuple[int, int] | None = None
        self._points: dict[int, _Points] = {}
        self._graphs: dict[int, Graph] = {}
        if rule.drawn is not None:  # raises now if some sample has too few points
            sizes = {len(dataset.value(dataset.outputs[0], i)) for i in range(1 if dataset.one_domain else len(dataset))}
            rule.draws(min(sizes), [])
        per_point = len(dataset.inputs) * dtype.itemsize + len(dataset.outputs) * (16 if precise else dtype.itemsize)
        needed = len(dataset) * len(dataset[0].domain) * per_point
        self._fits = needed < available_memory(self.device) // 2
        self._size: int | None = None  # nodes of every graph, if they are filled up
        if fill and not self._one_domain and rule.drawn is None and periods is None and not degree:
            counts = [len(domain) for domain in dataset.domains()]
            usual, most = sum(counts) / len(counts), max(counts)
            self._size = most if usual < most <= WASTE * usual else None
        self._together: _Functions | None = None
        self._apart: dict[int, _Functions] = {}
        if dataset.one_domain and self._fits:
            self._together = self._load(range(len(dataset)))

    def __len__(self) -> int:
        return len(self._numbers) * self.rule.graphs

    def draw(self, seed: int, epoch: int) -> None:
        """Choose the nodes of this epoch's graphs."""
        if self._drawn == (seed, epoch):
            return
        self._drawn = (seed, epoch)
        if self.lead is not None:
            self.lead.draw(seed, epoch)
        if self.rule.drawn is not None and self._together is not None:
            points, samples = len(self.dataset.domain), range(len(self.dataset))
            self._nodes = self.rule.draws(points, samples, seed=seed, epoch=epoch, device=self.device)

    def batch(self, graphs: Sequence[int]) -> Batch:
        """Make a batch of some of this epoch's graphs."""
        made = self._made(graphs)
        return made if self.lead is None or not self.leading else replace(made, lead=self.lead.batch(graphs))

    def _made(self, graphs: Sequence[int]) -> Batch:
        if self._drawn is None:
            self.draw(0, 0)
        l = self.rule.graphs
        samples = tuple(graph // l for graph in graphs)
        if self._together is None:
            return _joined([self._one(graph // l, graph % l) for graph in graphs])
        points, functions = self._points_of(0), self._together
        of_sample = torch.tensor(samples, device=self.device)
        if self.rule.drawn is None:
            graph, some = self._whole(len(graphs))
            values = functions.take(of_sample)
        else:
            of_draw = torch.tensor([graph % l for graph in graphs], device=self.device)
            nodes = self._nodes[of_sample, of_draw]
            some = points.take(nodes, self.weighted)
            graph = some.of(self.rule.graphs_of(points.x[nodes], None, self.periods))
            values = functions.take((of_sample[:, None], nodes))
        sizes = (values.a.shape[1],) * len(graphs)
        fixed = self.rule.drawn is None
        return self._batch(graph, some, values.flat(), functions.offset[of_sample], sizes, samples, fixed)

    def several(self, parts: Sequence[Sequence[int]]) -> list[Batch]:
        """Make several batches together: for small graphs that takes little longer than one."""
        if not all(parts):
            raise ValueError("Batches.several: a batch without graphs")
        if len(parts) <= 1:
            return [self.batch(part) for part in parts]
        return self.batch([graph for part in parts for graph in part]).split([len(part) for part in parts])

    def at_once(self, graphs: int) -> int:
        """Return how many batches of `graphs` graphs each to make together."""
        if self.device.type != "cuda" or self._together is None or self.rule.drawn is None or self.periods is not None:
            return 1
        return int(max(1, CANDIDATES["cuda"] // (graphs * self.rule.drawn**2)))

    def _batch(
        self,
        graph: Graph,
        points: _Points,
        functions: _Functions,
        offset: Tensor,
        sizes: tuple[int, ...],
        samples: Sequence[int],
        fixed: bool = False,
    ) -> Batch:
        weights, x = points.weights if self.weighted else None, points.x.to(self.dtype)
        numbers = tuple(self._numbers[sample] for sample in samples)
        std, counted, profile = points.std, points.counted, points.profile
        if self._hidden is not None:
            counted = counted + offset.repeat_interleave(sizes[0], 0)
        if functions.reference is not None:
            counted, profile = counted + functions.reference, profile + functions.reference
        a, deviation, u = functions.a, functions.deviation, functions.u
        more = (weights, sizes, numbers, fixed, self._fields, u, self._floor)
        return Batch(graph, x, a, deviation, std, counted, profile, *more, edge=points.edge)

    def _whole(self, count: int) -> tuple[Graph, _Points]:
        """Return `count` copies of the graph of the whole domain, and its points. The graph is cached: all batches share it."""
        points = self._points_of(0).times(count)
        if 1 not in self._graphs:
            self._graphs[1] = self.rule.wrapped(self._points_of(0).x, periods=self.periods)
        if count not in self._graphs or self._graphs[count].made_of is None:
            one = self._graphs[1]
            graph = one if count == 1 else Graph.batch([one] * count)
            self._graphs[count] = points.of(graph)
        return self._graphs[count], points

    def _one(self, sample: int, draw: int) -> Batch:
        """Make one graph of a sample that has its own points, or of a dataset too large for the device."""
        functions = self._apart.get(sample) or self._load(range(sample, sample + 1))
        if self._fits:
            self._apart[sample] = functions
        points = self._points_of(sample)
        values = functions.take(0)
        if self.rule.drawn is not None:
            seed, epoch = self._drawn or (0, 0)
            nodes = self.rule.draws(len(points.x), [sample], seed=seed, epoch=epoch, device=self.device)[0, draw]
            points, values = points.take(nodes[None], self.weighted), values.take(nodes)
        graph = self._graphs.get(sample)
        if graph is None:
            graph = points.of(self.rule.wrapped(points.x, periods=self.periods))
            graph = graph if self._size is None else graph.filled(self._size)
        if self._fits and self.rule.drawn is None:
            self._graphs[sample] = graph
        one = self._batch(graph, points, values, functions.offset, (len(values.a),), [sample])
        return one if self._size is None else _filled(one, self._size)

    def _load(self, samples: range) -> _Functions:
        """Read, check and normalise samples, and bring them to the device."""
        (inputs, outputs), chosen = self.normalizers, self.dataset.take(samples)
        parts: list[_Functions] = []
        for which, fields in chosen.blocks(self.dataset.names):
            domain, count = chosen.domain_of(which[0]), len(self.dataset.inputs)
            u = torch.stack(fields[count:], -1)  # (samples, K, o)
            given = torch.stack(fields[:count], -1) if count else u.new_zeros(*u.shape[:2], 0)
            self._check((given, u), samples, which)
            a = inputs.encode(given, domain.points).to(self.dtype)
            deviation = outputs.deviation(u, domain.points) / self.unit
            offset = torch.stack([self._offset(domain, each) for each in deviation])
            references = [found for k in which if (found := chosen.reference(k)) is not None]
            reference = torch.stack(references) if references else None
            state = None
            if self.precise:
                state = (u.double() if reference is None else u + reference) / self.unit
            else:
                deviation = deviation.to(self.dtype)
            self._check((a, deviation), samples, which, f", normalised, in {self.dtype}")
            reference = None if reference is None else (reference / self.unit).to(self.dtype)
            made = _Functions(a, deviation, state, offset, reference)
            parts.append(made.on(self.device))
        return _Functions.joined(parts)

    def _check(self, both: tuple[Tensor, Tensor], samples: range, which: range, how: str = "") -> None:
        """Raise an error unless inputs and outputs (samples, K, c) are finite, with the sample, the field and the point."""
        for names, values in zip((self.dataset.inputs, self.dataset.outputs), both, strict=True):
            for k in () if bool(torch.isfinite(values).all()) else range(len(values)):
                check_sample(values[k], names, self.dataset.label(samples[which[k]]), how)

    def _offset(self, domain: Domain, deviation: Tensor) -> Tensor:
        """Return (o,) the number to add to hidden fields of a sample for a mean of 0."""
        if self._hidden is None:
            return torch.zeros(deviation.shape[1], dtype=self.dtype)
        mean, _ = self.normalizers[1].at(domain.points, domain)
        values = deviation + (mean - mean.reshape(-1, deviation.shape[1])[:1]) / self.unit
        w = domain.weights[:, None] if self.weighted else torch.ones_like(values[:, :1])
        return torch.where(self._hidden, -(w * values).sum(0) / w.sum(), 0.0).to(self.dtype)

    def _points_of(self, sample: int) -> _Points:
        key = 0 if self._one_domain else sample
        if key not in self._points:
            domain = self.dataset.domain_of(sample)
            points = _Points.on(domain, self.normalizers[1], self.unit, self._hidden, self.device, self.dtype)
            if self.degree and self.rule.r is not None:
                found = ball_moments(domain, points.x, self.rule.r, self.degree, self.periods)
                points = replace(points, moments=found.to(self.dtype))
            if not self._fits and not self.dataset.one_domain:
                return points
            self._points[key] = points
        return self._points[key]


@dataclass(frozen=True, eq=False)
class _Functions:
    a: Tensor  # (n, K, c), normalised
    deviation: Tensor  # (n, K, o), as in `Batch`
    u: Tensor | None  # (n, K, o), as in `Batch`
    offset: Tensor  # (n, o), added to all values of a sample
    reference: Tensor | None = None  # (n, K, o), the state that outputs are changes of

    @staticmethod
    def joined(parts: Sequence[_Functions]) -> _Functions:
        """Return the functions of all parts, one after the other."""
        if len(parts) == 1:
            return parts[0]
        names = [name for name in ("a", "deviation", "u", "offset", "reference") if getattr(parts[0], name) is not None]
        return replace(parts[0], **{name: torch.cat([getattr(part, name) for part in parts]) for name in names})

    def on(self, device: torch.device) -> _Functions:
        """Return the functions on a device."""
        return replace(self._each(lambda x: x.to(device)), offset=self.offset.to(device))

    def take(self, where: Any) -> _Functions:
        """Return the values at some indices."""
        return self._each(lambda x: x[where])

    def flat(self) -> _Functions:
        """Return the values of all graphs (G, m, ...) one after the other."""
        return self._each(lambda x: x.flatten(0, 1))

    def _each(self, change: Callable[[Tensor], Tensor]) -> _Functions:
        u, reference = (None if x is None else change(x) for x in (self.u, self.reference))
        return replace(self, a=change(self.a), deviation=change(self.deviation), u=u, reference=reference)


@dataclass(frozen=True, eq=False)
class _Points:
    x: Tensor  # (K, d), float64, in which edges are decided
    weights: Tensor  # (K,)
    std: Tensor  # (K or 1, o) as in `Batch`, and so are the next two
    counted: Tensor
    profile: Tensor
    edge: Tensor  # (K,), bool
    moments: Tensor | None = None  # (K, polynomials)

    @staticmethod
    def on(
        domain: Domain, outputs: Normalizer, unit: Tensor, hidden: Tensor | None, device: torch.device, dtype: torch.dtype
    ) -> _Points:
        mean, std = (x.reshape(-1, outputs.fields) / unit for x in outputs.at(domain.points, domain))
        profile = mean - mean[:1]
        counted = mean if hidden is None else torch.where(hidden, profile, mean)
        x, weights = domain.points.to(device), domain.weights.to(device, dtype)
        std, counted, profile = (each.to(device, dtype) for each in (std, counted, profile))
        return _Points(x, weights, std, counted, profile, domain.boundary.to(device))

    def take(self, nodes: Tensor, weighted: bool) -> _Points:
        """Return the points of draws (G, m), one draw after the other.

        If their weights are used, every point of the domain adds its weight to the nearest drawn one.
        """
        flat = nodes.reshape(-1)
        weights = lumped(self.x, self.weights, nodes).reshape(-1) if weighted else self.weights[flat]
        std, counted, profile = (x[flat] if len(x) > 1 else x for x in (self.std, self.counted, self.profile))
        moments = None if self.moments is None else self.moments[flat]
        return _Points(self.x[flat], weights, std, counted, profile, self.edge[flat], moments)

    def times(self, count: int) -> _Points:
        """Return copies of the points, one after the other."""
        std, counted, profile = (x.repeat(count, 1) if len(x) > 1 else x for x in (self.std, self.counted, self.profile))
        moments = None if self.moments is None else self.moments.repeat(count, 1)
        x, weights, edge = self.x.repeat(count, 1), self.weights.repeat(count), self.edge.repeat(count)
        return _Points(x, weights, std, counted, profile, edge, moments)

    def of(self, graph: Graph) -> Graph:
        """Return the graph of these points, with the points and what is known of them."""
        return graph.with_points(self.x, self.weights).with_moments(self.moments)


def _filled(one: Batch, size: int) -> Batch:
    """Return a batch of one function with further nodes like its last one, but without weight and without a boundary."""
    x, a, std, counted, profile = (filled_rows(each, size) for each in (one.x, one.a, one.std, one.counted, one.profile))
    more = size - len(one.x)
    deviation = torch.cat([one.deviation, one.deviation.new_zeros(more, one.deviation.shape[1])])
    weights = torch.cat([one.x.new_ones(len(one.x)) if one.weights is None else one.weights, one.x.new_zeros(more)])
    edge = None if one.edge is None else torch.cat([one.edge, one.edge.new_zeros(more)])
    u = None if one.u is None else filled_rows(one.u, size)
    arrays: dict[str, Any] = {"std": std, "counted": counted, "profile": profile, "weights": weights, "edge": edge, "u": u}
    return replace(one, x=x, a=a, deviation=deviation, sizes=(size,), **arrays)


def _joined(parts: list[Batch]) -> Batch:
    x, a, deviation = (torch.cat([getattr(part, name) for part in parts]) for name in ("x", "a", "deviation"))
    std, counted, profile = (
        torch.cat([getattr(part, name).expand(len(part.x), -1) for part in parts]) for name in ("std", "counted", "profile")
    )
    weights, u = (
        None if getattr(parts[0], name) is None else torch.cat([getattr(part, name) for part in parts])
        for name in ("weights", "u")
    )
    sizes = tuple(size for part in parts for size in part.sizes)
    samples = tuple(sample for part in parts for sample in part.samples)
    made_of = [part.graph.made_of for part in parts if part.graph.made_of is not None]
    points, masses = (torch.cat([each[i] for each in made_of]) for i in range(2))
    graph = Graph.batch([part.graph for part in parts]).with_points(points, masses)
    more: dict[str, Any] = {"fields": parts[0].fields, "u": u, "floor": parts[0].floor}
    more["edge"] = torch.cat([part.edge for part in parts if part.edge is not None])
    return Batch(graph, x, a, deviation, std, counted, profile, weights, sizes, samples, **more)
