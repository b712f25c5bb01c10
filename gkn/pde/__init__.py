"""Solvers and residuals of -div(a grad u) = f in D, u = g on the boundary, and of the heat and the wave equation."""

from __future__ import annotations

from typing import Literal

from jaxtyping import Float
from torch import Tensor

from gkn.geometry.domain import Data, Domain
from gkn.geometry.grid import Grid
from gkn.geometry.mesh import Mesh
from gkn.pde import finite_differences as fd
from gkn.pde import finite_elements as fem
from gkn.pde.evolution import solve_heat, solve_wave, wave_energy
from gkn.pde.finite_differences import NotConverged

__all__ = ["NotConverged", "darcy_residual", "is_discretised", "solve_darcy", "solve_heat", "solve_wave", "wave_energy"]


def solve_darcy(
    domain: Domain,
    a: Data,
    f: Data = 1.0,
    g: Data = 0.0,
    *,
    tol: float = 1e-10,
    max_steps: int | None = None,
    per: Literal["node", "cell"] | None = None,
) -> Float[Tensor, "*batch K"]:
    """Solve -div(a grad u) = f in D, u = g on the boundary. Poisson's equation is a = 1.

    On grids: second-order finite differences and conjugate gradients, preconditioned by the fast Poisson solver, on the device
    of `a`. They stop when the error in the energy norm is at most `tol` times the norm of u minus the harmonic extension of g.
    This is a bound, not an estimate. Raises NotConverged if it takes more than `max_steps`.

    On meshes of lines, triangles, quads, tetrahedra or hexahedra: linear finite elements, on the CPU, solved to rounding.

    a, f, g   a number, a function of the (K, d) points, or an array whose last axis is the points; batches broadcast. On a mesh
              `a` may also be given per cell
    per       "node" or "cell", needed only if a mesh has as many points as cells

    The solution is float64 for inputs of any type.
    """
    _check(domain, "solve_darcy")
    if isinstance(domain, Grid):
        if per == "cell":
            raise ValueError("solve_darcy(per='cell'): on a grid the coefficient is given per node")
        return fd.solve(domain, a, f, g, tol=tol, max_steps=max_steps)
    if isinstance(domain, Mesh):
        return fem.solve(domain, a, f, g, per=per)
    raise ValueError("solve_darcy: a cloud of points has no discretisation; give a Grid or a Mesh")


def darcy_residual(
    domain: Domain, a: Data, u: Tensor, f: Data = 1.0, *, per: Literal["node", "cell"] | None = None
) -> Float[Tensor, "*batch"]:
    """Return how far u is from solving the discrete equation, per sample, relative to f and the boundary values of u.

    The norm is dual to the energy norm, in which rounding errors of u stay small: on grids that of H^-1, by the fast Poisson
    solver; on meshes the residual is scaled by the diagonal of the stiffness matrix.
    """
    _check(domain, "darcy_residual")
    if isinstance(domain, Grid):
        return fd.residual(domain, a, u, f)
    if isinstance(domain, Mesh):
        return fem.residual(domain, a, u, f, per=per)
    raise ValueError("darcy_residual: a cloud of points has no discretisation; give a Grid or a Mesh")


def is_discretised(domain: Domain) -> bool:
    """True if equations can be solved on the domain: it is a unit grid, or a mesh of one kind of linear cells.

    Cells must have the dimension of the points: surfaces and curves are not discretised.
    """
    if isinstance(domain, Grid):
        return domain.unit
    return fem.is_meshed(domain)


def _check(domain: Domain, name: str) -> None:
    if isinstance(domain, Grid) and not is_discretised(domain):
        raise ValueError(f"{name}: {domain!r} is not the unit grid; give Grid(size, dim), the vertices of [0,1]^dim")
    if isinstance(domain, Mesh) and not is_discretised(domain):
        kinds = ", ".join(domain.blocks)
        raise ValueError(
            f"{name}: a mesh of {kinds} cells in dimension {domain.dim}; give a mesh of one kind of cells, "
            f"{', '.join(fem.CELLS)}, that are no surface or curve"
        )
