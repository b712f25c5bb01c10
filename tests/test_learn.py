"""gkn train, eval, predict, info and demo, as a person types them."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch

import gkn
from gkn import Dataset, Grid, Mesh, Radius, load, relative_l2
from gkn.data.readers import read_sample
from gkn.data.writers import save
from gkn.graph.rules import usual_radius
from gkn.operator.checkpoint import Checkpoints
from gkn.system.files import write_sealed_json
from tests.test_cli import run

SMALL = [
    "--model",
    "GKN",
    "--train",
    "6",
    "--validation",
    "3",
    "--no-shuffle",
    "--m",
    "40",
    "--r",
    "0.4",
    "--epochs",
    "4",
    "--batch",
    "3",
    "--device",
    "cpu",
]
SMALL += ["--network", "width=6", "--network", "kernel=6,8", "--network", "steps=2"]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("learn") / "data"
    run("data", "make", "darcy", "--n", 10, "--size", 13, "--set", "modes=8", "--workers", 1, "--out", folder)
    return folder


@pytest.fixture(scope="module")
def trained(data):
    folder = data.parent / "run"
    said = run("train", data, "--out", folder, *SMALL, "--unit", "u=m", "--unit", "a=m2/s")
    assert re.search(r"run: 4 epochs, loss [\d.]+, validation error [\d.]+, \d+ s; the operator is in .*operator", said)
    return folder


def test_train_and_info(data, trained):
    said = run("info", trained)
    for word in (
        "epoch 4 of 4",
        "validation error",
        "kernel 6, 8",
        "Nystrom",
        "a smoothed by 0.1 -> u; a in m2/s; u in m",
        "edges/s",
    ):
        assert word in said.replace("; u in m; a in m2/s", "; a in m2/s; u in m"), (word, said)
    assert "unfinished" not in said
    operator = run("info", trained / "operator")
    assert "parameters" in operator
    assert "command gkn train" in operator
    assert "origin darcy" in run("info", data)
    assert "pretrained" in run("info")
    assert "no run, operator or dataset" in run("info", data.parent, code=1)


def test_run_again_goes_on_and_refuses_another(data, trained):
    assert "4 epochs" in run("train", data, "--out", trained, *SMALL, "--unit", "u=m", "--unit", "a=m2/s")
    said = run("train", data, "--out", trained, *SMALL, "--lr", "0.1", "--unit", "u=m", "--unit", "a=m2/s", code=1)
    assert "holds another run: recipe.lr = 0.002 there, 0.1 here" in said


def test_eval_writes_a_table_and_json(data, trained, tmp_path):
    assert "relative l2 error on 1 unseen samples" in run(
        "eval", trained, data, "--device", "cpu"
    )  # neither learned nor chosen by
    said = run("eval", trained, data, "--on", "validation", "--every", 1, "--every", 2, "--device", "cpu")
    assert "relative l2 error on 3 validation samples" in said
    assert "nearest training sample" in said
    assert "a grid of 13 x 13" in said
    assert "a grid of 7 x 7" in said
    found = json.loads((trained / "eval.json").read_text())
    operator, test = load(trained, best=True), Dataset.open(data).take([7, 8, 9])
    assert found["errors"][0]["each"] == relative_l2(operator, test).each.tolist()
    assert found["errors"][1]["mean"] == relative_l2(operator, test.every(2)).mean
    for how in (["partition"], ["spread"], ["support", "--l", 2], ["sampled"]):
        said = run(
            "eval", trained, data, "--on", "all", "--how", *how, "--m", 30, "--out", tmp_path / "x.json", "--device", "cpu"
        )
        assert json.loads((tmp_path / "x.json").read_text())["errors"][0]["samples"] == 10
        assert "these samples include those that were learned from" in said
        shown = (tmp_path / "report-all.html").read_text().count(f"The picture is computed with {how[0].capitalize()}(m=30")
        assert shown == (0 if how[0] == "sampled" else 3)  # as the errors are
    page = (trained / "report-validation.html").read_text()
    assert "mean of the training samples" in page
    assert page.count("data:image/png;base64,") == 4  # learning curves; worst, median and best answer


def test_a_new_process_repeats_the_numbers_to_the_last_bit(data, trained, tmp_path):
    here = relative_l2(load(trained, best=True), Dataset.open(data)).each.tolist()
    command = [
        sys.executable,
        "-m",
        "gkn",
        "eval",
        str(trained),
        str(data),
        "--on",
        "all",
        "--out",
        str(tmp_path / "x.json"),
        "--device",
        "cpu",
    ]
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert json.loads((tmp_path / "x.json").read_text())["errors"][0]["each"] == here


def test_predict_on_a_grid_and_on_a_mesh(data, trained, tmp_path):
    sample = Dataset.open(data)[9]
    save(tmp_path / "in.npz", sample.domain, {"a": sample.a[:, 0], "u": sample.u[:, 0]})
    said = run("predict", trained, "--input", tmp_path / "in.npz", "--out", tmp_path / "out.npz", "--device", "cpu")
    operator = load(trained, best=True)
    wanted = operator(operator.ready(Dataset.open(data))[9])[:, 0].double()
    domain, found = read_sample(tmp_path / "out.npz")
    assert domain == Grid(13)
    assert torch.equal(found["u"], wanted)
    assert torch.equal(found["a"], sample.a[:, 0])
    w = sample.weights.sqrt()
    error = float((w * (wanted - sample.u[:, 0])).norm() / (w * sample.u[:, 0]).norm())
    assert f"u at 169 points; relative error of u {error:.4f}" in said
    assert torch.equal(found["u_truth"], sample.u[:, 0])
    assert torch.equal(found["u_error"], wanted - sample.u[:, 0])
    mesh = Mesh.square(0.2)
    save(tmp_path / "in.vtu", mesh, {"a": 3 + 9 * (mesh.points[:, 0] > 0.5).double()})
    run("predict", trained, "--input", tmp_path / "in.vtu", "--out", tmp_path / "out.vtu", "--how", "support", "--m", 20)
    domain, found = read_sample(tmp_path / "out.vtu")
    assert len(domain) == len(mesh)
    assert torch.isfinite(found["u"]).all()


def test_predict_at_points(data, trained, tmp_path):
    sample = Dataset.open(data)[9]
    save(tmp_path / "in.npz", sample.domain, {"a": sample.a[:, 0]})
    points = np.random.default_rng(0).random((5, 2))
    np.save(tmp_path / "p.npy", points)
    words = ["predict", trained, "--input", tmp_path / "in.npz", "--at", tmp_path / "p.npy", "--device", "cpu"]
    assert "u at 5 points" in run(*words, "--out", tmp_path / "out.npz")
    operator = load(trained, best=True)
    wanted = operator(operator.ready(Dataset.open(data))[9], at=torch.from_numpy(points))[:, 0].double()
    with np.load(tmp_path / "out.npz") as found:
        assert np.array_equal(found["u"], wanted.numpy())
        assert np.array_equal(found["points"], points)
    run(*words, "--out", tmp_path / "out.vtu")
    assert 'NumberOfPoints="5"' in (tmp_path / "out.vtu").read_text()


def test_strange_input_is_answered_with_a_warning(trained, tmp_path):
    save(tmp_path / "in.npz", Grid(13), {"a": torch.full((169,), 1e4, dtype=torch.float64)})
    said = run("predict", trained, "--input", tmp_path / "in.npz", "--out", tmp_path / "out.npz")
    assert "a is 1e+04, in training it was between 3 and 12; do not trust the answer" in said


def test_pretrained(data, tmp_path):
    sample = Dataset.open(data)[9]
    save(tmp_path / "in.npz", sample.domain, {"a": sample.a[:, 0], "u": sample.u[:, 0]})
    said = run("predict", "--pretrained", "darcy", "--input", tmp_path / "in.npz", "--out", tmp_path / "out.npz")
    assert float(re.search(r"error of u ([\d.]+)", said)[1]) < 0.2  # coarse data of few modes, not what it was made for


def test_wrong_words(data, trained, tmp_path):
    out = tmp_path / "x"
    for words, code, said in (
        (["train", data], 2, "Missing option '--out'"),
        (["train", data, "--out", out, "--recipe", "best"], 1, "no recipe 'best'; there are paper, ours"),
        (["train", data, "--out", out, "--input", "b"], 1, "no field 'b' in this dataset; it has a, u"),
        (["train", data, "--out", out, "--train", 9, "--test", 9], 1, "9 samples to learn from, 0 to validate and 9 to test"),
        (["train", data, "--out", out, "--split", "0.8"], 2, "needed three shares, e.g. 0.8,0.1,0.1"),
        (["train", data, "--out", out, "--size", "huge"], 1, "NearFar of size 'huge'; it has small, medium, large"),
        (["eval", trained, data, "--on", "mars"], 2, "use test, unseen, validation, train or all"),
        (["train", data, "--out", out, "--network", "kernel=a,b"], 2, "needed a number or a list of numbers, e.g. 128,256"),
        (["train", data, "--out", out, "--set", "warm"], 1, "needed KEY=VALUE"),
        (["train", data, "--out", out, "--set", "clip=much"], 1, "clip is a number of type float, 'much' is not"),
        (["train", data, "--out", out, "--set", "hurry=1"], 1, "a recipe has no 'hurry'; it has epochs"),
        (["train", data, "--out", out, "--device", "tpu"], 1, "use cpu or cuda"),
        (["train", data, "--out", out, "--unit", "Pa"], 2, "needed FIELD=UNIT"),
        (
            ["train", data, "--out", out, "--smooth", 0.1, "--input", "u", "--output", "a"],
            1,
            "no input 'a' to smooth in this dataset; it has u",
        ),
        (["eval", trained, data, "--how", "guess"], 2, "use one of exact, spread, support, partition, sampled"),
        (["eval", trained, data, "--how", "support"], 2, "support needs --m NODES"),
        (["eval", trained, data, "--m", 5], 2, "exact takes all points"),
        (["eval", data, data], 1, "no operator, it has no operator.json"),
        (["predict", trained, "--input", out, "--out", "y.txt"], 1, "by its ending: "),
        (["predict", "--input", out, "--out", "y.npz"], 2, "say which operator"),
        (["predict", "--pretrained", "mars", "--input", out, "--out", "y.npz"], 1, "no pretrained operator 'mars'; there are"),
        (["predict", trained, "--input", out, "--out", "y.npz"], 1, "no such file"),
        (["predict", trained, "--input", "y.npz", "--out", "y.npz"], 2, "the answer would overwrite the input"),
        (["predict", trained, "--input", out, "--out", "y.npz", "--how", "sampled", "--m", 3], 2, "sampled is for eval"),
    ):
        heard = run(*words, code=code)
        assert said in heard, (words, heard)
        assert "Traceback" not in heard
    assert not out.exists()
    for verb in ("train", "eval", "predict", "info", "demo"):
        assert "Usage" in run(verb, "--help")


def test_names_with_braces_and_markup(data, trained, tmp_path):
    small = [word for word in SMALL if word not in ("--epochs", "4")] + ["--epochs", "1"]
    assert "1 epochs" in run("train", data, "--out", tmp_path / "a{b}[red]{0}", *small)
    operator = load(trained)
    operator.about = {"[/red]x\x1b[31m": 1}
    operator.save(tmp_path / "op")
    assert "[/red]x?[31m" in run("info", tmp_path / "op")
    card = {key: value for key, value in json.loads((tmp_path / "op/operator.json").read_text()).items() if key != "sha256"}
    write_sealed_json(tmp_path / "op/operator.json", {**card, "features": [1]})
    assert "its entries are not of the kinds that gkn writes" in run("info", tmp_path / "op", code=1)


def test_a_configuration_file(data, tmp_path):
    entries = [
        "train = 5",
        "validation = 2",
        "m = 30",
        'model = "GKN"',
        'network = ["width=5", "kernel=5,4", "steps=1"]',
        "epochs = 2",
        'set = ["clip=2.5"]',
    ]
    (tmp_path / "c.toml").write_text("\n".join(entries))
    words = ["train", data, "--out", tmp_path / "run", "--config", tmp_path / "c.toml", "--device", "cpu", "--epochs", 1]
    assert "1 epochs" in run(*words)
    recipe = load(tmp_path / "run").about["recipe"]
    assert (recipe["epochs"], recipe["clip"]) == (1, 2.5)


def test_seed_and_none_and_a_precision_from_elsewhere(data, tmp_path):
    small = [word for word in SMALL if word not in ("--epochs", "4")] + ["--epochs", "1"]
    words = ["train", data, "--out", tmp_path / "run", *small, "--set", "seed=5", "--set", "clip=none"]
    run(*words, "--precision", "bf16")
    recipe = load(tmp_path / "run").about["recipe"]
    assert (recipe["seed"], recipe["clip"], recipe["precision"]) == (5, None, "bf16")
    run(*words)  # as on a machine whose usual precision is another


def test_sigterm_saves_and_exits_143(data, tmp_path):
    """A cluster sends SIGTERM: the run saves and exits within ten seconds, and the same command resumes it."""
    words = [sys.executable, "-m", "gkn", "train", str(data), "--out", str(tmp_path / "run"), *SMALL]
    words[words.index("--epochs") + 1] = "4000"
    process = subprocess.Popen(words, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    limit = time.monotonic() + 60
    while not (tmp_path / "run/metrics.jsonl").exists() and time.monotonic() < limit:
        time.sleep(0.05)
    time.sleep(1.0)
    start = time.monotonic()
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=60)
    assert time.monotonic() - start < 10
    assert process.returncode == 143, said
    assert "terminated; what was finished is kept, run the same command again to go on" in said
    assert "Traceback" not in said
    step = Checkpoints(tmp_path / "run/checkpoints").steps()[-1]
    assert step > 0
    epoch = int(re.search(r"epoch (\d+) of 4000, unfinished", run("info", tmp_path / "run"))[1])
    assert epoch in (step // 2, step // 2 - 1)  # the second: stopped after its last batch, before it was judged
    assert "this run is unfinished" in run("eval", tmp_path / "run", data, code=1)


def test_demo(tmp_path):
    """In small. Run again, it makes nothing twice."""
    words = ["demo", "--out", tmp_path / "demo", "--n", 14, "--size", 33, "--epochs", 1, "--judged", 2]
    said = run(*words)
    for word in ("9 x 9", "17 x 17", "33 x 33", "by finite elements", "500 random points", "report.html"):
        assert word in said
    page = (tmp_path / "demo/report.html").read_text()
    assert page.count("data:image/png;base64,") == 3
    steps = {path: path.stat().st_mtime_ns for path in (tmp_path / "demo/nearfar/checkpoints").iterdir()}
    results = {path: path.read_bytes() for path in (tmp_path / "demo/results").iterdir()}
    assert len(results) == 8
    again = run(*words)
    table = re.search(r"trained on.*random points, from 17 x 17 [\d.]+ [\d.]+", said)[0]
    assert table in again
    assert {path: path.read_bytes() for path in (tmp_path / "demo/results").iterdir()} == results
    assert {
        path: path.stat().st_mtime_ns for path in (tmp_path / "demo/nearfar/checkpoints").iterdir()
    } == steps  # nothing was trained


def test_demo_touches_nothing_that_is_not_its_own(tmp_path):
    (tmp_path / "nearfar").mkdir()
    (tmp_path / "nearfar/thesis.txt").write_text("precious")
    said = run("demo", "--out", tmp_path, "--n", 7, "--size", 17, "--epochs", 1, "--judged", 1, code=1)
    assert "is not empty and holds no run (thesis.txt)" in said
    assert (tmp_path / "nearfar/thesis.txt").read_text() == "precious"


@pytest.mark.parametrize("model", ["NearFar", "Multigrid"])
def test_other_networks_by_name(data, tmp_path, model):
    sizes = ["--model", model, "--network", "width=16", "--epochs", 1, "--r", 0.3, "--set", "zero=box"]
    run("train", data, "--out", tmp_path / "run", *sizes, "--validation", 2, "--device", "cpu")
    operator = load(tmp_path / "run")
    assert (type(operator.model).__name__, operator.model.radius, operator.rule.r, operator.weighted) == (model, 0.3, 0.3, True)
    assert model in run("info", tmp_path / "run" / "operator")
    assert "--l 2: graphs per sample need nodes that are drawn, --m" in run(
        "train", data, "--out", tmp_path / "x", "--l", 2, code=1
    )
    assert "no model 'MLP'; there are" in run("train", data, "--out", tmp_path / "x", "--model", "MLP", code=1)


def test_grids_and_drawn_points_together(data, tmp_path):
    """NearFar by its own recipe, in balls that have enough points, from a grid and from points drawn at random."""
    sizes = ["--network", "width=16", "--network", "blocks=1", "--epochs", 1, "--every", 2, "--mixed", 40]
    run("train", data, "--out", tmp_path / "run", *sizes, "--validation", 2, "--device", "cpu")
    known = json.loads((tmp_path / "run/run.json").read_text())
    assert (known["recipe"]["optimizer"], known["recipe"]["batch"]) == ("muon", 4)
    operator = load(tmp_path / "run")
    assert isinstance(operator.rule, Radius)
    assert operator.rule.r == pytest.approx(usual_radius(Grid(7)))
    assert [*operator.model.features] == [1]
    for wrong in (["--mixed", 40], ["--mixed", 40, "--every", 2, "--m", 30]):
        said = run("train", data, "--out", tmp_path / "x", "--model", "NearFar", *wrong, code=1)
        assert "--mixed: needed a coarser grid beside the drawn points" in said


@pytest.mark.parametrize("model", ["NearFar", "GKN"])
def test_fit_and_the_command_line_train_the_same_thing(data, tmp_path, model):
    """`gkn.fit(dataset)` and `gkn train data` fill in the same defaults, and end with the same bits."""
    words = [] if model == "NearFar" else ["--model", model]
    run("train", data, "--out", tmp_path / "cli", *words, "--epochs", 1, "--split", "1,0,0", "--device", "cpu")
    torch.manual_seed(99)  # what was drawn before does not matter
    chosen = {} if model == "NearFar" else {"model": model}
    ours = gkn.fit(gkn.open(data), **chosen, device="cpu", epochs=1, out=tmp_path / "python")
    theirs = load(tmp_path / "cli")
    assert type(ours.model).__name__ == model
    assert json.loads((tmp_path / "cli/run.json").read_text()) == json.loads((tmp_path / "python/run.json").read_text())
    for one, other in zip(ours.model.parameters(), theirs.model.parameters(), strict=True):
        assert torch.equal(one, other)
    sample = ours.ready(gkn.open(data))[0]
    assert torch.equal(ours(sample), theirs(sample))


def test_defaults_are_good_for_the_data(data):
    """Two-phase coefficients are smoothed, kernels see the smooth field, u is 0 on the boundary, balls have 80 points."""
    suggested = gkn.NearFar.defaults(gkn.open(data))
    assert suggested.smoothing == {"a": pytest.approx(1 / 12)}
    assert suggested.settings["features"] == (1,)
    assert suggested.changes["zero"] == "box"
    assert suggested.settings["radius"] == suggested.rule["r"] == pytest.approx(usual_radius(Grid(13)))
