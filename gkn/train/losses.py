"""Losses: a term for each graph of a batch."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from gkn.graph.batches import Batch, relative


def _mse(found: Tensor, batch: Batch) -> Tensor:
    wanted = batch.deviation / batch.std
    sizes = torch.tensor(batch.sizes, device=found.device, dtype=found.dtype) if len({*batch.sizes}) > 1 else batch.sizes[0]
    return batch.sums((found - wanted).square()) / (sizes * found.shape[1])


def _abs(found: Tensor, batch: Batch) -> Tensor:
    return batch.sums((found - batch.deviation / batch.std).abs())


def _relative(found: Tensor, batch: Batch) -> Tensor:
    error, truth = found * batch.std - batch.deviation, batch.deviation + batch.counted
    return relative(error, truth, batch, batch.weights, batch.floor).mean(1)


LOSSES: dict[str, tuple[Callable[[Tensor, Batch], Tensor], bool]] = {
    "mse": (_mse, True),
    "abs": (_abs, False),
    "relative": (_relative, True),
}
"""Name -> (function, mean). The function maps predictions (nodes, o), normalised, and the batch to a term for each graph (G,);
the loss is their mean or, if `mean` is False, their sum."""


def differences(found: Tensor, batch: Batch) -> Tensor:
    """Return the relative error of (u(x) - u(y)) / |x - y| over all edges of each graph, the mean over fields: (G,)."""
    graph, error = batch.graph, found * batch.std - batch.deviation
    u = batch.deviation + batch.profile  # minus a constant, which differences do not see
    sources = batch.x if graph.images is None else graph.images.points(batch.x)
    length = (batch.x.index_select(0, graph.targets) - sources.index_select(0, graph.src)).square().sum(1)
    inverse = torch.where(length > 0, 1 / length, 0)[:, None]
    sums = []
    for values in (error, u):
        lent = values if graph.images is None else graph.images.lend(values)
        squares = (values.index_select(0, graph.targets) - lent.index_select(0, graph.src)).square() * inverse
        per_node = torch.zeros_like(values).index_add(0, graph.targets, squares)
        sums.append(torch.stack([batch.sums(field) for field in batch.by_field(per_node)], 1))
    some = sums[1] > 0  # a graph without an edge, or with a constant u, has no term
    return torch.where(some, (sums[0] / torch.where(some, sums[1], 1) + 1e-12).sqrt(), 0).mean(1)


def loss_terms(name: str, gradient: float, found: Tensor, batch: Batch) -> Tensor:
    """Return a term of the loss for each graph of a batch, `gradient` times the error of differences added."""
    terms = LOSSES[name][0](found, batch)
    return terms + gradient * differences(found, batch) if gradient else terms
