"""Accuracy of the solvers: solutions on each grid, and on the mesh, against those of a grid twice as fine as the finest.

Networks are compared with the solution on the finest grid, whose own error is that of the last grid here.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from torch import Tensor

from gkn.data.dataset import Dataset
from gkn.data.problems import Darcy
from gkn.data.sample import Sample
from gkn.geometry.grid import Grid
from gkn.operator.evaluate import relative_l2
from gkn.pde import solve_darcy
from gkn.study.beyond.tables import Scale
from gkn.study.scattered import scattered
from gkn.study.work import Place, Progress, provenance
from gkn.system.files import canonical, make_folder, read_regular, write

FUNCTIONS = 20
FILE = "solver.json"


def measure(scale: Scale, place: Place, progress: Progress | None = None) -> None:
    """Solve the first test functions on each grid and on the mesh, unless that was done."""
    if known(place.results, scale) is not None:
        return
    count, size = min(FUNCTIONS, scale.tests[85]), 2 * scale.size - 1
    which = range(scale.n, scale.n + count)
    fields, _ = Darcy(size=size).make(0, which, "cpu")
    truth = Dataset.of(Grid(size), fields, ("u",))
    found: dict[str, float] = {}
    for s in scale.tests:
        found[f"s = {s}"] = relative_l2(_Solver(), truth.every(2 * scale.strides[s])).mean
        if progress is not None:
            progress(len(found), len(scale.tests) + 1, f"solutions at s = {s}: {found[f's = {s}']:.4f}")
    found["unstructured mesh"] = relative_l2(_Solver(), scattered(truth, Grid(scale.size).every(scale.strides[85]).size)).mean
    make_folder(place.results)
    about = {"scale": scale.name, "against": size, "functions": count}
    write(place.results / FILE, canonical({"errors": found, **about, **provenance(place)}))


def known(folder: Path, scale: Scale) -> dict[str, Any] | None:
    """Return what was measured at a scale, or None."""
    path = folder / FILE
    if not path.exists():
        return None
    found: dict[str, Any] = json.loads(read_regular(path))
    return found if found["scale"] == scale.name else None


class _Solver:
    """Answers on a sample's points by solving there, so that it is evaluated as networks are."""

    def ready(self, dataset: Dataset) -> Dataset:
        return dataset

    def __call__(self, sample: Sample) -> Tensor:
        return solve_darcy(sample.domain, sample.a.T, Darcy.f).T
