"""Trajectories in datasets: times, frames, storage, pairs of states, and what is refused."""

import json

import pytest
import torch

from gkn import Dataset, Grid, Mesh
from gkn.data.pairs import held_fields
from gkn.data.stepping import Stepping
from gkn.geometry.frame import Frame


def moving(n=3, T=5, K=8, **more):
    """States u = (trajectory + 1) (frame + 1) x on a periodic grid, at times 0, 0.1, 0.3, 0.6, ...: not equally far apart."""
    grid = Grid((K,), periodic=True)
    times = torch.tensor([0.1 * k * (k + 1) / 2 for k in range(T)], dtype=torch.float64)
    scale = (torch.arange(n)[:, None] + 1.0) * (torch.arange(T) + 1.0)
    u = scale[..., None].double() * grid.points[:, 0]
    return Dataset(grid, u=u, times=times, a=torch.rand(n, K, dtype=torch.float64), k=[1.0, 2.0, 3.0][:n], **more)


def test_a_trajectory_has_times_states_and_static_fields():
    data = moving()
    assert data.in_time
    assert repr(data) == "Dataset(3 trajectories, u over time, given a, k, on a grid of 8)"
    one = data.trajectory(1)
    assert one.u.shape == (5, 8, 1)
    assert one.a.shape == (8, 2)
    assert one.times.tolist() == pytest.approx([0, 0.1, 0.3, 0.6, 1.0])
    assert torch.equal(one.u[2, :, 0], 6 * data.domain.points[:, 0])
    assert torch.equal(data.every(2).trajectory(1).u, one.u[:, ::2])
    with pytest.raises(ValueError, match=r"these samples are trajectories: dataset\.trajectory\(i\) is one"):
        data[0]
    with pytest.raises(ValueError, match="has no times"):
        Dataset(Grid(4), u=torch.rand(2, 16), a=torch.rand(2, 16)).trajectory(0)


@pytest.mark.parametrize("pairs", ["one", "all"])
@pytest.mark.parametrize("target", ["value", "difference", "quotient"])
def test_pairs_are_the_states_at_t_and_t_plus_tau(target, pairs):
    data = moving()
    view = data.pairs(Stepping(target=target, pairs=pairs, longest=0.55 if pairs == "all" else None))
    x, times = data.domain.points[:, 0], data.times(0)
    steps = [(j, k) for j in range(5) for k in range(j + 1, 5) if pairs == "all" or k == j + 1]
    steps = [(j, k) for j, k in steps if pairs == "one" or times[k] - times[j] <= 0.55]
    assert len(view) == 3 * len(steps)
    assert view.outputs == ({"value": "u_next", "difference": "u_change", "quotient": "u_rate"}[target],)
    assert view.inputs == ("u", "a", "k", "t", "tau")
    for p in range(len(view)):
        i, (j, k) = view.number(p), steps[p % len(steps)]
        t, tau = view.parameter("t", p), view.parameter("tau", p)
        assert (t, tau) == pytest.approx((float(times[j]), float(times[k] - times[j])))
        sample = view[p]
        assert torch.equal(sample.a[:, 0], (i + 1) * (j + 1) * x)
        assert torch.equal(sample.a[:, 2], torch.full_like(x, i + 1.0))
        change = (i + 1) * (k - j) * x
        wanted = {"value": (i + 1) * (k + 1) * x, "difference": change, "quotient": change / tau}[target]
        assert torch.allclose(sample.u[:, 0], wanted, rtol=1e-13, atol=0)
        state = view.reference(p)
        reached = sample.u if state is None else (sample.u + state) * (tau if target == "quotient" else 1)
        assert torch.allclose(reached[:, 0], (i + 1) * (k + 1) * x, rtol=1e-13, atol=1e-15)
    assert "frames 0 to 1" in view.label(0)


