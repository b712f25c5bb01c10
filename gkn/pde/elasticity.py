"""Linear elasticity in plane stress, on meshes of triangles: quadratic finite elements, through scikit-fem."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from gkn.geometry.domain import at_points
from gkn.geometry.mesh import Mesh
from gkn.pde.finite_elements import factorised
from gkn.system.checks import check_finite

Where = Callable[[Tensor], Tensor]
"""A part of the boundary: True for each of the points (P, 2) that belongs to it. Edges are judged by their midpoints."""


def solve_plane_stress(
    mesh: Mesh,
    modulus: Callable[[Tensor], Tensor],
    traction: tuple[float, float],
    pulled: Where,
    fixed: Mapping[int, Where],
    *,
    poisson: float = 0.3,
) -> tuple[Float[Tensor, "K 2"], Float[Tensor, " K"]]:
    """Return the displacement of a plate and its von Mises stress, at the points.

        -div sigma = 0,    sigma = E/(1 + nu) eps + E nu/(1 - nu^2) tr(eps) 1,    eps = (grad u + grad u^T)/2

    Stresses are projected to functions that are linear on the cells. Units must fit each other, such as mm, N and MPa.

    modulus    Young's modulus E as a function of points (P, 2)
    traction   force per area on the part `pulled` of the boundary; all parts that are not named are free
    fixed      {component: part of the boundary where this component of the displacement is 0}
    poisson    Poisson's ratio nu
    """
    from skfem import ElementTriP1

    basis = _basis(mesh, traction, fixed, poisson)
    modulus_at = _modulus(basis, modulus)
    stiffness, load = _stiffness(basis, modulus_at, poisson), _load(basis, traction, pulled)
    held = [basis.get_dofs(_edges(basis, part, "held")).all([f"u^{i + 1}"]) for i, part in fixed.items()]
    free = np.setdiff1d(np.arange(basis.N), np.concatenate(held))
    u = np.zeros(basis.N)
    u[free] = factorised(stiffness[free][:, free], "solve_plane_stress")(load[free])
    sigma = _stress(_strain(basis.interpolate(u)), modulus_at, poisson)
    linear = basis.with_element(ElementTriP1())
    xx, yy, xy = (linear.project(sigma[i, j]) for i, j in ((0, 0), (1, 1), (0, 1)))
    von_mises = np.sqrt(xx**2 - xx * yy + yy**2 + 3 * xy**2)
    return torch.from_numpy(u[basis.nodal_dofs].T.copy()), torch.from_numpy(von_mises)


def _basis(mesh: Mesh, traction: tuple[float, float], fixed: Mapping[int, Where], poisson: float) -> Any:
    try:
        from skfem import Basis, ElementTriP2, ElementVector, MeshTri
    except ImportError as error:
        raise ImportError("finite elements need scikit-fem: pip install 'gkn[fem]'") from error
    if not (isinstance(mesh, Mesh) and mesh.dim == 2 and [*mesh.blocks] == ["triangle"]):
        raise ValueError(f"solve_plane_stress: {mesh.describe()}; needed a mesh of triangles in the plane")
    if len(traction) != 2 or not all(map(math.isfinite, traction)):
        raise ValueError(
            f"solve_plane_stress(traction={traction}): needed two finite numbers, the force per area along x and y"
        )
    if not {*fixed} <= {0, 1} or not fixed:
        raise ValueError(
            f"solve_plane_stress(fixed={{{', '.join(map(str, fixed))}}}): needed parts of the boundary for 0, 1 or both"
        )
    if not -1 < poisson < 0.5:
        raise ValueError(f"solve_plane_stress(poisson={poisson}): needed a number between -1 and 0.5")
    made = MeshTri(mesh.points.numpy().T.copy(), mesh.cells.numpy().T.copy())
    return Basis(made, ElementVector(ElementTriP2()))


def _points(x: Any) -> Float[Tensor, "P 2"]:
    """Return points (P, 2), given coordinates (2, ...)."""
    return torch.from_numpy(np.ascontiguousarray(np.asarray(x).reshape(2, -1).T))


def _edges(basis: Any, part: Where, what: str) -> Any:
    """Return the numbers of the edges of a part of the boundary."""
    found = basis.mesh.facets_satisfying(lambda x: part(_points(x)).numpy(), boundaries_only=True)
    if not len(found):
        raise ValueError(
            f"solve_plane_stress: no edge of the boundary is {what}: the function is False at all of their midpoints"
        )
    return found


def _modulus(basis: Any, modulus: Callable[[Tensor], Tensor]) -> Any:
    x = np.asarray(basis.global_coordinates())
    at = at_points(modulus, _points(x), "the modulus").detach()
    check_finite(at, "the modulus")
    if not (at > 0).all():
        raise ValueError(f"the modulus must be > 0 everywhere; its least value is {float(at.min()):g}")
    return at.numpy().reshape(x.shape[1:])


def _strain(u: Any) -> Any:
    from skfem.helpers import sym_grad

    return sym_grad(u)


def _stress(strain: Any, modulus: Any, poisson: float) -> Any:
    from skfem.helpers import eye, trace

    return modulus / (1 + poisson) * strain + eye(modulus * poisson / (1 - poisson**2) * trace(strain), 2)


def _stiffness(basis: Any, modulus: Any, poisson: float) -> Any:
    from skfem import BilinearForm
    from skfem.helpers import ddot

    @BilinearForm  # type: ignore[untyped-decorator]
    def energy(u: Any, v: Any, w: Any) -> Any:
        return ddot(_stress(_strain(u), w.modulus, poisson), _strain(v))

    return energy.assemble(basis, modulus=modulus).tocsr()


def _load(basis: Any, traction: tuple[float, float], pulled: Where) -> Any:
    from skfem import LinearForm

    @LinearForm  # type: ignore[untyped-decorator]
    def work(v: Any, w: Any) -> Any:
        return traction[0] * v[0] + traction[1] * v[1]

    return work.assemble(basis.boundary(_edges(basis, pulled, "pulled")))
