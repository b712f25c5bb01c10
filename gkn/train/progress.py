"""Progress: where a training run is. It saves and restores itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch


@dataclass(frozen=True)
class Status:
    """Numbers that a progress bar shows."""

    step: int
    steps: int
    epoch: int
    epochs: int
    loss: float
    validation: float | None
    edges_per_second: float
    seconds_left: float


Report: TypeAlias = Callable[[Status], None]


class Progress:
    """A run is in epoch `epoch`, before batch `place`.

    steps     of an epoch
    epochs    of the run
    total     sum of the losses of this epoch, on the device
    metrics   an entry for each finished epoch
    best      step and validation error of the best network so far, or None
    patient_since   epoch from which evaluations without a smaller error are counted
    """

    def __init__(self, steps: int, epochs: int, device: torch.device, world: int) -> None:
        self.steps, self.epochs, self._world = steps, epochs, world
        self.epoch, self.place, self.edges = 0, 0, 0
        self.total = torch.zeros((), dtype=torch.float64, device=device)
        self.metrics: list[dict[str, Any]] = []
        self.best: dict[str, Any] | None = None
        self.patient_since = 0
        self._seconds, self._started = 0.0, time.monotonic()
        self._epoch_started, self._epoch_edges, self._first = time.monotonic(), 0, 0

    @property
    def step(self) -> int:
        return self.epoch * self.steps + self.place

    @property
    def seconds(self) -> float:
        """Seconds of training, those before an interruption included."""
        return self._seconds + time.monotonic() - self._started

    @property
    def speed(self) -> float:
        """Edges per second of this epoch, on all ranks."""
        return self._epoch_edges * self._world / max(time.monotonic() - self._epoch_started, 1e-9)

    def advance(self, edges: int) -> None:
        """Count the edges of a step."""
        self.edges += edges
        self._epoch_edges += edges

    def end_epoch(self, lr: float, validation: float | None, speed: float) -> dict[str, Any]:
        """Log an epoch and begin the next; return its entry."""
        entry = {
            "epoch": self.epoch + 1,
            "step": self.step,
            "loss": float(self.total) / self.steps,
            "lr": lr,
            "validation": validation,
            "seconds": self.seconds,
            "edges_per_second": speed,
        }
        self.metrics.append(entry)
        self.epoch, self.place = self.epoch + 1, 0
        self.total.zero_()
        if validation is not None and (self.best is None or validation < self.best["validation"]):
            self.best = {"step": self.step, "validation": validation}
        self._epoch_started, self._epoch_edges = time.monotonic(), 0
        return entry

    def status(self, loss: float) -> Status:
        """Return the numbers that a progress bar shows."""
        done, total = self.step, self.steps * self.epochs
        left = (time.monotonic() - self._started) / max(done - self._first, 1) * (total - done)
        known = [entry["validation"] for entry in self.metrics if entry["validation"] is not None]
        return Status(done, total, self.epoch, self.epochs, loss, known[-1] if known else None, self.speed, left)

    def is_over(self, patience: int | None) -> bool:
        """True after the last epoch, or after `patience` evaluations without a smaller validation error."""
        if self.epoch >= self.epochs:
            return True
        if patience is None or self.best is None:
            return False
        later = [entry for entry in self.metrics if entry["step"] > self.best["step"] and entry["epoch"] > self.patient_since]
        return sum(entry["validation"] is not None for entry in later) >= patience

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint keeps."""
        names = ("epoch", "place", "edges", "metrics", "best")
        return {**{name: getattr(self, name) for name in names}, "total": float(self.total), "seconds": self.seconds}

    def restore(self, state: Mapping[str, Any], step: int) -> None:
        """Go on from the state of a checkpoint; raise TypeError if its entries make no sense."""
        sound = (
            0 <= state["epoch"] <= self.epochs
            and 0 <= state["place"] <= self.steps
            and state["epoch"] * self.steps + state["place"] == step
            and [entry["epoch"] for entry in state["metrics"]] == [*range(1, state["epoch"] + 1)]
            and (state["best"] is None or {*state["best"]} == {"step", "validation"})
        )
        if not sound:
            raise TypeError("its entries make no sense")
        self.epoch, self.place, self.metrics = state["epoch"], state["place"], [*state["metrics"]]
        self.total.fill_(state["total"])
        self.edges, self.best, self._seconds = state["edges"], state["best"], state["seconds"]
        self._first = self.step
