"""Linear finite elements on meshes of one kind of cells, in 1, 2 and 3 dimensions, through scikit-fem."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from gkn.geometry.domain import Data, Domain, at_points, boundary_values, flat_batch, values
from gkn.geometry.mesh import Mesh
from gkn.pde.finite_differences import NotConverged, check_positive
from gkn.system.checks import check_finite, device_of, real

Array = NDArray[Any]

# For each type of cell: scikit-fem's mesh, linear functions and constants, and VTK's vertices in the order they have there.
CELLS: dict[str, tuple[str, str, str, list[int]]] = {
    "line": ("MeshLine", "ElementLineP1", "ElementLineP0", [0, 1]),
    "triangle": ("MeshTri", "ElementTriP1", "ElementTriP0", [0, 1, 2]),
    "quad": ("MeshQuad", "ElementQuad1", "ElementQuad0", [0, 1, 2, 3]),
    "tetra": ("MeshTet", "ElementTetP1", "ElementTetP0", [0, 1, 2, 3]),
    "hexahedron": ("MeshHex", "ElementHex1", "ElementHex0", [6, 2, 5, 7, 1, 3, 4, 0]),
}
_TOLERANCE = 1e-13  # residual at which conjugate gradients stop, relative to the right-hand side
_MOST_STEPS = 1000


def solve(mesh: Mesh, a: Data, f: Data, g: Data, *, per: Literal["node", "cell"] | None = None) -> Float[Tensor, "*batch K"]:
    elements = Elements(mesh)
    a_cells, load = elements.coefficient(a, per), elements.load(f)
    g = boundary_values(mesh, g).cpu()
    batch, (a_cells, load, g) = flat_batch(a_cells, load, g)
    inner, edge = elements.inner, mesh.boundary.nonzero()[:, 0].numpy()
    u = g.clone()
    for i in range(len(u) if len(inner) else 0):
        stiffness = elements.stiffness(a_cells[i].numpy())
        right = load[i].numpy()[inner] - stiffness[inner][:, edge] @ u[i].numpy()[edge]
        u[i, inner] = torch.from_numpy(_solve(stiffness[inner][:, inner], right, mesh.dim, f"solve_darcy: sample {i}"))
    return u.reshape(*batch, len(mesh)).to(device_of(a))


def residual(mesh: Mesh, a: Data, u: Tensor, f: Data, *, per: Literal["node", "cell"] | None = None) -> Float[Tensor, "*batch"]:
    u = torch.as_tensor(u)
    elements, device = Elements(mesh), u.device
    a_cells, load, u = elements.coefficient(a, per), elements.load(f), values(mesh, u, "u").cpu()
    batch, (a_cells, load, u) = flat_batch(a_cells, load, u)
    inner = (~mesh.boundary).numpy()
    out = torch.zeros(len(u), dtype=torch.float64)
    for i in range(len(u)):
        stiffness = elements.stiffness(a_cells[i].numpy())
        inside = np.where(inner, u[i].numpy(), 0.0)
        right = load[i].numpy() - stiffness @ (u[i].numpy() - inside)
        scale = 1 / np.sqrt(stiffness.diagonal()[inner])
        r = (right - stiffness @ inside)[inner] * scale
        out[i] = float(np.linalg.norm(r) / max(np.linalg.norm(right[inner] * scale), np.finfo(float).tiny))
    return out.reshape(batch).to(device)


def factorised(matrix: Any, what: str) -> Callable[[Array], Array]:
    """Factorise a symmetric sparse matrix; return the function that solves with it."""
    from scipy.sparse.linalg import splu

    try:
        factor = splu(matrix.tocsc(), permc_spec="MMD_AT_PLUS_A", options={"SymmetricMode": True})
    except RuntimeError as error:
        raise NotConverged(f"{what}: the matrix is singular in float64; scale the coefficient ({error})") from error
    solve_with: Callable[[Array], Array] = factor.solve
    return solve_with


def _solve(matrix: Any, right: Array, dim: int, what: str) -> Array:
    """Solve a symmetric positive definite system.

    On 10^4 tetrahedral nodes conjugate gradients take 15 ms and a factorisation 180 ms. On 10^4 nodes in the plane both take
    40 ms. The factorisation also takes over if the coefficient is too uneven for conjugate gradients.
    """
    found = _conjugate_gradients(matrix, right) if dim == 3 else None
    return factorised(matrix, what)(right) if found is None else found


def _conjugate_gradients(matrix: Any, right: Array) -> Array | None:
    """Solve with the diagonal as preconditioner; return None if it takes too many steps."""

    def dot(x: Array, y: Array) -> float:  # without BLAS, whose sums depend on the number of threads
        return float(np.einsum("i,i", x, y))

    with np.errstate(all="ignore"):
        scale: Array = 1 / np.sqrt(matrix.diagonal())
        r = right * scale
        size = float(np.abs(r).max()) or 1.0  # of magnitude 1 from here on: an underflow would look like convergence
        r = r / size
        x: Array = np.zeros_like(r)
        p, rr = r, dot(r, r)
        goal = rr * _TOLERANCE**2
        for _ in range(_MOST_STEPS):
            if rr <= goal:
                return x * scale * size
            q = scale * (matrix @ (scale * p))
            step = rr / dot(p, q)
            x, r = x + step * p, r - step * q
            rr, old = dot(r, r), rr
            p = r + rr / old * p
    return None


def is_meshed(mesh: Domain) -> bool:
    """True if the domain is a mesh of one kind of linear cells, and no surface or curve."""
    if not isinstance(mesh, Mesh) or mesh.measure_dim != mesh.dim:
        return False
    return len(mesh.blocks) == 1 and next(iter(mesh.blocks)) in CELLS


class Elements:
    """Linear functions on the cells of one mesh: matrices for many coefficients, right-hand sides for many sources."""

    def __init__(self, mesh: Mesh) -> None:
        try:
            import skfem
        except ImportError as error:
            raise ImportError("finite elements need scikit-fem: pip install 'gkn[fem]'") from error
        self.mesh = mesh
        kind, linear, constant, order = CELLS[next(iter(mesh.blocks))]
        cells = mesh.cells.numpy()[:, order].T.copy()
        made = getattr(skfem, kind)(mesh.points.numpy().T.copy(), cells)
        self.basis = skfem.Basis(made, getattr(skfem, linear)(), intorder=2 if mesh.dim == 3 else 4)
        self.constants = self.basis.with_element(getattr(skfem, constant)())

    @property
    def inner(self) -> Array:
        """Indices of the points that are not on the boundary."""
        return (~self.mesh.boundary).nonzero()[:, 0].numpy()

    def coefficient(self, a: Data, per: Literal["node", "cell"] | None) -> Float[Tensor, "*batch C"]:
        """Return the coefficient per cell. Values at nodes are averaged: on simplices this is exact for linear a."""
        nodes, cells = len(self.mesh), len(self.mesh.cells)
        if per not in (None, "node", "cell"):
            raise ValueError(f"per={per!r}: use 'node' or 'cell'")
        a = a if callable(a) else real(a, "a").cpu()
        if isinstance(a, Tensor) and a.ndim and per != "node" and a.shape[-1] == cells:
            if nodes == cells and per is None:
                raise ValueError(f"this mesh has {nodes} points and as many cells: say per='node' or per='cell' for a")
            per_cell = a
        elif per == "cell":
            raise ValueError(f"a is to be given per cell, so its last axis must have {cells} entries")
        else:
            per_cell = values(self.mesh, a, "a")
            check_positive(per_cell)
            per_cell = per_cell[..., self.mesh.cells].mean(-1)
        check_positive(per_cell)
        return per_cell

    def stiffness(self, a: Array) -> Any:
        from skfem import BilinearForm
        from skfem.helpers import dot, grad

        @BilinearForm  # type: ignore[untyped-decorator]
        def energy(u: Any, v: Any, w: Any) -> Any:
            return w.a * dot(grad(u), grad(v))

        return energy.assemble(self.basis, a=self.constants.interpolate(a)).tocsr()

    def inner_stiffness(self) -> Any:
        """Return the stiffness matrix of the inner points for the coefficient 1."""
        inner = self.inner
        return self.stiffness(np.ones(len(self.mesh.cells)))[inner][:, inner]

    def mass(self) -> Any:
        from skfem import BilinearForm

        @BilinearForm  # type: ignore[untyped-decorator]
        def product(u: Any, v: Any, w: Any) -> Any:
            return u * v

        return product.assemble(self.basis).tocsr()

    def load(self, f: Data) -> Float[Tensor, "*batch K"]:
        """Return int f v. A function is evaluated at the quadrature points, an array is interpolated linearly."""
        from skfem import LinearForm

        @LinearForm  # type: ignore[untyped-decorator]
        def source(v: Any, w: Any) -> Any:
            return w.f * v

        if callable(f):
            x = np.moveaxis(np.asarray(self.basis.global_coordinates()), 0, -1)
            at = at_points(f, torch.from_numpy(x.reshape(-1, self.mesh.dim)).double(), "f").cpu()
            check_finite(at, "f")
            shape = tuple(at.shape[:-1])
            batch = [*at.numpy().reshape(-1, *x.shape[:-1])]
        else:
            nodal = values(self.mesh, f, "f").cpu()
            shape = tuple(nodal.shape[:-1])
            batch = [self.basis.interpolate(row) for row in nodal.reshape(-1, len(self.mesh)).numpy()]
        loads = [torch.from_numpy(source.assemble(self.basis, f=each)) for each in batch]
        return torch.stack(loads).reshape(*shape, len(self.mesh))
