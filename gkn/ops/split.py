"""Split: one function whose points are distributed over several processes. Sums and the values of neighbours are exchanged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from gkn.graph.neighbors import radius_graph


class Split:
    """The points of this process, and those borrowed from other processes: all within `r` of its bounding box.

    Each process constructs a Split from its own points, at the same time, under `torch.distributed`. Compact parts borrow few
    points; see `parts`.

        graph       these points <- these points and the borrowed ones
        borrowed    how many those are

    Derivatives go through both `sum` and `lend`: gradients are those of the sum of the losses of all processes.
    """

    def __init__(self, x: Tensor, r: float) -> None:
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        if not len(x):
            raise ValueError(f"Split: process {self.rank} has no points; needed some in each")
        points = x.double()
        boxes = [torch.zeros(2, x.shape[1], dtype=torch.float64, device=x.device) for _ in range(self.world)]
        dist.all_gather(boxes, torch.stack([points.amin(0), points.amax(0)]))
        wide = r * (1 + 1e-6)
        self.lent = [self._near(points, box, wide) for box in boxes]
        self.lent[self.rank] = self.lent[self.rank][:0]
        counts = [torch.zeros(self.world, dtype=torch.long, device=x.device) for _ in range(self.world)]
        dist.all_gather(counts, torch.tensor([len(each) for each in self.lent], device=x.device))
        self.sizes = [int(each[self.rank]) for each in counts]
        self.borrowed = sum(self.sizes)
        self.graph = radius_graph(self.lend(x), x, r)

    @staticmethod
    def _near(x: Tensor, box: Tensor, r: float) -> Tensor:
        outside = torch.maximum(box[0] - x, x - box[1]).clamp_min(0)
        return (outside.square().sum(1) <= r * r).nonzero()[:, 0]

    def lend(self, v: Tensor) -> Tensor:
        """Return values of own and borrowed points: (own, c) -> (own + borrowed, c)."""
        out: Tensor = _Lend.apply(v, self)  # type: ignore[no-untyped-call]
        return out

    @staticmethod
    def sum(v: Tensor) -> Tensor:
        """Return the sum of a tensor over all processes."""
        out: Tensor = _Sum.apply(v)  # type: ignore[no-untyped-call]
        return out

    def exchange(self, sent: Sequence[Tensor], sizes: Sequence[int]) -> list[Tensor]:
        """Send a tensor to each other process and receive one from each, with these numbers of rows."""
        like = sent[self.rank]
        received = [like.new_empty((size, *like.shape[1:])) for size in sizes]
        calls = []
        for other in range(self.world):
            if other != self.rank and len(sent[other]):
                calls.append(dist.P2POp(dist.isend, sent[other].contiguous(), other))
            if other != self.rank and sizes[other]:
                calls.append(dist.P2POp(dist.irecv, received[other], other))
        for request in dist.batch_isend_irecv(calls) if calls else []:
            request.wait()
        return received


class _Lend(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, v: Tensor, split: Split) -> Tensor:
        ctx.split, ctx.count = split, len(v)
        return torch.cat([v, *split.exchange([v[each] for each in split.lent], split.sizes)])

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor, None]:
        split: Split = ctx.split
        local, borrowed = d[: ctx.count].clone(), d[ctx.count :].split(split.sizes)
        back = split.exchange(borrowed, [len(each) for each in split.lent])
        for which, part in zip(split.lent, back, strict=True):
            local.index_add_(0, which, part)
        return local, None


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, v: Tensor) -> Tensor:
        whole = v.clone()
        dist.all_reduce(whole)
        return whole

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> Tensor:
        whole = d.clone()
        dist.all_reduce(whole)
        return whole


def parts(x: Tensor, count: int) -> list[Tensor]:
    """Divide points into compact parts of equal size: boxes are cut in two again and again along their longest side."""
    if count < 1 or count > len(x):
        raise ValueError(f"parts of {len(x)} points: {count} of them; needed 1 to {len(x)}")

    def cut(which: Tensor, count: int) -> list[Tensor]:
        if count == 1:
            return [which]
        some = x[which]
        axis = int((some.amax(0) - some.amin(0)).argmax())
        order = which[torch.argsort(some[:, axis], stable=True)]
        left = count // 2
        middle = len(order) * left // count
        return cut(order[:middle], left) + cut(order[middle:], count - left)

    return cut(torch.arange(len(x), device=x.device), count)
