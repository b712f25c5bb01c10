"""The dense network of the paper's figure 3: all values in, all values out."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from gkn.models.rivals.pointwise import feed_forward


class Dense(nn.Module):
    """A feed-forward network from the K values of f to the K values of u. It has to learn where the points are."""

    def __init__(self, points: int, hidden: Sequence[int] = (512, 512)) -> None:
        super().__init__()
        self.layers = feed_forward([points, *hidden, points], nn.ReLU)

    def forward(self, f: Tensor) -> Tensor:
        """(n, K) -> (n, K)"""
        out: Tensor = self.layers(f)
        return out
