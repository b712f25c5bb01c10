"""Runs: killed, stopped, resumed, shared among ranks, fed with bad numbers."""

import json
import math
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import reduce
from pathlib import Path

import pytest
import torch

from gkn import GKN, Cloud, Darcy, Dataset, Grid, Normalizer, Nystrom, Operator, Radius, fit, load, make_dataset, relative_l2
from gkn.data.sample import BadNumbers
from gkn.graph.rules import usual_radius
from gkn.operator.checkpoint import Checkpoints
from gkn.operator.evaluate import Judge
from gkn.operator.saved import is_finished
from gkn.system import machine
from gkn.system.files import CorruptFile, canonical, difference, digest, read_sealed_json, write_sealed_json
from gkn.train.ranks import Stopped
from gkn.train.recipe import RECIPES, Recipe
from gkn.train.run_folder import OtherRun, RunFolder
from gkn.train.setup import Choices, set_up
from gkn.train.step import Step
from tests import tiny

ROOT = Path(__file__).parent.parent
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def clean(tmp_path_factory):
    """A tiny run that nobody disturbed."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("clean") / "run"
    tiny.run(folder)
    return folder


def same(folder, clean):
    tensors, log, state = tiny.final(folder)
    wanted = tiny.final(clean)
    assert log == wanted[1]
    assert state == wanted[2]
    assert {*tensors} == {*wanted[0]}
    assert [name for name in tensors if tensors[name] != wanted[0][name]] == []
    mine, theirs = (load(each).model.state_dict() for each in (folder, clean))
    assert all(torch.equal(mine[name], theirs[name]) for name in theirs)


# --- killed and resumed --------------------------------------------------------------------------------------------------

KILLS = """
import json, os, random, signal, sys, time, pathlib, shutil
import torch
torch.set_num_threads(1)
from tests import tiny
import lightning_fabric, lightning_fabric.strategies.ddp
folder, longest = pathlib.Path(sys.argv[1]), 1.0
kills, seed, wanted = map(int, sys.argv[2:])
random.seed(seed)
began = time.monotonic()
child = os.fork()
if child == 0:
    tiny.run(folder / "timed")
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
longest *= time.monotonic() - began
report = {"killed": 0, "finished": 0, "steps": [], "corrupt": 0}
round_ = 0
while report["killed"] < kills or (len({*report["steps"]}) < wanted and report["killed"] < 20 * kills):
    where = folder / f"run{round_}"
    child = os.fork()
    if child == 0:
        tiny.run(where)
        os._exit(0)
    # From the first system call to a little after the last step.
    time.sleep(random.uniform(0.0, longest))
    os.kill(child, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status == -9:
        report["killed"] += 1
        found, wrong = tiny.Checkpoints(where / "checkpoints").newest()
        report["corrupt"] += len(wrong)
        report["steps"].append(found.step if found else -1)
    else:
        report["finished"] += 1
        round_ += 1
        longest *= 0.9  # the machine is faster than when the time was taken
child = os.fork()
if child == 0:
    tiny.run(folder / f"run{round_}")
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
report["runs"] = round_ + 1
print(json.dumps(report))
"""


def kill_sweep(tmp_path, clean, kills, seed, wanted):
    """Kill runs at random moments, at least so many times and at as many different steps as are wanted."""
    command = [sys.executable, "-c", KILLS, str(tmp_path), str(kills), str(seed), str(wanted)]
    done = subprocess.run(command, env=ENVIRONMENT, cwd=ROOT, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["corrupt"] == 0
    for number in range(report["runs"]):
        same(tmp_path / f"run{number}", clean)
        assert not [*(tmp_path / f"run{number}").rglob("*.tmp-*")]
    return report


def test_killed_at_random_moments(tmp_path, clean):
    report = kill_sweep(tmp_path, clean, 6, 0, 3)
    assert report["killed"] >= 6
    assert len({*report["steps"]}) >= 3


@pytest.mark.slow
@pytest.mark.timeout(1000)
def test_killed_at_fifty_random_moments(tmp_path, clean):
    report = kill_sweep(tmp_path, clean, 50, 1, 10)
    assert report["killed"] >= 50
    assert len({*report["steps"]}) >= 10


def test_resumed_from_every_checkpoint(tmp_path, clean):
    """From the beginning, the middle of an epoch, its end before it is judged, and after."""
    whole = tmp_path / "whole"
    tiny.run(whole, keep=100)
    steps = Checkpoints(whole / "checkpoints").steps()
    assert steps == [*range(tiny.STEPS + 1)]
    for step in (0, 1, 3, 4, 8, 17, 39):
        folder = tmp_path / f"from{step}"
        shutil.copytree(whole, folder)
        Checkpoints(folder / "checkpoints").drop_after(step)
        shutil.rmtree(folder / "operator")
        tiny.run(folder)
        same(folder, clean)
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        assert [line["epoch"] for line in lines] == [*range(1, 11)]


def test_whatever_the_network_was_born_with_is_what_a_rerun_begins_with(tmp_path, clean):
    """Killed before the first step: the rerun's own initial weights do not count."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gkn.train.loop.Trainer.go", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            tiny.run(tmp_path / "run")
    assert Checkpoints(tmp_path / "run/checkpoints").steps() == [0]
    tiny.run(tmp_path / "run", network_options={"seed": 5})
    same(tmp_path / "run", clean)


def test_a_damaged_best_does_not_stop_a_run_that_is_done(tmp_path):
    errors, said = iter([0.5, 0.2, 0.4, 0.3, 0.25]), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Judge, "errors", lambda self, part, tick: torch.full((len(part), 1), next(errors), dtype=torch.float64))
        tiny.run(tmp_path / "run")
    (best,) = (tmp_path / "run/checkpoints").glob("step-00000016-*")
    best.write_bytes(best.read_bytes()[:-1] + b"x")
    assert tiny.run(tmp_path / "run").about["metrics"]["step"] == 16  # from the folder best/
    shutil.rmtree(tmp_path / "run/best")
    tiny.run(tmp_path / "run", warn=said.append)
    said = [text for text in said if "very few" not in text]  # tiny runs learn from 8 samples
    assert len(said) == 1
    assert best.name in said[0]


def test_signals_before_the_first_step_are_answered_at_once(tmp_path):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gkn.train.loop.Trainer.open", lambda *_: os.kill(os.getpid(), signal.SIGTERM) or time.sleep(60))
        start = time.monotonic()
        with pytest.raises(Stopped):
            tiny.run(tmp_path / "run")
    assert time.monotonic() - start < 10


