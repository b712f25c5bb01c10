"""Every verb, as a person types it."""

import io
import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import numpy as np
import pytest

from gkn import Dataset
from gkn.cli import VERBS, command_of, main
from gkn.data.storage import Manifest


def run(*words, code=0, cwd=None):
    """In this process, which has paid for importing torch already."""
    out, handlers = io.StringIO(), {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(out):
        patch.setattr(sys, "argv", ["gkn", *map(str, words)])
        patch.setenv("COLUMNS", "100")
        patch.chdir(cwd or Path.cwd())
        try:
            main()
            status = 0
        except SystemExit as stop:
            status = stop.code or 0
    for number, handler in handlers.items():
        signal.signal(number, handler)
    assert status == code, (words, out.getvalue())
    # Boxes and line breaks depend on the terminal's width, words do not.
    return " ".join(re.sub("[│╭╮╰╯─]", " ", out.getvalue()).split())


def test_info_says_how_the_kernel_integral_is_computed_and_why():
    said = run("info")
    assert "kernel integral in float32: factored (cpu: plain PyTorch; Triton needs an NVIDIA GPU)" in said
    assert "on the CPU in float32: balls compiled, products" in said
    assert "GiB free" in said
    assert "torch" in said
    assert "no such option" in run("info", "--fast", code=2).lower()


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cli") / "d"
    said = run(
        "data", "make", "darcy", "--n", 20, "--size", 13, "--set", "modes=8", "--seed", 3, "--workers", 1, "--out", folder
    )
    assert "Dataset(20 samples, a -> u, on a grid of 13 x 13)" in said
    return folder


def test_help():
    assert "data" in run("--help")
    assert re.search(r"^gkn \d", run("--version"))
    for verb in ("make", "import", "info", "check", "show"):
        assert "Usage" in run("data", verb, "--help")
    assert "darcy-mesh" in run("data", "make", "--help")


def commands(command):
    return [each for one in getattr(command, "commands", {}).values() for each in commands(one)] or [command]


@pytest.mark.parametrize(
    ("before", "set_to", "wanted"),
    [
        ("", {}, "1000"),
        ("import torch", {}, "None"),
        ("", {"OMP_WAIT_POLICY": "ACTIVE"}, "None"),
        ("", {"GOMP_SPINCOUNT": "7"}, "7"),
    ],
)
def test_waiting_threads_sleep_soon_unless_the_user_said_otherwise(before, set_to, wanted):
    code = f"{before}\nimport gkn, os; print(os.environ.get('GOMP_SPINCOUNT'))"
    usual = {key: value for key, value in os.environ.items() if key not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    done = subprocess.run([sys.executable, "-c", code], env={**usual, **set_to}, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == wanted


def test_no_two_options_of_a_verb_have_one_name():
    """Of two options with one name, only one can be given, without a word."""
    for command in [one for name in VERBS for one in commands(command_of(name))]:
        names = [name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)]
        assert [name for name in {*names} if names.count(name) > 1] == [], command.name


def test_help_says_all_that_is_written():
    """Square brackets would be taken for markup, and left out."""
    found = [parameter for name in VERBS for one in commands(command_of(name)) for parameter in one.params]
    assert len(found) > 80
    assert [each.name for each in found if "[" in (getattr(each, "help", None) or "")] == []


def test_make_again_says_it_is_there(made):
    before = Dataset.open(made).manifest.hash
    run("data", "make", "darcy", "--n", 20, "--size", 13, "--set", "modes=8", "--seed", 3, "--workers", 2, "--out", made)
    assert Dataset.open(made).manifest.hash == before


def test_info_check_show(made, tmp_path):
    said = run("data", "info", made)
    for words in (
        "origin darcy",
        "size = 13",
        "seed 3",
        "samples 20",
        "a grid of 13 x 13",
        "a -> u",
        Dataset.open(made).manifest.hash,
    ):
        assert words in said
    said = run("data", "check", made)
    assert said.count("ok ") == 7
    run("data", "show", made, "--out", tmp_path / "p.png")
    assert (tmp_path / "p.png").stat().st_size > 10_000


def test_check_of_damaged_data_fails(made, tmp_path):
    shutil.copytree(made, tmp_path / "d")
    path = tmp_path / "d/shard-00000.h5"
    path.write_bytes(b"x" + path.read_bytes()[1:])
    assert "BAD hashes" in run("data", "check", tmp_path / "d", code=1)
    assert "error:" in run("data", "show", tmp_path / "d", "--out", tmp_path / "p.png", code=1)


def test_names_with_markup_in_them(tmp_path):
    said = run("data", "make", "darcy", "--n", 1, "--size", 5, "--set", "modes=4", "--out", tmp_path / "x[red]y[/foo]")
    assert "x[red]y[/foo]: Dataset(1 samples" in said


def test_show_with_nothing_to_show(tmp_path):
    manifest = Manifest(3, ("a",), ("u",), {"kind": "grid", "size": 9, "dim": 2}, {"name": "darcy"}, 0, {})
    manifest.write(tmp_path)
    assert "no sample is finished yet" in run("data", "show", tmp_path, "--out", tmp_path / "p.png", code=1)
    assert "0 of 3: unfinished" in run("data", "info", tmp_path)
    assert "0 of 3 samples" in run("data", "check", tmp_path, code=1)


def test_import(tmp_path):
    x = np.random.default_rng(0).random((20, 2))
    np.savez(tmp_path / "x.npz", points=x, k=x[:, :1].T, p=x[:, 1:].T)
    assert "1 samples, k -> p" in run(
        "data", "import", tmp_path / "x.npz", "--output", "p", "--input", "k", "--out", tmp_path / "d"
    )
    assert "origin import, files = ['x.npz']" in run("data", "info", tmp_path / "d")
    assert "ok finite" in run("data", "check", tmp_path / "d")


def test_config_fills_flags_and_flags_win(tmp_path):
    (tmp_path / "c.toml").write_text('n = 3\nsize = 9\nset = ["modes=8"]\nworkers = 1\n')
    run("data", "make", "darcy", "--config", tmp_path / "c.toml", "--size", 11, "--out", tmp_path / "d")
    dataset = Dataset.open(tmp_path / "d")
    assert len(dataset) == 3
    assert dataset.domain.size == 11
    (tmp_path / "bad.toml").write_text("colour = 3")
    assert "no such option 'colour'" in run(
        "data", "make", "darcy", "--config", tmp_path / "bad.toml", "--out", tmp_path / "e", code=2
    )
    (tmp_path / "worse.toml").write_text("[[[[")
    assert "not TOML" in run("data", "make", "darcy", "--config", tmp_path / "worse.toml", "--out", tmp_path / "e", code=2)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ("data make navier --out {tmp}/x", 1, "no problem 'navier'; there are "),
        ("data make darcy --out {tmp}/x --set colour=1", 1, "problem darcy has no parameter 'colour'"),
        ("data make darcy --out {tmp}/x --set tau", 1, "needed KEY=VALUE"),
        ("data make darcy --out {tmp}/x --set tau=much", 1, "'much' is not"),
        ("data make darcy --out {tmp}/x --set low=-1 --n 1 --size 5", 1, "0 < low <= high"),
        ("data make darcy --out {tmp}/x --n 0", 2, "--n"),
        ("data make darcy --out {tmp}/x --size 2", 1, "at least 3 points a side"),
        ("data make darcy-mesh --out {tmp}/x --set vary=treu", 1, "vary is true or false"),
        ("data make darcy --out {tmp}/x --set tau=1e200", 1, "no finite number"),
        ("data make darcy --out {tmp}/x --set modes=200000", 1, "too many"),
        ("data make darcy --out {tmp}/x --set dim=3 --size 10000000", 1, "too many for any machine"),
        ("data show {made} --out {tmp}/noext", 1, "needed a file name that ends in .png"),
        ("data info {tmp}/nope\\[/foo]", 1, "nope\\[/foo]: no such folder"),
        ("data check {made} --device cuda", 1, "no usable CUDA device"),
        ("data make darcy --out {tmp}/x --device cuda --n 1", 1, "no usable CUDA device"),
        ("data make darcy --out {tmp}/x --device toaster --n 1", 1, "toaster"),
        ("data make darcy", 2, "--out"),
        ("data make darcy-mesh --set shape=torus --out {tmp}/x", 1, "use one of square, holes, l-shape, disk"),
        ("data make darcy --size 15 --out {made}", 1, "holds another dataset"),
        ("data import {tmp}/none.mat --out {tmp}/x", 1, "no such file"),
        ("data import {tmp} --out {tmp}/x --nodes corners", 2, "vertices, centres or left"),
        ("data info {tmp}", 1, "not a dataset, it has no dataset.json"),
        ("data check {tmp}/nowhere", 1, "no such folder"),
        ("data check {made} --pde heat", 2, "use darcy or poisson"),
        ("data show {made} --out {tmp}/x.docx", 1, "docx"),
        ("data dance", 2, "No such command 'dance'"),
    ],
)
def test_wrong_arguments(words, code, said, made, tmp_path, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    filled = [word.format(tmp=tmp_path, made=made) for word in words.split()]
    assert said in run(*filled, code=code)
    assert not (tmp_path / "x").exists() or not [*(tmp_path / "x").glob("*.h5")]
