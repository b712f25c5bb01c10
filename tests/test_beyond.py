"""gkn beyond, at the scale that takes seconds."""

import json
from dataclasses import replace

import pytest
import torch
from typer.testing import CliRunner

from gkn.cli import app
from gkn.data.dataset import Dataset
from gkn.data.features import Features
from gkn.data.generate import make_dataset
from gkn.data.problems import Darcy
from gkn.geometry.cloud import Cloud
from gkn.geometry.grid import Grid
from gkn.graph.rules import Nystrom, Radius
from gkn.operator.saved import load
from gkn.operator.ways import Sampled
from gkn.study import work
from gkn.study.beyond import cost
from gkn.study.beyond import pages as report
from gkn.study.beyond.beyond import chosen, only_pages
from gkn.study.beyond.tables import NAMES, PUBLISHED, SCALES, first_of, tables
from gkn.study.cells import Data
from gkn.study.document import Document
from gkn.study.scattered import clouds, scattered, unstructured
from gkn.study.work import Place, evaluated_on, make_data, samples_of

runner = CliRunner()


def call(*given):
    return runner.invoke(app, ["beyond", *map(str, given)])


def test_every_table(tmp_path, neuraloperator):
    """Made from nothing, with two seeds where they are asked for; asked for again, nothing is done."""
    done = call("--out", tmp_path)
    assert done.exit_code == 0, done.output
    assert call("few", "--out", tmp_path, "--seeds", 2).exit_code == 0
    readme, page = ((tmp_path / name).read_text() for name in ("README.md", "index.html"))
    for table in tables(SCALES["smoke"], 0).values():
        assert f"## {table.title}" in readme
        assert table.title.replace("'", "&#x27;") in page
        for row in table.rows:
            assert f"| {row.label} |" in readme
    assert "not run" not in readme
    assert "diverged" not in readme
    for label, error in PUBLISHED.items():
        assert f"| {label} | {error:.4f} (published) |" in readme
    assert "## Seconds and bytes, over the number of points" in readme
    assert "| for comparison: the solver on these points, against 81 x 81 |" in readme
    assert "## Time against accuracy" in readme
    assert readme.count("| slope of the last two |") == 2
    for name in ("resolution", "accuracy", "cost"):
        assert f"(figures/{name}.png)" in readme
        assert (tmp_path / f"figures/{name}.png").stat().st_size > 10_000
    assert readme.count("±") == 2  # in the words above, and in one cell
    told = "\n".join(report.summary(Place(tmp_path, tmp_path), SCALES["smoke"]))
    assert "| published: best on grids, of any kind | 0.0039 |" in told
    first = tables(SCALES["smoke"], 0)
    assert all(f"| NearFar, trained on {row.label} |" in told for row in first["resolution"].rows)
    assert all(f"| {row.label} |" in told for row in first["accuracy"].rows if row.label != "NearFar")
    cells = [json.loads(path.read_text()) for path in (tmp_path / "cells").iterdir()]
    methods = {cell["cell"]["training"]["model"]: cell["parameters"] for cell in cells}
    assert methods.pop("FNO") > 10  # which a smaller one may stand for
    assert all(count > 100 for count in methods.values())
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "cells").iterdir()}
    again = call("--out", tmp_path)
    assert " 1/" not in again.output
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "cells").iterdir()} == before
    (tmp_path / "README.md").unlink()
    assert call("--pages", "--out", tmp_path).exit_code == 0
    assert (tmp_path / "README.md").read_text() == readme


def test_some_rows(tmp_path):
    """Chosen by their labels; what was trained is exported with what is known of it."""
    assert call("resolution", "--only", "85 x 85 only", "--out", tmp_path).exit_code == 0
    first, alone, second, _ = tables(SCALES["smoke"], 0)["resolution"].rows
    place = Place(tmp_path, tmp_path / "work")
    assert all(place.result(run) for row in (first, alone) for run in row.cells.values())
    assert place.result(first.cells["s = 85"])["error"] != place.result(alone.cells["s = 85"])["error"]
    assert not any(place.result(run) for run in second.cells.values())
    wrong = call("resolution", "--only", "moon", "--out", tmp_path)
    assert "no row whose label contains 'moon'; there are points of 85 x 85 only, " in str(wrong.exception)
    assert call("--export", tmp_path / "saved", "--out", tmp_path).exit_code == 0
    operator = load(tmp_path / "saved")
    assert {*operator.about["tests"]} == {*first.cells}
    assert operator.about["commit"]
    missing = call("--export", tmp_path / "saved", "--out", tmp_path / "other")
    assert "holds no network to export; train it with gkn beyond resolution --scale smoke" in str(missing.exception)


