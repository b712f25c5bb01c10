"""How exact solvers are: solutions on each grid, and on the mesh, against those of a grid twice as fine as the finest.

Networks are judged by the solution on the finest, at whatever points; its own error is that of the last grid.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gkn.beyond.tables import Scale
from gkn.dataset import Dataset
from gkn.domain import Grid
from gkn.durable import canonical, make_folder, write
from gkn.generate import Darcy
from gkn.pde import solve_darcy
from gkn.runs.meshes import scattered
from gkn.runs.work import Place, Progress, where

FUNCTIONS = 20
FILE = "solver.json"


def measure(scale: Scale, place: Place, progress: Progress | None = None) -> None:
    """Unless it is there: the first of the test functions, solved on each grid and on the mesh."""
    if known(place.results, scale) is not None:
        return
    count, size = min(FUNCTIONS, scale.tests[85]), 2 * scale.size - 1
    which = range(scale.n, scale.n + count)
    fields, _ = Darcy(size=size).make(0, which, "cpu")
    truth = Dataset.of(Grid(size), fields, ("u",))
    found: dict[str, float] = {}
    for s in scale.tests:
        found[f"s = {s}"] = _error(truth.every(2 * scale.strides[s]))
        if progress is not None:
            progress(len(found), len(scale.tests) + 1, f"solutions at s = {s}: {found[f's = {s}']:.4f}")
    found["unstructured mesh"] = _error(scattered(truth, Grid(scale.size).every(scale.strides[85]).size))
    make_folder(place.results)
    about = {"scale": scale.name, "against": size, "functions": count}
    write(place.results / FILE, canonical({"errors": found, **about, **where(place)}))


def known(folder: Path, scale: Scale) -> dict[str, Any] | None:
    """What was measured at a scale."""
    path = folder / FILE
    if not path.exists():
        return None
    found: dict[str, Any] = json.loads(path.read_text())
    return found if found["scale"] == scale.name else None


def _error(truth: Dataset) -> float:
    """Relative l2 of solutions on the points of a dataset against those it has, the mean over its functions."""
    u = truth.field("u")
    return float(((solve_darcy(truth.domain, truth.field("a"), Darcy.f) - u).norm(dim=1) / u.norm(dim=1)).mean())
