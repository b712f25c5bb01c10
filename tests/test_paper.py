"""The paper as runs: what a cell is, which are shared, and that what is finished is not done again."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from gkn.data.sample import BadNumbers
from gkn.graph.rules import Nystrom, Radius
from gkn.operator.evaluate import Errors
from gkn.operator.ways import Exact, Partition, Sampled, Support
from gkn.study import work
from gkn.study.cells import Cell, Data, Training, plain
from gkn.study.paper import figures
from gkn.study.paper import greens_functions as green
from gkn.study.paper.pages import Result, results_of, slope_of, write_pages
from gkn.study.paper.reproduce import NAMES, CellsFailed, chosen, entries, reproduce
from gkn.study.paper.scale import BASELINES, SCALES, entries_of
from gkn.study.paper.tables import CAUSES, CHANGES, TABLES, kernel_of, table_named
from gkn.study.paper.trends import EDGES, TRENDS
from gkn.study.work import Blurred, Place, edges_of, evaluated_on, fill
from gkn.system.files import canonical
from gkn.train.recipe import RECIPES

PAPER, SMOKE = SCALES["paper"], SCALES["smoke"]
PRINTED = json.loads(Path(__file__).with_name("paper_tables.json").read_text())  # typed by somebody else
ALL = [(table, recipe) for table in TABLES for recipe in ("paper", "ours")]


def place(tmp_path, **more):
    return Place(tmp_path / "results", tmp_path / "work", command="test", **more)


def run_of(table, row, column, recipe="paper", scale=PAPER, seed=0, way=""):
    found = [c for c in entries_of(table_named(table), recipe, scale, seed) if (c.row, c.column) == (row, column)]
    return next(c.cell for c in found if c.way == way)


# --- tables


def test_every_table_of_the_paper_is_there():
    assert [table.name for table in TABLES] == [
        "full-resolution",
        "training-size",
        "sampled-resolution",
        "pairs-and-samples",
        "nodes",
        "radius-and-nodes",
        "kernel-network",
        "methods",
    ]
    for table in TABLES:
        typed = PRINTED[table.name]
        assert [[*row] for row in table.numbers] == typed["values"]
        assert [*table.rows[1]] == next(iter(typed["rows"].values()))
        assert [*table.columns[1]] == next(iter(typed["columns"].values()))
        assert (table.edges and [[*row] for row in table.edges]) == typed.get("edges")


def test_the_settings_of_some_cells():
    cell = run_of("sampled-resolution", 1, 2)  # s = 31, s' = 241
    data = cell.training.data
    assert (data.size, data.every, data.n, cell.every, cell.how, cell.functions) == (241, 8, 100, 1, Sampled(200), 100)
    assert cell.training.rule == Nystrom(0.25, 200, 2)
    assert (cell.training.recipe.batch, cell.training.recipe.pointwise, cell.training.recipe.loss) == (10, False, "mse")
    cell = run_of("training-size", 0, 0)
    assert (cell.training.rule, cell.how, cell.on, cell.functions) == (Radius(0.10), Exact(), "train", 10)
    assert (cell.training.recipe.epochs, cell.training.asked) == (1200, 2000)
    assert dict(run_of("kernel-network", 3, 2).training.settings)["kernel"] == (256, 512, 1024, 1024)
    cell = run_of("methods", 4, 0, way="partition")
    assert (cell.training.data.size, cell.training.data.every, cell.how) == (421, 5, Partition(300))
    assert run_of("methods", 3, 3).training.model == "RBM"
    assert run_of("radius-and-nodes", 2, 2).training.recipe.batch == 2
    assert [kernel_of(8, depth) for depth in (2, 3, 5)] == [(8,), (4, 8), (2, 4, 8, 8)]


def test_epochs_that_are_too_many_are_shortened_and_said():
    long = run_of("pairs-and-samples", 2, 3).training  # N = 1000, l = 8: 400 steps an epoch
    assert (long.recipe.epochs, long.recipe.every, long.asked) == (15, 4, 200)
    short = run_of("pairs-and-samples", 1, 1).training
    assert (short.recipe.epochs, short.recipe.every, short.asked) == (200, 50, None)


def test_tables_share_trainings():
    nodes = {c.cell for c in entries_of(table_named("nodes"), "paper", PAPER, 0)}
    shared = {c.cell for c in entries_of(table_named("radius-and-nodes"), "paper", PAPER, 0)} & nodes
    assert len(shared) == 3  # r = 0.15, m = m' = 100, 200, 400
    assert len({run.training for run in nodes}) == 4
    baselines = [{c.cell for c in entries_of(table_named("methods"), r, PAPER, 0) if c.row < 4} for r in ("paper", "ours")]
    assert baselines[0] == baselines[1]


@pytest.mark.parametrize("scale", SCALES.values(), ids=SCALES)
def test_train_and_test_functions_are_disjoint(scale):
    for table, recipe in ALL:
        for cell in entries_of(table, recipe, scale, 0):
            data = cell.cell.training.data
            assert data.n <= data.of
            assert cell.cell.on == "train" or cell.cell.functions <= data.tests


@pytest.mark.parametrize(("on", "first", "seed"), [("train", 0, 0), ("test", 4, 0), ("fresh", 0, 1)])
def test_which_functions_are_learned_and_which_are_judged(on, first, seed, tmp_path, monkeypatch):
    """No function is both, but where the training error is asked for."""
    run = replace(run_of("methods", 4, 0, "ours", SMOKE, way="support"), on=on)
    learned, judged = [], []
    real_fit, real_judge = work.fit, work.relative_l2

    def fit(data, *given, **more):
        learned.extend((0, each.number(i)) for each in data for i in range(len(each)))
        return real_fit(data, *given, **more)

    def judge(operator, data, *given, **more):
        judged.extend((evaluated_on(run)[0].seed, data.number(i)) for i in range(len(data)))
        return real_judge(operator, data, *given, **more)

    monkeypatch.setattr(work, "fit", fit)
    monkeypatch.setattr(work, "relative_l2", judge)
    assert fill([run], place(tmp_path)) == []
    assert sorted(learned) == [(0, i) for i in range(4)]
    assert judged == [(seed, first + i) for i in range(2)]
    assert ({*learned} & {*judged} == set()) == (on != "train")


def test_smoothing_the_answers_changes_the_error(tmp_path):
    here = place(tmp_path)
    runs = [run_of("methods", 4, 1, scale=SMOKE, way=way) for way in ("partition", "partition, smoothed")]
    fill(runs, here)
    plain_, smooth_ = (here.result(run)["error"]["mean"] for run in runs)
    assert plain_ != smooth_


def test_every_setting_of_a_baseline_is_in_its_run():
    for row, name in enumerate(("NN", "FCN", "PCA+NN", "RBM")):
        training = run_of("methods", row, 0).training
        model, settings, entries_, _ = BASELINES[name]
        assert training.model == model
        assert dict(training.settings).keys() == settings.keys()
        assert {name: value for name, value in entries_.items() if name != "epochs"}.items() <= vars(training.recipe).items()
    assert run_of("methods", 3, 0, seed=2) == run_of("methods", 3, 0)  # nothing of RBM is drawn


def test_a_run_is_known_by_its_hash():
    run = run_of("nodes", 0, 0)
    assert run.hash == run_of("nodes", 0, 0).hash
    assert "patience" not in plain(run)["training"]["recipe"]  # results from before it was there keep their hash
    others = [
        replace(run, training=replace(run.training, recipe=replace(run.training.recipe, patience=3))),
        replace(run, every=1),
        replace(run, how=Sampled(101)),
        replace(run, how=Support(100)),
        replace(run, functions=99),
        replace(run, on="train"),
        replace(run, blur=1.0),
        replace(run, training=replace(run.training, seed=1)),
        replace(run, training=replace(run.training, rule=Nystrom(0.16, 100, 5))),
        replace(run, training=replace(run.training, settings=())),
        replace(run, training=replace(run.training, data=replace(run.training.data, smoothing=0.1))),
        replace(run, training=replace(run.training, recipe=replace(run.training.recipe, lr=1.0))),
        run_of("nodes", 0, 0, "ours"),
        run_of("nodes", 0, 0, seed=1),
    ]
    assert len({run.hash, *(other.hash for other in others)}) == len(others) + 1
    json.loads(canonical(plain(run)))


def test_causes_change_one_thing_each():
    runs = [cell.cell for cell in entries_of(CAUSES, "paper", PAPER, 0)]
    assert len({run.hash for run in runs}) == len(CHANGES)
    assert runs[0] == run_of("pairs-and-samples", 1, 1)


def test_names():
    assert chosen(["all"]) == NAMES
    assert chosen([]) == NAMES
    assert chosen(["nodes", "fig-nystrom", "nodes"]) == ("nodes", "fig-nystrom")
    with pytest.raises(
        ValueError, match="nothing called 'table-9' in the paper; there are all, tables, figures, full-resolution"
    ):
        chosen(["table-9"])
    assert {cell.table for cell in entries(["fig-resolution"], SMOKE, ["ours"], 0)} == {
        "full-resolution",
        "sampled-resolution",
        "methods",
    }
    assert len(entries(["causes"], SMOKE, ["paper", "ours"], 1)) == len(CHANGES)


# --- doing them


def test_only_what_is_missing_is_done(tmp_path, monkeypatch):
    runs = [cell.cell for cell in entries_of(table_named("full-resolution"), "ours", SMOKE, 0)]
    here = place(tmp_path)
    said = []
    fill(runs, here, lambda *what: said.append(what))
    assert [done for done, _, _ in said] == [1, 2]
    assert "GKN s=9 N=3 r=0.1 kernel=2-4" in said[0][2]
    files = {path: path.read_bytes() for path in (here.results / "cells").iterdir()}
    assert len(files) == 6
    one = json.loads(next(iter(files.values())))
    assert {"error", "edges", "seconds", "steps", "peak_bytes", "machine", "versions", "commit", "command"} < {*one}
    monkeypatch.setattr(work, "do", lambda *_: pytest.fail("done again"))
    fill(runs, here)
    monkeypatch.undo()
    lost, broken = here.file(runs[0]), here.file(runs[5])
    lost.unlink()
    broken.write_text("{")
    monkeypatch.setattr(work, "fit", lambda *_, **__: pytest.fail("trained again"))  # its network is there
    fill(runs, here)
    again = {path: json.loads(path.read_bytes())["error"] for path in files}
    assert again == {path: json.loads(data)["error"] for path, data in files.items()}


def test_further_seeds_of_what_is_quick(tmp_path, monkeypatch):
    """Seconds are those of the first seed; what nobody knows of is not quick."""
    seconds = {"Pointwise": 0.5, "PCANet": 2.0, "RBM": 0.1, "FCN": 0.1, "GKN": 100.0}
    monkeypatch.setattr(work, "evaluated", lambda *_: {"mean": 0.1, "spread": 0.0})
    monkeypatch.setattr(work, "trained", lambda training, _: training)
    monkeypatch.setattr(work, "_effort", lambda each: {"seconds": seconds[each.model], "steps": 1, "parameters": 2})
    here = place(tmp_path)
    reproduce(["methods"], here, scale="smoke", recipes=["paper"], seeds=3, under=1.0)
    done = [json.loads(path.read_text())["cell"]["training"] for path in (here.results / "cells").iterdir()]
    seeds = {method: {each["seed"] for each in done if each["model"] == method} for method in seconds}
    assert seeds == {"Pointwise": {0, 1, 2}, "FCN": {0, 1, 2}, "PCANet": {0}, "GKN": {0}, "RBM": {0}}  # nothing of RBM is drawn
    reproduce(["methods"], here, scale="smoke", recipes=["paper"], seeds=2)
    assert len([*(here.results / "cells").iterdir()]) > len(done)


def test_what_was_learned_rounded_is_judged_rounded(tmp_path, monkeypatch):
    here, run, seen = place(tmp_path), run_of("nodes", 0, 0, scale=SMOKE), []

    def judge(*_, **__):
        seen.append(torch.get_float32_matmul_precision())
        return Errors(torch.ones(1))

    work.make_data({run.training.data}, here)
    operator = work.trained(run.training, here)
    monkeypatch.setattr(work, "relative_l2", judge)
    for precision in ("bf16", "tf32", "fp32", "fp64"):
        recipe = replace(run.training.recipe, precision=precision)
        work.evaluated(replace(run, training=replace(run.training, recipe=recipe)), operator, here)
    assert seen == ["high", "high", "highest", "highest"]
    assert torch.get_float32_matmul_precision() == "highest"


def test_answers_are_rounded_where_nothing_else_is_affordable(tmp_path):
    """And only there: exact evaluation at s = 421. By how much that is felt can be seen where both are affordable."""
    ways = {(cell.column, cell.way): cell.cell for cell in entries_of(table_named("methods"), "ours", SCALES["paper"], 0)}
    assert [key for key, run in ways.items() if run.rounded] == [(3, "exact")]
    here, run = place(tmp_path), run_of("methods", 4, 0, "ours", SMOKE, way="exact")
    rough = replace(run, rounded=True)
    assert rough.hash != run.hash
    fill([run, rough], here)
    found = [here.result(each)["error"]["mean"] for each in (run, rough)]
    assert found[0] != found[1]
    assert found[0] == pytest.approx(found[1], rel=0.02)


def test_a_file_of_another_run_is_not_taken_for_this(tmp_path):
    here, runs = place(tmp_path), [run_of("methods", 3, column, scale=SMOKE) for column in (0, 1)]
    fill(runs[:1], here)
    here.file(runs[1]).write_bytes(here.file(runs[0]).read_bytes())
    assert here.result(runs[0]) is not None
    assert here.result(runs[1]) is None


@pytest.mark.parametrize(
    "change",
    [
        {"error": {"mean": float("nan"), "spread": 0}},
        {"error": None},
        {"error": {"mean": "0.05", "spread": 0}},
        {"seconds": None},
        {"commit": None},
        {"failed": 3},
        {"jobs": "two"},
        {"steps": "many"},
    ],
)
def test_a_damaged_cell_is_not_believed(change, tmp_path):
    here, run = place(tmp_path), run_of("methods", 3, 0, scale=SMOKE)
    fill([run], here)
    found = here.result(run)
    here.file(run).write_text(json.dumps({**found, **change}))
    assert here.result(run) is None
    here.file(run).write_text("[" * 100_000)
    assert here.result(run) is None
    del found["training"]
    here.file(run).write_text(json.dumps(found))
    assert here.result(run) is None


def test_a_damaged_network_is_trained_again(tmp_path):
    here, run = place(tmp_path), run_of("full-resolution", 0, 0, scale=SMOKE)
    fill([run], here)
    before = here.result(run)["error"]
    for tensors in here.trained(run.training).glob("*.safetensors"):
        tensors.write_bytes(tensors.read_bytes()[:-5])
    here.file(run).unlink()
    assert fill([run], here) == []
    assert here.result(run)["error"] == before


@pytest.mark.parametrize("damage", [b"", b"PK", b"garbage"])
def test_damaged_arrays_of_a_figure_are_computed_again(damage, tmp_path):
    here, name = place(tmp_path), "fig-green-1d"
    figures.make(name, SMOKE, here)
    arrays = next((here.work / "figures").iterdir())
    arrays.write_bytes(damage)
    figures.pictures(here.results, name)[0].unlink()
    figures.make(name, SMOKE, here)
    assert figures.pictures(here.results, name)
    (here.results / "figures" / f"{name}.json").write_text('{"key": "x", "numbers": null}')
    assert figures.numbers_of(here.results, name) is None


def test_pages_of_somebody_else_are_left_alone(tmp_path):
    here = place(tmp_path)
    here.results.mkdir()
    (here.results / "README.md").write_text("# my project")
    with pytest.raises(ValueError, match=r"README.md is there already and was not made by gkn"):
        reproduce(["methods"], here, scale="smoke")
    assert (here.results / "README.md").read_text() == "# my project"


def test_one_that_fails_does_not_stop_the_others(tmp_path, monkeypatch):
    here, runs = place(tmp_path), [run_of("methods", row, 0, scale=SMOKE) for row in (0, 3)]
    real = work.fit

    def broken(data, model, *given, **more):
        if type(model).__name__ == "Pointwise":
            raise RuntimeError("no memory on the device")
        return real(data, model, *given, **more)

    monkeypatch.setattr(work, "fit", broken)
    assert fill(runs, here) == ["Pointwise s=7 N=4 m=49 l=1 epochs=1: no memory on the device"]
    assert [here.result(run) is not None for run in runs] == [False, True]


def test_what_failed_is_said_when_the_pages_are_made(tmp_path, monkeypatch):
    here = place(tmp_path)
    monkeypatch.setattr("gkn.study.paper.reproduce.fill", lambda *_: ["NN s=7: no memory", "FCN s=7: no memory"])
    with pytest.raises(CellsFailed, match=r"the pages are made, but 2 .* NN s=7: no memory; FCN s=7: no memory"):
        reproduce(["nodes"], here, scale="smoke")
    assert "## Table 5" in (here.results / "README.md").read_text()
    assert json.loads((here.results / "elapsed.jsonl").read_text())["command"] == "test"


def test_a_training_that_diverges_is_a_result(tmp_path, monkeypatch):
    here, run = place(tmp_path), run_of("full-resolution", 0, 0, scale=SMOKE)

    def diverge(*_, **__):
        raise BadNumbers("step 7: the loss is not finite")

    monkeypatch.setattr(work, "fit", diverge)
    fill([run], here)
    assert here.result(run)["failed"] == "step 7: the loss is not finite"
    found = next(r for r in results_of(table_named("full-resolution"), "paper", SMOKE, here) if r.found)
    assert (found.text, found.mean) == ("diverged", None)
    assert "diverged (0.0525)" in write_pages(here, SMOKE).with_name("README.md").read_text()


def test_the_network_and_the_draws_depend_on_the_seed(tmp_path):
    here = place(tmp_path)
    runs = [run_of("full-resolution", 0, 0, scale=SMOKE, seed=seed) for seed in (0, 1)]
    fill(runs, here)
    errors = [here.result(run)["error"]["mean"] for run in runs]
    assert errors[0] != errors[1]
    result = next(r for r in results_of(table_named("full-resolution"), "paper", SMOKE, here) if r.found)
    assert len(result.found) == 2
    assert result.mean == pytest.approx(sum(errors) / 2)
    assert "±" in result.text


def test_edges_are_counted():
    assert edges_of(run_of("full-resolution", 0, 1)) == {"train": 2116.0, "test": 25673.0}  # shared/paper/notes.md
    found = edges_of(run_of("radius-and-nodes", 3, 0))
    assert found["test"] == pytest.approx(9720, rel=0.02)  # r = 1 reaches 97 % of all pairs of 100 nodes
    assert edges_of(run_of("methods", 0, 0)) is None


def test_answers_are_smoothed_as_the_authors_did(rng):
    """u = 0 outside: a constant falls off at the boundary, and stays what it is inside."""
    from gkn import GKN, Grid, Operator, Sample

    class Constant(Operator):
        def __call__(self, sample, *given, **more):
            return torch.ones(len(sample.domain), 1)

    grid = Grid(21)
    sample = Sample(grid, torch.ones(441, 1).double(), torch.ones(441, 1).double())
    image = Blurred(Constant(GKN(2, 1), Radius(0.1)), Exact(), 1.0)(sample).reshape(21, 21)
    assert image[10, 10] == pytest.approx(1, abs=1e-6)
    assert 0.3 < image[0, 10] < 0.8
    torch.testing.assert_close(image, image.T)


# --- figures and pages


def test_figures_are_of_what_is_known_now(tmp_path):
    """More cells, another figure; cells that came to nothing are left out."""
    here = place(tmp_path)
    figures.make("fig-resolution", SMOKE, here)
    assert figures.numbers_of(here.results, "fig-resolution")["numbers"]["curves"]["methods"] == {}
    runs = [run_of("methods", 3, 0, "ours", SMOKE), run_of("methods", 0, 0, "ours", SMOKE)]
    fill(runs, here)
    work._write(runs[1], here, {"failed": "diverged"})
    figures.make("fig-resolution", SMOKE, here)
    curves = figures.numbers_of(here.results, "fig-resolution")["numbers"]["curves"]["methods"]
    assert {*curves} == {"RBM"}
    assert curves["RBM"][0] == 7  # the grid it was judged on


def test_a_figure_depends_on_all_its_settings(tmp_path):
    here = place(tmp_path)
    keys = {figures.key_of("fig-methods", scale, here) for scale in (SMOKE, replace(SMOKE, support=31), PAPER)}
    assert len(keys) == 3


def test_the_ball_round_the_singularity(tmp_path, monkeypatch):
    """A kernel that is exact but for points within 0.05 of the centre has no error away from it."""
    setting = green.SETTINGS["fig-green-disk"]["smoke"]
    rho = torch.linspace(0, 1, 101, dtype=torch.float64)[1:].repeat_interleave(73)
    exact = green.green_disk

    def learned(net, points):
        return torch.where(rho > 0.0501, 1.0, 2.0) * exact(torch.zeros_like(points), points)

    monkeypatch.setattr(green, "_at_centre", learned)
    numbers, _ = green.disk(setting, "cpu", tmp_path)
    assert numbers["error of the kernel at the centre, away from a ball of 0.05"] == 0
    assert numbers["error of the kernel at the centre, in that ball"] == pytest.approx(1)


def test_figure_three_gives_all_networks_the_same_pairs(tmp_path, monkeypatch):
    counts = []
    real, learn = green.fit, green.learn
    monkeypatch.setattr(green, "fit", lambda data, *given, **more: counts.append(len(data)) or real(data, *given, **more))
    monkeypatch.setattr(green, "learn", lambda net, data, *more: counts.append(len(data)) or learn(net, data, *more))
    green.samples(green.SETTINGS["fig-green-2d-samples"]["smoke"], "cpu", tmp_path)
    assert counts == [1, 1, 1, 4, 4, 4]
    assert all(setting.white == 0 for setting in green.SETTINGS["fig-green-2d-samples"].values())


def test_combined_pairs_solve_the_same_equation(rng):
    G = torch.randn(12, 12, generator=rng, dtype=torch.float64)
    weights = torch.rand(12, generator=rng, dtype=torch.float64) + 0.1
    f = torch.randn(12, 5, generator=rng, dtype=torch.float64) * torch.tensor([100.0, 10, 1, 0.1, 0.01], dtype=torch.float64)
    u = G @ (weights[:, None] * f)
    for power in (0.0, 0.5, 1.0):
        f_, u_ = green.combined(f, u, weights, power)
        torch.testing.assert_close(u_, G @ (weights[:, None] * f_))
        products = f_.T @ (weights[:, None] * f_)
        torch.testing.assert_close(products, products.diag().diag(), atol=1e-7, rtol=0)
    torch.testing.assert_close(products, torch.eye(5, dtype=torch.float64), atol=1e-7, rtol=0)


def test_a_kernel_is_learned(tmp_path):
    setting = green.Setting(17, 64, 16, (32, 32), 200, 1e-2, precision="fp64")
    numbers, arrays = green.interval(setting, "cpu", tmp_path)
    before, _ = green.interval(replace(setting, steps=2), "cpu", tmp_path)
    assert len([*tmp_path.iterdir()]) == 1  # the same data
    assert numbers["error of u with the exact kernel"] < 1e-12
    assert numbers["error of the kernel"] < 0.5 * before["error of the kernel"]
    assert arrays["learned"].shape == (17, 17)


def test_a_figure_is_computed_once(tmp_path, monkeypatch):
    here, name = place(tmp_path), "fig-green-1d"
    path = figures.make(name, SMOKE, here)
    written = path.read_bytes()
    assert [p.name for p in figures.pictures(here.results, name)] == ["fig-green-1d.png"]
    assert (here.results / "figures" / "fig-green-1d.pdf").read_bytes().startswith(b"%PDF")
    monkeypatch.setattr(green, "learn", lambda *_: pytest.fail("computed again"))
    (here.results / "figures" / "fig-green-1d.png").unlink()
    figures.make(name, SMOKE, here)  # drawn from what was computed
    assert path.read_bytes() == written
    assert figures.pictures(here.results, name)


@pytest.mark.parametrize("trend", TRENDS, ids=lambda trend: f"{trend.table}: {trend.says}")
def test_the_paper_says_of_its_own_numbers(trend):
    """Asked of the paper's tables, its words hold; turned round, they do not."""
    table = table_named(trend.table)
    errors = {(i, j): x for i, row in enumerate(table.numbers) for j, x in enumerate(row) if x is not None}
    holds, shown = trend.ask(errors)
    assert shown
    assert holds
    wrong = {key: 1 / x if trend.says != "FCN grows with s" else 1.0 for key, x in errors.items()}
    if "flat" in trend.says or "same" in trend.says:
        wrong = {(i, j): x * (1 + j) for (i, j), x in errors.items()}
    assert not trend.ask(wrong)[0]