def test_what_is_promised_is_what_is_run():
    """1000 functions to learn from and 200 others to judge by, on every fifth point; the mixture; few are few."""
    full = tables(SCALES["full"], 1)
    assert (*full,) == NAMES
    row, alone, *others = full["accuracy"].rows
    data = row.training.data
    assert (data.size, data.every, data.n, data.of, data.tests) == (421, 10, 1000, 1000, 200)
    assert row.training.more == ((5, Nystrom(0.12, 1849)),)  # nothing that is not on 85 x 85
    assert (data.known, alone.training.data.known) == (1, 5)
    assert [each.training.model for each in others] == ["Transformer", "SliceAttention", "FNO"]
    for each in others:  # the same data, features, loss, symmetries, boundary values and seed
        theirs, ours = each.training, row.training
        assert replace(theirs.data, every=10) == data
        assert each.cells["s = 85"].functions == 200
        shared = ("loss", "batch", "gradient", "symmetries", "zero", "schedule", "warm", "clip", "precision", "seed")
        assert {name: getattr(theirs.recipe, name) for name in shared} == {name: getattr(ours.recipe, name) for name in shared}
        assert theirs.weighted == ours.weighted
    assert [each.training.more for each in others] == [row.training.more, row.training.more, ()]
    assert others[2].training.data.every == 5  # images need whole grids
    assert row.training.weighted
    assert row.training.seed == row.training.recipe.seed == 1
    run = row.cells["s = 85"]
    assert (evaluated_on(run)[1], evaluated_on(run)[2]) == (5, range(1000, 1200))
    one, alone, many, _ = full["resolution"].rows
    assert one.training == alone.training == row.training
    assert all(run.alone for run in alone.cells.values())
    assert [run.on for run in alone.cells.values()] == ["test", "test", "test", "cloud", "mesh"]
    assert many.training.more == ((7, Radius(0.12)), (3, Nystrom(0.12, 1849)))
    assert [evaluated_on(each)[1] for each in many.cells.values()] == [5, 3, 2, 1, 1, 1, 1, 5, 5]
    assert evaluated_on(many.cells[first_of(SCALES["full"])])[2] == evaluated_on(many.cells["s = 211"])[2] == range(1000, 1050)
    assert many.cells["7225 random points"].how == Sampled(7225)
    assert evaluated_on(many.cells["unstructured mesh"])[2].start == 1000
    (few,) = full["few"].rows
    assert (few.training.data.n, few.training.data.of) == (100, 1000)
    for table in full.values():
        for each in table.rows:
            assert {*each.cells} <= {*table.columns}
            assert each.training.rule.r == dict(each.training.settings).get("radius", each.training.rule.r)


def test_where_a_is_known(tmp_path):
    """It is smoothed there, and nothing of what lies between those points is left."""
    whole = Data(21, 4, 2, 2, 1, 0.1)
    make_data({whole}, Place(tmp_path, tmp_path))
    here, there = (samples_of(replace(whole, known=k), 4, range(2), Place(tmp_path, tmp_path)) for k in (1, 2))
    assert torch.equal(here.field("a"), there.field("a"))
    alone = make_dataset(Darcy(size=21), 2).every(2)
    alone = Dataset.of(alone.domain, {name: alone.field(name) for name in ("a", "u")}, ("u",)).smoothed(0.1).every(2)
    torch.testing.assert_close(there.field("a_smooth"), alone.field("a_smooth"))
    assert not torch.allclose(here.field("a_smooth"), there.field("a_smooth"), rtol=1e-3)
    with pytest.raises(ValueError, match="known at every 3th point of a side; asked for every 4th"):
        samples_of(replace(whole, known=3), 4, range(2), Place(tmp_path, tmp_path))


def test_ablations_change_one_thing_each():
    first, *others = tables(SCALES["full"], 0)["ablations"].rows
    for row in others:
        one, other = (
            {
                **dict(each.training.settings),
                **vars(each.training.recipe),
                "smoothing": each.training.data.smoothing,
                "more": len(each.training.more),
            }
            for each in (first, row)
        )
        changes = {name for name in {*one, *other} if one.get(name) != other.get(name)}
        together = ({"optimizer", "lr"}, {"smoothing", "features"}, {"more", "epochs"})
        assert len(changes) == 1 or changes in together, row.label
    assert len({row.training.hash for row in (first, *others)}) == len(others) + 1


def test_wrong_arguments(tmp_path):
    assert "'huge': use smoke, full" in call("--scale", "huge").output
    with pytest.raises(ValueError, match="nothing called 'tables' past the paper; there are all, accuracy"):
        chosen(["tables"])
    with pytest.raises(ValueError, match="holds no results"):
        only_pages(Place(tmp_path, tmp_path), "smoke")
    (tmp_path / "README.md").write_text("# mine")
    failed = call("--out", tmp_path)
    assert failed.exit_code == 1
    assert "was not made by gkn" in str(failed.exception)


