"""Writers of predictions, one module per format. A new format is a function registered with `writer`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from torch import Tensor

from gkn.data.writers import npz, vtu
from gkn.data.writers.format import WRITERS, writer
from gkn.geometry.domain import Domain
from gkn.system.files import make_folder, write

__all__ = ["WRITERS", "check", "npz", "save", "vtu", "writer"]
GEOMETRY = ("points", "cells", "weights", "boundary")


def check(path: Path, names: Iterable[str]) -> None:
    """Raise an error if fields with these names cannot be written to `path`. Called before anything is computed."""
    if path.suffix.lower() not in WRITERS:
        raise ValueError(f"{path}: say what kind of file by its ending: {' or '.join(WRITERS)}")
    wrong = [name for name in names if name in GEOMETRY or not name.isprintable() or not name or "/" in name]
    if wrong:
        raise ValueError(f"{path}: a field cannot be called {wrong[0]!r} in a file; rename it")


def save(path: str | os.PathLike[str], domain: Domain, fields: Mapping[str, Tensor]) -> None:
    """Write fields (K,) on the points of a domain. An .npz can be imported again, and a .vtu of a mesh or grid in the plane."""
    path = Path(path)
    check(path, fields)
    arrays = {name: values.detach().cpu().numpy() for name, values in fields.items()}
    wrong = [name for name, values in arrays.items() if values.shape != (len(domain),)]
    if wrong:
        raise ValueError(f"{path}: field {wrong[0]!r} of shape {arrays[wrong[0]].shape} on {len(domain)} points")
    image = WRITERS[path.suffix.lower()](domain, arrays)
    make_folder(path.parent)
    write(path, image)
