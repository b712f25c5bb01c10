"""The files of examples/poisson3d.py: u is the solution for f, and the meshes are valid."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("skfem", reason="boxes of tetrahedra need scikit-fem")
pytest.importorskip("netgen", reason="unstructured tetrahedra need netgen")
meshlane = pytest.importorskip("meshlane")

from skfem import Basis, BilinearForm, ElementTetP1, MeshTet, condense, solve  # noqa: E402
from skfem.helpers import dot, grad  # noqa: E402

from examples import poisson3d  # noqa: E402

COEFFICIENTS = np.random.default_rng(0).normal(0, 0.01, (3, 3, 3))


def finite_elements(points, cells):
    """Return the relative error, in the mean square over nodes, of linear elements that see f at the nodes only."""
    f, u = poisson3d.exact(points, COEFFICIENTS)
    mesh = MeshTet(np.ascontiguousarray(points.T), np.ascontiguousarray(cells.T))
    basis = Basis(mesh, ElementTetP1())
    stiffness = BilinearForm(lambda u, v, w: dot(grad(u), grad(v))).assemble(basis)
    mass = BilinearForm(lambda u, v, w: u * v).assemble(basis)
    solved = solve(*condense(stiffness, mass @ f, D=mesh.boundary_nodes()))
    return np.linalg.norm(solved - u) / np.linalg.norm(u)


def test_finite_elements_converge_to_u_with_order_two():
    coarse, fine = (finite_elements(*poisson3d.structured(n**3)) for n in (11, 21))
    assert 1.8 < np.log2(coarse / fine) < 2.2
    assert fine < 0.04


@pytest.mark.parametrize("maxh", [8.5, 8.8, 9.2])
def test_unstructured_meshes_resolve_u(maxh):
    """Without netgen's block filling, the inside has almost no nodes and the error is 0.7."""
    assert finite_elements(*poisson3d.unstructured(maxh)) < 0.1


def test_boundary_values_are_zero():
    points, _ = poisson3d.structured(1000)
    f, u = poisson3d.exact(points, COEFFICIENTS)
    boundary = ((points == 0) | (points == poisson3d.SIDE)).any(axis=1)
    assert boundary.sum() == 1000 - 8**3
    assert np.abs(u[boundary]).max() < 1e-12
    assert np.abs(u[~boundary]).min() > 0
    assert f.std() > 0


@pytest.mark.parametrize("nodes", [30, 1000, 20000, 100000])
def test_structured_boxes_have_about_the_wanted_nodes(nodes):
    points, cells = poisson3d.structured(nodes)
    assert len(points) == pytest.approx(nodes, rel=0.1 if nodes < 1000 else 0.02)
    assert cells.max() == len(points) - 1
    assert points.min() == 0
    assert points.max() == poisson3d.SIDE


@pytest.mark.parametrize("nodes", [None, 5000])
def test_files(nodes, tmp_path):
    command = [sys.executable, Path(poisson3d.__file__), "--n", "2", "--start", "7", "--out", tmp_path, "--jobs", "2"]
    subprocess.run(command + (["--nodes", str(nodes)] if nodes else []), check=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["poisson3d_0007.vtu", "poisson3d_0008.vtu"]
    read, other = (meshlane.read(path) for path in sorted(tmp_path.iterdir()))
    assert len(read.points) == pytest.approx(nodes or 2000, rel=0.02 if nodes else 0.3)
    if not nodes:
        assert len(read.points) != len(other.points)

    coefficients = np.random.default_rng([0, 7]).normal(0, 0.01, (3, 3, 3))
    f, u = poisson3d.exact(read.points, coefficients)
    np.testing.assert_allclose(read.point_data["f"], f, atol=1e-12)
    np.testing.assert_allclose(read.point_data["u"], u, atol=1e-10)
    p, q, r, s = (read.points[corner] for corner in read.cells_dict["tetra"].T)
    volumes = np.einsum("ij,ij->i", np.cross(q - p, r - p), s - p) / 6
    assert volumes.min() > 0
    assert volumes.sum() == pytest.approx(poisson3d.SIDE**3)

    again = poisson3d.make(tmp_path, 0, 7, nodes)
    np.testing.assert_array_equal(meshlane.read(again).points, read.points)
