import hashlib
import json
import os
import random
import subprocess
import sys

import pytest
import torch

from gkn.operator.checkpoint import Checkpoints
from gkn.system.files import CorruptFile, write_sealed_json
from gkn.system.tensors import read_tensors


def tensors(step):
    return {"model/w": torch.full((3,), float(step)), "rng/cpu": torch.arange(5, dtype=torch.uint8), "n": torch.tensor(step)}


def filled(folder, steps=(1, 2), keep=2):
    checkpoints = Checkpoints(folder, keep)
    for step in steps:
        checkpoints.save(step, {"epoch": step, "log": [0.1 * step]}, tensors(step))
    return checkpoints


def test_what_was_saved_is_loaded(tmp_path):
    checkpoints = filled(tmp_path)
    found, wrong = checkpoints.newest()
    assert (found.step, found.state, wrong) == (2, {"epoch": 2, "log": [0.2]}, [])
    assert all(torch.equal(found.tensors[name], x) and found.tensors[name].dtype == x.dtype for name, x in tensors(2).items())
    assert Checkpoints(tmp_path / "nothing").newest() == (None, [])


def test_the_last_ones_and_the_best_are_kept(tmp_path):
    checkpoints = Checkpoints(tmp_path, 2)
    for step in range(1, 8):
        checkpoints.save(step, {}, tensors(step), best=3)
    assert checkpoints.steps() == [3, 6, 7]
    assert len(os.listdir(tmp_path)) == 6
    checkpoints.drop_after(6)
    assert checkpoints.steps() == [3, 6]
    assert len(os.listdir(tmp_path)) == 4
    with pytest.raises(ValueError, match=r"Checkpoints\(keep=0\): needed at least 1"):
        Checkpoints(tmp_path, 0)


def test_saved_again_at_the_same_step(tmp_path):
    """Nothing that is listed is ever overwritten: the old tensors go only when nobody lists them."""
    checkpoints = filled(tmp_path, (5,))
    checkpoints.save(5, {"epoch": 9}, tensors(6))
    assert float(checkpoints.load(5).tensors["n"]) == 6
    assert len(os.listdir(tmp_path)) == 2


def test_rubbish_of_killed_writers_is_removed_and_nothing_else(tmp_path):
    filled(tmp_path)
    for name in ("step-00000009-0123456789ab.safetensors", "step-00000009.json.tmp-12-0123abcd", "notes.txt", "step-1.json"):
        (tmp_path / name).write_text("x")
    Checkpoints(tmp_path).tidy()
    names = {*os.listdir(tmp_path)}
    assert {"notes.txt", "step-1.json"} <= names
    assert len(names) == 6


