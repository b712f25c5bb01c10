"""The baseline that knows the equation: Galerkin projection on a PCA basis of solutions (DeVore 2014)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gkn.data.dataset import Dataset
from gkn.data.normalizer import Normalizer
from gkn.geometry.domain import Domain
from gkn.graph.graph import Graph
from gkn.models.model import Defaults, Model, check_sizes
from gkn.models.rivals.dense import check_points
from gkn.models.rivals.pca import one_dataset, principal
from gkn.pde.finite_differences import check_positive


class ReducedBasis:
    """-div(a grad u) = f, u = 0 on the boundary, in the span of given functions on a grid.

    Differences of the basis functions are assembled once. What depends on a, one small dense matrix per sample, is a sum over
    the faces of the grid, with the face means of `solve_darcy`: a full basis gives its solution.

        shape   nodes per axis
        basis   (K, q), float64, 0 on the boundary
    """

    def __init__(self, shape: Sequence[int], basis: Tensor) -> None:
        self.shape, self.basis = tuple(shape), basis
        images = basis.T.reshape(-1, *self.shape)
        self._differences = [images.diff(dim=axis + 1).flatten(1) for axis in range(len(self.shape))]  # 0 along the boundary

    @staticmethod
    def of(domain: Domain, u: Tensor, size: int) -> ReducedBasis:
        """Return the basis of the mean and the first `size` principal functions of solutions u (n, K)."""
        if domain.shape is None:
            raise ValueError(f"RBM needs a regular grid, whose faces it sums over; given {domain.describe()}. Use NearFar")
        if min(domain.shape) < 3:
            raise ValueError(f"RBM: a grid of {min(domain.shape)} points a side has no interior; needed 3")
        mean, basis, _ = principal(u, domain.weights.to(u.device), size)
        inside = (~domain.boundary).to(u.device).double()
        return ReducedBasis(domain.shape, torch.cat([mean[:, None], basis], 1) * inside[:, None])

    def solve(self, a: Tensor, f: float = 1.0) -> Tensor:
        """Return solutions (n, K), given coefficients (n, K), in float64."""
        check_positive(a)
        return torch.stack([self._one(each.double(), f) for each in a.to(self.basis.device)])

    def _one(self, a: Tensor, f: float) -> Tensor:
        image = a.reshape(1, *self.shape)
        matrix = torch.zeros(2 * self.basis.shape[1:], dtype=torch.float64, device=a.device)
        for axis, differences in enumerate(self._differences, start=1):
            size = self.shape[axis - 1]
            faces = (image.narrow(axis, 0, size - 1) + image.narrow(axis, 1, size - 1)).reshape(-1) / 2
            matrix += (differences * faces) @ differences.T
        load = f / (self.shape[0] - 1) ** 2 * self.basis.sum(0)
        found: Tensor = self.basis @ torch.linalg.solve(matrix, load)
        return found


class RBM(Model):
    """The reduced basis method as a model without parameters. It needs coefficients a > 0 on a regular grid.

    points   nodes per axis
    size     number of principal functions
    f        source of the equation
    """

    settings = ("points", "size", "f")
    basis: Tensor
    scales: Tensor

    def __init__(
        self, dim: int, in_channels: int = 1, out_channels: int = 1, points: int = 3, size: int = 200, f: float = 1.0
    ) -> None:
        super().__init__(dim, in_channels, out_channels)
        if in_channels != 1 or out_channels != 1:
            raise ValueError(f"RBM maps one field to one field; given {in_channels} and {out_channels}: use Dataset.using")
        check_sizes("RBM", points=points, size=size)
        self.points, self.size, self.f = points, size, f
        self.register_buffer("basis", torch.zeros(points**dim, size + 1, dtype=torch.float64))
        self.register_buffer("scales", torch.ones(4, dtype=torch.float64))  # mean and std of a, mean and std of u
        self._solver: ReducedBasis | None = None

    @classmethod
    def defaults(cls, dataset: Dataset, recipe: str | None = None) -> Defaults:
        shape = dataset.domain.shape
        if shape is None:
            raise ValueError(f"RBM needs a regular grid; this dataset is on {dataset.domain.describe()}. Use NearFar")
        settings = {"points": shape[0], "size": max(1, min(200, len(dataset) - 1))}
        return Defaults(settings, {"kind": "Points"}, "ours", {"epochs": 1, "batch": 64})

    def prepare(self, datasets: Sequence[Dataset], inputs: Normalizer, outputs: Normalizer) -> None:
        """Compute the basis from the training solutions."""
        (dataset,) = one_dataset(self, datasets)
        u = dataset.field(dataset.outputs[0]).to(self.basis.device)
        basis = ReducedBasis.of(dataset.domain, u, self.size).basis
        self.basis, self.size = basis, basis.shape[1] - 1
        numbers = [inputs.mean, inputs.std, outputs.mean, outputs.std]
        self.scales = torch.cat([x.reshape(-1)[:1] for x in numbers]).to(self.basis)
        self._solver = None

    def forward(self, graph: Graph, x: Tensor, a: Tensor, weights: Tensor | None = None) -> Tensor:
        check_points(self, graph, self.points**self.dim)
        if self._solver is None or self._solver.basis is not self.basis:
            self._solver = ReducedBasis((self.points,) * self.dim, self.basis.double())
        a_mean, a_std, u_mean, u_std = self.scales.double()
        raw = a.double() * a_std + a_mean
        u = self._solver.solve(raw.reshape(-1, self.points**self.dim), self.f)
        normalised: Tensor = (u.reshape(-1, 1) - u_mean) / u_std
        return normalised.to(a.dtype)
