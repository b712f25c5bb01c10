"""How wrong is an operator? Relative l2 errors, function by function."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, runtime_checkable

import torch
from torch import Tensor

from gkn.data.dataset import BadNumbers, Dataset, Sample, check_sample
from gkn.geometry.grid import Grid
from gkn.graph.batches import Batches, relative
from gkn.graph.rules import Nystrom, Radius, check_draws
from gkn.operator.operator import Exact, How, Operator

NODES = 2**14  # at a time


@dataclass(frozen=True)
class Sampled:
    """The paper's test: m' random nodes of each function, predicted from each other and judged there; l' times."""

    m: int
    l: int = 1

    def __post_init__(self) -> None:
        check_draws(self)


Test: TypeAlias = How | Sampled


@runtime_checkable
class Answers(Protocol):
    """Whatever can be judged: `ready` chooses the fields it needs, or says why it cannot take a dataset."""

    def ready(self, dataset: Dataset) -> Dataset: ...
    def __call__(self, sample: Sample) -> Tensor: ...


@dataclass(frozen=True, eq=False)
class Errors:
    """Relative l2 errors |F(a) - u| / |u|, one for each sample."""

    each: Tensor  # (n,), float64

    @property
    def mean(self) -> float:
        return float(self.each.mean())

    @property
    def spread(self) -> float:
        """The standard deviation from sample to sample."""
        return float(self.each.std(correction=0))

    @property
    def worst(self) -> tuple[float, int]:
        """The largest error, and whose it is."""
        sample = int(self.each.argmax())
        return float(self.each[sample]), sample

    def __float__(self) -> float:
        return self.mean

    def __str__(self) -> str:
        error, sample = self.worst
        return f"{self.mean:.4f} (spread {self.spread:.4f}, worst {error:.4f} of sample {sample}, {len(self.each)} samples)"

    def json(self) -> dict[str, Any]:
        error, sample = self.worst
        return {
            "mean": self.mean,
            "spread": self.spread,
            "worst": error,
            "worst_sample": sample,
            "samples": len(self.each),
            "each": self.each.tolist(),
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
    """|F(a) - u| / |u| of every sample of a dataset, at any resolution and on any points.

    operator   or anything else that answers, a `Baseline` for example, on a sample's own points
    how        as of `Operator`; or `Sampled(m)`, on drawn nodes only
    r          another radius than in training
    weighted   the norms are quadratures with the domain's weights; None: on meshes, and clouds, whose weights differ;
               on grids the paper's plain sums.
    seed       of the draws
    progress   called with (samples done, of how many)
    """
    dataset = operator.ready(dataset)
    judged = Judge(operator, dataset, how, r=r, weighted=weighted, seed=seed)
    parts = []
    for start, stop in judged.parts():
        parts.append(judged.errors(range(start, stop)))
        if progress is not None:
            progress(stop, len(dataset))
    return Errors(torch.cat(parts))


class Judge:
    """Errors of some samples at a time. `fit` uses it to share them among ranks, and to stop between them."""

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
        self._batches: Batches | None = None
        self._step = 1
        if not isinstance(operator, Operator):
            if not isinstance(how, Exact) or r is not None:
                raise ValueError(f"relative_l2: {type(operator).__name__} answers on a sample's own points; no how, and no r")
            return
        radius = operator.rule.r if r is None else r
        rule: Radius | Nystrom | None = None
        if isinstance(how, Sampled):
            rule = Nystrom(radius, how.m, how.l)
        elif isinstance(how, Exact) and dataset.one_domain and len(dataset.domain) <= NODES // 4:
            rule = Radius(radius)
        if rule is not None:
            own = operator.model.P.weight
            self._batches = Batches(
                dataset,
                rule,
                operator.inputs,
                operator.outputs,
                device=own.device,
                dtype=torch.promote_types(own.dtype, torch.float32),
                weighted=operator.weighted or not dataset.one_domain or self._weighted(0),
            )
            self._batches.draw(seed, 0)
            nodes = rule.m * rule.l if isinstance(rule, Nystrom) else len(dataset.domain)
            self._step = max(1, NODES // nodes)

    def parts(self) -> list[tuple[int, int]]:
        n = len(self.dataset)
        return [(start, min(start + self._step, n)) for start in range(0, n, self._step)]

    @torch.no_grad()
    def errors(self, samples: range, tick: Callable[[int, int], None] | None = None) -> Tensor:
        """(len(samples),), float64. `tick` is called now and then within long ones, and may raise."""
        if self._batches is None:
            found = torch.cat([self._one(i, tick) for i in samples])
        else:
            l = self.how.l if isinstance(self.how, Sampled) else 1
            batch = self._batches.batch([i * l + k for i in samples for k in range(l)])
            weights = batch.weights if self._weighted(samples[0]) else None
            assert isinstance(self.operator, Operator)
            found = relative(self.operator.predict(batch), batch.u, batch, weights).reshape(-1, l).mean(1).cpu()
        for i, error in zip(samples, found.tolist(), strict=True):
            if not math.isfinite(error):
                names = ", ".join(self.dataset.outputs)
                raise BadNumbers(
                    f"the relative error of sample {self.dataset.number(i)}, field {names}, is {error}: is it 0 on "
                    f"all points, or does the network answer no numbers?"
                )
        return found

    def _one(self, i: int, tick: Callable[[int, int], None] | None) -> Tensor:
        sample = self.dataset[i]
        check_sample(sample.a, self.dataset.inputs, self.dataset.number(i))
        check_sample(sample.u, self.dataset.outputs, self.dataset.number(i))
        found = self._answer(sample, tick).cpu().double()
        weights = sample.weights[:, None] if self._weighted(i) else 1.0
        top, bottom = ((weights * x.square()).sum() for x in (found - sample.u.double(), sample.u.double()))
        return (top / bottom).sqrt()[None]

    def _answer(self, sample: Sample, tick: Callable[[int, int], None] | None) -> Tensor:
        assert not isinstance(self.how, Sampled)
        if not isinstance(self.operator, Operator):
            return self.operator(sample)
        rng = torch.Generator().manual_seed(self.seed)
        return self.operator(sample, how=self.how, r=self.r, rng=rng, progress=tick)

    def _weighted(self, i: int) -> bool:
        if self.weighted is not None:
            return self.weighted
        domain = self.dataset.domain if self.dataset.one_domain else self.dataset[i].domain
        return not isinstance(domain, Grid) and bool((domain.weights != domain.weights[0]).any())
