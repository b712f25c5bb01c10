"""Pairs: the states of trajectories at two times as samples, from which an operator learns to step. Nothing is copied."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gkn.data.groups import with_suffix
from gkn.data.source import Derived, Source
from gkn.data.stepping import STEP, TIME, Stepping, earlier
from gkn.geometry.domain import Domain
from gkn.system.files import digest

if TYPE_CHECKING:
    from gkn.data.dataset import Dataset

EQUAL = 1e-6
"""Relative difference by which steps between recorded times may differ and still count as equal."""


class Pairs(Derived):
    """Sample p is a step of trajectory `steps[p][0]` from frame `steps[p][1]` to frame `steps[p][2]`.

    Inputs are the states at the first frame and, with a history, before it; static fields and parameters; t and tau. Outputs
    are the targets of the stepping.

    states   names of the fields that are learned to step
    """

    def __init__(
        self, source: Source, states: Sequence[str], stepping: Stepping, steps: Sequence[tuple[int, int, int]]
    ) -> None:
        super().__init__(source)
        taken = [name for name in (TIME, STEP) if name in source.names]
        if taken:
            raise ValueError(f"Dataset.pairs: a field is called {taken[0]!r}, as the {_WORDS[taken[0]]} is; rename it")
        self.states, self.stepping, self.steps = tuple(states), stepping, [*steps]
        self.n, self.evolving = len(self.steps), ()
        self.targets, more = with_suffix(self.states, source.groups, stepping.suffix)
        self._states = {earlier(name, back): (name, back) for back in range(stepping.history) for name in self.states}
        static = [name for name in source.names if name not in source.evolving]
        self.parameters = (*source.parameters, TIME, STEP)
        self.names = (*self._states, *static, TIME, STEP, *self.targets)
        self.groups = {name: parts for name, parts in source.groups.items() if {*parts} <= {*self.names}}
        self.groups |= more

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the states that are inputs, the latest first."""
        return tuple(self._states)

    @property
    def _spec(self) -> Stepping:
        assert self.stepping is not None
        return self.stepping

    def over(self, source: Source) -> Source:
        return Pairs(source, self.states, self._spec, self.steps)

    def domain(self, i: int) -> Domain:
        return self.source.domain(self.steps[i][0])

    def parameter(self, name: str, i: int) -> float:
        trajectory, first, last = self.steps[i]
        if name not in (TIME, STEP):
            return self.source.parameter(name, trajectory)
        times = self.source.times(trajectory)
        return float(times[first]) if name == TIME else float(times[last] - times[first])

    def read(self, name: str, i: int) -> Tensor:
        trajectory, first, _ = self.steps[i]
        if name in (TIME, STEP):
            return torch.tensor(self.parameter(name, i), dtype=torch.float64).expand(len(self.source.domain(trajectory)))
        if name in self.targets:
            return self._target(self.targets[name], i)
        if name in self._states:
            state, back = self._states[name]
            return self.source.frames(state, trajectory, [first - back])[0]
        return self.source.read(name, trajectory)

    def read_all(self, name: str, indices: Sequence[int]) -> Tensor:
        """Read pairs of the same trajectory together: there are many, and each has few numbers."""
        if name not in (*self._states, *self.targets):
            return super().read_all(name, indices)
        parts = []
        for trajectory, run in groupby(indices, lambda i: self.steps[i][0]):
            pairs = [*run]
            firsts, lasts = ([self.steps[i][end] for i in pairs] for end in (1, 2))
            if name in self._states:
                state, back = self._states[name]
                parts.append(self.source.frames(state, trajectory, [first - back for first in firsts]))
                continue
            ends = self.source.frames(self.targets[name], trajectory, lasts)
            if self._spec.target != "value":
                starts = self.source.frames(self.targets[name], trajectory, firsts)
                scales = torch.tensor([self._scale(i) for i in pairs], dtype=torch.float64)
                ends = (ends.double() - starts.double()) / scales[:, None]
            parts.append(ends)
        return torch.cat(parts)

    def _target(self, state: str, i: int) -> Tensor:
        trajectory, first, last = self.steps[i]
        if self._spec.target == "value":
            return self.source.frames(state, trajectory, [last])[0]
        start, end = self.source.frames(state, trajectory, [first, last]).double()
        change: Tensor = (end - start) / self._scale(i)
        return change

    def _scale(self, i: int) -> float:
        """Return what the target is multiplied by to be a change of the state; 1 for a pair that is no step."""
        return (self.parameter(STEP, i) or 1.0) if self._spec.target == "quotient" else 1.0

    def reference(self, i: int) -> Mapping[str, Tensor] | None:
        """Return the state in units of the target, to which the target is added."""
        if self._spec.target == "value":
            return None
        trajectory, first, _ = self.steps[i]
        return {
            name: self.source.frames(state, trajectory, [first])[0].double() / self._scale(i)
            for name, state in self.targets.items()
        }

    def leads(self) -> Source:
        """Return the pairs before these: of the same length if the trajectory has such a one, else one recorded time.

        A pair that begins with the first state has none before it; (j, j) stands for it, with tau = 0.
        """
        found = []
        for trajectory, first, last in self.steps:
            start = first - (last - first)
            start = start if start >= self._spec.history - 1 else first - 1
            found.append((trajectory, start if start >= self._spec.history - 1 else first, first))
        return Pairs(self.source, self.states, self._spec, found)

    def number(self, i: int) -> int:
        return self.source.number(self.steps[i][0])

    def file(self, i: int) -> str:
        return self.source.file(self.steps[i][0])

    def part(self, i: int) -> str:
        _, first, last = self.steps[i]
        return f"frames {first} to {last}"

    def identity(self) -> str:
        return digest([self.source.identity(), self._spec.json(), [*self.states], [[*step] for step in self.steps]])


