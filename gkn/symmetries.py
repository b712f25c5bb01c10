"""Symmetries of the unit box: axes exchanged and turned round. Of a law that has them, one pair is as many as they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gkn.batches import Batch
from gkn.dataset import Dataset, Normalizer


@dataclass(frozen=True, eq=False)
class Symmetries:
    """x_i -> x_j or 1 - x_j, for every function its own. Fields go along; components of a gradient are exchanged, too.

    vectors   which inputs are the components of a gradient: (first, last + 1) for each
    """

    inputs: Normalizer
    vectors: tuple[tuple[int, int], ...]

    @staticmethod
    def of(datasets: Sequence[Dataset], inputs: Normalizer) -> Symmetries:
        names, vectors = datasets[0].inputs, []
        for name, _ in datasets[0].smoothing:
            components = [i for i, each in enumerate(names) if each in {f"{name}_smooth_{axis}" for axis in "xyz"}]
            dim = datasets[0][0].domain.dim
            if components and components != [*range(components[0], components[0] + dim)]:
                raise ValueError(f"symmetries: of the gradient of {name} only some components are inputs, or not side by side")
            vectors += [(components[0], components[0] + dim)] if components else []
        for each in datasets:
            points = each[0].domain.points
            if float(points.min()) < 0 or float(points.max()) > 1:
                raise ValueError("symmetries: these are those of the unit box, and a dataset has points outside of it")
        return Symmetries(inputs, tuple(vectors))

    def __call__(self, batch: Batch, rng: torch.Generator, graphs: range) -> Batch:
        """Each graph of a batch by a symmetry drawn for it. `graphs`: which they are of those that are drawn for."""
        dim, device = batch.x.shape[1], batch.x.device
        drawn = torch.rand(graphs.stop, 2, dim, generator=rng)[graphs.start :: graphs.step]
        sizes = torch.tensor(batch.sizes)
        axes = drawn[:, 0].argsort(1).repeat_interleave(sizes, 0).to(device)
        turned = (drawn[:, 1] < 0.5).repeat_interleave(sizes, 0).to(device)
        x = batch.x.gather(1, axes)
        return replace(batch, x=torch.where(turned, 1 - x, x), a=self._fields(batch.a, axes, turned))

    def _fields(self, a: Tensor, axes: Tensor, turned: Tensor) -> Tensor:
        mean, std = (x.to(a) for x in (self.inputs.mean, self.inputs.std))
        parts, done = [], 0
        for first, last in self.vectors:
            vector = (a[:, first:last] * std[first:last] + mean[first:last]).gather(1, axes)
            vector = torch.where(turned, -vector, vector)
            parts += [a[:, done:first], (vector - mean[first:last]) / std[first:last]]
            done = last
        return torch.cat([*parts, a[:, done:]], 1)
