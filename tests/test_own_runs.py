"""Runs on a user's own data: splits, early stopping, going on, fine-tuning, unfinished runs, walls, warnings, pictures."""

import json

import numpy as np
import pytest
import torch

import gkn
from gkn import Dataset, Grid, Mesh, load
from gkn.data.split import Split
from gkn.operator.checkpoint import Checkpoints
from gkn.operator.evaluate import Judge
from gkn.train.ranks import Stopped
from tests import meshes, tiny
from tests.test_any_problem import SMALL, plates
from tests.test_cli import run

QUICK = {"settings": SMALL, "epochs": 2, "device": "cpu"}


# --- splits


def test_shares_are_drawn_at_random_and_numbers_are_taken_in_order():
    data = Dataset(Grid(3), u=torch.arange(40.0)[:, None].expand(40, 9))
    train, test = data.split(0.8)
    numbers = [[part.number(i) for i in range(len(part))] for part in (train, test)]
    assert (len(train), len(test)) == (32, 8)
    assert sorted(numbers[0] + numbers[1]) == [*range(40)]
    assert numbers[1] != [*range(32, 40)]
    assert numbers == [[part.number(i) for i in range(len(part))] for part in data.split(0.8)]  # the same every time
    assert numbers[1] != [part.number(i) for part in data.split(0.8, seed=1)[1:] for i in range(len(part))]
    assert [part.number(0) for part in data.split(10, 20)] == [0, 10]
    assert [len(part) for part in data.split(0.5, 0.25, 0.25)] == [20, 10, 10]
    for wrong in ((0.8, 5), (1.2,), ()):
        with pytest.raises(ValueError, match=r"Dataset\.split"):
            data.split(*wrong)


