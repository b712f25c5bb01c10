"""Scales: `smoke` takes seconds, for tests; `small` an hour on two cores; `paper` is the full size, on a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from gkn.graph.rules import Nystrom, Points, Radius, Rule
from gkn.models.gkn import NETWORKS, SMOOTHING
from gkn.operator.ways import Exact, Partition, Sampled, Support, Test
from gkn.study.cells import Cell, Data, Training
from gkn.study.paper.tables import CHANGES, Setting, Table, kernel_of
from gkn.train.recipe import RECIPES, Recipe


@dataclass(frozen=True)
class Scale:
    """Sizes of a reproduction relative to the paper. `paper` only shortens long trainings and computes in bf16.

    sizes      nodes per side of the finest grid, for the paper's 241 and 421
    pairs      N, for the paper's N
    tests      largest number of test functions
    nodes      divisor of m
    kernel     divisor of the layers of kappa, by recipe
    width      n, components of v
    T          steps of the network
    steps      largest number of training steps, by recipe
    lr         factor of the learning rate, by recipe: few steps of small networks have to be larger
    exact      number of functions for exact evaluation in the methods table, by its s
    baselines  settings and recipe entries of the baselines that differ
    """

    name: str
    sizes: Mapping[int, int]
    pairs: Mapping[int, int]
    tests: int
    nodes: int
    kernel: Mapping[str, int]
    width: int
    T: int
    steps: Mapping[str, int]
    lr: Mapping[str, float]
    precision: str
    exact: Mapping[int, int]
    support: int
    baselines: Mapping[str, Mapping[str, Any]]

    def stride(self, s: int, finest: int) -> int:
        """Return the stride from the finest grid to the paper's s."""
        return (finest - 1) // (s - 1)


BASELINES: dict[str, tuple[str, dict[str, Any], dict[str, Any], int | None]] = {
    "NN": ("Pointwise", {"hidden": (128, 128, 128)}, {"epochs": 10, "batch": 8, "lr": 3e-3}, 2**13),
    "FCN": ("FCN", {"start": 48, "growth": 16, "blocks": (3, 6, 3), "places": True}, {"epochs": 40, "batch": 16}, None),
    "PCA+NN": ("PCANet", {"hidden": (512, 512, 512)}, {"epochs": 250, "batch": 64, "lr": 1e-3}, None),
    "RBM": ("RBM", {"size": 200, "f": 1.0}, {"epochs": 1, "batch": 64}, None),
}
"""The paper's name -> model, its settings, entries of its recipe, and points drawn of each function (None: all)."""
MOST = 6_000
"""Largest number of steps of the paper's recipe, unless a table says otherwise: what is affordable."""
_SAME = {10: 10, 100: 100, 1000: 1000, 1024: 1024}
SCALES = {
    "smoke": Scale(
        name="smoke",
        sizes={241: 65, 421: 31},
        pairs={10: 2, 100: 3, 1000: 4, 1024: 4},
        tests=2,
        nodes=12,
        kernel={"paper": 64, "ours": 64},
        width=4,
        T=2,
        steps={"paper": 1, "ours": 1},
        lr={"paper": 1, "ours": 1},
        precision="fp32",
        exact={85: 2, 141: 1, 211: 1, 421: 1},
        support=30,
        baselines={
            "NN": {"epochs": 1},
            "FCN": {"epochs": 1, "start": 4, "growth": 2},
            "PCA+NN": {"epochs": 1, "hidden": (8,)},
            "RBM": {},
        },
    ),
    "small": Scale(
        name="small",
        sizes={241: 161, 421: 211},
        pairs={10: 10, 100: 40, 1000: 100, 1024: 100},
        tests=20,
        nodes=2,
        kernel={"paper": 32, "ours": 8},
        width=24,
        T=6,
        steps={"paper": 250, "ours": 250},
        lr={"paper": 30, "ours": 2.5},
        precision="fp32",
        exact={85: 2},
        support=400,
        baselines={
            "NN": {"epochs": 4, "batch": 2},
            "FCN": {"epochs": 4, "batch": 4, "start": 16, "growth": 8},
            "PCA+NN": {"epochs": 100, "hidden": (128, 128)},
            "RBM": {"size": 50},
        },
    ),
    "paper": Scale(
        name="paper",
        sizes={241: 241, 421: 421},
        pairs=_SAME,
        tests=100,
        nodes=1,
        kernel={"paper": 1, "ours": 1},
        width=64,
        T=6,
        steps={"paper": 10**6, "ours": 10**6},
        lr={"paper": 1, "ours": 1},
        precision="bf16",
        exact={85: 50, 141: 10, 211: 3, 421: 1},
        support=2000,
        baselines={"NN": {}, "FCN": {"epochs": {85: 40, 141: 20, 211: 12, 421: 10}}, "PCA+NN": {}, "RBM": {}},
    ),
}


