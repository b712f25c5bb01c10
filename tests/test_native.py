"""gkn.system.native: C++ that is compiled where it runs, or not."""

import os
import subprocess
import sys
import warnings

import pytest
import torch

from gkn.geometry.grid import Grid
from gkn.graph.neighbors import radius_graph
from gkn.models import NearFar
from gkn.ops import balls, near_cpp
from gkn.system import native

GOOD = 'extern "C" int answer() { return 42; }\n'


@pytest.fixture
def source(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("GKN_COMPILE", raising=False)
    path = tmp_path / "answer.cpp"
    path.write_text(GOOD)
    native.library.cache_clear()
    yield path
    native.library.cache_clear()


def kept(source):
    return sorted(path.name for path in (source.parent / "cache" / "gkn").iterdir())


def test_it_is_compiled_once_for_one_text(source, monkeypatch):
    assert native.library(source).answer() == 42
    first = kept(source)
    assert len(first) == 1
    assert first[0].startswith("answer-")
    native.library.cache_clear()
    monkeypatch.setattr(native, "_compile", None)  # not called again
    assert native.library(source).answer() == 42
    monkeypatch.undo()


def test_another_text_is_another_library(source):
    native.library(source)
    source.write_text(GOOD.replace("42", "43"))
    native.library.cache_clear()
    assert native.library(source).answer() == 43
    assert len(kept(source)) == 2


def test_a_broken_file_is_compiled_again(source):
    native.library(source)
    (name,) = kept(source)
    path = source.parent / "cache" / "gkn" / name
    path.unlink()
    path.write_bytes(b"no library")
    native.library.cache_clear()
    assert native.library(source).answer() == 42


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"CXX": "no-such-compiler"}, "no C\\+\\+ compiler found \\(no-such-compiler\\)"),
        ({"PATH": "/nowhere"}, "no C\\+\\+ compiler found"),
        ({"CXX": "false"}, "false: exit status 1"),
        ({"GKN_COMPILE": "0"}, "GKN_COMPILE=0"),
    ],
)
def test_why_there_is_none(source, monkeypatch, change, said):
    for name, value in change.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(native.NotCompiled, match=said):
        native.library(source)
    assert not (source.parent / "cache" / "gkn").exists() or kept(source) == []


def test_an_error_in_the_text_is_named(source):
    source.write_text("int answer() { return none; }\n")
    with pytest.raises(native.NotCompiled, match=r"answer.cpp:1:.*none"):
        native.library(source)
    assert kept(source) == []


def test_a_folder_nobody_can_write_to(source, monkeypatch):
    (source.parent / "cache").write_text("a file")
    assert native.library(source).answer() == 42


def test_many_processes_at_once(source):
    """They all get it, and one file is left."""
    code = f"from pathlib import Path; from gkn.system import native; print(native.library(Path({str(source)!r})).answer())"
    runs = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=os.environ) for _ in range(4)]
    assert [run.communicate()[0].strip() for run in runs] == [b"42"] * 4
    assert len(kept(source)) == 1


def test_without_a_compiler_networks_are_right_and_one_sentence_says_so(monkeypatch):
    points = Grid(9).points
    graph, x, a = radius_graph(points, r=0.3), points.float(), torch.randn(81, 1)
    model = NearFar(2, width=8, blocks=1, slices=2, head=4, kernel=(4, 2), radius=0.3)
    wanted = model(graph, x, a)
    monkeypatch.setattr(near_cpp, "why_not", lambda: "no C++ compiler found (c++)")
    balls._say_once.cache_clear()
    with pytest.warns(UserWarning, match="several times slower here than they could be: no C\\+\\+ compiler found"):
        found = model(graph, x, a)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model(graph, x, a)
    model.backend = "compiled"
    with pytest.raises(ValueError, match="backend='compiled' cannot be used here: no C\\+\\+ compiler"):
        model(graph, x, a)
    balls._say_once.cache_clear()
