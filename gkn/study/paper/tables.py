"""The paper's tables: what each varies, what it keeps fixed, and the numbers it prints.

Words of a setting: s, s_test (grid points per side), N (training pairs), tests, m, m_test (nodes; None: all), r, l, width and
depth (of the kernel network), method, split (train or test), change. `paper` and `ours` are entries that a table changes in the
recipe of that name and its network; `steps` is the length of our trainings, `most` the largest number of steps of the paper's
if one is expensive. Settings taken from the authors' scripts, where the paper is silent or differs, are marked "script".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any

Setting = dict[str, Any]


@dataclass(frozen=True)
class Table:
    """A table. rows, columns: a word of the settings, and its values. numbers: the paper's, None where it has none."""

    name: str
    title: str
    base: Setting
    rows: tuple[str, tuple[Any, ...]]
    columns: tuple[str, tuple[Any, ...]]
    numbers: tuple[tuple[float | None, ...], ...]
    paper: Mapping[str, Any] = field(default_factory=dict)
    ours: Mapping[str, Any] = field(default_factory=dict)
    edges: tuple[tuple[int | None, ...], ...] | None = None
    note: str = ""

    def cells(self) -> Iterator[tuple[int, int, Setting]]:
        """Yield row, column and setting of the cells the paper has."""
        (row, rows), (column, columns) = self.rows, self.columns
        for (i, x), (j, y) in product(enumerate(rows), enumerate(columns)):
            if self.numbers[i][j] is not None:
                yield i, j, {**self.base, row: x, column: y}


SAMPLED = {"s": 241, "N": 100, "tests": 100, "m": 200, "m_test": 200, "l": 2, "r": 0.25}
HALF = {"s": 121, "N": 100, "tests": 100, "m": 200, "l": 5, "r": 0.15}

TABLES = (
    Table(
        "full-resolution",
        "Table 1: resolutions on full grids",
        base={"N": 100, "tests": 40, "m": None, "r": 0.10},
        rows=("s", (16, 31)),
        columns=("s_test", (16, 31, 61)),
        numbers=((0.0525, 0.0591, 0.0585), (0.0787, 0.0538, 0.0588)),
        paper={"loss": "abs", "factor": 0.8, "pointwise": False, "batch": 1, "last_sigma": True},  # script
        ours={"batch": 4, "steps": 5000},
        note="r = 0.10, N = 100, 40 test functions",
    ),
    Table(
        "training-size",
        "Table 2: number of training pairs",
        base={"s": 31, "tests": 100, "m": None, "r": 0.10},
        rows=("N", (10, 100, 1000)),
        columns=("split", ("train", "test")),
        numbers=((0.0089, 0.0931), (0.0183, 0.0478), (0.0255, 0.0345)),
        paper={
            "loss": "abs",
            "batch": 2,
            "last_sigma": True,
            "epochs": {10: 2000, 100: 500, 1000: 100},
            "most": {1000: 20_000},
        },  # script
        ours={"batch": 4, "steps": {1000: 10_000, None: 6000}},
        note="s = s' = 31, r = 0.10; 2000, 500 and 100 epochs",
    ),
    Table(
        "sampled-resolution",
        "Table 3: resolutions on sampled grids",
        base=SAMPLED,
        rows=("s", (16, 31, 61, 121, 241)),
        columns=("s_test", (61, 121, 241)),
        numbers=(
            (0.0717, 0.0768, 0.0724),
            (0.0726, 0.0710, 0.0722),
            (0.0687, 0.0728, 0.0723),
            (0.0687, 0.0664, 0.0685),
            (0.0649, 0.0658, 0.0649),
        ),
        paper={"pointwise": False, "batch": 10, "last_sigma": True},  # script
        ours={"batch": 20, "steps": 3000},
        note="N = 100, m = m' = 200, r = 0.25, l = 2",
    ),
    Table(
        "pairs-and-samples",
        "Table 4: training pairs and sampling",
        base=SAMPLED,
        rows=("N", (10, 100, 1000)),
        columns=("l", (1, 2, 4, 8)),
        numbers=((0.1259, 0.1069, 0.0967, 0.1026), (0.0786, 0.0687, 0.0690, 0.0621), (0.0604, 0.0579, 0.0540, 0.0483)),
        paper={"kernel": (32, 64), "batch": {10: 5, 100: 20, 1000: 20}},  # script
        ours={"batch": {10: 5, 100: 20, 1000: 20}, "steps": {10: 2000, 100: 3000, 1000: 4000}},
        note="s = 241, m = m' = 200, r = 0.25",
    ),
    Table(
        "nodes",
        "Table 5: nodes in training and testing",
        base=HALF,
        rows=("m", (100, 200, 400, 800)),
        columns=("m_test", (100, 200, 400, 800)),
        numbers=(
            (0.0871, 0.0716, 0.0662, 0.0609),
            (0.0972, 0.0734, 0.0606, 0.0562),
            (0.0991, 0.0699, 0.0560, 0.0506),
            (0.1084, 0.0751, 0.0573, 0.0478),
        ),
        paper={
            "last_sigma": True,
            "batch": {100: 10, 200: 10, 400: 10, 800: 2},
            "epochs": {800: 100},  # script
            "most": {800: 5000},
        },
        ours={"batch": {100: 20, 200: 20, 400: 20, 800: 10}, "steps": {400: 6000, 800: 6000, None: 3000}},
        note="s = 121, r = 0.15, l = 5, N = 100",
    ),
    Table(
        "radius-and-nodes",
        "Table 6: radius and nodes",
        base=HALF,
        rows=("r", (0.05, 0.15, 0.40, 1.00)),
        columns=("m", (100, 200, 400)),
        numbers=((0.110, 0.109, 0.099), (0.086, 0.070, 0.053), (0.064, 0.051, 0.040), (0.059, 0.048, None)),
        edges=((176, 666, 3354), (512, 2770, 14086), (1596, 9728, 55919), (9756, 38690, None)),
        paper={
            "last_sigma": True,
            "batch": {(0.4, 200): 5, (0.4, 400): 2, (1.0, 100): 5, (1.0, 200): 2, None: 10},  # script
            "most": {0.40: 20_000, 1.00: 20_000},
        },
        ours={
            "batch": {(0.4, 200): 10, (0.4, 400): 5, (1.0, 100): 10, (1.0, 200): 5, None: 20},
            "steps": {(0.4, 400): 9000, (1.0, 200): 6000, (0.15, 400): 6000, None: 3000},
        },
        note="s = 121, l = 5, N = 100, m' = m; error (edges of a graph)",
    ),
    Table(
        "kernel-network",
        "Table 8: width and depth of the kernel network",
        base=SAMPLED,
        rows=("width", (64, 128, 256, 1024, 4096)),
        columns=("depth", (2, 3, 5)),
        numbers=(
            (0.0685, 0.0695, 0.0770),
            (0.0630, 0.0633, 0.0702),
            (0.0617, 0.0610, 0.0688),
            (0.0641, 0.0591, 0.0608),
            (0.2934, 0.0690, 0.0638),
        ),
        paper={"batch": 5, "most": {4096: 2000}},  # script
        ours={
            "batch": {4096: 5, None: 20},
            "steps": {(4096, 2): 2000, 4096: 4000, None: 3000},
            "lr": {(1024, 2): 5e-4, 1024: 1e-3, (4096, 2): 2e-4, 4096: 5e-4},  # 2e-3 is too much for wide ones
        },
        note="s = 241, m = 200, r = 0.25, N = 100, l = 2",
    ),
    Table(
        "methods",
        "Table 7: methods",
        base={"N": 1024, "tests": 100, "m": 300, "l": 1, "r": 0.25, "finest": 421},
        rows=("method", ("NN", "FCN", "PCA+NN", "RBM", "GKN")),
        columns=("s", (85, 141, 211, 421)),
        numbers=(
            (0.1716, 0.1716, 0.1716, 0.1716),
            (0.0253, 0.0493, 0.0727, 0.1097),
            (0.0299, 0.0298, 0.0298, 0.0299),
            (0.0244, 0.0251, 0.0255, 0.0259),
            (0.0346, 0.0332, 0.0342, 0.0369),
        ),
        paper={"loss": "abs", "batch": 5},  # script
        ours={"batch": 20, "steps": 6000, "m": 400},
        note="N = 1024, data computed on 421 x 421, evaluated on all points of 100 functions. GKN: r = 0.25; with the paper's "
        "recipe m = 300, by partition, on 20 functions at s = 211 and 421; with ours m = 400, by support and queries",
    ),
)


