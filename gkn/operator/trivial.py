"""Trivial answers that a trained operator has to beat: the mean of the training samples, and the nearest training sample."""

from __future__ import annotations

import numpy as np
import torch
from scipy.spatial import cKDTree
from torch import Tensor

from gkn.data.dataset import Dataset
from gkn.data.sample import Sample
from gkn.operator.evaluate import Errors, relative_l2
from gkn.operator.operator import Operator

AVERAGED = 64
"""Training samples whose mean is taken if every sample has points of its own."""
PROBES = 512
"""Points at which samples with points of their own are compared."""


class Mean:
    """The mean of the outputs of the training samples. On other points each sample is read at its nearest point."""

    def __init__(self, operator: Operator, train: Dataset) -> None:
        self.operator, self.train = operator, operator.ready(train)
        self.common = self.train.domain if self.train.one_domain else None
        if self.common is not None:
            self.mean = torch.stack([sample.u.double() for sample in self.train]).mean(0)
            self.samples = [(cKDTree(self.common.points.numpy()), self.mean)]
        else:
            chosen = np.unique(np.linspace(0, len(self.train) - 1, min(AVERAGED, len(self.train))).round().astype(int))
            some = [self.train[int(i)] for i in chosen]
            self.samples = [(cKDTree(sample.x.numpy()), sample.u.double()) for sample in some]

    def ready(self, dataset: Dataset) -> Dataset:
        return self.operator.ready(dataset)

    def __call__(self, sample: Sample) -> Tensor:
        if self.common is not None and (sample.domain is self.common or self.common.same_as(sample.domain)):
            return self.mean
        points = sample.x.numpy()
        return torch.stack([u[torch.from_numpy(tree.query(points)[1]).long()] for tree, u in self.samples]).mean(0)


class Nearest:
    """The outputs of the training sample whose inputs and geometry are nearest.

    Samples are compared by their normalised inputs at all points if they share them. Otherwise by their inputs at the points
    nearest to a few hundred fixed ones, and by the distances to those points, which differ where a domain has a hole.
    """

    def __init__(self, operator: Operator, train: Dataset) -> None:
        self.operator, self.train = operator, operator.ready(train)
        self.common = self.train.domain if self.train.one_domain else None
        boxes = [domain.box for domain in self.train.domains()]
        low, high = torch.stack([box[0] for box in boxes]).amin(0), torch.stack([box[1] for box in boxes]).amax(0)
        draws = torch.rand(PROBES, len(low), dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        self.probes = (low + draws * (high - low)).numpy()
        self.known: dict[bool, Tensor] = {}

    def ready(self, dataset: Dataset) -> Dataset:
        return self.operator.ready(dataset)

    def __call__(self, sample: Sample) -> Tensor:
        shared = self.common is not None and (sample.domain is self.common or self.common.same_as(sample.domain))
        if shared not in self.known:
            self.known[shared] = torch.stack([self._described(each, shared) for each in self.train])
        nearest = self.train[int((self.known[shared] - self._described(sample, shared)).square().sum(1).argmin())]
        if nearest.domain is sample.domain or nearest.domain.same_as(sample.domain):
            return nearest.u.double()
        place = cKDTree(nearest.x.numpy()).query(sample.x.numpy())[1]
        return nearest.u.double()[torch.from_numpy(place).long()]

    def _described(self, sample: Sample, shared: bool) -> Tensor:
        """Return numbers that are compared. `shared`: all samples have the same points."""
        a = self.operator.inputs.encode(sample.a, sample.x)
        if shared:
            return (a * sample.weights.sqrt()[:, None] / sample.weights.sum().sqrt()).reshape(-1)
        distance, place = cKDTree(sample.x.numpy()).query(self.probes)
        far = torch.from_numpy(distance / max(sample.domain.spacing, 1e-300)).clamp(max=10.0)
        values = a[torch.from_numpy(place).long()].reshape(-1)
        described: Tensor = torch.cat([values, far]) / PROBES**0.5
        return described


def trivial_errors(operator: Operator, train: Dataset, test: Dataset) -> dict[str, Errors]:
    """Return the errors of both trivial answers on a test set."""
    return {
        "mean of the training samples": relative_l2(Mean(operator, train), test),
        "nearest training sample": relative_l2(Nearest(operator, train), test),
    }


def compared(found: Errors, trivial: dict[str, Errors]) -> list[str]:
    """Return a sentence for each field in which an operator is worse than a trivial answer."""
    worse = []
    for name in found.by_field:
        for what, other in trivial.items():
            hidden = name in found.of_variation and name in other.of_variation
            mine, theirs = ((each.of_variation if hidden else each.by_field)[name] for each in (found, other))
            if float(mine.nanmean()) > float(theirs.nanmean()):
                worse.append(
                    f"{name}: the error {float(mine.nanmean()):.4g}{' relative to its variation' * hidden} is larger than that "
                    f"of the {what}, {float(theirs.nanmean()):.4g}; the operator has not learned this field"
                )
    return worse
