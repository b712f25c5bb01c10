"""Burgers' equation on the periodic unit interval."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from gkn.data.problems.problem import Fields, RandomFieldProblem
from gkn.geometry.domain import Domain
from gkn.geometry.fields import GaussianField
from gkn.geometry.grid import Grid
from gkn.pde.spectral import solve_burgers


@dataclass(frozen=True)
class Burgers(RandomFieldProblem):
    """u_t + (u^2/2)_x = nu u_xx on the periodic unit interval, from u(0) ~ N(0, 625 (-Lap + 25)^-2).

    It is solved on `fine` nodes and recorded on every (fine/size)-th, so sample i of a seed is one function for every size.
    The initial state is u at time 0; it has mean 0 unless `constant` is set, as the generator of the published data did.

    size     recorded nodes, a divisor of `fine`
    nu       viscosity
    frames   recorded times after time 0, equally spaced up to `end`
    fine     nodes on which it is solved: fronts are about 8 nu / (their jump) wide, so at least 8 / nu. The initial states
             have 512 waves, which take 1024 nodes; on fewer, their short waves look like long ones
    """

    name = "burgers"
    inputs = ()
    outputs = ("u",)
    evolving = ("u",)
    size: int = 256
    nu: float = 0.1
    frames: int = 20
    end: float = 1.0
    fine: int = 1024
    constant: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (math.isfinite(self.nu) and self.nu > 0 and math.isfinite(self.end) and self.end > 0 and self.frames >= 1):
            given = f"nu={self.nu}, end={self.end}, frames={self.frames}"
            raise ValueError(f"burgers({given}): needed finite nu > 0 and end > 0, and frames >= 1")
        check_fine(self.name, self.size, self.fine)
        if self.fine * self.nu < 8:
            needed = 2 ** math.ceil(math.log2(8 / self.nu))
            raise ValueError(f"burgers(nu={self.nu}, fine={self.fine}): too few nodes for its fronts; use fine={needed}")

    def field(self) -> GaussianField:
        return GaussianField(5.0, 2.0, "periodic", dim=1, scale=25.0, constant=self.constant)

    def domain(self) -> Grid:
        return Grid(self.size, 1, periodic=True)

    def times(self) -> Tensor:
        return self.end * torch.arange(self.frames + 1, dtype=torch.float64) / self.frames

    def make(self, seed: int, samples: range, device: str) -> tuple[Fields, list[Domain] | None]:
        fine = Grid(self.fine, 1, periodic=True)
        return self.solved(fine, self.draw(seed, samples, device)(fine)), None

    def solved(self, domain: Domain, draws: Tensor) -> Fields:
        """Return u (n, T, size), given its initial states (n, fine) on the fine grid."""
        return {"u": solve_burgers(draws, self.nu, self.times(), every=self.fine // self.size)}


def check_fine(name: str, size: int, fine: int) -> None:
    """Raise an error if the recorded nodes are not every n-th node of the grid on which a problem is solved."""
    if fine % size:
        sizes = ", ".join(str(n) for n in range(3, fine + 1) if fine % n == 0)
        raise ValueError(f"{name}(size={size}, fine={fine}): size must divide fine; use one of {sizes}")
