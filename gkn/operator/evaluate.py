"""Evaluation: relative l2 errors, function by function and field by field."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from gkn.data.dataset import Dataset
from gkn.data.normalizer import FLOOR
from gkn.data.sample import BadNumbers, Sample, check_sample
from gkn.graph.batches import Batch, Batches, relative
from gkn.graph.rules import Rule
from gkn.operator.nodes import periods_for
from gkn.operator.operator import Operator
from gkn.operator.ways import Exact, How, Test
from gkn.system.checks import power_of_two

LEAST = 1e-14  # of a field: less is rounding and no variation
NODES = 2**14  # at a time
NAMED = 10  # samples in a message
MUCH = 5.0  # errors relative to the variation are shown if they are more than so many times the usual ones


@runtime_checkable
class Answers(Protocol):
    """Anything that can be evaluated: `ready` chooses the fields it needs, or raises an error for a dataset it cannot take."""

    def ready(self, dataset: Dataset) -> Dataset: ...
    def __call__(self, sample: Sample) -> Tensor: ...


@dataclass(frozen=True, eq=False)
class Errors:
    """Relative l2 errors |F(a) - u| / |u|, one for each sample. Norms are quadratures over the domain.

    each       (n,), float64: the mean over the output fields
    by_field   the errors of each output field; a vector is one field
    trivial    the errors of trivial answers on the same samples, by name, if they were asked for
    of_variation   errors relative to |u - mean of u|, for the fields in which they are much larger
    over_time  (n, T) errors of each field of rollouts at each of the `times`, if all trajectories have the same
    """

    each: Tensor
    by_field: Mapping[str, Tensor] = field(default_factory=dict)
    trivial: Mapping[str, Errors] = field(default_factory=dict)
    of_variation: Mapping[str, Tensor] = field(default_factory=dict)
    over_time: Mapping[str, Tensor] = field(default_factory=dict)
    times: tuple[float, ...] = ()

    @property
    def mean(self) -> float:
        return float(self.each.mean())

    @property
    def median(self) -> float:
        return _median(self.each)

    @property
    def spread(self) -> float:
        """Standard deviation from sample to sample."""
        return float(self.each.std(correction=0))

    @property
    def worst(self) -> tuple[float, int]:
        """The largest error, and the sample that has it."""
        sample = int(self.each.argmax())
        return float(self.each[sample]), sample

    def __float__(self) -> float:
        return self.mean

    def __str__(self) -> str:
        error, sample = self.worst
        whole = (
            f"{self.mean:.4f} (median {self.median:.4f}, spread {self.spread:.4f}, worst {error:.4f} of sample {sample}, "
            f"{len(self.each)} samples)"
        )
        if len(self.by_field) < 2 and not self.trivial and not self.of_variation:
            return whole
        table = self.rows(self.trivial)
        wide = max(len(what) for what, _ in (("field", None), *table))
        rows = [f"{'field':<{wide}} mean    median  worst"]
        for what, each in table:
            worst = float(torch.where(each.isnan(), 0.0, each).max())
            rows.append(f"{what:<{wide}} {float(each.nanmean()):.4f}  {float(each.nanquantile(0.5)):.4f}  {worst:.4f}")
        return "\n".join([whole, *rows])

    def rows(self, trivial: Mapping[str, Errors]) -> list[tuple[str, Tensor]]:
        """Return the rows of a table: each field, its error relative to its variation, and the trivial answers below it."""
        rows = []
        for name in self.by_field:
            for what, found in {name: self, **{f"  {other}": errors for other, errors in trivial.items()}}.items():
                rows.append((what, found.by_field[name]))
                if name in found.of_variation:
                    rows.append(("  relative to its variation", found.of_variation[name]))
        return rows

    def cautions(self) -> list[str]:
        """Return a sentence for each field whose mean is so large that the usual error says little."""
        return [
            f"the error of {name} is {float(self.by_field[name].mean()):.2g} relative to {name}, but "
            f"{float(each.nanmean()):.2g} relative to its variation about its mean"
            for name, each in self.of_variation.items()
        ]

    def json(self) -> dict[str, Any]:
        error, sample = self.worst
        fields = {
            name: {"mean": float(each.mean()), "median": _median(each), "worst": float(each.max())}
            for name, each in self.by_field.items()
        }
        entries: dict[str, Any] = {
            "mean": self.mean,
            "median": self.median,
            "spread": self.spread,
            "worst": error,
            "worst_sample": sample,
            "samples": len(self.each),
            "each": self.each.tolist(),
            **({"by_field": fields} if len(fields) > 1 else {}),
            **({"of_variation": {k: float(v.nanmean()) for k, v in self.of_variation.items()}} if self.of_variation else {}),
        }
        if self.over_time:
            curves = {name: each.mean(0).tolist() for name, each in self.over_time.items()}
            entries |= {"times": [*self.times], "over_time": curves}
        return {name: _finite(value) for name, value in entries.items()}


def _finite(value: Any) -> Any:
    """Return entries with None for numbers that are not finite, which JSON cannot hold: errors of rollouts that stopped."""
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _median(values: Tensor) -> float:
    """Return the middle value, or the mean of the two in the middle."""
    return float(values.quantile(0.5))


def judgeable(dataset: Dataset) -> tuple[Dataset, list[str]]:
    """Return the samples whose outputs all differ from 0, and a sentence about those that are left out.

    The relative error of an output that is 0 at all points is not defined.
    """
    zero: dict[int, str] = {}
    for which, values in dataset.blocks(dataset.outputs):
        for name, (start, stop) in dataset.output_fields.items():
            some = torch.stack([each.flatten(1).any(1) for each in values[start:stop]]).any(0)
            for i in (which[k] for k in (~some).nonzero()[:, 0].tolist()):
                state = None if dataset.in_time else dataset.reference(i)
                if state is None or not bool(state[:, start:stop].any()):
                    zero[i] = name
    if not zero:
        return dataset, []
    first, *rest = sorted(zero)
    others = ", ".join(dataset.label(i) for i in rest[: NAMED - 1])
    more = f", {others}" + (f" and {len(zero) - NAMED} more" if len(zero) > NAMED else "") if others else ""
    text = f"left out: sample {dataset.label(first)}{more}; {zero[first]} is 0 at all points: a relative error is not defined"
    return dataset.take([i for i in range(len(dataset)) if i not in zero]), [text]


def relative_l2(
    operator: Operator | Answers,
    dataset: Dataset,
    how: Test = Exact(),  # noqa: B008
    *,
    r: float | None = None,
    weighted: bool = True,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> Errors:
    """Return |F(a) - u| / |u| of every sample of a dataset, at any resolution and on any points.

    operator   an `Operator`, or anything else that answers on a sample's own points
    how        as for an `Operator`; or `Sampled(m)`, on drawn nodes only
    r          another radius than in training, in the unit of the training data
    weighted   norms are quadratures with the domain's weights; False: plain sums over points, as in the paper
    seed       of the draws
    progress   called with (samples done, of how many)
    """
    dataset = operator.ready(dataset)
    judge = Judge(operator, dataset, how, r=r, weighted=weighted, seed=seed)
    parts = []
    for start, stop in judge.parts():
        parts.append(judge.errors_and_ratios(range(start, stop)))
        if progress is not None:
            progress(stop, len(dataset))
    found, ratios = (torch.cat(each) for each in zip(*parts, strict=True))
    return errors_of(found, dataset, ratios)


def errors_of(found: Tensor, dataset: Dataset, ratios: Tensor | None = None) -> Errors:
    """Return the errors (n, fields) of all samples of a dataset as `Errors`.

    ratios   (n, fields) of the errors relative to the variation to these; they are kept for fields where they are large
    """
    by_field = {name: found[:, i] for i, name in enumerate(dataset.output_fields)}
    of_variation = {}
    if ratios is not None:
        for name, ratio in zip(by_field, ratios.T, strict=True):
            if float(ratio.nanmedian()) > MUCH:
                of_variation[name] = by_field[name] * ratio
    return Errors(found.mean(1), by_field, of_variation=of_variation)


class Judge:
    """Errors of some samples at a time. `fit` uses it to share them among ranks and to stop between them.

    hidden   (o,) the standard deviation of fields whose error is relative to their variation, as in training; 0 for others
    """

    def __init__(
        self,
        operator: Operator | Answers,
        dataset: Dataset,
        how: Test,
        *,
        r: float | None = None,
        weighted: bool = True,
        seed: int = 0,
        hidden: Tensor | None = None,
    ) -> None:
        if not len(dataset):
            raise ValueError("relative_l2: this dataset has no samples")
        self.operator, self.dataset, self.how, self.r, self.seed = operator, dataset, how, r, seed
        self.weighted = weighted
        self.floor = FLOOR * (torch.zeros(len(dataset.outputs)) if hidden is None else hidden).double()
        self._operator = operator if isinstance(operator, Operator) else None
        self._batches: Batches | None = None
        self._step, self._draws = 1, 1
        if self._operator is None and (how != Exact() or r is not None):
            raise ValueError(f"relative_l2: {type(operator).__name__} predicts at a sample's points only, without how and r")
        rule = None if self._operator is None else self._batch_rule(self._operator.rule)
        if rule is not None:
            assert self._operator is not None
            operator, self._draws = self._operator, rule.graphs
            like = operator.model.like
            self._batches = Batches(
                dataset,
                rule,
                operator.inputs,
                operator.outputs,
                device=like.device,
                dtype=torch.promote_types(like.dtype, torch.float32),
                weighted=operator.weighted or weighted,
                precise=True,
                periods=periods_for(operator.model, dataset.domain if dataset.one_domain else dataset[0].domain),
                degree=operator.model.moments,
            )
            self._batches.draw(seed, 0)
            nodes = len(dataset.domain) if rule.drawn is None else rule.drawn * rule.graphs
            self._step = max(1, NODES // nodes)

    def _batch_rule(self, rule: Rule) -> Rule | None:
        """Return the rule for evaluating samples in batches; None if they are too large or on different domains."""
        assert self._operator is not None
        chosen = self.how.batched(rule, None if self.r is None else self.r / self._operator.frame.scale)
        if chosen is None or chosen.drawn is not None:
            return chosen
        return chosen if self.dataset.one_domain and len(self.dataset.domain) <= NODES // 4 else None

    def parts(self) -> list[tuple[int, int]]:
        """Return ranges of samples that are evaluated together."""
        n = len(self.dataset)
        return [(start, min(start + self._step, n)) for start in range(0, n, self._step)]

    def errors(self, samples: range, tick: Callable[[int, int], None] | None = None) -> Tensor:
        """Return the errors (samples, fields) of each output field, in float64.

        tick   is called now and then during long evaluations, and may raise
        """
        return self._measured(samples, tick)[2]

    def errors_and_ratios(self, samples: range) -> tuple[Tensor, Tensor]:
        """Return the errors (samples, fields) relative to u, and |u| / |u - mean of u|, NaN where a field does not vary."""
        found, ratios, _ = self._measured(samples, None)
        return found, ratios

    @torch.no_grad()
    def _measured(self, samples: range, tick: Callable[[int, int], None] | None) -> tuple[Tensor, Tensor, Tensor]:
        """Return errors and ratios, and the errors by which a network is judged."""
        if self._batches is None:
            found, ratios, judged = (torch.stack(each) for each in zip(*(self._one(i, tick) for i in samples), strict=True))
        else:
            l = self._draws
            parts = self._of_batch(self._batches.batch([i * l + k for i in samples for k in range(l)]))
            found, ratios, judged = (each.reshape(len(samples), l, -1).mean(1).cpu() for each in parts)
        for i, row in zip(samples, found.tolist(), strict=True):
            for name, error in zip(self.dataset.output_fields, row, strict=True):
                if not math.isfinite(error):
                    raise BadNumbers(
                        f"the relative error of sample {self.dataset.label(i)}, field {name}, is {error}: is it 0 on "
                        f"all points, or is the prediction not finite?"
                    )
        return found, ratios, judged

    def _of_batch(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Return what `_measured` does for the graphs of a batch, which all have the same number of nodes."""
        assert self._operator is not None
        assert self._batches is not None
        assert batch.u is not None
        weights = batch.weights if self.weighted else None
        error = self._operator.deviation(batch).double() - batch.deviation
        u = batch.u.reshape(len(batch.sizes), -1, batch.u.shape[1])
        w = torch.ones_like(u[..., :1]) if weights is None else weights.double().reshape(len(u), -1, 1)
        variation = (u - (w * u).sum(1, keepdim=True) / w.sum(1, keepdim=True)).flatten(0, 1)
        varies, found = relative(variation, batch.u, batch, weights), relative(error, batch.u, batch, weights)
        judged = relative(error, variation, batch, weights, (self.floor / self._batches.unit).to(error.device))
        return (
            found,
            torch.where(varies > LEAST, 1 / varies, math.nan),
            torch.where(self._is_hidden.to(found.device), judged, found),
        )

    @property
    def _is_hidden(self) -> Tensor:
        return torch.stack([self.floor[start] > 0 for start, _ in self.dataset.output_fields.values()])

    def _one(self, i: int, tick: Callable[[int, int], None] | None) -> tuple[Tensor, Tensor, Tensor]:
        sample = self.dataset[i]
        check_sample(sample.a, self.dataset.inputs, self.dataset.label(i))
        check_sample(sample.u, self.dataset.outputs, self.dataset.label(i))
        found = self._answer(sample, tick).cpu().double()
        weights = sample.weights[:, None] if self.weighted else None
        u, fields = sample.u.double(), [*self.dataset.output_fields.values()]
        state = self.dataset.reference(i)
        if state is not None:
            found, u = found + state, u + state
        ratios = [ratio_to_variation(u[:, start:stop], weights) for start, stop in fields]
        errors = relative_errors(found, u, weights, fields)
        least = [_norm(u[:, i:j], weights) / _norm(self.floor[i:j].expand(len(u), -1), weights) for i, j in fields]
        of_variation = torch.tensor(ratios, dtype=torch.float64)
        judged = errors * torch.fmin(of_variation, torch.stack(least))  # fmin ignores NaN
        return errors, of_variation, torch.where(self._is_hidden, judged, errors)

    def _answer(self, sample: Sample, tick: Callable[[int, int], None] | None) -> Tensor:
        if self._operator is None:
            return self.operator(sample)
        assert isinstance(self.how, How)
        rng = torch.Generator().manual_seed(self.seed)
        return self._operator(sample, how=self.how, r=self.r, rng=rng, progress=tick, check=False)


def relative_errors(found: Tensor, truth: Tensor, weights: Tensor | None, fields: Sequence[tuple[int, int]]) -> Tensor:
    """Return |found - truth| / |truth| of (K, o) for each field, given its columns (first, last + 1): (fields,)."""
    return torch.stack(
        [_norm((found - truth)[:, start:stop], weights) / _norm(truth[:, start:stop], weights) for start, stop in fields]
    )


def _norm(values: Tensor, weights: Tensor | None) -> Tensor:
    """Return the root of the sum of squares, for values of any size."""
    unit = power_of_two(values.abs().amax()) if values.numel() else 1.0
    squares = (values / unit).square()
    return (squares if weights is None else weights * squares).sum().sqrt() * unit


def ratio_to_variation(u: Tensor, weights: Tensor | None) -> float:
    """Return |u| / |u - mean of u| of a field (K, c); NaN if it does not vary.

    Times this, an error relative to u is one relative to the variation of u.
    """
    mean = u.mean(0) if weights is None else (weights * u).sum(0) / weights.sum()
    variation, whole = float(_norm(u - mean, weights)), float(_norm(u, weights))
    return whole / variation if variation > LEAST * whole else math.nan
