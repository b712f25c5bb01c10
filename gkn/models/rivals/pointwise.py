"""The baseline without neighbours: u(x) is a function of x and a(x), the same at every point."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn


class Pointwise(nn.Module):
    """A feed-forward network from (x, a(x)) to u(x). Mesh-free, and blind to everything but the point itself."""

    def __init__(self, dim: int, in_channels: int = 1, out_channels: int = 1, hidden: Sequence[int] = (128, 128, 128)) -> None:
        super().__init__()
        self.dim, self.in_channels, self.out_channels = dim, in_channels, out_channels
        self.layers = feed_forward([dim + in_channels, *hidden, out_channels], nn.ReLU)

    def forward(self, x: Tensor, a: Tensor) -> Tensor:
        """(..., K, d), (..., K, in_channels) -> (..., K, out_channels)"""
        out: Tensor = self.layers(torch.cat([x, a], -1))
        return out


def feed_forward(sizes: Sequence[int], sigma: type[nn.Module]) -> nn.Sequential:
    """Linear layers of these sizes, sigma between them."""
    layers: list[nn.Module] = []
    for before, after in pairwise(sizes):
        layers += [nn.Linear(before, after), sigma()]
    return nn.Sequential(*layers[:-1])