def test_a_long_test_function_can_be_stopped(tmp_path, clean):
    """The operator reports after each of its steps, and there the signal is looked at."""
    ticks = []

    def slow(self, part, tick):
        os.kill(os.getpid(), signal.SIGTERM)
        for k in range(100):
            ticks.append(k)
            tick(k, 100)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Judge, "errors", slow)
        with pytest.raises(Stopped):
            tiny.run(tmp_path / "run")
    assert ticks == [0]
    tiny.run(tmp_path / "run")
    same(tmp_path / "run", clean)


def with_zero(data, which):
    """Return the dataset with one output that is 0 at all points."""
    u = data.field("u").clone()
    u[which] = 0.0
    return Dataset(data.domain, a=data.field("a"), u=u)


def test_samples_that_are_zero_are_left_out_and_named(tmp_path):
    """A case without load is in many folders. Its relative error is not defined."""
    train, test = tiny.data()
    said = []
    bad = {"validation": with_zero(test, 1), "warn": said.append}
    operator = fit(with_zero(train, 5), tiny.network(), Nystrom(0.3, 60), epochs=2, **bad)
    for i in (5, 1):
        assert f"left out: sample {i}; u is 0 at all points: a relative error is not defined" in said
    good = {"validation": test.take([0]), "warn": print}
    usual = fit(train.take([0, 1, 2, 3, 4, 6, 7]), tiny.network(), Nystrom(0.3, 60), epochs=2, **good)
    assert all(torch.equal(x, usual.model.state_dict()[name]) for name, x in operator.model.state_dict().items())
    with pytest.raises(BadNumbers, match=r"the relative error of sample 1, field u, is inf: is it 0 on all points"):
        relative_l2(operator, with_zero(test, 1))
    kept = fit(with_zero(train, 5), tiny.network(), Nystrom(0.3, 60), epochs=1, loss="mse", warn=said.append)
    assert len(said) == 2 + 2 * any("very few" in text for text in said), said
    assert kept.about["metrics"]["epoch"] == 1


def test_random_numbers_of_the_network_itself_go_on(tmp_path):
    """torch's own generator is part of what is saved: a network with dropout is resumed to the same bits, too."""

    def dropout(x):
        return torch.nn.functional.dropout(torch.relu(x), 0.2, training=torch.is_grad_enabled())

    def go(folder, **options):
        train, _ = tiny.data()
        model = tiny.network()
        model.sigma = dropout
        model.config = lambda: {"kind": "with dropout"}
        torch.manual_seed(3)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("gkn.train.loop.Trainer.close", lambda self: (self.save(), self.operator())[1])
            fit(train, model, Nystrom(0.3, 60), epochs=3, batch=2, out=folder, save_every=0.0, **options)

    go(tmp_path / "whole", keep=100)
    shutil.copytree(tmp_path / "whole", tmp_path / "again")
    Checkpoints(tmp_path / "again/checkpoints").drop_after(5)
    go(tmp_path / "again", keep=100)
    assert tiny.final(tmp_path / "again") == tiny.final(tmp_path / "whole")


def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(tmp_path, clean):
    folder, said = tmp_path / "run", []
    shutil.copytree(clean, folder)
    newest = max((folder / "checkpoints").glob("*.safetensors"))
    newest.write_bytes(newest.read_bytes()[:-1] + b"x")
    tiny.run(folder, warn=said.append)
    said = [text for text in said if "very few" not in text]
    same(folder, clean)
    assert len(said) == 1
    assert newest.name in said[0]
    assert "going on from the checkpoint before" in said[0]


@pytest.mark.parametrize(
    "change", [{"place": 99}, {"epoch": "1"}, {"epoch": None}, {"metrics": 5}, {"metrics": [{}]}, {"best": "x"}, {"best": {}}]
)
def test_a_checkpoint_that_makes_no_sense(change, clean, tmp_path):
    """Sealed by somebody who changed it: named, and not gone on with."""
    folder, said = tmp_path / "run", []
    shutil.copytree(clean, folder)
    path = folder / f"checkpoints/step-{tiny.STEPS:08d}.json"
    card = {key: value for key, value in json.loads(path.read_text()).items() if key != "sha256"}
    write_sealed_json(path, {**card, "state": {**card["state"], **change}})
    if "place" in change:
        with pytest.raises(CorruptFile, match="the checkpoint of step 40 is not of this run"):
            tiny.run(folder)
        return
    shutil.rmtree(folder / "operator")
    assert load(folder, best=True).about["metrics"]["epoch"] < 10
    tiny.run(folder, warn=said.append)
    assert any("its entry 'state' makes no sense; going on from the checkpoint before" in text for text in said)
    same(folder, clean)


NESTED = reduce(lambda inner, _: [inner], range(100), 5)


