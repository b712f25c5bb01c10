"""The baseline that knows the equation: Galerkin projection on a PCA basis of solutions (DeVore 2014)."""

from __future__ import annotations

import torch
from torch import Tensor

from gkn.geometry.grid import Grid
from gkn.models.rivals.pca import principal
from gkn.pde.finite_differences import check_positive


class ReducedBasis:
    """-div(a grad u) = f, u = 0 on the boundary, in the span of the mean and the first principal functions of solutions.

    Differences of the basis functions are assembled once. What depends on a, one small dense matrix a sample, is a sum over
    the faces of the grid, with the face means of `solve_darcy`: a full basis gives its solution.

    u     (n, K) solutions on a grid
    size  how many functions of the basis beside the mean
    """

    def __init__(self, grid: Grid, u: Tensor, size: int = 200) -> None:
        if not isinstance(grid, Grid):
            raise ValueError(f"ReducedBasis: needs a grid, whose faces it sums over; given a {type(grid).__name__}")
        if grid.size < 3:
            raise ValueError(f"ReducedBasis: a grid of {grid.size} points a side has no interior; needed 3")
        self.grid = grid
        mean, basis, _ = principal(u, grid.weights.to(u.device), size)
        inside = (~grid.boundary).to(u.device).double()
        self.basis = torch.cat([mean[:, None], basis], 1) * inside[:, None]  # (K, q), 0 on the boundary
        images = self.basis.T.reshape(-1, *grid.shape)
        self._differences = [images.diff(dim=axis + 1).flatten(1) for axis in range(grid.dim)]  # 0 along the boundary
        self._inside = inside

    def solve(self, a: Tensor, f: float = 1.0) -> Tensor:
        """Coefficients (n, K) -> solutions (n, K), in float64."""
        check_positive(a)
        return torch.stack([self._one(each.double(), f) for each in a.to(self.basis.device)])

    def _one(self, a: Tensor, f: float) -> Tensor:
        image = a.reshape(1, *self.grid.shape)
        matrix = torch.zeros(2 * self.basis.shape[1:], dtype=torch.float64, device=a.device)
        for axis, differences in enumerate(self._differences, start=1):
            faces = (image.narrow(axis, 0, self.grid.size - 1) + image.narrow(axis, 1, self.grid.size - 1)).reshape(-1) / 2
            matrix += (differences * faces) @ differences.T
        load = f * self.grid.spacing**2 * (self._inside @ self.basis)
        found: Tensor = self.basis @ torch.linalg.solve(matrix, load)
        return found
