"""gkn reproduce, at the scale that takes seconds."""

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from gkn.cli import app
from gkn.study.paper import figures
from gkn.study.paper.scale import SCALES, entries_of
from gkn.study.paper.tables import CHANGES, TABLES, table_named

runner = CliRunner()


def call(*given):
    return runner.invoke(app, ["reproduce", *map(str, given)])


def test_every_table_and_figure(tmp_path):
    """Made from nothing; asked for again, nothing is done; a cell that is lost is done again, and gives what it gave."""
    done = call("all", "--scale", "smoke", "--out", tmp_path)
    assert done.exit_code == 0, done.output
    readme, page = ((tmp_path / name).read_text() for name in ("README.md", "index.html"))
    for table in TABLES:
        assert f"## {table.title}" in readme
        assert table.title.replace("'", "&#x27;") in page
    for name, figure in figures.FIGURES.items():
        assert figure.title in readme
        found = figures.pictures(tmp_path, name)
        assert len(found) == (3 if name == "fig-methods" else 1)
        assert all(path.with_suffix(".pdf").is_file() for path in found)
        assert all(f"figures/{path.name}" in page for path in found)
        numbers = json.loads((tmp_path / "figures" / f"{name}.json").read_text())
        assert {"numbers", "machine", "versions", "commit", "command", "settings"} < {*numbers}
    assert readme.count("| 85 of 85 |") == 2  # by both recipes
    assert "| training pairs | 1 |" in readme  # figure 3, in numbers
    assert "What differs, and why" in readme
    for way in ("partition", "partition, smoothed", "support", "exact", "support, functions of another seed"):
        assert f"| {way} |" in readme
    for change in CHANGES:
        assert f"| {change} |" in readme

    before = {path: path.stat().st_mtime_ns for path in [*(tmp_path / "cells").iterdir(), *(tmp_path / "figures").iterdir()]}
    again = call("all", "--scale", "smoke", "--out", tmp_path, "--recipe", "ours")
    assert again.exit_code == 0
    assert "GKN s=" not in again.output
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert len((tmp_path / "elapsed.jsonl").read_text().splitlines()) == 2

    (tmp_path / "README.md").unlink()
    assert call("--pages", "--scale", "smoke", "--out", tmp_path).exit_code == 0
    assert "| 85 of 85 |" in (tmp_path / "README.md").read_text()

    path = tmp_path / "cells" / f"{entries_of(table_named('nodes'), 'ours', SCALES['smoke'], 0)[5].cell.hash}.json"
    old = json.loads(path.read_text())
    path.unlink()
    again = call("nodes", "--scale", "smoke", "--out", tmp_path, "--recipe", "ours")
    assert again.exit_code == 0
    assert " 1/1 " in again.output
    new = json.loads(path.read_text())["error"]
    assert {*new} == {*old["error"]}
    assert all(new[name] == pytest.approx(value) for name, value in old["error"].items())


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--scale", "huge"], "'huge': use smoke, small, paper"),
        (["--recipe", "theirs"], "'theirs': use paper, ours or both"),
        (["--backend", "slurm", "--jobs", "2"], "'slurm': use loky, dask or ray"),
        (["--backend", "dask"], "say how many trainings at a time: --jobs"),
        (["--scheduler", "tcp://x:1"], "only for --backend dask"),
        (["--seeds", "0"], "greater than or equal to 1"),
        (["--under", "60"], "it is about further seeds: needs --seeds"),
        (["--under", "-1", "--seeds", "2"], "greater than or equal to 0"),
    ],
)
def test_wrong_arguments(given, said):
    done = call("nodes", *given)
    assert done.exit_code == 2
    assert said in " ".join(done.output.replace("│", " ").split())


@pytest.mark.parametrize(("name", "said"), [("table-9", "nothing called 'table-9'"), ("nodes", "holds no results")])
def test_pages_of_nothing(tmp_path, name, said):
    failed = call(name, "--pages", "--out", tmp_path / "x")
    assert failed.exit_code == 1
    assert said in str(failed.exception)
    assert not (tmp_path / "x").exists()


def test_an_unknown_name_is_one_sentence(tmp_path):
    command = [sys.executable, "-m", "gkn", "reproduce", "table-9", "--scale", "smoke", "--out", str(tmp_path / "x")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith(
        "error: nothing called 'table-9' in the paper; there are all, tables, figures, full-resolution"
    )
    assert len(done.stderr.splitlines()) == 1


def test_on_a_dask_cluster(tmp_path):
    """Two workers on the loopback interface; the cells are those of one process."""
    asked = ["full-resolution", "--scale", "smoke", "--recipe", "ours"]
    one, cluster = tmp_path / "one", tmp_path / "dask"
    assert call(*asked, "--out", one).exit_code == 0
    command = [sys.executable, "-m", "gkn", "reproduce", *asked, "--out", str(cluster), "--jobs", "2", "--backend", "dask"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stderr.splitlines() if "Worker process still alive after" not in line]  # on a busy machine
    assert said == []
    cells = [
        {path.name: json.loads(path.read_text())["error"]["mean"] for path in (f / "cells").iterdir()} for f in (one, cluster)
    ]
    assert len(cells[0]) == 6
    assert cells[1] == pytest.approx(cells[0], rel=1e-4)