# --- the functions on a mesh


def test_a_mesh_that_lies_on_no_lattice():
    mesh = unstructured(21, seed=3)
    assert mesh.measure == pytest.approx(1)
    assert 0.8 * 21**2 < len(mesh) < 1.2 * 21**2
    inner = mesh.points[~mesh.boundary]
    assert len(inner.unique()) == 2 * len(inner)  # no coordinate twice
    assert not torch.equal(unstructured(21, seed=4).points, mesh.points)
    assert torch.equal(unstructured(21, seed=3).points, mesh.points)
    weights = mesh.weights[~mesh.boundary]
    assert float(weights.max() / weights.min()) > 4  # denser here than there


def test_functions_on_a_mesh_are_those_of_the_grid():
    grid = Grid(81)
    x, y = grid.points.unbind(1)
    a = torch.where(x + y > 1, 12.0, 3.0).double()
    data = Dataset(grid, a=a[None], u=(torch.sin(3 * x) * y)[None])
    found = scattered(data, 15)
    x, y = found.domain.points.unbind(1)
    assert {*found[0].a.unique().tolist()} == {3.0, 12.0}
    sure = (x + y - 1).abs() > 0.02
    assert torch.equal(found[0].a[sure, 0], torch.where(x + y > 1, 12.0, 3.0).double()[sure])
    assert torch.allclose(found[0].u[:, 0], torch.sin(3 * x) * y, atol=2e-4)
    with pytest.raises(ValueError, match="needed a grid in the plane"):
        scattered(Dataset(Cloud(torch.rand(5, 2).double()), a=torch.rand(1, 5).double(), u=torch.rand(1, 5).double()), 5)


def test_smoothed_fields_go_along():
    """Fields smoothed on the grid stay marked as smoothed: an operator uses them, and smooths nothing on the mesh."""
    data = make_dataset(Darcy(size=31, modes=4), 2).smoothed(0.1)
    found = scattered(data, 9)
    assert (found.inputs, found.smoothing, found.given, len(found)) == (data.inputs, data.smoothing, ("a",), 2)
    ready = Features.of(data)(found)
    torch.testing.assert_close(ready.field("a_smooth"), found.field("a_smooth"), rtol=0, atol=0)
    again = Features.of(data)(scattered(make_dataset(Darcy(size=31, modes=4), 2), 9))
    assert again.smoothing == data.smoothing
    assert not torch.allclose(again.field("a_smooth"), found.field("a_smooth"), rtol=1e-3)


def test_functions_at_random_points():
    """Other points for every function, anywhere in the square, with weights; what the fine grid knows does not go along."""
    data = make_dataset(Darcy(size=31, modes=4), 2).smoothed(0.1)
    found = clouds(data, 200)
    assert (found.inputs, found.smoothing) == (("a",), [])
    one, other = found[0], found[1]
    assert not torch.equal(one.x, other.x)
    assert {*one.a.unique().tolist()} <= {3.0, 12.0}
    assert 0.8 < float(one.domain.measure) < 1
    assert float(one.weights.max() / one.weights.mean()) > 1.5
    inside = data.domain.points.min(1).values > 0
    assert float(one.u.max()) <= float(data[0].u[inside].max()) + 1e-12


def test_a_training_that_diverged_is_said(tmp_path, monkeypatch):
    place, runs = Place(tmp_path, tmp_path), [*tables(SCALES["smoke"], 0)["few"].rows[0].cells.values()]
    assert report._cell(runs, place) == "not run"
    assert report._cell([None], place) == ""
    monkeypatch.setattr(Place, "result", lambda *_: {"failed": "x"})
    assert report._cell(runs, place) == "1 of 1 diverged"


def test_errors_as_multiples_of_those_on_the_same_functions(monkeypatch, tmp_path):
    """Ratios to s = 85 are taken on the same functions if their errors are known; otherwise on all functions, and marked."""
    scale = SCALES["full"]
    first = first_of(scale)
    row = tables(scale, 0)["resolution"].rows[0]
    columns = {run: column for column, run in row.cells.items()}
    each = [0.2] * 10 + [0.1] * 40
    cells = {"s = 421": {"mean": 0.3}, "s = 211": {"mean": 0.18}, "s = 141": {"mean": 0.2}, "s = 85": {"mean": 0.1}}

    def done(_, run):
        known = cells.get(columns.get(run))
        return None if known is None else {"cell": {"functions": run.functions}, "error": known}

    monkeypatch.setattr(Place, "result", done)
    place = Place(tmp_path, tmp_path)
    assert report._ratio(row, "s = 421", first, place) == (pytest.approx(3.0), False)
    cells[first] = {"mean": 0.12, "each": each}
    assert report._ratio(row, "s = 421", first, place) == (pytest.approx(1.5), True)  # the first 10
    assert report._ratio(row, "s = 211", first, place) == (pytest.approx(1.5), True)  # all 50
    assert report._ratio(row, "s = 141", first, place) == (pytest.approx(2.0), False)  # of 100 no more than 50 are known
    assert report._ratio(row, "unstructured mesh", first, place) is None
    page = Document("x")
    report._ratios(page, [tables(scale, 0)["resolution"]], place, first)
    assert "| points of 85 x 85 only | 2.00 * | 1.50 | 1.50 |  |  |  |  |" in page.lines
    assert len([line for line in page.lines if line.startswith("| ")]) == 2  # nothing is known of other rows


