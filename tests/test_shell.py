"""The command line as a process: signals in its first seconds, closed and full streams, files of options."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import typer

import gkn.cli
from gkn import Dataset, Grid, Recipe, load
from gkn.cli.shell import literals
from gkn.cli.streams import Unfailing
from tests.test_cli import run
from tests.test_generate import workers_of

ROOT = Path(__file__).parent.parent
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
SMALL = "--model GKN --network width=4 --network kernel=4,4 --device cpu"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shell") / "data"
    values = torch.rand(12, 81, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    Dataset(Grid(9), a=values, u=1 + values).save(folder)
    return folder


@pytest.fixture(scope="module")
def trained(data):
    run("train", data, "--out", data.parent / "run", "--epochs", "1", *SMALL.split())
    return data.parent / "run"


def start(*words, **options):
    command = [sys.executable, "-m", "gkn", *map(str, words)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **options}
    return subprocess.Popen(command, env=ENVIRONMENT, **pipes)


def verbs(data, trained, out):
    """Return a command of every verb that runs for some seconds."""
    grid = out / "in.npz"
    from gkn import save

    save(grid, Grid(9), {"a": torch.rand(81, dtype=torch.float64)})
    return {
        "train": ["train", data, "--out", out / "run", "--epochs", "1000", *SMALL.split()],
        "eval": ["eval", trained, data, "--out", out / "eval.json"],
        "predict": ["predict", trained, "--input", grid, "--out", out / "out.npz"],
        "info": ["info", trained],
        "data make": ["data", "make", "darcy", "--n", "400", "--size", "61", "--out", out / "made", "--workers", "2"],
        "data check": ["data", "check", data],
        "demo": ["demo", "--out", out / "demo"],
        "reproduce": ["reproduce", "all", "--scale", "smoke", "--out", out / "paper"],
        "help": ["--help"],
    }


def imports_torch(pid):
    try:
        return "libtorch_cpu" in Path(f"/proc/{pid}/maps").read_text()
    except OSError:
        return False


def moment(what, process, folder):
    """Wait until a command has come to a certain moment."""
    end = time.monotonic() + 60
    while time.monotonic() < end and process.poll() is None:
        if what == "importing" and imports_torch(process.pid):
            return
        if what == "workers start" and any(imports_torch(worker) for worker in workers_of(process.pid)):
            return
        if what == "begun" and ([*folder.glob("run/metrics.jsonl")] or [*folder.glob("made/shard-*.h5")]):
            return
        time.sleep(0.005)


def check_interrupted(process, name):
    """Send Ctrl-C to a command and its workers; expect one sentence. Return what was printed."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGINT)
    out, errors = process.communicate(timeout=60)
    assert "Traceback" not in out + errors, (name, out, errors)
    assert process.returncode in (0, 130, -signal.SIGINT), (name, out, errors)  # the last: at the very end, quietly
    return errors


@pytest.mark.parametrize(
    ("name", "when"),
    [("train", "importing"), ("train", "begun"), ("data make", "importing"), ("data make", "workers start")],
)
def test_an_early_interrupt_is_one_sentence(name, when, data, trained, tmp_path):
    """While modules are imported, while workers start, and after the first step."""
    process = start(*verbs(data, trained, tmp_path)[name], start_new_session=True, cwd=tmp_path)
    moment(when, process, tmp_path)
    said = check_interrupted(process, name)
    assert process.returncode == 130
    assert "error: interrupted" in said


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_an_interrupt_at_any_moment_of_any_verb(data, trained, tmp_path):
    """16 moments of the first four seconds of every verb, after Python itself has started."""
    for k in range(16):
        for name, words in verbs(data, trained, tmp_path).items():
            process = start(*words, start_new_session=True, cwd=tmp_path)
            time.sleep(0.3 + 0.25 * k)
            check_interrupted(process, (name, k))


