"""MeshProblem: problems on meshes of named shapes, all samples on one mesh or each on its own."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

import torch
from torch import Tensor

from gkn.data.problems.problem import Fields, RandomFieldProblem
from gkn.geometry.domain import Domain
from gkn.geometry.fields import GaussianField, Series
from gkn.geometry.mesh import Mesh
from gkn.system.randomness import stream


@dataclass(frozen=True)
class Shape:
    """A region in the cube [lower, upper]^dim, and the function that meshes it with edges of about a given length."""

    mesh: Callable[[float], Mesh]
    dim: int = 2
    lower: float = 0.0
    upper: float = 1.0

    @property
    def length(self) -> float:
        return self.upper - self.lower


SHAPES: dict[str, Shape] = {
    "square": Shape(Mesh.square),
    "holes": Shape(Mesh.holes),
    "l-shape": Shape(Mesh.l_shape),
    "disk": Shape(Mesh.disk, lower=-1.0),
    "interval": Shape(Mesh.interval, dim=1),
    "cube": Shape(Mesh.cube, dim=3),
    "ball": Shape(Mesh.ball, dim=3, lower=-1.0),
}
_SIZES = {1: 129, 2: 41, 3: 13}


def shape_of(shape: str, size: int) -> Mesh:
    """Return a mesh of a named shape with about `size` points across."""
    return SHAPES[shape].mesh(SHAPES[shape].length / (size - 1))


@dataclass(frozen=True)
class MeshProblem(RandomFieldProblem):
    """A problem on an unstructured mesh, with inputs drawn from the Gaussian field N(0, (-Lap + tau^2)^-alpha).

    functions   number of independent draws that make one sample
    size        points across, about; 0: 129, 41 or 13 in 1, 2 or 3 dimensions
    shape       square, holes, l-shape, interval, cube (in [0,1]^d), disk or ball (around the origin, of radius 1)
    alpha       0: 1 + d/2, so that fields in d dimensions are as smooth as those of `Darcy` in the plane. In space, with
                alpha = 2, they have no values on a boundary, and finite elements on 13 points across are 5 to 9 percent off
    vary        every sample has its own mesh, with edges of another length, and for "holes" another hole in another place
    """

    functions: ClassVar[int] = 1
    on_gpu = False
    size: int = 0
    shape: str = "square"
    vary: bool = False
    tau: float = 3.0
    alpha: float = 0.0
    modes: int = 0

    def __post_init__(self) -> None:
        if self.shape not in SHAPES:
            raise ValueError(f"{self.name}(shape={self.shape!r}): use one of {', '.join(SHAPES)}")
        if self.size == 0:
            object.__setattr__(self, "size", _SIZES[SHAPES[self.shape].dim])
        if self.alpha == 0:
            object.__setattr__(self, "alpha", 1 + SHAPES[self.shape].dim / 2)
        super().__post_init__()

    def field(self) -> GaussianField:
        shape = SHAPES[self.shape]
        cube: dict[str, Any] = {"dim": shape.dim, "lower": shape.lower, "upper": shape.upper}
        return GaussianField(self.tau, self.alpha, "neumann", modes=self.modes, **cube)

    def domain(self) -> Mesh | None:
        return None if self.vary else shape_of(self.shape, self.size)

    def points(self) -> int:
        return int(self.size ** SHAPES[self.shape].dim) if self.vary else super().points()

    def mesh(self, seed: int, sample: int) -> Mesh:
        """Return the mesh of one sample, if each has its own. It has half to twice the number of points."""
        shape, rng = SHAPES[self.shape], stream(seed, sample, 1)  # another stream than the field's
        h, x, y, radius = torch.rand(4, dtype=torch.float64, generator=rng).tolist()
        h = 2 ** (2 * (h - 0.5) / shape.dim) * shape.length / (self.size - 1)
        if self.shape == "holes":
            return Mesh.holes(h, [(0.3 + 0.4 * x, 0.3 + 0.4 * y, 0.08 + 0.12 * radius)])
        return shape.mesh(h)

    def draw(self, seed: int, samples: range, device: str) -> Series:
        """Draw the functions of every sample from its own generator; those of the first sample come first."""
        field = self.field()
        return Series(field, torch.cat([field.draw(self.functions, stream(seed, i)).coefficients for i in samples]))

    def make(self, seed: int, samples: range, device: str) -> tuple[Fields, list[Domain] | None]:
        """Make samples one by one, so that rounding does not depend on which are made together."""
        common = self.domain()
        meshes = [self.mesh(seed, i) if common is None else common for i in samples]
        draws = [self.draw(seed, range(i, i + 1), "cpu")(mesh) for i, mesh in zip(samples, meshes, strict=True)]
        if common is not None:
            return self.solved(common, torch.cat(draws)), None
        made = [self.solved(mesh, draw) for mesh, draw in zip(meshes, draws, strict=True)]
        return {name: [each[name][0] for each in made] for name in (*self.inputs, *self.outputs)}, [*meshes]

    def apart(self, draws: Tensor) -> tuple[Tensor, ...]:
        """Return the draws (n, K) of each function, given those of all functions of n samples."""
        return tuple(draws[j :: self.functions] for j in range(self.functions))


@cache
def deviation(field: GaussianField) -> float:
    """Return the standard deviation of a field: the square root of its variance, averaged over the cube."""
    return math.sqrt(float((field.deviations() ** 2).sum()) / field.length**field.dim)
