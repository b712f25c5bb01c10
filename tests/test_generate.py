import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from joblib import Parallel, delayed

import gkn
from gkn import Darcy, DarcyMesh, Dataset, Grid, Mesh, PoissonDisk, PoissonInterval, PoissonSquare, green_interval, make_dataset
from gkn.data.generate import leave_stopping_to
from gkn.data.problems import PROBLEMS as RECIPES
from gkn.data.problems import problem_named as recipe
from gkn.data.storage import Manifest
from gkn.system.files import TEMPORARY, sha256

SMALL = [
    Darcy(size=13, modes=16),
    Darcy(size=7, dim=3, modes=8),
    PoissonInterval(size=17, modes=32),
    PoissonSquare(size=9, modes=16),
    PoissonDisk(size=9, modes=8),
    DarcyMesh(size=9, modes=8),
    DarcyMesh(size=9, modes=8, shape="l-shape"),
    DarcyMesh(size=9, modes=8, shape="holes", vary=True),
    DarcyMesh(size=9, modes=8, shape="disk", vary=True),
]


def same(one, other):
    return len(one) == len(other) and all(
        torch.equal(a.a, b.a) and torch.equal(a.u, b.u) and torch.equal(a.x, b.x) for a, b in zip(one, other, strict=True)
    )


@pytest.mark.parametrize("recipe", SMALL, ids=lambda r: f"{r.name}-{getattr(r, 'shape', getattr(r, 'dim', ''))}")
def test_recipes_satisfy_their_checks_in_memory_and_on_disk(recipe, tmp_path):
    on_disk = make_dataset(recipe, 5, 3, tmp_path / "d")
    assert same(make_dataset(recipe, 5, 3), on_disk)
    assert on_disk.inputs == recipe.inputs
    findings = gkn.check_dataset(tmp_path / "d")
    assert all(finding.ok for finding in findings), findings
    assert not same(make_dataset(recipe, 5, 4), on_disk)


@pytest.mark.parametrize("recipe", [Darcy(size=13, modes=16), DarcyMesh(size=9, modes=8, vary=True)], ids=["grid", "meshes"])
def test_the_same_bits_for_any_number_of_workers(recipe, tmp_path):
    hashes = {make_dataset(recipe, 40, 0, tmp_path / str(w), workers=w).manifest.hash for w in (1, 2, 3)}
    assert len(hashes) == 1


def test_a_sample_depends_on_its_number_alone():
    few, many = make_dataset(Darcy(size=13, modes=16), 3), make_dataset(Darcy(size=13, modes=16), 20)
    assert torch.equal(few.field("a"), many.field("a")[:3])
    assert torch.equal(few.field("u"), many.field("u")[:3])


def test_the_number_of_threads_changes_no_bit():
    recipe = Darcy(size=241, modes=32)  # large enough for torch to split its sums among threads
    one = make_dataset(recipe, 1)
    torch.set_num_threads(2)
    assert same(make_dataset(recipe, 1), one)
    assert torch.get_num_threads() == 2


def test_one_seed_is_one_function_on_grids_and_meshes():
    """darcy-mesh, sample i, is the very function of darcy, sample i: compare where the nodes coincide, the corners."""
    grid, mesh = make_dataset(Darcy(size=9, modes=64), 20), make_dataset(DarcyMesh(size=9, modes=64), 20)
    corners = [int((mesh.domain.points == torch.tensor(c)).all(1).nonzero()[0]) for c in ((0.0, 0.0), (0.0, 1.0), (1.0, 0.0))]
    assert torch.equal(grid.field("a")[:, [0, 8, 72]], mesh.field("a")[:, corners])
    fine = make_dataset(Darcy(size=17, modes=64), 20)
    assert torch.equal(fine.every(2).field("a"), grid.field("a"))


def test_the_darcy_measure():
    """Few samples, wide bounds; results/darcy241.json holds the comparison from 1024 samples."""
    data = make_dataset(Darcy(size=61), 48)
    a, u = data.field("a"), data.field("u")
    assert set(a.unique().tolist()) == {3.0, 12.0}
    assert float(a.mean()) == pytest.approx(7.48, abs=0.5)
    assert float(u.mean()) == pytest.approx(5.7e-3, rel=0.1)
    assert float(u.std()) == pytest.approx(3.9e-3, rel=0.1)
    assert (u[:, data.domain.boundary] == 0).all()


