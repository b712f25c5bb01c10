"""Rollouts: exact steps give exact trajectories, cut or whole; boundary values, ranges, and states that are not finite."""

import gc
import warnings
import weakref

import numpy as np
import pytest
import torch
from torch import nn

import gkn
from gkn import Dataset, Grid, Mesh, Model, Operator, Points
from gkn.data.features import Features
from gkn.data.ranges import ranges_of_data
from gkn.data.stepping import Stepping
from gkn.operator.over_time import Persistence, forecast_errors, rollout_errors
from tests.decay import RATE, decaying


class Decay(Model):
    """The target for u' = -RATE u over a step tau, exactly; the inputs end with tau. With `grow`, u' = +10 u, explosively."""

    settings = ("target", "grow")

    def __init__(self, dim, in_channels, out_channels, target="quotient", grow=False):
        super().__init__(dim, in_channels, out_channels)
        self.target, self.grow = target, grow
        self.nothing = nn.Parameter(torch.zeros(1, dtype=torch.float64))

    def forward(self, graph, x, a, weights=None):
        u, tau = a[:, : self.out_channels], a[:, -1:]
        if self.grow:
            return u * 1e200
        change = u * torch.expm1(-RATE * tau)
        return {"value": u + change, "difference": change, "quotient": change / tau}[self.target] + 0 * self.nothing


def exact(data, stepping, held=(), **settings):
    stepping = Stepping(**{**stepping.json(), "held": tuple(held)})
    pairs = data.pairs(stepping)
    model = Decay(data.dim, len(pairs.inputs), len(pairs.outputs), stepping.target, **settings)
    return Operator(model, Points(), features=Features.of(pairs), about={"ranges": ranges_of_data([pairs])})


@pytest.mark.parametrize("pairs", ["one", "all"])
@pytest.mark.parametrize("target", ["value", "difference", "quotient"])
def test_exact_steps_give_the_exact_trajectory(target, pairs):
    data = decaying()
    operator = exact(data, Stepping(target, pairs))
    start = data.trajectory(1)
    found = operator.rollout(start).stack()
    assert torch.allclose(found, start.u[1:], rtol=1e-13, atol=0)
    errors = operator.evaluate(data)
    assert errors.mean < 1e-13
    assert errors.over_time["u"].shape == (3, 5)


@pytest.mark.filterwarnings("ignore:a step of", "ignore:steps from times")
def test_a_rollout_is_step_by_step_to_the_bit():
    """All ways through the same times give the same bits: at once, cut and resumed, or one call of the operator a step."""
    data = decaying()
    operator = exact(data, Stepping(pairs="all"))
    start, times = data.trajectory(0), torch.tensor([0.1, 0.5, 0.9, 2.0], dtype=torch.float64)
    whole = operator.rollout(start, times).stack()
    first = operator.rollout(start, times[:2])
    begin = first.stack()
    rest = operator.rollout(first.end, times[2:]).stack()
    assert torch.equal(torch.cat([begin, rest]), whole)
    for k in range(1, 5):  # every cut
        parts, state = [], start
        for some in (times[:k], times[k:]):
            rollout = operator.rollout(state, some)
            parts.append(rollout.stack())
            state = rollout.end
        assert torch.equal(torch.cat(parts), whole)
    u, now, by_hand = start.u[0], 0.0, []
    for time in times.tolist():
        count = operator.rollout(start, [9.0]).law.substeps(time - now, None)
        begin = now
        for k in range(1, count + 1):
            then = time if k == count else begin + (time - begin) * k / count
            sample = operator.sample(data.domain, u=u[:, 0], t=now, tau=then - now)
            u, now = u + (then - now) * operator(sample, check=False).double(), then
        by_hand.append(u)
    assert torch.equal(torch.stack(by_hand), whole)


def test_steps_are_no_longer_than_in_training():
    data = decaying()
    law = exact(data, Stepping(pairs="all", longest=0.5)).rollout(data.trajectory(0)).law
    assert law.steps == pytest.approx((0.25, 0.5))
    assert [law.substeps(gap, None) for gap in (0.1, 0.5, 0.51, 1.0, 1.3)] == [1, 1, 2, 2, 3]
    assert law.substeps(1.0, 0.1) == 10


