"""What a training run looks at after every step, and what it says when it has to stop."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gkn.data.dataset import BadNumbers


class Watch:
    """Sees to it that a run stops within a step of the first number that is not finite.

    On a GPU the numbers of a step are looked at during the next one, so that nobody waits for them.

        names      of the parameters that learn
        outputs    of the fields that are learned
        world      how many ranks look
        relative   the loss is a relative one
        kept       there are checkpoints
    """

    def __init__(self, names: Sequence[str], outputs: str, world: int, relative: bool) -> None:
        self.names, self.outputs, self.world, self.relative, self.kept = names, outputs, world, relative, False
        self.loss, self.told = math.nan, False
        self._waiting: tuple[Tensor, torch.cuda.Event | None, tuple[int, ...], int] | None = None

    def see(self, step: int, loss: Tensor, told: Tensor, norms: Tensor, terms: Tensor, samples: tuple[int, ...]) -> None:
        """Of a step: the loss, how many ranks were told to stop, the norm of each parameter's gradient, and a term of the loss
        for each of this rank's graphs."""
        self.look()
        numbers = torch.cat([torch.stack([loss, told]).double(), norms.double(), terms.double()])
        event = None
        if numbers.is_cuda:
            numbers = numbers.to("cpu", non_blocking=True)
            event = torch.cuda.Event()
            event.record()
        self._waiting = (numbers, event, samples, step)
        if event is None:
            self.look()

    def good(self) -> bool:
        """Are the numbers of the last step finite? Asked by one rank, and so without a word to the others."""
        if self._waiting is None:
            return True
        numbers, event, _, _ = self._waiting
        if event is not None:
            event.synchronize()
        return bool(torch.isfinite(numbers[: len(self.names) + 2]).all())

    def look(self) -> None:
        """Stop if the numbers of the last step are bad. All ranks look at the same moments."""
        if self._waiting is None:
            return
        numbers, event, samples, step = self._waiting
        self._waiting = None
        if event is not None:
            event.synchronize()
        count = len(self.names) + 2
        self.loss, self.told = float(numbers[0]), bool(numbers[1])
        if torch.isfinite(numbers[:count]).all():
            return
        raise BadNumbers(self._said(numbers, samples, step, count))

    def _said(self, numbers: Tensor, samples: tuple[int, ...], step: int, count: int) -> str:
        bad = sorted({s for s, ok in zip(samples, torch.isfinite(numbers[count:]).tolist(), strict=True) if not ok})
        gradients = [name for name, ok in zip(self.names, torch.isfinite(numbers[2:count]).tolist(), strict=True) if not ok]
        told: list[Any] = [(bad, [*samples])]
        if self.world > 1:  # all ranks are here: the loss and the gradients are the same on all
            told = [None] * self.world
            torch.distributed.all_gather_object(told, (bad, [*samples]))
        bad = sorted({s for some, _ in told for s in some})
        everyone = sorted({s for _, some in told for s in some})
        if bad:
            what = f"the loss of sample {', '.join(map(str, bad))} (field {self.outputs}) is not finite"
        elif not math.isfinite(float(numbers[0])):
            what = f"the loss (field {self.outputs}) of samples {', '.join(map(str, everyone))} together is not finite"
        else:
            what = f"the gradient of {', '.join(gradients)} is not finite, for samples {', '.join(map(str, everyone))}"
        kept = "; the last good checkpoint is kept" if self.kept else ""
        zero = f"If {self.outputs} is 0 on all nodes of a graph, it has no relative error: take more nodes, or --set loss=mse. "
        hint = zero if bad and self.relative else ""
        return f"step {step}: {what}{kept}. {hint}Else try a smaller --lr, --set clip=1, or --precision fp32"
