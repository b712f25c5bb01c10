"""Smoothing by a Gaussian: a_eps and its gradient, on grids and on any other points."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Shaped
from numpy.typing import NDArray
from torch import Tensor

from gkn.geometry.domain import Domain
from gkn.geometry.grid import Grid
from gkn.system.checks import as_real
from gkn.system.memory import check_memory

Array: TypeAlias = NDArray[Any]
_REACH = 7  # standard deviations; beyond them a Gaussian is under 3e-11, and soon a denormal number, which is slow
_MOST_PAIRS = 2**22  # pairs of neighbours up to which their sums are kept as matrices: about 150 MiB
_BLOCK = 2**19  # pairs of neighbours at a time
_MOST_NODES, _NODES_PER_POINT = 2**22, 64  # nodes of a grid: any grid may have so many, and so many for each point
_LONG = 2048  # nodes of an axis of a grid up to which it is smoothed by a matrix of that size
_SMALL = 1000  # points of a group that is far from all others, below which it has no grid of its own
_UNEVEN = 1e-3  # share of the largest sum of weights below which the sum at a point is not computed by a grid
_Step: TypeAlias = Callable[[Tensor], Tensor]
_CELL = 2048  # points of a cell at a time


def smooth(
    domain: Domain, a: Shaped[Tensor, "*batch K"] | NDArray[Any] | Sequence[Any], width: float
) -> tuple[Float[Tensor, "*batch K"], Float[Tensor, "*batch K d"]]:
    """Return a_eps, the function smoothed by a Gaussian of standard deviation `width` (a length), and its gradient.

        a_eps(x) = int_D G(x-y) a(y) dy / int_D G(x-y) dy

    with the domain's quadrature weights, on grids and meshes alike. Constants are kept up to the boundary, and the
    gradient is exactly that of a_eps.
    """
    return smoother(domain, width)(as_real(a, "smooth: a"))


def smoother(domain: Domain, width: float) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    """Return `smooth` for many functions on one domain. Parts that do not depend on the function are computed once."""
    check_width(width)
    apply = _grid_smoother(domain, width) if isinstance(domain, Grid) else _points_smoother(domain, width)

    def checked(a: Tensor) -> tuple[Tensor, Tensor]:
        if a.ndim < 1 or a.shape[-1] != len(domain):
            raise ValueError(f"smooth: a of shape {tuple(a.shape)} on a domain of {len(domain)} points")
        return apply(a if a.is_floating_point() else a.double())

    return checked


def check_width(width: float) -> None:
    """Raise an error unless the width of a Gaussian is a positive length."""
    if width is True or not 1e-100 < width < 1e100:
        raise ValueError(f"smooth(width={width}): the standard deviation of the Gaussian is a length > 0")


def _grid_smoother(grid: Grid, width: float) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    """Return the smoother of a grid: the Gaussian is a product, so the sum is one step for each axis.

    A step is a product with a matrix, or for long axes a convolution by Fourier transforms, whose memory is linear.
    """
    matrices = sum(n**2 for n in grid.shape if n <= _LONG)
    check_memory(8 * (4 * matrices + 8 * len(grid)), f"smoothing on {grid.describe()}")
    steps = [(_axis_transforms if n > _LONG else _axis_products)(grid, axis, width) for axis, n in enumerate(grid.shape)]
    kernels, slopes = zip(*steps, strict=True)

    def apply(a: Tensor) -> tuple[Tensor, Tensor]:
        values = a.double().reshape(*a.shape[:-1], *grid.shape)  # a large mean would cancel in single precision

        def product(steps: list[_Step]) -> Tensor:
            out = values
            for step in steps:  # takes the first axis away and appends the new one: in the end the order is as before
                out = step(out)
            return out.reshape(a.shape).to(a.dtype)

        gradient = [product([slopes[i] if i == axis else kernels[i] for i in range(grid.dim)]) for axis in range(grid.dim)]
        return product([*kernels]), torch.stack(gradient, -1)

    return apply


def _axis_products(grid: Grid, axis: int, width: float) -> tuple[_Step, _Step]:
    """Return the steps of one axis that smooth, and that take the derivative, as products with matrices."""

    def step(matrix: Tensor) -> _Step:
        return lambda values: torch.tensordot(values, matrix.to(values), dims=([-grid.dim], [1]))

    kernel, slope = _axis_matrices(grid, axis, width)
    return step(kernel), step(slope)


def _axis_transforms(grid: Grid, axis: int, width: float) -> tuple[_Step, _Step]:
    """Return the steps of one axis that smooth, and that take the derivative, as convolutions by Fourier transforms."""
    n, h, wraps = grid.shape[axis], grid.steps[axis], grid.periodic[axis]
    reach = min(n // 2 if wraps else n - 1, math.ceil(_REACH * width / h))
    size = n if wraps else n + reach  # with as many zeros as the kernel reaches beyond the ends
    index = torch.arange(size, dtype=torch.float64)
    difference = torch.where(index <= size / 2, index, index - size) * h  # x - y
    near = difference.abs() <= _REACH * width
    gauss = torch.where(near, torch.exp(-((difference / width) ** 2) / 2), 0.0)
    pull = torch.where(wraps & (2 * index == size), 0.0, -difference / width**2)  # half a period away: from both sides
    transforms = torch.fft.rfft(gauss), torch.fft.rfft(pull * gauss)
    weights = grid.axis_weights[axis]

    def convolved(values: Tensor, which: int) -> Tensor:
        spectrum = torch.fft.rfft(values * weights.to(values), n=size) * transforms[which].to(values.device)
        out: Tensor = torch.fft.irfft(spectrum, n=size)[..., :n]
        return out

    total, total_slope = (convolved(torch.ones(n, dtype=torch.float64), which) for which in (0, 1))

    def smoothed(values: Tensor) -> Tensor:
        return convolved(values.movedim(-grid.dim, -1), 0) / total.to(values)

    def slope(values: Tensor) -> Tensor:
        last = values.movedim(-grid.dim, -1)
        return (convolved(last, 1) - total_slope.to(values) * (convolved(last, 0) / total.to(values))) / total.to(values)

    return smoothed, slope


def _axis_matrices(grid: Grid, axis: int, width: float) -> tuple[Float[Tensor, "n n"], Float[Tensor, "n n"]]:
    """Return the matrices of one axis that smooth, and that take the derivative of the smoothed function."""
    x = grid.axes[axis]
    difference = x[:, None] - x
    if grid.periodic[axis]:
        difference = difference - grid.sides[axis] * (difference / grid.sides[axis]).round()
    near = difference.abs() <= _REACH * width
    kernel = torch.where(near, torch.exp(-((difference / width) ** 2) / 2) * grid.axis_weights[axis], 0.0)
    kernel = kernel / kernel.sum(1, keepdim=True)  # the denominator is a product too
    if grid.periodic[axis]:  # half a period away: from both sides
        difference = torch.where(2 * difference.abs() > (1 - 1e-9) * grid.sides[axis], 0.0, difference)
    slope = -difference / width**2 * kernel
    return kernel, slope - slope.sum(1, keepdim=True) * kernel  # the quotient rule


def _points_smoother(domain: Domain, width: float) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    """Return the smoother of any other points: sums over the neighbours within reach, or by way of a grid if they are many."""
    points, weights = domain.points.numpy(), domain.weights.numpy()
    sums = _sums_of(points, weights, width, _MOST_PAIRS)
    one = np.ones((len(points), 1))
    total, total_slope = sums(one)
    weak = np.flatnonzero(total < _UNEVEN * total.max())
    if len(weak) and not isinstance(sums, _Direct):  # a grid is exact to 1e-10 of the largest sums only
        sums = _Mended(sums, weak, _Direct(points, weights, width, keep=False, targets=points[weak]))
        total, total_slope = sums(one)
    if not (total > 0).all():
        raise ValueError("smooth: a point has no quadrature weight within reach; give the cloud positive weights")

    def apply(a: Tensor) -> tuple[Tensor, Tensor]:
        flat = a.detach().cpu().reshape(-1, len(points)).double().numpy().T
        average, slope = sums(flat)
        smoothed = average / total
        gradient = (slope - smoothed[..., None] * total_slope) / total[..., None]
        shaped = torch.from_numpy(np.ascontiguousarray(smoothed.T)).reshape(a.shape)
        sloped = torch.from_numpy(gradient.transpose(1, 0, 2).copy()).reshape(*a.shape, domain.dim)
        return shaped.to(a), sloped.to(a)

    return apply


def _sums_of(points: Array, weights: Array, width: float, most: float) -> _Sums:
    """Return the sums over all neighbours, in a way that takes time and memory in proportion to the points.

    most   pairs of neighbours whose matrices may be kept
    """
    if _estimated_pairs(points, _REACH * width) <= most:
        return _Direct(points, weights, width, keep=True)
    by_grid = _ByGrid(points, weights, width)
    if by_grid.nodes <= max(_MOST_NODES, _NODES_PER_POINT * len(points)):
        return by_grid
    groups = _far_groups(points, _REACH * width)
    if len(groups) > 1:  # far apart for the width: one grid for all would be nearly empty
        share = most / len(points)
        return _Apart([(which, _sums_of(points[which], weights[which], width, share * len(which))) for which in groups])
    return _Direct(points, weights, width, keep=False)


def _far_groups(points: Array, reach: float) -> list[Array]:
    """Return the indices of points in groups that are farther apart than the reach. Small groups are taken together."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components
    from scipy.spatial import cKDTree

    boxes, box = np.unique(np.floor((points - points.min(0)) / reach), axis=0, return_inverse=True)
    near = cKDTree(boxes).query_pairs(1.5, p=np.inf, output_type="ndarray")  # boxes that touch
    links = coo_array((np.ones(len(near)), (near[:, 0], near[:, 1])), shape=(len(boxes), len(boxes)))
    group = connected_components(links, directed=False)[1][box.reshape(-1)]
    counts = np.bincount(group)
    group = np.where(counts[group] < _SMALL, -1, group)
    return [np.flatnonzero(group == each) for each in np.unique(group)]


