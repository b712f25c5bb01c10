"""run.json, the description of a training run, and the digests that distinguish its files from those of other runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gkn.system.checks import has_types
from gkn.system.files import CorruptFile, digest, read_sealed_json

RUN, METRICS, OPERATOR, BEST, STEPS, START = "run.json", "metrics.jsonl", "operator", "best", "checkpoints", "start"
"""Names in the folder of a training run."""
_HISTORY = ("versions", "continued", "earlier")
_WITH_DIGESTS = 4
"""Schema of run.json since which checkpoints and operators of a run carry its digest."""


def read_run(folder: Path) -> dict[str, Any]:
    """Read the description of the training run in a folder. The seal only says that the entries are as they were written."""
    said = read_sealed_json(folder / RUN)
    sound = has_types(said, {"schema": int, "recipe": dict, "versions": dict})
    for name, kind in (("earlier", str), ("continued", int)):
        given = said.get(name, [])
        sound = sound and type(given) is list and all(type(each) is kind for each in given)
    if not sound:
        raise CorruptFile(f"{folder / RUN}: its entries are not of the kinds that gkn writes")
    return said


def configuration(said: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of run.json that the arguments of a call must agree with for the call to go on with the run."""
    return {key: value for key, value in said.items() if key not in (*_HISTORY, "parameters")}


def run_digest(said: Mapping[str, Any]) -> str:
    """Return the digest of a run, given its run.json: of its configuration and the parameters that training began with."""
    return digest({key: value for key, value in said.items() if key not in _HISTORY})


def run_digests(said: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the digests that checkpoints of a run may carry: those of shorter runs that it continues, and its own."""
    return (*said.get("earlier", ()), run_digest(said))


def has_digests(said: Mapping[str, Any]) -> bool:
    """True if checkpoints and operators of this run carry its digest. Those of older versions do not."""
    return int(said["schema"]) >= _WITH_DIGESTS
