"""Plates under tension: the solver against exact solutions, the data, and the files of examples/plate.py."""

import csv
import math
import sys

import numpy as np
import pytest
import torch

pytest.importorskip("skfem", reason="plates need scikit-fem")
pytest.importorskip("netgen", reason="plates need netgen")
meshlane = pytest.importorskip("meshlane")

import gkn  # noqa: E402
from examples import plate as example  # noqa: E402
from gkn import Mesh, Plate  # noqa: E402
from gkn.data.problems import plate  # noqa: E402
from gkn.data.problems.plate import STEEL, ellipse  # noqa: E402
from gkn.geometry import shapes  # noqa: E402
from gkn.pde.elasticity import solve_plane_stress  # noqa: E402
from tests.meshes import box  # noqa: E402

NU = 0.3


def rectangle(width=200.0, height=100.0, holes=(), h=6.0, grading=0.2):
    corners = [(0.0, 0.0), (width, 0.0), (width, height), (0.0, height)]
    return Mesh(*shapes.polygon(corners, holes, h, grading=grading))


def steel(x):
    return torch.full_like(x[:, 0], STEEL)


def edge(axis, at):
    return lambda x: (x[:, axis] - at).abs() < 1e-6


def stretched(mesh, modulus=steel, traction=100.0):
    """Pull the right edge; supports are symmetric, so that a uniform plate is strained uniformly."""
    width = float(mesh.points[:, 0].max())
    return solve_plane_stress(mesh, modulus, (traction, 0.0), edge(0, width), {0: edge(0, 0.0), 1: edge(1, 0.0)})


def test_patch():
    mesh = rectangle(h=20.0)
    u, von_mises = stretched(mesh)
    expected = 100.0 / STEEL * mesh.points * torch.tensor([1.0, -NU], dtype=torch.float64)
    assert (u - expected).abs().max() < 1e-10 * expected.abs().max()
    assert (von_mises - 100.0).abs().max() < 1e-8


def test_shear():
    """A strip under its own end force bends as a beam: end displacement F l^3 / (3 E I) + shear."""
    mesh = rectangle(100.0, 10.0, h=2.5)
    left = edge(0, 0.0)
    u, _ = solve_plane_stress(mesh, steel, (0.0, 1.0), edge(0, 100.0), {0: left, 1: left})
    end = mesh.points[:, 0] > 100 - 1e-6
    bending = 10.0 * 100.0**3 / (3 * STEEL * 10.0**3 / 12)
    shear = 10.0 * 100.0 / (5 / 6 * STEEL / (2 * (1 + NU)) * 10.0)
    assert float(u[end, 1].mean()) == pytest.approx(bending + shear, rel=0.01)


def test_varying_modulus():
    """A slender strip is stretched by the integral of traction / E."""
    mesh = rectangle(height=4.0, h=2.0)
    u, von_mises = stretched(mesh, lambda x: STEEL * torch.exp(-x[:, 0] / 200))
    expected = 100.0 / STEEL * 200 * (torch.exp(mesh.points[:, 0] / 200) - 1)
    assert (u[:, 0] - expected).abs().max() < 1e-3 * expected.max()
    assert (von_mises - 100.0).abs().max() < 1.0


@pytest.mark.parametrize("corners", [48, 96])
def test_stress_concentration(corners):
    """A small hole raises the remote stress by 1 + 2 b/a above and below it (Inglis); 3 for a circle (Kirsch)."""
    for a, b, factor in ((5.0, 5.0, 3.0), (4.0, 8.0, 5.0)):
        hole = ellipse((200.0, 200.0), (a, b), 0.0, corners)
        mesh = rectangle(400.0, 400.0, [hole], h=25.0, grading=0.15)
        _, von_mises = stretched(mesh)
        assert float(von_mises.max()) == pytest.approx(100.0 * factor, rel=0.1)
        where = mesh.points[von_mises.argmax()]
        assert float(where[0]) == pytest.approx(200.0, abs=1.5)
        assert abs(float(where[1]) - 200.0) == pytest.approx(b, abs=1.0)


def test_displacement_converges():
    """A plate of the data is within 1 % of one on a mesh with half the edge length."""
    found = []
    for size in (6.0, 3.0):
        mesh, fields = Plate(size=size).sample(0, 3)
        corner = (mesh.points - torch.tensor([200.0, 100.0])).norm(dim=1).argmin()
        found.append(fields["displacement"][corner])
    assert (found[0] - found[1]).abs().max() < 0.01 * found[1].abs().max()


def test_holes_keep_their_distance():
    for index in range(20):
        mesh, modulus, traction = Plate().drawn(0, index)
        inner = mesh.points[mesh.boundary]
        away = torch.cat([inner, torch.tensor([plate.WIDTH, plate.HEIGHT]) - inner], 1).amin(1)
        assert away[away > 1e-9].min() > plate.MARGIN - 1e-9
        assert (away > 1e-9).sum() == 48
        assert 600 < len(mesh) < 1200
        assert 50 <= traction <= 150
        e = modulus(mesh.points) / STEEL
        assert 0.5 <= e.min() < e.max() <= 2


