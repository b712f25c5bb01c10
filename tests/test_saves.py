"""Saves of operators that race with each other and with readers."""

import os
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from gkn.data.dataset import Dataset
from gkn.operator import card
from gkn.operator.card import CARD
from gkn.operator.operator import Operator
from gkn.operator.saved import load
from gkn.system import files
from gkn.system.files import write_sealed_json
from tests import saves, tiny


def free_port():
    """Return a port that nobody listens on."""
    with socket.socket() as here:
        here.bind(("127.0.0.1", 0))
        return here.getsockname()[1]


def read_until(folder, over, known):
    """Load the operator again and again; return the number of loads, and what went wrong."""
    count, wrong = 0, []
    while not over.is_set():
        try:
            if Operator.load(folder).about["seed"] not in known:
                wrong.append("an operator that nobody saved")
        except Exception as error:
            wrong.append(f"{type(error).__name__}: {error}")
        count += 1
    return count, wrong


def test_threads_that_save_into_one_folder_and_read_it(tmp_path):
    """Readers see one of the saved operators at any moment, and no writer fails. Nothing but the last operator remains."""
    folder, seeds, over = tmp_path / "op", [*range(4)], threading.Event()
    operators = [saves.operator_of(seed) for seed in seeds]
    operators[0].save(folder)

    def save(operator):
        for _ in range(25):
            operator.save(folder)

    with ThreadPoolExecutor(6) as pool:
        readers = [pool.submit(read_until, folder, over, seeds) for _ in range(2)]
        try:
            for writer in [pool.submit(save, each) for each in operators]:
                writer.result()
        finally:
            over.set()
        found = [reader.result() for reader in readers]
    assert [wrong for _, wrong in found] == [[], []]
    assert min(count for count, _ in found) > 5
    assert load(folder).about["seed"] in seeds
    assert sorted(path.suffix for path in folder.iterdir()) == [".json", ".safetensors"]


def test_only_the_tensors_of_the_replaced_operator_are_removed(tmp_path):
    folder = tmp_path / "op"
    saves.operator_of(0).save(folder)
    (first,) = folder.glob("tensors-*")
    other = folder / "tensors-0123456789ab.safetensors"  # of a save that another machine has begun
    other.write_bytes(b"x")
    saves.operator_of(1).save(folder)
    assert other.exists()
    assert not first.exists()


def test_a_save_that_fails_after_the_card_is_in_place_keeps_the_tensors(tmp_path, monkeypatch):
    folder = tmp_path / "op"
    saves.operator_of(0).save(folder)
    sync = os.fsync

    def fails_when_the_card_is_new(descriptor):
        if os.path.isdir(f"/proc/self/fd/{descriptor}") and load(folder).about["seed"] == 1:
            raise OSError(5, "Input/output error")
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", fails_when_the_card_is_new)
    with pytest.raises(OSError, match="Input/output error"):
        saves.operator_of(1).save(folder)
    monkeypatch.undo()
    assert load(folder).about["seed"] == 1


def test_a_lock_on_a_file_that_is_gone_is_no_lock(tmp_path, monkeypatch):
    """Another process may remove the lock file after this one has opened it, and a third one may make a new one."""
    taken, stale = files._locked_file, []

    def locked_file(path):
        lock = taken(path)
        if not stale:
            path.unlink()
            stale.append(lock)
        return lock

    monkeypatch.setattr(files, "_locked_file", locked_file)
    with files.locked_briefly(tmp_path / "op"):
        held = os.stat(tmp_path / "op" / files.LOCK)  # there is a file, so that others are kept out
        assert taken(tmp_path / "op" / files.LOCK) is None
        assert held.st_nlink == 1


def test_a_writer_that_holds_the_folder_for_long_is_named(tmp_path):
    said = f"{tmp_path}: another process has been writing"
    with files.locked(tmp_path, ValueError), pytest.raises(OSError, match=said), files.locked_briefly(tmp_path, wait=0.1):
        pass


def test_the_folder_of_a_run_takes_no_other_operator(tmp_path):
    write_sealed_json(tmp_path / "run.json", {})
    with pytest.raises(ValueError, match="holds a training run, which has its operator already; save to another folder"):
        saves.operator_of(0).save(tmp_path)
    assert not (tmp_path / CARD).exists()