@dataclass(frozen=True)
class Entry:
    """A position in a table, and the cell that fills it. `way` names one of several evaluations; the first is the table's."""

    table: str
    row: int
    column: int
    recipe: str
    way: str
    cell: Cell


def entries_of(table: Table, recipe: str, scale: Scale, seed: int) -> list[Entry]:
    """Return all entries of a table for a recipe. Baselines do not depend on the recipe: their cells are the same for both."""
    return [
        Entry(table.name, row, column, recipe, way, cell)
        for row, column, setting in table.cells()
        for way, cell in _cells(table, setting, recipe, scale, seed)
    ]


def _cells(table: Table, setting: Setting, recipe: str, scale: Scale, seed: int) -> list[tuple[str, Cell]]:
    finest = setting.get("finest", 241)
    every = scale.stride(setting["s"], finest)
    given = {key: _chosen(value, setting, table) for key, value in (table.paper if recipe == "paper" else table.ours).items()}
    given = {key: value for key, value in {**given, **CHANGES.get(setting.get("change"), {})}.items() if value is not None}
    tests = min(setting["tests"], scale.tests)
    if setting.get("method", "GKN") != "GKN":
        data = Data(scale.sizes[finest], every, scale.pairs[setting["N"]], scale.pairs[1024], min(100, scale.tests), None)
        return [("", Cell(_baseline(setting, data, scale, seed), every, Exact(), tests))]
    training = _training(setting, given, recipe, scale, every, seed)
    if "split" in setting:
        many = min(tests, training.data.n) if setting["split"] == "train" else tests
        return [("", Cell(training, every, Exact(), many, on=setting["split"]))]
    if finest == 421:
        return _full_grid(training, setting, recipe, scale, every, tests)
    how: Test = Exact() if setting["m"] is None else Sampled(_nodes({"m_test": setting["m"], **setting}["m_test"], scale))
    return [("", Cell(training, scale.stride({"s_test": setting["s"], **setting}["s_test"], finest), how, tests))]