def test_a_history_is_carried_along():
    """u(t + tau) = 2 u(t) - u(t - tau): a line goes on as a line, which needs both states at every step."""

    class Line(Model):
        def __init__(self, dim, in_channels, out_channels):
            super().__init__(dim, in_channels, out_channels)
            self.nothing = nn.Parameter(torch.zeros(1, dtype=torch.float64))

        def forward(self, graph, x, a, weights=None):
            return 2 * a[:, :1] - a[:, 1:2] + 0 * self.nothing

    times = torch.arange(6, dtype=torch.float64)
    slope = torch.rand(2, 9, dtype=torch.float64)
    data = Dataset(Grid(3), u=1 + slope[:, None] * times[None, :, None], times=times)
    pairs = data.pairs(Stepping("value", history=2))
    about = {"ranges": ranges_of_data([pairs])}
    operator = Operator(Line(2, 4, 1), Points(), features=Features.of(pairs), about=about)
    start = data.trajectory(0)
    assert torch.allclose(operator.rollout(start).stack(), start.u[2:], rtol=1e-14)
    first = operator.rollout(start, [2.0, 3.0])
    first.stack()
    assert torch.equal(operator.rollout(first.end, [4.0, 5.0]).stack(), operator.rollout(start).stack()[2:])
    again = operator.start(data.domain, u=start.u[:2, :, 0], time=[0.0, 1.0])
    assert torch.equal(operator.rollout(again, [2.0, 5.0]).stack(), operator.rollout(start).stack()[[0, 3]])
    with pytest.raises(ValueError, match="1 states of 1 fields"):
        operator.rollout(gkn.data.sample.Trajectory(data.domain, start.a, start.times[:1], start.u[:1]), [2.0])


def test_boundary_values_hold_at_every_step():
    grid = Grid(5)
    data = decaying(grid=grid)
    operator = exact(data, Stepping(), held=("u",))
    start = data.trajectory(0)
    for _, u in operator.rollout(start):
        assert torch.equal(u[grid.boundary], start.u[0][grid.boundary])
        assert not torch.equal(u[~grid.boundary], start.u[0][~grid.boundary])


def test_leaving_the_range_of_training_is_said_once():
    data = decaying()
    operator = exact(data, Stepping(clock=False))
    with pytest.warns(
        UserWarning, match="the rollout leaves the range of the training data: at time .* u is between"
    ) as caught:
        operator.rollout(data.trajectory(0), 0.25 * torch.arange(1, 30)).stack()
    assert len([each for each in caught if "leaves the range" in str(each.message)]) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        operator.rollout(data.trajectory(0)).stack()


@pytest.mark.parametrize(
    ("times", "message"),
    [([0.05], "a step of 0.05, in training steps were between 0.25 and 0.25"), ([9.0], "steps from times up to 8.75")],
)
def test_steps_and_times_outside_of_training_are_said(times, message):
    data = decaying()
    with pytest.warns(UserWarning, match=message):
        exact(data, Stepping()).rollout(data.trajectory(0), times)


@pytest.mark.filterwarnings("ignore:the rollout leaves")
def test_a_state_that_is_not_finite_ends_the_rollout():
    data = decaying()
    operator = exact(data, Stepping("difference", clock=False), grow=True)
    rollout = operator.rollout(data.trajectory(0))
    with pytest.warns(
        UserWarning, match="stopped at the step to time 0.5, where the state is not finite; the states before are kept"
    ):
        found = rollout.stack()
    assert len(found) == 1
    assert torch.isfinite(found).all()
    assert rollout.stopped
    errors = operator.evaluate(data)
    assert errors.mean == float("inf")
    assert errors.json()["mean"] is None


@pytest.mark.parametrize(
    ("times", "message"),
    [([0.5, 0.25], "do not increase"), ([0.0], "do not increase: 0 after 0"), ([float("nan")], "must be finite")],
)
def test_bad_times_are_refused(times, message):
    data = decaying()
    with pytest.raises(ValueError, match=message):
        exact(data, Stepping()).rollout(data.trajectory(0), times)


def test_starts_are_checked():
    data = decaying()
    operator = exact(data, Stepping())
    with pytest.raises(KeyError, match="the operator needs 'u' to start from; given are: v"):
        operator.start(data.domain, v=torch.ones(25))
    with pytest.raises(ValueError, match=r"u of shape \(24,\); needed \(25,\)"):
        operator.start(data.domain, u=torch.ones(24))
    with pytest.raises(ValueError, match="in 3 dimensions; the operator was trained in 2"):
        operator.start(Grid(3, 3), u=torch.ones(27))
    with pytest.raises(KeyError, match="no field 'k'; there are u"):
        operator.start(data.domain, u=torch.ones(25), k=torch.ones(25))
    with pytest.raises(ValueError, match="must be finite"):
        operator.rollout(operator.start(data.domain, u=torch.full((25,), float("nan"))), [0.25])
    with pytest.raises(ValueError, match="it does not step"):
        Operator(Decay(2, 1, 1), Points()).rollout(data.trajectory(0))
    found = operator.rollout(operator.start(data.domain, u=np.ones(25), time=0.0), [0.25]).stack()
    assert torch.allclose(found, torch.full_like(found, np.exp(-RATE * 0.25)), rtol=1e-13)


