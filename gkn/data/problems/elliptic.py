"""Elliptic equations on meshes, driven by a source inside and by values on the boundary."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from gkn.data.problems.darcy import check_darcy
from gkn.data.problems.mesh_problem import MeshProblem, deviation
from gkn.data.problems.problem import Fields
from gkn.geometry.domain import Domain, boundary_values
from gkn.geometry.fields import two_phase
from gkn.pde import darcy_residual, solve_darcy


@dataclass(frozen=True)
class PoissonMesh(MeshProblem):
    """-Lap u = f, u = g on the boundary, with independent Gaussian fields f and g, on a mesh; see `MeshProblem` for its shapes.

    The field "g" of a sample is g on the boundary and 0 at all other points.

    f_size, g_size   standard deviations of f and g. With the defaults the parts of u due to f and due to g have about the same
                     norm: 0.77 and 0.85 on the square, 0.63 and 0.83 on the L-shape, 2.5 and 0.73 on the disk
    """

    name = "poisson"
    inputs = ("f", "g")
    functions = 2
    f_size: float = 50.0
    g_size: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_sizes(self.name, self.f_size, self.g_size)

    def solved(self, domain: Domain, draws: Tensor) -> Fields:
        f, g = self.apart(draws / deviation(self.field()))
        f, g = self.f_size * f, boundary_values(domain, self.g_size * g)
        return {"f": f, "g": g, "u": solve_darcy(domain, torch.ones_like(f), f, g, per="node")}

    def residual(self, domain: Domain, values: Mapping[str, Tensor]) -> Tensor:
        inside = darcy_residual(domain, 1.0, values["u"], values["f"], per="node")
        return torch.maximum(inside, _mismatch(domain, values))


@dataclass(frozen=True)
class DarcySource(MeshProblem):
    """-div(a grad u) = f, u = g on the boundary, on a mesh: the coefficient, the source and the boundary values all vary.

    a is that of `Darcy`, f is 1 plus a Gaussian field, g a Gaussian field. The field "g" of a sample is g on the boundary and 0
    at all other points.

    f_size, g_size   standard deviations of f and g. With the defaults the parts of u due to f and due to g have about the same
                     norm: 0.0076 and 0.0075 on the square, 0.0058 and 0.0079 on the L-shape, 0.023 and 0.0063 on the disk
    """

    name = "darcy-fg"
    inputs = ("a", "f", "g")
    functions = 3
    low: float = 3.0
    high: float = 12.0
    f_size: float = 1.0
    g_size: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        check_darcy(self.low, self.high, 1.0)
        _check_sizes(self.name, self.f_size, self.g_size)

    def solved(self, domain: Domain, draws: Tensor) -> Fields:
        a, f, g = self.apart(draws / deviation(self.field()))
        a, f, g = two_phase(a, self.low, self.high), 1 + self.f_size * f, boundary_values(domain, self.g_size * g)
        return {"a": a, "f": f, "g": g, "u": solve_darcy(domain, a, f, g, per="node")}

    def residual(self, domain: Domain, values: Mapping[str, Tensor]) -> Tensor:
        inside = darcy_residual(domain, values["a"], values["u"], values["f"], per="node")
        return torch.maximum(inside, _mismatch(domain, values))

    def admissible(self, values: Mapping[str, Tensor]) -> Tensor:
        return super().admissible(values) & (values["a"] > 0).all(1)


def _mismatch(domain: Domain, values: Mapping[str, Tensor]) -> Tensor:
    """Return the largest difference between u and g on the boundary, per sample, relative to the largest value of u."""
    u, g = values["u"], values["g"]
    away = (u - g)[..., domain.boundary].abs().amax(-1)
    return away / u.abs().amax(-1).clamp_min(torch.finfo(u.dtype).tiny)


def _check_sizes(name: str, f_size: float, g_size: float) -> None:
    """Raise an error unless both standard deviations are numbers >= 0 and one of them is not 0."""
    if not (0 <= f_size < math.inf and 0 <= g_size < math.inf and f_size + g_size > 0):
        raise ValueError(f"{name}(f_size={f_size}, g_size={g_size}): needed finite numbers >= 0 that are not both 0")
