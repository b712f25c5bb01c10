"""Captured: the passes of a training step as one CUDA graph, for steps of more kernels than Python can launch in time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from gkn.graph.batches import Batch
from gkn.graph.graph import Graph

WARM = 3  # passes before the recording: what is compiled or worked out once must not happen during it
ROOM = 1.25  # edges of batches to come, for each of the first


class Captured:
    """batch -> what `passes` gives, and the gradients it leaves in the parameters, for batches of graphs as large as the first.

    Recorded once and then replayed: the same kernels on the same memory, so that batches are copied into that of the first, and
    results are overwritten by the next. Batches that are not `fixed` have other edges every time: there is room for some more
    than the first has, and the passes must not ask how many there are.
    """

    def __init__(self, passes: Callable[[Batch], Tensor], batch: Batch, parameters: Sequence[nn.Parameter]) -> None:
        own = {name: value.clone() for name, value in _changing(batch).items()}
        self.batch = replace(batch, **own, graph=batch.graph if batch.fixed else roomy(batch.graph, ROOM))
        self.parameters = parameters
        side = torch.cuda.Stream(batch.x.device)
        side.wait_stream(torch.cuda.current_stream(batch.x.device))
        with torch.cuda.stream(side):
            for _ in range(WARM):
                self._forget()
                passes(self.batch)
        torch.cuda.current_stream(batch.x.device).wait_stream(side)
        self._forget()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.found = passes(self.batch)
        self.gradients = [each.grad for each in parameters]
        self._forget()

    def has_room(self, batch: Batch) -> bool:
        return batch.fixed or batch.graph.num_edges <= self.batch.graph.num_edges

    def __call__(self, batch: Batch) -> Tensor:
        for name, value in _changing(batch).items():
            getattr(self.batch, name).copy_(value)
        if not batch.fixed:
            refill(self.batch.graph, batch.graph)
        self.graph.replay()
        for parameter, gradient in zip(self.parameters, self.gradients, strict=True):
            parameter.grad = gradient
        return self.found

    def _forget(self) -> None:
        for each in self.parameters:
            each.grad = None


def _changing(batch: Batch) -> dict[str, Any]:
    """What changes from one batch to the next."""
    names = ("x", "a", "u") if batch.fixed else ("x", "a", "u", "mean", "std", "weights")
    return {name: getattr(batch, name) for name in names if getattr(batch, name) is not None}


def roomy(graph: Graph, room: float) -> Graph:
    """A copy with room for more edges, which can be refilled. Edges that are not there are from node 0 to node 0, and in no
    target's range: for who goes by ranges they do not exist, and for who goes through all, no such edge has a length."""
    spare = graph.src.new_zeros(int(graph.num_edges * (room - 1)) + 1)

    def larger(given: Graph) -> Graph:
        return Graph.trusted(given.ptr.clone(), torch.cat([given.src, spare]), given.num_sources)

    found = larger(graph).cut(graph.cuts)
    found.__dict__.update(reverse=larger(graph.reverse), targets=torch.cat([graph.targets, spare]))
    return found


def refill(graph: Graph, other: Graph) -> None:
    """The edges of another graph of as many nodes, in the memory of this one."""
    for own, new in ((graph, other), (graph.reverse, other.reverse)):
        own.ptr.copy_(new.ptr)
        _into(own.src, new.src)
    _into(graph.targets, other.targets)


def _into(place: Tensor, values: Tensor) -> None:
    place[: len(values)].copy_(values)
    place[len(values) :].zero_()