def test_edges_at_equal_edges_are_those_that_are_counted():
    for r, row in zip(table_named("radius-and-nodes").rows[1], EDGES, strict=True):
        counted = [work._edges(Nystrom(r, m), 121) for m in (100, 200, 400)]
        assert [*row] == [round(count) for count in counted]


@pytest.mark.parametrize(("table", "limit"), [("full-resolution", 1.5), ("sampled-resolution", 1.15), ("methods", 1.2)])
def test_flat_has_a_limit(table, limit):
    trend = next(t for t in TRENDS if t.table == table and ("flat" in t.says or "same" in t.says))
    for factor, holds in ((0.99, True), (1.01, False)):
        errors = {(row, column): 0.05 * (limit * factor if column == 1 else 1) for row in range(5) for column in range(3)}
        assert trend.ask(errors)[0] == holds


def test_a_trend_that_does_not_hold_in_a_step():
    trend = next(t for t in TRENDS if t.says == "the larger m' the better")
    assert trend.ask({(0, j): x for j, x in enumerate((0.10, 0.08, 0.083, 0.06))})[0]  # level within 5 percent
    holds, shown = trend.ask({(0, j): x for j, x in enumerate((0.10, 0.08, 0.085, 0.06))})
    assert not holds
    assert "not in every step" in shown


