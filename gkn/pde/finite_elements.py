"""P1 finite elements on triangle meshes, through scikit-fem; a direct solve per sample."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from gkn.geometry.domain import Data, at_points, boundary_values, flat_batch, values
from gkn.geometry.mesh import Mesh
from gkn.pde.finite_differences import NotConverged, check_positive
from gkn.system.checks import check_finite, device_of, real

Array = NDArray[Any]


def solve(mesh: Mesh, a: Data, f: Data, g: Data, *, per: Literal["node", "cell"] | None = None) -> Float[Tensor, "*batch K"]:
    from scipy.sparse.linalg import splu

    system = _System(mesh)
    a_cells, load = system.coefficient(a, per), system.load(f)
    g = boundary_values(mesh, g).cpu()
    batch, (a_cells, load, g) = flat_batch(a_cells, load, g)
    inner, edge = (~mesh.boundary).nonzero()[:, 0].numpy(), mesh.boundary.nonzero()[:, 0].numpy()
    u = g.clone()
    for i in range(len(u) if len(inner) else 0):
        stiffness = system.stiffness(a_cells[i].numpy())
        right = load[i].numpy()[inner] - stiffness[inner][:, edge] @ u[i].numpy()[edge]
        try:
            factor = splu(stiffness[inner][:, inner].tocsc(), permc_spec="MMD_AT_PLUS_A", options={"SymmetricMode": True})
        except RuntimeError as error:
            raise NotConverged(f"solve_darcy: the matrix of sample {i} is singular in float64; scale a ({error})") from error
        u[i, inner] = torch.from_numpy(factor.solve(right))
    return u.reshape(*batch, len(mesh)).to(device_of(a))


def residual(mesh: Mesh, a: Data, u: Tensor, f: Data, *, per: Literal["node", "cell"] | None = None) -> Float[Tensor, "*batch"]:
    u = torch.as_tensor(u)
    system, device = _System(mesh), u.device
    a_cells, load, u = system.coefficient(a, per), system.load(f), values(mesh, u, "u").cpu()
    batch, (a_cells, load, u) = flat_batch(a_cells, load, u)
    inner = (~mesh.boundary).numpy()
    out = torch.zeros(len(u), dtype=torch.float64)
    for i in range(len(u)):
        stiffness = system.stiffness(a_cells[i].numpy())
        inside = np.where(inner, u[i].numpy(), 0.0)
        right = load[i].numpy() - stiffness @ (u[i].numpy() - inside)
        scale = 1 / np.sqrt(stiffness.diagonal()[inner])
        r = (right - stiffness @ inside)[inner] * scale
        out[i] = float(np.linalg.norm(r) / max(np.linalg.norm(right[inner] * scale), np.finfo(float).tiny))
    return out.reshape(batch).to(device)


class _System:
    """int a grad u . grad v = int f v, for many a and f on one mesh."""

    def __init__(self, mesh: Mesh) -> None:
        try:
            from skfem import Basis, ElementTriP0, ElementTriP1, MeshTri
        except ImportError as error:
            raise ImportError("finite elements need scikit-fem: pip install 'gkn[fem]'") from error
        self.mesh = mesh
        self.basis = Basis(MeshTri(mesh.points.numpy().T.copy(), mesh.cells.numpy().T.copy()), ElementTriP1(), intorder=4)
        self.constants = self.basis.with_element(ElementTriP0())

    def coefficient(self, a: Data, per: Literal["node", "cell"] | None) -> Float[Tensor, "*batch C"]:
        """Return the coefficient per cell. Values at nodes are averaged, which integrates their linear interpolant exactly."""
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

    def load(self, f: Data) -> Float[Tensor, "*batch K"]:
        """Return int f v. A function is evaluated at the quadrature points, an array is interpolated linearly."""
        from skfem import LinearForm

        @LinearForm  # type: ignore[untyped-decorator]
        def source(v: Any, w: Any) -> Any:
            return w.f * v

        if callable(f):
            x = np.moveaxis(np.asarray(self.basis.global_coordinates()), 0, -1)
            at = at_points(f, torch.from_numpy(x.reshape(-1, 2)).double(), "f").cpu()
            check_finite(at, "f")
            shape = tuple(at.shape[:-1])
            batch = [*at.numpy().reshape(-1, *x.shape[:-1])]
        else:
            nodal = values(self.mesh, f, "f").cpu()
            shape = tuple(nodal.shape[:-1])
            batch = [self.basis.interpolate(row) for row in nodal.reshape(-1, len(self.mesh)).numpy()]
        loads = [torch.from_numpy(source.assemble(self.basis, f=each)) for each in batch]
        return torch.stack(loads).reshape(*shape, len(self.mesh))
