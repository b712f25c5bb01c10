"""A softmax transformer: every point attends to every point. Its cost grows with the square of the number of points."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from gkn.data.dataset import Dataset
from gkn.graph.graph import Graph
from gkn.models.model import Defaults, Model, Progress, check_sizes
from gkn.models.nearfar import NearFar
from gkn.ops import full_precision
from gkn.ops.dense import Linear


class Transformer(Model):
    """Blocks of softmax attention and a point-wise network, each added to the state, with the width of `NearFar`.

    width    components of v
    blocks   number of blocks
    head     components of a head; there are width / head heads
    """

    settings: ClassVar[tuple[str, ...]] = ("width", "blocks", "head")
    at_queries = True
    fills = True

    def __init__(
        self, dim: int, in_channels: int = 1, out_channels: int = 1, width: int = 128, blocks: int = 8, head: int = 16
    ) -> None:
        super().__init__(dim, in_channels, out_channels)
        check_sizes(type(self).__name__, dim=dim, in_channels=in_channels, width=width, blocks=blocks, head=head)
        if width % head:
            raise ValueError(f"{type(self).__name__}(width={width}, head={head}): needed heads of equal size")
        self.width, self.head = width, head
        self.P, self.lift = Linear(dim + in_channels, 2 * width), Linear(2 * width, width)
        self.layers = nn.ModuleList(self._block() for _ in range(blocks))
        self.norm, self.Q = nn.LayerNorm(width), Linear(width, out_channels)

    def _block(self) -> nn.Module:
        return Attention(self.width, self.head)

    @property
    def blocks(self) -> int:
        return len(self.layers)

    @classmethod
    def defaults(cls, dataset: Dataset, recipe: str | None = None) -> Defaults:
        """Suggest what `NearFar` suggests: the same data, features, loss and number of steps."""
        same = NearFar.defaults(dataset, recipe)
        return replace(same, settings={})

    def recordable(self, fixed: bool, dtype: torch.dtype | None) -> bool:
        return True  # nothing depends on the number of edges

    def forward(self, graph: Graph, x: Tensor, a: Tensor, weights: Tensor | None = None) -> Tensor:
        return self.finish(self.states(graph, x, a, weights))

    def states(
        self, graph: Graph, x: Tensor, a: Tensor, weights: Tensor | None = None, progress: Progress | None = None
    ) -> list[Tensor]:
        """Return v before every block, and after the last."""
        x, a = self._ready(graph, x, a)
        sizes = graph.sizes
        states = [self._lifted(x, a)]
        for done, block in enumerate(self.layers, start=1):
            states.append(block(states[-1], states[-1], sizes, sizes, graph.present))
            if progress is not None:
                progress(done, self.blocks)
        return states

    def at(
        self,
        states: Sequence[Tensor],
        graph: Graph,
        queries: tuple[Tensor, Tensor],
        nodes: tuple[Tensor, Tensor],
        weights: Tensor | None = None,
    ) -> Tensor:
        v = self._lifted(*self._ready(None, *queries))
        for block, state in zip(self.layers, states, strict=False):
            v = block(v, state, [len(v)], [len(state)])
        return self._project(v)

    def finish(self, states: Sequence[Tensor]) -> Tensor:
        return self._project(states[-1])

    def _lifted(self, x: Tensor, a: Tensor) -> Tensor:
        v: Tensor = self.lift(nn.functional.gelu(self.P(torch.cat([x, a], 1))))
        return v.to(x.dtype)

    def _project(self, v: Tensor) -> Tensor:
        with full_precision(v):
            u: Tensor = self.Q(self.norm(v))
        return u


class Attention(nn.Module):
    """v + attention of v to the nodes, then v + network(v)."""

    def __init__(self, width: int, head: int) -> None:
        super().__init__()
        self.head, self.norm, self.norm_after = head, nn.LayerNorm(width), nn.LayerNorm(width)
        self.three, self.out = Linear(width, 3 * width), Linear(width, width)
        self.up, self.down = Linear(width, 2 * width), Linear(2 * width, width)

    def forward(
        self, v: Tensor, nodes: Tensor, sizes: Sequence[int], node_sizes: Sequence[int], present: Tensor | None = None
    ) -> Tensor:
        """Update v (K, width) of all functions of a batch, given the values of their nodes and which of them are present."""
        query, key, value = self.three(self.norm(v)).chunk(3, -1)
        if nodes is not v:
            _, key, value = self.three(self.norm(nodes)).chunk(3, -1)
        v = v + self.out(self._mixed((query, key, value), sizes, node_sizes, present))
        out: Tensor = v + self.down(nn.functional.gelu(self.up(self.norm_after(v))))
        return out

    def _mixed(
        self,
        three: tuple[Tensor, Tensor, Tensor],
        sizes: Sequence[int],
        node_sizes: Sequence[int],
        present: Tensor | None,
    ) -> Tensor:
        if len({*sizes}) == 1 and len({*node_sizes}) == 1:
            mask = None if present is None else present.reshape(len(sizes), 1, 1, -1)
            query, key, value = (x.unflatten(0, (len(sizes), -1)) for x in three)
            return self._attend(query, key, value, mask).flatten(0, 1)
        query, key, value = three
        masks = [None] * len(sizes) if present is None else [each[None, None, None] for each in present.split([*node_sizes])]
        parts = zip(query.split([*sizes]), key.split([*node_sizes]), value.split([*node_sizes]), masks, strict=True)
        return torch.cat([self._attend(q[None], k[None], z[None], mask)[0] for q, k, z, mask in parts])

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, z = (each.unflatten(-1, (-1, self.head)).transpose(1, 2) for each in (query, key, value))
        return nn.functional.scaled_dot_product_attention(q, k, z, mask).transpose(1, 2).flatten(2)
