"""CUDA graphs: the passes of a training step, recorded once and replayed. Python cannot launch thousands of kernels in time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from gkn.graph.batches import Batch

WARM = 3  # passes before the recording: compilation and cached values must not happen during it
SPARE = 1.25  # memory for the edges of later batches, relative to the first


class Captured:
    """The recorded passes: batch -> what `passes` returns, with the gradients it leaves in the parameters.

    Batches must have graphs as large as the first. The same kernels run on the same memory every time: batches are copied into
    that of the first, and results are overwritten by the next call. Batches that are not `fixed` have other edges every time:
    there is memory for some more than the first has, and the passes must not depend on their number.
    """

    def __init__(self, passes: Callable[[Batch], Tensor], batch: Batch, parameters: Sequence[nn.Parameter]) -> None:
        copies = {name: value.clone() for name, value in _changing(batch).items()}
        self.batch = replace(batch, **copies, graph=batch.graph if batch.fixed else batch.graph.with_spare_memory(SPARE))
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
            self.result = passes(self.batch)
        self.gradients = [each.grad for each in parameters]
        self._forget()

    def fits(self, batch: Batch) -> bool:
        """True if the edges of the batch fit into the memory of the recording."""
        return batch.fixed or batch.graph.num_edges <= self.batch.graph.num_edges

    def __call__(self, batch: Batch) -> Tensor:
        for name, value in _changing(batch).items():
            getattr(self.batch, name).copy_(value)
        if not batch.fixed:
            self.batch.graph.refill(batch.graph)
        self.graph.replay()
        for parameter, gradient in zip(self.parameters, self.gradients, strict=True):
            parameter.grad = gradient
        return self.result

    def _forget(self) -> None:
        for each in self.parameters:
            each.grad = None


def _changing(batch: Batch) -> dict[str, Any]:
    """Return the tensors that change from one batch to the next."""
    names = ("x", "a", "deviation", "counted", "profile", *(() if batch.fixed else ("std", "weights")))
    return {name: getattr(batch, name) for name in names if getattr(batch, name) is not None}
