"""MeshEvolution: problems on meshes whose solution is a function of time; the initial state is random."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from gkn.data.problems.mesh_problem import SHAPES, MeshProblem, deviation
from gkn.geometry.domain import Domain
from gkn.pde.evolution import smooth_start


@dataclass(frozen=True)
class MeshEvolution(MeshProblem):
    """An equation for u(t, x) with u = 0 on the boundary, on a mesh; see `MeshProblem` for its shapes.

    The initial state is u0 = (1 - Lap/tau^2)^-2 w with w ~ N(0, (-Lap + tau^2)^-alpha), scaled to the variance 1. It varies on
    the scale 1/tau, and u0 and Lap u0 are 0 on the boundary.

    end      last time; 0: a time in which the solution changes clearly
    frames   number of times after the initial one at which the solution is recorded, equally spaced
    steps    time steps from one of them to the next
    """

    zero_boundary = True
    inputs = ()
    tau: float = 10.0
    end: float = 0.0
    frames: int = 20
    steps: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.end == 0:
            object.__setattr__(self, "end", self.usual_end(SHAPES[self.shape].length))
        if not (self.end > 0 and math.isfinite(self.end)):
            raise ValueError(f"{self.name}(end={self.end}): needed a finite time > 0, or 0 for the usual one")
        for name in ("frames", "steps"):
            if getattr(self, name) < 1:
                raise ValueError(f"{self.name}({name}={getattr(self, name)}): needed at least 1")
        if self.tau <= 0:
            raise ValueError(f"{self.name}(tau={self.tau}): needed tau > 0, one over the length on which u0 varies")

    def usual_end(self, length: float) -> float:
        """Return the last time if none is given, for a region whose longest side is `length`."""
        raise NotImplementedError

    def times(self) -> Tensor:
        return torch.linspace(0, self.end, self.frames + 1, dtype=torch.float64)

    def initial(self, domain: Domain, draws: Tensor) -> Tensor:
        return smooth_start(domain, draws / deviation(self.field()), 1 / self.tau)


def relative_difference(one: Tensor, other: Tensor) -> Tensor:
    """Return |one - other| / |other| per sample, over all times and points of functions (n, T, K)."""
    away, size = (torch.linalg.vector_norm(x.flatten(1), dim=1) for x in (one - other, other))
    relative: Tensor = away / size.clamp_min(torch.finfo(other.dtype).tiny)
    return relative


def check_positive(name: str, key: str, value: float) -> None:
    if not (value > 0 and math.isfinite(value)):
        raise ValueError(f"{name}({key}={value}): needed a finite number > 0")