def test_the_slope_of_the_error_over_epochs():
    """Only of cells that differ in nothing but their epochs."""
    found = []
    for cell in entries_of(CAUSES, "paper", PAPER, 0):
        epochs, change = cell.cell.training.recipe.epochs, CAUSES.rows[1][cell.row]
        error = 2 * epochs**-0.25 if change == "as in table 4" or "instead" in change else 77.0
        found.append(Result(cell, 0.0687, ({"error": {"mean": error}},)))
    assert slope_of(found) == pytest.approx(-0.25)
    assert slope_of(found[:1]) is None
    assert slope_of([]) is None


def test_cells_that_are_far_off_are_told_with_their_epochs(tmp_path, monkeypatch):
    """For a shortened training the page estimates the error with all epochs; for others it gives no such estimate."""
    errors = {run_of("causes", 0, 0).hash: 0.078, run_of("causes", 10, 0).hash: 0.1, run_of("causes", 11, 0).hash: 0.07}
    for name, factor in (("training-size", 1.3), ("sampled-resolution", 1.2)):
        for cell in entries_of(table_named(name), "paper", PAPER, 0):
            errors[cell.cell.hash] = table_named(name).numbers[cell.row][cell.column] * factor

    def known(self, run):
        more = {
            "training": "x",
            "seconds": {"fit": 1.0, "judge": 1.0},
            "jobs": 1,
            "steps": 1,
            "peak_bytes": None,
            "commit": "c",
        }
        return {"cell": plain(run), "error": {"mean": errors[run.hash]}, **more} if run.hash in errors else None

    monkeypatch.setattr(Place, "result", known)
    write_pages(place(tmp_path), PAPER)
    text = (tmp_path / "results" / "README.md").read_text().partition("differ by more than 15 %")[2]
    assert "| Table 2, N = 10, test | 0.1210 | 0.0931 | +30.0 % | 1200 of 2000 | 0.11" in text
    assert "| Table 3, s = 16, s' = 61 | 0.0860 | 0.0717 | +20.0 % | all |  |  |" in text
    assert "21 cells; " in text


