"""RunFolder: the folder of a training run, with its configuration, checkpoints, log and results."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gkn.operator.card import remove_operator
from gkn.operator.checkpoint import Checkpoint, Checkpoints
from gkn.operator.operator import Operator
from gkn.operator.runs import BEST, METRICS, OPERATOR, RUN, START, STEPS, configuration, read_run, run_digest, run_digests
from gkn.operator.saved import is_of_run
from gkn.system.files import CorruptFile, difference, digest, unfinished, write, write_sealed_json
from gkn.system.machine import versions

_WORDS = {
    "schema": "it was begun by another version of gkn",
    "data.*.source": "the training data differ",
    "data.*.samples": "the training samples are others",
    "validation.data.source": "the validation data differ",
    "validation.data.samples": "the validation samples are others",
    "start": "training goes on from another operator",
}
"""Sentences in place of entries of run.json that say nothing to people."""


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
        self.checkpoints, self.save_every = Checkpoints(path / STEPS, keep, run_digests(config)), save_every
        self._saved = time.monotonic()
        self.continued_at = 0  # epoch at which a run went on that had stopped

    @property
    def digest(self) -> str:
        """The digest that checkpoints and operators of this run carry."""
        return self.checkpoints.runs[-1]

    def open(self, parameters: str) -> Checkpoint | None:
        """Begin a run in an empty folder, or return the newest checkpoint of the run that is there.

        parameters   a digest of those that a new run begins with
        """
        path = self.path / RUN
        said = read_run(self.path) if path.exists() else None
        if said is not None:
            self.checkpoints.runs = run_digests(said)
        found, wrong = self.checkpoints.newest()
        if self.world > 1:
            self._agree("configuration", digest(self.config))
        if said is not None:
            if configuration(said) != self.config:
                said = self._continue(said, 0 if found is None else int(found.state["epoch"]))
            self.checkpoints.runs = run_digests(said)
            self.continued_at = max(said.get("continued", [0]))
        elif self.first:
            others = [each.name for each in sorted(self.path.iterdir()) if not each.name.startswith((".lock", RUN))]
            if others:
                raise OtherRun(f"{self.path} is not empty and holds no run ({', '.join(others[:3])}); choose another folder")
            entries = {**self.config, "versions": versions(), "parameters": parameters}
            write_sealed_json(path, entries)
            self.checkpoints.runs = run_digests(entries)
        for text in wrong:
            self.warn(f"{text}; going on from {'the checkpoint before' if found else 'the beginning'}")
        if self.world > 1:
            self.checkpoints.runs = self._of_all(self.checkpoints.runs)[0]
            self._agree("checkpoint", found.step if found else -1)
        return found

    def _continue(self, said: Mapping[str, Any], epoch: int) -> dict[str, Any]:
        """Let a run go on at an epoch if only its length differs: more epochs, another patience. Raise an error otherwise.

        Results of the shorter run are removed, so that they are not taken for those of the longer one. Its last network is in
        the checkpoints. Return the new content of run.json.
        """
        there = configuration(said)
        recipe, before = self.config["recipe"], there.get("recipe", {})
        length = {key: recipe[key] for key in ("epochs", "patience") if key in recipe}
        longer = {**there, "recipe": {**{key: value for key, value in before.items() if key != "patience"}, **length}}
        if longer != self.config or recipe["epochs"] < before.get("epochs", 0):
            what = difference(there, self.config, _WORDS)
            raise OtherRun(f"{self.path} holds another run: {what}; choose another folder, or remove this one")
        continued = [*said.get("continued", []), epoch]
        kept = {name: said[name] for name in ("versions", "parameters") if name in said}
        entries = {**self.config, **kept, "continued": continued}
        entries["earlier"] = [each for each in run_digests(said) if each != run_digest(entries)]
        if self.first:
            for name in (OPERATOR, BEST):
                remove_operator(self.path / name)
            pictures = ("learning.png", "best.png", "median.png", "worst.png")
            for left in (*(self.path / name for name in ("eval.json", *pictures)), *self.path.glob("report*.html")):
                left.unlink(missing_ok=True)
            write_sealed_json(self.path / RUN, entries)
        return entries

    def describe(self, operator: Operator) -> None:
        """Save the operator as it is when training begins: with it, checkpoints of an unfinished run can be loaded."""
        if self.first and not is_of_run(self.path / START, read_run(self.path)):
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

    def kept_best(self, step: int) -> dict[str, Tensor] | None:
        """Return the parameters of the best network if they were saved before, when the run was finished; else None."""
        try:
            found = Operator.load(self.path / BEST)
        except (CorruptFile, FileNotFoundError):
            return None
        known = found.about.get("run") == self.digest and (found.about.get("metrics") or {}).get("step") == step
        return dict(found.model.state_dict()) if known else None

    def export(self, operator: Operator, best: Operator | None) -> None:
        """Save the operator, and before it the best one, if that is another: a run with an operator is finished."""
        if not self.first:
            return
        if best is None:
            remove_operator(self.path / BEST)
        else:
            best.save(self.path / BEST)
        operator.save(self.path / OPERATOR)

    def _agree(self, what: str, mine: int | str) -> None:
        """Raise an error unless all ranks have the same."""
        everyone = self._of_all(mine)
        if len({*everyone}) > 1:
            raise OtherRun(f"{self.path}: the ranks differ in their {what}: {everyone}; needed one folder, one command")

    def _of_all(self, mine: Any) -> list[Any]:
        """Return what each rank gives, in the order of the ranks."""
        everyone: list[Any] = [None] * self.world
        torch.distributed.all_gather_object(everyone, mine)
        return everyone
