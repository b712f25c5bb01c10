"""Chunks of points: point-wise functions in memory that does not grow with the number of points.

Up to CHUNK points everything is one call. Beyond, a chunk at a time is computed, and computed again for the derivative.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from gkn.graph.graph import sizes_of

CHUNK = 2**18
"""Points at a time. A network has some thousand numbers per point."""


def chunks(start: int, stop: int) -> list[tuple[int, int]]:
    """Divide a range into chunks."""
    return [(i, min(i + CHUNK, stop)) for i in range(start, stop, CHUNK)]


def recomputed(function: Callable[..., Any], *given: Any) -> Any:
    """Call a function; what its derivative needs is not kept but computed again."""
    if not torch.is_grad_enabled():
        return function(*given)
    return checkpoint(function, *given, use_reentrant=False, preserve_rng_state=False)


def pointwise(function: Callable[..., Tensor], *given: Tensor) -> Tensor:
    """Apply a function to every point: (K, ...) tensors -> (K, ...)."""
    if len(given[0]) <= CHUNK:
        return function(*given)
    return torch.cat([recomputed(function, *(x[i:j] for x in given)) for i, j in chunks(0, len(given[0]))])


def by_function(
    step: Callable[..., Tensor], v: Tensor, near: Tensor | None, far: Tensor | None, p: Tensor | None, cuts: Sequence[int]
) -> Tensor:
    """Apply `step(v, near, far, p, sizes)` to the points of all functions of a batch.

    v, near, p   (K, ...) per point; p may be None and is then computed by `step`
    far          (functions, ...) per function
    """
    if len(v) <= CHUNK:
        return step(v, near, far, p, sizes_of(cuts))
    parts = []
    for number, ends in enumerate(pairwise(cuts)):
        one = None if far is None else far[number : number + 1]
        for i, j in chunks(*ends):
            parts.append(recomputed(step, v[i:j], None if near is None else near[i:j], one, None, [j - i]))
    return torch.cat(parts)


@cache
def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function compiled by torch.compile for fixed sizes: once for all blocks, which differ only in their numbers."""
    return torch.compile(function, dynamic=False)
