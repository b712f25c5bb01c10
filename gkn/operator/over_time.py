"""Evaluation of rollouts: errors over time, beside those of trivial forecasts."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

from gkn.data.dataset import Dataset
from gkn.data.sample import Trajectory
from gkn.operator.evaluate import Errors
from gkn.operator.operator import Operator
from gkn.operator.rollout import Law, roll_out

Forecast: TypeAlias = Callable[[Trajectory], Tensor]
"""A function that answers with the states (T, K, o) of a trajectory after the first few; T may be less if it stops."""


def rollout_errors(
    operator: Operator,
    dataset: Dataset,
    *,
    step: float | None = None,
    train: Dataset | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Errors:
    """Return the relative errors of rollouts from the first states of trajectories, over all times that follow.

    The error of a trajectory is the norm of the error over domain and times, relative to that of the states; `over_time` has
    the errors at each time. A rollout that stopped has an infinite error.

    step    the longest step; by default that of training
    train   the training trajectories: then persistence and the nearest of them are evaluated as well
    """
    law = Law.of(operator)
    dataset = dataset.using(law.static, law.states)
    history = law.stepping.history

    def answer(trajectory: Trajectory) -> Tensor:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that it left the range shows in the errors
            return roll_out(operator, trajectory, None, step).stack()

    found = forecast_errors(answer, dataset, history, progress)
    trivial: dict[str, Errors] = {}
    if train is not None:
        trivial["persistence: the initial state"] = forecast_errors(Persistence(history), dataset, history)
        if len(train):
            nearest = Nearest(train.using(law.static, law.states), history)
            trivial["nearest training trajectory"] = forecast_errors(nearest, dataset, history)
    return Errors(found.each, found.by_field, trivial, over_time=found.over_time, times=found.times)


def forecast_errors(
    answer: Forecast, dataset: Dataset, history: int, progress: Callable[[int, int], None] | None = None
) -> Errors:
    """Return the errors of forecasts of all trajectories of a dataset. The first `history` states are given."""
    whole, at_times, times = [], [], []
    fields = dataset.output_fields
    for i in range(len(dataset)):
        trajectory = dataset.trajectory(i)
        truth = trajectory.u[history:].double()
        found = answer(trajectory).double()
        full = torch.full_like(truth, torch.inf)
        full[: len(found)] = found
        w = trajectory.domain.weights[:, None]
        errors, sizes = (
            torch.stack([(w * x[..., a:b].square()).sum((1, 2)) for a, b in fields.values()], 1) for x in (full - truth, truth)
        )
        whole.append((errors.sum(0) / sizes.sum(0)).sqrt())
        at_times.append((errors / sizes).sqrt())
        times.append(trajectory.times[history:])
        if progress is not None:
            progress(i + 1, len(dataset))
    errors = torch.stack(whole)
    shared = all(len(each) == len(times[0]) and torch.equal(each, times[0]) for each in times)
    curves = {name: torch.stack([each[:, k] for each in at_times]) for k, name in enumerate(fields)} if shared else {}
    by_field = {name: errors[:, k] for k, name in enumerate(fields)}
    return Errors(errors.mean(1), by_field, over_time=curves, times=tuple(times[0].tolist()) if shared else ())


class Persistence:
    """The forecast that nothing changes."""

    def __init__(self, history: int) -> None:
        self.history = history

    def __call__(self, trajectory: Trajectory) -> Tensor:
        last = trajectory.u[self.history - 1]
        return last.expand(len(trajectory.times) - self.history, *last.shape)


class Nearest:
    """The states of the training trajectory that begins most alike, at the nearest points and times."""

    def __init__(self, train: Dataset, history: int) -> None:
        self.train, self.history = [train.trajectory(i) for i in range(len(train))], history

    def __call__(self, trajectory: Trajectory) -> Tensor:
        given = self._start(trajectory, trajectory)
        distances = [float((self._start(each, trajectory) - given).square().mean()) for each in self.train]
        nearest = self.train[min(range(len(distances)), key=distances.__getitem__)]
        place = _nearest_points(nearest, trajectory)
        since = trajectory.times[self.history :] - trajectory.times[self.history - 1]
        known = nearest.times - nearest.times[self.history - 1]
        frames = (known[None] - since[:, None]).abs().argmin(1)
        return nearest.u[frames][:, place]

    def _start(self, trajectory: Trajectory, at: Trajectory) -> Tensor:
        """Return the states that a forecast begins with, and static fields, at the points of another trajectory."""
        place = _nearest_points(trajectory, at)
        states = trajectory.u[: self.history, place].double()
        return torch.cat([states.flatten(), trajectory.a[place].double().flatten()])


def _nearest_points(trajectory: Trajectory, at: Trajectory) -> Tensor:
    """Return the number of the nearest point of a trajectory's domain for each point of another one's."""
    if trajectory.domain is at.domain or trajectory.domain.same_as(at.domain):
        return torch.arange(len(at.domain))
    from scipy.spatial import cKDTree

    return torch.from_numpy(cKDTree(trajectory.domain.points.numpy()).query(at.domain.points.numpy())[1]).long()
