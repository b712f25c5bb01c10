"""Measurements. Each refuses to print a ratio unless the results agree first, and leaves its numbers in results/ as JSON."""

import fcntl
import json
import os
import shlex
import sys
from pathlib import Path

from gkn.system.files import write
from gkn.system.machine import commit, machine, versions

__all__ = ["RESULTS", "Cells", "commit", "machine", "record", "summary"]

RESULTS = Path(os.environ.get("GKN_RESULTS", Path(__file__).parent.parent / "results"))


def made() -> dict:
    """Return where and how a result is made: the machine, versions, the commit and the command of this process."""
    command = shlex.join(["python", *sys.orig_argv[1:]])
    return {"machine": machine(), "versions": versions(), "commit": commit(), "command": command}


class Cells:
    """Results of long measurements, results/<folder>/<name>.json: one entry per finished cell, which is not computed again."""

    def __init__(self, folder: str) -> None:
        self.folder = RESULTS / folder

    def keep(self, name: str, cell: str, result: dict) -> None:
        """Add a finished cell, with where and how it was made. Several processes may add cells to one file."""
        self.folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(self.folder, os.O_RDONLY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            whole = {"cells": {**self.done(name), cell: {**result, **made()}}}
            write(self.folder / f"{name}.json", (json.dumps(whole, indent=1) + "\n").encode())  # whole or not at all
        finally:
            os.close(lock)

    def done(self, name: str) -> dict:
        """Return the finished cells."""
        path = self.folder / f"{name}.json"
        return json.loads(path.read_text())["cells"] if path.is_file() else {}


def summary(errors) -> dict:
    """Return the numbers of `Errors` without the error of each sample."""
    return {key: value for key, value in errors.json().items() if key != "each"}


def record(name: str, values: dict) -> Path:
    """Write results/<name>.json: the values, and where and how they were made."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps({**made(), **values}, indent=1) + "\n")
    return path
