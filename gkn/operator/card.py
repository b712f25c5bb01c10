"""operator.json: the description of a saved operator, sealed by a hash, beside the file with its tensors."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gkn.data.normalizer import Normalizer
from gkn.data.walls import Wall
from gkn.geometry.domain import DOMAINS
from gkn.system.files import CorruptFile, canonical, make_folder, read_sealed_json, unfinished, write, write_sealed_json
from gkn.system.tensors import read_tensors, tensor_image

SCHEMA = 1
CARD = "operator.json"
_ENTRIES = ("model", "rule", "weighted", "features", "normalizers", "about", "tensors")


def write_card(folder: Path, entries: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Write a card and its tensors. Another operator in that folder is replaced at once or not at all."""
    image, seal = tensor_image(tensors)
    file = f"tensors-{seal[:12]}.safetensors"
    card = {"schema": SCHEMA, **entries, "tensors": {"file": file, "bytes": len(image), "sha256": seal}}
    canonical(card)  # raises now if it is no JSON
    make_folder(folder)
    write(folder / file, image)
    write_sealed_json(folder / CARD, card)
    others = [path for path in folder.iterdir() if is_ours(path.name) and path.name not in (CARD, file)]
    for old in [*others, *unfinished(folder, is_ours)]:
        old.unlink(missing_ok=True)


def read_card(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Read operator.json and its tensors, compared with their hashes."""
    path = folder / CARD
    if not path.is_file():
        raise FileNotFoundError(f"{folder}: no operator, it has no {CARD}")
    card = read_sealed_json(path)
    if card.get("schema") != SCHEMA:
        raise CorruptFile(f"{path}: schema {card.get('schema')}, but this version of gkn reads schema {SCHEMA}; update gkn")
    missing = [name for name in _ENTRIES if name not in card]
    if missing:
        raise CorruptFile(f"{path}: no {missing[0]!r} in it; it is not an operator that gkn wrote")
    listed = card["tensors"]
    if not isinstance(listed, dict) or not is_ours(str(listed.get("file"))):
        raise CorruptFile(f"{path}: its entry 'tensors' makes no sense")
    return card, read_tensors(folder / listed["file"], listed.get("bytes"), listed.get("sha256"))


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