def test_an_interrupt_where_nothing_can_be_raised(tmp_path):
    """Python prints and forgets what is raised while it cleans up after an object. The command stops all the same."""
    script = tmp_path / "script.py"
    script.write_text(
        "import os, signal, sys, time, gkn.cli\n"
        "class Thing:\n"
        "    def __del__(self): os.kill(os.getpid(), signal.SIGINT); time.sleep(0)\n"
        "def work():\n"
        "    [signal.signal(n, gkn.cli._stop) for n in (signal.SIGINT, signal.SIGTERM)]\n"
        "    Thing()\n"
        "    time.sleep(20)\n"
        "gkn.cli.app = work\n"
        "gkn.cli.main()\n"
    )
    done = subprocess.run([sys.executable, script], env=ENVIRONMENT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 130
    assert done.stderr == "error: interrupted; what was finished is kept, run the same command again to go on\n"


@pytest.mark.parametrize("where", ["/dev/full", "closed"])
def test_a_training_goes_on_without_its_errors_stream(where, data, tmp_path):
    words = ["train", data, "--out", tmp_path / "run", "--epochs", "2", *SMALL.split()]
    command = " ".join(map(str, [sys.executable, "-m", "gkn", *words]))
    done = subprocess.run(f"{command} 2>{'&-' if where == 'closed' else where}", shell=True, env=ENVIRONMENT, timeout=100)
    assert done.returncode == 0
    assert load(tmp_path / "run").about["metrics"]["epoch"] == 2
    assert (tmp_path / "run/report.html").exists()


def test_a_training_goes_on_without_its_output_and_says_so(data, tmp_path):
    words = ["train", data, "--out", tmp_path / "run", "--epochs", "2", *SMALL.split()]
    with open("/dev/full", "w") as full:
        done = start(*words, stdout=full)
        said = done.communicate(timeout=100)[1]
    assert done.returncode == 1
    assert "error: standard output: No space left on device; what was printed there is lost, everything else was done" in said
    assert load(tmp_path / "run").about["metrics"]["epoch"] == 2


def test_a_reader_that_has_read_enough_is_no_error(data):
    command = f"{sys.executable} -m gkn data info {data} | head -c 1"
    done = subprocess.run(command, shell=True, env=ENVIRONMENT, capture_output=True, text=True, timeout=60)
    assert done.stderr == ""


@pytest.mark.parametrize("close", ["2>&-", "2>/dev/full"])
def test_a_training_in_python_goes_on_without_its_errors_stream(close, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import torch, gkn\n"
        "u = torch.rand(4, 25, dtype=torch.float64)\n"
        "model = gkn.GKN(dim=2, width=4, kernel=(4,))\n"
        "print(gkn.fit(gkn.Dataset(gkn.Grid(5), a=u, u=1 + u), model, gkn.Radius(0.4), epochs=1).about['metrics']['epoch'])\n"
    )
    done = subprocess.run(
        f"{sys.executable} {script} {close}", shell=True, env=ENVIRONMENT, stdout=subprocess.PIPE, timeout=100
    )
    assert done.stdout == b"1\n"


def test_an_error_message_has_an_end(capsys):
    with pytest.raises(SystemExit):
        gkn.cli._fail("x" * 10**6, 1)
    assert "and 998000 more characters" in capsys.readouterr().err.replace("\n", " ")


def test_a_stream_that_is_closed_later():
    stream = open(os.devnull, "w")  # noqa: SIM115
    guarded = Unfailing(stream)
    guarded.write("x")
    stream.close()
    assert guarded.write("lost") == 4
    guarded.flush()
    assert guarded.failed
    assert not guarded.isatty()
    assert Unfailing(None).write("lost") == 4


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("lr = true", "lr = true: needed a number"),
        ("epochs = 2.5", "epochs = 2.5: needed a whole number"),
        ("epochs = true", "epochs = true: needed a whole number"),
        ("shuffle = 1", "shuffle = 1: needed true or false"),
        ("every = 2", r"every = 2: needed a whole number, in a list such as [1, 2]"),
        ("epochs = [1]", "epochs = [1]: needed a whole number"),
        ("model = {a = 1}", "model = {'a': 1}: needed a text or a number"),
        ("a = " + "[" * 5000 + "]" * 5000, "nested too deeply"),
        ("epochs" + ".a" * 3000 + " = 1", "epochs = a value that is nested deeply: needed a whole number"),
        ("epochs" + ".a" * 40000 + " = 1", "such a file has at most 65536"),
        (f"epochs = '{'x' * 9999}'", "xxx ...: needed a whole number"),
        ("lr = ", "not TOML"),
    ],
)
def test_options_of_a_file_have_their_types(text, said, data, tmp_path):
    (tmp_path / "x.toml").write_text(text)
    assert said in run("train", data, "--out", tmp_path / "run", "--config", tmp_path / "x.toml", code=2)
    assert not (tmp_path / "run").exists()


def test_a_file_of_options(data, tmp_path):
    (tmp_path / "x.toml").write_text(
        'epochs = 2\nlr = 1\nmodel = "GKN"\nnetwork = ["width=4", "kernel=4,4"]\nevery = [2]\nshuffle = false'
    )
    run("train", data, "--out", tmp_path / "run", "--config", tmp_path / "x.toml", "--lr", "0.001")
    config = json.loads((tmp_path / "run/run.json").read_text())
    assert config["recipe"]["epochs"] == 2
    assert config["recipe"]["lr"] == 0.001
    assert config["data"][0]["every"] == 2


def test_true_is_no_number_in_python_either():
    with pytest.raises(ValueError, match=r"Recipe\(lr=True\): needed a number"):
        Recipe(lr=True)


def test_settings_that_are_nested_deeply():
    with pytest.raises(typer.BadParameter, match="needed a number or a list of numbers"):
        literals([f"width={'(' * 100_000}"], "--network")
