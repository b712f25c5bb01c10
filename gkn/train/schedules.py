"""Schedules: the learning rate as a function of the step alone, so that there is no state to lose."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gkn.train.recipe import Recipe


def one_cycle(share: float, warm: float) -> float:
    """Return the rate after a share of all steps, relative to the largest: up from 1/25 for `warm` of them, then down to 0."""
    if share < warm:
        return 1 / 25 + (1 - 1 / 25) * (1 - math.cos(math.pi * share / warm)) / 2
    return (1 + math.cos(math.pi * (share - warm) / (1 - warm))) / 2 if warm < 1 else 1.0


SCHEDULES: dict[str, Callable[[Recipe, float, int], float]] = {
    "constant": lambda recipe, share, epoch: 1.0,
    "step": lambda recipe, share, epoch: recipe.factor ** (epoch // recipe.every),
    "cosine": lambda recipe, share, epoch: (1 + math.cos(math.pi * share)) / 2,
    "onecycle": lambda recipe, share, epoch: one_cycle(share, recipe.warm),
}
"""(recipe, share of all steps, epoch) -> rate relative to the largest."""
