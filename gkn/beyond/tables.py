"""What is asked of the networks that are past the paper: tables of trainings, and of ways to judge them.

The data are the paper's: functions solved on 421 x 421, learned from on every fifth point unless a table says otherwise, 1000
to learn from and 200 others to judge by. Networks are judged as they are in the end: no epoch is chosen by any test.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from gkn.evaluate import Sampled
from gkn.operator import Exact
from gkn.recipes import Recipe
from gkn.rules import Nystrom, Radius, Rule
from gkn.runs.spec import Data, Run, Training

PUBLISHED = {
    "the paper, graph kernel network": 0.0346,
    "multipole graph kernel network": 0.0416,
    "best graph kernel so far": 0.033,
    "best on point clouds, of any kind": 0.0044,
    "best on grids, of any kind": 0.0039,
}
"""Relative l2 at s = 85, as published."""
RADIUS, SMOOTHING = 0.04, 0.03
NETWORKS: dict[str, dict[str, Any]] = {
    "NearFar": {"width": 128, "blocks": 8, "slices": 64, "head": 16, "kernel": (32, 8), "radius": RADIUS},
    "Multigrid": {"width": 64, "cycles": 4, "levels": 4, "kernel": (32, 16), "radius": RADIUS},
}
SMALL: dict[str, dict[str, Any]] = {
    "NearFar": {"width": 8, "blocks": 1, "slices": 2, "head": 4, "kernel": (4, 2), "radius": 0.15},
    "Multigrid": {"width": 8, "cycles": 1, "levels": 2, "kernel": (4, 2), "radius": 0.15},
}
"""For tests."""
RECIPE = Recipe(
    batch=4,
    optimizer="muon",
    lr=1e-2,
    decay=1e-4,
    warm=0.1,
    zero="box",
    precision="bf16",
    gradient=0.1,
    symmetries=True,
)


@dataclass(frozen=True)
class Scale:
    """smoke: seconds, for tests. full: the real thing, on a GPU.

    size       of the grid on which all is solved
    strides    to the grids that are learned from and judged on, by the side they have at full scale
    n, few     pairs to learn from, and few of them
    tests      functions to judge by, by the side of their grid
    points     of a cloud
    epochs     by table
    smaller    of the networks: settings that replace those above
    points_of_cost   numbers of points whose cost is measured
    """

    name: str
    size: int
    strides: Mapping[int, int]
    n: int
    few: int
    tests: Mapping[int, int]
    points: int
    epochs: Mapping[str, int]
    smaller: Mapping[str, Mapping[str, Any]]
    points_of_cost: tuple[int, ...]
    precision: str


SCALES = {
    "smoke": Scale(
        name="smoke",
        size=41,
        strides={85: 4, 141: 4, 211: 2, 421: 1},
        n=4,
        few=2,
        tests={85: 2, 141: 2, 211: 1, 421: 1},
        points=60,
        epochs={"accuracy": 2, "resolution": 1, "few": 1, "multigrid": 1, "ablations": 1},
        smaller=SMALL,
        points_of_cost=(100, 400),
        precision="fp32",
    ),
    "full": Scale(
        name="full",
        size=421,
        strides={85: 5, 141: 3, 211: 2, 421: 1},
        n=1000,
        few=100,
        tests={85: 200, 141: 100, 211: 50, 421: 20},
        points=7225,
        epochs={"accuracy": 150, "resolution": 60, "few": 600, "multigrid": 60, "ablations": 30},
        smaller={},
        points_of_cost=(10**3, 10**4, 10**5, 10**6, 10**7),
        precision="bf16",
    ),
}


@dataclass(frozen=True)
class Row:
    """A training, and for some of the table's columns a run that judges it."""

    label: str
    training: Training
    runs: Mapping[str, Run]


@dataclass(frozen=True)
class Table:
    name: str
    title: str
    note: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    published: tuple[str, ...] = ()


NAMES = ("accuracy", "resolution", "few", "multigrid", "ablations")


def tables(scale: Scale, seed: int) -> dict[str, Table]:
    """All of them, for one seed."""
    found = (make(scale, seed) for make in (_accuracy, _resolution, _few, _multigrid, _ablations))
    return {table.name: table for table in found}


def _training(
    scale: Scale,
    seed: int,
    table: str,
    *,
    model: str = "NearFar",
    n: int | None = None,
    smoothing: float = SMOOTHING,
    settings: Mapping[str, Any] | None = None,
    more: tuple[tuple[int, Rule], ...] = (),
    **changes: Any,
) -> Training:
    network = {**NETWORKS[model], **scale.smaller.get(model, {}), **(settings or {})}
    data = Data(scale.size, scale.strides[85], n or scale.n, scale.n, max(scale.tests.values()), smoothing)
    recipe = replace(RECIPE, epochs=scale.epochs[table], precision=scale.precision, seed=seed, **changes)
    rule = Radius(network["radius"])
    return Training(data, model, tuple(sorted(network.items())), rule, recipe, seed, weighted=True, more=more)