def test_the_operators_of_a_run_are_not_replaced_by_others(tmp_path):
    tiny.run(tmp_path / "run", epochs=2)
    for name in ("operator", "start"):
        with pytest.raises(ValueError, match="holds a training run"):
            saves.operator_of(0).save(tmp_path / "run" / name)
    assert load(tmp_path / "run").about["metrics"]["epoch"] == 2
    saves.operator_of(0).save(tmp_path / "elsewhere/operator")
    with files.locked(tmp_path / "run", ValueError), pytest.raises(ValueError, match="holds a training run"):
        saves.operator_of(0).save(tmp_path / "run")  # and does not wait for the run to end
    with pytest.raises(ValueError, match="needed the name of a folder"):
        saves.operator_of(0).save("")


def test_a_reader_looks_again_if_the_same_card_was_written_again(tmp_path, monkeypatch):
    """Card A without its tensors, then card A again, whose tensors are gone again: two operators that alternate."""
    folder = tmp_path / "op"
    saves.operator_of(0).save(folder)
    really, times = card.read_tensors, []

    def gone_twice(*given):
        times.append(1)
        if len(times) <= 2:
            write_sealed_json(folder / CARD, card.read_description(folder))
            raise FileNotFoundError("gone")
        return really(*given)

    monkeypatch.setattr(card, "read_tensors", gone_twice)
    assert load(folder).about["seed"] == 0
    monkeypatch.setattr(card, "read_tensors", really)
    next(folder.glob("tensors-*")).unlink()
    with pytest.raises(FileNotFoundError, match="is missing; restore it"):
        load(folder)


def test_processes_that_save_one_dataset(tmp_path):
    """As ranks do: one writes, the others wait."""
    script = (
        "import sys, torch; from gkn import Dataset, Grid\n"
        "u = torch.arange(8.0 * 81 * 81, dtype=torch.float64).reshape(8, -1)\n"
        "import gkn.data.saving; gkn.data.saving.SHARD_BYTES = 1\n"
        "Dataset(Grid(81), a=u, u=u).save(sys.argv[1])"
    )
    begun = [
        subprocess.Popen([sys.executable, "-c", script, str(tmp_path / "data")], stderr=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    assert [process.communicate(timeout=100)[1] for process in begun] == [""] * 3
    data = Dataset.open(tmp_path / "data")
    assert data.damaged() == []
    assert float(data[7].u[-1]) == 8 * 81 * 81 - 1


def test_an_interrupted_first_save_is_said_to_be_one(tmp_path):
    folder = tmp_path / "op"
    saves.operator_of(0).save(folder)
    (folder / CARD).unlink()
    with pytest.raises(FileNotFoundError, match="the operator is incomplete: saving it was interrupted; save it again"):
        load(folder)
    with pytest.raises(FileNotFoundError, match="nothing-here: no such folder"):
        load(tmp_path / "nothing-here")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("processes", "rounds", "ranks"), [(2, 200, False), (4, 300, True)])
def test_processes_that_save_into_one_folder(processes, rounds, ranks, tmp_path):
    """200 rounds of two processes with operators of their own, 300 of four ranks with the same one; a reader beside."""
    folder, over = tmp_path / "op", threading.Event()
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(processes)} if ranks else {}
    seeds = [0] * processes if ranks else [*range(processes)]
    saves.operator_of(0).save(folder)
    known = [*seeds, *(seed + 100 for seed in seeds)]
    begun = [
        saves.start(folder, seed, rounds, **meeting, **({"RANK": str(rank)} if ranks else {}))
        for rank, seed in enumerate(seeds)
    ]
    with ThreadPoolExecutor(1) as pool:
        for process in begun:
            assert process.stdout.readline() == "ready\n"
        reader = pool.submit(read_until, folder, over, known)
        try:
            for _ in range(rounds):
                for process in begun:
                    process.stdin.write("go\n")
                    process.stdin.flush()
                assert [process.stdout.readline() for process in begun] == ["saved\n"] * processes
                load(folder)
        finally:
            over.set()
        count, wrong = reader.result()
    for process in begun:
        process.communicate(timeout=60)
    print(f"{rounds} rounds of {processes} processes, {count} loads beside them")
    assert wrong == []
    assert count > rounds // 4
    assert sorted(path.suffix for path in folder.iterdir()) == [".json", ".safetensors"]
