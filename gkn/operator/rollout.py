"""Rollouts: an operator that steps, applied to its own answers. Only the states that the next step needs are kept."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gkn.data.memory import check_times
from gkn.data.pairs import EQUAL
from gkn.data.ranges import SLACK
from gkn.data.sample import Sample, Trajectory
from gkn.data.stepping import STEP, TIME, Stepping, earlier
from gkn.geometry.domain import Domain
from gkn.operator.nodes import evaluating, moments_for, periods_for
from gkn.operator.operator import Operator
from gkn.operator.ways import Exact, How
from gkn.system.checks import as_real, check_finite

CLOSE = 1e-6
"""Relative difference by which a step may be longer than those of training and still count as one of them."""


@dataclass(frozen=True)
class Law:
    """Names and numbers of an operator that steps.

    stepping   how it was trained
    states     names of the fields that step
    static     names of the fields and parameters that do not change
    steps      smallest and largest step in training; (0, inf) if they are not known
    """

    stepping: Stepping
    states: tuple[str, ...]
    static: tuple[str, ...]
    steps: tuple[float, float]

    @staticmethod
    def of(operator: Operator) -> Law:
        """Return the law of an operator; raise an error if it does not step."""
        known = operator.features
        if known is None or known.stepping is None:
            raise ValueError("operator.rollout: this operator was not trained on trajectories; it does not step")
        count = len(known.outputs)
        states = known.given[:count]
        static = tuple(name for name in known.given[count * known.stepping.history :] if name not in (TIME, STEP))
        found = (operator.about.get("ranges") or {}).get("inputs", {}).get(STEP, (0.0, math.inf))
        return Law(known.stepping, states, static, (float(found[0]), float(found[1])))

    def substeps(self, gap: float, limit: float | None) -> int:
        """Return in how many equal steps a gap between times is crossed.

        limit   the longest step; None: the longest of training, or with a history the only one that states of it are apart
        """
        longest = limit or self.steps[0 if self.stepping.history > 1 else 1]
        return max(1, math.ceil(gap / longest * (1 - CLOSE))) if math.isfinite(longest) and longest > 0 else 1


class Rollout:
    """The states that follow from an initial one, at given times. Iterate over (time, state (K, o)); the memory is flat.

        for time, u in operator.rollout(start, times): ...
        u = operator.rollout(start, times).stack()      (T, K, o)

    The states are those of the user's own points, in float64. Values at the boundary that never change in the training data
    are set again after each step. A state that is not finite, or too large for the network's precision, ends the rollout with
    a warning; what came before is kept. Iterating again begins again.

    end       the last states as a trajectory, from which another rollout goes on to the same bits
    stopped   why the rollout ended early; empty if it did not
    """

    def __init__(
        self, operator: Operator, start: Trajectory, times: Tensor, step: float | None = None, how: How | None = None
    ) -> None:
        self.operator, self.law = operator, Law.of(operator)
        self.start, self.times, self.step, self.how = start, times, step, how
        history, count = self.law.stepping.history, len(self.law.states)
        if len(start.times) < history or start.u.shape[-1] != count or start.a.shape[-1] != len(self.law.static):
            states, static = ", ".join(self.law.states), ", ".join(self.law.static) or "no static field"
            raise ValueError(
                f"operator.rollout: {len(start.times)} states of {start.u.shape[-1]} fields and {start.a.shape[-1]} static "
                f"fields; needed {history} states of {states}, and {static}"
            )
        check_finite(start.u[:history], "operator.rollout: the initial state")
        self._begin = self._state([*start.u[:history].double()], [*start.times[:history].tolist()])
        self.end, self.stopped = self._begin, ""

    def __iter__(self) -> Iterator[tuple[float, Tensor]]:
        self.end, self.stopped = self._begin, ""
        states, now = [*self.end.u], self.end.times.tolist()
        step, watch = _Step(self.operator, self.law, self.end, self.how), _Watch(self.operator, self.law)
        for time in self.times.tolist():
            count, begin = self.law.substeps(time - now[-1], self.step), now[-1]
            for k in range(1, count + 1):
                then = time if k == count else begin + (time - begin) * k / count
                state = step(states, now[-1], then - now[-1])
                if not step.takes(state):
                    self.stopped = f"the rollout stopped at the step to time {then:.6g}, where the state is not finite"
                    warnings.warn(f"{self.stopped}; the states before are kept", stacklevel=2)
                    return
                watch(state, then)
                states, now = [*states[1:], state], [*now[1:], then]
            self.end = self._state(states, now)
            yield time, state

    def stack(self) -> Tensor:
        """Return the states (T, K, o) at all times, or at those before the rollout stopped."""
        found = [state for _, state in self]
        return torch.stack(found) if found else self.end.u[:0]

    def _state(self, states: Sequence[Tensor], times: Sequence[float]) -> Trajectory:
        start = self.start
        return Trajectory(
            start.domain, start.a, torch.tensor([*times], dtype=torch.float64), torch.stack([*states]), start.frame
        )


class _Step:
    """The operator on one domain. Features of the domain and its graph are computed once."""

    def __init__(self, operator: Operator, law: Law, start: Trajectory, how: How | None) -> None:
        assert operator.features is not None
        self.operator, self.law, self.domain, self.static = operator, law, start.domain, start.a
        self.how = operator.usual_way(start.domain) if how is None else how
        self.edge = [i for i, name in enumerate(law.states) if name in (law.stepping.held or ())]
        self.boundary = start.domain.boundary
        self.held = start.u[-1].double()[self.boundary][:, self.edge]
        known = operator.features
        smoothed = {name for name, _ in known.smoothed}
        names = [earlier(name, back) for back in range(law.stepping.history) for name in law.states]
        self.columns = None if smoothed & {*names} else [known.inputs.index(name) for name in names]
        self.sample: Sample | None = None
        self.network: Callable[[Tensor], Tensor] | None = None
        std = operator.inputs.std.reshape(-1, operator.inputs.fields).amin(0)
        least = min([1.0, *(float(std[known.inputs.index(name)]) for name in law.states if name in known.inputs)])
        self.largest = torch.finfo(operator.model.like.dtype).max * least / 2

    def takes(self, state: Tensor) -> bool:
        """True if a state is finite, also in the unit and the precision of the network."""
        return bool((state.abs() <= self.largest).all())

    def __call__(self, states: Sequence[Tensor], time: float, tau: float) -> Tensor:
        """Return the state after a step, given the last states, the latest last."""
        answer = self._answer(self._inputs(states, time, tau)).cpu().double()
        kind, now = self.law.stepping.target, states[-1]
        state = answer if kind == "value" else now + (answer if kind == "difference" else tau * answer)
        if self.edge:
            state[self.boundary.nonzero(), torch.tensor(self.edge)] = self.held
        return state

    def _inputs(self, states: Sequence[Tensor], time: float, tau: float) -> Sample:
        known = self.operator.features
        assert known is not None
        numbers = {TIME: time, STEP: tau}
        if self.sample is None or self.columns is None:
            given: dict[str, Any] = dict(zip(self.law.static, self.static.T, strict=True))
            for back, state in enumerate(reversed(states)):
                given |= {earlier(name, back): state[:, j] for j, name in enumerate(self.law.states)}
            given |= {name: value for name, value in numbers.items() if name in known.given}
            self.sample = known.sample(self.domain, given)
            return self.sample
        a = self.sample.a.double().clone()
        a[:, self.columns] = torch.cat([*reversed(states)], 1)
        for name, value in numbers.items():
            if name in known.inputs:
                a[:, known.inputs.index(name)] = value
        return Sample(self.sample.domain, a, self.sample.u, self.sample.frame)

    def _answer(self, sample: Sample) -> Tensor:
        if self.how != Exact():
            return self.operator(sample, how=self.how, check=False)
        if self.network is None:
            self.network = network_on(self.operator, sample)
        return self.network(sample.a)


def network_on(operator: Operator, sample: Sample) -> Callable[[Tensor], Tensor]:
    """Return the operator on the nodes of a sample as a function of its fields (K, c). The graph is made once."""
    model, domain, device = operator.model, sample.domain, operator.model.like.device
    x, periods = sample.x.to(device), periods_for(operator.model, sample.domain)
    weights = sample.weights.to(device) if operator.weighted else None
    graph = operator.rule.wrapped(x, None, None, periods)
    moments = moments_for(model, operator.rule, domain, periods)
    graph = graph if moments is None else graph.with_moments(moments(x, None))

    def answer(a: Tensor) -> Tensor:
        encoded = operator.encoded(a, sample.x)
        with torch.no_grad(), evaluating(model):
            found = model.finish(model.states(graph, x, encoded, weights))
        wide = torch.promote_types(found.dtype, torch.float32)
        return operator.outputs.decode(found.to(wide), sample.x, domain)

    return answer


class _Watch:
    """Warns once of each field that leaves the range of the training data."""

    def __init__(self, operator: Operator, law: Law) -> None:
        self.names = law.states
        self.ranges: Mapping[str, Sequence[float]] = (operator.about.get("ranges") or {}).get("inputs", {})
        self.said: set[str] = set()

    def __call__(self, state: Tensor, time: float) -> None:
        for name, values in zip(self.names, state.T, strict=True):
            if name not in self.ranges or name in self.said:
                continue
            low, high = self.ranges[name]
            slack = SLACK * max(high - low, 1e-9 * max(abs(low), abs(high)))
            least, most = (float(x) for x in values.aminmax())
            if least < low - slack or most > high + slack:
                self.said.add(name)
                text = f"at time {time:.6g} {name} is between {least:.4g} and {most:.4g}, in training {low:.4g} and {high:.4g}"
                warnings.warn(
                    f"the rollout leaves the range of the training data: {text}; do not trust what follows", stacklevel=4
                )


def roll_out(
    operator: Operator, start: Trajectory, times: Any = None, step: float | None = None, how: How | None = None
) -> Rollout:
    """Return the rollout of an operator; see `Operator.rollout`."""
    history = Law.of(operator).stepping.history
    if not isinstance(start, Trajectory):
        raise ValueError("operator.rollout: needed a trajectory: dataset.trajectory(i), or operator.start(domain, u=...)")
    if times is None:
        times = start.times[history:]
    wanted = as_real(times, "operator.rollout: times").double().reshape(-1)
    if len(wanted):
        both = torch.cat([start.times[min(history, len(start.times)) - 1][None].double(), wanted])
        check_times(both, "operator.rollout: the time of the initial state and the times after it")
    if step is not None and not (isinstance(step, int | float) and 0 < step < math.inf):
        raise ValueError(f"operator.rollout(step={step!r}): needed a time > 0")
    rollout = Rollout(operator, start, wanted, step, how)
    _check_history(rollout)
    _warn(operator, rollout, wanted)
    return rollout


def _check_history(rollout: Rollout) -> None:
    """Raise an error unless the first states are as far apart as those of training."""
    usual, gaps = rollout.law.steps[0], rollout.end.times.diff()
    if usual > 0 and bool(((gaps - usual).abs() > EQUAL * usual).any()):
        given = ", ".join(f"{time:.6g}" for time in rollout.end.times.tolist())
        raise ValueError(
            f"operator.rollout: the first states are at the times {given}; needed states {usual:.6g} apart, as in training: is "
            "a frame missing?"
        )


def _warn(operator: Operator, rollout: Rollout, times: Tensor) -> None:
    """Warn of steps and inputs outside of the ranges of the training data."""
    law, start = rollout.law, rollout.start
    gaps = torch.cat([rollout.end.times[-1:], times]).diff().tolist()
    taus = [gap / law.substeps(gap, rollout.step) for gap in gaps]
    low, high = law.steps
    wrong = next((tau for tau in taus if not low * (1 - CLOSE) <= tau <= high * (1 + CLOSE)), None)
    said = []
    if wrong is not None:
        said.append(f"a step of {wrong:.6g}, in training steps were between {low:.6g} and {high:.6g}")
    known = operator.features
    if law.stepping.clock and known is not None and len(times):
        ends = (operator.about.get("ranges") or {}).get("inputs", {}).get(TIME)
        last = float(times[-1]) - taus[-1]
        first = float(rollout.end.times[-1])
        if ends is not None and not ends[0] - CLOSE * abs(ends[0]) <= first <= last <= ends[1] * (1 + CLOSE):
            said.append(f"steps from times up to {last:.6g}, in training between {ends[0]:.6g} and {ends[1]:.6g}")
    given: dict[str, Any] = dict(zip(law.static, start.a.T, strict=True))
    given |= dict(zip(law.states, rollout.end.u[-1].T, strict=True))
    said += operator.unusual(start.domain, given, None, start.frame)
    for text in said:
        warnings.warn(f"{text}; do not trust the answer", stacklevel=4)


def start_of(operator: Operator, domain: Domain, given: Mapping[str, Any], time: Any = 0.0) -> Trajectory:
    """Return the initial state of a rollout; see `Operator.start`."""
    law, known = Law.of(operator), operator.features
    assert known is not None
    operator.check_dim(domain)
    history = law.stepping.history
    parts: dict[str, Tensor] = {}
    for name, values in given.items():
        array = as_real(values, name)
        group = known.groups.get(name)
        columns = {name: array} if group is None else {part: array[..., j] for j, part in enumerate(group)}
        parts |= columns
    missing = [name for name in (*law.states, *law.static) if name not in parts]
    if missing:
        have = ", ".join(given) or "none"
        raise KeyError(f"the operator needs {missing[0]!r} to start from; given are: {have}")
    unknown = [name for name in parts if name not in (*law.states, *law.static)]
    if unknown:
        raise KeyError(f"operator.start: no field {unknown[0]!r}; there are {', '.join((*law.states, *law.static))}")
    count = len(domain)
    for name in law.states:
        if parts[name].ndim not in (1, 2) or parts[name].shape[-1] != count:
            shape = tuple(parts[name].shape)
            raise ValueError(f"operator.start: {name} of shape {shape}; needed ({count},) or (times, {count})")
    states = torch.stack([parts[name].double().reshape(-1, count) for name in law.states], -1)
    if len(states) < history:
        raise ValueError(f"operator.start: {len(states)} states; this operator begins with {history}, as (times, points)")
    static = [parts[name].double().expand(count) for name in law.static]
    times = as_real(time, "time").double().reshape(-1)
    if len(times) == 1 and history > 1:  # the states before are one trained step apart
        times = times + law.steps[0] * torch.arange(1 - len(states), 1, dtype=torch.float64)
    if len(times) != len(states):
        raise ValueError(f"operator.start: {len(states)} states and {len(times)} times; needed one time for each")
    a = torch.stack(static, -1) if static else states.new_zeros(count, 0)
    if len(times) > 1:
        check_times(times, "operator.start: the times")
    return Trajectory(domain, a, times, states)
