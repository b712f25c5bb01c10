"""Plates with a hole under tension, in plane stress: another geometry for every sample."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from gkn.data.problems.problem import Problem
from gkn.geometry import shapes
from gkn.geometry.domain import Domain
from gkn.geometry.mesh import Mesh
from gkn.pde.elasticity import solve_plane_stress

WIDTH, HEIGHT, MARGIN = 200.0, 100.0, 8.0  # mm; MARGIN is the least distance between the hole and an edge
STEEL = 210_000.0  # Young's modulus in MPa


@dataclass(frozen=True)
class Plate(Problem):
    """A plate of 200 x 100 mm with an elliptical hole, clamped on the left edge and pulled on the right one.

    Hole, Young's modulus E (MPa, smooth, between half and twice that of steel) and traction (MPa) are random. Outputs are the
    displacement (mm) and the von Mises stress (MPa). The stress is infinite at the two clamped corners, where its values depend
    on the mesh.

    size      length of edges, about, in mm
    low, high the least and the largest traction
    poisson   Poisson's ratio
    """

    name = "plate"
    inputs = ("E", "traction")
    outputs = ("displacement", "von_mises")
    parameters = ("traction",)
    vectors: ClassVar[Mapping[str, int]] = {"displacement": 2}
    size: float = 6.0
    low: float = 50.0
    high: float = 150.0
    poisson: float = 0.3

    def __post_init__(self) -> None:
        if not 0 < self.size <= HEIGHT:
            raise ValueError(f"plate(size={self.size}): the length of edges; needed 0 < size <= {HEIGHT:g}")
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low <= self.high):
            raise ValueError(f"plate(low={self.low}, high={self.high}): tractions; needed low <= high, both finite")
        if not -1 < self.poisson < 0.5:
            raise ValueError(f"plate(poisson={self.poisson}): needed a number between -1 and 0.5")

    def drawn(self, seed: int, i: int) -> tuple[Mesh, Modulus, float]:
        """Return the mesh, Young's modulus as a function, and the traction of sample i."""
        rng = np.random.default_rng([seed, i])
        a, b = rng.uniform(8, 25, 2)
        angle = rng.uniform(0, np.pi)
        half = np.hypot([a * np.cos(angle), a * np.sin(angle)], [b * np.sin(angle), b * np.cos(angle)])  # of the bounding box
        x, y = rng.uniform(half + MARGIN, np.array([WIDTH, HEIGHT]) - half - MARGIN)
        waves, phases = rng.uniform(-2 * np.pi / 80, 2 * np.pi / 80, (4, 2)), rng.uniform(0, 2 * np.pi, 4)
        modulus = Modulus(waves, phases, rng.dirichlet(np.ones(4)))
        return self.mesh(ellipse((x, y), (a, b), angle)), modulus, float(rng.uniform(self.low, self.high))

    def mesh(self, hole: Sequence[tuple[float, float]]) -> Mesh:
        """Mesh the plate without the polygon `hole`, given by its corners counter-clockwise."""
        corners = [(0.0, 0.0), (WIDTH, 0.0), (WIDTH, HEIGHT), (0.0, HEIGHT)]
        return Mesh(*shapes.polygon(corners, [hole], self.size, grading=0.2))

    def sample(self, seed: int, i: int) -> tuple[Domain, dict[str, Tensor]]:
        mesh, modulus, traction = self.drawn(seed, i)
        displacement, von_mises = solve_plane_stress(
            mesh, modulus, (traction, 0.0), right, {0: left, 1: left}, poisson=self.poisson
        )
        force = torch.tensor(traction, dtype=torch.float64)
        return mesh, {"E": modulus(mesh.points), "traction": force, "displacement": displacement, "von_mises": von_mises}

    def points(self) -> int:
        return int(WIDTH * HEIGHT / (math.sqrt(0.75) * self.size**2))  # of equilateral triangles


@dataclass(frozen=True, eq=False)
class Modulus:
    """Young's modulus STEEL 2^s, where s is a sum of four cosines whose weights sum to 1."""

    waves: NDArray[Any]  # (4, 2)
    phases: NDArray[Any]
    weights: NDArray[Any]

    def __call__(self, x: Float[Tensor, "P 2"]) -> Float[Tensor, " P"]:
        angles = x.numpy() @ self.waves.T + self.phases
        return torch.from_numpy(STEEL * 2.0 ** (np.cos(angles) @ self.weights))


def ellipse(
    centre: tuple[float, float], axes: tuple[float, float], angle: float, corners: int = 48
) -> list[tuple[float, float]]:
    """Return points on an ellipse, counter-clockwise, which are close to each other where it is curved.

    axes   half axes; the first one has the given angle to the x axis
    """
    (x, y), (a, b), t = centre, axes, np.linspace(0, 2 * np.pi, corners, endpoint=False)
    c, s = np.cos(angle), np.sin(angle)
    points = np.stack([x + a * c * np.cos(t) - b * s * np.sin(t), y + a * s * np.cos(t) + b * c * np.sin(t)], axis=1)
    return [(x, y) for x, y in points.tolist()]


def left(x: Tensor) -> Tensor:
    return x[:, 0].abs() < 1e-6


def right(x: Tensor) -> Tensor:
    return (x[:, 0] - WIDTH).abs() < 1e-6
