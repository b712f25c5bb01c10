"""The wave equation on meshes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from gkn.data.problems.evolving import MeshEvolution, check_positive, relative_difference
from gkn.data.problems.problem import Fields
from gkn.geometry.domain import Domain
from gkn.pde import solve_wave


@dataclass(frozen=True)
class Wave(MeshEvolution):
    """u_tt = c^2 Lap u, u = 0 on the boundary, u_t = 0 at time 0; see `MeshEvolution` for the initial u.

    The state of this equation is u together with u_t.
    """

    name = "wave"
    outputs = ("u", "u_t")
    evolving = ("u", "u_t")
    steps: int = 8
    c: float = 1.0

    def __post_init__(self) -> None:
        check_positive(self.name, "c", self.c)
        super().__post_init__()

    def usual_end(self, length: float) -> float:
        """Return the time in which waves cross half of the region."""
        return 0.5 * length / self.c

    def solved(self, domain: Domain, draws: Tensor) -> Fields:
        u, v = solve_wave(domain, self.initial(domain, draws), self.times(), c=self.c, steps=self.steps)
        return {"u": u, "u_t": v}

    def residual(self, domain: Domain, values: Mapping[str, Tensor]) -> Tensor:
        """Return the relative difference from a solution that is computed from the initial state again, of u or of u_t."""
        u, v = values["u"], values["u_t"]
        again = solve_wave(domain, u[:, 0], self.times(), v0=v[:, 0], c=self.c, steps=self.steps)
        return torch.maximum(relative_difference(u, again[0]), relative_difference(v, again[1]))
