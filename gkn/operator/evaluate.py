"""Evaluation: relative l2 errors, function by function and field by field."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from gkn.data.dataset import BadNumbers, Dataset, Sample, check_sample
from gkn.graph.batches import Batches, relative
from gkn.graph.rules import Rule
from gkn.operator.operator import Operator
from gkn.operator.ways import Exact, How, Test

NODES = 2**14  # at a time


@runtime_checkable
class Answers(Protocol):
    """Anything that can be evaluated: `ready` chooses the fields it needs, or raises an error for a dataset it cannot take."""

    def ready(self, dataset: Dataset) -> Dataset: ...
    def __call__(self, sample: Sample) -> Tensor: ...


@dataclass(frozen=True, eq=False)
class Errors:
    """Relative l2 errors |F(a) - u| / |u|, one for each sample.

    each       (n,), float64: of all output fields together
    by_field   the same for each output field by itself
    """

    each: Tensor
    by_field: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def mean(self) -> float:
        return float(self.each.mean())

    @property
    def median(self) -> float:
        return float(self.each.median())

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
        whole = f"{self.mean:.4f} (spread {self.spread:.4f}, worst {error:.4f} of sample {sample}, {len(self.each)} samples)"
        if len(self.by_field) < 2:
            return whole
        rows = [f"{'field':<12} mean    median  worst"]
        for name, each in self.by_field.items():
            rows.append(f"{name:<12} {float(each.mean()):.4f}  {float(each.median()):.4f}  {float(each.max()):.4f}")
        return "\n".join([whole, *rows])

    def json(self) -> dict[str, Any]:
        error, sample = self.worst
        fields = {name: float(each.mean()) for name, each in self.by_field.items()} if len(self.by_field) > 1 else {}
        return {
            "mean": self.mean,
            "spread": self.spread,
            "worst": error,
            "worst_sample": sample,
            "samples": len(self.each),
            "each": self.each.tolist(),
            **({"by_field": fields} if fields else {}),
        }


def relative_l2(
    operator: Operator | Answers,
    dataset: Dataset,
    how: Test = Exact(),  # noqa: B008
    *,
    r: float | None = None,
    weighted: bool | None = None,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> Errors:
    """Return |F(a) - u| / |u| of every sample of a dataset, at any resolution and on any points.

    operator   an `Operator`, or anything else that answers on a sample's own points
    how        as for an `Operator`; or `Sampled(m)`, on drawn nodes only
    r          another radius than in training
    weighted   norms are quadratures with the domain's weights; None: on meshes and clouds whose weights differ. On grids they
               are the paper's plain sums
    seed       of the draws
    progress   called with (samples done, of how many)
    """
    dataset = operator.ready(dataset)
    judge = Judge(operator, dataset, how, r=r, weighted=weighted, seed=seed)
    parts = []
    for start, stop in judge.parts():
        parts.append(judge.errors(range(start, stop)))
        if progress is not None:
            progress(stop, len(dataset))
    found = torch.cat(parts)
    return Errors(found[:, 0], {name: found[:, i + 1] for i, name in enumerate(dataset.outputs)})


class Judge:
    """Errors of some samples at a time. `fit` uses it to share them among ranks and to stop between them."""

    def __init__(
        self,
        operator: Operator | Answers,
        dataset: Dataset,
        how: Test,
        *,
        r: float | None = None,
        weighted: bool | None = None,
        seed: int = 0,
    ) -> None:
        if not len(dataset):
            raise ValueError("relative_l2: this dataset has no samples")
        self.operator, self.dataset, self.how, self.r, self.seed = operator, dataset, how, r, seed
        self.weighted = weighted
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
                weighted=operator.weighted or not dataset.one_domain or self._weighted(0),
            )
            self._batches.draw(seed, 0)
            nodes = len(dataset.domain) if rule.drawn is None else rule.drawn * rule.graphs
            self._step = max(1, NODES // nodes)

    def _batch_rule(self, rule: Rule) -> Rule | None:
        """Return the rule for evaluating samples in batches; None if they are too large or on different domains."""
        chosen = self.how.batched(rule, self.r)
        if chosen is None or chosen.drawn is not None:
            return chosen
        return chosen if self.dataset.one_domain and len(self.dataset.domain) <= NODES // 4 else None

    def parts(self) -> list[tuple[int, int]]:
        """Return ranges of samples that are evaluated together."""
        n = len(self.dataset)
        return [(start, min(start + self._step, n)) for start in range(0, n, self._step)]

    @torch.no_grad()
    def errors(self, samples: range, tick: Callable[[int, int], None] | None = None) -> Tensor:
        """Return errors (samples, 1 + outputs), float64: of all fields together, and of each.

        tick   is called now and then during long evaluations, and may raise
        """
        if self._batches is None:
            found = torch.stack([self._one(i, tick) for i in samples])
        else:
            l = self._draws
            batch = self._batches.batch([i * l + k for i in samples for k in range(l)])
            weights = batch.weights if self._weighted(samples[0]) else None
            assert self._operator is not None
            answer = self._operator.predict(batch)
            columns = [slice(None), *(slice(i, i + 1) for i in range(answer.shape[1]))]
            each = [relative(answer[:, some], batch.u[:, some], batch, weights) for some in columns]
            found = torch.stack(each, 1).reshape(len(samples), l, -1).mean(1).cpu()
        for i, error in zip(samples, found[:, 0].tolist(), strict=True):
            if not math.isfinite(error):
                names = ", ".join(self.dataset.outputs)
                raise BadNumbers(
                    f"the relative error of sample {self.dataset.number(i)}, field {names}, is {error}: is it 0 on "
                    f"all points, or is the prediction not finite?"
                )
        return found

    def _one(self, i: int, tick: Callable[[int, int], None] | None) -> Tensor:
        sample = self.dataset[i]
        check_sample(sample.a, self.dataset.inputs, self.dataset.number(i))
        check_sample(sample.u, self.dataset.outputs, self.dataset.number(i))
        found = self._answer(sample, tick).cpu().double()
        weights = sample.weights[:, None] if self._weighted(i) else 1.0
        top, bottom = ((weights * x.square()).sum(0) for x in (found - sample.u.double(), sample.u.double()))
        return torch.cat([(top.sum() / bottom.sum())[None], top / bottom]).sqrt()

    def _answer(self, sample: Sample, tick: Callable[[int, int], None] | None) -> Tensor:
        if self._operator is None:
            return self.operator(sample)
        assert isinstance(self.how, How)
        rng = torch.Generator().manual_seed(self.seed)
        return self._operator(sample, how=self.how, r=self.r, rng=rng, progress=tick)

    def _weighted(self, i: int) -> bool:
        if self.weighted is not None:
            return self.weighted
        return (self.dataset.domain if self.dataset.one_domain else self.dataset[i].domain).uneven
