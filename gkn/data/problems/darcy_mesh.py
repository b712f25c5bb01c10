"""Darcy flow on unstructured meshes, solved by finite elements."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from gkn.data.problems.darcy import check_darcy
from gkn.data.problems.mesh_problem import MeshProblem
from gkn.data.problems.problem import Fields
from gkn.geometry.domain import Domain
from gkn.geometry.fields import two_phase
from gkn.pde import darcy_residual, solve_darcy


@dataclass(frozen=True)
class DarcyMesh(MeshProblem):
    """The coefficients of `Darcy` on an unstructured mesh with about `size` points across; see `MeshProblem` for its shapes.

    In [0,1]^2 sample i of a seed is the same function a as sample i of that seed of `Darcy`.
    """

    name = "darcy-mesh"
    inputs = ("a",)
    zero_boundary = True
    low: float = 3.0
    high: float = 12.0
    f: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_darcy(self.low, self.high, self.f)

    def solved(self, domain: Domain, draws: Tensor) -> Fields:
        a = two_phase(draws, self.low, self.high)
        return {"a": a, "u": solve_darcy(domain, a, self.f, per="node")}

    def residual(self, domain: Domain, values: Mapping[str, Tensor]) -> Tensor:
        return darcy_residual(domain, values["a"], values["u"], self.f, per="node")

    def admissible(self, values: Mapping[str, Tensor]) -> Tensor:
        return super().admissible(values) & (values["a"] > 0).all(1)
