"""Recipes: how a network is trained. Losses, schedules, and those that have names."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from torch import Tensor

from gkn.data.normalizer import WALLS
from gkn.graph.batches import Batch, relative
from gkn.train.muon import Muon

LATER = {"later": True}
"""Of entries that came after results were named by what they depend on: unless it is used, such an entry is not in the name."""


def used(value: Any) -> list[str]:
    """Names of a dataclass's entries, but for those that came later and are as they are born."""
    return [each.name for each in fields(value) if not each.metadata.get("later") or getattr(value, each.name) != each.default]


@dataclass(frozen=True)
class Recipe:
    """How a network is trained. `RECIPES` has some with names.

    epochs        how often each sample is seen
    batch         graphs a step, on all ranks together
    loss          mse: of normalised u. abs: the sum of its absolute errors. relative: the relative l2 error of u itself
    optimizer     adam, with decay as a gradient; adamw, with decay by itself; muon, for matrices, and adamw for the rest
    lr, decay     its learning rate and weight decay
    schedule      constant. step: times `factor` every `every` epochs. cosine: to 0. onecycle: up for `warm` of it, then to 0
    clip          gradients to this norm; None: as they are
    fresh         nodes are drawn anew in every epoch; else once
    pointwise     u is normalised at every point by itself, which needs samples on one domain; else by two numbers
    precision     fp64, fp32, tf32 (float32, products rounded on GPUs) or bf16 (products in it, sums and weights in float32)
    seed          of everything that is drawn
    zero          where u is 0, and the operator with it, exactly: box or ball, the unit ones; None: it is not known
    gradient      the relative error of differences along edges, over their lengths, times this, is added to the loss; on a
                  GPU then not the same bits every time
    symmetries    each function is turned and mirrored at random, in every step: for laws that have the symmetries of the box
    ema           the operator has the mean of the weights over about 1 / (1 - ema) last steps; 0: the last ones
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
    zero: str | None = field(default=None, metadata=LATER)
    gradient: float = field(default=0.0, metadata=LATER)
    symmetries: bool = field(default=False, metadata=LATER)
    ema: float = field(default=0.0, metadata=LATER)

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
        for name, low, high in (
            ("lr", 0, 1e6),
            ("decay", -1, 1e6),
            ("factor", 0, 1e6),
            ("warm", -1, 1),
            ("clip", 0, 1e6),
            ("gradient", -1, 1e6),
            ("ema", -1, 0.999999),
        ):
            value = getattr(self, name)
            if value is None and name == "clip":
                continue
            if not isinstance(value, int | float) or not low < value <= high or (low == -1 and value < 0):
                raise ValueError(
                    f"Recipe({name}={value!r}): needed a number, {'>= 0' if low == -1 else '> 0'}, at most {high:g}"
                )

    def entries(self) -> dict[str, Any]:
        """All of them, but for those that came later and are not used."""
        return {name: getattr(self, name) for name in used(self)}

    def rate(self, step: int, steps: int) -> float:
        """The learning rate of a step of an epoch that has `steps`. A function of the step alone: there is no state to lose."""
        return self.lr * SCHEDULES[self.schedule](self, step / (steps * self.epochs), step // steps)


def one_cycle(share: float, warm: float) -> float:
    """Of the largest rate, after a share of all steps: up from a 25th of it for `warm` of them, then down to 0."""
    if share < warm:
        return 1 / 25 + (1 - 1 / 25) * (1 - math.cos(math.pi * share / warm)) / 2
    return (1 + math.cos(math.pi * (share - warm) / (1 - warm))) / 2 if warm < 1 else 1.0


SCHEDULES: dict[str, Callable[[Recipe, float, int], float]] = {
    "constant": lambda recipe, share, epoch: 1.0,
    "step": lambda recipe, share, epoch: recipe.factor ** (epoch // recipe.every),
    "cosine": lambda recipe, share, epoch: (1 + math.cos(math.pi * share)) / 2,
    "onecycle": lambda recipe, share, epoch: one_cycle(share, recipe.warm),
}
OPTIMIZERS: dict[str, type[torch.optim.Optimizer]] = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "muon": Muon}
PRECISIONS = {"fp64": "64-true", "fp32": "32-true", "tf32": "32-true", "bf16": "bf16-mixed"}


def _mse(found: Tensor, batch: Batch) -> Tensor:
    wanted = (batch.u - batch.mean) / batch.std
    sizes = torch.tensor(batch.sizes, device=found.device, dtype=found.dtype) if len({*batch.sizes}) > 1 else batch.sizes[0]
    return batch.sums((found - wanted).square()) / (sizes * found.shape[1])


def _abs(found: Tensor, batch: Batch) -> Tensor:
    return batch.sums((found - (batch.u - batch.mean) / batch.std).abs())


def _relative(found: Tensor, batch: Batch) -> Tensor:
    return relative(found * batch.std + batch.mean, batch.u, batch, batch.weights)


def differences(found: Tensor, batch: Batch) -> Tensor:
    """(G,): the relative error of (u(x) - u(y)) / |x - y| over all edges of each graph."""
    graph, error = batch.graph, found * batch.std + batch.mean - batch.u
    length = (batch.x.index_select(0, graph.targets) - batch.x.index_select(0, graph.src)).square().sum(1)
    inverse = torch.where(length > 0, 1 / length, 0)[:, None]
    sums = []
    for values in (error, batch.u):
        squares = (values.index_select(0, graph.targets) - values.index_select(0, graph.src)).square() * inverse
        sums.append(batch.sums(torch.zeros_like(values).index_add(0, graph.targets, squares)))
    some = sums[1] > 0  # a graph without an edge, or with a constant u, has no term
    return torch.where(some, (sums[0] / torch.where(some, sums[1], 1) + 1e-12).sqrt(), 0)


LOSSES: dict[str, tuple[Callable[[Tensor, Batch], Tensor], bool]] = {
    "mse": (_mse, True),
    "abs": (_abs, False),
    "relative": (_relative, True),
}
"""(nodes, o) of normalised u and the batch -> (G,), a term for each graph; and is the loss their mean, or else their sum."""

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
NETWORKS: dict[str, dict[str, Any]] = {
    "paper": {"width": 64, "kernel": (512, 1024), "steps": 6, "last_sigma": False},
    "ours": {"width": 64, "kernel": (128, 256), "steps": 6, "last_sigma": False},
}
NETWORKS["nearfar"] = NETWORKS["ours"]
"""The GKN that goes with each; NearFar and Multigrid are as they are by themselves."""
SMOOTHING = {"paper": 0.05, "ours": 0.1, "nearfar": 0.03}
"""The width of the Gaussian for a_eps, as a length. The paper says "variance 5", and not of what: sqrt 5 spacings of its finest
grid would be 0.0093. 0.05, 12 spacings, comes nearest to its numbers of the widths measured (`gkn reproduce causes`)."""


def recipe_named(name: str, **changes: Any) -> Recipe:
    """A recipe by its name, with changes."""
    if name not in RECIPES:
        raise ValueError(f"no recipe {name!r}; there are {', '.join(RECIPES)}")
    return changed(RECIPES[name], **changes)


def changed(recipe: Recipe, **changes: Any) -> Recipe:
    known = [each.name for each in fields(Recipe)]
    unknown = [key for key in changes if key not in known]
    if unknown:
        raise ValueError(f"a recipe has no {unknown[0]!r}; it has {', '.join(known)}")
    return replace(recipe, **changes)