def test_what_does_not_depend_on_the_seed_has_no_spread(tmp_path):
    here, table = place(tmp_path), table_named("methods")
    fill([run_of("methods", row, 0, scale=SMOKE, seed=seed) for row in (0, 3) for seed in (0, 1)], here)
    found = {each.entry.row: each for each in results_of(table, "paper", SMOKE, here) if each.found}
    assert {row: len(each.found) for row, each in found.items()} == {0: 2, 3: 1}
    assert "±" in found[0].text
    assert "±" not in found[3].text


def test_differences_are_of_the_mean():
    cell = entries_of(table_named("nodes"), "ours", SMOKE, 0)[0]
    result = Result(cell, 0.0871, ({"error": {"mean": 0.04}}, {"error": {"mean": 0.06}}))
    assert result.difference == pytest.approx(0.05 / 0.0871 - 1)
    assert result.beside == "0.0500 ± 0.0141 (0.0871, -43 %)"
    assert Result(cell, 0.0871, ()).beside == "not run (0.0871)"
    some = Result(cell, 0.0871, ({"error": {"mean": 0.04}}, {"failed": "x"}, {"failed": "y"}))
    assert (some.mean, some.difference, some.text) == (None, None, "2 of 3 diverged")


def test_networks_of_another_kind_and_mixtures_are_runs_like_any_other(tmp_path):
    sizes = (("blocks", 1), ("head", 4), ("kernel", (4,)), ("radius", 0.3), ("slices", 2), ("width", 8))
    recipe = replace(RECIPES["ours"], epochs=1, batch=2)
    data = Data(17, 2, 4, 4, 2, 0.1)
    one = Training(data, "NearFar", sizes, Radius(0.3), recipe, 0, weighted=True)
    mixed = replace(one, more=((1, Nystrom(0.3, 40)),))
    place = Place(tmp_path / "results", tmp_path / "work")
    runs = [Cell(training, 1, Exact(), 2) for training in (one, mixed)]
    assert fill(runs, place) == []
    known = [place.result(run) for run in runs]
    assert [each["steps"] for each in known] == [2, 4]
    assert known[0]["error"]["mean"] != known[1]["error"]["mean"]