@pytest.mark.parametrize(
    "change", [{"schema": None}, {"schema": "4"}, {"earlier": 5}, {"continued": "x"}, {"recipe": 5}, {"recipe": {"x": NESTED}}]
)
def test_a_run_that_makes_no_sense(change, clean, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(clean, folder)
    said = {**read_sealed_json(folder / "run.json"), **change}
    (folder / "run.json").write_bytes(canonical({**said, "sha256": digest(said)}))
    for use in (lambda: tiny.run(folder), lambda: load(folder), lambda: load(folder, best=True)):
        with pytest.raises(CorruptFile, match=r"run\.json: its entries are (not of the kinds|nested deeper)"):
            use()


def test_a_finished_run_is_read(clean, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(clean, folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gkn.train.step.Step.__call__", None)  # nothing is left to do
        operator = tiny.run(folder)
    assert all(torch.equal(x, load(clean).model.state_dict()[name]) for name, x in operator.model.state_dict().items())


# --- the same bits again -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_the_same_bits_again(threads, clean):
    """Six times with one thread, six with two; and across them, since no sum of the tiny run is long enough to be split."""
    torch.set_num_threads(threads)
    wanted = load(clean).model.state_dict()
    for _ in range(6):
        found = tiny.run().model.state_dict()
        assert [name for name in wanted if not torch.equal(found[name], wanted[name])] == []


def test_another_seed_is_another_run(clean):
    assert not torch.equal(tiny.run(seed=1).model.W.weight, load(clean).model.W.weight)
    drawn = [tiny.run(rng=torch.Generator().manual_seed(5), epochs=1).model.W.weight for _ in range(2)]
    assert torch.equal(*drawn)


def test_test_data_change_no_bit(clean, tmp_path):
    """Nor does it matter whether there is a test at all: not for the weights, not for the normalisers. It chooses the best."""
    train, test = tiny.data()
    other = Dataset(test.domain, a=test.field("a") * 1e3, u=test.field("u") - 7.0)
    for i, judged in enumerate((None, other)):
        tiny.run(tmp_path / str(i), validation=judged)
        operator = load(tmp_path / str(i))  # the last network
        assert all(torch.equal(x, load(clean).model.state_dict()[name]) for name, x in operator.model.state_dict().items())
        assert torch.equal(operator.inputs.mean, Normalizer.fit(train, ["a"]).mean)
        assert torch.equal(operator.outputs.std, Normalizer.fit(train, ["u"]).std)


# --- signals -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "moment", ["gkn.models.gkn.GKN.forward", "gkn.operator.evaluate.Judge.errors", "gkn.operator.checkpoint.Checkpoints.save"]
)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stopped_in_the_middle_of_something(moment, number, tmp_path, clean, monkeypatch):
    """A batch, an evaluation, a save: it is saved, and goes on to the same bits."""
    owner, name = moment.rsplit(".", 1)
    module, kind = owner.rsplit(".", 1)
    owner = getattr(sys.modules[module], kind)
    really, calls = getattr(owner, name), []

    def disturbed(*args, **kwargs):
        calls.append(1)
        if len(calls) == 7 if name != "errors" else len(calls) == 2:
            os.kill(os.getpid(), number)
        return really(*args, **kwargs)

    monkeypatch.setattr(owner, name, disturbed)
    folder, before = tmp_path / "run", signal.getsignal(number)
    with pytest.raises(Stopped) as stopped:
        tiny.run(folder, save_every=1e9 if name != "save" else 0.0)
    assert stopped.value.number == number
    assert signal.getsignal(number) == before
    monkeypatch.undo()
    checkpoints = Checkpoints(folder / "checkpoints")
    assert 0 < checkpoints.steps()[-1] < tiny.STEPS
    if name == "errors":  # at once, and not a step later: this epoch is still to be judged
        assert (checkpoints.newest()[0].state["epoch"], checkpoints.newest()[0].state["place"]) == (3, 4)
    with pytest.raises(FileNotFoundError, match=r"this run is unfinished, at step \d+; run the command that trains it again"):
        load(folder)
    tiny.run(folder)
    same(folder, clean)


def test_without_a_folder_signals_are_left_alone():
    def interrupt(*_):
        raise KeyboardInterrupt

    handler = signal.signal(signal.SIGINT, interrupt)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("gkn.train.step.Step.__call__", lambda *_: os.kill(os.getpid(), signal.SIGINT))
            with pytest.raises(KeyboardInterrupt):
                tiny.run()
    finally:
        signal.signal(signal.SIGINT, handler)


# --- other runs, other data ----------------------------------------------------------------------------------------------


def test_a_folder_of_another_configuration_is_refused(tmp_path, clean):
    before = {path: path.read_bytes() for path in clean.rglob("*") if path.is_file()}
    with pytest.raises(OtherRun, match=r"holds another run: recipe\.lr = 0\.002 there, 0\.01 here; choose another folder"):
        tiny.run(clean, lr=0.01)
    with pytest.raises(OtherRun, match=r"model\.last_sigma = True there, False here"):
        tiny.run(clean, network_options={"last_sigma": False})
    assert before == {path: path.read_bytes() for path in clean.rglob("*") if path.is_file()}
    (tmp_path / "mine.txt").write_text("x")
    with pytest.raises(OtherRun, match=r"is not empty and holds no run \(mine\.txt\)"):
        tiny.run(tmp_path)


def test_other_samples_are_named_in_words(tmp_path):
    """Digests say nothing to people."""
    train, test = tiny.data()
    options = {"epochs": 1, "out": tmp_path / "run"}
    fit(train, tiny.network(), Nystrom(0.3, 60), validation=test, **options)
    with pytest.raises(
        OtherRun, match=r"holds another run: the training samples are others, the validation samples are others;"
    ):
        fit(train.take(6), tiny.network(), Nystrom(0.3, 60), validation=test.take(1), **options)
    other = fit(train, tiny.network(), Nystrom(0.3, 60), epochs=1)
    with pytest.raises(OtherRun, match="training goes on from another operator") as raised:
        fit(train, other, validation=test, **options)
    assert not re.search("[0-9a-f]{64}", str(raised.value))


def best_is_another(folder):
    """Train a run whose best network is not the last one; return the step of the best."""
    for seed in range(20):
        shutil.rmtree(folder, ignore_errors=True)
        tiny.run(folder, epochs=4, lr=0.5, evaluate_every=1, network_options={"seed": seed})
        if (folder / "best").is_dir():
            return load(folder, best=True).about["metrics"]["step"]
    raise AssertionError("the last network was always the best")


def test_the_best_network_of_a_finished_run_is_not_lost(tmp_path):
    """Its checkpoint is gone, and the command runs again; or its folder is gone, and the best is asked for."""
    folder = tmp_path / "run"
    step = best_is_another(folder)
    wanted = load(folder, best=True).model.state_dict()
    options = {"epochs": 4, "lr": 0.5, "evaluate_every": 1}
    shutil.copytree(folder / "best", tmp_path / "kept")
    shutil.rmtree(folder / "best")
    with pytest.raises(FileNotFoundError, match=f"the best network, of step {step}, is missing; run the command"):
        load(folder, best=True)
    assert load(folder).about["metrics"]["step"] == 16
    tiny.run(folder, **options)  # from its checkpoint
    assert all(torch.equal(x, wanted[name]) for name, x in load(folder, best=True).model.state_dict().items())
    (folder / f"checkpoints/step-{step:08d}.json").unlink()
    found = tiny.run(folder, **options)  # from the folder
    for operator in (found, load(folder, best=True)):
        assert all(torch.equal(x, wanted[name]) for name, x in operator.model.state_dict().items())
    shutil.rmtree(folder / "best")
    said = []
    tiny.run(folder, **options, warn=said.append)  # it is lost
    assert any("the last network is taken for the best" in text for text in said)
    assert load(folder, best=True).about["metrics"]["step"] == 16


def test_a_run_that_returns_to_an_earlier_patience(tmp_path):
    """Its digest is one of those of before."""
    for patience in (5, 50, 5):
        tiny.run(tmp_path / "run", epochs=4, patience=patience)
        assert is_finished(tmp_path / "run")
        assert load(tmp_path / "run").about["metrics"]["epoch"] == 4


def test_the_operator_of_a_shorter_run_is_not_that_of_the_longer_one(tmp_path, clean):
    """A copy that was made before a run went on, over which a later state was copied without removing anything."""
    folder = tmp_path / "run"
    shutil.copytree(clean, folder)

    class Enough(Exception):
        pass

    def report(status):
        if status.epoch >= 11:
            raise Enough

    with pytest.raises(Enough):
        tiny.run(folder, epochs=40, report=report)
    assert not (folder / "operator").exists()
    shutil.copytree(clean / "operator", folder / "operator")
    assert not is_finished(folder)
    with pytest.raises(FileNotFoundError, match="this run is unfinished"):
        load(folder)


def test_a_part_that_one_side_lacks_is_named_as_a_whole():
    assert difference({"a": 1}, {"a": 1, "validation": {"every": 1, "inputs": ["a"]}}) == "validation is given here only"
    assert (
        difference({"rules": [{"r": 1}, {"r": 2}]}, {"rules": [{"r": 3}]})
        == "rules.0.r = 1 there, 3 here, rules.1 is given there only"
    )
    assert difference({"a": 1}, {"a": None}) == "a = 1 there, None here"


@pytest.mark.parametrize("change", [{"recipe_seed": 3}, {"lr": 0.01}, {"epochs": 12}])
def test_checkpoints_of_another_run_are_not_taken(change, tmp_path, clean):
    """They fit in every shape, so only the digest of the run that they carry tells them apart."""
    change = {"seed" if key == "recipe_seed" else key: value for key, value in change.items()}
    tiny.run(tmp_path / "other", **change)
    folder = tmp_path / "run"
    shutil.copytree(clean, folder)
    shutil.rmtree(folder / "operator")
    shutil.rmtree(folder / "checkpoints")
    shutil.copytree(tmp_path / "other/checkpoints", folder / "checkpoints")
    with pytest.raises(FileNotFoundError, match="this run is unfinished, at step 0"):
        load(folder, best=True)
    said = []
    tiny.run(folder, warn=said.append)
    assert any("a checkpoint of another run; going on from the beginning" in text for text in said)
    same(folder, clean)


def test_checkpoints_of_a_run_that_began_with_other_parameters(tmp_path, clean):
    """The same configuration, but another network was given: it would go on as if it were this one."""
    other = tiny.run(tmp_path / "other", network_options={"seed": 5})
    assert not torch.equal(other.model.W.weight, load(clean).model.W.weight)
    folder = tmp_path / "run"
    shutil.copytree(clean, folder)
    for name in ("operator", "checkpoints"):
        shutil.rmtree(folder / name)
    shutil.copytree(tmp_path / "other/checkpoints", folder / "checkpoints")
    said = []
    tiny.run(folder, warn=said.append)
    assert any("a checkpoint of another run; going on from the beginning" in text for text in said)


def test_runs_of_versions_without_digests_are_read(tmp_path, clean):
    folder = tmp_path / "run"
    shutil.copytree(clean, folder)
    shutil.rmtree(folder / "operator")
    for path in (folder / "run.json", *folder.glob("checkpoints/*.json"), folder / "start/operator.json"):
        said = read_sealed_json(path)
        for part in (said, said.get("about", {})):
            part.pop("run", None)
        write_sealed_json(path, {**said, **({"schema": 3} if path.name == "run.json" else {})})
    assert load(folder, best=True).about["metrics"]["epoch"] == 10
    with pytest.raises(OtherRun, match="holds another run: it was begun by another version of gkn;"):
        tiny.run(folder)


@pytest.mark.parametrize("name", ["operator", "best"])
def test_operators_of_another_run_are_not_taken(name, tmp_path, clean):
    tiny.run(tmp_path / "other", seed=3)
    folder = tmp_path / "run"
    shutil.copytree(clean, folder)
    shutil.rmtree(folder / name, ignore_errors=True)
    shutil.copytree(tmp_path / "other/operator", folder / name)
    with pytest.raises(CorruptFile, match=f"{name}: an operator of another run; remove it and run the command"):
        load(folder, best=name == "best")
    shutil.rmtree(folder / name)
    tiny.run(folder)
    same(folder, clean)


def test_an_unfinished_run_is_not_read_with_the_start_of_another(tmp_path, clean):
    """Its normalisers would give the answers another scale."""
    tiny.run(tmp_path / "other", seed=3)
    folder = tmp_path / "run"
    shutil.copytree(clean, folder)
    for name in ("operator", "start"):
        shutil.rmtree(folder / name)
    shutil.copytree(tmp_path / "other/start", folder / "start")
    with pytest.raises(CorruptFile, match="start: an operator of another run"):
        load(folder, best=True)
    tiny.run(folder)
    same(folder, clean)
    shutil.rmtree(folder / "operator")
    assert load(folder, best=True).model.width == load(clean).model.width


def test_a_damaged_checkpoint_that_is_skipped_is_named(tmp_path, clean):
    folder = tmp_path / "run"
    shutil.copytree(clean, folder)
    shutil.rmtree(folder / "operator")
    last = max(folder.glob("checkpoints/*.json"))
    last.write_bytes(last.read_bytes()[:-9])
    with pytest.warns(UserWarning, match="is taken") as caught:
        load(folder, best=True)
    said = [str(each.message) for each in caught]
    assert last.name in said[0]
    assert said[0].endswith("; the checkpoint before is taken")
    assert re.fullmatch(r".*step-00000032.json: no such file; the network of step \d+ is taken for the best", said[1])
    command = f"{sys.executable} -m gkn predict {folder} --best --input nothing.vtu --out {tmp_path / 'a.vtu'}"
    done = subprocess.run(command.split(), capture_output=True, text=True)
    assert "the checkpoint before is taken" in " ".join(done.stderr.split())


def test_a_longer_run_takes_the_checkpoints_of_the_shorter_one(tmp_path):
    tiny.run(tmp_path, epochs=4)
    said = []
    options = {"epochs": 6, "warn": said.append, "save_every": 1000.0}

    class Killed(BaseException):
        pass

    def killed(status):
        raise Killed

    with pytest.raises(Killed):  # before it has a checkpoint of its own
        tiny.run(tmp_path, **options, report=killed)
    steps = []
    tiny.run(tmp_path, **options, report=lambda status: steps.append(status.step))
    assert steps[0] == 17
    tiny.run(tmp_path, epochs=8, warn=said.append)
    assert not [text for text in said if "checkpoint" in text]
    assert [json.loads(line)["epoch"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()] == [*range(1, 9)]


def test_killed_before_the_last_network_is_written_a_run_is_unfinished(tmp_path, monkeypatch):
    """The best network is written first. Until the last one is there, `load` and `info` know that the run is unfinished."""

    class Killed(BaseException):
        pass

    save = Operator.save

    def killed(self, path):
        if Path(path).name == "operator":
            raise Killed
        save(self, path)

    def worse(self, samples, tick=None):
        worse.error += 0.1
        return torch.full((len(samples), 1), worse.error, dtype=torch.float64)

    worse.error = 0.1
    monkeypatch.setattr(Judge, "errors", worse)  # so that the first evaluation is the best
    monkeypatch.setattr(Operator, "save", killed)
    with pytest.raises(Killed):
        tiny.run(tmp_path)
    monkeypatch.setattr(Operator, "save", save)
    best = load(tmp_path / "best").model.W.weight
    assert torch.equal(load(tmp_path, best=True).model.W.weight, best)
    with pytest.raises(FileNotFoundError, match="this run is unfinished"):
        load(tmp_path)
    (tmp_path / "operator").mkdir()  # killed while the last network was being saved
    with pytest.raises(FileNotFoundError, match="this run is unfinished"):
        load(tmp_path)
    worse.error = 0.1
    tiny.run(tmp_path)
    assert torch.equal(load(tmp_path, best=True).model.W.weight, best)
    assert not torch.equal(load(tmp_path).model.W.weight, best)


def test_a_best_network_of_before_does_not_outlive_a_better_last_one(tmp_path):
    tiny.run(tmp_path)
    folder = RunFolder(tmp_path, json.loads((tmp_path / "run.json").read_text()))
    operator = load(tmp_path)
    folder.export(operator, operator)
    folder.export(operator, None)
    assert not (tmp_path / "best").exists()


def test_two_processes_in_one_folder(tmp_path):
    from gkn.system.files import locked

    with locked(tmp_path / "run", OtherRun), pytest.raises(OtherRun, match="another process is writing here"):
        tiny.run(tmp_path / "run")


def test_the_same_values_at_other_points_are_another_run(tmp_path):
    rng = torch.Generator().manual_seed(0)
    a, u = (torch.rand(4, 30, generator=rng, dtype=torch.float64) for _ in range(2))
    corners = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)  # one box, so one frame
    clouds = [Cloud(torch.cat([corners, torch.rand(28, 2, generator=rng, dtype=torch.float64)])) for _ in range(2)]
    fit(Dataset(clouds[0], a=a, u=u), tiny.network(), Radius(0.3), epochs=1, out=tmp_path / "run")
    with pytest.raises(OtherRun, match="holds another run: the training data differ; choose another folder"):
        fit(Dataset(clouds[1], a=a, u=u), tiny.network(), Radius(0.3), epochs=1, out=tmp_path / "run")


def test_what_does_not_fit_together_is_refused():
    train, test = tiny.data()
    rule = Nystrom(0.3, 60)
    with pytest.raises(ValueError, match=r"the dataset has 4 inputs \(a, a_smooth.*; the network was made for 1"):
        fit(train.smoothed(0.1), tiny.network(), rule)
    with pytest.raises(ValueError, match="datasets of different fields: a -> u, and a, a_smooth"):
        fit(train, tiny.network(), rule, validation=test.smoothed(0.1))
    with pytest.raises(ValueError, match="points of dimension 2; the network was made for 3"):
        fit(train, GKN(dim=3, width=4, kernel=(4,)), rule)
    clouds = [Cloud(torch.rand(n, 2, dtype=torch.float64)) for n in (40, 30)]
    values = [torch.rand(n, dtype=torch.float64) for n in (40, 30)]
    with pytest.raises(ValueError, match="31 nodes of a domain that has 30"):  # before a run is begun
        fit(Dataset(clouds, a=values, u=values), tiny.network(), Nystrom(0.3, 31))
    with pytest.raises(ValueError, match="nothing to learn"):
        fit(train.take(0), tiny.network(), rule)
    with pytest.raises(ValueError, match=r"no recipe 'best'; there are paper, ours"):
        fit(train, tiny.network(), rule, "best")
    with pytest.raises(ValueError, match=r"a recipe has no 'epoch'; it has epochs, batch"):
        fit(train, tiny.network(), rule, epoch=3)
    with pytest.raises(ValueError, match=r"60 nodes of a domain that has 16"):
        fit(train.every(5), tiny.network(), rule)
    with pytest.raises(KeyError, match=r"a unit for 'p', which is no field of this dataset; it has a, u"):
        fit(train, tiny.network(), rule, units={"p": "Pa"})


# --- bad numbers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("field", ["a", "u"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_bad_numbers_in_the_data(field, value, tmp_path):
    train, _ = tiny.data()
    fields = {name: train.field(name).clone() for name in ("a", "u")}
    fields[field][3, 17] = value
    with pytest.raises(
        BadNumbers, match=rf"sample 3, field '{field}': 1 of 256 values are not finite, the first is .* point 17"
    ):
        fit(Dataset(train.domain, **fields), tiny.network(), Nystrom(0.3, 60), out=tmp_path / "run")
    with pytest.raises(BadNumbers, match=rf"sample 3, field '{field}'"):
        fit(train, tiny.network(), Nystrom(0.3, 60), validation=Dataset(train.domain, **fields))


def test_a_loss_that_is_not_finite_names_its_sample(tmp_path):
    """u of sample 5 is too small for float32: a relative error of it there is not."""
    train, _ = tiny.data()
    u = train.field("u").clone()
    u[5] *= 1e-60
    with pytest.raises(BadNumbers, match=r"step \d+: the loss of sample 5 \(field u\) is not finite; the last good checkpoint"):
        fit(
            Dataset(train.domain, a=train.field("a"), u=u),
            tiny.network(),
            Nystrom(0.3, 60),
            out=tmp_path,
            batch=2,
            save_every=0.0,
        )
    assert all(torch.isfinite(x.double()).all() for x in Checkpoints(tmp_path / "checkpoints").newest()[0].tensors.values())


@pytest.mark.parametrize("clip", [None, 1.0])
def test_a_gradient_that_is_not_finite_stops_the_run_before_it_is_used(clip, tmp_path, monkeypatch):
    really, calls = torch.Tensor.backward, []

    def poisoned(loss, *args, **kwargs):
        really(loss, *args, **kwargs)
        calls.append(1)
        if len(calls) == 11:
            model.kappa.W.grad[0, 0, 0] = math.nan

    train, _ = tiny.data()
    model = tiny.network()
    monkeypatch.setattr(torch.Tensor, "backward", poisoned)
    with pytest.raises(BadNumbers, match=r"step 10: the gradient of kappa\.W is not finite, for samples \d, \d"):
        fit(train, model, Nystrom(0.3, 60), epochs=10, batch=2, out=tmp_path, save_every=0.0, clip=clip)
    assert all(torch.isfinite(each).all() for each in model.parameters())
    assert Checkpoints(tmp_path / "checkpoints").steps()[-1] == 10
    monkeypatch.undo()
    fit(train, tiny.network(), Nystrom(0.3, 60), epochs=10, batch=2, out=tmp_path, save_every=0.0, clip=clip)  # goes on


# --- full disks ----------------------------------------------------------------------------------------------------------

FULL = """
import ctypes, json, os, pathlib, shutil, sys
import torch
torch.set_num_threads(1)
from tests import tiny
import lightning_fabric, lightning_fabric.strategies.ddp
faults, root, mode = ctypes.CDLL(sys.argv[1]), sys.argv[2], sys.argv[3]
report = {"failed": 0, "errors": []}
points = [1, 2, 5, 9, 14, 19, 23, 31, 40, 57, 76, 91, 120]
for point in points:
    folder = pathlib.Path(f"{root}/point{point}")
    child = os.fork()
    if child == 0:
        os.makedirs(folder)
        faults.fault_arm(str(folder).encode(), ctypes.c_long(point), ctypes.c_char(mode.encode()))
        try:
            tiny.run(folder)
            code = 0
        except OSError as error:
            code = 28 if error.errno == 28 else 3
        os._exit(code)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    report["failed"] += status == 28
    if status != 28:
        report["errors"].append((point, status))
    if [path for path in folder.rglob("*.tmp-*")]:
        report["errors"].append((point, "leftovers", os.listdir(folder)))
    found, wrong = tiny.Checkpoints(folder / "checkpoints").newest()
    if wrong:
        report["errors"].append((point, wrong))
    child = os.fork()
    if child == 0:
        tiny.run(folder)
        os._exit(0)
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0:
        report["errors"].append((point, "no rerun"))
report["points"] = points
print(json.dumps(report))
"""


@pytest.mark.parametrize("mode", ["f"])
def test_a_disk_that_is_full(faults, mode, tmp_path, clean):
    """ENOSPC at a write, sync or rename somewhere in a run: an error, no leftovers, a valid checkpoint, and a rerun that ends
    as it would have."""
    command = [sys.executable, "-c", FULL, str(faults), str(tmp_path), mode]
    environment = {**ENVIRONMENT, "LD_PRELOAD": str(faults)}
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["errors"] == []
    assert report["failed"] == len(report["points"])
    for point in report["points"]:
        same(tmp_path / f"point{point}", clean)


# --- several processes ---------------------------------------------------------------------------------------------------


def torchrun(script, *words, ranks=2, options="", timeout=200, wait=True):
    command = (
        f"{sys.executable} -m torch.distributed.run --nproc-per-node {ranks} --master-port {free_port()} {options} {script}"
    )
    words = [*command.split(), *map(str, words)]
    if not wait:
        return subprocess.Popen(
            words, env=ENVIRONMENT, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        )
    return subprocess.run(words, env=ENVIRONMENT, cwd=ROOT, capture_output=True, text=True, timeout=timeout)


def free_port():
    import socket

    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def test_two_ranks_are_one_process(tmp_path):
    """In float64, for batches of 3 of 8 graphs, whose last has 2: the same gradients in every step, to 1e-12; each sample once
    an epoch; the same losses and test errors."""
    done = torchrun("-m tests.ranks", "record", tmp_path / "two")
    assert done.returncode == 0, done.stderr
    alone = subprocess.run(
        [sys.executable, "-m", "tests.ranks", "record", str(tmp_path / "one")], env=ENVIRONMENT, cwd=ROOT, capture_output=True
    )
    assert alone.returncode == 0, alone.stderr
    one = torch.load(tmp_path / "one/rank0.pt", weights_only=True)
    two = [torch.load(tmp_path / f"two/rank{rank}.pt", weights_only=True) for rank in (0, 1)]
    assert len(one["gradients"]) == len(two[0]["gradients"]) == 9
    assert two[0]["run"] == two[1]["run"] == load(tmp_path / "two/run").about["run"]
    for theirs in two:
        for mine, other in zip(one["gradients"], theirs["gradients"], strict=True):
            assert all((x - y).abs().max() <= 1e-12 * x.abs().max().clamp(min=1e-3) for x, y in zip(mine, other, strict=True))
    for epoch in range(3):
        seen = [sample for rank in two for step in rank["samples"][3 * epoch : 3 * epoch + 3] for sample in step]
        assert sorted(seen) == [*range(8)]
        assert sorted(sample for step in one["samples"][3 * epoch : 3 * epoch + 3] for sample in step) == [*range(8)]
    orders = [tuple(sample for step in one["samples"][3 * e : 3 * e + 3] for sample in step) for e in range(3)]
    assert len({*orders}) == 3  # another order in every epoch
    logs = [tiny.final(tmp_path / name / "run")[1] for name in ("one", "two")]
    for mine, other in zip(*logs, strict=True):
        assert mine["loss"] == pytest.approx(other["loss"], rel=1e-11)
        assert (mine["validation"] is None) == (other["validation"] is None)
        assert mine["validation"] is None or mine["validation"] == pytest.approx(other["validation"], rel=1e-9)


@pytest.mark.slow
def test_the_command_line_under_torchrun(tmp_path):
    """Options that torchrun has, too, reach gkn. All ranks begin with the parameters of the first."""
    make_dataset(Darcy(size=13, modes=8), 8, 0, tmp_path / "data")
    network = "--model GKN --network width=4 --network kernel=4,4 --network steps=1"
    flags = f"--train 6 --test 2 --m 40 --r 0.4 --l 2 {network} --epochs 2 --batch 3 --device cpu"
    done = torchrun("-m gkn --", "train", tmp_path / "data", "--out", tmp_path / "run", *flags.split())
    assert done.returncode == 0, done.stderr
    assert load(tmp_path / "run").about["metrics"]["epoch"] == 2
    done = torchrun("-m tests.ranks", "born", tmp_path / "born")
    assert done.returncode == 0, done.stderr
    one, two = ((tmp_path / f"born/weights{rank}").read_text() for rank in (0, 1))
    assert one == two


@pytest.mark.slow
@pytest.mark.parametrize("where", ["data", "gradient"])
def test_bad_numbers_on_one_rank_stop_all(where, tmp_path):
    done = torchrun("-m tests.ranks", f"bad-{where}", tmp_path, options="--tee 3")
    said = done.stdout + done.stderr
    assert done.returncode != 0
    for rank in (0, 1):
        assert re.search(rf"rank {rank} stopped: .*{'sample 5' if where == 'data' else 'kappa.W'}", said), said


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_killed_rank_is_started_again_and_the_result_is_the_same(tmp_path):
    assert torchrun("-m tests.ranks", "run", tmp_path / "clean").returncode == 0
    process = torchrun("-m tests.ranks", "die", tmp_path / "killed", options="--max-restarts 2", wait=False)
    _, said = process.communicate(timeout=200)
    assert process.returncode == 0, said
    assert (tmp_path / "killed/died").exists()
    same(tmp_path / "killed/run", tmp_path / "clean/run")


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_rank_that_hangs_ends_the_run_within_the_timeout(tmp_path):
    """SIGSTOP: the other rank gives up after `timeout`, 8 s here, not after torch's 30 minutes; what was saved is there."""
    process = torchrun("-m tests.ranks", "hang", tmp_path / "hung", wait=False)
    limit = time.monotonic() + 120
    while not (tmp_path / "hung/stopped").exists() and time.monotonic() < limit:
        time.sleep(0.1)
    start = time.monotonic()
    while not (tmp_path / "hung/gave-up").exists() and time.monotonic() < start + 60:
        time.sleep(0.1)
    taken = time.monotonic() - start
    assert (tmp_path / "hung/gave-up").exists()
    assert taken < 30
    process.communicate(timeout=100)  # torchrun then ends what is left
    assert process.returncode != 0
    assert Checkpoints(tmp_path / "hung/run/checkpoints").newest()[0].step > 0


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_sigterm_to_torchrun_saves_and_goes_on(tmp_path):
    assert torchrun("-m tests.ranks", "run", tmp_path / "clean").returncode == 0
    process = torchrun("-m tests.ranks", "slow", tmp_path / "stopped", wait=False)
    limit = time.monotonic() + 120
    checkpoints = Checkpoints(tmp_path / "stopped/run/checkpoints")
    while not (checkpoints.steps() and checkpoints.steps()[-1] > 2) and time.monotonic() < limit:
        time.sleep(0.05)
    process.terminate()
    start = time.monotonic()
    process.communicate(timeout=100)
    assert process.returncode != 0
    assert time.monotonic() - start < 40
    assert checkpoints.steps()[-1] < tiny.STEPS
    assert torchrun("-m tests.ranks", "run", tmp_path / "stopped").returncode == 0
    same(tmp_path / "stopped/run", tmp_path / "clean/run")


# --- what else a run does ------------------------------------------------------------------------------------------------


def test_it_learns(tmp_path):
    """Eight pairs by heart: from an error of 1 to a quarter in a few seconds."""
    train, _ = tiny.data()
    torch.manual_seed(0)
    model = GKN(dim=2, width=16, kernel=(16, 32), steps=3, last_sigma=False)
    operator = fit(train, model, Radius(0.3), epochs=60, batch=4, lr=5e-3)
    assert float(relative_l2(operator, train)) < 0.25
    assert operator.about["metrics"]["loss"] == pytest.approx(float(relative_l2(operator, train)), rel=0.2)


@pytest.mark.parametrize("precision", ["fp64", "fp32", "tf32", "bf16"])
def test_precisions(precision):
    operator = tiny.run(precision=precision, epochs=2)
    assert operator.model.W.weight.dtype == (torch.float64 if precision == "fp64" else torch.float32)
    assert math.isfinite(operator.about["metrics"]["loss"])
    assert torch.get_float32_matmul_precision() == "highest"


@pytest.mark.parametrize("name", ["paper", "ours"])
def test_recipes_run(name):
    train, test = tiny.data()
    recipe = replace(RECIPES[name], epochs=2, batch=4, precision="fp32")
    operator = fit(train, tiny.network(), Nystrom(0.3, 60, 2), recipe, validation=test)
    assert (operator.outputs.domain is not None) == (name == "paper")
    assert math.isfinite(operator.about["metrics"]["validation"])


def test_several_resolutions_together(tmp_path):
    """Each batch is of one of them, and each graph is seen once an epoch."""
    whole, _ = tiny.data(size=31)
    seen = []
    parts = [whole.every(3), whole.every(2)]
    with pytest.MonkeyPatch.context() as patch:
        really = GKN.forward
        patch.setattr(GKN, "forward", lambda self, graph, *rest: (seen.append(graph), really(self, graph, *rest))[1])
        fit(parts, tiny.network(), Radius(0.25), epochs=2, batch=3)
    sizes = [graph.num_targets for graph in seen]
    assert sorted(sizes[:6]) == sorted([3 * 121, 3 * 121, 2 * 121, 3 * 256, 3 * 256, 2 * 256])
    assert sorted(sizes[6:]) == sorted(sizes[:6])
    assert [size > 400 for size in sizes] != sorted(size > 400 for size in sizes)  # mixed, not one after the other


def test_each_of_several_datasets_by_its_own_rule(tmp_path):
    whole, _ = tiny.data(size=31)
    seen = []
    parts, rules = [whole.every(3), whole], [Radius(0.25), Nystrom(0.25, 40)]
    with pytest.MonkeyPatch.context() as patch:
        really = GKN.forward
        patch.setattr(GKN, "forward", lambda self, graph, *rest: (seen.append(graph), really(self, graph, *rest))[1])
        operator = fit(parts, tiny.network(), rules, epochs=1, batch=2, out=tmp_path)
    assert sorted({graph.num_targets for graph in seen}) == [2 * 40, 2 * 121]
    assert operator.rule == Radius(0.25)
    with pytest.raises(OtherRun, match="rules"):
        fit(parts, tiny.network(), [Radius(0.25), Nystrom(0.25, 50)], epochs=1, batch=2, out=tmp_path)
    with pytest.raises(ValueError, match="1 rules for 2 datasets"):
        fit(parts, tiny.network(), [Radius(0.25)], epochs=1)


def test_fixed_and_fresh_draws():
    def drawn(fresh):
        train, _ = tiny.data()
        nodes = []
        with pytest.MonkeyPatch.context() as patch:
            really = GKN.forward
            patch.setattr(GKN, "forward", lambda self, graph, x, *rest: (nodes.append(x), really(self, graph, x, *rest))[1])
            fit(train.take(1), tiny.network(), Nystrom(0.3, 60), epochs=3, fresh=fresh)
        return {tuple(x.flatten().tolist()) for x in nodes}

    assert (len(drawn(True)), len(drawn(False))) == (3, 1)


def test_quadrature_weights_reach_the_network():
    from gkn import DarcyMesh, make_dataset

    meshes = make_dataset(DarcyMesh(size=7, modes=4, vary=True), 3, 0)
    options = {"epochs": 2, "batch": 2}
    plain, weighted = (fit(meshes, tiny.network(), Radius(0.4), weighted=w, **options) for w in (False, True))
    assert weighted.weighted
    assert not torch.equal(plain.model.W.weight, weighted.model.W.weight)
    assert math.isfinite(float(relative_l2(weighted, meshes)))


def test_reports_and_metrics(tmp_path):
    seen = []
    tiny.run(tmp_path / "run", report=seen.append, tensorboard=True)
    assert [now.step for now in seen] == [*range(1, tiny.STEPS + 1)]
    assert {now.steps for now in seen} == {tiny.STEPS}
    assert seen[-1].validation is not None
    assert all(now.edges_per_second > 0 and now.seconds_left >= 0 and math.isfinite(now.loss) for now in seen)
    assert [*(tmp_path / "run/tensorboard").iterdir()]
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines if line["validation"] is not None] == [2, 4, 6, 8, 10]
    assert all(line["edges_per_second"] > 0 for line in lines)


def test_the_best_is_exported_if_it_is_not_the_last(tmp_path):
    errors = iter([0.5, 0.2, 0.4, 0.3, 0.25])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Judge, "errors", lambda self, part, tick: torch.full((len(part), 1), next(errors), dtype=torch.float64))
        tiny.run(tmp_path / "run")
    best, last = load(tmp_path / "run", best=True), load(tmp_path / "run")
    assert (best.about["metrics"]["epoch"], best.about["metrics"]["validation"]) == (4, 0.2)
    assert last.about["metrics"]["epoch"] == 10
    assert not torch.equal(best.model.W.weight, last.model.W.weight)
    assert 16 in Checkpoints(tmp_path / "run/checkpoints").steps()


