"""-div(a grad u) = f in D, u = g on the boundary: solvers, residuals, closed forms and problems with known answers."""

from __future__ import annotations

from typing import Literal

from jaxtyping import Float
from torch import Tensor

from gkn.geometry.domain import Data, Domain
from gkn.geometry.grid import Grid
from gkn.geometry.mesh import Mesh
from gkn.pde import finite_differences as fd
from gkn.pde import finite_elements as fem
from gkn.pde.finite_differences import NotConverged

__all__ = ["NotConverged", "darcy_residual", "is_discretised", "solve_darcy"]


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

    Grids: second-order finite differences, conjugate gradients preconditioned by the fast Poisson solver, on the
    device of `a`, until the error in the energy norm is at most `tol` times that of u less the harmonic extension of g
    (which is u where g = 0): a bound, not an estimate. Raises NotConverged if that takes more than `max_steps`. Meshes:
    P1 finite elements, solved directly, on the CPU.

    a, f, g: a number, a function of the (K, d) points, or an array whose last axis is the points; batches broadcast.
        On a mesh `a` may also be given per cell. Should a mesh have as many points as cells, say which with `per`.
    Returns float64, whatever came in.
    """
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

    In the norm that belongs to the equation (dual to the energy, so that rounding in u stays rounding here): for
    grids that of H^-1 through the fast Poisson solver, for meshes scaled by the diagonal of the stiffness matrix.
    """
    if isinstance(domain, Grid):
        return fd.residual(domain, a, u, f)
    if isinstance(domain, Mesh):
        return fem.residual(domain, a, u, f, per=per)
    raise ValueError("darcy_residual: a cloud of points has no discretisation; give a Grid or a Mesh")


def is_discretised(domain: Domain) -> bool:
    """True if equations can be solved on the domain: it is a grid or has cells."""
    return isinstance(domain, Grid | Mesh)
