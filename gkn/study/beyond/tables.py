"""Tables past the paper: trainings, and ways to evaluate them.

The data are the paper's: functions solved on 421 x 421, 1000 for training and 200 others for testing, at the points of 85 x 85
unless a table says otherwise. Networks are evaluated as they are after the last epoch: no epoch is chosen by any test.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from gkn.graph.rules import BALL, Nystrom, Radius, Rule
from gkn.operator.ways import Exact, Sampled
from gkn.study.cells import Cell, Data, Training
from gkn.train.recipe import recipe_named

PUBLISHED = {
    "the paper, graph kernel network": 0.0346,
    "multipole graph kernel network": 0.0416,
    "best graph kernel so far": 0.033,
    "best on point clouds, of any kind": 0.0044,
    "best on grids, of any kind": 0.0039,
}
"""Relative l2 errors at s = 85 as published: on functions of the same distribution, not on these."""
RADIUS, SMOOTHING = 0.12, 0.03
NEAR_FAR: dict[str, Any] = {"width": 128, "blocks": 8, "slices": 64, "head": 16, "kernel": (32, 8), "features": (1,)}
NETWORKS: dict[str, dict[str, Any]] = {
    "NearFar": {**NEAR_FAR, "differences": True, "radius": RADIUS},
    "Multigrid": {"width": 64, "cycles": 4, "levels": 4, "kernel": (32, 16), "radius": 0.04, "features": (1,)},
}
"""Kernels see a_eps, which sums over points resolve, and not a."""
SMALL: dict[str, dict[str, Any]] = {
    "NearFar": {"width": 8, "blocks": 1, "slices": 2, "head": 4, "kernel": (4, 2), "radius": 0.2},
    "Multigrid": {"width": 8, "cycles": 1, "levels": 2, "kernel": (4, 2), "radius": 0.15},
}
"""For tests."""
RIVALS = ("Transformer", "SliceAttention", "FNO")
RECIPE = recipe_named("nearfar", zero="box", precision="bf16", symmetries=True)


@dataclass(frozen=True)
class Scale:
    """smoke: seconds, for tests. full: the full size, on a GPU.

    size             nodes per side of the grid on which all functions are solved
    strides          to the grids used for training and testing, by the side they have at full scale
    n, few           training functions, and few of them
    tests            test functions, by the side of their grid
    sample           points of the random samples used for training: as many as 43 x 43
    clouds           points of the random samples used for testing
    epochs           by table, and by rival
    smaller          settings of our networks that differ
    rivals           settings of the rivals
    points_of_cost   numbers of points whose cost is measured
    """

    name: str
    size: int
    strides: Mapping[int, int]
    n: int
    few: int
    tests: Mapping[int, int]
    sample: int
    clouds: tuple[int, ...]
    epochs: Mapping[str, int]
    smaller: Mapping[str, Mapping[str, Any]]
    rivals: Mapping[str, Mapping[str, Any]]
    points_of_cost: tuple[int, ...]
    precision: str


SCALES = {
    "smoke": Scale(
        name="smoke",
        size=41,
        strides={43: 4, 61: 4, 85: 2, 141: 2, 211: 1, 421: 1},
        n=4,
        few=2,
        tests={85: 2, 141: 2, 211: 1, 421: 1},
        sample=60,
        clouds=(60, 441),
        epochs={"accuracy": 2, "resolution": 1, "few": 1, "multigrid": 1, "ablations": 1, **dict.fromkeys(RIVALS, 1)},
        smaller=SMALL,
        rivals={
            "Transformer": {"width": 8, "blocks": 1, "head": 4},
            "SliceAttention": {"width": 8, "blocks": 1, "head": 4, "slices": 2},
            "FNO": {"modes": 4, "width": 4, "layers": 1},
        },
        points_of_cost=(100, 400),
        precision="fp32",
    ),
    "full": Scale(
        name="full",
        size=421,
        strides={43: 10, 61: 7, 85: 5, 141: 3, 211: 2, 421: 1},
        n=1000,
        few=100,
        tests={85: 200, 141: 100, 211: 50, 421: 10},
        sample=1849,
        clouds=(1849, 7225, 28900),
        epochs={
            "accuracy": 24,
            "resolution": 16,
            "few": 200,
            "multigrid": 30,
            "ablations": 3,
            "Transformer": 32,
            "SliceAttention": 26,
            "FNO": 109,
        },
        smaller={},
        rivals={
            "Transformer": {"width": 128, "blocks": 8, "head": 16},
            "SliceAttention": {"width": 128, "blocks": 8, "head": 16, "slices": 64},
            "FNO": {"modes": 16, "width": 64, "layers": 4},
        },
        points_of_cost=(10**3, 10**4, 10**5, 10**6, 10**7),
        precision="bf16",
    ),
}


@dataclass(frozen=True)
class Row:
    """A training, and for some of the table's columns a cell."""

    label: str
    training: Training
    cells: Mapping[str, Cell]


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
    """Return all tables for one seed."""
    found = (make(scale, seed) for make in (_accuracy, _resolution, _few, _multigrid, _ablations))
    return {table.name: table for table in found}


