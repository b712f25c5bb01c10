"""operator.json: the description of a saved operator, sealed by a hash, beside the file with its tensors."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from torch import Tensor

from gkn.system.files import CorruptFile, read_sealed_json
from gkn.system.tensors import read_tensors

SCHEMA = 1
CARD = "operator.json"


def read_card(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """operator.json and its tensors, both as they were written."""
    path = folder / CARD
    if not path.is_file():
        raise FileNotFoundError(f"{folder}: no operator, it has no {CARD}")
    card = read_sealed_json(path)
    if card.get("schema") != SCHEMA:
        raise CorruptFile(f"{path}: schema {card.get('schema')}, but this version of gkn reads schema {SCHEMA}; update gkn")
    missing = [
        name for name in ("model", "rule", "weighted", "features", "normalizers", "about", "tensors") if name not in card
    ]
    if missing:
        raise CorruptFile(f"{path}: no {missing[0]!r} in it; it is not an operator that gkn wrote")
    listed = card["tensors"]
    if not isinstance(listed, dict) or not is_ours(str(listed.get("file"))):
        raise CorruptFile(f"{path}: its entry 'tensors' makes no sense")
    return card, read_tensors(folder / listed["file"], listed.get("bytes"), listed.get("sha256"))


def is_ours(name: str) -> bool:
    return name == CARD or re.fullmatch(r"tensors-[0-9a-f]{12}\.safetensors", name) is not None
