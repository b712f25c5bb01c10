"""Captured: the passes of a training step as one CUDA graph, for steps of more kernels than Python can launch in time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from gkn.batches import Batch

WARM = 3  # passes before the recording: what is compiled or worked out once must not happen during it


class Captured:
    """batch -> what `passes` gives, and the gradients it leaves in the parameters, for batches that share graph and weights.

    Recorded once and then replayed: the same kernels on the same memory, so that batches are copied into that of the first, and
    results are overwritten by the next.
    """

    def __init__(self, passes: Callable[[Batch], Tensor], batch: Batch, parameters: Sequence[nn.Parameter]) -> None:
        self.batch = replace(batch, **{name: getattr(batch, name).clone() for name in "xau"})
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

    def __call__(self, batch: Batch) -> Tensor:
        for name in "xau":
            getattr(self.batch, name).copy_(getattr(batch, name))
        self.graph.replay()
        for parameter, gradient in zip(self.parameters, self.gradients, strict=True):
            parameter.grad = gradient
        return self.found

    def _forget(self) -> None:
        for each in self.parameters:
            each.grad = None