def _baseline(setting: Setting, data: Data, scale: Scale, seed: int) -> Training:
    """Return the training of a baseline of the methods table."""
    method = setting["method"]
    model, usual, entries, m = BASELINES[method]
    special = {key: value[setting["s"]] if isinstance(value, dict) else value for key, value in scale.baselines[method].items()}
    known = {each.name for each in fields(Recipe)}
    changes = {**entries, **{key: value for key, value in special.items() if key in known}}
    settings = {**usual, **{key: value for key, value in special.items() if key not in known}}
    drawn = 0 if method == "RBM" else seed  # nothing in RBM is drawn
    points = ((data.size - 1) // data.every + 1) ** 2
    precision = scale.precision if method == "FCN" else "fp32"
    recipe = Recipe(**{"warm": 0.2, "clip": None, "precision": precision, "seed": drawn, **changes})
    rule = Points(None if m is None else min(m, points))
    return Training(data, model, tuple(sorted((key, _frozen(value)) for key, value in settings.items())), rule, recipe, drawn)


def _full_grid(
    training: Training, setting: Setting, recipe: str, scale: Scale, every: int, tests: int
) -> list[tuple[str, Cell]]:
    """Return the cells of the methods table: all points of the grid, in three ways."""
    assert training.rule.drawn is not None
    parts, support = Partition(training.rule.drawn), Support(scale.support)
    s = setting["s"]
    some = tests if recipe == "ours" or s < 200 else max(1, tests // 5)  # the paper's kernels are large
    ways = [
        ("partition", Cell(training, every, parts, some)),
        ("partition, smoothed", Cell(training, every, parts, some, blur=1.0)),
        ("support", Cell(training, every, support, some)),
    ]
    exact = scale.exact.get(s, 0) if recipe == "ours" else scale.exact.get(s, 0) // 5
    if exact:
        ways.append(("exact", Cell(training, every, Exact(), min(exact, tests), rounded=s == 421)))  # 6e9 edges
    if recipe == "paper":
        return ways
    fresh = ("support, functions of another seed", Cell(training, every, support, tests, on="fresh"))
    return [ways[2], *ways[:2], *ways[3:], *([fresh] if s == 85 else [])]


def _training(setting: Setting, given: Mapping[str, Any], recipe: str, scale: Scale, every: int, seed: int) -> Training:
    finest = setting.get("finest", 241)
    n = scale.pairs[setting["N"]]
    of = scale.pairs[1000 if finest == 241 else 1024]
    data = Data(scale.sizes[finest], every, n, of, min(100, scale.tests), given.get("smoothing", SMOOTHING[recipe]))
    network = dict(NETWORKS[recipe])
    network["last_sigma"] = given.get("last_sigma", network["last_sigma"])
    kernel = given.get("kernel", network["kernel"])
    if "depth" in setting:
        kernel = kernel_of(setting["width"], setting["depth"])
    network["kernel"] = tuple(max(1, layer // scale.kernel[recipe]) for layer in kernel)
    network["width"], network["steps"] = min(network["width"], scale.width), min(network["steps"], scale.T)
    rule: Rule = Radius(setting["r"])
    if setting["m"] is not None:
        rule = Nystrom(setting["r"], _nodes(given.get("m", setting["m"]), scale), setting["l"])
    graphs = n * rule.graphs
    base = RECIPES[recipe]
    changes = {
        key: given[key] for key in ("loss", "lr", "factor", "pointwise", "batch", "epochs", "every", "fresh") if key in given
    }
    base = replace(base, **changes, precision=given.get("precision", scale.precision), seed=seed)
    a_step = -(-graphs // base.batch)  # epoch
    wanted = base.epochs if recipe == "paper" else max(1, round(given["steps"] / a_step))
    most = min(scale.steps[recipe], given.get("most", MOST) if recipe == "paper" else given["steps"] + a_step)
    epochs = max(1, min(wanted, most // a_step))
    every_epochs = max(1, round(base.every * epochs / wanted)) if recipe == "paper" else base.every
    chosen = replace(base, epochs=epochs, every=every_epochs, lr=base.lr * scale.lr[recipe])
    settings = tuple(sorted((key, _frozen(value)) for key, value in network.items()))
    return Training(data, "GKN", settings, rule, chosen, seed, None if epochs == wanted else wanted)


def _nodes(m: int, scale: Scale) -> int:
    return max(1, m // scale.nodes)


def _chosen(value: Any, setting: Setting, table: Table) -> Any:
    """Return a setting of a recipe that may differ from row to row, or from cell to cell."""
    if not isinstance(value, dict):
        return value
    row, column = (setting[word] for word, _ in (table.rows, table.columns))
    return next((value[key] for key in ((row, column), row) if key in value), value.get(None))


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list | tuple) else value