def test_samples_of_one_group_stay_together():
    wing = [float(i // 4) for i in range(40)]
    data = Dataset(Grid(3), u=torch.rand(40, 9), wing=wing)
    for by in ("wing", wing):
        parts = data.split(0.6, 0.2, 0.2, by=by)
        groups = [{part.parameter("wing", i) for i in range(len(part))} for part in parts]
        assert [len(group) for group in groups] == [6, 2, 2]
        assert not groups[0] & groups[1] | groups[1] & groups[2] | groups[0] & groups[2]
    split = Split.draw(data, (0.6, 0.2, 0.2), "wing")
    assert {wing[i] for i in split.train}.isdisjoint(wing[i] for i in split.test)
    assert Split.from_json(json.loads(json.dumps(split.json()))) == split
    with pytest.raises(ValueError, match="3 labels for 40 samples"):
        data.split(0.5, by=[1, 2, 3])


# --- stopping early, going on, fine-tuning, unfinished runs


def fake_errors(values, monkeypatch):
    errors = iter(values)
    monkeypatch.setattr(Judge, "errors", lambda self, part, tick: torch.full((len(part), 1), next(errors), dtype=torch.float64))


def epoch_of(operator):
    return operator.about["metrics"]["epoch"]


def stop_in_epoch(number):
    def stop(now):
        if now.epoch == number:
            raise Stopped(15)

    return stop


def test_patience(tmp_path, monkeypatch):
    fake_errors([0.5, 0.2, 0.4, 0.3, 0.25], monkeypatch)
    best = tiny.run(tmp_path / "run", patience=2, warn=print)
    assert epoch_of(load(tmp_path / "run")) == 8  # evaluated every 2 epochs; the best at 4, then two without a smaller one
    assert epoch_of(best) == epoch_of(load(tmp_path / "run", best=True)) == 4
    fake_errors([], monkeypatch)
    tiny.run(tmp_path / "run", patience=2, warn=print)
    assert epoch_of(load(tmp_path / "run")) == 8  # read, not trained again
    fake_errors([0.3, 0.3, 0.3], monkeypatch)
    tiny.run(tmp_path / "run", patience=3, epochs=20, warn=print)  # a longer run is patient anew
    assert epoch_of(load(tmp_path / "run")) == 14
    assert epoch_of(load(tmp_path / "run", best=True)) == 4


def test_fit_returns_the_best_network_by_the_validation_samples(tmp_path, monkeypatch):
    """Without a folder, with one, and after an interruption: always the network that was evaluated as the best."""
    sample, chosen = tiny.data()[1][0], []
    for folder in (None, tmp_path / "whole", tmp_path / "cut"):
        if folder == tmp_path / "cut":
            fake_errors([0.5, 0.2, 0.4], monkeypatch)
            with pytest.raises(Stopped):
                tiny.run(folder, report=stop_in_epoch(7), warn=print)
            fake_errors([0.3, 0.25], monkeypatch)
        else:
            fake_errors([0.5, 0.2, 0.4, 0.3, 0.25], monkeypatch)
        best = tiny.run(folder, warn=print)
        assert epoch_of(best) == 4
        chosen.append(best(sample))
        if folder is not None:
            assert torch.equal(load(folder, best=True)(sample), chosen[-1])
            assert not torch.equal(load(folder)(sample), chosen[-1])
    assert torch.equal(chosen[0], chosen[1])
    assert torch.equal(chosen[0], chosen[2])


def test_the_best_of_a_continued_run_is_its_own(tmp_path, monkeypatch):
    fake_errors([0.1, 0.5], monkeypatch)
    tiny.run(tmp_path / "run", epochs=4, warn=print)
    assert epoch_of(load(tmp_path / "run", best=True)) == 2
    fake_errors([0.4, 0.05], monkeypatch)
    with pytest.raises(Stopped):
        tiny.run(tmp_path / "run", epochs=8, report=stop_in_epoch(7), warn=print)
    with pytest.raises(FileNotFoundError, match="unfinished"):
        load(tmp_path / "run")  # not the network of the shorter run
    assert "epoch 6 of 8, unfinished" in run("info", tmp_path / "run")
    fake_errors([0.05], monkeypatch)
    tiny.run(tmp_path / "run", epochs=8, warn=print)
    assert epoch_of(load(tmp_path / "run", best=True)) == 8
    assert not (tmp_path / "run/best").exists()


def test_a_finished_run_goes_on_for_more_epochs(tmp_path):
    tiny.run(tmp_path / "run", epochs=4, warn=print)
    longer = tiny.run(tmp_path / "run", epochs=7, warn=print)
    assert longer.about["metrics"]["epoch"] == 7
    log = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert [entry["epoch"] for entry in log] == [*range(1, 8)]
    assert json.loads((tmp_path / "run/run.json").read_text())["continued"] == [4]
    with pytest.raises(ValueError, match=r"holds another run: recipe\.epochs = 7 there, 5 here"):
        tiny.run(tmp_path / "run", epochs=5, warn=print)


def test_the_best_of_an_unfinished_run(tmp_path):
    with pytest.raises(Stopped):
        tiny.run(tmp_path / "run", report=stop_in_epoch(5), warn=print)
    with pytest.raises(FileNotFoundError, match=r"unfinished, at step \d+; .*best network so far"):
        load(tmp_path / "run")
    best = load(tmp_path / "run", best=True)
    assert best.about["metrics"]["epoch"] in (2, 4)
    checkpoints = Checkpoints(tmp_path / "run/checkpoints")
    newest = checkpoints.newest()[0]
    step = newest.state["best"]["step"]
    assert step < newest.step
    for name, x in best.model.state_dict().items():
        assert torch.equal(x, checkpoints.load(step).tensors[f"model/{name}"])
    whole = tiny.run(tmp_path / "run", warn=print)
    sample = tiny.data()[1][0]
    assert not torch.equal(best(sample), whole(sample))


def test_fine_tuning_keeps_frame_fields_and_normalisers(tmp_path):
    train, other = plates(12), plates(12, seed=5)
    start = gkn.fit(train, **QUICK)
    before = {name: x.clone() for name, x in start.model.state_dict().items()}
    tuned = gkn.fit(other, start, epochs=1, lr=1e-4, device="cpu", out=tmp_path / "run")
    assert tuned.frame == start.frame
    assert torch.equal(tuned.outputs.std, start.outputs.std)
    assert tuned.features == start.features
    assert all(torch.equal(x, before[name]) for name, x in start.model.state_dict().items())  # a copy is trained
    moved = [float((x - before[name]).abs().max()) for name, x in tuned.model.state_dict().items()]
    assert 0 < max(moved) < 0.05
    with pytest.raises(ValueError, match="settings, size, smoothing, extended and geometry are those of the operator"):
        gkn.fit(other, start, settings={"width": 4}, device="cpu")


# --- values on the boundary of any domain


def test_a_mesh_whose_nodes_all_lie_on_the_boundary():
    """A plate of one layer of cells: no function of the distance to the boundary is anything but 0."""
    grid = Grid((5, 5, 2), high=(200, 100, 2))
    mesh = Mesh(grid.points, {"hexahedron": grid.cell_blocks()[0][1]})
    assert bool(mesh.boundary.all())
    data = Dataset(mesh, E=torch.rand(12, 50), u=1 + torch.rand(12, 50))
    operator = gkn.fit(data, **QUICK)
    assert bool(torch.isfinite(operator(data[0])).all())
    with pytest.raises(ValueError, match="all nodes lie on the boundary"):
        gkn.fit(data, **QUICK, zero="distance")


def disks(n=12):
    domains, fields = [], []
    for i in range(n):
        mesh = Mesh.disk(0.4)
        mesh = Mesh(mesh.points * (2 + i), mesh.cells)
        domains.append(mesh)
        fields.append(torch.where(mesh.boundary, 0.0, (2 + i) ** 2 - mesh.points.square().sum(1)))
    return Dataset(domains, u=fields, heat=[torch.ones(len(d)) for d in domains], outputs=["u", "heat"])


def test_outputs_are_exactly_0_on_the_boundary_of_any_domain(tmp_path):
    data = disks()
    operator = gkn.fit(data, **QUICK)
    assert operator.outputs.zero.kind == "distance"
    assert operator.outputs.zero.fields == (True, False)  # the heat is 1 everywhere
    operator.save(tmp_path / "operator")
    again = load(tmp_path / "operator")
    for i in (0, 7):
        sample, edge = data[i], data[i].domain.boundary
        found = again(sample)
        assert found[edge, 0].abs().max() == 0 < found[~edge, 0].abs().min()
        assert found[edge, 1].abs().min() > 0
        on_edge = again(sample, at=sample.x[edge][:3])
        assert on_edge[:, 0].abs().max() < 1e-9


# --- warnings


def test_inputs_parameters_and_units_outside_of_training_are_told():
    data = plates(12)
    operator = gkn.fit(data, **QUICK)
    domain = data[0].domain
    assert operator.unusual(domain, {"load": 1.5}) == []
    with pytest.warns(UserWarning, match="load is 9, .*; do not trust the answer"):
        operator.answer(domain, load=9.0)
    with pytest.raises(KeyError, match="no input 'lod'; it needs load"):
        operator.answer(domain, load=1.5, lod=2.0)
    inside = domain.points[~domain.boundary][:1]
    assert operator.answer(domain, load=1.5, at=inside)["displacement"].shape == (1, 2)
    with pytest.raises(ValueError, match=r"outside the domain, the first is point 0 at \(1000\.0, 20\.0\)"):
        operator.answer(domain, load=1.5, at=torch.tensor([[1000.0, 20.0]]))
    with pytest.raises(ValueError, match=r"points of shape \(1, 3\); needed \(P, 2\)"):
        operator.answer(domain, load=1.5, at=torch.zeros(1, 3))
    with pytest.raises(TypeError, match=r"several are dataset\.take"):
        data[0:3]
    assert operator.unusual(domain, {"load": 9.0})[0].startswith("load is 9, in training it was between 1")
    metres = Mesh(domain.points / 1000, domain.cells)
    assert "is it the same unit of length?" in operator.unusual(metres, {"load": 1.5})[0]
    far = Mesh(domain.points + 1000, domain.cells)
    assert "the points fill the box [1000, " in operator.unusual(far, {"load": 1.5})[0]


def test_other_shapes_and_coarser_points_are_told():
    """The box alone does not say that a domain is another one."""
    mesh, rng = Mesh.square(0.1), torch.Generator().manual_seed(0)
    a = torch.rand(12, len(mesh), generator=rng)
    operator = gkn.fit(Dataset(mesh, a=a, u=1 + a), **QUICK, smoothing={})
    assert operator.unusual(Mesh.square(0.08), {}) == []
    assert "the area of the domain is" in operator.unusual(Mesh.holes(0.1), {})[0]
    assert "apart, in training at most" in operator.unusual(Mesh.square(0.4), {})[0]
    at = torch.tensor([[0.5, 0.5], [7.0, 0.5]])
    assert operator.unusual(mesh, {}, at) == ["1 of 2 query points lie outside of the training data, as (7, 0.5)"]
    cloud = gkn.Cloud(mesh.points)
    with pytest.warns(UserWarning, match="query points lie outside of the training data"):
        operator.answer(cloud, a=a[0], at=np.array([[1000, 1000]]))
    with pytest.warns(UserWarning, match="a is between .*, in training it was between"):
        operator.answer(mesh, a=100 * a[0], input_domain=mesh)


def test_a_dataset_of_another_range_is_told_by_eval(tmp_path):
    rng = torch.Generator().manual_seed(0)
    a = torch.rand(12, 25, generator=rng)
    gkn.fit(Dataset(Grid(5), a=a, u=1 + a), **QUICK, smoothing={}).save(tmp_path / "operator")
    Dataset(Grid(5), a=50 * a, u=1 + a).save(tmp_path / "other")
    said = run("eval", tmp_path / "operator", tmp_path / "other", "--device", "cpu")
    assert "sample 0: a is between" in said
    assert said.count("in training it was between") == 1
    clouds = [gkn.Cloud(torch.rand(30, 2, generator=rng) * 1000) for _ in range(6)]
    Dataset(clouds, a=[torch.rand(30) for _ in clouds], u=[1 + torch.rand(30) for _ in clouds]).save(tmp_path / "far")
    said = run("eval", tmp_path / "operator", tmp_path / "far", "--device", "cpu")
    assert said.count("is it the same unit of length?") == 1
    assert "does not know which samples it has learned from" in said


def test_a_training_that_learned_nothing_is_told():
    data = Dataset(Grid(5), a=torch.rand(12, 25), u=1 + torch.rand(12, 25))
    said = []
    gkn.fit(data, warn=said.append, smoothing={}, **{**QUICK, "epochs": 3}, lr=50.0)
    assert any("that of answering 0 everywhere is about 1; training diverged" in text for text in said), said


def test_samples_that_do_not_differ_are_told():
    said = []
    gkn.fit(Dataset(Grid(5), u=1 + torch.rand(12, 25)), warn=said.append, **QUICK)
    assert "the samples have no input and share one domain: an operator can only learn their mean" in said


def test_a_diverging_loss_is_told(monkeypatch):
    data = Dataset(Grid(5), a=torch.rand(12, 25), u=1 + torch.rand(12, 25))
    for factor, wanted in ((10, 0), (0.5, 1)):  # any loss is larger than half the smallest one
        said = []
        monkeypatch.setattr("gkn.train.loop.DIVERGED", factor)
        gkn.fit(data, warn=said.append, smoothing={}, **QUICK)
        assert sum("training diverges: use a smaller learning rate" in text for text in said) == wanted, said


# --- Python


def test_numpy_is_accepted_and_described(tmp_path):
    rng = np.random.default_rng(0)
    points, a = rng.random((40, 3)), rng.random((12, 40)).astype(np.float32)
    data = Dataset(gkn.Cloud(points), a=a, load=np.arange(12), u=np.stack([a, 2 * a, 3 * a], -1))
    text = data.describe()
    for line in ("samples: 12", "points: 40 in 3 dimensions", "input a: ", "parameter load: 0 to 11", "3 components"):
        assert line in text, text
    assert data.plot(tmp_path / "data.png").get_axes()
    assert (tmp_path / "data.png").stat().st_size > 1000
    operator = gkn.fit(data, **QUICK)
    assert operator.answer(gkn.Cloud(points), a=a[0], load=3)["u"].shape == (40, 3)
    assert operator.plot(data, 0, tmp_path / "answer.png").get_axes()
    with pytest.raises(ValueError, match=r"needed \(samples, points\), with components \(samples, points, c\)"):
        Dataset(gkn.Cloud(points), u=np.zeros((2, 3, 4, 5)))
    with pytest.raises(ValueError, match="sample 1 has points of dimension 2, sample 0 of dimension 3"):
        Dataset([gkn.Cloud(points), Grid(3)], u=[points[:, 0], np.zeros(9)])


def test_numpy_is_accepted_everywhere(tmp_path):
    rng = np.random.default_rng(0)
    grid = Grid(np.array([4, 5]), low=np.zeros(2), high=np.array([2.0, 1.0]))
    assert (grid.shape, grid.high) == ((4, 5), (2.0, 1.0))
    a = rng.random((12, 20))
    data = Dataset(grid, a=a, u=1 + a)
    assert [data.take(np.array([3, 1])).number(i) for i in range(2)] == [3, 1]
    assert data.take(torch.tensor([2])).number(0) == 2
    assert [len(part) for part in data.split(np.int64(8), np.int64(4))] == [8, 4]
    operator = gkn.fit(data, settings=SMALL, epochs=np.int64(1), device="cpu", smoothing={})
    sample = operator.sample(grid, a=a[0])
    assert torch.equal(operator(sample), operator(data[0]))
    assert operator(sample, at=np.array([[1, 0]])).shape == (1, 1)  # whole numbers
    assert gkn.smooth(grid, a, 0.2)[0].shape == (12, 20)
    assert Mesh.square(0.5).contains(np.array([[0.5, 0.5], [2.0, 2.0]])).tolist() == [True, False]
    assert grid.contains(np.array([[1.5, 0.5], [2.5, 0.5]])).tolist() == [True, False]
    assert gkn.radius_graph(grid.points.numpy(), r=0.3).num_edges == gkn.radius_graph(grid.points, r=0.3).num_edges
    gkn.save(tmp_path / "a.vtu", Mesh.square(0.5), {"b": np.zeros(len(Mesh.square(0.5)))})
    with pytest.raises(ValueError, match=r"the output 'u' is one number per sample; needed a field \(samples, points\)"):
        Dataset(grid, u=a[0])


def test_plots_leave_matplotlib_as_it_is(tmp_path):
    import matplotlib

    before = matplotlib.get_backend()
    matplotlib.use("pdf")
    try:
        Dataset(Grid(5), u=torch.rand(2, 25)).plot(tmp_path / "x.png")
        assert matplotlib.get_backend() == "pdf"
        assert (tmp_path / "x.png").read_bytes()[:4] == b"\x89PNG"
    finally:
        matplotlib.use(before)


def test_trivial_answers_stand_beside_errors_in_python():
    data = plates(14)
    train, test = data.split(12, 2)
    operator = gkn.fit(train, **QUICK, validation=0.25)
    assert operator.about["metrics"]["validation"] is not None
    errors = operator.evaluate(test, train=train)
    assert [*errors.trivial] == ["mean of the training samples", "nearest training sample"]
    shown = str(errors)
    assert shown.count("nearest training sample") == len(errors.by_field) == 2
    assert operator.evaluate(test).trivial == {}
    assert errors.median == pytest.approx(float(errors.each.mean()))  # of two


# --- many points


def test_spread_nodes_lie_up_to_the_boundary_and_apart():
    from gkn.geometry.spread import farthest_points

    x = Grid(41).points
    chosen = farthest_points(x, 100, torch.Generator().manual_seed(0))
    assert chosen.unique().tolist() == chosen.tolist()
    assert {0, 40, 1640, 1680} <= {*chosen.tolist()}  # the corners
    apart = torch.cdist(x[chosen], x[chosen]).fill_diagonal_(9).min(1).values
    far = torch.cdist(x, x[chosen]).min(1).values
    assert float(apart.min()) > float(far.max()) - 1e-9 > 0.05  # no point is farther from a node than nodes from each other
    random = torch.randperm(1681, generator=torch.Generator().manual_seed(0))[:100]
    assert float(torch.cdist(x, x[random]).min(1).values.max()) > 1.5 * float(far.max())
    twice = torch.cat([x[:5], x[:5]])
    assert len(farthest_points(twice, 8, torch.Generator())) == 5  # different places
    assert farthest_points(x, 5000, torch.Generator()).tolist() == [*range(1681)]
    part = farthest_points(torch.rand(100_000, 3), 50, torch.Generator().manual_seed(1))
    assert len(part) == 50


def test_many_points_are_answered_from_spread_nodes(tmp_path, monkeypatch):
    from gkn.operator import operator as module

    monkeypatch.setattr(module, "LEAST_SPREAD", 30)
    rng = torch.Generator().manual_seed(0)
    a = torch.rand(12, 25, generator=rng)
    operator = gkn.fit(Dataset(Grid(5), a=a, u=1 + a), **QUICK, smoothing={})
    assert operator.usual_way(Grid(9)) == gkn.Exact()
    assert operator.usual_way(Grid(21)) == gkn.Spread(30)
    operator.save(tmp_path / "operator")
    grid = Grid(21)
    save_fields = {"a": torch.rand(441, generator=rng), "u": torch.ones(441)}
    gkn.save(tmp_path / "fine.npz", grid, save_fields)
    said = run("predict", tmp_path / "operator", "--input", tmp_path / "fine.npz", "--out", tmp_path / "x.npz")
    assert "fine.npz: 441 points are answered from 30 of them, spread evenly; --how exact takes all" in said
    sample = operator.sample(grid, a=save_fields["a"])
    with np.load(tmp_path / "x.npz") as found:
        assert np.allclose(found["u"], operator(sample, how=gkn.Spread(30))[:, 0])
        assert not np.allclose(found["u"], operator(sample)[:, 0])
    with pytest.raises(ValueError, match=r"Spread\(m=0\): needed at least one node"):
        gkn.Spread(0)


# --- the command line


def test_groups_that_are_no_inputs_and_samples_that_were_not_seen(tmp_path):
    rng = torch.Generator().manual_seed(0)
    a = torch.rand(20, 25, generator=rng)
    Dataset(Grid(5), a=a, family=[float(i // 4) for i in range(20)], u=1 + a).save(tmp_path / "data")
    words = ["--epochs", 1, "--network", "width=8", "--device", "cpu", "--input", "a", "--smooth", "0"]
    run("train", tmp_path / "data", "--out", tmp_path / "run", "--by", "family", "--split", "0.6,0.2,0.2", *words)
    split = Split.from_json(load(tmp_path / "run").about["split"])
    assert [len(part) for part in (split.train, split.validation, split.test)] == [12, 4, 4]
    assert not {i // 4 for i in split.train} & {i // 4 for i in split.test}
    run("train", tmp_path / "data", "--out", tmp_path / "few", "--train", 12, *words)
    said = run("eval", tmp_path / "few", tmp_path / "data", "--device", "cpu")
    assert "relative l2 error on 8 unseen samples" in said
    assert "nearest training sample" in said
    train = Dataset.open(tmp_path / "data").using(["a"]).take([5, 3, 8] * 4)
    gkn.fit(train, **QUICK, smoothing={}).save(tmp_path / "python")
    said = run("eval", tmp_path / "python", tmp_path / "data", "--device", "cpu")
    assert "relative l2 error on 17 unseen samples" in said


def test_what_was_learned_and_chosen_by_is_known(tmp_path):
    """Samples of other datasets are not mistaken for samples of this one, and validation samples are seen."""
    rng = torch.Generator().manual_seed(0)
    a = torch.rand(20, 25, generator=rng)
    u = 1 + a
    u[0] = 0.0
    Dataset(Grid(5), a=a, u=u).save(tmp_path / "one")
    Dataset(Grid(5), a=a + 1, u=2 + a).save(tmp_path / "two")
    one, two = (Dataset.open(tmp_path / name) for name in ("one", "two"))
    held = Dataset.open(tmp_path / "one").take(range(12, 20))  # opened again
    operator = gkn.fit([one.take(12), two.take([15, 16])], **QUICK, validation=held, smoothing={}, warn=print)
    split = Split.from_json(operator.about["split"])
    assert (split.train, split.validation) == (tuple(range(1, 12)), tuple(range(12, 20)))
    operator.save(tmp_path / "operator")
    said = run("eval", tmp_path / "operator", tmp_path / "one", "--device", "cpu")  # sample 0 is unseen, but 0
    assert "relative l2 error on 8 validation samples" in said
    assert "no unseen samples" not in said
    for wrong in (1.5, -0.1):
        with pytest.raises(ValueError, match=r"fit\(validation=.*\): needed a dataset, a number of samples, or a share"):
            gkn.fit(one, **QUICK, validation=wrong)
    with pytest.raises(ValueError, match="all validation samples have an output that is 0"):
        gkn.fit(one.take(12), **QUICK, validation=one.take(1), warn=print)
    said = []
    gkn.fit(one, operator, epochs=1, device="cpu", warn=said.append)
    assert any("left out: sample 0; u is 0 at all points" in text for text in said)


def test_the_best_of_a_model_that_cannot_be_built_again():
    """A model of a user's own, with another constructor, is trained in memory: its best network is a copy."""

    class Own(gkn.GKN):
        def __init__(self, table):
            super().__init__(2, 1, 1, width=table["width"], kernel=(8, 8), steps=2)

    data = Dataset(Grid(5), a=torch.rand(12, 25), u=1 + torch.rand(12, 25))
    model = Own({"width": 8})
    with pytest.MonkeyPatch.context() as patch:
        fake_errors([0.1, 0.5], patch)
        operator = gkn.fit(data, model, gkn.Radius(0.3), epochs=2, evaluate_every=1, validation=3, device="cpu", warn=print)
    assert epoch_of(operator) == 1
    assert not torch.equal(operator.model.W.weight, model.W.weight)  # that has the last step


def test_from_files_to_answers(tmp_path):
    data = plates(20)
    for i in range(len(data)):
        fields = {"displacement": data[i].u[:, :2], "stress": data[i].u[:, 2], "unused": data[i].u[:, 0]}
        cells = {"part": [np.arange(len(data[i].domain.cells))]}
        gkn.save(tmp_path / f"files/p{i}.vtu", data[i].domain, fields, cells, {"load": data.parameter("load", i)})
    words = ["--output", "displacement", "--output", "stress", "--input", "load"]
    said = run("data", "import", tmp_path / "files", *words, "--out", tmp_path / "data")
    assert "not used: unused" in said
    assert "parameter load" in said
    assert "20 samples, load -> displacement, stress" in said
    said = run("train", tmp_path / "data", "--out", tmp_path / "run", "--epochs", 2, "--network", "width=8", "--device", "cpu")
    assert "about" in said
    assert "relative l2 error on 2 test samples" in said
    split = Split.from_json(load(tmp_path / "run").about["split"])
    assert sorted([*split.train, *split.validation, *split.test]) == [*range(20)]
    said = run("eval", tmp_path / "run", tmp_path / "data", "--device", "cpu")
    assert json.loads((tmp_path / "run/eval.json").read_text())["samples"] == [*split.test]
    assert f"{split.test[0]} (p{split.test[0]}.vtu)" in said  # of the files of a folder, 2 comes before 10
    assert f"(p{split.test[0]}.vtu), error" in (tmp_path / "run/report.html").read_text()
    run("eval", tmp_path / "run", tmp_path / "data", "--samples", "-1:", "--last", "--device", "cpu")
    assert json.loads((tmp_path / "run/eval.json").read_text())["samples"] == [split.test[-1]]
    for wrong in ("1", "2:", "a:b"):
        assert "needed START:STOP within the 2 samples" in run(
            "eval", tmp_path / "run", tmp_path / "data", "--samples", wrong, code=2
        )
    said = run("predict", tmp_path / "run", "--input", f"{tmp_path}/files/p1*.vtu", "--out", tmp_path / "answers")
    assert said.count("relative error of displacement") == 11
    from gkn.data.readers import read_sample

    answer = read_sample(tmp_path / "answers/p13.vtu")
    given = read_sample(tmp_path / "files/p13.vtu")
    assert torch.equal(answer.fields["displacement_truth"], given.fields["displacement"])
    difference = answer.fields["displacement"] - answer.fields["displacement_truth"]
    torch.testing.assert_close(answer.fields["displacement_error"], difference)
    assert np.array_equal(answer.cell_data["part"][0], given.cell_data["part"][0])
    assert answer.parameters == given.parameters
    assert torch.equal(answer.fields["unused"], given.fields["unused"])
    words = ["predict", tmp_path / "run", "--input", tmp_path / "files/p3.vtu", "--out", tmp_path / "x.vtu"]
    said = run(*words, "--set", "load=9")
    assert "load is 9" in said
    said = run(*words, "--set", "lod=9", code=2)
    assert "'lod' is no parameter of this operator; it has load" in said
    gkn.save(tmp_path / "bare.vtu", given.domain, {})
    words = ["predict", tmp_path / "run", "--input", tmp_path / "bare.vtu", "--out", tmp_path / "x.vtu"]
    assert "bare.vtu: the operator needs the field 'load'" in run(*words, code=1)
    (tmp_path / "table.csv").write_text("file,load\nbare,1.5\nother,2\n")
    run(*words, "--parameters", tmp_path / "table.csv")
    assert read_sample(tmp_path / "x.vtu").parameters == {"load": 1.5}
    gkn.save(tmp_path / "solid.vtu", meshes.box("tetra", 2), {}, parameters={"load": 1.5})
    words = ["predict", tmp_path / "run", "--input", tmp_path / "solid.vtu", "--out", tmp_path / "x.vtu"]
    assert "in 3 dimensions; the operator was trained in 2" in run(*words, code=1)
    metres = Mesh(given.domain.points / 1000, given.domain.cells)
    gkn.save(tmp_path / "m.vtu", metres, {}, parameters=given.parameters)
    said = run("predict", tmp_path / "run", "--input", tmp_path / "m.vtu", "--out", tmp_path / "y.vtu")
    assert "is it the same unit of length?" in said
    assert run("predict", tmp_path / "run", "--input", f"{tmp_path}/none*.vtu", "--out", tmp_path / "z", code=1)


def test_a_mesh_asked_inside_its_hole(tmp_path):
    mesh = Mesh.holes(0.2)
    data = Dataset(mesh, a=torch.rand(12, len(mesh)), u=torch.rand(12, len(mesh)))
    operator = gkn.fit(data, **QUICK, smoothing={})
    with pytest.raises(ValueError, match="1 of 1 points lie outside the domain, the first is point 0 at"):
        operator(data[0], at=torch.tensor([[0.3, 0.35]]))


def test_second_order_cells_keep_values_at_all_points(tmp_path):
    mesh = meshes.box("triangle6", 3)
    u = mesh.points[:, 0] ** 2
    gkn.save(tmp_path / "a.vtu", mesh, {"u": u})
    data = gkn.import_files([tmp_path / "a.vtu"])
    assert len(data.domain) == len(mesh)
    assert torch.equal(data[0].u[:, 0], u)


def test_named_sets_are_inputs_where_meshes_differ(tmp_path):
    for i in range(2):
        mesh = meshes.box("triangle", 3 + i)
        u = mesh.points[:, 0]
        gkn.save(tmp_path / f"m{i}.vtu", mesh, {"u": u, "set:inlet": (u == 0).double(), "T": u})
    said = []
    data = gkn.import_files(tmp_path, report=said.append)
    assert data.inputs == ("set:inlet",)
    assert any("inputs by default, because the domains differ: set:inlet" in line for line in said)
    assert any("not used: T" in line for line in said)
    one = gkn.import_files([tmp_path / "m0.vtu"])
    assert one.inputs == ()


# --- answers on the geometry of the file, from files that were read as the training data were


def written(path, points, fields):
    """Write triangles in space as another program would, with a flat axis anywhere."""
    import meshlane

    cells = [("triangle", meshes.box("triangle", 3).cells.numpy())]
    meshlane.write(path, meshlane.Mesh(points, cells, point_data=fields))


@pytest.mark.parametrize(("axis", "at"), [(1, 0.0), (2, 5.0), (0, -2.0)])
def test_an_answer_lies_where_its_input_lies(axis, at, tmp_path):
    """A plate at z = 5, or in the x-z plane: points and vectors come back in the coordinates of the file."""
    import meshlane

    plane = meshes.box("triangle", 3).points.numpy()
    points = np.insert(plane, axis, at, 1)
    rng = np.random.default_rng(0)
    (tmp_path / "files").mkdir()
    for i in range(10):
        v = np.insert(rng.random((len(plane), 2)), axis, 0.0, 1)
        written(tmp_path / f"files/{i}.vtu", points, {"v": v})
    data = gkn.import_files(tmp_path / "files", outputs=["v"])
    assert data.dim == 2
    gkn.fit(data, **QUICK).save(tmp_path / "operator")
    run("predict", tmp_path / "operator", "--input", tmp_path / "files/3.vtu", "--out", tmp_path / "answer.vtu")
    given, answer = meshlane.read(tmp_path / "files/3.vtu"), meshlane.read(tmp_path / "answer.vtu")
    assert np.array_equal(answer.points, given.points)
    assert np.array_equal(answer.point_data["v_truth"], given.point_data["v"])
    assert not answer.point_data["v"][:, axis].any()
    assert all(answer.point_data["v"][:, i].any() for i in range(3) if i != axis)


def test_vectors_in_the_plane_get_back_the_component_they_lost(tmp_path):
    """In some files a vector leaves the plane, in others its third component is 0: three components for all of them."""
    points = np.insert(meshes.box("triangle", 3).points.numpy(), 2, 0.0, 1)
    rng = np.random.default_rng(0)
    (tmp_path / "files").mkdir()
    for i in range(10):
        v = rng.random((len(points), 3)) * (1, 1, i > 4)
        written(tmp_path / f"files/{i}.vtu", points, {"v": v, "w": 1 + rng.random((len(points), 3)) * (1, 1, i > 4)})
    data = gkn.import_files(tmp_path / "files", outputs=["w"], inputs=["v"])
    assert data.inputs == ("v_x", "v_y", "v_z")
    gkn.fit(data, **QUICK).save(tmp_path / "operator")
    said = run("predict", tmp_path / "operator", "--input", tmp_path / "files/2.vtu", "--out", tmp_path / "a.vtu")
    assert "relative error of w" in said
    mesh = meshes.box("triangle", 3)
    np.savez(tmp_path / "plane.npz", points=mesh.points, cells=mesh.cells, v=np.ones((len(mesh), 2)))
    words = ["--input", tmp_path / "plane.npz", "--out", tmp_path / "a.npz"]
    assert "needed its 3 components" in run("predict", tmp_path / "operator", *words, code=1)  # it never had a third one


def test_files_are_read_for_answers_as_they_were_for_training(tmp_path):
    """Arrays without coordinates lie where `import` was told that they lie."""
    rng = np.random.default_rng(0)
    a = rng.random((12, 6, 8))
    np.savez(tmp_path / "all.npz", a=a, u=1 + a)
    np.savez(tmp_path / "one.npz", a=a[:1], u=1 + a[:1])
    words = ["--nodes", "centres", "--box", "0:3,-1:1", "--input", "a", "--out", tmp_path / "data"]
    run("data", "import", tmp_path / "all.npz", *words)
    grid = Dataset.open(tmp_path / "data").domain
    assert (grid.low, grid.high, grid.nodes) == ((0.0, -1.0), (3.0, 1.0), "centres")
    run("train", tmp_path / "data", "--out", tmp_path / "run", "--epochs", 1, "--network", "width=8", "--device", "cpu")
    said = run("predict", tmp_path / "run", "--input", tmp_path / "one.npz", "--out", tmp_path / "answer.npz")
    assert "do not trust" not in said
    with np.load(tmp_path / "answer.npz") as found:
        assert np.allclose(found["points"], grid.points)
    said = run("predict", tmp_path / "run", "--input", tmp_path / "all.npz", "--out", tmp_path / "answer.npz")
    assert "all.npz: sample 0 of 12; --sample chooses another" in said
    for wrong in ("0:1", "0:1:2,3", "1,2"):
        words = ["--box", wrong, "--input", "a", "--out", tmp_path / "other"]
        assert run("data", "import", tmp_path / "all.npz", *words, code=1 if wrong == "0:1" else 2)


def test_inputs_at_cells_are_in_every_answer_file(tmp_path):
    mesh, rng = meshes.box("triangle", 4), np.random.default_rng(0)
    count = len(mesh.cell_blocks()[0][1])
    (tmp_path / "files").mkdir()
    for i in range(10):
        gkn.save(tmp_path / f"files/{i}.vtu", mesh, {"u": 1 + rng.random(len(mesh))}, {"k": [rng.random(count)]})
    data = gkn.import_files(tmp_path / "files", inputs=["k"])
    gkn.fit(data, **QUICK, smoothing={}).save(tmp_path / "operator")
    for name in ("a.npz", "a.vtu"):
        run("predict", tmp_path / "operator", "--input", tmp_path / "files/0.vtu", "--out", tmp_path / name)
    with np.load(tmp_path / "a.npz") as found:
        assert np.allclose(found["k"], data.value("k", 0))  # at points
    from gkn.data.readers import read_sample

    assert "k" in read_sample(tmp_path / "a.vtu").cell_data


def test_a_field_that_is_not_used_may_be_bad(tmp_path):
    data = plates(12)
    gkn.fit(data, **QUICK).save(tmp_path / "operator")
    bad = np.full(len(data[0].domain), np.nan)
    mesh = data[0].domain
    import meshlane

    points = np.insert(mesh.points.numpy(), 2, 0.0, 1)
    meshlane.write(tmp_path / "a.vtu", meshlane.Mesh(points, [("triangle", mesh.cells.numpy())], point_data={"junk": bad}))
    words = ["--input", tmp_path / "a.vtu", "--out", tmp_path / "b.vtu", "--set", "load=1.5"]
    said = run("predict", tmp_path / "operator", *words)
    assert "a.vtu: not finite everywhere, and not copied to the answer: junk" in said