def _at(scale: Scale, training: Training, s: int) -> Run:
    return Run(training, scale.strides[s], Exact(), scale.tests[s])


def _everywhere(scale: Scale, training: Training) -> dict[str, Run]:
    """Grids, a cloud of points of the finest, other points for every function, and a mesh."""
    grids = {f"s = {s}": _at(scale, training, s) for s in scale.strides}
    cloud = Run(training, 1, Sampled(scale.points), scale.tests[141])
    mesh = Run(training, scale.strides[85], Exact(), scale.tests[211], on="mesh")
    return {**grids, "random points": cloud, "unstructured mesh": mesh}


def _accuracy(scale: Scale, seed: int) -> Table:
    training = _training(scale, seed, "accuracy")
    fresh = Run(training, scale.strides[85], Exact(), scale.tests[85], on="fresh")
    runs = {"s = 85": _at(scale, training, 85), "functions of another seed": fresh}
    note = f"{scale.n} training and {scale.tests[85]} test functions"
    rows = (Row("NearFar", training, runs),)
    return Table("accuracy", "NearFar on the paper's benchmark", note, (*runs,), rows, (*PUBLISHED,))


def _resolution(scale: Scale, seed: int) -> Table:
    """The mixture: the coarse grid, a finer one, and random points of the finest."""
    r = {**NETWORKS["NearFar"], **scale.smaller.get("NearFar", {})}["radius"]
    mixture = ((scale.strides[141], Radius(r)), (1, Nystrom(r, scale.points)))
    one, many = _training(scale, seed, "accuracy"), _training(scale, seed, "resolution", more=mixture)
    rows = tuple(
        Row(label, each, _everywhere(scale, each)) for label, each in (("85 only", one), ("85, 141 and random points", many))
    )
    note = "Errors at the points themselves, each against the solution there; the solution is that of the finest grid"
    return Table("resolution", "Trained on some points, asked at others", note, (*rows[0].runs,), rows)


def _few(scale: Scale, seed: int) -> Table:
    training = _training(scale, seed, "few", n=scale.few)
    runs = {"s = 85": _at(scale, training, 85)}
    title = f"{scale.few} training functions"
    return Table("few", title, "The paper's GKN has 0.0346 with 1024", (*runs,), (Row("NearFar", training, runs),))


def _multigrid(scale: Scale, seed: int) -> Table:
    training = _training(scale, seed, "multigrid", model="Multigrid")
    runs = {f"s = {s}": _at(scale, training, s) for s in (85, 141)}
    chosen = ("multipole graph kernel network",)
    return Table("multigrid", "Multigrid", "Edges grow as the points", (*runs,), (Row("Multigrid", training, runs),), chosen)


def _ablations(scale: Scale, seed: int) -> Table:
    """One change at a time, of a shorter training."""
    changes: dict[str, dict[str, Any]] = {
        "as it is": {},
        "near field alone": {"settings": {"far": False}},
        "far field alone": {"settings": {"near": False}},
        "kernels of differences": {"settings": {"differences": True}},
        "no symmetries": {"symmetries": False},
        "no differences in the loss": {"gradient": 0.0},
        "mean of the last weights": {"ema": 0.998},
        "AdamW, with a learning rate of its own": {"optimizer": "adamw", "lr": 2e-3},
        "u not 0 on the boundary": {"zero": None},
        "cosine from the first step": {"schedule": "cosine"},
        "half the learning rate": {"lr": RECIPE.lr / 2},
        "twice the learning rate": {"lr": RECIPE.lr * 2},
    }
    if scale.name == "full":
        changes |= {
            "balls of radius 0.03": {"settings": {"radius": 0.03}},
            "balls of radius 0.06": {"settings": {"radius": 0.06}},
            "32 slices": {"settings": {"slices": 32}},
            "kernels 32-16": {"settings": {"kernel": (32, 16)}},
            "smoothing over 0.1": {"smoothing": 0.1},
            "batches of 8": {"batch": 8},
        }
    rows = []
    for label, change in changes.items():
        training = _training(scale, seed, "ablations", **change)
        rows.append(Row(label, training, {f"s = {s}": _at(scale, training, s) for s in (85, 141)}))
    note = f"{scale.epochs['ablations']} epochs, one change at a time"
    return Table("ablations", "What each thing is worth", note, ("s = 85", "s = 141"), tuple(rows))
