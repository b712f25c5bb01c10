"""Trajectories in files: read from lists of meshes and arrays with times, rolled out by the command line, and written."""

import h5py
import numpy as np
import pytest
import torch
from PIL import Image

import gkn
from gkn import Dataset, Grid, Mesh, import_files
from gkn.data.readers import ReadOptions, UnreadableFile, read_files
from gkn.data.stepping import Stepping
from gkn.data.writers.series import save_series
from tests.decay import RATE, decaying
from tests.test_cli import run as command
from tests.test_rollout import exact

TIMES = [0.0, 0.5, 1.5]


def written(folder, name="run", meshes=None, change=0.0):
    """A .pvd of three states on a mesh, or on several, with a static field and one that changes."""
    domains = meshes or [Mesh.square(0.4)] * 3
    rng = np.random.default_rng(0)
    states = [
        (t, {"v": rng.random((len(m), 2)), "a": 1 + change * t + m.points[:, 0].numpy()})
        for t, m in zip(TIMES, domains, strict=True)
    ]
    if meshes is None:
        save_series(folder / f"{name}.pvd", domains[0], states, {"load": 2.0})
    else:
        lines = []
        for k, (m, (t, fields)) in enumerate(zip(domains, states, strict=True)):
            gkn.save(folder / f"{name}{k}.vtu", m, fields)
            lines.append(f'<DataSet timestep="{t}" file="{name}{k}.vtu"/>')
        text = f'<VTKFile type="Collection"><Collection>{"".join(lines)}</Collection></VTKFile>'
        (folder / f"{name}.pvd").write_text(text)
    return domains, states


def test_a_pvd_is_one_trajectory(tmp_path):
    (mesh, *_), states = written(tmp_path)
    written(tmp_path, "other")
    lines = []
    data = import_files(tmp_path / "*.pvd", outputs=["v"], inputs=["a", "load"], report=lines.append)
    assert "trajectories: 2, with 6 states" in lines
    assert len(data) == 2
    assert data.times(0).tolist() == TIMES
    assert data.domain.same_as(mesh)
    assert np.array_equal(data.trajectory(1).u.numpy(), np.stack([fields["v"] for _, fields in states]))
    assert np.array_equal(data.trajectory(1).a[:, 0].numpy(), states[0][1]["a"])
    assert data.parameter("load", 0) == 2.0
    assert data.label(1).startswith("1 (run.pvd")
    with pytest.raises(ValueError, match="leave the input time out, or use as_samples"):
        import_files(tmp_path / "run.pvd", outputs=["v"], inputs=["a", "time"])
    steady = import_files(tmp_path / "run.pvd", outputs=["v"], inputs=["a", "time"], as_samples=True)
    assert [steady.parameter("time", i) for i in range(3)] == TIMES


@pytest.mark.parametrize("ending", ["npz", "pvd"])
def test_states_before_an_interruption_are_kept(ending, tmp_path):
    domain = Grid(4)

    def states():
        yield 0.5, {"v": torch.zeros(16)}
        yield 1.0, {"v": torch.ones(16)}
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        save_series(tmp_path / f"run.{ending}", domain, states())
    data = import_files(tmp_path / f"run.{ending}", outputs=["v"])
    assert data.times(0).tolist() == [0.5, 1.0]
    assert data.trajectory(0).u[:, 0, 0].tolist() == [0, 1]


def test_a_table_has_a_line_for_each_trajectory(tmp_path):
    written(tmp_path)
    written(tmp_path, "other")
    (tmp_path / "numbers.csv").write_text("file,speed\nother.pvd,7\nrun,3\n")
    files = [tmp_path / "run.pvd", tmp_path / "other.pvd"]
    data = import_files(files, outputs=["v"], parameters=tmp_path / "numbers.csv")
    assert [data.parameter("speed", i) for i in range(2)] == [3, 7]


