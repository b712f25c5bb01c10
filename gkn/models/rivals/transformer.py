"""A plain transformer: every point attends to every point. Mesh-free, and its time grows as the square of the points."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Transformer(nn.Module):
    """Blocks of softmax attention and a network at every point, each added to what was there, as in `NearFar`, and as wide.

    dim, in_channels, out_channels   of the points, fields of a and of u
    width                            components of v
    blocks                           how many
    head                             components of a head; width / head of them
    """

    def __init__(
        self, dim: int, in_channels: int = 1, out_channels: int = 1, width: int = 128, blocks: int = 8, head: int = 16
    ) -> None:
        super().__init__()
        if width % head:
            raise ValueError(f"Transformer(width={width}, head={head}): needed heads of equal size")
        self.P, self.lift = nn.Linear(dim + in_channels, 2 * width), nn.Linear(2 * width, width)
        self.blocks = nn.ModuleList(_Attention(width, head) for _ in range(blocks))
        self.norm, self.Q = nn.LayerNorm(width), nn.Linear(width, out_channels)

    def forward(self, x: Tensor, a: Tensor) -> Tensor:
        """(n, K, d), (n, K, in_channels) -> (n, K, out_channels)"""
        v = self.lift(nn.functional.gelu(self.P(torch.cat([x, a], -1))))
        for block in self.blocks:
            v = block(v)
        found: Tensor = self.Q(self.norm(v))
        return found


class _Attention(nn.Module):
    def __init__(self, width: int, head: int) -> None:
        super().__init__()
        self.head, self.norm, self.norm_after = head, nn.LayerNorm(width), nn.LayerNorm(width)
        self.three, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, v: Tensor) -> Tensor:
        q, k, z = (each.unflatten(-1, (-1, self.head)).transpose(1, 2) for each in self.three(self.norm(v)).chunk(3, -1))
        v = v + self.out(nn.functional.scaled_dot_product_attention(q, k, z).transpose(1, 2).flatten(2))
        found: Tensor = v + self.down(nn.functional.gelu(self.up(self.norm_after(v))))
        return found