def _training(
    scale: Scale,
    seed: int,
    table: str,
    *,
    n: int | None = None,
    smoothing: float | None = SMOOTHING,
    known: int = 1,
    settings: Mapping[str, Any] | None = None,
    more: tuple[tuple[int, Rule], ...] | None = None,
    **changes: Any,
) -> Training:
    """Train NearFar on every other point of a side of 85 x 85, and on as many of its points drawn at random."""
    network = {**NETWORKS["NearFar"], **scale.smaller.get("NearFar", {}), **(settings or {})}
    rule = Radius(network["radius"])
    data = Data(scale.size, scale.strides[43], n or scale.n, scale.n, scale.tests[85], smoothing, known=known)
    recipe = replace(RECIPE, **{"epochs": scale.epochs[table], "precision": scale.precision, "seed": seed, **changes})
    more = ((scale.strides[85], Nystrom(rule.r, scale.sample)),) if more is None else more
    return Training(data, "NearFar", tuple(sorted(network.items())), rule, recipe, seed, weighted=True, more=more)


def _at(scale: Scale, training: Training, s: int) -> Cell:
    return Cell(training, scale.strides[s], Exact(), scale.tests[s])


def first_of(scale: Scale) -> str:
    return f"s = 85, first {scale.tests[211]}"


def _everywhere(scale: Scale, training: Training) -> dict[str, Cell]:
    """Return cells on grids, on random points of the finest grid, and on a mesh."""
    grids = {f"s = {s}": _at(scale, training, s) for s in scale.tests}
    clouds = {f"{m} random points": Cell(training, 1, Sampled(m), scale.tests[211]) for m in scale.clouds}
    mesh = Cell(training, scale.strides[85], Exact(), scale.tests[211], on="mesh")
    same = replace(_at(scale, training, 85), functions=scale.tests[211])  # as many as most others, to compare with them
    return {**grids, **clouds, "unstructured mesh": mesh, first_of(scale): same}


