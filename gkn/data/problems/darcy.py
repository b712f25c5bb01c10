"""Darcy flow on the grids of the unit cube, the paper's data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from gkn.data.problems.problem import Fields, RandomFieldProblem
from gkn.geometry.domain import Domain
from gkn.geometry.fields import GaussianField, check_phases, two_phase
from gkn.geometry.grid import Grid
from gkn.pde import darcy_residual, solve_darcy


@dataclass(frozen=True)
class Darcy(RandomFieldProblem):
    """-div(a grad u) = f, u = 0 on the boundary; a = high where N(0, (-Lap+tau^2)^-alpha) is positive, low elsewhere."""

    name = "darcy"
    inputs = ("a",)
    zero_boundary = True
    size: int = 241
    dim: int = 2
    tau: float = 3.0
    alpha: float = 2.0
    low: float = 3.0
    high: float = 12.0
    f: float = 1.0
    modes: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_darcy(self.low, self.high, self.f)

    def field(self) -> GaussianField:
        return GaussianField(self.tau, self.alpha, "neumann", dim=self.dim, modes=self.modes)

    def domain(self) -> Grid:
        return Grid(self.size, self.dim)

    def solved(self, domain: Domain, draws: Tensor) -> Fields:
        a = two_phase(draws, self.low, self.high)
        return {"a": a, "u": solve_darcy(domain, a, self.f)}

    def residual(self, domain: Domain, values: Mapping[str, Tensor]) -> Tensor:
        return darcy_residual(domain, values["a"], values["u"], self.f, per="node")

    def admissible(self, values: Mapping[str, Tensor]) -> Tensor:
        return super().admissible(values) & (values["a"] > 0).all(1)


def check_darcy(low: float, high: float, f: float) -> None:
    """Raise an error if the phases or the source make no sense."""
    check_phases(low, high)
    if not math.isfinite(f):
        raise ValueError(f"f = {f}: the source must be finite")