_WORDS = {TIME: "time of a pair", STEP: "time between the states of a pair"}


class Map(Derived):
    """The states of trajectories at two of their times: a map from `u_start` to `u_end`, without t and tau.

    first, last   numbers of the two frames; negative ones count from the end
    """

    def __init__(self, source: Source, states: Sequence[str], first: int, last: int) -> None:
        super().__init__(source)
        self.states, self.first, self.last, self.evolving = tuple(states), first, last, ()
        self.starts, more = with_suffix(self.states, source.groups, "start")
        self.ends, others = with_suffix(self.states, source.groups, "end")
        static = [name for name in source.names if name not in source.evolving]
        self.names = (*self.starts, *static, *self.ends)
        self.groups = {name: parts for name, parts in source.groups.items() if {*parts} <= {*self.names}} | more | others

    def over(self, source: Source) -> Source:
        return Map(source, self.states, self.first, self.last)

    def read(self, name: str, i: int) -> Tensor:
        for names, frame in ((self.starts, self.first), (self.ends, self.last)):
            if name in names:
                return self.source.frames(names[name], i, [frame])[0]
        return self.source.read(name, i)

    def identity(self) -> str:
        return digest([self.source.identity(), [*self.states], self.first, self.last])


def steps_of(times: Sequence[Tensor], stepping: Stepping) -> list[tuple[int, int, int]]:
    """Return the pairs (trajectory, first frame, last frame) that a stepping asks for, given the times of each trajectory."""
    if stepping.history > 1:
        _check_equal(times, stepping.history)
    longest = stepping.longest
    if longest is None:
        longest = max(float(each[-1] - each[0]) for each in times) / 2
    found = []
    for number, each in enumerate(times):
        at = each.tolist()
        for first in range(stepping.history - 1, len(at) - 1):
            ends = range(first + 1, len(at)) if stepping.pairs == "all" else [first + 1]
            limit = longest * (1 + EQUAL) if stepping.pairs == "all" else float("inf")
            found += [(number, first, last) for last in ends if at[last] - at[first] <= limit]
    if not found:
        apart = f"at most {longest:.4g} apart " if stepping.pairs == "all" else ""
        larger = ", a larger longest, or pairs='one'" if stepping.pairs == "all" else ""
        raise ValueError(
            f"Dataset.pairs: no pair of times {apart}with {stepping.history} states up to the first of them; use a smaller "
            f"history{larger}"
        )
    return found


def _check_equal(times: Sequence[Tensor], history: int) -> None:
    """Raise an error unless all steps between recorded times are equal: states of a history have no times of their own."""
    usual = float(times[0][1] - times[0][0])
    for number, each in enumerate(times):
        wrong = ((each.diff() - usual).abs() > EQUAL * usual).nonzero()
        if len(wrong):
            frame = int(wrong[0, 0])
            raise ValueError(
                f"Stepping(history={history}): the recorded times must be equally far apart, but trajectory {number} has "
                f"{float(each[frame]):.6g} and {float(each[frame + 1]):.6g} where {usual:.6g} is usual; is a frame missing?"
            )


def held_fields(dataset: Dataset) -> tuple[str, ...]:
    """Return the outputs whose values at the boundary never change in any trajectory. A rollout keeps them there."""
    names = [*dataset.outputs]
    for i in range(len(dataset)):
        edge = dataset.domain_of(i).boundary
        if not names or not edge.any():
            return ()
        for name in [*names]:
            values = dataset.value(name, i)
            least = 1e-9 * float(values.abs().max())
            if bool(((values[:, edge] - values[:1, edge]).abs() > least).any()):
                names.remove(name)
    return tuple(names)