def test_the_recipes_are_the_papers():
    darcy = {"size": 241, "dim": 2, "tau": 3.0, "alpha": 2.0, "low": 3.0, "high": 12.0, "f": 1.0, "modes": 0}
    assert Darcy().describe() == {"name": "darcy", **darcy}
    assert Darcy().field() == gkn.GaussianField(3.0, 2.0, "neumann", dim=2, modes=512)
    assert DarcyMesh().field() == Darcy().field()
    assert (DarcyMesh(shape="disk").field().lower, DarcyMesh(shape="disk").field().upper) == (-1, 1)
    assert PoissonInterval().field() == gkn.GaussianField(1.0, 1.0, "periodic", dim=1, modes=1024, constant=True)
    assert PoissonSquare().field() == gkn.GaussianField(3.0, 2.0, "neumann", modes=512, scale=3.0)
    assert PoissonSquare(alpha=3.0).field().scale == 9.0
    assert PoissonDisk().field() == gkn.GaussianField(3.0, 2.0, "neumann", modes=512, scale=3.0, lower=-1.0, upper=1.0)


def test_the_sources_have_the_variance_of_their_field():
    data = make_dataset(PoissonSquare(size=9, modes=32), 600)
    deviations = PoissonSquare(modes=32).field().deviations()
    assert float(((data.field("f") ** 2) @ data.domain.weights).mean()) == pytest.approx(float((deviations**2).sum()), rel=0.1)


def test_poisson_interval_is_the_greens_function_integral():
    data = make_dataset(PoissonInterval(size=65), 4)
    x = data.domain.points[:, 0]
    u = (green_interval(x[:, None], x)[None] * (data.field("f") * data.domain.weights)[:, None]).sum(-1)
    torch.testing.assert_close(data.field("u"), u, atol=1e-9, rtol=0)
    f = make_dataset(PoissonInterval(size=65), 400).field("f")
    assert torch.equal(f[:, 0], f[:, -1])  # periodic
    assert float(f.mean(1).var()) == pytest.approx(1, rel=0.3)  # the constant mode has variance 1


def test_unknown_recipes_and_parameters(monkeypatch):
    with pytest.raises(ValueError, match=r"no problem 'navier'; there are .*darcy, darcy-mesh, .*poisson-interval"):
        recipe("navier")
    with pytest.raises(ValueError, match="problem darcy has no parameter 'colour'; it has size, dim"):
        recipe("darcy", colour=1)
    with pytest.raises(ValueError, match="use one of square, holes, l-shape, disk"):
        recipe("darcy-mesh", shape="torus")
    with pytest.raises(ValueError, match="n >= 1"):
        make_dataset(Darcy(), 0)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(ValueError, match="no usable CUDA device"):
        make_dataset(Darcy(), 1, device="cuda")
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    with pytest.raises(ValueError, match="made on the CPU"):
        make_dataset(DarcyMesh(), 1, device="cuda")
    on_grids = {"darcy", "poisson-interval", "poisson-square", "burgers", "navier-stokes"}
    on_meshes = {"darcy-mesh", "darcy-fg", "poisson", "poisson-disk", "heat", "wave", "plate"}
    assert set(RECIPES) == {*on_grids, *on_meshes, "layer-potential"}


# --- interrupted -----------------------------------------------------------------------------------------------------

TINY = Darcy(size=5, modes=4)


