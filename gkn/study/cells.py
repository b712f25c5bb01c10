"""Cells of tables: what is learned, by which model, and how it is evaluated. The result of each is one file."""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass
from functools import cached_property
from typing import Any

from gkn.graph.rules import Rule
from gkn.operator.ways import Test
from gkn.system.files import digest
from gkn.train.recipe import Recipe


@dataclass(frozen=True)
class Data:
    """Samples of a problem: 0 to n - 1 for training, and of to of + tests - 1 for evaluation.

    size       nodes per side of the finest grid, on which all samples are solved
    every      stride from there to the grid that is trained on
    smoothing  width of the Gaussian of a_eps, a length; None: no a_eps
    known      stride to the grid on which a is known, and smoothed
    """

    size: int
    every: int
    n: int
    of: int
    tests: int
    smoothing: float | None
    name: str = "darcy"
    seed: int = 0
    known: int = 1


@dataclass(frozen=True)
class Training:
    """One training. Several cells may evaluate it in different ways.

    model     name of a model
    settings  of the model: (name, value) pairs
    rule      how points become graphs
    recipe    of the training; its seed is the training's
    asked     epochs in the paper, if they were shortened to fit a budget; else None
    weighted  count with quadrature weights
    more      further strides of the same samples that are learned from, each with its own rule
    """

    data: Data
    model: str
    settings: tuple[tuple[str, Any], ...]
    rule: Rule
    recipe: Recipe
    seed: int
    asked: int | None = None
    weighted: bool = False
    more: tuple[tuple[int, Rule], ...] = ()

    @cached_property
    def hash(self) -> str:
        return digest(plain(self))[:16]


@dataclass(frozen=True)
class Cell:
    """A training, and one way to evaluate it.

    every      stride to the grid that is evaluated on
    how        as in `relative_l2`
    functions  number of functions
    on         test; train: the samples it learned from; fresh: as many of another seed, never used before; mesh: the test
               functions on an unstructured mesh of about as many points as every k-th of the grid; cloud: at as many random
               points
    blur       pixels of a Gaussian over the answers, which the authors applied without mentioning it
    rounded    computed with numbers rounded to bf16, where nothing else is affordable
    alone      a is known at the evaluation points only; otherwise a_eps is that of the finest grid
    """

    training: Training
    every: int
    how: Test
    functions: int
    on: str = "test"
    blur: float = 0.0
    rounded: bool = False
    alone: bool = False

    @cached_property
    def hash(self) -> str:
        return digest(plain(self))[:16]


LATER = ("patience", "unroll", "per_epoch", "noise")


def plain(value: Any) -> Any:
    """Return a value as JSON has it; choices such as Radius(0.1) and Exact() with their names.

    Entries that recipes did not have before are left out unless they are used, so that older results keep their hash.
    """
    if is_dataclass(value) and not isinstance(value, type):
        entries = {each.name: plain(getattr(value, each.name)) for each in fields(value)}
        new = [name for name in LATER if name in entries and entries[name] is None]
        return {"kind": type(value).__name__, **{name: entry for name, entry in entries.items() if name not in new}}
    return [plain(each) for each in value] if isinstance(value, tuple | list) else value
