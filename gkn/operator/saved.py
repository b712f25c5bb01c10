"""Operators on disk: the operator in a folder, saved by itself or left there by a training run."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from gkn.operator.card import CARD, read_description
from gkn.operator.checkpoint import Checkpoint, Checkpoints
from gkn.operator.operator import Operator
from gkn.operator.runs import BEST, OPERATOR, RUN, START, STEPS, has_digests, read_run, run_digest, run_digests
from gkn.system.files import CorruptFile


def is_finished(folder: Path) -> bool:
    """True if the training run in a folder has come to its end.

    The operator of a shorter run, which this run continues, does not count.
    """
    if not (folder / OPERATOR / CARD).is_file():
        return False
    said = read_run(folder)
    try:
        return read_description(folder / OPERATOR)["about"].get("run") not in said.get("earlier", ())
    except CorruptFile:
        return True  # and `load` says what is wrong


def check_run(folder: Path, about: Mapping[str, Any], said: Mapping[str, Any]) -> None:
    """Raise an error if the operator in a folder, described by `about`, is not of the run with this run.json."""
    known = run_digests(said) if folder.name == START else (run_digest(said),)
    if has_digests(said) and about.get("run") not in known:
        raise CorruptFile(f"{folder}: an operator of another run; remove it and run the command that trains this one again")


def is_of_run(folder: Path, said: Mapping[str, Any]) -> bool:
    """True if a folder holds an operator of the run with this run.json."""
    try:
        check_run(folder, read_description(folder)["about"], said)
    except (CorruptFile, FileNotFoundError):
        return False
    return True


def checkpoints_of(folder: Path) -> Checkpoints:
    """Return the checkpoints of the run in a folder."""
    said = read_run(folder)
    return Checkpoints(folder / STEPS, runs=run_digests(said) if has_digests(said) else ())


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
        return _finished(folder, best).moved(device, dtype)
    checkpoints = checkpoints_of(folder)
    newest, wrong = checkpoints.newest()
    if not best or newest is None:
        step = 0 if newest is None else newest.step
        hint = "" if newest is None else ", or ask for its best network so far (best=True, --best)"
        raise FileNotFoundError(f"{folder}: this run is unfinished, at step {step}; run the command that trains it again{hint}")
    for text in wrong:
        warnings.warn(f"{text}; the checkpoint before is taken", stacklevel=2)
    return _unfinished(folder, checkpoints, newest).moved(device, dtype)


def _finished(folder: Path, best: bool) -> Operator:
    """Return the best or the last network of a finished run."""
    if best and (folder / BEST).is_dir():
        return _of_run(folder, BEST)
    last = _of_run(folder, OPERATOR)
    step = last.about.get("best_step")
    if best and step is not None and step != (last.about.get("metrics") or {}).get("step"):
        raise FileNotFoundError(
            f"{folder / BEST}: the best network, of step {step}, is missing; run the command that trains it again, or ask for "
            "the last network (best=False, --last)"
        )
    return last


def _of_run(folder: Path, name: str) -> Operator:
    """Return the operator with a name in the folder of a run, after checking that it is of that run."""
    operator = Operator.load(folder / name)
    check_run(folder / name, operator.about, read_run(folder))
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
