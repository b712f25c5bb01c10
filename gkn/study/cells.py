"""A Run is one cell of a table: what is learned, by what, and how it is judged. Its result is one file, named by its hash."""

from __future__ import annotations

from dataclasses import dataclass, field, is_dataclass
from functools import cached_property
from typing import Any

from gkn.graph.rules import Rule
from gkn.operator.evaluate import Test
from gkn.system.files import digest
from gkn.train.recipe import LATER, Recipe, used


@dataclass(frozen=True)
class Data:
    """Pairs of a recipe of `gkn.data.generate`: the first `n` to learn from, and, after the first `of`, `tests` to judge by.

    size       of the finest grid, on which all of them are solved
    every      the stride to the grid that is learned on
    smoothing  width of the Gaussian of a_eps, a length; None: no a_eps
    known      the stride to the grid on which a is known, and smoothed
    """

    size: int
    every: int
    n: int
    of: int
    tests: int
    smoothing: float | None
    name: str = "darcy"
    seed: int = 0
    known: int = field(default=1, metadata=LATER)


@dataclass(frozen=True)
class Training:
    """What is fitted once, whatever it is then asked.

    method    a network of `MODELS`, or the name of a baseline
    settings  of the network, or of the baseline: (name, value) pairs
    rule      of a network: how points become graphs
    recipe    of a network; its seed is the run's
    asked     epochs of the paper where they were shortened to fit a budget; None: they were not
    weighted  neighbours count with quadrature weights
    more      further strides of the same pairs that are learned from, each by its own rule
    """

    data: Data
    method: str
    settings: tuple[tuple[str, Any], ...]
    rule: Rule | None
    recipe: Recipe | None
    seed: int
    asked: int | None = None
    weighted: bool = field(default=False, metadata=LATER)
    more: tuple[tuple[int, Rule], ...] = field(default=(), metadata=LATER)

    @cached_property
    def hash(self) -> str:
        return digest(plain(self))[:16]


@dataclass(frozen=True)
class Run:
    """A training, and one way to judge it.

    every      the stride to the grid that is judged on
    how        as of `relative_l2`
    functions  so many of them
    on         test; train: the pairs it learned from; fresh: as many of another seed, which nobody ever looked at; mesh: the
               test functions on an unstructured mesh of about as many points as every k-th of the grid; cloud: at as many
               random points
    blur       pixels of a Gaussian over the answers, which the authors applied and did not mention
    alone      a is known at these points and nowhere else; without, what is smoothed is that of the finest grid
    rounded    answers are computed with numbers rounded to bf16, where nothing else is affordable
    """

    training: Training
    every: int
    how: Test
    functions: int
    on: str = "test"
    blur: float = 0.0
    rounded: bool = field(default=False, metadata=LATER)
    alone: bool = field(default=False, metadata=LATER)

    @cached_property
    def hash(self) -> str:
        return digest(plain(self))[:16]


def plain(value: Any) -> Any:
    """As JSON has it; choices like Radius(0.1) and Exact() with their names."""
    if is_dataclass(value) and not isinstance(value, type):
        return {"kind": type(value).__name__, **{name: plain(getattr(value, name)) for name in used(value)}}
    if isinstance(value, tuple | list):
        return [plain(each) for each in value]
    return value