def _estimated_pairs(points: Array, reach: float) -> float:
    """Return about how many pairs of points are within reach of each other, from some of the points."""
    from scipy.spatial import cKDTree

    some = points[np.unique(np.linspace(0, len(points) - 1, min(len(points), 256)).round().astype(int))]
    found = cKDTree(points).query_ball_point(some, reach, return_length=True)
    return float(np.mean(found)) * len(points)


def _row_products(factors: list[Array]) -> Array:
    """Return the products of all entries of the rows of matrices (P, n_1), (P, n_2), ...: (P, n_1 n_2 ...)."""
    out = factors[0]
    for factor in factors[1:]:
        out = (out[:, :, None] * factor[:, None]).reshape(len(out), -1)
    return out


@runtime_checkable
class _Sums(Protocol):
    """Maps values (K, n) to sum_y G(x - y) w(y) a(y) at all points, (K, n), and its gradient (K, n, d), times one constant."""

    def __call__(self, values: Array) -> tuple[Array, Array]: ...


class _Apart:
    """The sums of groups of points that are farther apart than the reach, by (indices, sums)."""

    def __init__(self, parts: list[tuple[Array, _Sums]]) -> None:
        self.parts = parts

    def __call__(self, values: Array) -> tuple[Array, Array]:
        found = [(which, *sums(values[which])) for which, sums in self.parts]
        total, slope = np.empty(values.shape), np.empty((*values.shape, found[0][2].shape[-1]))
        for which, part, part_slope in found:
            total[which], slope[which] = part, part_slope
        return total, slope


