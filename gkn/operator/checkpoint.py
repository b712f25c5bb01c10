"""Checkpoints of a run: tensors in a safetensors file, everything else in a JSON file that has the hash of the first.

    step-00000040-0123456789ab.safetensors   written, synced, renamed first; named by its hash, so that nothing is overwritten
    step-00000040.json                       then this, sealed by its own: only now there is a checkpoint of step 40

Both are complete or absent, even if the writer is killed. Older checkpoints are removed only when a newer one is complete, the
JSON file first. Nothing is ever pickled, so loading never runs code.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor

from gkn.system.checks import has_types
from gkn.system.files import CorruptFile, make_folder, read_sealed_json, unfinished, write, write_sealed_json
from gkn.system.tensors import read_tensors

SCHEMA = 1
_NAME = re.compile(r"step-(\d{8,})(\.json|-[0-9a-f]{12}\.safetensors)")


@dataclass(frozen=True, eq=False)
class Checkpoint:
    step: int
    state: dict[str, Any]
    tensors: dict[str, Tensor]


def _is_state(state: Mapping[str, Any]) -> bool:
    """True if the entries of a state have the kinds that a training run writes."""
    number = (int, float)
    needed = {"epoch": int, "place": int, "edges": int, "metrics": list, "best": (dict, type(None)), "total": number}
    if not has_types(state, {**needed, "seconds": number}):
        return False
    of_best = state["best"] is None or has_types(state["best"], {"step": int, "validation": number})
    return of_best and all(has_types(entry, {"epoch": int, "step": int, "loss": number}) for entry in state["metrics"])


class Checkpoints:
    """The checkpoints in a folder: the last `keep`, and the best.

    runs   digests of the runs whose checkpoints belong here. New checkpoints carry the last one, and those of other runs are
           not loaded. Empty: checkpoints of any run are loaded.
    """

    def __init__(self, folder: Path, keep: int = 2, runs: Sequence[str] = ()) -> None:
        if keep < 1:
            raise ValueError(f"Checkpoints(keep={keep}): needed at least 1")
        self.folder, self.keep, self.runs = folder, keep, tuple(runs)

    def save(self, step: int, state: Mapping[str, Any], tensors: Mapping[str, Tensor], best: int | None = None) -> None:
        """Write the checkpoint of a step, then remove what is neither among the last nor the best."""
        make_folder(self.folder)
        image = safetensors.torch.save({name: x.detach().cpu().contiguous() for name, x in tensors.items()})
        seal = hashlib.sha256(image).hexdigest()
        listed: dict[str, Any] = {"file": f"step-{step:08d}-{seal[:12]}.safetensors", "bytes": len(image), "sha256": seal}
        try:
            write(self.folder / listed["file"], image)
            run = {"run": self.runs[-1]} if self.runs else {}
            card = {"schema": SCHEMA, "step": step, "state": dict(state), "tensors": listed, **run}
            write_sealed_json(self._json(step), card)
        except BaseException:
            self.tidy()
            raise
        for old in self.steps()[: -self.keep]:
            if old != best:
                self._json(old).unlink(missing_ok=True)
        self.tidy()

    def load(self, step: int) -> Checkpoint:
        """Return the checkpoint of a step, after comparing every byte with its hash."""
        path = self._json(step)
        found = read_sealed_json(path)
        if found.get("schema") != SCHEMA:
            raise CorruptFile(
                f"{path}: schema {found.get('schema')}, but this version of gkn reads schema {SCHEMA}; update gkn"
            )
        if self.runs and found.get("run") not in self.runs:
            raise CorruptFile(f"{path}: a checkpoint of another run")
        try:
            listed, state = found["tensors"], dict(found["state"])
            if not _NAME.fullmatch(listed["file"]):
                raise CorruptFile(f"{path}: its entry 'tensors' makes no sense")
            if self.runs and not _is_state(state):
                raise CorruptFile(f"{path}: its entry 'state' makes no sense")
            arrays = read_tensors(self.folder / listed["file"], listed["bytes"], listed["sha256"])
        except (KeyError, TypeError) as error:
            raise CorruptFile(f"{path}: fields missing or unknown ({error})") from error
        return Checkpoint(step, state, arrays)

    def newest(self) -> tuple[Checkpoint | None, list[str]]:
        """Return the newest checkpoint that is not damaged, and a list of problems with newer ones."""
        wrong: list[str] = []
        for step in reversed(self.steps()):
            try:
                return self.load(step), wrong
            except (CorruptFile, FileNotFoundError) as error:
                wrong.append(str(error))
        return None, wrong

    def steps(self) -> list[int]:
        """Return the steps that have a checkpoint, in order."""
        return sorted(int(name[1]) for name in self._names() if name[2] == ".json")

    def drop_after(self, step: int) -> None:
        """Remove all checkpoints after a step: they are damaged, or will be made again."""
        for later in self.steps():
            if later > step:
                self._json(later).unlink(missing_ok=True)
        self.tidy()

    def tidy(self) -> None:
        """Remove files that no checkpoint refers to: temporary files of killed writers, and tensors without their JSON file."""
        listed = set()
        for step in self.steps():
            try:
                listed.add(read_sealed_json(self._json(step))["tensors"]["file"])
            except (CorruptFile, KeyError, TypeError):  # damaged: which tensors belong to it is unknown
                listed |= {name[0] for name in self._names() if int(name[1]) == step}
        orphans = [self.folder / name[0] for name in self._names() if name[2] != ".json" and name[0] not in listed]
        left = unfinished(self.folder, lambda name: _NAME.fullmatch(name) is not None) if self.folder.is_dir() else []
        for path in [*orphans, *left]:
            path.unlink(missing_ok=True)

    def _names(self) -> list[re.Match[str]]:
        names = [] if not self.folder.is_dir() else [_NAME.fullmatch(path.name) for path in self.folder.iterdir()]
        return [name for name in names if name]

    def _json(self, step: int) -> Path:
        return self.folder / f"step-{step:08d}.json"
