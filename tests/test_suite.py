"""The suite: every model gets the same of everything, finished cells are kept, and pages say what they say."""

import json
import re
from dataclasses import replace

import pytest
import torch

from gkn.data import storage
from gkn.data.stepping import Stepping
from gkn.models import MODELS
from gkn.study.suite import run
from gkn.study.suite.pages import write_pages
from gkn.study.suite.run import Cell, fill, length_for, result_of, rows_of, samples_of, specification, ways_of
from gkn.study.suite.tasks import SCALES, models_for, ways
from gkn.study.work import Place
from tests.test_cli import run as command

SMOKE = SCALES["smoke"]
ALL = [(scale, task) for scale in SCALES.values() for task in scale.tasks]


@pytest.fixture
def place(tmp_path):
    return Place(results=tmp_path / "results", work=tmp_path / "work", device="cpu", jobs=1, command="a test")


def cells_of(name, place):
    return next(models for task, models in rows_of(SMOKE, 0).items() if name in task)


@pytest.mark.parametrize("name", ["darcy 2-D", "heat, disk", "plate"])
def test_all_models_get_the_same(name, place):
    """The same samples, inputs, smoothed copies, loss, recipe, stepping and seconds; only what is named below may differ."""
    cells = cells_of(name, place)
    train, _, _ = samples_of(cells["NearFar"].task, place)
    found = {model: specification(cell, train, place) for model, cell in cells.items()}
    ours = found["NearFar"]
    for model, options in found.items():
        differing = {key for key in {*ours, *options} if ours.get(key) != options.get(key)}
        own = {"settings"}
        own |= {"optimizer", "lr"} if model in run.RATES else set()
        own |= {"rule"} if model not in ("NearFar", "GKN", "Multigrid") else set()
        assert differing <= own, model
        assert cells[model].seconds == cells["NearFar"].seconds
        assert cells[model].task == cells["NearFar"].task


def test_rows_have_the_models_that_fit():
    for scale, task in ALL:
        names = models_for(task, scale)
        assert {"NearFar", "Multigrid", "Transformer", "SliceAttention"} <= {*names} <= {*MODELS}
        assert ("FNO" in names) == task.grids
        assert ("GKN" in names) == task.kernels


def test_all_problems_of_the_issue_are_rows():
    problems = {task.problem for task in SCALES["full"].tasks}
    wanted = {"darcy", "darcy-fg", "darcy-mesh", "poisson", "plate", "layer-potential", "heat", "wave", "burgers"}
    assert problems == wanted | {"navier-stokes"}


def test_the_ways_are_all_combinations():
    found = ways(SMOKE.tasks[0])
    assert {(each.target, each.pairs, last) for each, last in found.values()} == {
        (target, pairs, last)
        for target in ("value", "difference", "quotient")
        for pairs in ("one", "all")
        for last in (None, 0.1)
    }
    assert {*ways_of(SMOKE, 0)} == {*found}


def test_a_cell_is_kept_and_not_trained_again(place, monkeypatch):
    cells = [cells_of("poisson", place)[name] for name in ("NearFar", "Transformer")]
    assert fill(cells, place) == []
    first = [result_of(cell, place) for cell in cells]
    assert all(each["error"]["mean"] > 0 for each in first)
    assert first[0]["commit"]
    assert first[0]["command"] == "a test"
    monkeypatch.setattr(run, "do", lambda *_: pytest.fail("trained again"))
    assert fill(cells, place) == []
    page = write_pages(place, SMOKE).with_name("README.md").read_text()
    assert "poisson, mesh" in page
    assert f"{first[0]['error']['mean']:.4f}" in page


def test_damaged_cells_are_done_again(place):
    cell = cells_of("poisson", place)["Transformer"]
    fill([cell], place)
    path = run.file_of(cell, place)
    path.write_text(path.read_text()[:-20])
    assert result_of(cell, place) is None
    fill([cell], place)
    assert result_of(cell, place) is not None


