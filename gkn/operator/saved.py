"""Operators on disk: the operator in a folder, saved by itself or left there by a training run."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from gkn.operator.operator import Operator

RUN, METRICS, OPERATOR, BEST, STEPS = "run.json", "metrics.jsonl", "operator", "best", "checkpoints"
"""Names in the folder of a training run."""


def load(
    path: str | os.PathLike[str], *, best: bool = False, device: torch.device | str = "cpu", dtype: torch.dtype | None = None
) -> Operator:
    """Load the operator in a folder: a saved one, or that of a training run; with `best`, the one with the least test error."""
    folder = Path(path)
    if (folder / RUN).is_file():
        where = folder / BEST if best and (folder / BEST).is_dir() else folder / OPERATOR
        if not where.is_dir():
            steps = [int(path.stem.removeprefix("step-")) for path in (folder / STEPS).glob("step-*.json")]
            raise FileNotFoundError(
                f"{folder}: this run is unfinished, at step {max(steps, default=0)}; run the command that trains it again"
            )
        folder = where
    return Operator.load(folder, device=device, dtype=dtype)