def test_meshes_and_inputs_that_change_with_time_are_refused(tmp_path):
    written(tmp_path, meshes=[Mesh.square(0.4), Mesh.square(0.4), Mesh.square(0.3)])
    with pytest.raises(UnreadableFile, match=r"run\.pvd, time 1\.5: a mesh of .* the mesh must not change within a trajectory"):
        import_files(tmp_path / "run.pvd", outputs=["v"])
    written(tmp_path, "drift", change=0.1)
    with pytest.raises(UnreadableFile, match=r"drift\.pvd, time 0\.5: the input a changes with time; only outputs may"):
        import_files(tmp_path / "drift.pvd", outputs=["v"], inputs=["a"])
    assert import_files(tmp_path / "drift.pvd", outputs=["v"]).inputs == ()


def test_a_list_with_a_missing_file_or_in_another_order(tmp_path):
    written(tmp_path)
    text = (tmp_path / "run.pvd").read_text()
    (tmp_path / "run" / "run_00001.vtu").unlink()
    with pytest.raises(UnreadableFile, match=r"lists 'run/run_00001.vtu' for time .*, which is missing"):
        import_files(tmp_path / "run.pvd", outputs=["v"])
    written(tmp_path)
    first, last = (f'timestep="{t}" part="0"' for t in (0.0, 1.5))
    (tmp_path / "run.pvd").write_text(text.replace(first, "@").replace(last, first).replace("@", last))
    data = import_files(tmp_path / "run.pvd", outputs=["v"])
    assert data.times(0).tolist() == TIMES
    with pytest.raises(UnreadableFile, match="no trajectory in it, as there is in"):
        import_files([tmp_path / "run.pvd", tmp_path / "run" / "run_00000.vtu"], outputs=["v"])


@pytest.mark.parametrize("ending", ["npz", "h5"])
@pytest.mark.parametrize("count", [1, 4])
def test_arrays_with_times(ending, count, tmp_path):
    mesh, rng = Mesh.square(0.4), np.random.default_rng(0)
    K = len(mesh)
    u, v = rng.random((count, 3, K)), rng.random((count, 3, K, 2))
    a, k = rng.random((count, K)), rng.random(count)
    given = {"u": u, "v": v, "a": a, "k": k} if count > 1 else {"u": u[0], "v": v[0], "a": a[0], "k": k[0]}
    arrays = {"points": mesh.points.numpy(), "cells": mesh.cells.numpy(), "times": np.array(TIMES), **given}
    path = tmp_path / f"x.{ending}"
    if ending == "npz":
        np.savez(path, **arrays)
    else:
        with h5py.File(path, "w") as file:
            for name, array in arrays.items():
                file[name] = array
    data = import_files(path, outputs=["u", "v"], inputs=["a", "k"])
    assert (len(data), data.times(0).tolist()) == (count, TIMES)
    for i in range(count):
        assert np.array_equal(data.value("u", i).numpy(), u[i])
        assert np.array_equal(data.value("v", i).numpy(), v[i])
        assert np.array_equal(data.value("a", i).numpy(), a[i])
        assert data.parameter("k", i) == k[i]


def test_arrays_with_times_on_a_grid(tmp_path):
    u, times = np.random.default_rng(0).random((4, 3, 6, 6)), np.array([TIMES] * 4) * np.arange(1, 5)[:, None]
    np.savez(tmp_path / "x.npz", u=u, times=times, a=u[:, 0])
    data = import_files(tmp_path / "x.npz", inputs=["a"], periodic=True)
    assert data.domain == Grid(6, periodic=True)
    assert data.times(3).tolist() == [0, 2, 6]
    assert np.array_equal(data.field("u").numpy(), u.reshape(4, 3, 36))
    one = {"u": u[0], "times": np.array(TIMES)[:, None]}  # a column of times, one trajectory
    np.savez(tmp_path / "y.npz", **one)
    assert np.array_equal(import_files(tmp_path / "y.npz").trajectory(0).u[..., 0].numpy(), u[0].reshape(3, 36))


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"times": np.array([0, 2, 1.0]), "u": np.ones((3, 6, 6))}, "the times do not increase"),
        ({"times": np.array([0, np.nan, 1]), "u": np.ones((3, 6, 6))}, "times must be finite, but 1 of 3 are not"),
        ({"times": np.arange(6.0), "u": np.ones((6, 6, 6))}, "may be 6 trajectories or one"),
        ({"times": np.arange(3.0), "time": np.ones(1), "u": np.ones((3, 6, 6))}, "arrays 'times' and 'time'"),
        ({"times": np.zeros((2, 2, 2)), "u": np.ones((3, 6, 6))}, "times of shape"),
        ({"times": np.arange(5.0), "u": np.ones((3, 6, 6))}, "5 times, but no field"),
        ({"times": np.array([[0, 1, 2.0]] * 3), "u": np.ones((4, 3, 6, 6))}, "times of 3 trajectories, fields of 4"),
    ],
)
def test_bad_arrays_of_times_are_refused(arrays, message, tmp_path):
    np.savez(tmp_path / "x.npz", **arrays)
    with pytest.raises(UnreadableFile, match=message):
        read_files(tmp_path / "x.npz")