SWEEP = """
import ctypes, json, os, shutil, sys
import torch
torch.set_num_threads(1)
from gkn import Dataset, Darcy, DarcyMesh, make_dataset
from gkn.data.storage import Manifest

library, root, mode, recipe = sys.argv[1:]
faults = ctypes.CDLL(library)
recipe = {"grid": Darcy(size=5, modes=4), "mesh": DarcyMesh(size=5, modes=4)}[recipe]
make = lambda folder: make_dataset(recipe, 40, 0, folder)
clean = make(root + "/clean").manifest
bytes_of = lambda folder, shard: open(f"{folder}/{shard.file}", "rb").read()
report = {"killed": 0, "finished": 0, "listed": [], "errors": []}
point = 0
while True:
    point += 1
    folder = f"{root}/point{point}"
    os.mkdir(folder)
    child = os.fork()
    if child == 0:
        faults.fault_arm(folder.encode(), ctypes.c_long(point), ctypes.c_char(mode.encode()))
        try:
            make(folder)
            code = 0
        except OSError as error:
            code = 28 if error.errno == 28 else 3
        os._exit(code)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status == 0:
        break
    report["killed"] += status == (-9 if mode == "k" else 28)
    if status not in (-9, 28):
        report["errors"].append((point, "exit", status))
    leftovers = [name for name in os.listdir(folder) if ".tmp-" in name]
    if mode in "fo" and leftovers:
        report["errors"].append((point, "leftovers", leftovers))
    if os.path.exists(folder + "/dataset.json"):
        found = Manifest.read(__import__("pathlib").Path(folder))
        report["listed"].append(len(found.shards))
        for shard in found.shards:
            if shard not in clean.shards or bytes_of(folder, shard) != bytes_of(root + "/clean", shard):
                report["errors"].append((point, "listed shard differs", shard.file))
    again = make(folder).manifest
    if again.hash != clean.hash:
        report["errors"].append((point, "hash differs", again.hash))
    if sorted(os.listdir(folder)) != sorted(os.listdir(root + "/clean")):
        report["errors"].append((point, "other files", os.listdir(folder)))
    shutil.rmtree(folder)
report["points"] = point - 1
print(json.dumps(report))
"""


