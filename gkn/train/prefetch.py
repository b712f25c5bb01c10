"""The batches of a training run, in their order, made before they are asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext

import torch

from gkn.graph.batches import Batch, Batches
from gkn.system.randomness import stream
from gkn.train.recipe import Recipe

Few = tuple[int, Batches, list[list[int]]]
"""Batches that are made together: the epoch, where they come from, and their graphs."""


class Ahead:
    """What one rank of a run learns from.

    sources       one for each dataset
    recipe        says how large a batch is, and how many epochs there are; its seed, in which order they come
    rank, world   each rank has its share of every batch
    """

    def __init__(self, sources: Sequence[Batches], recipe: Recipe, rank: int, world: int, device: torch.device) -> None:
        self.sources, self.recipe, self.rank, self.world, self.device = sources, recipe, rank, world, device

    @property
    def steps(self) -> int:
        """Of an epoch."""
        return sum(-(-len(each) // self.recipe.batch) for each in self.sources)

    def batches(self, epoch: int, place: int) -> Iterator[tuple[Batch | None, int]]:
        """This rank's share of each batch from that place to the end of the run, or None; and how many graphs the whole batch
        has.

        On a GPU they are made on a stream of their own, several at once, while the steps before them are computed, across the
        ends of epochs, too. That stream reads nothing but the data, which were there before it, and what it made itself.
        """
        side = None
        if self.device.type == "cuda":
            side = torch.cuda.Stream(self.device)
            side.wait_stream(torch.cuda.current_stream(self.device))
        few = self._few(epoch, place)
        ready, following = self._made(next(few, None), side), None
        while ready is not None:
            if side is not None:
                torch.cuda.current_stream(self.device).wait_stream(side)
            for i, (batch, graphs) in enumerate(ready):
                if batch is not None and side is not None:
                    batch.used_by(torch.cuda.current_stream(self.device))
                yield batch, graphs
                if i == 0:
                    following = self._made(next(few, None), side)
            ready = following

    def _plan(self, epoch: int) -> list[tuple[Batches, list[int]]]:
        """The batches of an epoch: every graph once, in an order that depends on seed and epoch alone."""
        rng = stream(self.recipe.seed, epoch, 3)
        plan = []
        for each in self.sources:
            order = torch.randperm(len(each), generator=rng)
            plan += [(each, part.tolist()) for part in order.split(self.recipe.batch)]
        return [plan[i] for i in torch.randperm(len(plan), generator=rng).tolist()] if len(self.sources) > 1 else plan

    def _few(self, first: int, place: int) -> Iterator[Few]:
        for epoch in range(first, self.recipe.epochs):
            plan, place = self._plan(epoch)[place:], 0
            while plan:
                source, graphs = plan[0]
                alike = next((i for i, (other, _) in enumerate(plan) if other is not source), len(plan))
                some = min(alike, source.at_once(len(graphs)))
                yield epoch, source, [part for _, part in plan[:some]]
                plan = plan[some:]

    def _made(self, wanted: Few | None, side: torch.cuda.Stream | None) -> list[tuple[Batch | None, int]] | None:
        if wanted is None:
            return None
        epoch, source, parts = wanted
        mine = [part[self.rank :: self.world] for part in parts]
        with nullcontext() if side is None else torch.cuda.stream(side):
            source.draw(self.recipe.seed, epoch if self.recipe.fresh else 0)
            made = iter(source.several([part for part in mine if part]))
        return [(next(made) if own else None, len(part)) for own, part in zip(mine, parts, strict=True)]
