"""gkn reproduce, at the scale that takes seconds."""

import json
import subprocess
import sys

import pytest
import torch
from typer.testing import CliRunner

from gkn.cli import app
from gkn.paper import figures
from gkn.paper.tables import TABLES

runner = CliRunner()


def call(*given):
    return runner.invoke(app, ["reproduce", *map(str, given)])


@pytest.fixture(scope="module")
def everything(tmp_path_factory):
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("paper")
    done = call("all", "--scale", "smoke", "--out", folder)
    assert done.exit_code == 0, done.output
    return folder


def test_every_table_and_figure_is_made(everything):
    readme, page = ((everything / name).read_text() for name in ("README.md", "index.html"))
    for table in TABLES:
        assert f"## {table.title}" in readme
        assert table.title.replace("'", "&#x27;") in page
    for name, figure in figures.FIGURES.items():
        assert figure.title in readme
        found = figures.pictures(everything, name)
        assert len(found) == (3 if name == "fig-methods" else 1)
        assert all(path.with_suffix(".pdf").is_file() for path in found)
        assert all(f"figures/{path.name}" in page for path in found)
        numbers = json.loads((everything / "figures" / f"{name}.json").read_text())
        assert {"numbers", "machine", "versions", "commit", "command", "settings"} < {*numbers}
    assert "not run" not in readme
    assert readme.count("85 of 85") == 2
    assert "What differs, and why" in readme
    for way in ("partition", "partition, smoothed", "support", "exact"):
        assert f"| {way} |" in readme


def test_again_nothing_is_done(everything):
    before = {path: path.stat().st_mtime_ns for path in (everything / "cells").iterdir()}
    again = call("all", "--scale", "smoke", "--out", everything)
    assert again.exit_code == 0
    assert "GKN s=" not in again.output
    assert {path: path.stat().st_mtime_ns for path in (everything / "cells").iterdir()} == before


def test_a_cell_that_is_lost_is_done_again(everything):
    path = sorted((everything / "cells").iterdir())[0]
    old = json.loads(path.read_text())
    path.unlink()
    again = call("tables", "--scale", "smoke", "--out", everything, "--recipe", "both")
    assert again.exit_code == 0
    assert " 1/1 " in again.output
    assert json.loads(path.read_text())["error"] == pytest.approx(old["error"])


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--scale", "huge"], "'huge': use smoke, small, paper"),
        (["--recipe", "theirs"], "'theirs': use paper, ours or both"),
        (["--backend", "slurm", "--jobs", "2"], "'slurm': use loky, dask or ray"),
        (["--backend", "dask"], "say how many trainings at a time: --jobs"),
        (["--scheduler", "tcp://x:1"], "only for --backend dask"),
        (["--seeds", "0"], "0 is not in the"),
    ],
)
def test_wrong_arguments(given, said):
    done = call("nodes", *given)
    assert done.exit_code == 2
    assert said in " ".join(done.output.replace("│", " ").split())


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
    command = [sys.executable, "-m", "gkn", "reproduce", "full-resolution", "--scale", "smoke", "--recipe", "ours"]
    for name, more in (("one", []), ("dask", ["--jobs", "2", "--backend", "dask"])):
        done = subprocess.run([*command, "--out", str(tmp_path / name), *more], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
    cells = [
        {path.name: json.loads(path.read_text())["error"]["mean"] for path in (tmp_path / name / "cells").iterdir()}
        for name in ("one", "dask")
    ]
    assert len(cells[0]) == 6
    assert cells[1] == pytest.approx(cells[0], rel=1e-4)
