"""Ranks: this process and the others that train with it, and the signals that stop them."""

from __future__ import annotations

import atexit
import logging
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch

from gkn.system.stopping import Stopped
from gkn.train.recipe import PRECISIONS

if TYPE_CHECKING:
    from lightning_fabric import Fabric


class Stop:
    """The signal that came, if any; and whether there is anything yet that could be saved."""

    number: int | None = None
    begun: bool = False


@contextmanager
def signals(catch: bool) -> Iterator[Stop]:
    """Record SIGTERM and SIGINT; the loop stops between steps. A second signal, or one before the first step, stops at once."""
    stop = Stop()
    if not catch or threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def note(number: int, frame: object) -> None:
        if stop.number is not None or not stop.begun:
            raise Stopped(number)
        stop.number = number

    before = {number: signal.signal(number, note) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def join(device: str, precision: str, timeout: float) -> Fabric:
    """Start Fabric for this process or, under torchrun, for all of them."""
    from lightning_fabric import Fabric
    from lightning_fabric.strategies.ddp import DDPStrategy

    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)
    kind, _, number = device.partition(":")
    world, local = (int(os.environ.get(name, 1)) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"))
    options: dict[str, Any] = {"devices": [int(number)] if kind == "cuda" and number else 1}
    if world > 1:
        backend, patience = "nccl" if kind == "cuda" else "gloo", timedelta(seconds=timeout)
        _meet(backend, patience)
        strategy = DDPStrategy(process_group_backend=backend, timeout=patience)
        options = {"devices": local, "num_nodes": world // local, "strategy": strategy}
    options["precision"] = PRECISIONS[precision]
    fabric = Fabric(accelerator=kind, **options)
    fabric.launch()
    return fabric


def _leave() -> None:
    """Leave the group of ranks before Python ends: a group that is still there then may abort a process that was done."""
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def sum_over_ranks(fabric: Fabric, x: torch.Tensor) -> torch.Tensor:
    """Return the sum of a tensor over all ranks."""
    whole = fabric.all_reduce(x, reduce_op="sum")
    assert isinstance(whole, torch.Tensor)
    return whole


def _meet(backend: str, patience: timedelta) -> None:
    """Join the other ranks. Each attempt of torchrun uses its own part of the store through which ranks find each other: the
    store outlives them, and restarted ranks would otherwise wait for dead ones."""
    if torch.distributed.is_initialized():
        return
    from torch._C._distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    store, rank, world = next(iter(rendezvous("env://", timeout=patience)))
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    attempted = PrefixStore(f"gkn/{attempt}", store)
    torch.distributed.init_process_group(backend, store=attempted, rank=rank, world_size=world, timeout=patience)
    atexit.register(_leave)
