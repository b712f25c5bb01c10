"""Random fields as functions: one draw can be evaluated on any grid, any mesh and at any points."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from gkn.geometry import transforms
from gkn.geometry.domain import Domain
from gkn.geometry.grid import Grid
from gkn.system.checks import check_finite, check_inside

Boundary = Literal["neumann", "periodic", "dirichlet"]
_FAST: dict[str, Callable[[Tensor, int, int], Tensor]] = {
    "neumann": transforms.cosines,
    "dirichlet": transforms.sines,
    "periodic": transforms.harmonics,
}
_MODES = {1: 1024, 2: 512, 3: 64}
_CHUNK = 2**24  # numbers held at once


@dataclass(frozen=True)
class GaussianField:
    """N(0, scale^2 (-Lap + tau^2)^-alpha) on the cube [lower, upper]^dim, as a series of `modes` eigenfunctions per axis.

        a(x) = sum_k scale (lambda_k + tau^2)^(-alpha/2) xi_k phi_k(x),   xi_k ~ N(0, 1),   int phi_k^2 = 1

    `boundary` is that of the Laplacian: "neumann" (cosines), "dirichlet" (sines), "periodic" (both). The constant
    mode is left out unless `constant` is set, as the generator of the paper's data did.
    """

    tau: float
    alpha: float
    boundary: Boundary = "neumann"
    dim: int = 2
    modes: int = 0  # 0: 1024, 512, 64 per axis in 1, 2, 3 dimensions
    scale: float = 1.0
    constant: bool = False
    lower: float = 0.0
    upper: float = 1.0

    def __post_init__(self) -> None:
        if self.boundary not in _FAST:
            raise ValueError(f"GaussianField(boundary={self.boundary!r}): use one of {', '.join(map(repr, _FAST))}")
        if self.dim not in (1, 2, 3):
            raise ValueError(f"GaussianField(dim={self.dim}): dim must be 1, 2 or 3")
        if not self.alpha > self.dim / 2:
            raise ValueError(
                f"GaussianField(alpha={self.alpha}, dim={self.dim}): draws have point values only for alpha > dim/2"
            )
        finite = all(map(math.isfinite, (self.tau, self.alpha, self.scale, self.lower, self.upper)))
        if not (finite and self.tau >= 0 and self.scale > 0 and self.upper > self.lower and self.modes >= 0):
            raise ValueError(f"{self}: needed tau >= 0, scale > 0, upper > lower, modes >= 0, all finite")
        if self.tau == 0 and self.constant:
            raise ValueError("GaussianField(tau=0, constant=True): the constant mode would have infinite variance")
        if not self.modes:
            object.__setattr__(self, "modes", _MODES[self.dim])
        if self.modes**self.dim > 2**31:
            raise ValueError(
                f"GaussianField(modes={self.modes}, dim={self.dim}): {self.modes**self.dim:.1e} coefficients are too many"
            )
        lowest = 0.0 if self.constant else math.pi / self.length
        try:
            largest = self.scale * (lowest**2 + self.tau**2) ** (-self.alpha / 2)
        except ArithmeticError:
            largest = math.inf
        if not math.isfinite(largest):
            raise ValueError(f"{self}: a variance of it is no finite number")

    @property
    def length(self) -> float:
        return self.upper - self.lower

    def frequencies(self) -> Float[Tensor, " M"]:
        """Square roots of the eigenvalues of the eigenfunctions of one axis."""
        j = torch.arange(self.modes, dtype=torch.float64)
        if self.boundary == "periodic":
            return 2 * math.pi * ((j + 1) // 2) / self.length
        return math.pi * (j + (self.boundary == "dirichlet")) / self.length

    def deviations(self) -> Float[Tensor, "*M"]:
        """Standard deviation of each coefficient; one axis of the tensor per dimension."""
        squares = self.frequencies() ** 2
        eigenvalues = squares
        for _ in range(self.dim - 1):
            eigenvalues = eigenvalues.unsqueeze(-1) + squares
        out = self.scale * (eigenvalues + self.tau**2) ** (-self.alpha / 2)
        if self.boundary != "dirichlet" and not self.constant:
            out[(0,) * self.dim] = 0.0
        return out

    def draw(self, n: int, rng: torch.Generator) -> Series:
        """Draw n random functions one after the other, so that the first ones do not depend on n."""
        shape = (self.modes,) * self.dim
        xi = [torch.randn(shape, dtype=torch.float64, generator=rng) for _ in range(n)]
        stacked = torch.stack(xi) if xi else torch.empty(0, *shape, dtype=torch.float64)
        return Series(self, stacked.mul_(_cached_deviations(self)))

    def sample(self, domain: Domain, n: int, rng: torch.Generator) -> Float[Tensor, "n K"]:
        """Draw n random functions on the points of `domain`, without holding all their coefficients at once."""
        chunk = max(1, _CHUNK // self.modes**self.dim)
        parts = [self.draw(min(chunk, n - i), rng)(domain) for i in range(0, n, chunk)]
        return torch.cat(parts) if parts else torch.empty(0, len(domain), dtype=torch.float64)


@cache
def _cached_deviations(field: GaussianField) -> Tensor:
    return field.deviations()


@dataclass(frozen=True, eq=False)
class Series:
    """Functions drawn from a field. Call with a domain, or with (P, d) points; both give the same values."""

    field: GaussianField
    coefficients: Float[Tensor, "n ..."]

    def to(self, device: torch.device | str) -> Series:
        return Series(self.field, self.coefficients.to(device))

    def __call__(self, where: Domain | Float[Tensor, "P d"]) -> Float[Tensor, "n P"]:
        field = self.field
        if isinstance(where, Grid) and self._is_fast(where):
            if where.dim != field.dim:
                raise ValueError(f"a field of dimension {field.dim} was asked for on a grid of dimension {where.dim}")
            return self._on_grid(where)
        return self._at(where if isinstance(where, Tensor) else where.points)

    def _is_fast(self, grid: Grid) -> bool:
        """True if FFTs give the values: the box of the grid is that of the field, and an axis starts with a node."""
        return grid.nodes != "centres" and {*grid.low} == {self.field.lower} and {*grid.high} == {self.field.upper}

    def _on_grid(self, grid: Grid) -> Float[Tensor, "n K"]:
        values = self.coefficients
        fast = _FAST[self.field.boundary]
        norm = self._norm(values.device)
        for axis in range(1, self.field.dim + 1):
            values = values * norm.reshape(-1, *(1,) * (self.field.dim - axis))
            if self.field.boundary == "dirichlet":  # sin(pi k x) starts at k = 1
                values = torch.cat([torch.zeros_like(values.narrow(axis, 0, 1)), values], axis)
            size = grid.shape[axis - 1]
            lacks_end = grid.periodic[axis - 1] or grid.nodes == "left"
            values = fast(values, size + lacks_end, axis).narrow(axis, 0, size)
        return values.reshape(len(values), -1)

    def _at(self, points: Float[Tensor, "P d"]) -> Float[Tensor, "n P"]:
        field = self.field
        points = torch.as_tensor(points, dtype=torch.float64, device=self.coefficients.device)
        if points.ndim != 2 or points.shape[1] != field.dim:
            raise ValueError(f"points of shape {tuple(points.shape)}; needed (P, {field.dim}) for this field")
        check_finite(points, "points")
        inside = ((points >= field.lower - 1e-12) & (points <= field.upper + 1e-12)).all(-1)
        check_inside(inside, points, "GaussianField", f"[{field.lower}, {field.upper}]^{field.dim}")
        n, M = len(self.coefficients), field.modes
        chunk = max(1, _CHUNK // max(1, n * M ** (field.dim - 1)))
        parts = [self._sum(points[i : i + chunk]) for i in range(0, len(points), chunk)]
        return torch.cat(parts, -1) if parts else self.coefficients.new_empty(n, 0)

    def _sum(self, points: Float[Tensor, "P d"]) -> Float[Tensor, "n P"]:
        """Sum the series one axis after the other: the last axis becomes the points, the others are contracted with it."""
        phi = [self._basis(points[:, axis]) for axis in range(self.field.dim)]
        values = self.coefficients @ phi[-1].T
        for basis in phi[-2::-1]:
            values = torch.einsum("...kp,pk->...p", values, basis)
        return values

    def _basis(self, x: Float[Tensor, " P"]) -> Float[Tensor, "P M"]:
        angle = (x - self.field.lower)[:, None] * self.field.frequencies().to(x.device)
        if self.field.boundary == "neumann":
            phi = angle.cos()
        elif self.field.boundary == "dirichlet":
            phi = angle.sin()
        else:
            phi = angle.cos()
            phi[:, 2::2] = angle[:, 2::2].sin()
        return phi * self._norm(x.device)

    def _norm(self, device: torch.device) -> Float[Tensor, " M"]:
        """Return factors that give every eigenfunction of one axis the L2 norm 1."""
        norm = torch.full((self.field.modes,), math.sqrt(2 / self.field.length), dtype=torch.float64, device=device)
        if self.field.boundary != "dirichlet":
            norm[0] = math.sqrt(1 / self.field.length)
        return norm


def two_phase(field: Tensor, low: float = 3.0, high: float = 12.0) -> Tensor:
    """Return the paper's psi: `high` where the field is positive or 0, `low` where it is negative."""
    check_phases(low, high)
    check_finite(field, "two_phase: the field")
    dtype = field.dtype if field.is_floating_point() else torch.float64
    phases = torch.tensor([low, high], dtype=dtype, device=field.device)
    return phases[(field >= 0).long()]


def check_phases(low: float, high: float) -> None:
    if not (math.isfinite(low) and math.isfinite(high) and 0 < low <= high):
        raise ValueError(f"two_phase(low={low}, high={high}): a coefficient needs 0 < low <= high, both finite")
