"""gkn bench: a table of times of this machine."""

import json
import re

import pytest

from gkn.study import bench
from gkn.study.suite.tasks import SCALES
from tests.test_cli import run as command


@pytest.fixture
def tiny(monkeypatch):
    for name, value in {"SIDE": 9, "BATCH": 2, "MATRIX": 64, "POINTS": 500, "SOLVED": 17}.items():
        monkeypatch.setattr(bench, name, value)
    monkeypatch.setattr(bench, "SCALES", {"full": SCALES["smoke"]})
    monkeypatch.setattr(bench, "NETWORKS", ("NearFar", "FNO"))


def test_a_table_for_an_issue(tiny, tmp_path, neuraloperator):
    said = command("bench", "--device", "cpu", "--out", tmp_path / "bench.json")
    found = json.loads((tmp_path / "bench.json").read_bytes())
    rows = [row["what"] for row in found["rows"]]
    assert [row for row in rows if "NearFar" in row] == ["NearFar: answer at 9 x 9", "NearFar: training step, 2 x 5 x 5"]
    assert [row for row in rows if "FNO" in row] == ["FNO: answer at 9 x 9", "FNO: training step, 2 x 5 x 5"]
    assert all(row["seconds"] > 0 for row in found["rows"])
    assert len(re.findall(r"\| [\d.]+ m?s \|", said)) == len(rows)
    assert all(f"| {row} |" in said for row in rows)
    assert found["commit"][:10] in said


def test_what_cannot_be_measured_is_said(tiny, monkeypatch):
    def missing(name, *rest):
        raise ImportError(f"no {name}")

    monkeypatch.setattr(bench, "_options", missing)
    said = bench.markdown(bench.measure("cpu"))
    assert "| FNO | not measured | no FNO |" in said


def test_durations_in_words():
    assert [bench.in_words(x) for x in (0.00123, 0.5, 1.0, 123.4, 0.99996, 1234.0)] == [
        "1.23 ms",
        "500 ms",
        "1 s",
        "123 s",
        "1 s",
        "1234 s",
    ]


@pytest.mark.parametrize("name", ["bench.txt", "no-such-folder/bench.json"])
def test_a_file_that_cannot_be_written_is_refused_at_once(tmp_path, name):
    assert "needed a .json file in a folder that exists" in command("bench", "--out", tmp_path / name, code=2)
