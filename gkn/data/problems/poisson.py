"""Poisson's equation, u = 0 on the boundary: the paper's linear examples on the interval, the square and the disk."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from gkn.data.problems.mesh_problem import shape_of
from gkn.data.problems.problem import Fields, RandomFieldProblem
from gkn.geometry.domain import Domain
from gkn.geometry.fields import GaussianField
from gkn.geometry.grid import Grid
from gkn.geometry.mesh import Mesh
from gkn.pde import darcy_residual, solve_darcy


@dataclass(frozen=True)
class Poisson(RandomFieldProblem):
    """Poisson's equation with a Gaussian field as its source."""

    inputs = ("f",)
    zero_boundary = True

    def solved(self, domain: Domain, draws: Tensor) -> Fields:
        return {"f": draws, "u": solve_darcy(domain, torch.ones_like(draws), draws)}

    def residual(self, domain: Domain, values: Mapping[str, Tensor]) -> Tensor:
        return darcy_residual(domain, 1.0, values["u"], values["f"], per="node")


@dataclass(frozen=True)
class PoissonInterval(Poisson):
    """Example 1 of the paper: f ~ N(0, (-Lap + I)^-1) with periodic modes on [0, 1]."""

    name = "poisson-interval"
    size: int = 129
    tau: float = 1.0
    alpha: float = 1.0
    modes: int = 0

    def domain(self) -> Grid:
        return Grid(self.size, 1)

    def field(self) -> GaussianField:
        return GaussianField(self.tau, self.alpha, "periodic", dim=1, modes=self.modes, constant=True)


@dataclass(frozen=True)
class PoissonSquare(Poisson):
    """Example 2 of the paper: f is the Gaussian field of the Darcy data before thresholding, on [0,1]^2."""

    name = "poisson-square"
    size: int = 61
    tau: float = 3.0
    alpha: float = 2.0
    modes: int = 0

    def domain(self) -> Grid:
        return Grid(self.size, 2)

    def field(self) -> GaussianField:
        return GaussianField(self.tau, self.alpha, "neumann", modes=self.modes, scale=self.tau ** (self.alpha - 1))


@dataclass(frozen=True)
class PoissonDisk(Poisson):
    """The field of `PoissonSquare` on [-1,1]^2, restricted to the unit disk, on a mesh with about `size` points across."""

    name = "poisson-disk"
    on_gpu = False
    size: int = 41
    tau: float = 3.0
    alpha: float = 2.0
    modes: int = 0

    def domain(self) -> Mesh:
        return shape_of("disk", self.size)

    def field(self) -> GaussianField:
        scale = self.tau ** (self.alpha - 1)
        return GaussianField(self.tau, self.alpha, "neumann", modes=self.modes, scale=scale, lower=-1.0, upper=1.0)

    def solved(self, domain: Domain, draws: Tensor) -> Fields:
        return {"f": draws, "u": solve_darcy(domain, 1.0, draws)}