@pytest.mark.parametrize("target", ["value", "difference", "quotient"])
def test_pairs_that_are_read_together_are_the_same(target, monkeypatch):
    monkeypatch.setattr("gkn.data.dataset.BLOCK", 7)  # the last block is smaller, and some have parts of two trajectories
    view = moving().pairs(Stepping(target=target, pairs="all")).take([*range(17, -1, -1)])
    seen = []
    for which, fields in view.blocks(view.names):
        seen += [*which]
        for name, values in zip(view.names, fields, strict=True):
            assert torch.equal(values, torch.stack([view.value(name, i) for i in which])), name
    assert seen == [*range(len(view))]


def test_few_samples_are_read_together_if_they_are_large(monkeypatch):
    monkeypatch.setattr("gkn.data.dataset.NUMBERS", 50)
    data = Dataset(Grid((4, 3)), a=torch.rand(9, 12), u=torch.rand(9, 12))
    assert [len(which) for which, _ in data.blocks(["a"])] == [4, 4, 1]
    assert [len(which) for which, _ in data.blocks(["a", "u"])] == [2, 2, 2, 2, 1]
    monkeypatch.setattr("gkn.data.dataset.NUMBERS", 5)
    assert [len(which) for which, _ in data.blocks(["a"])] == [1] * 9
    assert list(data.take(0).blocks(["a"])) == []


def test_a_history_gives_earlier_states_and_needs_equal_steps():
    grid = Grid((4,), periodic=True)
    u = torch.arange(6).double()[None, :, None].expand(2, 6, 4)
    data = Dataset(grid, u=u, times=torch.arange(6).double() / 2)
    view = data.pairs(Stepping(history=3))
    assert view.inputs == ("u", "u[-1]", "u[-2]", "t", "tau")
    assert len(view) == 2 * 3
    assert view[0].a[0, :3].tolist() == [2, 1, 0]
    with pytest.raises(
        ValueError, match=r"history=2\): the recorded times must be equally far apart, but trajectory 0 has 0\.1"
    ):
        moving().pairs(Stepping(history=2))
    with pytest.raises(ValueError, match="no pair of times with 9 states"):
        data.pairs(Stepping(history=9))


def test_leads_end_where_pairs_begin():
    data = moving()
    view = data.pairs(Stepping(pairs="all", longest=5.0))
    leads = view.leads()
    assert len(leads) == len(view)
    for p in range(len(view)):
        assert leads.number(p) == view.number(p)
        start, tau = leads.parameter("t", p), leads.parameter("tau", p)
        assert start + tau == pytest.approx(view.parameter("t", p))
        assert (tau == 0) == (view.parameter("t", p) == 0)
    framed = view.framed(Frame((1.0,), 2.0))
    assert framed.leads().frame == framed.frame


def test_between_is_the_map_from_one_time_to_another():
    data = moving()
    view = data.between(0, -1)
    assert (view.inputs, view.outputs, len(view)) == (("u_start", "a", "k"), ("u_end",), 3)
    assert torch.equal(view[2].u[:, 0], data.value("u", 2)[-1])
    assert torch.equal(view[2].a[:, 0], data.value("u", 2)[0])
    with pytest.raises(ValueError, match=r"between\(0, 5\): trajectory 0 has the times 0 to 4"):
        data.between(0, 5)


def test_a_window_has_some_of_the_times():
    data = moving()
    part = data.window(1, 4)
    assert torch.equal(part.times(0), data.times(0)[1:4])
    assert torch.equal(part.trajectory(2).u, data.trajectory(2).u[1:4])
    assert torch.equal(part.pairs()[0].a[:, 0], data.value("u", 0)[1])
    with pytest.raises(ValueError, match="needed two"):
        data.window(4)


def vectors():
    meshes = [Mesh.square(0.4), Mesh.square(0.3)]
    rng = torch.Generator().manual_seed(0)
    v = [torch.randn(T, len(mesh), 2, dtype=torch.float64, generator=rng) for mesh, T in zip(meshes, (3, 4), strict=True)]
    p = [torch.randn(T, len(mesh), dtype=torch.float64, generator=rng) for mesh, T in zip(meshes, (3, 4), strict=True)]
    return Dataset(meshes, v=v, p=p, outputs=["v", "p"], times=[[0, 1, 2.5], [0, 0.5, 1, 4]], k=[0.1, 0.2])