class _Mended:
    """The sums at all points, those at some points (their indices) replaced by other sums."""

    def __init__(self, sums: _Sums, which: Array, others: _Sums) -> None:
        self.sums, self.which, self.others = sums, which, others

    def __call__(self, values: Array) -> tuple[Array, Array]:
        total, slope = self.sums(values)
        total[self.which], slope[self.which] = self.others(values)
        return total, slope


class _Direct:
    """The sum over all neighbours within reach, a block of points at a time, as sparse matrices.

    keep      keep the matrices; else they are computed again in every call, and memory is that of one block
    targets   points at which the sums are wanted, if not at all points
    """

    def __init__(self, points: Array, weights: Array, width: float, keep: bool, targets: Array | None = None) -> None:
        from scipy.spatial import cKDTree

        self.points, self.weights, self.width = points, weights, width
        self.targets = points if targets is None else targets
        self.tree = cKDTree(points)
        counts = self.tree.query_ball_point(self.targets, _REACH * width, return_length=True)
        pairs, per_pair = int(counts.sum()), 4 + 8 * (1 + points.shape[1])
        check_memory((pairs if keep else 0) * per_pair + 8 * _BLOCK * per_pair, f"smoothing of {len(points)} points")
        self.ends = [*np.unique(np.searchsorted(np.cumsum(counts), np.arange(_BLOCK, pairs + _BLOCK, _BLOCK)) + 1)]
        self.ends[-1:] = [len(self.targets)]
        self.blocks = [*self._made()] if keep else None

    def __call__(self, values: Array) -> tuple[Array, Array]:
        parts = [(average @ values, [slope @ values for slope in slopes]) for average, slopes in self.blocks or self._made()]
        sums = np.concatenate([part for part, _ in parts])
        return sums, np.concatenate([np.stack(slopes, -1) for _, slopes in parts])

    def _made(self) -> Iterator[tuple[Any, list[Any]]]:
        """Yield the matrices of each block of points: that of the sum, and of its derivative along each axis."""
        from scipy.sparse import csr_array
        from scipy.spatial import cKDTree

        for start, end in pairwise([0, *self.ends]):
            tree = cKDTree(self.targets[start:end])
            found = tree.sparse_distance_matrix(self.tree, _REACH * self.width, output_type="ndarray")
            order = np.lexsort((found["j"], found["i"]))
            i, j = found["i"][order], found["j"][order].astype(np.int32)
            difference = self.targets[start + i] - self.points[j]
            kernel = np.exp(-(difference**2).sum(1) / (2 * self.width**2)) * self.weights[j]
            rows = np.searchsorted(i, np.arange(end - start + 1)).astype(np.int32)
            shape = (end - start, len(self.points))
            slopes = [csr_array((-d / self.width**2 * kernel, j, rows), shape=shape) for d in difference.T]
            yield csr_array((kernel, j, rows), shape=shape), slopes


