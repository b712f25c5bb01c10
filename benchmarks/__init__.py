"""Measurements. Each refuses to print a ratio unless the results agree first, and leaves its numbers in results/ as JSON."""

import json
import os
import sys
from pathlib import Path

from gkn.system.machine import commit, machine, versions

__all__ = ["RESULTS", "commit", "machine", "record"]

RESULTS = Path(os.environ.get("GKN_RESULTS", Path(__file__).parent.parent / "results"))


def record(name: str, values: dict) -> Path:
    """Write results/<name>.json: the values, and where and how they came about."""
    made = {
        "machine": machine(),
        "versions": versions(),
        "commit": commit(),
        "command": " ".join(["python", "-m", *sys.orig_argv[2:]]),
    }
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps({**made, **values}, indent=1) + "\n")
    return path
