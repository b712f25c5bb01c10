"""Operators on disk: the operator in a folder, saved by itself or left there by a training run."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from gkn.operator.card import CARD, RUN
from gkn.operator.checkpoint import Checkpoint, Checkpoints
from gkn.operator.operator import Operator
from gkn.system.files import digest, read_sealed_json

METRICS, OPERATOR, BEST, STEPS, START = "metrics.jsonl", "operator", "best", "checkpoints", "start"
"""Names in the folder of a training run."""
_NOT_CONFIGURED = ("versions", "continued", "earlier")


def configuration(said: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of run.json on which the bits of a run depend."""
    return {key: value for key, value in said.items() if key not in _NOT_CONFIGURED}


def run_digests(said: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the digests that the checkpoints of a run may carry, given its run.json: those of shorter runs that it continues,
    and its own."""
    return (*said.get("earlier", ()), digest(configuration(said)))


def is_finished(folder: Path) -> bool:
    """True if the training run in a folder has come to its end."""
    return (folder / OPERATOR / CARD).is_file()


def checkpoints_of(folder: Path) -> Checkpoints:
    """Return the checkpoints of the run in a folder."""
    return Checkpoints(folder / STEPS, runs=run_digests(read_sealed_json(folder / RUN)))


def load(
    path: str | os.PathLike[str], *, best: bool = False, device: torch.device | str = "cpu", dtype: torch.dtype | None = None
) -> Operator:
    """Load the operator in a folder: a saved one, or that of a training run.

    best   the network with the smallest validation error, also of a run that is unfinished
    """
    folder = Path(path)
    if not (folder / RUN).exists():
        return Operator.load(folder, device=device, dtype=dtype)
    if is_finished(folder):
        where = folder / BEST if best and (folder / BEST).is_dir() else folder / OPERATOR
        return Operator.load(where, device=device, dtype=dtype)
    checkpoints = checkpoints_of(folder)
    newest, _ = checkpoints.newest()
    if not best or newest is None:
        step = 0 if newest is None else newest.step
        hint = "" if newest is None else ", or ask for its best network so far (best=True, --best)"
        raise FileNotFoundError(f"{folder}: this run is unfinished, at step {step}; run the command that trains it again{hint}")
    return _unfinished(folder, checkpoints, newest).moved(device, dtype)


def _unfinished(folder: Path, checkpoints: Checkpoints, newest: Checkpoint) -> Operator:
    """Return the best network so far of a run that is unfinished; the last one if nothing was evaluated yet."""
    operator, chosen = Operator.load(folder / START), newest
    if newest.state.get("best"):
        chosen = checkpoints.load(int(newest.state["best"]["step"]))
    prefix = "model/"
    weights = {name.removeprefix(prefix): x for name, x in chosen.tensors.items() if name.startswith(prefix)}
    operator.model.load_state_dict(weights)
    metrics = chosen.state.get("metrics") or [None]
    operator.about["metrics"] = metrics[-1]
    return operator