def _alone(scale: Scale, training: Training) -> dict[str, Cell]:
    """Return cells for which a is known at the evaluation points only, as a user may have it."""
    coarse, count = scale.strides[85], scale.tests[211]
    found = {f"s = {s}": replace(_at(scale, training, s), alone=True) for s in scale.tests if scale.strides[s] > 1}
    points = ((scale.size - 1) // coarse + 1) ** 2
    if points in scale.clouds:
        found[f"{points} random points"] = Cell(training, coarse, Exact(), count, on="cloud", alone=True)
    return {**found, "unstructured mesh": Cell(training, coarse, Exact(), count, on="mesh", alone=True)}


def _accuracy(scale: Scale, seed: int) -> Table:
    """Compare NearFar, also with a known on 85 x 85 only, with rivals that get the same data, features, loss and seconds."""
    training, alone = _training(scale, seed, "accuracy"), _training(scale, 0, "accuracy", known=scale.strides[85])
    fresh = Cell(training, scale.strides[85], Exact(), scale.tests[85], on="fresh")
    rows = [
        Row("NearFar", training, {"s = 85": _at(scale, training, 85), "functions of another seed": fresh}),
        Row("NearFar, a smoothed on 85 x 85", alone, {"s = 85": _at(scale, alone, 85)}),
    ]
    for model, settings in scale.rivals.items():
        rival = _rival(scale, model, settings, training)
        rows.append(Row(f"{model}, trained here", rival, {"s = 85": _at(scale, rival, 85)}))
    note = (
        f"{scale.n} training and {scale.tests[85]} test functions. NearFar, Transformer and SliceAttention learn from every "
        f"other point of a side of 85 x 85 and from {scale.sample} of its points drawn at random, anew in every epoch, and are "
        "evaluated on all of 85 x 85; FNO learns from all points of 85 x 85. All see a, a_eps and grad a_eps, and are trained "
        "by `fit` with the same loss, symmetries, exact boundary values and about the same seconds; FNO with AdamW, since Muon "
        "has no step for complex matrices. a is smoothed on the grid it was drawn on, or, in the second row, on 85 x 85"
    )
    return Table("accuracy", "The paper's benchmark", note, (*rows[0].cells,), tuple(rows), (*PUBLISHED,))


def _rival(scale: Scale, model: str, settings: Mapping[str, Any], ours: Training) -> Training:
    """Return the training of a rival: NearFar's, with another model. FNO needs whole grids, and AdamW."""
    chosen, recipe = tuple(sorted(settings.items())), replace(ours.recipe, epochs=scale.epochs[model])
    if model != "FNO":
        return replace(ours, model=model, settings=chosen, recipe=recipe)
    side = (scale.size - 1) // scale.strides[85] + 1
    rule = Radius(round((BALL[2] / (math.pi * side**2)) ** 0.5, 4))  # edges for the loss of differences
    data = replace(ours.data, every=scale.strides[85])
    recipe = replace(recipe, optimizer="adamw", lr=2e-3)
    return replace(ours, data=data, model=model, settings=chosen, rule=rule, recipe=recipe, more=())


def _resolution(scale: Scale, seed: int) -> Table:
    """Compare training on 85 x 85 only with a mixture: two coarse grids, and random points of a finer one."""
    one = _training(scale, seed, "accuracy")
    r = dict(one.settings)["radius"]
    mixture = (scale.strides[61], Radius(r)), (scale.strides[141], Nystrom(r, scale.sample))
    many = _training(scale, seed, "resolution", more=mixture)
    mixed = f"43 x 43, 61 x 61, {scale.sample} random points of 141 x 141"
    rows = []
    for label, each in (("points of 85 x 85 only", one), (mixed, many)):
        rows += [
            Row(label, each, _everywhere(scale, each)),
            Row(f"{label}; a known at the evaluation points only", each, _alone(scale, each)),
        ]
    note = (
        "Trained on some points, evaluated on others, against the solution of the finest grid. a_eps and the weights of random "
        "points are those of the finest grid too, except in the rows in which a is known at the evaluation points only: there "
        "random points are any points of the square"
    )
    return Table("resolution", "Any resolution, any points", note, (*rows[0].cells,), tuple(rows))


def _few(scale: Scale, seed: int) -> Table:
    training = _training(scale, seed, "few", n=scale.few)
    cells = {"s = 85": _at(scale, training, 85)}
    title = f"{scale.few} training functions"
    return Table("few", title, "The paper's GKN has 0.0346 with 1024", (*cells,), (Row("NearFar", training, cells),))


def _multigrid(scale: Scale, seed: int) -> Table:
    network = {**NETWORKS["Multigrid"], **scale.smaller.get("Multigrid", {})}
    recipe = replace(RECIPE, epochs=scale.epochs["multigrid"], precision=scale.precision, seed=seed)
    data = Data(scale.size, scale.strides[85], scale.n, scale.n, scale.tests[85], SMOOTHING)
    settings, rule = tuple(sorted(network.items())), Radius(network["radius"])
    training = Training(data, "Multigrid", settings, rule, recipe, seed, weighted=True)
    drawn = ((scale.strides[85], Nystrom(rule.r, scale.clouds[1] // 2)),)  # half of the points of 85 x 85
    mixed = replace(training, recipe=replace(recipe, epochs=-(-recipe.epochs // 2)), more=drawn)  # as many steps
    places = ("s = 85", "s = 141", f"{scale.clouds[1]} random points", "unstructured mesh")
    rows = []
    for label, each in (("Multigrid", training), ("Multigrid, half of the samples random points", mixed)):
        everywhere = _everywhere(scale, each)
        rows.append(Row(label, each, {name: everywhere[name] for name in places}))
    chosen = ("multipole graph kernel network",)
    note = f"Trained on 85 x 85, a smoothed on {scale.size} x {scale.size}. The number of edges is linear in that of points"
    return Table("multigrid", "Multigrid", note, places, tuple(rows), chosen)


def _ablations(scale: Scale, seed: int) -> Table:
    """Change one thing at a time, in a shorter training."""
    changes: dict[str, dict[str, Any]] = {
        "as it is": {},
        "near field alone": {"settings": {"far": False}},
        "far field alone": {"settings": {"near": False}},
        "kernels applied to v(y), not v(y) - v(x)": {"settings": {"differences": False}},
        "kernels that see a, not a_eps": {"settings": {"features": (0,)}},
        "no a_eps at all": {"smoothing": None, "settings": {"features": (0,)}},
        "no random points": {"more": (), "epochs": 2 * scale.epochs["ablations"]},  # as many steps
        "no symmetries": {"symmetries": False},
        "no differences in the loss": {"gradient": 0.0},
        "AdamW, with a learning rate of its own": {"optimizer": "adamw", "lr": 2e-3},
        "u not 0 on the boundary": {"zero": None},
        "cosine from the first step": {"schedule": "cosine"},
    }
    rows = []
    for label, change in changes.items():
        training = _training(scale, seed, "ablations", **change)
        finer = replace(_at(scale, training, 141), functions=scale.tests[211])
        cloud = Cell(training, 1, Sampled(scale.clouds[-1]), scale.tests[421])
        cells = {"s = 85": _at(scale, training, 85), "s = 141": finer, f"{scale.clouds[-1]} random points": cloud}
        rows.append(Row(label, training, cells))
    note = (
        f"{scale.epochs['ablations']} epochs, one change at a time. What helps in a long training may not help in one so "
        "short: docs/log.md has what was measured in longer ones"
    )
    return Table("ablations", "What each thing is worth", note, (*rows[0].cells,), tuple(rows))
