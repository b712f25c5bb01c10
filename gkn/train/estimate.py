"""An estimate of the time a training will take on this machine, from a few steps of a copy of the model."""

from __future__ import annotations

import copy
import os
import time
from typing import Any

import torch

from gkn.data.normalizer import Normalizer
from gkn.graph.batches import Batches
from gkn.operator.nodes import periods_for
from gkn.train.losses import loss_terms
from gkn.train.setup import Setup

STEPS = 3  # timed passes


def announcement(setup: Setup, device: str) -> str:
    """Return a sentence about the model, the number of steps and the time they will take."""
    recipe, model = setup.recipe, setup.model
    steps = sum(recipe.steps(len(each) * rule.graphs) for each, rule in zip(setup.datasets, setup.rules, strict=True))
    count = sum(x.numel() for x in model.parameters())
    text = f"{type(model).__name__} of {count} parameters, {recipe.epochs} epochs of {steps} steps"
    if not count or os.environ.get("RANK", "0") != "0":
        return text
    try:
        seconds = seconds_per_step(setup, device) * steps * recipe.epochs
    except torch.cuda.OutOfMemoryError:  # measured without the savings of the training itself
        return text
    finally:
        if device.startswith("cuda"):
            torch.cuda.empty_cache()
    return f"{text}; {'at most' if device.startswith('cuda') else 'about'} {in_words(seconds)} on this machine"


def seconds_per_step(setup: Setup, device: str = "cpu") -> float:
    """Return the seconds of one step, measured with a copy of the model on the first samples. The median of a few.

    On a GPU many steps are recorded and then take less time.
    """
    recipe, model = setup.recipe, copy.deepcopy(setup.model).train()
    some = [each.take(min(recipe.batch, len(each))) for each in setup.datasets[:1]]
    inputs, outputs = (Normalizer.fit(some, names) for names in (some[0].inputs, some[0].outputs))
    dtype = torch.float64 if recipe.precision == "fp64" else torch.float32
    model = model.to(device, dtype)
    model.prepare(some, inputs, outputs)
    periods = periods_for(model, some[0][0].domain)
    made: dict[str, Any] = {"device": device, "dtype": dtype, "weighted": setup.weighted, "periods": periods}
    made["degree"] = model.moments
    batches = Batches(some[0], setup.rules[0], inputs, outputs, **made)
    graphs = [*range(min(recipe.batch, len(batches)))]
    seconds = []
    for _ in range(STEPS):
        start = _now(device)
        batch = batches.batch(graphs)
        found = model(batch.graph, batch.x, batch.a, batch.weights)
        terms = loss_terms(recipe.loss, recipe.gradient, found.to(batch.deviation.dtype), batch)
        if terms.requires_grad:
            terms.sum().backward()
        seconds.append(_now(device) - start)
    return sorted(seconds)[STEPS // 2] * 1.1  # the update of the parameters


def _now(device: str) -> float:
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)
    return time.perf_counter()


def in_words(seconds: float) -> str:
    """Return a duration in seconds, minutes or hours."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