@pytest.mark.parametrize("domain", [Grid(5), Grid((6,), periodic=True), Mesh.square(0.4)], ids=["grid", "line", "mesh"])
@pytest.mark.parametrize("ending", ["pvd", "npz"])
def test_series_that_were_written_are_read_to_the_same_bits(domain, ending, tmp_path):
    if ending == "pvd" and domain.dim == 1:
        pytest.skip("a .vtu does not say that an interval is periodic")
    u = np.random.default_rng(0).random((3, len(domain)))
    found = save_series(
        tmp_path / f"x.{ending}", domain, ((t, {"u": row}) for t, row in zip(TIMES, u, strict=True)), {"k": 2.5}
    )
    assert found == TIMES
    data = import_files(tmp_path / f"x.{ending}", inputs=["k"])
    assert data.times(0).tolist() == TIMES
    assert np.array_equal(data.value("u", 0).numpy(), u)
    assert data.parameter("k", 0) == 2.5
    if ending == "npz":
        assert data.domain.same_as(domain)


def test_a_shorter_series_leaves_no_files_of_a_longer_one(tmp_path):
    grid = Grid(3)
    for count in (4, 2):
        save_series(tmp_path / "x.pvd", grid, ((float(t), {"u": np.ones(9)}) for t in range(count)))
    assert len([*(tmp_path / "x").glob("*.vtu")]) == 2


def test_other_files_in_the_folder_of_a_series_stay(tmp_path):
    grid = Grid(3)
    for count in (4, 2):
        save_series(tmp_path / "x[1].pvd", grid, ((float(t), {"u": np.ones(9)}) for t in range(count)))
        for name in ("x[1]_notes.vtu", "x[1]_mine.vtu", "other_00009.vtu") if count == 4 else ():
            (tmp_path / "x[1]" / name).touch()
    left = {file.name for file in (tmp_path / "x[1]").iterdir()}
    assert left == {"x[1]_00000.vtu", "x[1]_00001.vtu", "x[1]_notes.vtu", "x[1]_mine.vtu", "other_00009.vtu"}


@pytest.mark.parametrize("trajectories", [1, 3])
@pytest.mark.parametrize("points", [True, False])
def test_static_fields_stand_beside_trajectories(trajectories, points, tmp_path):
    """Also if there are as many trajectories as times."""
    rng, space = np.random.default_rng(0), (16,) if points else (4, 5)
    u, k = rng.random((trajectories, 3, *space)), rng.random((trajectories, *space))
    arrays = {"points": Grid(4).points.numpy()} if points else {}
    times = np.array(TIMES) if points or trajectories == 1 else np.array([TIMES] * 3)
    shapes = [(u, k)] if trajectories > 1 else [(u, k), (u[0], k[0]), (u, k[0])]
    for moving, static in shapes:
        np.savez(tmp_path / "x.npz", times=times, u=moving, k=static, **arrays)
        data = import_files(tmp_path / "x.npz", inputs=["k"])
        assert len(data) == trajectories
        for i in range(trajectories):
            assert np.array_equal(data.value("u", i).numpy(), u[i].reshape(3, -1))
            assert np.array_equal(data.value("k", i).numpy(), k[i].reshape(-1))