@pytest.mark.parametrize(
    ("mode", "domain"),
    [
        pytest.param("k", "grid", id="killed-grid"),
        pytest.param("k", "mesh", id="killed-mesh"),
        pytest.param("f", "grid", id="disk-full-grid"),
        pytest.param("f", "mesh", id="disk-full-mesh"),
        pytest.param("o", "grid", id="disk-full-once-grid"),
        pytest.param("o", "mesh", id="disk-full-once-mesh", marks=pytest.mark.slow),
    ],
)
def test_a_fault_at_every_system_call_loses_nothing(faults, mode, domain, tmp_path):
    """SIGKILL before, or ENOSPC from, every write, sync and rename of `make_dataset`, one after the other.

    After each: what is listed is bit-equal to a clean run, no rubbish is left by a full disk, and a rerun completes to
    the same dataset hash.
    """
    command = [sys.executable, "-c", SWEEP, str(faults), str(tmp_path), mode, domain]
    done = subprocess.run(command, env={**os.environ, "LD_PRELOAD": str(faults)}, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["errors"] == []
    # dataset.json when made, three shards, dataset.json after each (and domain.h5): four calls each at the least.
    assert report["points"] >= 4 * (7 if domain == "grid" else 8)
    assert report["killed"] == report["points"]
    assert {0, 1, 2} <= {*report["listed"]}


def command(folder, n=60, workers=2, size=31):
    words = f"-m gkn data make darcy --n {n} --size {size} --set modes=32 --seed 1 --workers {workers} --out {folder}"
    return [sys.executable, *words.split()]


def wait_for_a_shard(folder, process):
    before, limit, ended = shards_in(folder), time.monotonic() + 120, False
    while time.monotonic() < limit and not ended:
        ended = process.poll() is not None
        if shards_in(folder) > before:
            return
        time.sleep(0.01)
    raise AssertionError(f"no shard was listed; exit code {process.poll()}")


def shards_in(folder):
    return len(Manifest.read(folder).shards) if (folder / "dataset.json").exists() else 0


@pytest.mark.parametrize("point", [1, *(pytest.param(point, marks=pytest.mark.slow) for point in (4, 9, 14))])
def test_a_full_disk_at_the_command_line(faults, point, tmp_path):
    """With two workers: one sentence that says where and what to do, no leftovers, and a rerun that completes."""
    folder = tmp_path / "d"
    full = {"LD_PRELOAD": str(faults), "FAULT_FOLDER": str(folder), "FAULT_AT": str(point), "FAULT_MODE": "f"}
    done = subprocess.run(command(folder), env={**os.environ, **full}, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1, done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith(f"error: No space left on device: {folder}")
    assert last.endswith("free some space and run the same command again")
    assert "Traceback" not in done.stderr
    assert not (folder / "dataset.json").exists() or Manifest.read(folder).n == 60
    subprocess.run(command(folder), check=True, capture_output=True)
    assert not [path for path in folder.iterdir() if TEMPORARY in path.name]
    assert Dataset.open(folder).manifest.hash == make_dataset(Darcy(size=31, modes=32), 60, 1, tmp_path / "clean").manifest.hash


def workers_of(pid):
    tasks = Path(f"/proc/{pid}/task")
    children = [int(child) for task in tasks.iterdir() for child in (task / "children").read_text().split()]
    return [child for child in children if b"loky.backend.popen_loky" in Path(f"/proc/{child}/cmdline").read_bytes()]


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_worker_in_a_long_task_ends_with_its_parent():
    """Also if the parent is killed before the worker begins to watch it."""
    work = "import os, time; from gkn.data.generate import follow; parent = os.getppid()"
    work += "; print(os.getpid()); follow(parent); time.sleep(99)"
    script = f"import subprocess, sys; subprocess.run([sys.executable, '-u', '-c', {work!r}])"
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    worker = int(parent.stdout.readline())
    parent.kill()
    limit = time.monotonic() + 20
    while is_running(worker) and time.monotonic() < limit:
        time.sleep(0.05)
    assert not is_running(worker)
    parent.communicate()


def test_workers_that_are_starting_end_with_their_parent(tmp_path):
    """Killed before the first task has begun."""
    process = subprocess.Popen(command(tmp_path / "d", 32, size=421), stderr=subprocess.DEVNULL, start_new_session=True)
    limit = time.monotonic() + 60
    while len(workers_of(process.pid)) < 2 and time.monotonic() < limit:
        time.sleep(0.005)
    workers = workers_of(process.pid)
    assert len(workers) == 2
    process.kill()
    process.wait()
    limit = time.monotonic() + 40
    while any(map(is_running, workers)) and time.monotonic() < limit:
        time.sleep(0.05)
    assert not any(map(is_running, workers))


def test_workers_end_with_their_parent(tmp_path):
    """kill -9 of the parent: its workers lived on for 340 s. What they leave must not land in what is made there next."""
    folder = tmp_path / "d"
    process = subprocess.Popen(command(folder, 32, size=421), stderr=subprocess.DEVNULL, start_new_session=True)
    limit = time.monotonic() + 60
    while not [*folder.glob("dataset.json")] and time.monotonic() < limit:
        time.sleep(0.01)
    while len(workers := workers_of(process.pid)) < 2 and time.monotonic() < limit:
        time.sleep(0.01)
    time.sleep(2.0)  # the workers have begun, and have seconds to go
    assert len(workers) == 2
    process.kill()
    process.wait()
    after = make_dataset(TINY, 3, 2, folder, force=True).manifest
    limit = time.monotonic() + 15
    while any(map(is_running, workers)) and time.monotonic() < limit:
        time.sleep(0.05)
    assert not any(map(is_running, workers))
    assert not after_change(folder, after)
    assert len(Dataset.open(folder).field("u")) == 3


def after_change(folder, manifest):
    return any(sha256(folder / shard.file) != shard.sha256 for shard in manifest.shards)


def test_a_worker_that_is_killed(tmp_path):
    """A worker killed by the system, as when memory runs out, ends the run with one sentence; listed shards are kept."""
    process = subprocess.Popen(command(tmp_path / "d", 480, size=61), stderr=subprocess.PIPE, text=True)
    wait_for_a_shard(tmp_path / "d", process)
    os.kill(workers_of(process.pid)[0], signal.SIGKILL)
    _, said = process.communicate(timeout=100)
    assert process.returncode == 1, said
    assert "error: a worker died" in said
    assert "Traceback" not in said
    assert Manifest.read(tmp_path / "d").shards


@pytest.mark.parametrize(("sent", "code"), [pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow), (signal.SIGTERM, 143)])
def test_stopped_and_run_again(sent, code, tmp_path):
    """Ctrl-C and SIGTERM: what is listed is kept, the message says how to go on, a rerun makes the rest and the same."""
    n = 480
    process = subprocess.Popen(command(tmp_path / "d", n, size=61), stderr=subprocess.PIPE, text=True, start_new_session=True)
    wait_for_a_shard(tmp_path / "d", process)
    os.killpg(process.pid, sent)  # as a terminal does: to all of the group
    _, said = process.communicate(timeout=60)
    assert process.returncode == code, said
    assert "run the same command again to go on" in said
    assert "Traceback" not in said
    kept = Manifest.read(tmp_path / "d")
    assert len(kept.shards) > 0
    assert not kept.complete
    with pytest.raises(ValueError, match="unfinished"):
        Dataset.open(tmp_path / "d")
    stamps = {shard.file: (tmp_path / "d" / shard.file).stat().st_mtime_ns for shard in kept.shards}
    subprocess.run(command(tmp_path / "d", n, size=61), check=True, capture_output=True)
    done = Dataset.open(tmp_path / "d").manifest
    assert set(kept.shards) <= set(done.shards)
    assert all((tmp_path / "d" / file).stat().st_mtime_ns == stamp for file, stamp in stamps.items())  # not made again
    assert not [path for path in (tmp_path / "d").iterdir() if TEMPORARY in path.name]
    assert done.hash == make_dataset(Darcy(size=61, modes=32), n, 1, tmp_path / "clean").manifest.hash


def test_workers_leave_stopping_to_their_parent():
    """A worker process ignores Ctrl-C once it has run a task; its parent does not."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # programs in the background start with it ignored
    try:
        heard = Parallel(n_jobs=2)(delayed(hears_ctrl_c)(os.getpid()) for _ in range(4))
        assert heard == [False] * 4
        assert hears_ctrl_c(os.getpid())
    finally:
        signal.signal(signal.SIGINT, before)


def hears_ctrl_c(parent):
    leave_stopping_to(parent)
    return signal.getsignal(signal.SIGINT) is not signal.SIG_IGN


def kill_sweep(tmp_path, moments, seed, longest=7.0):
    """Killed at any moment of the first seconds, and, every other time, while shards are written, whenever that is."""
    clean = make_dataset(Darcy(size=31, modes=32), 320, 1, tmp_path / "clean").manifest
    random.seed(seed)
    folder, kills, within = tmp_path / "d", 0, 0
    for moment in range(moments):
        process = subprocess.Popen(command(folder, 320), stderr=subprocess.DEVNULL, start_new_session=True)
        if moment % 2:
            wait_for_a_shard(folder, process)
        try:
            process.wait(timeout=random.uniform(0.0, 0.2 if moment % 2 else longest))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            kills += 1
        if (folder / "dataset.json").exists():
            found = Manifest.read(folder)
            within += 0 < len(found.shards) < 20
            assert set(found.shards) <= set(clean.shards)
            for shard in found.shards:
                assert (folder / shard.file).read_bytes() == (tmp_path / "clean" / shard.file).read_bytes()
            if found.complete:
                shutil.rmtree(folder)
    subprocess.run(command(folder, 320), check=True, capture_output=True)
    assert Dataset.open(folder).manifest.hash == clean.hash
    return kills, within


def test_killed_at_random_moments(tmp_path):
    kills, _ = kill_sweep(tmp_path, 4, 0)
    assert kills >= 1


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_killed_at_fifty_random_moments(tmp_path):
    start = time.monotonic()  # how long a run takes on this machine, as busy as it is
    subprocess.run(command(tmp_path / "timed", 320), check=True, capture_output=True)
    kills, within = kill_sweep(tmp_path, 50, 1, longest=time.monotonic() - start)
    assert kills >= 25
    assert within >= 5  # not all before the first shard


def test_meshes_of_recipes():
    assert isinstance(DarcyMesh(size=9).domain(), Mesh)
    assert Darcy().domain() == Grid(241)
