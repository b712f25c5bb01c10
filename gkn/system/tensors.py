"""Tensors in safetensors files that are checked against their hash before anything in them is used."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from gkn.system.files import CorruptFile, check_regular, read_regular


def tensor_image(tensors: Mapping[str, Tensor]) -> tuple[bytes, str]:
    """Return the bytes of a safetensors file with these tensors, and their sha256."""
    image = safetensors.torch.save({name: x.detach().cpu().contiguous() for name, x in tensors.items()})
    return image, hashlib.sha256(image).hexdigest()


def read_tensors(path: Path, size: Any, sha256: Any) -> dict[str, Tensor]:
    """Read a safetensors file whose length and hash are known. Nothing in it is used unless both agree."""
    if not path.exists():
        raise FileNotFoundError(f"{path} is missing; restore it from a copy or make it again")
    check_regular(path)
    if path.stat().st_size != size:
        raise CorruptFile(f"{path}: {path.stat().st_size} bytes, but it was written with {size}; restore it from a copy")
    data = read_regular(path)
    if hashlib.sha256(data).hexdigest() != sha256:
        raise CorruptFile(f"{path}: changed since it was written; restore it from a copy or make it again")
    try:
        return dict(safetensors.torch.load(data))
    except (safetensors.SafetensorError, KeyError, ValueError, torch.cuda.OutOfMemoryError) as error:
        raise CorruptFile(f"{path}: not readable ({error})") from error
