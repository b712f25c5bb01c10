"""How much memory there is, asked before it is taken."""

from __future__ import annotations

import os
from contextlib import suppress

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
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def check_room(needed: int, what: str, device: torch.device | str = "cpu") -> None:
    """Refuse what cannot fit, with the number, before anything is allocated."""
    free = available_memory(device)
    if needed > free:
        raise MemoryError(f"{what}: needs {needed / 2**30:.3g} GiB, but {free / 2**30:.3g} GiB are free on {device}")
