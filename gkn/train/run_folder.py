"""RunFolder: the folder of a training run, with its configuration, checkpoints, log and results."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gkn.operator.card import CARD
from gkn.operator.checkpoint import Checkpoint, Checkpoints
from gkn.operator.operator import Operator
from gkn.operator.saved import BEST, METRICS, OPERATOR, RUN, START, STEPS
from gkn.system.files import CorruptFile, difference, digest, read_sealed_json, unfinished, write, write_sealed_json
from gkn.system.machine import versions


class OtherRun(ValueError):
    """The run folder holds a run of something else."""


class RunFolder:
    """The folder of one run. With several ranks, only the first one writes.

    config       what must agree for a call to go on with a run: everything its bits depend on but the machine
    first        this is the first rank
    world        number of ranks
    keep         number of checkpoints to keep, beside the best
    save_every   seconds between checkpoints
    """

    def __init__(
        self,
        path: Path,
        config: Mapping[str, Any],
        *,
        first: bool = True,
        world: int = 1,
        keep: int = 2,
        save_every: float = 60.0,
        warn: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.path, self.config, self.first, self.world, self.warn = path, dict(config), first, world, warn
        self.checkpoints, self.save_every = Checkpoints(path / STEPS, keep), save_every
        self._saved = time.monotonic()

    def open(self) -> Checkpoint | None:
        """Begin a run in an empty folder, or return the newest checkpoint of the run that is there."""
        path = self.path / RUN
        if path.exists():
            said = read_sealed_json(path)
            there = {key: value for key, value in said.items() if key not in ("versions", "continued")}
            if there != self.config:
                self._continue(said, there)
        elif self.first:
            others = [each.name for each in sorted(self.path.iterdir()) if not each.name.startswith((".lock", RUN))]
            if others:
                raise OtherRun(f"{self.path} is not empty and holds no run ({', '.join(others[:3])}); choose another folder")
            write_sealed_json(path, {**self.config, "versions": versions()})
        found, wrong = self.checkpoints.newest()
        for text in wrong:
            self.warn(f"{text}; going on from {'the checkpoint before' if found else 'the beginning'}")
        if self.world > 1:
            self._agree("checkpoint", found.step if found else -1)
            self._agree("configuration", digest(self.config))
        return found

    def _continue(self, said: Mapping[str, Any], there: Mapping[str, Any]) -> None:
        """Let a run go on if only the number of epochs is larger; raise an error otherwise."""
        epochs, before = self.config["recipe"]["epochs"], there.get("recipe", {}).get("epochs", 0)
        longer = {**there, "recipe": {**there.get("recipe", {}), "epochs": epochs}}
        if longer != self.config or epochs < before:
            what = difference(dict(there), self.config)
            raise OtherRun(f"{self.path} holds another run: {what}; choose another folder, or remove this one")
        if self.first:
            more = {"versions": said["versions"], "continued": [*said.get("continued", []), before]}
            write_sealed_json(self.path / RUN, {**self.config, **more})

    def describe(self, operator: Operator) -> None:
        """Save the operator as it is when training begins: with it, checkpoints of an unfinished run can be loaded."""
        if self.first and not (self.path / START / CARD).is_file():
            operator.save(self.path / START)

    def begin(self, step: int, metrics: list[dict[str, Any]]) -> None:
        """Remove what is newer than the checkpoint that is resumed (step -1: all), and write the log up to it."""
        if not self.first:
            return
        for left in unfinished(self.path, lambda name: name in (RUN, METRICS)):
            left.unlink(missing_ok=True)
        self.checkpoints.drop_after(step)
        write(self.path / METRICS, "".join(json.dumps(entry) + "\n" for entry in metrics).encode())

    def is_due(self) -> bool:
        """True if it is time for another checkpoint."""
        return self.first and time.monotonic() - self._saved >= self.save_every

    def save(self, step: int, state: Mapping[str, Any], tensors: Mapping[str, Tensor], best: int | None) -> None:
        """Write a checkpoint, on the first rank."""
        if self.first:
            self.checkpoints.save(step, state, tensors, best)
            self._saved = time.monotonic()

    def log(self, entry: Mapping[str, Any]) -> None:
        """Append the entry of an epoch to the log."""
        if self.first:
            with open(self.path / METRICS, "a") as file:
                file.write(json.dumps(entry) + "\n")

    def export(self, operator: Operator, best: Callable[[Checkpoint], Operator], step: int | None) -> None:
        """Save the operator, and the best one if it was at another step."""
        if not self.first:
            return
        operator.save(self.path / OPERATOR)
        if step is None:
            return
        try:
            found = self.checkpoints.load(step)
        except (CorruptFile, FileNotFoundError) as error:
            self.warn(f"{error}; the best is not exported")
            return
        best(found).save(self.path / BEST)

    def _agree(self, what: str, mine: int | str) -> None:
        """Raise an error unless all ranks have the same."""
        everyone: list[Any] = [None] * self.world
        torch.distributed.all_gather_object(everyone, mine)
        if len({*everyone}) > 1:
            raise OtherRun(f"{self.path}: the ranks differ in their {what}: {everyone}; needed one folder, one command")
