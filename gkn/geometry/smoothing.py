"""Smoothing by a Gaussian: a_eps and its gradient, on grids and on any other points."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Shaped
from numpy.typing import NDArray
from torch import Tensor

from gkn.geometry.domain import Domain
from gkn.geometry.grid import Grid

_REACH = 7  # standard deviations; beyond them a Gaussian is under 3e-11, and soon a denormal number, which is slow


def smooth(
    domain: Domain, a: Shaped[Tensor, "*batch K"] | NDArray[Any], width: float
) -> tuple[Float[Tensor, "*batch K"], Float[Tensor, "*batch K d"]]:
    """Return a_eps, the function smoothed by a Gaussian of standard deviation `width` (a length), and its gradient.

        a_eps(x) = int_D G(x-y) a(y) dy / int_D G(x-y) dy

    with the domain's quadrature weights, on grids and meshes alike. Constants are kept up to the boundary, and the
    gradient is exactly that of a_eps.
    """
    return smoother(domain, width)(torch.as_tensor(a))


def smoother(domain: Domain, width: float) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    """Return `smooth` for many functions on one domain. Parts that do not depend on the function are computed once."""
    if not 1e-100 < width < 1e100:
        raise ValueError(f"smooth(width={width}): the standard deviation of the Gaussian is a length > 0")
    apply = _grid_smoother(domain, width) if isinstance(domain, Grid) else _points_smoother(domain, width)

    def checked(a: Tensor) -> tuple[Tensor, Tensor]:
        if a.shape[-1] != len(domain):
            raise ValueError(f"smooth: a of shape {tuple(a.shape)} on a domain of {len(domain)} points")
        return apply(a if a.is_floating_point() else a.double())

    return checked


def _grid_smoother(grid: Grid, width: float) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    """Return the smoother of a grid: the Gaussian is a product, so the sum is one matrix product per axis."""
    kernels, slopes = zip(*(_axis_matrices(grid, axis, width) for axis in range(grid.dim)), strict=True)

    def apply(a: Tensor) -> tuple[Tensor, Tensor]:
        values = a.reshape(*a.shape[:-1], *grid.shape)

        def product(matrices: list[Tensor]) -> Tensor:
            out = values
            for matrix in matrices:  # contract the first axis, append the new one: in the end the order is as before
                out = torch.tensordot(out, matrix.to(a), dims=([-grid.dim], [1]))
            return out.reshape(a.shape)

        gradient = [product([slopes[i] if i == axis else kernels[i] for i in range(grid.dim)]) for axis in range(grid.dim)]
        return product([*kernels]), torch.stack(gradient, -1)

    return apply


def _axis_matrices(grid: Grid, axis: int, width: float) -> tuple[Float[Tensor, "n n"], Float[Tensor, "n n"]]:
    """Return the matrices of one axis that smooth, and that take the derivative of the smoothed function."""
    x = grid.axes[axis]
    difference = x[:, None] - x
    if grid.periodic[axis]:
        difference = difference - grid.sides[axis] * (difference / grid.sides[axis]).round()
    near = difference.abs() <= _REACH * width
    kernel = torch.where(near, torch.exp(-((difference / width) ** 2) / 2) * grid.axis_weights[axis], 0.0)
    kernel = kernel / kernel.sum(1, keepdim=True)  # the denominator is a product too
    slope = -difference / width**2 * kernel
    return kernel, slope - slope.sum(1, keepdim=True) * kernel  # the quotient rule


def _points_smoother(domain: Domain, width: float) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    """Return the smoother of any other points: sums over the neighbours within reach, as sparse matrices."""
    from scipy.sparse import csr_array
    from scipy.spatial import cKDTree

    points = domain.points.numpy()
    pairs = cKDTree(points).query_pairs(_REACH * width, output_type="ndarray")
    diagonal = np.arange(len(points))
    i, j = np.concatenate([pairs[:, 0], pairs[:, 1], diagonal]), np.concatenate([pairs[:, 1], pairs[:, 0], diagonal])
    difference = points[i] - points[j]
    kernel = np.exp(-(difference**2).sum(1) / (2 * width**2)) * domain.weights.numpy()[j]

    def matrix(entries: NDArray[Any]) -> Any:
        return csr_array((entries, (i, j)), shape=(len(points),) * 2)

    average = matrix(kernel)
    slopes = [matrix(-difference[:, axis] / width**2 * kernel) for axis in range(domain.dim)]
    one = np.ones((len(points), 1))
    total = average @ one
    if not (total > 0).all():
        raise ValueError("smooth: a point has no quadrature weight within reach; give the cloud positive weights")

    def apply(a: Tensor) -> tuple[Tensor, Tensor]:
        flat = a.detach().cpu().reshape(-1, len(points)).double().numpy().T
        smoothed = average @ flat / total
        gradient = np.stack([(slope @ flat - smoothed * (slope @ one)) / total for slope in slopes], -1)
        shaped = torch.from_numpy(np.ascontiguousarray(smoothed.T)).reshape(a.shape)
        sloped = torch.from_numpy(gradient.transpose(1, 0, 2).copy()).reshape(*a.shape, domain.dim)
        return shaped.to(a), sloped.to(a)

    return apply