def test_other_seconds_or_steppings_are_other_cells(monkeypatch):
    cell = rows_of(SMOKE, 0)["heat, disk"]["NearFar"]
    others = [replace(cell, seconds=9.0), replace(cell, seed=1), replace(cell, unroll=0.1)]
    others.append(replace(cell, task=replace(cell.task, stepping=Stepping(target="value", clock=False))))
    others.append(replace(cell, task=replace(cell.task, noise=0.02)))
    assert len({each.hash for each in (cell, *others)}) == 6
    before = cell.hash
    monkeypatch.setattr(run, "FORM", run.FORM + 1)
    assert cell.hash != before
    monkeypatch.undo()
    assert replace(cell, task=replace(cell.task, published=())).hash == cell.hash


def test_the_length_of_a_training_follows_from_its_seconds(place):
    cell = cells_of("heat, disk", place)["NearFar"]
    train, _, _ = samples_of(cell.task, place)
    options = specification(cell, train, place)
    counted = []
    for seconds in (1.0, 50.0):
        length = length_for(replace(cell, seconds=seconds), train, options, place)
        graphs = length.get("per_epoch", len(train.pairs(cell.task.stepping)))
        counted.append(length["epochs"] * -(-graphs // 4))
    assert 8 < counted[1] / counted[0] < 300


def test_a_failure_is_kept_as_such_and_shown(place, monkeypatch):
    from gkn.data.sample import BadNumbers

    cell: Cell = cells_of("poisson", place)["NearFar"]

    def diverge(*_):
        raise BadNumbers("the loss is nan")

    monkeypatch.setattr(run, "do", diverge)
    fill([cell], place)
    assert result_of(cell, place)["failed"] == "the loss is nan"
    assert "diverged" in write_pages(place, SMOKE).with_name("README.md").read_text()


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [(["--scale", "huge"], "smoke, small, medium, full"), (["tables"], "problems or ways"), (["--only", "chess"], "darcy 2-D")],
)
def test_the_command_line_refuses_what_there_is_not(arguments, wanted, tmp_path):
    assert wanted in command("suite", *arguments, "--out", tmp_path / "x", code=2)


def test_a_row_by_the_command_line(tmp_path):
    place = ["--out", tmp_path / "r", "--work", tmp_path / "w", "--device", "cpu"]
    said = command("suite", "problems", "--only", "wave", "--model", "Transformer", *place)
    assert "wave, l-shape: Transformer, seed 0" in said
    (file,) = (tmp_path / "r" / "cells").iterdir()
    assert json.loads(file.read_text())["cell"]["model"] == "Transformer"
    command("suite", "--pages", *place)


def test_files_that_pages_name_are_there(place):
    """Pictures of answers and of errors over time, and nothing else."""
    fill([cells_of("heat, disk", place)["NearFar"]], place)
    folder = write_pages(place, SMOKE).parent
    text = (folder / "README.md").read_text() + (folder / "index.html").read_text()
    named = {*re.findall(r"\]\((.*?)\)", text), *re.findall(r'(?:src|href)="(.*?)"', text)}
    assert len(named) == 2
    assert all((folder / each).is_file() for each in named)


def test_samples_that_were_made_elsewhere_are_taken(place):
    """A machine with a GPU may lack the libraries that meshes are made with, and has other versions of all."""
    cell = cells_of("poisson, mesh", place)["NearFar"]
    parameters = tuple(sorted(cell.task.parameters.items()))
    whole = run._made(cell.task.problem, parameters, 8, 0, place.work, "cpu")
    folder = next((place.work / "data").glob("poisson-*"))
    replace(storage.Manifest.read(folder), versions={"gkn": "of another machine"}).write(folder)
    run._made.cache_clear()
    again = run._made(cell.task.problem, parameters, 8, 0, place.work, "cpu")
    assert torch.equal(again.field("u"), whole.field("u"))
    header = storage.Manifest.read(folder)
    replace(header, origin={**header.origin, "size": 9}).write(folder)  # a default has changed since
    run._made.cache_clear()
    with pytest.raises(ValueError, match="size"):
        run._made(cell.task.problem, parameters, 8, 0, place.work, "cpu")


def test_symmetries_are_drawn_for_all_models_where_the_law_has_them(place):
    for name, wanted in (("darcy 2-D", True), ("plate", None)):
        cells = cells_of(name, place)
        train, _, _ = samples_of(cells["NearFar"].task, place)
        assert {specification(cell, train, place).get("symmetries") for cell in cells.values()} == {wanted}
