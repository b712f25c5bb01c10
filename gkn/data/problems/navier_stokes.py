"""The Navier-Stokes equation of a forced viscous fluid on the periodic unit square."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from gkn.data.problems.burgers import check_fine
from gkn.data.problems.problem import Fields, RandomFieldProblem
from gkn.geometry.domain import Domain
from gkn.geometry.fields import GaussianField
from gkn.geometry.grid import Grid
from gkn.pde.spectral import solve_navier_stokes

COURANT = 1.0
"""Cells that the fastest point crosses in a step. Half as many change w by 2e-5 of its norm (256 x 256, nu = 1e-5)."""


@dataclass(frozen=True)
class NavierStokes(RandomFieldProblem):
    """w_t + v . grad w = nu Lap w + 0.1 (sin 2 pi (x + y) + cos 2 pi (x + y)), w(0) ~ N(0, 7^3 (-Lap + 49)^-2.5) with mean 0.

    w is the vorticity, v = (psi_y, -psi_x) with -Lap psi = w the velocity, on the periodic unit square. It is solved on
    fine x fine nodes and recorded on every (fine/size)-th of each axis, at the times 0, 1, ..., end. The force is an input,
    the same for all samples: on periodic domains networks do not see coordinates.

    size   recorded nodes per axis, a divisor of `fine`
    nu     viscosity: 1e-3, 1e-4 and 1e-5 in the published data
    fine   nodes per axis on which it is solved
    """

    name = "navier-stokes"
    inputs = ("force",)
    outputs = ("w",)
    evolving = ("w",)
    size: int = 64
    nu: float = 1e-3
    end: int = 20
    fine: int = 256

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (math.isfinite(self.nu) and self.nu > 0 and self.end >= 1 and self.end == int(self.end)):
            raise ValueError(
                f"navier-stokes(nu={self.nu}, end={self.end}): needed a finite nu > 0, and a whole number end >= 1"
            )
        check_fine(self.name, self.size, self.fine)

    def field(self) -> GaussianField:
        return GaussianField(7.0, 2.5, "periodic", scale=7**1.5)

    def domain(self) -> Grid:
        return Grid(self.size, periodic=True)

    def times(self) -> Tensor:
        return torch.arange(self.end + 1, dtype=torch.float64)

    def make(self, seed: int, samples: range, device: str) -> tuple[Fields, list[Domain] | None]:
        fine = Grid(self.fine, periodic=True)
        return self.solved(fine, self.draw(seed, samples, device)(fine)), None

    def solved(self, domain: Domain, draws: Tensor) -> Fields:
        """Return w (n, T, size^2), given its initial states (n, fine^2) on the fine grid."""
        angle = 2 * math.pi * domain.points.sum(1).to(draws.device)
        force = (0.1 * (angle.sin() + angle.cos())).reshape(self.fine, self.fine)
        w0, every = draws.reshape(-1, self.fine, self.fine), self.fine // self.size
        w = solve_navier_stokes(w0, self.nu, self.times(), forcing=force, every=every, courant=COURANT)
        return {"force": force[::every, ::every].flatten().expand(len(w), -1), "w": w.flatten(2)}
