"""Slice attention: points belong to slices, and the slices attend to each other. The idea of Transolver (Wu et al. 2024)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from gkn.models.nearfar import RMS_EPSILON
from gkn.models.rivals.transformer import Transformer
from gkn.ops import autocast
from gkn.ops.dense import Linear
from gkn.ops.points import EMPTY, gather, memberships_of, shares_of, spread


class SliceAttention(Transformer):
    """Blocks in which every point sends to and receives from a few slices. Cost is linear in the number of points.

    Unlike in `NearFar` all points of a function count the same, whatever their density, and there is no near field.

        width    components of v
        blocks   number of blocks
        head     components of a head; there are width / head heads
        slices   number of slices of each head
    """

    settings = ("width", "blocks", "head", "slices")

    def __init__(
        self,
        dim: int,
        in_channels: int = 1,
        out_channels: int = 1,
        width: int = 128,
        blocks: int = 8,
        head: int = 16,
        slices: int = 64,
    ) -> None:
        self.slices = slices  # `_block` needs it
        super().__init__(dim, in_channels, out_channels, width, blocks, head)

    def _block(self) -> nn.Module:
        return SliceBlock(self.width, self.head, self.slices)


class SliceBlock(nn.Module):
    """v + the outputs of the slices, then v + network(v)."""

    def __init__(self, width: int, head: int, slices: int) -> None:
        super().__init__()
        self.heads, self.head, self.slices = width // head, head, slices
        self.norm, self.norm_after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.slice, self.value = Linear(width, self.heads * slices), Linear(width, width)
        self.temperature = nn.Parameter(torch.ones(self.heads, 1))
        self.query, self.key, self.answer = (Linear(head, head, bias=False) for _ in range(3))
        self.out = Linear(width, width)
        self.up, self.down = Linear(width, 2 * width), Linear(2 * width, width)

    def forward(
        self, v: Tensor, nodes: Tensor, sizes: Sequence[int], node_sizes: Sequence[int], present: Tensor | None = None
    ) -> Tensor:
        """Update v (K, width) of all functions of a batch, given the values of their nodes and which of them are present."""
        normed = self.norm(nodes)
        (normed,) = autocast(normed)
        cuts = [0, *torch.tensor([*node_sizes]).cumsum(0).tolist()]
        share = shares_of(present, normed, cuts, None)
        sums, mass, p = gather(self._memberships, normed, share, cuts)
        if p is None or nodes is not v:
            p = self._memberships(*autocast(self.norm(v)))
        v = v + spread(p, self._answers(sums, mass).to(p.dtype), sizes)
        out: Tensor = v + self.down(nn.functional.gelu(self.up(self.norm_after(v))))
        return out

    def _memberships(self, v: Tensor) -> Tensor:
        scores = self.slice(v).unflatten(1, (self.heads, self.slices)) / self.temperature.clamp(0.1, 5).to(v.dtype)
        return memberships_of(scores.flatten(1), self.heads)

    def _answers(self, sums: Tensor, mass: Tensor) -> Tensor:
        """Let the means over slices attend to each other: (functions, heads * slices, width).

        `out` is linear, so it is applied to the slices and not at every point.
        """
        means = (sums / (mass + EMPTY)).unflatten(1, (self.heads, self.slices))  # (functions, heads, slices, width)
        weight = self.value.weight.unflatten(0, (self.heads, self.head))
        t = torch.einsum("ghsw,hdw->ghsd", *autocast(means, weight)) + self.value.bias.unflatten(0, (self.heads, 1, self.head))
        query, key = (nn.functional.rms_norm(x, (self.head,), eps=RMS_EPSILON) for x in (self.query(t), self.key(t)))
        mixed = nn.functional.scaled_dot_product_attention(query, key, self.answer(t))
        to_width = self.out.weight.unflatten(1, (self.heads, self.head))
        answers = torch.einsum("ghsd,whd->ghsw", *autocast(mixed, to_width)) + self.out.bias / self.heads
        return answers.flatten(1, 2)