@pytest.mark.parametrize("kind", ["json", "safetensors"])
def test_a_flipped_bit_or_a_cut_is_noticed_and_the_one_before_is_used(kind, tmp_path):
    """100 flips and 30 cuts of each of the newest checkpoint's two files."""
    checkpoints = filled(tmp_path)
    (path,) = [each for each in tmp_path.iterdir() if each.name.startswith("step-00000002") and each.suffix == f".{kind}"]
    good = path.read_bytes()
    random.seed(0)
    spots = random.sample(range(8 * len(good)), 100)
    damaged = [bytes([*good[: s // 8], good[s // 8] ^ 1 << s % 8, *good[s // 8 + 1 :]]) for s in spots]
    damaged += [good[:size] for size in [0, 1, *random.sample(range(2, len(good)), 28)]]
    for bytes_ in damaged:
        path.write_bytes(bytes_)
        with pytest.raises(CorruptFile, match=path.name):
            checkpoints.load(2)
        found, wrong = checkpoints.newest()
        assert found.step == 1
        assert len(wrong) == 1
        assert path.name in wrong[0]
    path.unlink()
    found, wrong = checkpoints.newest()
    assert found.step == 1
    assert (kind == "json") == (not wrong)  # without its JSON there never was one


def test_files_swapped(tmp_path):
    filled(tmp_path)
    one, two = sorted(tmp_path.glob("*.safetensors"))
    both = one.read_bytes(), two.read_bytes()
    one.write_bytes(both[1])
    two.write_bytes(both[0])
    for step in (1, 2):
        with pytest.raises(CorruptFile, match="changed since it was written"):
            Checkpoints(tmp_path).load(step)


def test_versions_and_entries_that_make_no_sense(tmp_path):
    checkpoints = filled(tmp_path, (1,))
    card = {key: value for key, value in json.loads((tmp_path / "step-00000001.json").read_text()).items() if key != "sha256"}
    for change, said in (
        ({"schema": 7}, "schema 7, but this version of gkn reads schema 1; update gkn"),
        ({"tensors": {**card["tensors"], "file": "../../etc/passwd"}}, "makes no sense"),
        ({"tensors": 3}, "fields missing or unknown"),
        ({"state": None}, "fields missing or unknown"),
    ):
        write_sealed_json(tmp_path / "step-00000001.json", {**card, **change})
        with pytest.raises(CorruptFile, match=said):
            checkpoints.load(1)


def test_tensors_with_the_right_hash_that_are_none(tmp_path):
    for data in (b"", b"\x80\x04K\x01.", b"\xff" * 100, (2**40).to_bytes(8, "little") + b"{}"):
        path = tmp_path / "x.safetensors"
        path.write_bytes(data)
        with pytest.raises(CorruptFile, match="not readable"):
            read_tensors(path, len(data), hashlib.sha256(data).hexdigest())


SWEEP = """
import ctypes, json, os, shutil, sys, pathlib
import torch
from gkn.operator.checkpoint import Checkpoints
from tests.test_checkpoint import tensors, filled

library, root, mode = sys.argv[1:]
faults = ctypes.CDLL(library)
report, point = {"killed": 0, "steps": [], "errors": []}, 0
while True:
    point += 1
    folder = pathlib.Path(f"{root}/point{point}")
    filled(folder, (1, 2))
    child = os.fork()
    if child == 0:
        faults.fault_arm(str(folder).encode(), ctypes.c_long(point), ctypes.c_char(mode.encode()))
        try:
            Checkpoints(folder).save(3, {"epoch": 3, "log": [0.1 * 3]}, tensors(3))
            code = 0
        except OSError as error:
            code = 28 if error.errno == 28 and str(folder) in str(error) else 3
        os._exit(code)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status == 0:
        break
    report["killed"] += status == (-9 if mode == "k" else 28)
    leftovers = [name for name in os.listdir(folder) if ".tmp-" in name]
    found, wrong = Checkpoints(folder).newest()
    report["steps"].append(found.step if found else None)
    if found is None or wrong or not all(torch.equal(found.tensors[name], x) for name, x in tensors(found.step).items()):
        report["errors"].append((point, "not a good checkpoint", wrong))
    if mode != "k" and (leftovers or len(os.listdir(folder)) != 2 * len(Checkpoints(folder).steps())):
        report["errors"].append((point, "leftovers", os.listdir(folder)))
    Checkpoints(folder).tidy()
    names = os.listdir(folder)
    if any(".tmp-" in name for name in names) or len(names) % 2:
        report["errors"].append((point, "rubbish", names))
    shutil.rmtree(folder)
report["points"] = point - 1
print(json.dumps(report))
"""


@pytest.mark.parametrize("mode", ["k", "f", "o"], ids=["killed", "disk-full", "disk-full-once"])
def test_a_fault_at_every_system_call_of_a_save(faults, mode, tmp_path):
    """SIGKILL before, or ENOSPC from, every write, sync and rename: afterwards the checkpoint of step 3 or of 2 is whole."""
    command = [sys.executable, "-c", SWEEP, str(faults), str(tmp_path), mode]
    environment = {**os.environ, "LD_PRELOAD": str(faults), "PYTHONPATH": os.getcwd()}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["errors"] == []
    assert report["points"] >= 8  # write, sync, rename and the folder's sync, of both files
    assert report["killed"] == report["points"]
    assert {*report["steps"]} == {2, 3}  # 3 where only the folder's sync was missing
