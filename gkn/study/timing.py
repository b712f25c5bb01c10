"""Seconds that things take on this machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch

from gkn.data.dataset import Dataset
from gkn.train.fit import fit
from gkn.train.progress import Status

STEPS = {"cpu": (2, 8), "cuda": (40, 60)}
"""Steps before the time of a step is measured, in which a GPU compiles and records; and steps that are measured."""


def seconds_per_step(train: Dataset, model: Any, device: str, **options: Any) -> float:
    """Return the seconds of a step of `fit`: of a short training with these options, which is not kept."""
    warm, timed = STEPS["cuda" if device.startswith("cuda") else "cpu"]
    moments: list[float] = []

    def tick(status: Status) -> None:
        moments.append(time.perf_counter())
        if len(moments) > warm + timed:
            raise _Measured

    short = {**options, "epochs": warm + timed + 1, "device": device}
    with suppress(_Measured):
        fit(train, model, **short, report=tick, warn=lambda text: None)
    return (moments[-1] - moments[warm]) / (len(moments) - 1 - warm)


class _Measured(Exception):
    """Ends a training that was begun to measure the time of its steps."""


def best_of(work: Callable[[], Any], device: str = "cpu", most: int = 5, seconds: float = 4.0) -> float:
    """Return the seconds of the fastest of some calls, after one that is not counted: at most this many, in about this time."""
    found: list[float] = []
    for _ in range(most + 1):
        start = time.perf_counter()
        work()
        if device.startswith("cuda"):
            torch.cuda.synchronize()
        found.append(time.perf_counter() - start)
        if sum(found) > seconds and len(found) > 1:
            break
    return min(found[1:])
