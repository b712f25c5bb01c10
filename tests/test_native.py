"""gkn.system.native: C++ that is compiled where it runs, or not."""

import os
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

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
    for name in ("GKN_COMPILE", "CXX"):
        monkeypatch.delenv(name, raising=False)
    path = tmp_path / "answer.cpp"
    path.write_text(GOOD)
    native.library.cache_clear()
    yield path
    native.library.cache_clear()


def kept(source):
    folder = source.parent / "cache" / "gkn" / "compiled"
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


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


def test_a_machine_without_a_compiler_uses_what_another_one_compiled(source, monkeypatch):
    native.library(source)
    native.library.cache_clear()
    monkeypatch.setenv("PATH", "/nowhere")
    assert native.library(source).answer() == 42


@pytest.mark.parametrize("damage", [lambda data: b"no library", lambda data: data[:3000], lambda data: data[:-9] + bytes(9)])
def test_a_damaged_file_is_compiled_again_and_never_loaded(source, damage):
    """A library that is cut short has a sound header: loading it could end the process."""
    native.library(source)
    (name,) = kept(source)
    path = source.parent / "cache" / "gkn" / "compiled" / name
    whole = path.read_bytes()
    path.unlink()
    path.write_bytes(damage(whole))
    native.library.cache_clear()
    assert native.library(source).answer() == 42
    assert path.read_bytes() == whole


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"CXX": "no-such-compiler"}, "no C\\+\\+ compiler found \\(no-such-compiler\\)"),
        ({"PATH": "/nowhere"}, "no C\\+\\+ compiler found"),
        ({"CXX": "false"}, "false: exit status 1"),
        ({"CXX": "cat"}, "cat: "),
        ({"CXX": "c++ '"}, "CXX=c\\+\\+ ': No closing quotation"),
        ({"GKN_COMPILE": "0"}, "GKN_COMPILE=0"),
    ],
)
def test_why_there_is_none(source, monkeypatch, change, said):
    for name, value in change.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(native.NotCompiled, match=said):
        native.library(source)
    assert kept(source) == []


def test_a_compiler_that_hangs_is_stopped_with_all_that_it_started(source, monkeypatch):
    script, began = source.parent / "slow", source.parent / "began"
    script.write_text(f"#!/bin/sh\nsleep 600 &\necho $! > {began}\nwait\n")
    script.chmod(0o755)
    monkeypatch.setenv("CXX", str(script))
    monkeypatch.setattr(native, "SECONDS", 4)
    with pytest.raises(native.NotCompiled, match="slow: not done after 4 s"):
        native.library(source)
    last = time.monotonic() + 10
    while is_running(began.read_text().strip()) and time.monotonic() < last:
        time.sleep(0.01)
    assert not is_running(began.read_text().strip())


def is_running(process):
    """False as well for a process that has ended and that nobody has asked about."""
    try:
        return Path("/proc", process, "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_an_error_in_the_text_is_named(source):
    source.write_text("int answer() { return none; }\n")
    with pytest.raises(native.NotCompiled, match=r"answer.cpp:1:.*none"):
        native.library(source)
    assert kept(source) == []


def test_a_folder_nobody_can_write_to(source, monkeypatch):
    """It is compiled for this process alone, and nothing is left of it."""
    (source.parent / "cache").write_text("a file")
    own = source.parent / "own"
    own.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(own))
    assert native.library(source).answer() == 42
    assert list(own.iterdir()) == []


def test_a_user_without_a_home(source, monkeypatch):
    def no_home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(native.Path, "home", no_home)
    assert native.library(source).answer() == 42


def test_a_folder_that_others_can_write_to_is_not_used(source):
    """They could put a library of theirs there."""
    folder = source.parent / "cache" / "gkn" / "compiled"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    assert native.library(source).answer() == 42
    assert kept(source) == []


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
