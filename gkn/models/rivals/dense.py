"""The dense network of the paper's figure 3: all values in, all values out."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from gkn.data.dataset import Dataset
from gkn.graph.graph import Graph
from gkn.models.model import Defaults, Model, check_sizes
from gkn.models.rivals.pointwise import feed_forward


class Dense(Model):
    """A feed-forward network from the values of a on K fixed points to those of u. It does not see where the points are.

    points   K
    hidden   sizes of the hidden layers
    """

    settings = ("points", "hidden")

    def __init__(
        self, dim: int, in_channels: int = 1, out_channels: int = 1, points: int = 1, hidden: Sequence[int] = (512, 512)
    ) -> None:
        super().__init__(dim, in_channels, out_channels)
        check_sizes("Dense", points=points)
        self.points, self.hidden = points, tuple(hidden)
        self.layers = feed_forward([points * in_channels, *hidden, points * out_channels], nn.ReLU)

    @classmethod
    def defaults(cls, dataset: Dataset, recipe: str | None = None) -> Defaults:
        changes = {"epochs": 1000, "lr": 1e-3, "warm": 0.2, "clip": None}
        return Defaults({"points": len(dataset.domain)}, {"kind": "Points"}, "ours", changes)

    def forward(self, graph: Graph, x: Tensor, a: Tensor, weights: Tensor | None = None) -> Tensor:
        x, a = self._ready(graph, x, a)
        check_points(self, graph, self.points)
        out: Tensor = self.layers(a.reshape(-1, self.points * self.in_channels))
        return out.reshape(len(a), self.out_channels)


def check_points(model: Model, graph: Graph, points: int) -> None:
    """Raise an error unless every function of a batch has as many points as the model was fitted on."""
    sizes = {b - a for a, b in zip(graph.cuts[:-1], graph.cuts[1:], strict=True)}
    if sizes != {points}:
        raise ValueError(
            f"{type(model).__name__} answers only on the {points} points it was fitted on; given {sorted(sizes)}. Fit it again "
            f"on these points, or use NearFar, which takes any points"
        )