CHANGES: dict[str | None, dict[str, Any]] = {
    "as in table 4": {},
    "smoothing over sqrt 5 spacings": {"smoothing": 5**0.5 / 240},
    "smoothing over 5 spacings": {"smoothing": 5 / 240},
    "smoothing over 24 spacings": {"smoothing": 0.1},
    "scalar normaliser": {"pointwise": False},
    "batches of 5": {"batch": 5},
    "kernel 512-1024": {"kernel": (512, 1024)},
    "sigma after the last step": {"last_sigma": True},
    "tf32": {"precision": "tf32"},
    "fresh draws every epoch": {"fresh": True},
    "60 epochs instead of 200": {"epochs": 60, "every": 15},
    "600 epochs instead of 200": {"epochs": 600, "every": 150},
}
CAUSES = Table(
    "causes",
    "What changes one cell: N = 100, l = 2 of table 4, with the paper's recipe",
    base=SAMPLED,
    rows=("change", tuple(str(change) for change in CHANGES)),
    columns=("l", (2,)),
    numbers=((0.0687,),) * len(CHANGES),
    paper={"kernel": (32, 64), "batch": 20},
    note="One change at a time. The paper has three numbers for this setting: 0.0687, 0.0649, 0.0591",
)
"""Not in the paper: causes of the differences to it."""


def kernel_of(width: int, depth: int) -> tuple[int, ...]:
    """Return one of the paper's shapes of kappa: (6, w, n^2), (6, w/2, w, n^2), (6, w/4, w/2, w, w, n^2)."""
    return {2: (width,), 3: (width // 2, width), 5: (width // 4, width // 2, width, width)}[depth]


def table_named(name: str) -> Table:
    for table in (*TABLES, CAUSES):
        if table.name == name:
            return table
    raise ValueError(f"no table {name!r}; there are {', '.join(table.name for table in (*TABLES, CAUSES))}")
