"""How much memory there is, asked before it is taken; and memory that was taken, kept for the next who wants it."""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from functools import cache

import torch


def available_memory(device: torch.device | str = "cpu") -> int:
    """Bytes that can be had: on the CPU without swapping, the system's caches counted in; on a GPU also what torch keeps."""
    if torch.device(device).type == "cuda":
        torch.cuda.init()
        stats = torch.cuda.memory_stats_as_nested_dict(device)  # ten times as fast as asking for the two numbers
        kept = sum(stats[name]["all"]["current"] * sign for name, sign in (("reserved_bytes", 1), ("allocated_bytes", -1)))
        return int(torch.cuda.mem_get_info(device)[0] + kept)
    with suppress(OSError, StopIteration), open("/proc/meminfo") as file:
        return 1024 * int(next(line for line in file if line.startswith("MemAvailable")).split()[1])
    with suppress(AttributeError, ValueError, OSError):
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return 4 * 2**30  # the system does not say


def check_room(needed: int, what: str, device: torch.device | str = "cpu") -> None:
    """Refuse what cannot fit, with the number, before anything is allocated."""
    free = available_memory(device)
    if needed > free:
        raise MemoryError(f"{what}: needs {needed / 2**30:.3g} GiB, but {free / 2**30:.3g} GiB are free on {device}")


LARGEST, KEPT = 2**30, 2**31 - 1  # bytes: of a block that is kept, and of all of them at the end of the heap
_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1  # of malloc.h
_SAID = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES")


@cache
def keep_freed() -> None:
    """glibc gives freed blocks of more than some MB back to the system, and has every temporary mapped and cleared anew: two
    thirds of the time of a solution on 421 x 421, or of an answer on 85 x 85. From here on this process keeps some 2 GiB.

    Elsewhere, or where the environment already says what is to be kept, nothing happens.
    """
    if any(name in os.environ for name in _SAID):
        return
    with suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(_MMAP_THRESHOLD, LARGEST)
        libc.mallopt(_TRIM_THRESHOLD, KEPT)