@pytest.mark.filterwarnings("ignore")
def test_memory_does_not_grow_with_the_number_of_times():
    """Of all states that were yielded, those are alive that the next step needs, and the one that the caller holds."""
    data = decaying(T=3)
    rollout = exact(data, Stepping(clock=False)).rollout(data.trajectory(0), 0.25 * torch.arange(1, 60))
    seen = []
    for _, u in rollout:
        seen.append(weakref.ref(u))
    assert len(seen) == 59
    del u
    gc.collect()
    assert sum(each() is not None for each in seen) <= 2


def test_a_rollout_can_be_iterated_again():
    """From its beginning, also after it was left in the middle."""
    data = decaying()
    rollout = exact(data, Stepping(pairs="all")).rollout(data.trajectory(0))
    whole = rollout.stack()
    assert torch.equal(rollout.stack(), whole)
    for time, _ in rollout:
        if time > 0.4:
            break
    assert torch.equal(rollout.stack(), whole)


def test_a_state_too_large_for_the_network_ends_the_rollout():
    """It is finite in double precision, in which states are kept, but not in the single precision of the network."""
    data = decaying()
    operator = exact(data, Stepping("difference", clock=False), grow=True)
    operator.model.float()
    rollout = operator.rollout(operator.start(data.domain, u=torch.full((25,), 1e-170, dtype=torch.float64)), [0.25, 0.5, 0.75])
    operator.model.forward = lambda graph, x, a, weights=None: 1e30 * torch.ones_like(a[:, :1])
    operator.outputs.std.mul_(1e30)
    with pytest.warns(UserWarning, match="stopped at the step to time 0.25"):
        assert len(rollout.stack()) == 0


def test_states_of_a_history_are_as_far_apart_as_in_training():
    data = decaying()
    operator = exact(data, Stepping(history=2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        operator.rollout(data.trajectory(0))
    first = data.trajectory(0)
    gap = operator.start(data.domain, u=first.u[[0, 2], :, 0], time=first.times[[0, 2]])
    with pytest.raises(ValueError, match=r"first states are at the times 0, 0.5; needed states 0.25 apart.*missing"):
        operator.rollout(gap, [0.75])


def test_errors_over_time_and_trivial_forecasts():
    data = decaying(n=6)
    train, test = data.split(4, 2)
    found = forecast_errors(Persistence(1), test, 1)
    by_hand = [1 / np.exp(-RATE * 0.25 * k) - 1 for k in range(1, 6)]
    assert found.over_time["u"].mean(0).tolist() == pytest.approx(by_hand, rel=1e-12)
    w, k = test.domain.weights, torch.arange(1, 6)
    u = test.trajectory(0).u[:, :, 0]
    whole = ((w * (u[:1] - u[k]) ** 2).sum() / (w * u[k] ** 2).sum()).sqrt()
    assert float(found.each[0]) == pytest.approx(float(whole), rel=1e-12)
    errors = rollout_errors(exact(data, Stepping()), test, train=train)
    assert {*errors.trivial} == {"persistence: the initial state", "nearest training trajectory"}
    itself = rollout_errors(exact(data, Stepping()), test, train=test)
    assert itself.trivial["nearest training trajectory"].mean == 0


def test_meshes_and_vectors_roll_out():
    meshes = [Mesh.square(0.3), Mesh.square(0.25)]
    times = 0.5 * torch.arange(4, dtype=torch.float64)
    v = [torch.exp(-RATE * times)[:, None, None] * (1 + torch.rand(1, len(m), 2, dtype=torch.float64)) for m in meshes]
    data = Dataset(meshes, v=v, outputs=["v"], times=times, c=[1.0, 2.0])
    operator = exact(data, Stepping())
    assert operator.evaluate(data).mean < 1e-13
    state = operator.rollout(data.trajectory(1)).stack()[-1]
    assert {name: x.shape for name, x in operator.named_states(state).items()} == {"v": (len(meshes[1]), 2)}
    start = operator.start(meshes[1], v=v[1][0], c=2.0)
    assert torch.equal(operator.rollout(start, times[1:]).stack()[-1], state)


def test_units_of_length_do_not_change_a_rollout():
    """The network sees points in a frame; states and times are the user's."""
    grid = Grid((6, 6), low=(100.0, 0.0), high=(300.0, 200.0))
    data = decaying(grid=grid)
    frame = gkn.geometry.frame.Frame.of([grid])
    pairs = data.pairs(Stepping(held=())).framed(frame)
    about = {"ranges": ranges_of_data([pairs])}
    operator = Operator(Decay(2, 3, 1), Points(), features=Features.of(pairs), about=about)
    assert operator.evaluate(data).mean < 1e-13


def test_saved_operators_roll_out_to_the_same_bits(tmp_path):
    data = decaying()
    operator = exact(data, Stepping(pairs="all"), held=("u",))
    operator.save(tmp_path / "o")
    there = gkn.load(tmp_path / "o")
    assert there.features.stepping == operator.features.stepping
    start = data.trajectory(0)
    assert torch.equal(there.rollout(start).stack(), operator.rollout(start).stack())