@pytest.mark.parametrize("make", [moving, vectors])
def test_storage_returns_the_same_bits(make, tmp_path):
    data = make()
    data.save(tmp_path / "d")
    there = Dataset.open(tmp_path / "d")
    assert there.in_time
    assert there.outputs == data.outputs
    assert there.groups == data.groups
    for i in range(len(data)):
        ours, theirs = data.trajectory(i), there.trajectory(i)
        assert torch.equal(ours.u, theirs.u)
        assert torch.equal(ours.a, theirs.a)
        assert torch.equal(ours.times, theirs.times)
    ours, theirs = data.pairs(Stepping(pairs="all")), there.pairs(Stepping(pairs="all"))
    assert all(torch.equal(a.u, b.u) and torch.equal(a.a, b.a) for a, b in zip(ours, theirs, strict=True))
    assert "evolving" in json.loads((tmp_path / "d" / "dataset.json").read_text())


def test_steady_datasets_keep_their_hash(tmp_path):
    Dataset(Grid(4), u=torch.ones(2, 16), a=torch.ones(2, 16)).save(tmp_path / "d")
    assert "evolving" not in json.loads((tmp_path / "d" / "dataset.json").read_text())


def test_vectors_stay_vectors():
    view = vectors().pairs()
    assert view.outputs == ("v_rate_x", "v_rate_y", "p_rate")
    assert view.output_fields == {"v_rate": (0, 2), "p_rate": (2, 3)}


@pytest.mark.parametrize(
    ("times", "message"),
    [
        ([0, 1, 1, 2, 3], r"times of sample 0 do not increase: 1 after 1 \(frame 2\)"),
        ([0, 1, float("nan"), 2, 3], "must be finite"),
        ([0, 1, 2], r"field 'u' of sample 0 has shape \(5, 8\); needed \(3, 8\), its times and points"),
        ([0.0], "at least two"),
        ([[0, 1, 2, 3, 4]] * 2, "times of 2 samples for 3"),
        (None, "axes; needed"),
    ],
)
def test_bad_times_are_refused(times, message):
    u = torch.zeros(3, 5, 8, 1, 1) if times is None else torch.zeros(3, 5, 8)
    with pytest.raises(ValueError, match=message):
        Dataset(Grid((8,), periodic=True), u=u, times=times or [0, 1, 2, 3, 4])


def test_all_outputs_evolve_and_no_input():
    data = moving()
    with pytest.raises(ValueError, match="u is an input, but a function of time"):
        data.using(["u"], ["a"])
    with pytest.raises(ValueError, match="a is an output, but no function of time"):
        data.using([], ["u", "a"])
    with pytest.raises(ValueError, match="a field is called 't'"):
        Dataset(Grid((8,), periodic=True), u=torch.rand(1, 3, 8), times=[0, 1, 2], t=[1.0]).pairs()


def test_fields_that_never_change_at_the_boundary_are_held():
    grid = Grid(5)
    u, v = torch.rand(2, 2, 3, 25, dtype=torch.float64)
    u[..., grid.boundary] = 2.0
    data = Dataset(grid, u=u, v=v, outputs=["u", "v"], times=[0, 1, 2])
    assert held_fields(data) == ("u",)
    assert held_fields(moving()) == ()


@pytest.mark.parametrize(
    "wrong", [{"target": "rate"}, {"pairs": "two"}, {"longest": 1.0}, {"pairs": "all", "longest": -1.0}, {"history": 0}]
)
def test_steppings_that_make_no_sense_are_refused(wrong):
    with pytest.raises(ValueError, match=r"Stepping\("):
        Stepping(**wrong)
    assert Stepping.from_json(Stepping(pairs="all", held=("u",)).json()) == Stepping(pairs="all", held=("u",))
