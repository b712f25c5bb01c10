"""Darcy flow on unstructured meshes, solved by finite elements."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from gkn.data.problems.darcy import check_darcy
from gkn.data.problems.problem import Fields, RandomFieldProblem
from gkn.geometry.domain import Domain
from gkn.geometry.fields import GaussianField, Series, two_phase
from gkn.geometry.mesh import Mesh
from gkn.pde import darcy_residual, solve_darcy
from gkn.system.randomness import stream

SHAPES: dict[str, Callable[[float], Mesh]] = {
    "square": Mesh.square,
    "holes": Mesh.holes,
    "l-shape": Mesh.l_shape,
    "disk": Mesh.disk,
}


def shape_of(shape: str, size: int) -> Mesh:
    """Return a mesh of a named shape with about `size` points across."""
    return SHAPES[shape]((2.0 if shape == "disk" else 1.0) / (size - 1))


@dataclass(frozen=True)
class DarcyMesh(RandomFieldProblem):
    """The coefficients of `Darcy` on an unstructured mesh with about `size` points across.

    In [0,1]^2 sample i of a seed is the same function a as sample i of that seed of `Darcy`.

    shape   square, holes, l-shape (in [0,1]^2) or disk (the unit disk, the field on [-1,1]^2)
    vary    every sample has its own mesh, with edges of another length, and for "holes" another hole in another place
    """

    name = "darcy-mesh"
    inputs = ("a",)
    zero_boundary = True
    on_gpu = False
    size: int = 41
    shape: str = "square"
    vary: bool = False
    tau: float = 3.0
    alpha: float = 2.0
    low: float = 3.0
    high: float = 12.0
    f: float = 1.0
    modes: int = 0

    def __post_init__(self) -> None:
        if self.shape not in SHAPES:
            raise ValueError(f"darcy-mesh(shape={self.shape!r}): use one of {', '.join(SHAPES)}")
        super().__post_init__()
        check_darcy(self.low, self.high, self.f)

    def field(self) -> GaussianField:
        low, high = (-1.0, 1.0) if self.shape == "disk" else (0.0, 1.0)
        return GaussianField(self.tau, self.alpha, "neumann", modes=self.modes, lower=low, upper=high)

    def domain(self) -> Mesh | None:
        return None if self.vary else shape_of(self.shape, self.size)

    def points(self) -> int:
        return self.size**2 if self.vary else super().points()

    def mesh(self, seed: int, sample: int) -> Mesh:
        """Return the mesh of one sample, if each has its own."""
        rng = stream(seed, sample, 1)  # another stream than the field's
        h, x, y, radius = torch.rand(4, dtype=torch.float64, generator=rng).tolist()
        h = 2 ** (h - 0.5) / (self.size - 1)
        if self.shape == "holes":
            return Mesh.holes(h, [(0.3 + 0.4 * x, 0.3 + 0.4 * y, 0.08 + 0.12 * radius)])
        return SHAPES[self.shape](2 * h if self.shape == "disk" else h)

    def make(self, seed: int, samples: range, device: str) -> tuple[Fields, list[Domain] | None]:
        if not self.vary:
            return super().make(seed, samples, device)
        series = self.draw(seed, samples, device)
        meshes = [self.mesh(seed, i) for i in samples]
        draws = [Series(series.field, each[None])(mesh) for each, mesh in zip(series.coefficients, meshes, strict=True)]
        made = [self.solved(mesh, draw) for mesh, draw in zip(meshes, draws, strict=True)]
        return {name: [each[name][0] for each in made] for name in ("a", "u")}, [*meshes]

    def solved(self, domain: Domain, draws: Tensor) -> Fields:
        a = two_phase(draws, self.low, self.high)
        return {"a": a, "u": solve_darcy(domain, a, self.f, per="node")}

    def residual(self, domain: Domain, values: Mapping[str, Tensor]) -> Tensor:
        return darcy_residual(domain, values["a"], values["u"], self.f, per="node")

    def admissible(self, values: Mapping[str, Tensor]) -> Tensor:
        return super().admissible(values) & (values["a"] > 0).all(1)