@pytest.mark.parametrize("domain", [Grid(5), Grid((6,)), Mesh.square(0.4)], ids=["grid", "line", "mesh"])
def test_an_animated_picture_has_a_frame_for_each_time(domain, tmp_path):
    rng = np.random.default_rng(0)
    states = ((t, {"u": rng.random(len(domain)), "v": rng.random((len(domain), 2))}) for t in TIMES)
    save_series(tmp_path / "x.gif", domain, states)
    with Image.open(tmp_path / "x.gif") as picture:
        assert picture.n_frames == 3


# --- the command line


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A dataset of trajectories, an operator that steps exactly, and a file with one trajectory."""
    folder = tmp_path_factory.mktemp("run")
    data = decaying(n=12, T=5)
    data.save(folder / "data")
    exact(data, Stepping(pairs="all", clock=False), held=("u",)).save(folder / "exact")
    one = data.trajectory(3)
    arrays = {"points": one.domain.points.numpy(), "u": one.u[:, :, 0].numpy(), "times": one.times.numpy()}
    np.savez(folder / "one.npz", **arrays)
    np.savez(folder / "start.npz", points=arrays["points"], u=arrays["u"][0])
    return folder


def gkn_runs(line, code=0):
    return command(*line.split(), code=code)


def test_train_eval_and_predict(run, tmp_path):
    options = "--epochs 1 --network width=8 --network blocks=1 --network head=4 --network slices=2 --network kernel=4,2"
    said = gkn_runs(
        f"train {run}/data --out {tmp_path}/r --steps all --target difference --no-clock --set unroll=0.5 {options}"
    )
    assert "trajectories, rolled out" in said
    assert "persistence" in said
    for picture in ("over_time.png", "worst.png"):
        assert (tmp_path / "r" / picture).stat().st_size > 5000
    said = gkn_runs(f"eval {tmp_path}/r {run}/data --frames 1:4 --step 0.25")
    assert "nearest training trajectory" in said
    said = gkn_runs(f"predict {tmp_path}/r --input {run}/one.npz --out {tmp_path}/x.pvd --times 0:1:5")
    assert "u at 5 times and 25 points; relative error" in said
    data = import_files(tmp_path / "x.pvd")
    assert data.times(0).tolist() == [0, 0.25, 0.5, 0.75, 1.0]
    assert np.array_equal(data.value("u", 0)[0].numpy(), np.load(run / "one.npz")["u"][0])
    operator = gkn.load(tmp_path / "r", best=True)
    start = operator.start(Grid(5), u=np.load(run / "start.npz")["u"])
    found = operator.rollout(start, [0.25, 0.5, 0.75, 1.0]).stack()
    assert np.array_equal(data.value("u", 0)[1:].numpy(), found[:, :, 0].numpy())
    gkn_runs(f"predict {tmp_path}/r --input {run}/start.npz --out {tmp_path}/x.npz --times 0.25,0.5")
    assert np.array_equal(np.load(tmp_path / "x.npz")["u"], found[:2, :, 0].numpy())
    gkn_runs(f"predict {tmp_path}/r --input {run}/start.npz --out {tmp_path}/x.gif --times 0.25,0.5")


def test_train_between_two_times(run, tmp_path):
    options = "--epochs 1 --network width=8 --network blocks=1 --network head=4 --network slices=2 --network kernel=4,2"
    said = gkn_runs(f"train {run}/data --out {tmp_path}/r --between 0,-1 {options}")
    assert "u_end" in said
    said = gkn_runs(f"eval {tmp_path}/r {run}/data")
    assert "u_end" in said
    assert "u_end at 25 points" in gkn_runs(f"predict {tmp_path}/r --input {run}/one.npz --out {tmp_path}/x.npz")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("predict {0}/exact --input {0}/one.npz --out x.csv --times 1", "say what kind of series by its ending"),
        ("predict {0}/exact --input {0}/one.npz --out x.npz --times 1,0.5", "needed increasing times"),
        ("predict {0}/exact --input {0}/one.npz --out x.npz --times now", "needed increasing times"),
        ("predict {0}/exact --input {0}/one.npz --out x.npz --times=-1", "no time after that of the initial state"),
        ("predict {0}/exact --input {0}/one.npz --out x.npz", "this operator steps in time"),
        ("predict {0}/exact --input {0}/one.npz --out x.npz --times 1 --r 0.3", "leave this out"),
        ("train {0}/data --out x --frames 40", "needed FIRST:LAST"),
        ("train {0}/data --out x --between 0", "needed FIRST,LAST"),
        ("train {0}/data --out x --target rate", "use one of value, difference, quotient"),
        ("eval {0}/exact {0}/data --how spread --m 5", "rolled out on all points"),
    ],
)
def test_wrong_arguments_are_refused(line, message, run):
    code = 1 if "csv" in line or "rate" in line or "spread" in line else 2
    assert message in gkn_runs(line.format(run), code)


def test_a_rollout_that_stops_keeps_what_is_finite(run, tmp_path):
    data = Dataset.open(run / "data")
    exact(data, Stepping("difference", clock=False), grow=True).save(tmp_path / "o")
    said = gkn_runs(f"predict {tmp_path}/o --input {run}/one.npz --out {tmp_path}/x.pvd --times 0.25,0.5,0.75", 1)
    assert "stopped at the step to time 0.5" in said
    assert "the 1 states before are in" in said
    assert len([*(tmp_path / "x").glob("*.vtu")]) == 1
    assert torch.isfinite(torch.from_numpy(gkn.data.readers.read_sample(tmp_path / "x/x_00000.vtu").fields["u"].numpy())).all()


@pytest.mark.parametrize("ending", ["pvd", "npz", "gif"])
def test_a_rollout_without_a_finite_state_writes_nothing(ending, run, tmp_path):
    data = Dataset.open(run / "data")
    exact(data, Stepping("difference", clock=False), grow=True).save(tmp_path / "o")
    arrays = {**np.load(run / "one.npz")}
    np.savez(tmp_path / "huge.npz", **{**arrays, "u": arrays["u"] * 1e200})
    predict = f"predict {tmp_path}/o --out {tmp_path}/x.{ending} --times 0.25,0.5"
    said = gkn_runs(f"{predict} --input {tmp_path}/huge.npz", 1)
    assert "stopped at the step to time 0.25" in said
    assert "nothing was written to" in said
    assert not (tmp_path / f"x.{ending}").exists()


def test_times_are_compared_in_their_own_unit(run, tmp_path):
    """Neither the time of the initial state off by rounding, nor a truth of another time."""
    arrays = {**np.load(run / "one.npz")}
    for factor in (1.0, 1e-11):
        np.savez(tmp_path / "x.npz", **{**arrays, "times": (arrays["times"] + 0.3) * factor})
        predict = f"predict {run}/exact --input {tmp_path}/x.npz --out {tmp_path}/y.npz --step 0.01"
        said = gkn_runs(f"{predict} --times {0.1 * 3 * factor!r},{0.55 * factor!r},{0.6 * factor!r}")
        assert "u at 3 times" in said
        assert "on average over 1 times" in said


def test_a_forecast_goes_on_from_its_own_file(tmp_path):
    """Static fields are written too."""
    grid, times = Grid(4), torch.arange(3, dtype=torch.float64)
    u = torch.rand(4, 1, 16, dtype=torch.float64) * torch.exp(-RATE * times)[:, None]
    data = Dataset(grid, u=u, k=torch.rand(4, 16, dtype=torch.float64), times=times)
    exact(data, Stepping(clock=False)).save(tmp_path / "o")
    one = data.trajectory(0)
    np.savez(tmp_path / "a.npz", points=grid.points.numpy(), times=times, u=one.u[..., 0], k=one.a[:, 0])
    for ending in ("npz", "pvd"):
        gkn_runs(f"predict {tmp_path}/o --input {tmp_path}/a.npz --out {tmp_path}/b.{ending} --times 0,1,2")
        gkn_runs(f"predict {tmp_path}/o --input {tmp_path}/b.{ending} --out {tmp_path}/c.npz --times 1,2")
        assert np.allclose(np.load(tmp_path / "c.npz")["u"], one.u[1:, :, 0], rtol=1e-12)


def test_options_of_reading_are_kept():
    assert ReadOptions.from_json(ReadOptions(periodic=True).json()).periodic
