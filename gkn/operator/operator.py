"""Operator: a network with its normalisation and its rule. Raw a in, raw u out, at any points of D. Saved, it is a folder."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import index
from pathlib import Path
from typing import Any, TypeAlias

import safetensors.torch
import torch
from torch import Tensor

from gkn.data.dataset import Dataset, Sample
from gkn.data.normalizer import Normalizer
from gkn.geometry.cloud import Cloud
from gkn.geometry.domain import Domain
from gkn.geometry.grid import Grid
from gkn.geometry.mesh import Mesh
from gkn.graph.batches import Batch
from gkn.graph.graph import Graph
from gkn.graph.neighbors import lumped, radius_graphs
from gkn.graph.rules import Nystrom, Radius, Rule, check_draws, draw_nodes
from gkn.models import MODELS, Model, Multigrid, NearFar, model_of
from gkn.operator.card import CARD, SCHEMA, is_ours, read_card
from gkn.system.checks import check_finite
from gkn.system.files import CorruptFile, canonical, make_folder, unfinished, write, write_sealed_json
from gkn.system.machine import versions
from gkn.system.memory import keep_freed

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
        check_draws(self)


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


@dataclass(frozen=True)
class Features:
    """What the fields are called, and how those of the network are made of those somebody has.

    given     the fields it takes to make the others
    inputs    those of the network, in its order
    outputs   what it answers
    smoothed  (field, width) of a Gaussian: that field smoothed by it, and its gradient, are among the inputs
    units     of any of the fields, for people
    """

    given: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    smoothed: tuple[tuple[str, float], ...] = ()
    units: Mapping[str, str] = field(default_factory=dict)

    @staticmethod
    def of(dataset: Dataset, units: Mapping[str, str] | None = None) -> Features:
        unknown = [name for name in units or {} if name not in dataset.names]
        if unknown:
            raise KeyError(f"a unit for {unknown[0]!r}, which is no field of this dataset; it has {', '.join(dataset.names)}")
        sources = [name for name, _ in dataset.smoothing if name not in dataset.given]
        given = (*dataset.given, *sources)
        return Features(given, dataset.inputs, dataset.outputs, tuple(dataset.smoothing), dict(units or {}))

    def __call__(self, dataset: Dataset) -> Dataset:
        """The dataset with these fields and no others, in this order."""
        if not dataset.smoothing:
            dataset = dataset.using(self.given, self.outputs)
            for name, width in self.smoothed:
                dataset = dataset.smoothed(width, name)
        elif tuple(dataset.smoothing) != self.smoothed:
            raise ValueError(
                f"this dataset is smoothed by {dataset.smoothing}, the operator was trained with {[*self.smoothed] or 'none'}: "
                f"give it the dataset as it was made"
            )
        return dataset.using(self.inputs, self.outputs)

    def json(self) -> dict[str, Any]:
        names = {name: [*getattr(self, name)] for name in ("given", "inputs", "outputs")}
        return {**names, "smoothed": [[*each] for each in self.smoothed], "units": dict(self.units)}


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
    features   what its fields are called and how they are made; None: whatever a sample has, in its order
    about      where it came from: recipe, data, metrics, versions; anything JSON can hold
    """

    def __init__(
        self,
        model: Model,
        rule: Rule,
        inputs: Normalizer | None = None,
        outputs: Normalizer | None = None,
        weighted: bool = False,
        features: Features | None = None,
        about: Mapping[str, Any] | None = None,
    ) -> None:
        if not isinstance(model, tuple(MODELS.values())) or not isinstance(rule, Radius | Nystrom):
            kinds = f"a {' or '.join(MODELS)}, and a Radius or Nystrom"
            raise ValueError(f"Operator({type(model).__name__}, {type(rule).__name__}): needed {kinds}")
        self._check_radius(model, rule.r)
        self.model, self.rule, self.weighted, self.features, self.about = model, rule, weighted, features, dict(about or {})
        self.inputs = inputs or Normalizer.none(model.in_channels)
        self.outputs = outputs or Normalizer.none(model.out_channels)
        for name, normalizer, needed in (
            ("inputs", self.inputs, model.in_channels),
            ("outputs", self.outputs, model.out_channels),
        ):
            if normalizer.fields != needed:
                raise ValueError(f"Operator({name}=...): normalises {normalizer.fields} fields, the network has {needed}")

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
        self._check_radius(model, self.rule.r if r is None else r)
        nodes = _Nodes(sample.x.to(device), self._encode(sample.a, sample.x, "operator(sample): a"), sample.weights.to(device))
        queries = self._queries(sample, at, a)
        if queries is None and isinstance(how, Support):  # everything asks, the support nodes, too
            queries = _Queries(sample.x, lambda part: nodes.a[part])
        rng = rng or torch.Generator().manual_seed(0)
        with torch.no_grad(), _evaluating(model):
            parts = [*_parts(sample.domain, how, rng)]
            report = _Report(progress, K if queries is None else len(queries.x) * len(parts))
            wide = torch.promote_types(model.P.weight.dtype, torch.float32)  # whatever autocast does inside
            total = torch.zeros(K if queries is None else len(queries.x), model.out_channels, dtype=wide, device=device)
            if queries is None:
                for few in _together(parts):
                    self._fill(total, few, nodes, r, report)
            else:
                for part in parts:
                    some = nodes if part.nodes is None else nodes.take([part.nodes.to(device)], self.weighted)
                    graph = self.rule.graph(some.x, None, r)
                    states: Any = model.states(graph, some.x, some.a, some.weights if self.weighted else None)
                    self._ask(total, states, some, queries, r, report)
        return self.outputs.decode(total if queries is None else total / len(parts), sample.x if queries is None else queries.x)

    @staticmethod
    def _check_radius(model: Model, r: float) -> None:
        if isinstance(model, NearFar | Multigrid) and r != model.radius:
            raise ValueError(f"the balls of this {type(model).__name__} have radius {model.radius}, not {r}; needed the same")

    def ready(self, dataset: Dataset) -> Dataset:
        """The dataset with the fields this operator takes and gives, smoothed ones included."""
        if self.features is not None:
            dataset = self.features(dataset)
        for what, names, needed in (
            ("inputs", dataset.inputs, self.model.in_channels),
            ("outputs", dataset.outputs, self.model.out_channels),
        ):
            if len(names) != needed:
                raise ValueError(f"this dataset has the {what} {', '.join(names)}; the network was made for {needed}")
        return dataset

    def sample(self, domain: Domain, /, **given: Any) -> Sample:
        """A sample of fields (K,) that somebody has on a domain; what the network needs beside them is made of them.

        Where quadrature weights count, points of a `Cloud` that all have one weight get their own (`Cloud.weighed`).
        """
        if self.weighted and isinstance(domain, Cloud) and bool((domain.weights == domain.weights[0]).all()):
            domain = domain.weighed()
        if self.features is None:
            raise ValueError("operator.sample: this operator does not know the names of its fields; use gkn.Sample")
        missing = [name for name in self.features.given if name not in given]
        if missing:
            have = ", ".join(given) or "none"
            raise KeyError(f"the operator needs the field {missing[0]!r}; given are: {have}")
        rows = {name: torch.as_tensor(given[name])[None] for name in self.features.given}
        unknown = {name: torch.zeros(1, len(domain), dtype=torch.float64) for name in self.features.outputs}
        return self.ready(Dataset.of(domain, {**rows, **unknown}, self.features.outputs))[0]

    def predict(self, batch: Batch) -> Tensor:
        """u on the nodes of a batch."""
        with torch.no_grad(), _evaluating(self.model):
            found = self.model(batch.graph, batch.x, batch.a, batch.weights if self.weighted else None)
            out: Tensor = found.to(batch.u.dtype) * batch.std + batch.mean
        return out

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a folder that `gkn.load` reads, on any machine: numbers in tensors-*.safetensors, the rest in operator.json.

        Another operator in that folder is replaced at once or not at all.
        """
        folder = Path(path)
        tensors = {f"model/{name}": x for name, x in self.model.state_dict().items()}
        described = {}
        for name, normalizer in (("inputs", self.inputs), ("outputs", self.outputs)):
            described[name], more = _describe(normalizer, name)
            tensors |= more
        image = safetensors.torch.save({name: x.detach().cpu().contiguous() for name, x in tensors.items()})
        seal = hashlib.sha256(image).hexdigest()
        file = f"tensors-{seal[:12]}.safetensors"
        card = {
            "schema": SCHEMA,
            "model": self.model.config(),
            "rule": {"kind": type(self.rule).__name__, **vars(self.rule)},
            "weighted": self.weighted,
            "features": None if self.features is None else self.features.json(),
            "normalizers": described,
            "about": {"versions": versions(), **self.about},
            "tensors": {"file": file, "bytes": len(image), "sha256": seal},
        }
        canonical(card)  # says now if it is no JSON
        make_folder(folder)
        write(folder / file, image)
        write_sealed_json(folder / CARD, card)
        others = [path for path in folder.iterdir() if is_ours(path.name) and path.name not in (CARD, file)]
        for old in [*others, *unfinished(folder, is_ours)]:
            old.unlink(missing_ok=True)

    @staticmethod
    def load(path: str | os.PathLike[str], *, device: torch.device | str = "cpu", dtype: torch.dtype | None = None) -> Operator:
        """Read what `save` wrote. Every byte is compared with its hash, and nothing in the files is ever run."""
        folder = Path(path)
        card, tensors = read_card(folder)
        try:
            with torch.device("meta"):  # its sizes are believed only once the file has as many numbers
                model = model_of(card["model"])
            rule = {"Radius": Radius, "Nystrom": Nystrom}[card["rule"]["kind"]](
                **{key: value for key, value in card["rule"].items() if key != "kind"}
            )
            inputs, outputs = (_normalizer(card["normalizers"][name], name, tensors) for name in ("inputs", "outputs"))
            known = None if card["features"] is None else _features(card["features"])
            weighted, about = bool(card["weighted"]), dict(card["about"])
        except (KeyError, TypeError, AttributeError, ValueError, RuntimeError) as error:
            raise CorruptFile(f"{folder / CARD}: fields missing or unknown ({error})") from error
        weights = {name.removeprefix("model/"): x for name, x in tensors.items() if name.startswith("model/")}
        try:
            model.load_state_dict(weights, assign=True)
        except RuntimeError as error:
            said = "; ".join(line.strip() for line in str(error).splitlines()[1:3])
            raise CorruptFile(f"{folder}: the tensors are not those of the network it describes: {said}") from error
        kinds = {x.dtype for x in weights.values()}
        if len(kinds) != 1 or not all(x.is_floating_point() and bool(torch.isfinite(x).all()) for x in weights.values()):
            raise CorruptFile(f"{folder}: its weights are not finite numbers of one type")
        return Operator(model.requires_grad_(True).to(device, dtype), rule, inputs, outputs, weighted, known, about)

    def _fill(self, total: Tensor, parts: list[_Part], nodes: _Nodes, r: float | None, report: _Report) -> None:
        """Predict each part's own nodes, all parts side by side, into `total`."""
        if parts[0].nodes is None:
            some, graph = nodes, self.rule.graph(nodes.x, None, r)
            own = place = torch.arange(len(nodes.x), device=nodes.x.device)
        else:
            each = [part.nodes.to(nodes.x.device) for part in parts if part.nodes is not None]
            chosen = torch.cat(each)
            some = nodes.take(each, self.weighted)
            graph = self._graphs(nodes.x, each, r)
            own = torch.cat([torch.arange(len(part)) < of.own for part, of in zip(each, parts, strict=True)]).to(chosen.device)
            place = chosen[own]
        weights = some.weights if self.weighted else None
        states: Any = self.model.states(graph, some.x, some.a, weights, report.steps(sum(part.own for part in parts)))
        total[place] = self.model.finish(states)[own].to(total.dtype)

    def _graphs(self, x: Tensor, parts: list[Tensor], r: float | None) -> Graph:
        """Of sub-graphs side by side; those of equal size are found together."""
        if len({len(part) for part in parts}) == 1:
            return radius_graphs(x[torch.stack(parts)], self.rule.r if r is None else r)
        return Graph.batch([self.rule.graph(x[part], None, r) for part in parts])

    def _ask(
        self,
        total: Tensor,
        states: Any,
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
                points,
                lambda part: self._encode(domain.interpolate(fields, points[part].cpu()), points[part], "interpolated a"),
            )
        given = torch.as_tensor(a)
        if given.shape != (len(points), self.model.in_channels):
            raise ValueError(
                f"operator(..., a=...): shape {tuple(given.shape)}; needed ({len(points)}, {self.model.in_channels})"
            )
        encoded = self._encode(given, points, "operator(..., a=...)")
        return _Queries(points, lambda part: encoded[part])

    def _encode(self, a: Tensor, x: Tensor, name: str) -> Tensor:
        """Normalised, in the network's type and on its device."""
        check_finite(a, name)
        encoded = self.inputs.encode(a, x).to(self.model.P.weight)
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

    def take(self, parts: list[Tensor], weighted: bool) -> _Nodes:
        """Parts one after the other. In each, if weights will be asked for, all nodes give theirs to the nearest."""
        which = torch.cat(parts)
        weights = torch.cat([lumped(self.x, self.weights, part) for part in parts]) if weighted else self.weights[which]
        return _Nodes(self.x[which], self.a[which], weights)


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


