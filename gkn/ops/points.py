"""Functions of points: point-wise networks, and sums over slices. Memory does not grow with the number of points.

    gather:   sum over y of share(y) p_s(y) v(y)      for every function of a batch and every slice s
    spread:   sum over s of p_s(x) z_s                for every point x

Every point has a membership p_s of every slice, and its memberships add up to 1.

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
from gkn.ops import full_precision
from gkn.ops.dense import product

CHUNK = 2**18
"""Points at a time. A network has some thousand numbers per point."""
EMPTY = 1e-9
"""Mass of a slice below which it counts as empty: its mean is then 0, and so is its derivative."""


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


# --- sums over slices


def memberships_of(scores: Tensor, heads: int) -> Tensor:
    """Return softmax of scores (K, heads * slices) over the slices of each head, in the type of the scores."""
    with full_precision(scores):  # autocast would compute it in float32
        p: Tensor = scores.unflatten(1, (heads, -1)).softmax(-1).flatten(1)
    return p


def shares_of(weights: Tensor | None, x: Tensor, cuts: Sequence[int], total: Callable[[Tensor], Tensor] | None) -> Tensor:
    """Return each point's share (K,) in the measure of its function. The shares of a function add up to 1.

    total   sums over all processes, if one function is split among several
    """
    kind = torch.promote_types(x.dtype, torch.float32)
    weights = torch.ones(len(x), dtype=kind, device=x.device) if weights is None else weights.to(kind)
    if total is not None:
        return weights / total(weights.sum())
    tiny = torch.finfo(kind).tiny
    return torch.cat([part / part.sum().clamp_min(tiny) for part in weights.split(sizes_of(cuts))])


def gather(
    memberships: Callable[[Tensor], Tensor], v: Tensor, share: Tensor, cuts: Sequence[int]
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Sum v over slices: (functions, slices, width), with the mass (functions, slices, 1) of each slice.

    memberships   v -> p (K, slices)
    Also returns p, or None if there are too many points to keep it.
    """
    share = share.to(v.dtype)[:, None]
    if len(v) <= CHUNK:
        sizes, p = sizes_of(cuts), memberships(v)
        return gathered(p, v * share, sizes), gathered(p, share, sizes), p

    def sums(v: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
        p, kind = memberships(v), torch.promote_types(v.dtype, torch.float32)  # added up in float32 at least
        return (p.T @ (v * share)).to(kind), (p.T @ share).to(kind)

    parts = [[recomputed(sums, v[i:j], share[i:j]) for i, j in chunks(*ends)] for ends in pairwise(cuts)]
    whole, mass = (torch.stack([torch.stack([part[i] for part in some]).sum(0) for some in parts]) for i in (0, 1))
    return whole, mass, None


def spread(p: Tensor, z: Tensor, sizes: Sequence[int]) -> Tensor:
    """Return p z for every function of a batch: (K, slices), (functions, slices, width) -> (K, width)."""
    p = p.to(z.dtype)
    if len({*sizes}) == 1:
        return product(p.unflatten(0, (len(sizes), -1)), z).flatten(0, 1)
    return torch.cat([some @ other for some, other in zip(p.split([*sizes]), z, strict=True)])


def gathered(p: Tensor, v: Tensor, sizes: Sequence[int]) -> Tensor:
    """Return p^T v for every function of a batch, in one product if all have as many points."""
    if len({*sizes}) == 1:
        return product(p.unflatten(0, (len(sizes), -1)).mT, v.unflatten(0, (len(sizes), -1)))
    return torch.stack([some.T @ other for some, other in zip(p.split([*sizes]), v.split([*sizes]), strict=True)])