def test_units_and_notes_are_remembered(tmp_path):
    tiny.run(tmp_path / "run", units={"u": "Pa"}, about={"command": "gkn train x"}, epochs=1)
    operator = load(tmp_path / "run")
    assert operator.features.units == {"u": "Pa"}
    assert operator.about["command"] == "gkn train x"
    assert operator.about["recipe"]["epochs"] == 1
    assert isinstance(operator, Operator)
    assert operator.features.given == ("a",)
    assert Grid(16) == tiny.data()[0].domain
    assert Recipe().epochs == RECIPES["ours"].epochs


def test_random_seeds_do_not_touch_the_callers_generator():
    torch.manual_seed(11)
    before = torch.get_rng_state()
    train, _ = tiny.data()
    model = tiny.network()
    torch.set_rng_state(before)
    fit(train, model, Nystrom(0.3, 60), epochs=1)
    assert torch.equal(torch.get_rng_state(), before)
    assert random.random() < 1


def test_defaults_are_those_of_the_coarsest_dataset():
    """Balls that have enough points on the coarsest grid have enough on all."""
    data = make_dataset(Darcy(size=17, modes=8), 2)
    setup = set_up([data, data.every(2)], Choices(), "cpu", None)
    assert setup.rules[0].r == setup.model.radius == pytest.approx(usual_radius(Grid(9)))


