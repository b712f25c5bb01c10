"""Prefetching: the batches of a training run in their order, made before they are needed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext

import torch

from gkn.graph.batches import Batch, Batches
from gkn.system.randomness import stream
from gkn.train.recipe import Recipe

Wanted = tuple[int, Batches, list[list[int]], bool]
"""Batches that are made together: the epoch, where they come from, the graphs of each, and whether states before are needed."""


class Prefetcher:
    """The batches one rank learns from.

    sources       one for each dataset
    recipe        its batch size, epochs, and the seed that decides the order
    rank, world   each rank gets its share of every batch
    """

    def __init__(self, sources: Sequence[Batches], recipe: Recipe, rank: int, world: int, device: torch.device) -> None:
        self.sources, self.recipe, self.rank, self.world, self.device = sources, recipe, rank, world, device

    @property
    def steps(self) -> int:
        """Number of steps of an epoch."""
        return sum(self.recipe.steps(len(each)) for each in self.sources)

    def batches(self, epoch: int, place: int) -> Iterator[tuple[Batch | None, int]]:
        """Yield this rank's share of each batch from that place to the end of the run, or None; and the size of the batch.

        On a GPU batches are made on a stream of their own, several at once, while earlier steps are computed, across the ends
        of epochs too. That stream reads nothing but the data, which existed before it, and what it made itself.
        """
        side = None
        if self.device.type == "cuda":
            side = torch.cuda.Stream(self.device)
            side.wait_stream(torch.cuda.current_stream(self.device))
        wanted = self._wanted(epoch, place)
        ready, following = self._make(next(wanted, None), side), None
        while ready is not None:
            if side is not None:
                torch.cuda.current_stream(self.device).wait_stream(side)
            for i, (batch, graphs) in enumerate(ready):
                if batch is not None and side is not None:
                    batch.used_by(torch.cuda.current_stream(self.device))
                yield batch, graphs
                if i == 0:
                    following = self._make(next(wanted, None), side)
            ready = following

    def _plan(self, epoch: int) -> list[tuple[Batches, list[int]]]:
        """Return the batches of an epoch: every graph once, or `per_epoch` of them, in an order given by seed and epoch."""
        rng = stream(self.recipe.seed, epoch, 3)
        plan = []
        for each in self.sources:
            order = torch.randperm(len(each), generator=rng)[: self.recipe.counted(len(each))]
            plan += [(each, part.tolist()) for part in order.split(self.recipe.batch)]
        return [plan[i] for i in torch.randperm(len(plan), generator=rng).tolist()] if len(self.sources) > 1 else plan

    def _wanted(self, first: int, place: int) -> Iterator[Wanted]:
        unroll_from = round((1 - (self.recipe.unroll or 0.0)) * self.recipe.epochs * self.steps)
        for epoch in range(first, self.recipe.epochs):
            plan, place = self._plan(epoch)[place:], 0
            while plan:
                source, graphs = plan[0]
                step = (epoch + 1) * self.steps - len(plan)
                alike = next((i for i, (other, _) in enumerate(plan) if other is not source), len(plan))
                count = min(alike, source.at_once(len(graphs)), unroll_from - step if step < unroll_from else alike)
                yield epoch, source, [part for _, part in plan[:count]], step >= unroll_from
                plan = plan[count:]

    def _make(self, wanted: Wanted | None, side: torch.cuda.Stream | None) -> list[tuple[Batch | None, int]] | None:
        if wanted is None:
            return None
        epoch, source, parts, leading = wanted
        shares = [part[self.rank :: self.world] for part in parts]
        with nullcontext() if side is None else torch.cuda.stream(side):
            source.draw(self.recipe.seed, epoch if self.recipe.fresh else 0)
            source.leading = leading and source.lead is not None
            made = iter(source.several([share for share in shares if share]))
        return [(next(made) if share else None, len(part)) for share, part in zip(shares, parts, strict=True)]