class _ByGrid:
    """The sum by way of a grid: spread to its nodes, smooth there, and gather, each with a narrower Gaussian.

    The variances of the three add up to that of the whole. The spacing of the grid resolves them, so that sums over nodes are
    integrals up to about 1e-10 of the whole. Points are treated cell by cell of the grid, since those of a cell use the same
    nodes: one matrix product each. Time and memory are linear in the points, whatever the width.
    """

    narrow = 0.35  # standard deviation of the first and the last Gaussian, in units of the whole one's
    spacing = 0.3  # of the grid, in the same unit
    reach = 6.5  # of the first and the last Gaussian, in their standard deviations

    def __init__(self, points: Array, weights: Array, width: float) -> None:
        self.weights, self.dim = weights[:, None], points.shape[1]
        self.h, self.s = self.spacing * width, self.narrow * width
        self.middle = width * math.sqrt(1 - 2 * self.narrow**2)
        radius = math.ceil(self.reach * self.s / self.h)
        low = points.min(0) - radius * self.h
        self.shape = tuple(int(n) for n in np.floor((points.max(0) - low) / self.h) + radius + 2)
        self.nodes = math.prod(float(n) for n in self.shape)
        self.places = (points - low) / self.h  # in units of the grid
        self.first = np.floor(self.places).astype(np.int64) - radius + 1
        self.taps = 2 * radius
        self.order = np.lexsort(self.first.T[::-1])
        new = (np.diff(self.first[self.order], axis=0) != 0).any(1)
        self.starts = [0, *(np.flatnonzero(new) + 1).tolist(), len(points)]

    def __call__(self, values: Array) -> tuple[Array, Array]:
        count = values.shape[1]
        check_memory(int(8 * self.nodes * (count + 2)), f"smoothing of {len(values)} points by way of a grid")
        grid = np.zeros((count, *self.shape))
        weighted = self.weights * values
        for which, nodes in self._cells():
            (first, _), (others, _) = self._factors(which)
            for k in range(count):
                grid[k][nodes] += ((first * weighted[which, k, None]).T @ others).reshape([self.taps] * self.dim)
        self._smooth(grid)
        sums, slopes = np.empty((len(values), count)), np.empty((len(values), count, self.dim))
        for which, nodes in self._cells():
            (first, first_slope), (others, other_slopes) = self._factors(which)
            for k in range(count):
                local = grid[k][nodes].reshape(self.taps, -1)
                along = first @ local
                sums[which, k] = (along * others).sum(1)
                slopes[which, k, 0] = ((first_slope @ local) * others).sum(1)
                for axis, slope in enumerate(other_slopes, start=1):
                    slopes[which, k, axis] = (along * slope).sum(1)
        return sums, slopes

    def _cells(self) -> Iterator[tuple[Array, tuple[slice, ...]]]:
        """Yield the points of each cell of the grid, not too many at a time, and the nodes that they use."""
        for start, end in pairwise(self.starts):
            corner = self.first[self.order[start]]
            nodes = tuple(slice(int(n), int(n) + self.taps) for n in corner)
            for begin in range(start, end, _CELL):
                yield self.order[begin : min(begin + _CELL, end)], nodes

    def _factors(self, which: Array) -> tuple[tuple[Array, Array], tuple[Array, list[Array]]]:
        """Return the narrow Gaussian from some points to their nodes along the first axis (P, taps), and its derivative; and
        the products along all other axes (P, taps^(d-1)), and their derivatives."""
        off = self.places[which, :, None] - (self.first[which, :, None] + np.arange(self.taps))  # (P, d, taps)
        gauss = np.exp(-((off * self.h) ** 2) / (2 * self.s**2))
        slope = -off * self.h / self.s**2 * gauss
        axes, one = range(1, self.dim), np.ones((len(which), 1))
        others = _row_products([one, *(gauss[:, axis] for axis in axes)])
        slopes = [_row_products([slope[:, i] if i == axis else gauss[:, i] for i in axes]) for axis in axes]
        return (gauss[:, 0], slope[:, 0]), (others, slopes)

    def _smooth(self, grid: Array) -> None:
        """Smooth values (n, ...) on the nodes in place, axis by axis."""
        from scipy.ndimage import convolve1d

        radius = math.ceil(_REACH * self.middle / self.h)
        kernel = np.exp(-((np.arange(-radius, radius + 1) * self.h / self.middle) ** 2) / 2)
        for axis in range(1, self.dim + 1):
            convolve1d(grid, kernel, axis=axis, output=grid, mode="constant")
