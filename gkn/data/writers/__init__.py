"""Writers of predictions, one module per format. A new format is a function registered with `writer`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from gkn.data.writers import csv, npz, vtu
from gkn.data.writers.format import RESERVED, WRITERS, writer
from gkn.geometry.domain import Domain
from gkn.system.files import make_folder, write

__all__ = ["WRITERS", "check", "csv", "npz", "save", "vtu", "writer"]


def check(path: Path, names: Iterable[str]) -> None:
    """Raise an error if fields with these names cannot be written to `path`. Called before anything is computed."""
    ending = path.suffix.lower()
    if ending not in WRITERS:
        raise ValueError(f"{path}: say what kind of file by its ending: {' or '.join(WRITERS)}")
    wrong = [name for name in names if not name or not name.isprintable() or "/" in name or _reserved(ending, name)]
    if wrong:
        raise ValueError(f"{path}: a field cannot be called {wrong[0]!r} in a file; rename it")


def _reserved(ending: str, name: str) -> bool:
    return ending in RESERVED and RESERVED[ending](name)


def save(
    path: str | os.PathLike[str],
    domain: Domain,
    fields: Mapping[str, Any],
    cell_data: Mapping[str, Sequence[Any]] | None = None,
    parameters: Mapping[str, float] | None = None,
) -> None:
    """Write fields (K,) or (K, c), arrays of numpy or torch, on the points of a domain.

    cell_data    values at cells, one array per block of `domain.cell_blocks()`; only .vtu files hold them
    parameters   numbers by name; .vtu and .npz files hold them

    All digits of points, cells and fields are kept: `read_sample` returns what was saved.
    """
    path = Path(path)
    check(path, [*fields, *(cell_data or {}), *(parameters or {})])
    arrays = {name: x.detach().cpu().numpy() if isinstance(x, Tensor) else np.asarray(x) for name, x in fields.items()}
    wrong = [name for name, values in arrays.items() if values.ndim not in (1, 2) or len(values) != len(domain)]
    if wrong:
        raise ValueError(f"{path}: field {wrong[0]!r} of shape {arrays[wrong[0]].shape} on {len(domain)} points")
    at_cells = {name: [np.asarray(block) for block in blocks] for name, blocks in (cell_data or {}).items()}
    if at_cells:
        sizes = [len(corners) for _, corners in domain.cell_blocks()]
        for name, blocks in at_cells.items():
            if [len(block) for block in blocks] != sizes:
                given = [len(block) for block in blocks]
                raise ValueError(f"{path}: cell data {name!r} for blocks of {given} cells; the domain has {sizes}")
    image = WRITERS[path.suffix.lower()](domain, arrays, at_cells, parameters or {})
    make_folder(path.parent)
    write(path, image)
