"""Recipes: all settings of a training, learning-rate schedules, and recipes that have names."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import numpy as np
import torch

from gkn.data.walls import WALLS
from gkn.train.losses import LOSSES
from gkn.train.muon import Muon

OPTIMIZERS: dict[str, type[torch.optim.Optimizer]] = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "muon": Muon}
PRECISIONS = {"fp64": "64-true", "fp32": "32-true", "tf32": "32-true", "bf16": "bf16-mixed"}


LATER = ("unroll", "per_epoch", "noise")
"""Entries that came later."""


@dataclass(frozen=True)
class Recipe:
    """All settings of a training. `RECIPES` has some with names.

    epochs        number of passes over all samples
    per_epoch     graphs of an epoch, drawn anew for each: for datasets of so many pairs of states that a pass over all of them
                  takes too long. None: all
    batch         graphs per step, on all ranks together
    loss          mse: of normalised u. abs: the sum of its absolute errors. relative: the relative l2 error of u itself
    optimizer     adam, with weight decay in the gradient; adamw, with decoupled weight decay; muon for matrices, with adamw
                  for all other parameters
    lr, decay     learning rate and weight decay
    schedule      constant. step: times `factor` every `every` epochs. cosine: to 0. onecycle: up for a share `warm`, then to 0
    clip          clip gradients to this norm; None: do not
    fresh         draw nodes anew in every epoch; else once
    pointwise     normalise u at every point by itself, which needs samples on one domain; else by two numbers
    precision     fp64, fp32, tf32 (float32, products rounded on GPUs) or bf16 (products rounded, sums and weights in float32)
    seed          of everything that is drawn
    zero          boundary on which outputs are exactly 0, and the operator's with them: box, ball, or distance for any domain
                  whose boundary is known; None: none
    gradient      this times the relative error of differences along edges, over their lengths, is added to the loss; on a GPU
                  the bits then differ from run to run
    patience      stop after so many evaluations without a smaller validation error; None: never
    unroll        share of the steps, at the end, whose pairs of states begin with what the network makes of the state before;
                  no gradient goes through that first prediction. None: none
    noise         noise of the states that pairs begin with, in all other steps, relative to the standard deviation of each
                  field; the state to be reached stays. The network learns to damp it, and rollouts stay stable. None: none
    symmetries    turn and mirror each function at random in every step, if the data distribution has the symmetries of the box
    """

    epochs: int = 500
    batch: int = 20
    loss: str = "relative"
    optimizer: str = "adam"
    lr: float = 2e-3
    decay: float = 0.0
    schedule: str = "onecycle"
    every: int = 50
    factor: float = 0.5
    warm: float = 0.3
    clip: float | None = 1.0
    fresh: bool = True
    pointwise: bool = False
    precision: str = "fp32"
    seed: int = 0
    zero: str | None = None
    gradient: float = 0.0
    symmetries: bool = False
    patience: int | None = None
    unroll: float | None = None
    per_epoch: int | None = None
    noise: float | None = None

    def __post_init__(self) -> None:
        for name, choices in (("loss", LOSSES), ("optimizer", OPTIMIZERS), ("schedule", SCHEDULES), ("precision", PRECISIONS)):
            if getattr(self, name) not in choices:
                raise ValueError(f"Recipe({name}={getattr(self, name)!r}): use one of {', '.join(choices)}")
        if self.zero is not None and (self.zero not in WALLS or self.pointwise or self.loss != "relative"):
            raise ValueError(f"Recipe(zero={self.zero!r}): use one of {', '.join(WALLS)}, loss=relative and no pointwise")
        if self.symmetries is True and self.pointwise:
            raise ValueError("Recipe(symmetries=True, pointwise=True): a mean at every point has no symmetries")
        for name in ("fresh", "pointwise", "symmetries"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"Recipe({name}={getattr(self, name)!r}): needed True or False")
        for name, least in (("epochs", 1), ("batch", 1), ("every", 1), ("seed", 0)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= 2**62:
                raise ValueError(f"Recipe({name}={value!r}): needed a whole number, at least {least}, at most 2^62")
        for name in ("patience", "per_epoch"):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < 1):
                raise ValueError(f"Recipe({name}={value!r}): needed a whole number, at least 1, or None")
        for name, low, high in (
            ("lr", 0, 1e6),
            ("decay", -1, 1e6),
            ("factor", 0, 1e6),
            ("warm", -1, 1),
            ("clip", 0, 1e6),
            ("gradient", -1, 1e6),
            ("unroll", 0, 1),
            ("noise", 0, 1),
        ):
            value = getattr(self, name)
            if value is None and name in ("clip", "unroll", "noise"):
                continue
            if (
                isinstance(value, bool)
                or not isinstance(value, int | float)
                or not low < value <= high
                or (low == -1 and value < 0)
            ):
                raise ValueError(
                    f"Recipe({name}={value!r}): needed a number, {'>= 0' if low == -1 else '> 0'}, at most {high:g}"
                )

    def entries(self) -> dict[str, Any]:
        """Return all entries, as they are stored. Those that older runs do not know are left out if they are not used."""
        return {name: value for name, value in asdict(self).items() if name not in LATER or value is not None}

    def counted(self, graphs: int) -> int:
        """Return how many of so many graphs an epoch has."""
        return min(graphs, self.per_epoch or graphs)

    def steps(self, graphs: int) -> int:
        """Return the number of steps of an epoch, given the number of graphs of a dataset."""
        return -(-self.counted(graphs) // self.batch)

    def rate(self, step: int, steps: int) -> float:
        """Return the learning rate of a step, if an epoch has `steps`."""
        return self.lr * SCHEDULES[self.schedule](self, step / (steps * self.epochs), step // steps)


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
"""(recipe, share of all steps, epoch) -> rate relative to the largest. There is no state that could be lost."""


RECIPES = {
    "paper": Recipe(
        epochs=200,
        clip=None,
        loss="mse",
        lr=1e-4,
        decay=5e-4,
        schedule="step",
        every=50,
        factor=0.5,
        fresh=False,
        pointwise=True,
        precision="tf32",
    ),
    "ours": Recipe(),
    "nearfar": Recipe(epochs=100, batch=4, optimizer="muon", lr=1e-2, decay=1e-4, warm=0.1, gradient=0.1),
}


def recipe_named(name: str, **changes: Any) -> Recipe:
    """Return the recipe with a name, changed."""
    if name not in RECIPES:
        raise ValueError(f"no recipe {name!r}; there are {', '.join(RECIPES)}")
    return changed(RECIPES[name], **changes)


def changed(recipe: Recipe, **changes: Any) -> Recipe:
    """Return a recipe with some entries changed."""
    known = [each.name for each in fields(Recipe)]
    unknown = [key for key in changes if key not in known]
    if unknown:
        raise ValueError(f"a recipe has no {unknown[0]!r}; it has {', '.join(known)}")
    # Numbers of numpy become Python's, which JSON can hold.
    return replace(recipe, **{key: x.item() if isinstance(x, np.generic) else x for key, x in changes.items()})