def test_the_same_plates_as_ever():
    """Numbers of the program that made the plates before gkn did, for seed 0, numbers 0 to 2."""
    before = [
        (839, 25.555840533244307, -3.2500314015100935, 56751.95565441875, 62.428327649956394),
        (782, 55.46864351380513, 10.276756224748384, 123707.2696158239, 120.22324386580411),
        (876, 46.740006008054664, 1.8178495345289254, 98599.17382012022, 106.29157176839752),
    ]
    for i, (points, x, y, stress, traction) in enumerate(before):
        mesh, fields = Plate().sample(0, i)
        assert len(mesh) == points
        assert fields["displacement"].sum(0).tolist() == pytest.approx([x, y], rel=1e-9)
        assert float(fields["von_mises"].sum()) == pytest.approx(stress, rel=1e-9)
        assert float(fields["traction"]) == traction


def test_data(tmp_path):
    """In memory and on disk: a parameter, a vector with two components, and a mesh per sample."""
    problem = Plate(size=15.0)
    on_disk, in_memory = gkn.make_dataset(problem, 3, 4, tmp_path / "plates"), gkn.make_dataset(problem, 3, 4)
    for data in (on_disk, in_memory):
        assert data.inputs == ("E", "traction")
        assert data.outputs == ("displacement_x", "displacement_y", "von_mises")
        assert data.groups == {"displacement": ("displacement_x", "displacement_y")}
        for i in (2, 0):
            mesh, fields = problem.sample(4, i)
            assert data[i].domain.same_as(mesh)
            assert torch.equal(data.value("displacement_y", i), fields["displacement"][:, 1])
            assert torch.equal(data.value("traction", i), fields["traction"].expand(len(mesh)))
    assert all(finding.ok in (True, None) for finding in gkn.check_dataset(tmp_path / "plates"))
    twice = Plate(size=15.0, low=100.0, high=100.0).sample(4, 0)[1], Plate(size=15.0, low=200.0, high=200.0).sample(4, 0)[1]
    torch.testing.assert_close(2 * twice[0]["displacement"], twice[1]["displacement"])


def test_files(tmp_path, monkeypatch):
    """Files depend on the seed and their number only, whatever the call that made them."""

    def make(folder, *options):
        monkeypatch.setattr(sys, "argv", ["plate.py", "--out", str(tmp_path / folder), *options])
        example.main()

    make("one", "--n", "3")
    make("two", "--n", "1", "--start", "2")
    make("two", "--n", "2", "--jobs", "2")
    names = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert names == ["parameters.csv", *(f"plate_{i:04d}.vtu" for i in range(3))]
    for name in names:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()

    table = dict(list(csv.reader((tmp_path / "one/parameters.csv").open()))[1:])
    read = meshlane.read(tmp_path / "one/plate_0001.vtu")
    mesh, fields = Plate().sample(0, 1)
    np.testing.assert_array_equal(read.points[:, :2], mesh.points)
    np.testing.assert_array_equal(read.cells[0].data, mesh.cells)
    p, q, r = (read.points[corner, :2] for corner in read.cells[0].data.T)
    assert ((q - p)[:, 0] * (r - p)[:, 1] > (q - p)[:, 1] * (r - p)[:, 0]).all()  # counter-clockwise
    np.testing.assert_array_equal(read.point_data["E"], fields["E"])
    np.testing.assert_array_equal(read.point_data["displacement"][:, :2], fields["displacement"])
    np.testing.assert_array_equal(read.point_data["von_mises"], fields["von_mises"])
    assert not read.points[:, 2].any()
    assert not read.point_data["displacement"][:, 2].any()
    assert float(read.field_data["traction"][0]) == float(table["plate_0001.vtu"]) == float(fields["traction"])


MESH = rectangle(h=50.0)
ENDS = edge(0, 200.0), {0: edge(0, 0.0), 1: edge(0, 0.0)}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: solve_plane_stress(box("quad"), steel, (1.0, 0.0), *ENDS), "needed a mesh of triangles in the plane"),
        (lambda: solve_plane_stress(MESH, steel, (math.nan, 0.0), *ENDS), "needed two finite numbers"),
        (lambda: solve_plane_stress(MESH, lambda x: x[:, 0] - 99, (1.0, 0.0), *ENDS), "the modulus must be > 0 everywhere"),
        (lambda: solve_plane_stress(MESH, steel, (1.0, 0.0), edge(0, 7.0), ENDS[1]), "no edge of the boundary is pulled"),
        (lambda: solve_plane_stress(MESH, steel, (1.0, 0.0), ENDS[0], {}), "needed parts of the boundary for 0, 1 or both"),
        (lambda: solve_plane_stress(MESH, steel, (1.0, 0.0), ENDS[0], {0: edge(0, 7.0)}), "no edge of the boundary is held"),
        (lambda: solve_plane_stress(MESH, steel, (1.0, 0.0), *ENDS, poisson=0.5), "needed a number between -1 and 0.5"),
        (lambda: Plate(size=0.0), r"plate\(size=0.0\)"),
        (lambda: Plate(low=3.0, high=2.0), "needed low <= high"),
        (lambda: Plate(poisson=0.6), "needed a number between -1 and 0.5"),
    ],
)
def test_messages(call, message):
    with pytest.raises(ValueError, match=message):
        call()
