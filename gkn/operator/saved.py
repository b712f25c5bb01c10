"""Operators on disk: the operator in a folder, saved by itself or left there by a training run."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from gkn.operator.checkpoint import Checkpoint, Checkpoints
from gkn.operator.operator import Operator

RUN, METRICS, OPERATOR, BEST, STEPS, START = "run.json", "metrics.jsonl", "operator", "best", "checkpoints", "start"
"""Names in the folder of a training run."""


def load(
    path: str | os.PathLike[str], *, best: bool = False, device: torch.device | str = "cpu", dtype: torch.dtype | None = None
) -> Operator:
    """Load the operator in a folder: a saved one, or that of a training run.

    best   the network with the smallest validation error, also of a run that is unfinished
    """
    folder = Path(path)
    if not (folder / RUN).is_file():
        return Operator.load(folder, device=device, dtype=dtype)
    if (folder / OPERATOR).is_dir():
        where = folder / BEST if best and (folder / BEST).is_dir() else folder / OPERATOR
        return Operator.load(where, device=device, dtype=dtype)
    newest, _ = Checkpoints(folder / STEPS).newest()
    if not best or newest is None:
        step = 0 if newest is None else newest.step
        hint = "" if newest is None else ", or ask for its best network so far (best=True, --best)"
        raise FileNotFoundError(f"{folder}: this run is unfinished, at step {step}; run the command that trains it again{hint}")
    return _unfinished(folder, newest).moved(device, dtype)


def _unfinished(folder: Path, newest: Checkpoint) -> Operator:
    """Return the best network so far of a run that is unfinished; the last one if nothing was evaluated yet."""
    operator, chosen = Operator.load(folder / START), newest
    if newest.state.get("best"):
        chosen = Checkpoints(folder / STEPS).load(int(newest.state["best"]["step"]))
    prefix = "model/"
    weights = {name.removeprefix(prefix): x for name, x in chosen.tensors.items() if name.startswith(prefix)}
    operator.model.load_state_dict(weights)
    metrics = chosen.state.get("metrics") or [None]
    operator.about["metrics"] = metrics[-1]
    return operator
