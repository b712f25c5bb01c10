"""Operators that come with the package, each with the script that made it, which its card names."""

from __future__ import annotations

from pathlib import Path
from typing import overload

import torch

from gkn.operator.card import CARD
from gkn.operator.operator import Operator
from gkn.operator.saved import load

FOLDER = Path(__file__).parent


def names() -> list[str]:
    return sorted(path.parent.name for path in FOLDER.glob(f"*/{CARD}"))


@overload
def pretrained(name: None = None) -> list[str]: ...
@overload
def pretrained(name: str, *, device: torch.device | str = "cpu", dtype: torch.dtype | None = None) -> Operator: ...


def pretrained(
    name: str | None = None, *, device: torch.device | str = "cpu", dtype: torch.dtype | None = None
) -> Operator | list[str]:
    """Return an operator that comes with gkn; without a name, the names of all."""
    if name is None:
        return names()
    if name not in names():
        raise ValueError(f"no pretrained operator {name!r}; there are {', '.join(names()) or 'none'}")
    return load(FOLDER / name, device=device, dtype=dtype)
