"""The baseline without neighbours: u(x) is a function of x and a(x), the same at every point."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from gkn.data.dataset import Dataset
from gkn.graph.graph import Graph
from gkn.models.model import Defaults, Model


class Pointwise(Model):
    """A feed-forward network from (x, a(x)) to u(x). It takes any points, and sees nothing but the point itself.

    hidden   sizes of the hidden layers
    """

    settings = ("hidden",)
    at_queries = True

    def __init__(self, dim: int, in_channels: int = 1, out_channels: int = 1, hidden: Sequence[int] = (128, 128, 128)) -> None:
        super().__init__(dim, in_channels, out_channels)
        self.hidden = tuple(hidden)
        self.layers = feed_forward([dim + in_channels, *hidden, out_channels], nn.ReLU)

    @classmethod
    def defaults(cls, dataset: Dataset, recipe: str | None = None) -> Defaults:
        """Suggest 8192 points per function and step: neighbours do not matter, so any points will do."""
        rule = {"kind": "Points", "m": min(2**13, len(dataset[0].domain)), "l": 1}
        return Defaults({}, rule, "ours", {"epochs": 10, "batch": 8, "lr": 3e-3, "warm": 0.2, "clip": None})

    def forward(self, graph: Graph, x: Tensor, a: Tensor, weights: Tensor | None = None) -> Tensor:
        out: Tensor = self.layers(torch.cat(self._ready(None, x, a), -1))
        return out

    def at(
        self,
        states: Sequence[Tensor],
        graph: Graph,
        queries: tuple[Tensor, Tensor],
        nodes: tuple[Tensor, Tensor],
        weights: Tensor | None = None,
    ) -> Tensor:
        return self.forward(graph, *queries)


def feed_forward(sizes: Sequence[int], sigma: type[nn.Module]) -> nn.Sequential:
    """Return linear layers of these sizes with sigma between them."""
    layers: list[nn.Module] = []
    for before, after in pairwise(sizes):
        layers += [nn.Linear(before, after), sigma()]
    return nn.Sequential(*layers[:-1])
