"""Operator: a model with its normalisation and its rule. Raw a in, raw u out, at any points of D."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from gkn.data.dataset import Dataset
from gkn.data.features import Features
from gkn.data.groups import by_name, ranges_of
from gkn.data.normalizer import Normalizer
from gkn.data.sample import Sample, Trajectory
from gkn.geometry.domain import Domain
from gkn.geometry.frame import Frame
from gkn.graph.batches import Batch
from gkn.graph.graph import Graph
from gkn.graph.rules import Rule
from gkn.models import Model, Symmetric
from gkn.operator.nodes import Nodes, PointReport, Progress, Queries, evaluating, into_box, moments_for, periods_for
from gkn.operator.unusual import unusual, unusual_samples
from gkn.operator.ways import Exact, How, Part, Spread, together
from gkn.system.checks import OutsideDomain, as_real, check_finite, check_real, real_points

if TYPE_CHECKING:
    from gkn.operator.rollout import Rollout

LEAST_QUERIES, QUERIES = 2**12, 2**16  # query points at a time
LEAST_SPREAD, MANY = 2000, 8  # nodes at least; how many times as many points a domain may have until they are spread


class Operator:
    """F(., theta): functions in, functions out.

        operator(sample)                               on the sample's own points
        operator(sample, at=points)                    anywhere: query points receive from the nodes and never send
        operator(sample, how=Support(200, l=4))        from 200 of the points, averaged over 4 draws
        operator(sample, r=0.15)                       with another radius than in training
        operator.evaluate(dataset)                     errors on a dataset

    model      takes and gives normalised fields
    rule       how points become graphs; its radius is used unless another is given
    inputs     normaliser of a; None: a as it is
    outputs    normaliser of u; None: u as it is
    weighted   neighbours count with the domain's quadrature weights: for points of uneven density
    features   names of the fields and how they are computed; None: whatever a sample has, in its order
    about      where it came from: recipe, data, metrics, versions; anything JSON can hold

    Points, radii and answers are in the units of the training data. The network sees points in the frame of `features`.
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
        if not isinstance(model, Model) or not isinstance(rule, Rule):
            raise ValueError(f"Operator({type(model).__name__}, {type(rule).__name__}): needed a gkn.Model and a gkn.Rule")
        model.check_same_radius(rule.r)
        self.model, self.rule, self.weighted, self.features, self.about = model, rule, weighted, features, dict(about or {})
        self.inputs = inputs or Normalizer.none(model.in_channels)
        self.outputs = outputs or Normalizer.none(model.out_channels)
        sizes = ("inputs", self.inputs, model.in_channels), ("outputs", self.outputs, model.out_channels)
        for name, normalizer, needed in sizes:
            if normalizer.fields != needed:
                raise ValueError(f"Operator({name}=...): normalises {normalizer.fields} fields, the network has {needed}")

    def __repr__(self) -> str:
        count = sum(x.numel() for x in self.model.parameters())
        known = self.features
        fields = f"{', '.join(known.inputs)} -> {', '.join(known.output_fields)}" if known else "unnamed fields"
        metrics = self.about.get("metrics") or {}
        error = metrics.get("validation")
        known_error = "" if error is None else f", validation error {error:.4f}"
        return f"Operator({type(self.model).__name__} of {count} parameters, {fields}, {self.rule}{known_error})"

    def __call__(
        self,
        sample: Sample,
        at: Tensor | NDArray[Any] | None = None,
        *,
        a: Tensor | NDArray[Any] | None = None,
        how: How = Exact(),  # noqa: B008
        r: float | None = None,
        rng: torch.Generator | None = None,
        progress: Progress | None = None,
        differentiable: bool = False,
        check: bool = True,
    ) -> Tensor:
        """Return u at the points `at` (P, d), or at the sample's own: (P, out_channels).

        a                (P, in_channels) raw fields at the query points; without them they are interpolated from the sample
        how              `Exact`, `Spread`, `Support` or `Partition`
        r                another radius than in training, in the unit of the training data like `at`
        rng              for the draws of `Support` and `Partition`
        progress         called with (points done, of how many)
        differentiable   record the computation, so that gradients with respect to the sample's fields can be taken
        check            warn of inputs and points outside of the ranges of the training data
        """
        model = self.model
        at, a = None if at is None else real_points(at), None if a is None else as_real(a, "operator(sample, a=...): a")
        if check:
            given = {} if self.features is None else self.features.given_of(sample.a.detach())
            found = self.unusual(sample.domain, given, at, sample.frame)
            if a is not None and self.features is not None and a.ndim == 2:
                found += self.unusual(sample.domain, self.features.given_of(a.detach()), None, sample.frame)
            self._warn([*dict.fromkeys(found)])
        at = None if at is None else self.frame.points(at)
        r = None if r is None else r / self.frame.scale
        sample = self._complete(sample)
        a_shape, K, d = tuple(sample.a.shape), len(sample.domain), sample.x.shape[1]
        if a_shape != (K, model.in_channels) or d != model.dim:
            raise ValueError(
                f"operator(sample): fields {a_shape} on {K} points of dimension {d}; this network was made for "
                f"{model.in_channels} fields in dimension {model.dim}"
            )
        if not isinstance(how, How):
            raise ValueError(f"operator(sample, how={how!r}): use Exact(), Spread(m), Support(m, l) or Partition(m)")
        if how.all_queries and not model.at_queries:
            name = type(model).__name__
            raise ValueError(f"operator(sample, how={how!r}): {name} predicts at its nodes only; use Exact() or Partition(m)")
        model.check_same_radius(self.rule.r if r is None else r)
        device = model.like.device
        encoded, periods = self._encode(sample.a, sample.x, "operator(sample): a"), periods_for(model, sample.domain)
        moments = moments_for(model, self.rule, sample.domain, periods)
        nodes = Nodes(sample.x.to(device), encoded, sample.weights.to(device), periods, moments)
        at = at if at is None or periods is None else into_box(at, sample.domain, periods)
        queries = self._queries(sample, at, a)
        if queries is None and how.all_queries:
            queries = Queries(sample.x, lambda part: nodes.a[part])
        rng = rng or torch.Generator().manual_seed(0)
        with torch.set_grad_enabled(differentiable), evaluating(model):
            parts = [*how.parts(sample.domain, rng)]
            if queries is None or not model.at_queries:
                return self._at_nodes(sample, nodes, parts, r, progress, queries)
            report = PointReport(progress, len(queries.x) * len(parts))
            total = self._zeros(len(queries.x))
            for part in parts:
                some = nodes if part.nodes is None else nodes.take([part.nodes.to(device)], self.weighted)
                graph = some.graph(self.rule, None, r)
                states = model.states(graph, some.x, some.a, some.weights if self.weighted else None)
                total = self._ask(total, states, some, queries, r, report)
            return self.outputs.decode(total / len(parts), queries.x, sample.domain)

    def _at_nodes(
        self,
        sample: Sample,
        nodes: Nodes,
        parts: list[Part],
        r: float | None,
        progress: Progress | None,
        queries: Queries | None,
    ) -> Tensor:
        """Predict every node by its own part; interpolate at query points, for models that answer at nodes only."""
        total, report = self._zeros(len(nodes.x)), PointReport(progress, len(nodes.x))
        for some in together(parts, LEAST_QUERIES):
            total = self._fill(total, some, nodes, r, report)
        u = self.outputs.decode(total, sample.x, sample.domain)
        if queries is None:
            return u
        return sample.domain.interpolate(u.cpu(), queries.x.cpu()).to(u)

    def evaluate(self, dataset: Dataset, how: Any = Exact(), *, train: Dataset | None = None, **options: Any) -> Any:  # noqa: B008
        """Return the relative errors on every sample of a dataset, for each output field. See `gkn.relative_l2`.

        Trajectories are rolled out: see gkn/operator/over_time.py.

        train   the training samples: then the errors of two trivial answers made of them stand beside
        """
        from gkn.operator.evaluate import relative_l2
        from gkn.operator.over_time import rollout_errors
        from gkn.operator.trivial import trivial_errors

        if dataset.in_time:
            return rollout_errors(self, dataset, train=train, **options)
        found = relative_l2(self, dataset, how, **options)
        for text in (*unusual_samples(self, dataset), *found.cautions()):
            warnings.warn(text, stacklevel=2)
        return found if train is None else replace(found, trivial=trivial_errors(self, train, dataset))

    def symmetric(self) -> Operator:
        """Return an operator whose answers are the mean of this one's over all symmetries of the unit box.

        It is more accurate, and takes 2, 8 or 48 times as long in one, two or three dimensions. The network must have been
        trained with `symmetries=True`.
        """
        if isinstance(self.model, Symmetric):
            raise ValueError("operator.symmetric(): its answers are means over the symmetries already")
        if not (self.about.get("recipe") or {}).get("symmetries") or self.features is None:
            raise ValueError(
                "operator.symmetric(): this network was not trained with symmetries; use fit(..., symmetries=True)"
            )
        whole = Symmetric.around(self.model, self.features.inputs, self.inputs)
        about = {name: value for name, value in self.about.items() if name != "metrics"}  # those of the network alone
        return Operator(whole, self.rule, self.inputs, self.outputs, self.weighted, self.features, about)

    def plot(self, dataset: Dataset, i: int = 0, path: str | os.PathLike[str] | None = None) -> Any:
        """Draw input, truth, answer and difference of one sample; save the picture if a path is given. Return the figure."""
        from gkn.data.plot import save_figure
        from gkn.operator.report import draw_sample

        figure = draw_sample(self, dataset, i)
        return figure if path is None else save_figure(figure, Path(path))

    def rollout(self, start: Trajectory, times: Any = None, *, step: float | None = None, how: How | None = None) -> Rollout:
        """Return the states after an initial one, step by step, for operators that were trained on trajectories.

        start   a trajectory, of which the first states are used: dataset.trajectory(i), or operator.start(domain, u=...)
        times   increasing times after that of the last given state; by default the further times of the trajectory
        step    the longest step; by default the longest of training. Gaps between times are divided into equal steps
        how     `Exact`, `Spread` or another way to predict; by default `usual_way`
        """
        from gkn.operator.rollout import roll_out

        return roll_out(self, start, times, step, how)

    def start(self, domain: Domain, /, *, time: Any = 0.0, **given: Any) -> Trajectory:
        """Return the initial state of a rollout: fields (K,), vectors (K, c), static fields and numbers by name.

        With a history, states are (T, K) or (T, K, c), with a time for each.
        """
        from gkn.operator.rollout import start_of

        return start_of(self, domain, given, time)

    def usual_way(self, domain: Domain) -> How:
        """Return `Exact`, or `Spread` for a domain of so many more points than the training samples that `Exact` takes long.

        Every ball has as many more points; `Spread` keeps the density of training.
        """
        trained = (self.about.get("ranges") or {}).get("nodes")
        if trained is None or not self.model.at_queries or self.model.radius is None:
            return Exact()
        nodes = max(int(trained), LEAST_SPREAD)
        return Spread(nodes) if len(domain) > MANY * nodes else Exact()

    def ready(self, dataset: Dataset) -> Dataset:
        """Return the dataset with the fields this operator takes and gives, smoothed ones included."""
        if self.features is not None:
            dataset = self.features(dataset)
        elif dataset.frame is not None:
            raise ValueError("this dataset is in the frame of another operator; give the dataset as it was made")
        for what, names, needed in (
            ("inputs", dataset.inputs, self.model.in_channels),
            ("outputs", dataset.outputs, self.model.out_channels),
        ):
            if len(names) != needed:
                raise ValueError(f"this dataset has the {what} {', '.join(names)}; the network was made for {needed}")
        return dataset

    def sample(self, domain: Domain, /, *, input_domain: Domain | None = None, **given: Any) -> Sample:
        """Return a sample of fields (K,), vectors (K, c) and numbers on a domain; what else the network needs is computed.

        input_domain   the points that the given fields are on, if they are not those of the domain
        """
        if self.features is None:
            raise ValueError("operator.sample: this operator does not know the names of its fields; use gkn.Sample")
        self.check_dim(domain)
        return self.features.sample(domain, given, input_domain)

    @property
    def frame(self) -> Frame:
        """The frame in which the network sees points."""
        known = None if self.features is None else self.features.frame
        return Frame.identity(self.model.dim) if known is None else known

    def answer(
        self, domain: Domain, /, *, at: Any = None, input_domain: Domain | None = None, **given: Any
    ) -> dict[str, NDArray[Any]]:
        """Return the outputs on the points of a domain, or at points (P, d), as plain arrays by name: (P,), vectors as (P, c).

        given   input fields (K,), vectors (K, c), and numbers by name. Warns if they are outside of the training range
        """
        known = self.features
        unknown = [] if known is None else [name for name in given if name not in (*known.given, *known.given_fields)]
        if unknown and known is not None:
            raise KeyError(f"the operator has no input {unknown[0]!r}; it needs {', '.join(known.given_fields) or 'none'}")
        if self.features is None:
            raise ValueError("operator.answer: this operator does not know the names of its fields; use gkn.Sample")
        self.check_dim(domain)
        sample = self.features.sample(domain, given, input_domain)
        self._warn(self.unusual(domain, given, None if at is None else real_points(at)))
        return self.named(self(sample, at, check=False))

    def check_dim(self, domain: Domain) -> None:
        """Raise an error unless a domain has the dimension of the training data."""
        if domain.dim != self.model.dim:
            raise ValueError(f"{domain.describe()} in {domain.dim} dimensions; the operator was trained in {self.model.dim}")

    def _warn(self, texts: Sequence[str]) -> None:
        for text in texts:
            warnings.warn(f"{text}; do not trust the answer", stacklevel=3)

    def unusual(
        self, domain: Domain, given: Mapping[str, Any], at: Tensor | None = None, frame: Frame | None = None
    ) -> list[str]:
        """Return sentences about inputs, parameters and points outside of the ranges of the training data.

        domain   in the unit of the user's data, or in a frame
        given    input fields, vectors (K, c), and numbers by name
        at       query points (P, d), in the unit of the user's data
        """
        return unusual(self, domain, given, at, frame)

    def named(self, u: Tensor) -> dict[str, NDArray[Any]]:
        """Return outputs (P, o) as plain arrays by name: (P,), vectors as (P, c)."""
        return by_name(u, {"u": (0, 1)} if self.features is None else self.features.output_fields)

    def named_states(self, state: Tensor) -> dict[str, NDArray[Any]]:
        """Return a state (K, o) of a rollout as plain arrays by name: (K,), vectors as (K, c)."""
        assert self.features is not None
        return by_name(state, ranges_of(self.features.given[: state.shape[-1]], self.features.groups))

    def _complete(self, sample: Sample) -> Sample:
        """Return the sample in the frame, with the fields that are computed from others if it has only those a user gives."""
        known, count = self.features, sample.a.shape[-1]
        if sample.frame is not None:
            if sample.frame != self.frame:
                raise ValueError("operator(sample): this sample is in the frame of another operator")
            return sample
        if known is None or count != len(known.given) or count == self.model.in_channels:
            if self.frame.is_identity:
                return sample
            return replace(sample, domain=self.frame.domain(sample.domain), frame=self.frame)
        return known.sample(sample.domain, dict(zip(known.given, sample.a.T, strict=True)))

    def deviation(self, batch: Batch) -> Tensor:
        """Return u minus its mean on the nodes of a batch, in the units of the batch."""
        with torch.no_grad(), evaluating(self.model):
            found = self.model(batch.graph, batch.x, batch.a, batch.weights if self.weighted else None)
            out: Tensor = found.to(batch.deviation.dtype) * batch.std
        return out

    # --- storage

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a folder that `gkn.load` reads on any machine: numbers in tensors-*.safetensors, the rest in operator.json.

        Several processes may save and load at the same time. Under several ranks all may call this with the same operator.
        """
        from gkn.operator.stored import save_operator

        save_operator(self, path)

    @staticmethod
    def load(path: str | os.PathLike[str], *, device: torch.device | str = "cpu", dtype: torch.dtype | None = None) -> Operator:
        """Read what `save` wrote. Every byte is compared with its hash, and nothing in the files is ever run."""
        from gkn.operator.stored import load_operator

        return load_operator(Path(path), device, dtype)

    def moved(self, device: torch.device | str, dtype: torch.dtype | None = None) -> Operator:
        """Move the network to a device or type; return the operator."""
        self.model.to(device, dtype)
        return self

    # --- parts and queries

    def _zeros(self, count: int) -> Tensor:
        wide = torch.promote_types(self.model.like.dtype, torch.float32)  # whatever autocast does inside
        return torch.zeros(count, self.model.out_channels, dtype=wide, device=self.model.like.device)

    def _fill(self, total: Tensor, parts: list[Part], nodes: Nodes, r: float | None, report: PointReport) -> Tensor:
        """Predict each part's own nodes, all parts side by side, into `total`."""
        if parts[0].nodes is None:
            some, graph = nodes, nodes.graph(self.rule, None, r)
            wanted = place = torch.arange(len(nodes.x), device=nodes.x.device)
        else:
            each = [part.nodes.to(nodes.x.device) for part in parts if part.nodes is not None]
            chosen = torch.cat(each)
            some = nodes.take(each, self.weighted)
            graph = self._graphs(nodes, each, r)
            if nodes.moments is not None:
                graph = graph.with_moments(nodes.moments(some.x, r))
            first = [torch.arange(len(some)) < part.predicted for some, part in zip(each, parts, strict=True)]
            wanted = torch.cat(first).to(chosen.device)
            place = chosen[wanted]
        weights = some.weights if self.weighted else None
        states = self.model.states(graph, some.x, some.a, weights, report.steps(sum(part.predicted for part in parts)))
        return total.index_copy(0, place, self.model.finish(states)[wanted].to(total.dtype))

    def _graphs(self, nodes: Nodes, parts: list[Tensor], r: float | None) -> Graph:
        """Return sub-graphs side by side; those of equal size are found together."""
        if len({len(part) for part in parts}) == 1:
            return self.rule.graphs_of(nodes.x[torch.stack(parts)], r, nodes.periods)
        return Graph.batch([self.rule.wrapped(nodes.x[part], None, r, nodes.periods) for part in parts])

    def _ask(self, total: Tensor, states: Any, nodes: Nodes, queries: Queries, r: float | None, report: PointReport) -> Tensor:
        """Add the answers to `total`, in chunks: the answer at one query point does not depend on the others."""
        chunk = max(LEAST_QUERIES, min(QUERIES, 2**24 // len(nodes.x)))
        weights = nodes.weights if self.weighted else None
        answers = []
        for start in range(0, len(queries.x), chunk):
            part = slice(start, start + chunk)
            x, a = queries.x[part].to(nodes.x.device), queries.a(part)
            graph = nodes.graph(self.rule, x, r)
            answers.append(self.model.at(states, graph, (x, a), (nodes.x, nodes.a), weights).to(total.dtype))
            report(len(x))
        return total + torch.cat(answers) if answers else total

    def _queries(self, sample: Sample, at: Tensor | None, a: Tensor | None) -> Queries | None:
        if at is None:
            if a is not None:
                raise ValueError("operator(sample, a=...): fields of queries without the queries; say where: at=points")
            return None
        points = at.detach()
        if points.ndim != 2 or points.shape[1] != self.model.dim or not points.is_floating_point():
            what = f"{points.dtype} of shape {tuple(points.shape)}"
            raise ValueError(f"operator(sample, at=...): {what}; needed points (P, {self.model.dim})")
        check_finite(points, "operator(sample, at=...): points")
        if a is None:
            domain, fields = sample.domain, sample.a.cpu()

            def interpolated(part: slice) -> Tensor:
                try:
                    found = domain.interpolate(fields, points[part].cpu())
                except OutsideDomain as error:
                    raise error.at(self.frame.back(points[part].cpu())) from None  # in the user's unit
                return self._encode(found, points[part], "interpolated a")

            return Queries(points, interpolated)
        if a.shape != (len(points), self.model.in_channels):
            raise ValueError(f"operator(..., a=...): shape {tuple(a.shape)}; needed ({len(points)}, {self.model.in_channels})")
        encoded = self._encode(a, points, "operator(..., a=...)")
        return Queries(points, lambda part: encoded[part])

    def encoded(self, a: Tensor, x: Tensor) -> Tensor:
        """Return fields (K, c) at the points x as the network takes them: normalised, in its type and on its device."""
        return self._encode(a, x, "the input fields")

    def _encode(self, a: Tensor, x: Tensor, name: str) -> Tensor:
        """Return fields normalised, in the network's type and on its device."""
        check_real(a, name)
        check_finite(a, name)
        encoded = self.inputs.encode(a, x).to(self.model.like)
        check_finite(encoded, f"{name}, normalised, in {encoded.dtype},")
        return encoded
