"""Memory: how much is available, and a setting that lets the process keep what it has freed."""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


_ASSUMED: int | None = None


def assume_available(memory: int) -> None:
    """Let `available_memory` return this number for the CPU, in a process whose memory is limited."""
    global _ASSUMED
    _ASSUMED = memory


def available_memory(device: torch.device | str = "cpu") -> int:
    """Return the bytes available: on the CPU without swapping, on a GPU including torch's cache."""
    if str(device).startswith("cuda"):
        import torch

        torch.cuda.init()
        stats = torch.cuda.memory_stats_as_nested_dict(device)  # ten times as fast as asking for the two numbers
        kept = sum(stats[name]["all"]["current"] * sign for name, sign in (("reserved_bytes", 1), ("allocated_bytes", -1)))
        return int(torch.cuda.mem_get_info(device)[0] + kept)
    if _ASSUMED is not None:
        return _ASSUMED
    with suppress(OSError, StopIteration), open("/proc/meminfo") as file:
        return 1024 * int(next(line for line in file if line.startswith("MemAvailable")).split()[1])
    with suppress(AttributeError, ValueError, OSError):
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return 4 * 2**30  # the system does not say


def check_memory(needed: int, what: str, device: torch.device | str = "cpu") -> None:
    """Raise an error with the number of bytes if they cannot fit, before anything is allocated."""
    free = available_memory(device)
    if needed > free:
        raise MemoryError(f"{what}: needs {needed / 2**30:.3g} GiB, but {free / 2**30:.3g} GiB are free on {device}")


LARGEST, KEPT = 2**30, 2**31 - 1  # bytes: of a block that is kept, and of all of them at the end of the heap
_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1  # of malloc.h
_SAID = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES")


@cache
def keep_freed() -> None:
    """Let this process keep about 2 GiB of freed memory.

    glibc returns freed blocks of more than some MB to the system, and maps and clears every temporary anew. That takes two
    thirds of the time of a solution on 421 x 421, or of a prediction on 85 x 85. Nothing happens with other C libraries, or if
    the environment already configures malloc.
    """
    if any(name in os.environ for name in _SAID):
        return
    with suppress(OSError, AttributeError, TypeError):  # TypeError: Windows
        libc = ctypes.CDLL(None)
        libc.mallopt(_MMAP_THRESHOLD, LARGEST)
        libc.mallopt(_TRIM_THRESHOLD, KEPT)
