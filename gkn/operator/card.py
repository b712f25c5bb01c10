"""operator.json: the description of a saved operator, sealed by a hash, beside the file with its tensors."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gkn.data.normalizer import Normalizer
from gkn.data.walls import Wall
from gkn.geometry.domain import DOMAINS
from gkn.operator.runs import BEST, OPERATOR, RUN, START, read_run, run_digests
from gkn.system.files import (
    LOCK,
    CorruptFile,
    canonical,
    digest,
    locked_briefly,
    no_folder,
    read_sealed_json,
    sha256,
    unfinished,
    version_of,
    write,
    write_sealed_json,
)
from gkn.system.tensors import read_tensors, tensor_image

SCHEMA = 1
CARD = "operator.json"
_ENTRIES = ("model", "rule", "weighted", "features", "normalizers", "about", "tensors")


def write_card(folder: Path, entries: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Write a card and its tensors. Another operator in that folder is replaced at once or not at all.

    One process writes at a time; others wait. Of several ranks that save one operator, the first one's card stays. If the
    operators differ, the last one stays.
    """
    image, seal = tensor_image(tensors)
    file = f"tensors-{seal[:12]}.safetensors"
    card = {"schema": SCHEMA, **entries, "tensors": {"file": file, "bytes": len(image), "sha256": seal}}
    canonical(card)  # raises now if it is no JSON
    _check_is_free(folder, entries["about"])
    with locked_briefly(folder):
        _check_is_free(folder, entries["about"])
        before = _known_card(folder)
        if before is not None and _is_saved(card, before, folder / file):
            return
        new = not (folder / file).exists()
        try:
            write(folder / file, image)
            write_sealed_json(folder / CARD, card)
        except BaseException:
            if new and _tensors_of(_known_card(folder)) != file:  # the card may be in place all the same
                (folder / file).unlink(missing_ok=True)
            raise
        replaced = _tensors_of(before)
        old = [] if replaced in (None, file) else [folder / str(replaced)]
        for path in [*old, *unfinished(folder, is_ours)]:
            path.unlink(missing_ok=True)


def _check_is_free(folder: Path, about: dict[str, Any]) -> None:
    """Raise an error if a folder is that of a training run, or the operator folder of another run."""
    run = folder.absolute().parent
    of_run = folder.name in (OPERATOR, BEST, START) and (run / RUN).exists()
    if (folder / RUN).exists() or (of_run and about.get("run") not in run_digests(read_run(run))):
        raise ValueError(f"{folder} holds a training run, which has its operator already; save to another folder")


def _known_card(folder: Path) -> dict[str, Any] | None:
    """Return the card that is in a folder, or None if there is none that can be read."""
    try:
        return read_sealed_json(folder / CARD)
    except (CorruptFile, FileNotFoundError):
        return None


def _tensors_of(card: dict[str, Any] | None) -> str | None:
    """Return the name of the file of tensors that a card names, if that is one of ours."""
    listed = None if card is None else card.get("tensors")
    name = str(listed.get("file")) if isinstance(listed, dict) else ""
    return name if name != CARD and is_ours(name) else None


def _is_saved(card: dict[str, Any], before: dict[str, Any], file: Path) -> bool:
    """True if the folder holds this operator already: always if all is the same, for later ranks also if `about` differs."""
    later_rank = torch.distributed.is_initialized() and torch.distributed.get_rank() > 0
    ours, theirs = ({key: value for key, value in each.items() if not later_rank or key != "about"} for each in (card, before))
    if digest(ours) != digest(theirs):
        return False
    try:
        return sha256(file) == str(card["tensors"]["sha256"])
    except (OSError, CorruptFile):
        return False


def remove_operator(folder: Path) -> None:
    """Remove the folder of an operator, its card first: what is left of it if this is interrupted is no operator."""
    if folder.is_dir():
        (folder / CARD).unlink(missing_ok=True)
        shutil.rmtree(folder)


def read_card(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Read operator.json and its tensors, compared with their hashes.

    If the operator is replaced meanwhile, the new one is read: its card is there before the old tensors are removed.
    """
    while True:
        before = version_of(folder / CARD)
        card = read_description(folder)
        listed = card["tensors"]
        try:
            return card, read_tensors(folder / listed["file"], listed.get("bytes"), listed.get("sha256"))
        except FileNotFoundError:
            if before == version_of(folder / CARD):
                raise


def read_description(folder: Path) -> dict[str, Any]:
    """Read operator.json alone."""
    path = folder / CARD
    if not path.exists():
        raise FileNotFoundError(what_is_there(folder))
    card = read_sealed_json(path)
    if card.get("schema") != SCHEMA:
        raise CorruptFile(f"{path}: schema {card.get('schema')}, but this version of gkn reads schema {SCHEMA}; update gkn")
    missing = [name for name in _ENTRIES if name not in card]
    if missing:
        raise CorruptFile(f"{path}: no {missing[0]!r} in it; it is not an operator that gkn wrote")
    if _tensors_of(card) is None:
        raise CorruptFile(f"{path}: its entry 'tensors' makes no sense")
    if type(card["about"]) is not dict:
        raise CorruptFile(f"{path}: its entry 'about' makes no sense")
    return card


def what_is_there(folder: Path) -> str:
    """Return a sentence about a folder without an operator."""
    if not folder.is_dir():
        return no_folder(folder, "a run or of a saved operator")
    others = [path.name for path in folder.iterdir() if path.name != LOCK]
    if any(is_ours(name) for name in others) or unfinished(folder, is_ours):
        return f"{folder}: the operator is incomplete: saving it was interrupted; save it again, or run its training again"
    return f"{folder}: no operator, it has no {CARD}"


def is_ours(name: str) -> bool:
    """True for names of files that belong to a saved operator."""
    return name == CARD or re.fullmatch(r"tensors-[0-9a-f]{12}\.safetensors", name) is not None


def describe_normalizer(normalizer: Normalizer, name: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return a normaliser as JSON, and as tensors what is too much for JSON."""
    domain = normalizer.domain
    if domain is None:
        zero = {"zero": normalizer.zero.json()} if isinstance(normalizer.zero, Wall) else {}
        return {"mean": normalizer.mean.tolist(), "std": normalizer.std.tolist(), **zero}, {}
    tensors = {f"{name}/mean": normalizer.mean, f"{name}/std": normalizer.std}
    tensors |= {f"{name}/{part}": array for part, array in domain.arrays().items()}
    return {"domain": {"kind": domain.kind, **domain.numbers()}}, tensors


def restore_normalizer(said: dict[str, Any], name: str, tensors: dict[str, Tensor]) -> Normalizer:
    """Return the normaliser that `describe_normalizer` described."""
    if "domain" not in said:
        mean, std = (torch.tensor(said[part], dtype=torch.float64) for part in ("mean", "std"))
        return Normalizer(mean, std, None, Wall.from_json(said.get("zero")))
    numbers = {key: value for key, value in said["domain"].items() if key != "kind"}
    arrays = {key.removeprefix(f"{name}/"): tensor for key, tensor in tensors.items() if key.startswith(f"{name}/")}
    domain = DOMAINS[said["domain"]["kind"]].from_arrays(arrays, numbers)
    return Normalizer(arrays["mean"], arrays["std"], domain)
