"""Operators on disk: the operator in a folder, saved by itself or left there by a training run."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from gkn.operator.card import CARD, RUN, read_description
from gkn.operator.checkpoint import Checkpoint, Checkpoints
from gkn.operator.operator import Operator
from gkn.system.files import CorruptFile, digest, read_sealed_json

METRICS, OPERATOR, BEST, STEPS, START = "metrics.jsonl", "operator", "best", "checkpoints", "start"
"""Names in the folder of a training run."""
_HISTORY = ("versions", "continued", "earlier")
_WITH_DIGESTS = 4
"""Schema of run.json since which checkpoints and operators of a run carry its digest."""


def configuration(said: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of run.json that the arguments of a call must agree with for the call to go on with the run."""
    return {key: value for key, value in said.items() if key not in (*_HISTORY, "parameters")}


def run_digests(said: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the digests that checkpoints and operators of a run may carry, given its run.json: those of shorter runs that it
    continues, and its own, which covers the configuration and the parameters that training began with."""
    return (*said.get("earlier", ()), digest({key: value for key, value in said.items() if key not in _HISTORY}))


def is_finished(folder: Path) -> bool:
    """True if the training run in a folder has come to its end."""
    return (folder / OPERATOR / CARD).is_file()


def check_run(folder: Path, about: Mapping[str, Any], said: Mapping[str, Any]) -> None:
    """Raise an error if the operator in a folder, described by `about`, is not of the run with this run.json."""
    if said.get("schema", 0) >= _WITH_DIGESTS and about.get("run") not in run_digests(said):
        raise CorruptFile(f"{folder}: an operator of another run; remove it and run the command that trains this one again")


def is_of_run(folder: Path, said: Mapping[str, Any]) -> bool:
    """True if a folder holds an operator of the run with this run.json."""
    try:
        check_run(folder, read_description(folder)["about"], said)
    except (CorruptFile, FileNotFoundError, AttributeError):
        return False
    return True


def checkpoints_of(folder: Path) -> Checkpoints:
    """Return the checkpoints of the run in a folder. Those of older versions carry no digest."""
    said = read_sealed_json(folder / RUN)
    return Checkpoints(folder / STEPS, runs=run_digests(said) if said.get("schema", 0) >= _WITH_DIGESTS else ())


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
        return _of_run(folder, BEST if best and (folder / BEST).is_dir() else OPERATOR).moved(device, dtype)
    checkpoints = checkpoints_of(folder)
    newest, wrong = checkpoints.newest()
    if not best or newest is None:
        step = 0 if newest is None else newest.step
        hint = "" if newest is None else ", or ask for its best network so far (best=True, --best)"
        raise FileNotFoundError(f"{folder}: this run is unfinished, at step {step}; run the command that trains it again{hint}")
    for text in wrong:
        warnings.warn(f"{text}; the checkpoint before is taken", stacklevel=2)
    return _unfinished(folder, checkpoints, newest).moved(device, dtype)


def _of_run(folder: Path, name: str) -> Operator:
    """Return the operator with a name in the folder of a run, after checking that it is of that run."""
    operator = Operator.load(folder / name)
    check_run(folder / name, operator.about, read_sealed_json(folder / RUN))
    return operator


def _unfinished(folder: Path, checkpoints: Checkpoints, newest: Checkpoint) -> Operator:
    """Return the best network so far of a run that is unfinished; the last one if nothing was evaluated yet."""
    operator, chosen = _of_run(folder, START), newest
    if newest.state.get("best"):
        try:
            chosen = checkpoints.load(int(newest.state["best"]["step"]))
        except (CorruptFile, FileNotFoundError) as error:
            warnings.warn(f"{error}; the network of step {newest.step} is taken for the best", stacklevel=3)
    prefix = "model/"
    weights = {name.removeprefix(prefix): x for name, x in chosen.tensors.items() if name.startswith(prefix)}
    operator.model.load_state_dict(weights)
    metrics = chosen.state.get("metrics") or [None]
    operator.about["metrics"] = metrics[-1]
    return operator
