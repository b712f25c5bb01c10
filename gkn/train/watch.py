"""The watch: stops a training run within a step of the first number that is not finite."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gkn.data.dataset import Dataset
from gkn.data.sample import BadNumbers

SPAN = 1e-15
"""Ratio of the smallest to the largest sample that single precision can hold with their squares."""


class Watch:
    """Checks the numbers of every step. On a GPU they are checked during the next step, so that nothing waits for them.

    names      of the parameters that learn
    outputs    of the fields that are learned
    world      number of ranks
    relative   the loss is a relative one
    datasets   what is learned from, to name samples without a relative error
    """

    def __init__(
        self, names: Sequence[str], outputs: str, world: int, relative: bool, datasets: Sequence[Dataset] = ()
    ) -> None:
        self.names, self.outputs, self.world, self.relative, self.datasets = names, outputs, world, relative, datasets
        self.loss, self.stopping = math.nan, False
        self._waiting: tuple[Tensor, torch.cuda.Event | None, tuple[int, ...], int] | None = None
        self._has_checkpoints = False

    def keep_checkpoints(self) -> None:
        """Mention in error messages that there is a checkpoint."""
        self._has_checkpoints = True

    def see(self, step: int, loss: Tensor, stops: Tensor, norms: Tensor, terms: Tensor, samples: tuple[int, ...]) -> None:
        """Take the numbers of a step.

        loss      of the whole batch
        stops     number of ranks that received a signal to stop
        norms     of the gradient of each parameter
        terms     of the loss, for each of this rank's graphs, which are of `samples`
        """
        self.look()
        numbers = torch.cat([torch.stack([loss, stops]).double(), norms.double(), terms.double()])
        event = None
        if numbers.is_cuda:
            numbers = numbers.to("cpu", non_blocking=True)
            event = torch.cuda.Event()
            event.record()
        self._waiting = (numbers, event, samples, step)
        if event is None:
            self.look()

    def good(self) -> bool:
        """True if the numbers of the last step are finite. One rank may ask this without the others."""
        if self._waiting is None:
            return True
        numbers, event, _, _ = self._waiting
        if event is not None:
            event.synchronize()
        return bool(torch.isfinite(numbers[: len(self.names) + 2]).all())

    def look(self) -> None:
        """Raise `BadNumbers` if the numbers of the last step are not finite. All ranks look at the same moments."""
        if self._waiting is None:
            return
        numbers, event, samples, step = self._waiting
        self._waiting = None
        if event is not None:
            event.synchronize()
        count = len(self.names) + 2
        self.loss, self.stopping = float(numbers[0]), bool(numbers[1])
        if torch.isfinite(numbers[:count]).all():
            return
        raise BadNumbers(self._message(numbers, samples, step, count))

    def _message(self, numbers: Tensor, samples: tuple[int, ...], step: int, count: int) -> str:
        bad = sorted({s for s, ok in zip(samples, torch.isfinite(numbers[count:]).tolist(), strict=True) if not ok})
        gradients = [name for name, ok in zip(self.names, torch.isfinite(numbers[2:count]).tolist(), strict=True) if not ok]
        everywhere: list[Any] = [(bad, [*samples])]
        if self.world > 1:  # all ranks are here: the loss and the gradients are the same on all
            everywhere = [None] * self.world
            torch.distributed.all_gather_object(everywhere, (bad, [*samples]))
        bad = sorted({s for some, _ in everywhere for s in some})
        everyone = sorted({s for _, some in everywhere for s in some})
        if bad:
            what = f"the loss of sample {', '.join(map(str, bad))} (field {self.outputs}) is not finite"
        elif not math.isfinite(float(numbers[0])):
            what = f"the loss (field {self.outputs}) of samples {', '.join(map(str, everyone))} together is not finite"
        else:
            what = f"the gradient of {', '.join(gradients)} is not finite, for samples {', '.join(map(str, everyone))}"
        kept = "; the last good checkpoint is kept" if self._has_checkpoints else ""
        zero = f"If {self.outputs} is 0 on all nodes of a graph, it has no relative error: take more nodes, or --set loss=mse. "
        unequal = unequal_sizes(self.datasets)
        if unequal:
            return f"step {step}: {what}{kept}. {unequal}"
        hint = f"{zero}Else try" if bad and self.relative else "Try"
        return f"step {step}: {what}{kept}. {hint} a smaller --lr, --set clip=1, or --precision fp32"


def unequal_sizes(datasets: Sequence[Dataset]) -> str:
    """Return a sentence if outputs of some samples are too large or too small beside those of others; else an empty text."""
    for name in datasets[0].outputs if datasets else ():
        sizes = [(float(each.value(name, i).abs().max()), each.label(i)) for each in datasets for i in range(len(each))]
        (least, small), (most, large) = min((each for each in sizes if each[0] > 0), default=sizes[0]), max(sizes)
        if 0 < least < SPAN * most:
            return (
                f"{name} of sample {small} is at most {least:.2g}, that of sample {large} up to {most:.2g}: "
                f"single precision cannot hold both; leave one of them out"
            )
    return ""
