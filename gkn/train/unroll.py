"""Unroll: pairs of states whose first state is what the network predicts, or noisy, so that it learns to mend such errors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gkn.data.dataset import Dataset
from gkn.data.normalizer import Normalizer
from gkn.data.stepping import STEP
from gkn.graph.batches import Batch
from gkn.train.recipe import Recipe

NO_STEP = 1e-6
"""Share of the mean step below which a pair counts as none: (j, j), which stands for the pair before the first state."""


@dataclass(frozen=True, eq=False)
class Unroll:
    """Replaces the first state of each pair of a batch, given a prediction of it.

    target   what the network predicts, as in `Stepping`
    step     column of tau among the inputs, with its mean and standard deviation
    std      (o,) standard deviation of the columns of the latest state, which are the first inputs
    unit     (o,) unit of the outputs of a batch
    held     (o,) bool: the values at the boundary are set again after a step, so nothing is wrong with them
    history  number of states among the inputs, the latest first
    """

    target: str
    step: tuple[int, float, float]
    std: Tensor
    unit: Tensor
    held: Tensor
    history: int = 1

    @staticmethod
    def of(dataset: Dataset, inputs: Normalizer, unit: Tensor) -> Unroll:
        """Return the change for batches of a dataset of pairs."""
        assert dataset.stepping is not None
        count, names = len(dataset.outputs), dataset.inputs
        states = {*names[: count * dataset.stepping.history]}
        smoothed = [name for name, _ in dataset.smoothing if name in states]
        if smoothed:
            raise ValueError(
                f"Recipe(unroll=..., noise=...): {smoothed[0]} is also given smoothed; leave that out: smoothing={{}}"
            )
        column = names.index(STEP)
        step = column, float(inputs.mean[column]), float(inputs.std[column])
        held = torch.tensor([name in (dataset.stepping.held or ()) for name in names[:count]])
        return Unroll(dataset.stepping.target, step, inputs.std[:count], unit, held, dataset.stepping.history)

    def __call__(self, batch: Batch, lead: Batch, found: Tensor) -> Batch:
        """Return the batch with first states that are off by as much as `found`, the answer to the pairs before, is."""
        error = self._in_state(found * lead.std - lead.deviation, lead)
        column, mean, std = self.step
        error = torch.where((lead.a[:, column : column + 1] * std + mean).abs() > NO_STEP * abs(mean), error, 0.0)
        return self._off(batch, self._free(batch, error))

    def noisy(self, batch: Batch, recipe: Recipe, draws: Sequence[torch.Generator]) -> Batch:
        """Return the batch with noise on its first states, earlier ones included. `draws`: a generator for each graph."""
        if not recipe.noise:
            return batch
        count, many = len(self.std), len(self.std) * self.history
        drawn = torch.cat([torch.randn(size, many, generator=rng) for size, rng in zip(batch.sizes, draws, strict=True)])
        noise = self._free(batch, recipe.noise * drawn.to(batch.a))  # inputs have the standard deviation 1
        a = batch.a.clone()
        a[:, count:many] += noise[:, count:]
        return self._off(replace(batch, a=a), noise[:, :count] * (self.std / self.unit).to(noise))

    def _off(self, batch: Batch, error: Tensor) -> Batch:
        """Return the batch with its latest states off by an error, in the unit of the outputs. What is to be reached stays."""
        a = batch.a.clone()
        a[:, : error.shape[1]] += error * (self.unit / self.std).to(error)
        if self.target == "value":
            return replace(batch, a=a, lead=None)
        change = self._in_target(error, batch)
        counted, profile = batch.counted + change, batch.profile + change
        return replace(batch, a=a, deviation=batch.deviation - change, counted=counted, profile=profile, lead=None)

    def _free(self, batch: Batch, error: Tensor) -> Tensor:
        """Return an error of one or several states, (nodes, states * o), as 0 where values are held."""
        if batch.edge is None:
            return error
        held = self.held.repeat(error.shape[1] // len(self.held)).to(error.device)
        return torch.where(batch.edge[:, None] & held, 0.0, error)

    def _in_state(self, error: Tensor, batch: Batch) -> Tensor:
        return error * self._tau(batch) if self.target == "quotient" else error

    def _in_target(self, error: Tensor, batch: Batch) -> Tensor:
        return error / self._tau(batch) if self.target == "quotient" else error

    def _tau(self, batch: Batch) -> Tensor:
        column, mean, std = self.step
        return batch.a[:, column : column + 1] * std + mean