def test_rows_of_which_nothing_was_run_are_named(tmp_path, monkeypatch):
    table = tables(SCALES["smoke"], 0)["ablations"]
    known = {"cell": {"functions": 2}, "error": {"mean": 0.5}}
    monkeypatch.setattr(Place, "result", lambda _, run: known if run in table.rows[0].cells.values() else None)
    monkeypatch.setattr(report, "_cost", lambda *_: [])
    page = Document("x")
    report._table(page, [table], Place(tmp_path, tmp_path), [])
    lines = [line for line in page.lines if line.startswith("| ")]
    assert [line.split(" | ")[0] for line in lines[1:]] == [f"| {table.rows[0].label}"]
    assert f"Not run: {'; '.join(row.label for row in table.rows[1:])}." in page.lines


def test_how_many_trainings_shared_the_machine(tmp_path):
    """When it was trained, whatever is done when it is judged once more."""
    assert call("few", "--out", tmp_path, "--jobs", 2, "--seeds", 2).exit_code == 0
    place, run = Place(tmp_path, tmp_path / "work"), tables(SCALES["smoke"], 0)["few"].rows[0].cells["s = 85"]
    before = place.result(run)
    place.file(run).unlink()
    assert call("few", "--out", tmp_path).exit_code == 0
    assert before["jobs"] == place.result(run)["jobs"] == 2
    assert before["error"] == place.result(run)["error"]
    assert len(before["error"]["each"]) == run.functions


def test_cost_is_not_asked_for_in_vain(tmp_path, monkeypatch):
    """Existing measurements are kept, and a model that ran out of memory or time is not tried with more points."""
    place, scale = Place(tmp_path, tmp_path), replace(SCALES["smoke"], points_of_cost=(50, 100, 200))
    real = cost._made

    def made(kind, K, *given):
        if kind == "Multigrid" and K == 100:
            raise RuntimeError("CUDA out of memory")
        if kind == "FNO":
            raise ImportError(name="neuralop")
        return real(kind, K, *given)

    monkeypatch.setattr(cost, "_made", made)
    cost.measure(scale, place)
    found = cost.known(tmp_path, scale)
    assert all(found["NearFar"][200][what]["seconds"] > 0 for what in ("forward", "step"))
    assert found["NearFar"][50]["search"] > 0
    edges = [found["Multigrid"][50]["edges"], found["NearFar"][50]["edges"]]
    assert all(50 < each <= 5 * 50**2 for each in edges)
    why = [found["Multigrid"][K].get("why") for K in (50, 100, 200)]
    assert why == [None, "out of memory", "not tried: out of memory with 100"]
    assert found["FNO"][100]["why"] == "not tried: neuralop is not installed with 50"
    assert cost.slope(found["NearFar"], "step") is not None
    assert cost.slope(found["FNO"], "step") is None
    monkeypatch.setattr(cost, "_made", lambda *_: pytest.fail("measured again"))
    cost.measure(scale, place)
    monkeypatch.setattr(cost, "LONG", 0.0)
    (tmp_path / "cost" / "Transformer-200.json").unlink()
    cost.measure(scale, place)
    assert cost.known(tmp_path, scale)["Transformer"][200]["why"] == "not tried: it would take more than 0 s"


def test_slopes():
    entries = {10**i: {"step": {"seconds": 5.0 if i < 4 else 10.0 ** (1.1 * i)}} for i in range(2, 7)}
    assert cost.slope(entries, "step", last=3) == cost.slope(entries, "step", start=10**4) == pytest.approx(1.1)
    assert cost.slope(entries, "step", last=2) == pytest.approx(1.1)
    assert cost.slope(entries, "step") > 1.5  # the first two are flat
    assert cost.slope(entries, "step", start=10**6) is None


def test_all_that_is_learned_from_counts_for_the_order():
    one, _, many, _ = tables(SCALES["full"], 0)["resolution"].rows
    assert work.cost(many.training) > work.cost(one.training) > work.cost(replace(one.training, more=()))
