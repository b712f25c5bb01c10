"""The plates of examples/plate.py: the solver against exact solutions, and what its files hold."""

import csv
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("skfem", reason="plates need scikit-fem")
pytest.importorskip("netgen", reason="plates need netgen")
meshlane = pytest.importorskip("meshlane")

from examples import plate  # noqa: E402

STEEL = plate.STEEL


def steel(x):
    return np.full_like(x[0], STEEL)


def test_patch():
    """Uniform tension with symmetric supports strains the plate uniformly, so that the displacement is linear."""
    mesh = plate.mesh_plate(maxh=20.0)
    u, von_mises = plate.solve_plate(mesh, steel, 100.0, {"left": ["u^1"], "bottom": ["u^2"]})
    strain = 100.0 / STEEL
    expected = np.stack([strain * mesh.p[0], -plate.NU * strain * mesh.p[1]], axis=1)
    assert np.abs(u - expected).max() < 1e-10 * np.abs(expected).max()
    assert np.abs(von_mises - 100.0).max() < 1e-8


def test_varying_modulus():
    """A slender strip is stretched by the integral of traction / E."""
    mesh = plate.mesh_plate(height=4.0, maxh=2.0)
    u, von_mises = plate.solve_plate(mesh, lambda x: STEEL * np.exp(-x[0] / 200), 100.0, {"left": ["u^1"], "bottom": ["u^2"]})
    expected = 100.0 / STEEL * 200 * (np.exp(mesh.p[0] / 200) - 1)
    assert np.abs(u[:, 0] - expected).max() < 1e-3 * expected.max()
    assert np.abs(von_mises - 100.0).max() < 1.0


@pytest.mark.parametrize("corners", [48, 96])
def test_stress_concentration(corners):
    """A small hole raises the remote stress by 1 + 2 b/a above and below it (Inglis); 3 for a circle (Kirsch)."""
    for a, b, factor in ((5.0, 5.0, 3.0), (4.0, 8.0, 5.0)):
        hole = plate.ellipse(200.0, 200.0, a, b, 0.0, corners)
        mesh = plate.mesh_plate(hole, 400.0, 400.0, maxh=25.0, grading=0.15)
        _, von_mises = plate.solve_plate(mesh, steel, 100.0, {"left": ["u^1"], "bottom": ["u^2"]})
        assert von_mises.max() == pytest.approx(100.0 * factor, rel=0.1)
        where = mesh.p[:, von_mises.argmax()]
        assert where[0] == pytest.approx(200.0, abs=1.5)
        assert abs(where[1] - 200.0) == pytest.approx(b, abs=1.0)


def test_displacement_converges():
    """A plate of the dataset is within 1 % of one on a mesh with half the edge length."""
    rng = np.random.default_rng(0)
    hole = plate.ellipse(120.0, 45.0, 22.0, 9.0, 0.7)
    waves = rng.uniform(-0.08, 0.08, 2)
    found = []
    for maxh in (6.0, 3.0):
        mesh = plate.mesh_plate(hole, maxh=maxh)
        u, _ = plate.solve_plate(mesh, lambda x: STEEL * 2 ** np.cos(waves @ x.reshape(2, -1)).reshape(x.shape[1:]), 100.0)
        found.append(u[np.argmin(np.hypot(mesh.p[0] - 200.0, mesh.p[1] - 100.0))])
    assert np.abs(found[0] - found[1]).max() < 0.01 * np.abs(found[1]).max()


def test_holes_keep_their_distance():
    for index in range(20):
        mesh, modulus, traction = plate.sample_plate(0, index)
        inner = mesh.p[:, mesh.boundary_nodes()]
        edge = np.minimum.reduce([inner[0], inner[1], plate.WIDTH - inner[0], plate.HEIGHT - inner[1]])
        assert edge[edge > 1e-9].min() > plate.MARGIN - 1e-9
        assert (edge > 1e-9).sum() == 48
        assert 600 < mesh.nvertices < 1200
        assert 50 <= traction <= 150
        assert 0.5 <= modulus(mesh.p).min() / STEEL < modulus(mesh.p).max() / STEEL <= 2


def test_files(tmp_path):
    """Files depend on the seed and their number only, whatever the call that made them."""

    def make(folder, *options):
        subprocess.run([sys.executable, Path(plate.__file__), "--out", tmp_path / folder, *options], check=True)

    make("one", "--n", "3")
    make("two", "--n", "1", "--start", "2")
    make("two", "--n", "2", "--jobs", "2")
    names = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert names == ["parameters.csv", *(f"plate_{i:04d}.vtu" for i in range(3))]
    for name in names:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()

    table = dict(list(csv.reader((tmp_path / "one/parameters.csv").open()))[1:])
    read = meshlane.read(tmp_path / "one/plate_0001.vtu")
    mesh, modulus, traction = plate.sample_plate(0, 1)
    u, von_mises = plate.solve_plate(mesh, modulus, traction)
    np.testing.assert_allclose(read.points[:, :2], mesh.p.T, rtol=1e-10, atol=1e-10)
    triangles = read.cells[0].data
    np.testing.assert_array_equal(np.sort(triangles), np.sort(mesh.t.T))
    p, q, r = (read.points[corner, :2] for corner in triangles.T)
    assert ((q - p)[:, 0] * (r - p)[:, 1] > (q - p)[:, 1] * (r - p)[:, 0]).all()  # counter-clockwise
    np.testing.assert_allclose(read.point_data["E"], modulus(mesh.p), rtol=1e-10)
    np.testing.assert_allclose(read.point_data["displacement"][:, :2], u, rtol=1e-8, atol=1e-12)
    np.testing.assert_allclose(read.point_data["von_mises"], von_mises, rtol=1e-8)
    assert not read.points[:, 2].any()
    assert not read.point_data["displacement"][:, 2].any()
    assert float(read.field_data["traction"][0]) == float(table["plate_0001.vtu"]) == pytest.approx(traction, rel=1e-10)
