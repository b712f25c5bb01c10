"""Measurements. Each refuses to print a ratio unless the results agree first, and leaves its numbers in results/ as JSON."""

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import torch

from gkn.storage import versions

RESULTS = Path(os.environ.get("GKN_RESULTS", Path(__file__).parent.parent / "results"))


def machine() -> str:
    with open("/proc/cpuinfo") as file:
        model = next((line.split(":")[1].strip() for line in file if line.startswith("model name")), platform.processor())
    gpu = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""
    return f"{model}, {os.cpu_count()} cores{gpu}"


def commit() -> str:
    """The commit, with a + where the tree has changes that are not in it."""
    given = os.environ.get("GKN_COMMIT")
    if given:
        return given
    try:
        found = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
        status = ["git", "status", "--porcelain", "-uno", "--", ".", ":!results", ":!docs"]  # what is measured is the code
        changed = subprocess.run(status, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return found + ("+" if changed.strip() else "")


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
