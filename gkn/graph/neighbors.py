"""Radius search: N(x) is every source y with |x - y| <= r, x itself included, without a cap on their number.

Three algorithms give the same edges in the same order. `brute` compares all pairs and is read first; `tree` is scipy's k-d
tree; `cells` sorts the sources into boxes and runs on any device.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, SupportsFloat

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gkn.graph.graph import Graph, offsets
from gkn.graph.images import Images
from gkn.system.checks import check_finite, shape_or_type
from gkn.system.memory import check_memory

CANDIDATES = {"cpu": 2**21, "cuda": 2**24}  # pairs that are compared at a time
MANY = 2**27  # edges
LEAST, MOST = 1e-150, 1e150  # radii and coordinates
CUTS = 2  # boxes have half the radius


def radius_graph(
    sources: Tensor | NDArray[Any],
    targets: Tensor | NDArray[Any] | None = None,
    r: SupportsFloat = 0.1,
    *,
    backend: str | None = None,
) -> Graph:
    """Return the neighbours of each target among the sources: |x - y| <= r(1 + 1e-9), by differences in float64.

    With the factor, pairs at distance r are edges in spite of rounding: on the paper's grids r is a distance between points.
    For points in float32, whose rounding error is larger, r is widened by that error. Neighbours are in ascending order.
    Without `targets`, every source is a target.

        sources   (S, d)  any floating type
        targets   (T, d)  another set of points of the same dimension, on the same device
    """
    sources = torch.from_numpy(sources) if isinstance(sources, np.ndarray) else sources
    targets = sources if targets is None else torch.from_numpy(targets) if isinstance(targets, np.ndarray) else targets
    call = f"radius_graph({shape_or_type(sources)}, {shape_or_type(targets)}, r={r})"
    for name, points in (("sources", sources), ("targets", targets)):
        if not isinstance(points, Tensor) or points.ndim != 2 or not points.is_floating_point():
            raise ValueError(f"{call}: {name} must be a (points, d) tensor of floating-point numbers")
        check_finite(points, f"{call}: {name}")
    if sources.shape[1] != targets.shape[1] or not sources.shape[1]:
        raise ValueError(f"{call}: sources and targets must have the same dimension, at least 1")
    check_same_device(sources, targets, call)
    try:
        radius = float(r)
    except (TypeError, ValueError, OverflowError):
        radius = math.nan
    if not LEAST <= radius <= MOST:
        raise ValueError(f"{call}: the radius must be a finite number > 0 (from {LEAST} to {MOST})")
    if any(points.numel() and float(points.abs().max()) > MOST for points in (sources, targets)):
        raise ValueError(f"{call}: coordinates beyond {MOST}, whose differences are not finite")
    if len(sources) >= 2**31:
        raise ValueError(f"{call}: {len(sources)} sources; needed less than 2^31")
    ball = _Ball.of(sources, targets, radius)
    y, x = sources.detach().double(), targets.detach().double()
    backend = backend or _choose(y, x)
    if backend not in _SEARCH:
        raise ValueError(f"{call}: backend {backend!r}; use one of {', '.join(_SEARCH)}")
    expected = _estimate(y, x, ball)
    if expected is not None:
        check_memory(int(4.2 * expected), f"{call}: about {expected:.2e} edges", x.device)
    counts = torch.zeros(len(x), dtype=torch.long, device=x.device)
    # Allocate a little more than expected, so that the whole is not copied at the end.
    src, edges = torch.empty(int(1.05 * (expected or 0)), dtype=torch.int32, device=x.device), 0
    for start, count, source in _SEARCH[backend](y, x, ball):
        counts[start : start + len(count)] = count
        if edges + len(source) > len(src):
            more = max(len(source), len(src) // 4)
            check_memory(4 * (edges + more), f"{call}: over {edges:.2e} edges", x.device)
            src = torch.cat([src[:edges], src.new_empty(more)])
        src[edges : edges + len(source)] = source
        edges += len(source)
    return Graph.trusted(offsets(counts), src[:edges] if edges > 0.9 * len(src) else src[:edges].clone(), len(y))


def periodic_graph(sources: Tensor, targets: Tensor | None, r: float, periods: Tensor) -> Graph:
    """Return the neighbours of each target among the sources and their images by whole periods (d,), inf where there are none.

    Distances wrap around. Images are further sources, after those given.
    """
    images = Images.of(sources, periods, r)
    found = radius_graph(images.points(sources), sources if targets is None else targets, r)
    return Graph.trusted(found.ptr, found.src, found.num_sources, images=images)


def radius_graphs(points: Tensor, r: float) -> Graph:
    """Return the graphs of many clouds of equal size (G, m, d), side by side: `Graph.batch` of their `radius_graph`.

    All pairs of all clouds are compared at once, which for small clouds takes no longer than for one.
    """
    clouds, m, _ = points.shape
    if clouds * m * m > _candidates(points) or not points.numel():
        return Graph.batch([radius_graph(cloud, r=r) for cloud in points])
    ball, points = _Ball.of(points.flatten(0, 1), points[0], r), points.double()
    near = ball.holds(points[:, :, None].unbind(-1), points[:, None].unbind(-1))
    cloud, _, source = near.nonzero().unbind(1)
    cuts = tuple(range(0, clouds * m + 1, m))
    return Graph.trusted(offsets(near.sum(-1).reshape(-1)), (cloud * m + source).int(), clouds * m, cuts)


def nearest(sources: Tensor, targets: Tensor) -> Tensor:
    """Return the nearest source of each target: (T,)."""
    call = f"nearest({tuple(sources.shape)}, {tuple(targets.shape)})"
    if sources.ndim != 2 or targets.ndim != 2 or sources.shape[1] != targets.shape[1] or not len(sources):
        raise ValueError(f"{call}: needed (points, d) of the same dimension, and at least one source")
    check_same_device(sources, targets, call)
    if sources.device.type == "cpu":
        from scipy.spatial import cKDTree

        return torch.from_numpy(cKDTree(sources.double().numpy()).query(targets.double().numpy())[1].astype(np.int64))
    middle = sources.double().mean(0)
    y = sources.double() - middle
    few = (targets.double() - middle).split(max(1, _candidates(targets) // len(sources)))
    return torch.cat([torch.addmm(y.square().sum(1), x, y.T, alpha=-2).argmin(1) for x in few])  # |x - y|^2 - |x|^2


def lumped(points: Tensor, weights: Tensor, nodes: Tensor) -> Tensor:
    """Return quadrature weights of some nodes of a domain, (..., m) -> (..., m): every point adds its weight to the nearest.

    They add up to the measure of the domain. A node in a sparse region gets more than one in a dense region.
    """
    found = []
    for some in nodes.reshape(-1, nodes.shape[-1]):
        sums = torch.zeros(len(some), dtype=weights.dtype, device=weights.device)
        found.append(sums.index_add_(0, nearest(points[some], points), weights))
    return torch.stack(found).reshape(nodes.shape) if found else weights.new_zeros(nodes.shape)


def check_same_device(sources: Tensor, targets: Tensor, call: str) -> None:
    if sources.device != targets.device:
        raise ValueError(f"{call}: sources are on {sources.device}, targets on {targets.device}; needed one device")


@dataclass(frozen=True)
class _Ball:
    """The test |x - y| <= r(1 + 1e-9), which is made nowhere else.

    `lost` is the rounding error of a pair of points relative to its coordinates. It widens r for that pair, by a hundredth at
    most. In float64, with coordinates of the size of r, it is negligible.
    """

    r: float
    lost: float
    reach: float  # no pair that counts is farther apart

    @staticmethod
    def of(sources: Tensor, targets: Tensor, r: float) -> _Ball:
        given = [points for points in (sources, targets) if points.numel()]
        lost = max((math.sqrt(points.shape[1]) * torch.finfo(points.dtype).eps for points in given), default=0.0)
        most = lost * sum(float(points.abs().max()) for points in given)
        if most < 1e-10 * r:
            return _Ball(r, 0.0, r * (1 + 1e-9))
        return _Ball(r, lost, r * (1 + 1e-9) + min(most, r / 100))

    def holds(self, x: Sequence[Tensor], y: Sequence[Tensor]) -> Tensor:
        """Return True for pairs within the radius, given coordinates one axis at a time.

        Differences are in units of r, so that no square overflows or vanishes.
        """
        square = torch.zeros((), dtype=torch.float64, device=x[0].device)
        for of_x, of_y in zip(x, y, strict=True):
            square = square + ((of_x - of_y) / self.r).square_()
        if not self.lost:
            return square <= (1 + 1e-9) ** 2
        size = torch.stack([of_x.abs() + of_y.abs() for of_x, of_y in zip(x, y, strict=True)]).amax(0)
        return square <= (1 + 1e-9 + (size * (self.lost / self.r)).clamp_(max=0.01)).square_()


def _choose(y: Tensor, x: Tensor) -> str:
    if len(y) * len(x) <= 2**18:
        return "brute"
    return "cells" if y.shape[1] <= 3 else "brute" if y.device.type == "cuda" else "tree"


def _estimate(y: Tensor, x: Tensor, ball: _Ball) -> float | None:
    """Estimate the number of edges from a few random targets; None if even all pairs would fit easily."""
    if len(y) * len(x) <= MANY:
        return None
    few = x[torch.randint(0, len(x), (64,), generator=torch.Generator().manual_seed(0)).to(x.device)]
    return sum(int(ball.holds(one.unbind(), y.unbind(1)).sum()) for one in few) / len(few) * len(x)


Found = Iterator[tuple[int, Tensor, Tensor]]
"""First target of a block, number of neighbours of each of its targets, and the neighbours of one after the other."""


def _brute(y: Tensor, x: Tensor, ball: _Ball) -> Found:
    rows = max(1, _candidates(x) // max(1, len(y)))
    for start in range(0, len(x), rows):
        near = ball.holds(x[start : start + rows, None].unbind(-1), y.unbind(1))
        yield start, near.sum(1), near.nonzero()[:, 1]


def _tree(y: Tensor, x: Tensor, ball: _Ball) -> Found:
    from scipy.spatial import cKDTree

    if not len(y):
        return
    reach = ball.reach / ball.r * (1 + 1e-6)
    tree = cKDTree((y / ball.r).cpu().numpy())
    low, high = y.amin(0) / ball.r - 2 * reach, y.amax(0) / ball.r + 2 * reach
    start, rows = 0, max(1, CANDIDATES["cpu"] // len(y))
    while start < len(x):
        some = x[start : start + rows]
        # Far targets are moved closer, where squares do not overflow; they still have no neighbours.
        moved = (some / ball.r).clamp(low, high)
        pairs = cKDTree(moved.cpu().numpy()).sparse_distance_matrix(tree, reach, output_type="ndarray")
        target, source = (torch.from_numpy(pairs[name].astype(np.int64)).to(x.device) for name in "ij")
        near = ball.holds(some[target].unbind(1), y[source].unbind(1))
        yield start, *_in_order(target[near], source[near], len(some), len(y))
        start += len(some)
        rows = max(1, min(2 * rows, 2**13, CANDIDATES["cpu"] * len(some) // max(1, len(pairs))))


def _cells(y: Tensor, x: Tensor, ball: _Ball) -> Found:
    if not len(y) or not len(x):
        return
    d = y.shape[1]
    if d > 3:
        raise ValueError(f"radius_graph(backend='cells'): points of dimension {d}; boxes are for 1, 2 and 3")
    low, extent = y.amin(0), (y.amax(0) - y.amin(0))
    # As many boxes as can be numbered in 62 bits, and not many more than sources; a box is never smaller than reach / CUTS.
    most = min(2.0 ** (60 // d), 32 * max(len(y), 2) ** (1 / d))
    side = torch.clamp(extent / most, min=ball.reach / CUTS) * (1 + 1e-6)
    size = (extent / side).long() + 1
    stride = torch.ones_like(size)
    for axis in range(d - 2, -1, -1):
        stride[axis] = stride[axis + 1] * size[axis + 1]
    key, order = torch.sort((((y - low) / side).long() * stride).sum(1))
    order = order.int()
    sorted_y = [axis.contiguous() for axis in y[order].unbind(1)]
    lines = torch.tensor([*itertools.product(range(-CUTS, CUTS + 1), repeat=d - 1)], dtype=torch.long, device=x.device)
    limit = _candidates(x)
    most_rows = max(1, limit // len(lines) // 8)
    start, rows = 0, most_rows
    while start < len(x):
        begin, length = _ranges(x[start : start + rows], low, side, size, stride, key, lines)
        total = length.sum(1).cumsum(0)
        fit = max(1, int((total <= limit).sum()))
        some, begin, counts = x[start : start + fit], begin[:fit].reshape(-1), length[:fit].reshape(-1)
        pairs = int(total[fit - 1])
        kind = torch.int32 if pairs < 2**31 else torch.int64  # half the bytes
        place = torch.arange(pairs, device=x.device, dtype=kind)
        place += (begin - offsets(counts)[:-1]).to(kind).repeat_interleave(counts, output_size=pairs)
        target = torch.arange(fit, device=x.device, dtype=kind).repeat_interleave(length[:fit].sum(1), output_size=pairs)
        coordinates = [axis.contiguous().index_select(0, target) for axis in some.unbind(1)]
        kept = ball.holds(coordinates, [axis.index_select(0, place) for axis in sorted_y]).nonzero()[:, 0]
        source = order.index_select(0, place.index_select(0, kept))
        yield start, *_in_order(target.index_select(0, kept), source, fit, len(y))
        start += fit
        rows = max(1, min(2 * fit, most_rows))


def _ranges(
    x: Tensor, low: Tensor, side: Tensor, size: Tensor, stride: Tensor, key: Tensor, lines: Tensor
) -> tuple[Tensor, Tensor]:
    """Return a few ranges of sorted sources per target: boxes adjacent along the last axis are adjacent in memory."""
    home = torch.floor((x - low) / side).clamp(-CUTS - 1.0, float(2**61)).long()
    across = home[:, None, :-1] + lines  # (x, line, d - 1)
    inside = ((across >= 0) & (across < size[:-1])).all(-1)
    base = (across * stride[:-1]).sum(-1)
    first = (home[:, -1:] - CUTS).clamp(min=0)
    last = torch.minimum(home[:, -1:] + CUTS, size[-1] - 1)
    begin = torch.searchsorted(key, (base + first).contiguous())
    end = torch.searchsorted(key, (base + last).contiguous(), right=True)
    return begin, torch.where(inside & (first <= last), end - begin, 0).clamp(min=0)


def _candidates(x: Tensor) -> int:
    return CANDIDATES.get(x.device.type, CANDIDATES["cpu"])


def _in_order(target: Tensor, source: Tensor, targets: int, sources: int) -> tuple[Tensor, Tensor]:
    """Return the number of sources of each target, and the sources of one target after the other, in ascending order."""
    kind = torch.int32 if targets * sources < 2**31 else torch.int64
    key = target.to(kind) * sources + source.to(kind)
    key = torch.from_numpy(np.sort(key.numpy())) if key.device.type == "cpu" else key.sort().values
    ends = torch.arange(1, targets + 1, device=key.device, dtype=torch.long) * sources
    ends = torch.searchsorted(key, (ends - 1).to(key.dtype), right=True)
    return ends.diff(prepend=ends.new_zeros(1)), key % sources


_SEARCH: dict[str, Callable[[Tensor, Tensor, _Ball], Found]] = {"brute": _brute, "tree": _tree, "cells": _cells}
