"""Operators that come with the package, each with the script that made it, which its card names."""

from __future__ import annotations

from pathlib import Path

import torch

from gkn.operator import CARD, Operator
from gkn.train import load

FOLDER = Path(__file__).parent


def names() -> list[str]:
    return sorted(path.parent.name for path in FOLDER.glob(f"*/{CARD}"))


def pretrained(name: str, *, device: torch.device | str = "cpu", dtype: torch.dtype | None = None) -> Operator:
    """An operator that comes with gkn."""
    if name not in names():
        raise ValueError(f"no pretrained operator {name!r}; there are {', '.join(names()) or 'none'}")
    return load(FOLDER / name, device=device, dtype=dtype)