@pytest.mark.parametrize("kind", ["GKN", "NearFar"])
def test_a_step_enters_few_files(kind, monkeypatch):
    """A reader who follows one optimisation step through gkn opens at most 18 files (docs/design.md)."""
    folder, seen, calls = Path(sys.modules["gkn"].__file__).parent, set(), []
    step = Step.__call__

    def entered(frame, event, value):
        if event == "call" and Path(frame.f_code.co_filename).is_relative_to(folder):
            seen.add(frame.f_code.co_filename)

    def watched(self, *args, **kwargs):
        calls.append(self)
        sys.setprofile(entered if len(calls) == 3 else None)
        try:
            return step(self, *args, **kwargs)
        finally:
            sys.setprofile(None)

    monkeypatch.setattr(Step, "__call__", watched)
    data = Darcy(size=9).generate(8)
    settings = {"width": 8, "kernel": (8, 8)} | ({"blocks": 2, "head": 4, "slices": 4} if kind == "NearFar" else {"steps": 2})
    fit(data, kind, Nystrom(0.4, 40), settings=settings, epochs=2, batch=2, symmetries=kind == "NearFar")
    assert 10 < len(seen) <= 18, sorted(seen)


def test_the_commit_says_whether_the_code_was_changed(tmp_path, monkeypatch):
    monkeypatch.delenv("GKN_COMMIT", raising=False)
    package = tmp_path / "gkn" / "system"
    package.mkdir(parents=True)
    monkeypatch.setattr(machine, "__file__", str(package / "machine.py"))
    for command in (["init", "-q"], ["add", "-A"], ["-c", "user.name=a", "-c", "user.email=b", "commit", "-qm", "x"]):
        (package / "machine.py").write_text("1")
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    clean = machine.commit.__wrapped__()
    assert re.fullmatch("[0-9a-f]{40}", clean)
    (package / "machine.py").write_text("2")
    assert machine.commit.__wrapped__() == f"{clean}+"
