"""Facts recorded with every measurement: the machine, the commit of the code, the versions of packages."""

from __future__ import annotations

import os
import platform
import subprocess
from functools import cache
from importlib.metadata import version
from pathlib import Path

import torch


def cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@cache
def machine() -> str:
    """Return the processor, the number of cores, and the GPU if there is one."""
    name = platform.processor()
    try:
        with open("/proc/cpuinfo") as file:
            name = next((line.split(":")[1].strip() for line in file if line.startswith("model name")), name)
    except OSError:
        pass
    gpu = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""
    all_cores = os.cpu_count() or 1
    return f"{name}, {f'{cores()} of ' if cores() < all_cores else ''}{all_cores} cores{gpu}"


@cache
def commit() -> str:
    """Return the commit of this checkout, with a + if the code has uncommitted changes; "unknown" without a checkout.

    The environment variable GKN_COMMIT overrides it, for copies without history. The answer is that of the first call, which
    describes the code that runs.
    """
    given = os.environ.get("GKN_COMMIT")
    if given:
        return given
    here = {"cwd": Path(__file__).parents[2], "capture_output": True, "text": True, "check": True}
    try:
        found = subprocess.run(["git", "rev-parse", "HEAD"], **here).stdout.strip()  # type: ignore[call-overload]
        status = ["git", "status", "--porcelain", "--", "gkn", "benchmarks", "pyproject.toml"]  # what is measured is the code
        changed = subprocess.run(status, **here).stdout  # type: ignore[call-overload]
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return str(found) + ("+" if changed.strip() else "")


def versions() -> dict[str, str]:
    """Return the versions of all packages that the bits of a result may depend on."""
    return dict(_versions())


@cache
def _versions() -> dict[str, str]:
    packages = ("gkn", "torch", "numpy", "scipy", "h5py", "scikit-fem", "netgen-mesher")
    found = {"python": platform.python_version()}
    for name in packages:
        try:
            found[name] = version(name)
        except ModuleNotFoundError:
            continue
    return found