def _together(parts: list[_Part]) -> Iterator[list[_Part]]:
    """As many at a time as make up a few thousand nodes: small graphs side by side take little longer than one."""
    few: list[_Part] = []
    for part in parts:
        few.append(part)
        if sum(0 if each.nodes is None else len(each.nodes) for each in few) >= LEAST_QUERIES:
            yield few
            few = []
    if few:
        yield few


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
        yield _Part(torch.cat([own, _others(K, own, how.m - len(own), rng)]), len(own))


def _others(K: int, own: Tensor, count: int, rng: torch.Generator) -> Tensor:
    """`count` nodes that are not among `own`, uniformly without replacement. Few of many: drawn one by one, doubles dropped."""
    if 4 * (count + len(own)) > K:
        others = torch.ones(K, dtype=torch.bool)
        others[own] = False
        rest = others.nonzero()[:, 0]
        return rest[torch.randperm(len(rest), generator=rng)[:count]]
    taken: set[int] = {*own.tolist()}
    found: list[int] = []
    while len(found) < count:
        for node in torch.randint(K, (2 * count,), generator=rng).tolist():
            if node not in taken and len(found) < count:
                taken.add(node)
                found.append(node)
    return torch.tensor(found, dtype=torch.long)


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


def _describe(normalizer: Normalizer, name: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """A normaliser as JSON, and as tensors what is too much for JSON."""
    domain = normalizer.domain
    if domain is None:
        zero = {} if normalizer.zero is None else {"zero": normalizer.zero}
        return {"mean": normalizer.mean.tolist(), "std": normalizer.std.tolist(), **zero}, {}
    tensors = {f"{name}/mean": normalizer.mean, f"{name}/std": normalizer.std}
    if isinstance(domain, Grid):
        return {"domain": {"kind": "grid", "size": domain.size, "dim": domain.dim}}, tensors
    parts = ("points", "cells") if isinstance(domain, Mesh) else ("points", "weights", "boundary")
    tensors |= {f"{name}/{part}": getattr(domain, part) for part in parts}
    return {"domain": {"kind": type(domain).__name__.lower()}}, tensors


def _normalizer(said: dict[str, Any], name: str, tensors: dict[str, Tensor]) -> Normalizer:
    if "domain" not in said:
        mean, std = (torch.tensor(said[part], dtype=torch.float64) for part in ("mean", "std"))
        return Normalizer(mean, std, None, said.get("zero"))
    kind = said["domain"]["kind"]
    domain: Domain
    if kind == "grid":
        domain = Grid(said["domain"]["size"], said["domain"]["dim"])
    elif kind == "mesh":
        domain = Mesh(*(tensors[f"{name}/{part}"] for part in ("points", "cells")))
    else:
        domain = Cloud(*(tensors[f"{name}/{part}"] for part in ("points", "weights", "boundary")))
    return Normalizer(tensors[f"{name}/mean"], tensors[f"{name}/std"], domain)


def _features(said: dict[str, Any]) -> Features:
    smoothed = tuple((str(name), float(width)) for name, width in said["smoothed"])
    given, inputs, outputs = (tuple(str(each) for each in said[name]) for name in ("given", "inputs", "outputs"))
    return Features(given, inputs, outputs, smoothed, dict(said["units"]))


@contextmanager
def _evaluating(model: torch.nn.Module) -> Iterator[None]:
    keep_freed()
    was = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was)
