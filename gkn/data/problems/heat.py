"""The heat equation on meshes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from gkn.data.problems.evolving import MeshEvolution, check_positive, relative_difference
from gkn.data.problems.problem import Fields
from gkn.geometry.domain import Domain
from gkn.pde import solve_heat


@dataclass(frozen=True)
class Heat(MeshEvolution):
    """u_t = kappa Lap u, u = 0 on the boundary; see `MeshEvolution` for the initial state."""

    name = "heat"
    evolving = ("u",)
    kappa: float = 1.0

    def __post_init__(self) -> None:
        check_positive(self.name, "kappa", self.kappa)
        super().__post_init__()

    def usual_end(self, length: float) -> float:
        """Return a time after which the norm of u is about a third of that at the beginning."""
        return 0.02 * length**2 / self.kappa

    def solved(self, domain: Domain, draws: Tensor) -> Fields:
        start = self.initial(domain, draws)
        return {"u": solve_heat(domain, start, self.times(), kappa=self.kappa, steps=self.steps)}

    def residual(self, domain: Domain, values: Mapping[str, Tensor]) -> Tensor:
        """Return the relative difference from a solution that is computed from the initial state again."""
        u = values["u"]
        again = solve_heat(domain, u[:, 0], self.times(), kappa=self.kappa, steps=self.steps)
        return relative_difference(u, again)
