import pickle

import numpy as np
import pytest
import torch

from gkn import Cloud, Grid, Mesh
from gkn.geometry.cells import BY_VTK, TYPES
from gkn.pde import is_discretised, solve_darcy
from tests.meshes import ball, box, mixed, solids, sphere

KINDS = [*TYPES]
ALL = {
    **{kind: (lambda kind=kind: box(kind), 1.0) for kind in KINDS},
    "mixed": (mixed, 2.0),
    "solids": (solids, 1 + 1 / 3 + 0.5),
}


def linear(x):
    return torch.stack([1 + x @ torch.arange(1.0, x.shape[1] + 1, dtype=torch.float64), x[:, 0]], 1)


def inside(mesh, rng, count=200):
    """Random points in the simplices of a mesh."""
    cell = torch.randint(0, len(mesh.simplices), (count,), generator=rng)
    share = torch.rand(count, mesh.simplices.shape[1], generator=rng, dtype=torch.float64) + 1e-3
    share /= share.sum(1, keepdim=True)
    return (share[..., None] * mesh.points[mesh.simplices[cell]]).sum(1)


@pytest.mark.parametrize("name", ALL)
def test_weights_sum_to_the_measure_and_linear_functions_are_interpolated_exactly(name, rng):
    make, measure = ALL[name]
    mesh = make()
    assert mesh.measure == pytest.approx(measure, rel=1e-13)
    assert float(mesh.weights.sum()) == pytest.approx(measure, rel=1e-13)
    assert bool((mesh.areas > 0).all())
    assert mesh.measure_dim == mesh.dim
    at = inside(mesh, rng)
    torch.testing.assert_close(mesh.interpolate(linear(mesh.points), at), linear(at), rtol=1e-12, atol=1e-12)
    values = torch.randn(len(mesh), 3, generator=rng, dtype=torch.float64)
    assert torch.equal(mesh.interpolate(values, mesh.points), values)  # at all nodes, middle ones included
    with pytest.raises(ValueError, match="1 of 1 points lie outside the domain"):
        mesh.interpolate(values, torch.full((1, mesh.dim), 2.5, dtype=torch.float64))
    with pytest.raises(ValueError, match="lie outside the domain"):
        mesh.interpolate(values, torch.full((1, mesh.dim), 1e200, dtype=torch.float64))


@pytest.mark.parametrize("kind", KINDS)
def test_every_node_of_a_cell_has_the_same_share(kind):
    mesh = box(kind, 1)
    if len(mesh.blocks[kind]) == 1:
        torch.testing.assert_close(mesh.weights, torch.full((len(mesh),), 1 / len(mesh), dtype=torch.float64))


@pytest.mark.parametrize("kind", KINDS)
def test_boundary_nodes_are_those_on_the_faces(kind):
    mesh = box(kind)
    assert torch.equal(mesh.boundary, ((mesh.points == 0) | (mesh.points == 1)).any(1))


@pytest.mark.parametrize("name", ALL)
def test_cells_are_turned_silently(name, rng):
    mesh = ALL[name][0]()
    turned = {kind: block.numpy().copy() for kind, block in mesh.blocks.items()}
    for kind, block in turned.items():
        some = np.arange(len(block)) % 3 == 0
        block[some] = block[some][:, TYPES[kind].mirrored]
        assert not torch.equal(torch.from_numpy(block), mesh.blocks[kind])
    again = Mesh(mesh.points, turned)
    for kind, block in mesh.blocks.items():
        assert torch.equal(again.blocks[kind], block)
    assert torch.equal(again.weights, mesh.weights)


@pytest.mark.parametrize("name", ALL)
def test_arrays_round_trip(name):
    mesh = ALL[name][0]()
    for arrays in (mesh.arrays(), mesh.general_arrays()):
        assert {array.dtype for array in arrays.values()} <= {torch.float64, torch.int64, torch.bool}
        again = Mesh.from_arrays(arrays, mesh.numbers())
        assert again.same_as(mesh)
        assert [*again.blocks] == [*mesh.blocks]
        assert all(torch.equal(again.blocks[kind], block) for kind, block in mesh.blocks.items())
    assert [*mesh.arrays()] == (["points", "cells"] if name == "triangle" else ["points", "corners", "types"])
    assert [kind for kind, _ in mesh.cell_blocks()] == [*mesh.blocks]


def test_interleaved_types_are_read():
    quad, triangle = [0, 1, 4, 3], [1, 2, 4]
    points = torch.tensor([[0.0, 0], [1, 0], [2, 0], [0, 1], [1, 1], [2, 1]], dtype=torch.float64)
    arrays = {"points": points, "corners": torch.tensor([*quad, *triangle, 2, 5, 4]), "types": torch.tensor([9, 5, 5])}
    mesh = Mesh.from_arrays(arrays, {})
    assert {kind: len(block) for kind, block in mesh.blocks.items()} == {"quad": 1, "triangle": 2}
    assert mesh.measure == 2
    with pytest.raises(ValueError, match="cells of VTK type 7 are not known; use one of 3, 5, 9"):
        Mesh.from_arrays({**arrays, "types": torch.tensor([9, 7, 5])}, {})
    with pytest.raises(ValueError, match="10 corners for 2 cells of 7 nodes"):
        Mesh.from_arrays({**arrays, "types": torch.tensor([9, 5])}, {})
    assert all(BY_VTK[kind.vtk] is kind for kind in TYPES.values())


@pytest.mark.parametrize("name", [*ALL, "sphere"])
def test_mapping_is_exact_for_powers_of_two(name, rng):
    mesh = sphere(2) if name == "sphere" else ALL[name][0]()
    shift, scale = torch.rand(mesh.dim, generator=rng, dtype=torch.float64), 0.7
    one = mesh.mapped(shift, scale)
    for unit in (2.0**10, 2.0**-10):
        other = type(mesh)(mesh.points * unit, mesh.blocks).mapped(shift * unit, scale * unit)
        assert torch.equal(one.points, other.points)
        assert torch.equal(one.weights, other.weights)
        ours, theirs = one.distance(), other.distance()
        assert ours is None or all(torch.equal(*pair) for pair in zip(ours, theirs, strict=True))
    torch.testing.assert_close(one.points, (mesh.points - shift) / scale, rtol=0, atol=0)
    torch.testing.assert_close(one.weights, mesh.weights / scale**mesh.measure_dim)
    assert one.simplices is mesh.simplices
    assert torch.equal(one.boundary, mesh.boundary)
    at = inside(mesh, rng, 20)
    values = torch.randn(len(mesh), 1, generator=rng, dtype=torch.float64)
    torch.testing.assert_close(one.interpolate(values, (at - shift) / scale), mesh.interpolate(values, at))
    assert mesh.mapped(torch.zeros(mesh.dim), 1.0) is mesh
    with pytest.raises(ValueError, match=r"mapped\(scale=0"):
        mesh.mapped(shift, 0.0)


@pytest.mark.parametrize("size", [1e-9, 1e9])
@pytest.mark.parametrize("kind", ["line", "triangle", "quad9", "tetra", "hexahedron", "wedge15", "pyramid"])
def test_a_mesh_of_any_size_is_as_good(kind, size, rng):
    mesh = box(kind, high=size)
    assert mesh.measure == pytest.approx(size**mesh.dim)
    at = inside(mesh, rng)
    torch.testing.assert_close(mesh.interpolate(linear(mesh.points / size), at), linear(at / size), rtol=1e-9, atol=1e-9)
    with pytest.raises(ValueError, match="outside"):
        mesh.interpolate(linear(mesh.points), torch.full((1, mesh.dim), 1.001 * size, dtype=torch.float64))


def test_simplices_of_neighbours_fit_together():
    """Warped hexahedra leave no gaps: the diagonals of a common face are the same."""
    mesh = box("hexahedron", 4, jitter=0.5)
    assert len(mesh.simplices) == 6 * 64
    assert mesh.measure == pytest.approx(1, rel=1e-13)
    assert int((mesh._facets.count == 1).sum()) == 2 * 6 * 16
    at = torch.rand(5000, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    assert bool(mesh.contains(at).all())


def test_quads_that_are_not_convex_and_cells_with_repeated_corners():
    dart = Mesh([[0.0, 0.0], [2.0, 0.0], [0.5, 0.5], [0.0, 2.0]], [[0, 1, 2, 3]])
    assert dart.measure == pytest.approx(1.0)
    assert bool((dart.areas > 0).all())
    assert dart.contains(torch.tensor([[0.9, 0.9], [0.4, 0.4]], dtype=torch.float64)).tolist() == [False, True]
    points = [[0.0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 0, 1], [0, 1, 1]]
    prism = Mesh(points, [[0, 1, 2, 2, 3, 4, 5, 5]])  # a wedge, written as a hexahedron
    assert prism.measure == pytest.approx(0.5)
    assert bool(prism.boundary.all())
    assert len(prism.simplices) == 3


def test_an_interval_mesh():
    mesh = Mesh(torch.tensor([[3.0], [1.0], [2.0]]), [[2, 0], [2, 1]])
    assert mesh.cells.tolist() == [[2, 0], [1, 2]]
    assert mesh.weights.tolist() == [0.5, 0.5, 1.0]
    assert mesh.boundary.tolist() == [True, True, False]
    assert mesh.spacing == pytest.approx(2 / 3)


SQUARE = [[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]]
CUBE = [[float(i), float(j), float(k)] for i in (0, 1) for j in (0, 1) for k in (0, 1)]


@pytest.mark.parametrize(
    ("points", "cells", "message"),
    [
        (SQUARE, {"triangle": [[0, 1, 2]], "line": [[2, 3]]}, r"different dimensions: triangle \(2-D\), line \(1-D\)"),
        (SQUARE, {"polygon5": [[0, 1, 2, 3, 0]]}, "cells of type 'polygon5' are not known; use one of line, triangle"),
        (SQUARE, {"triangle6": [[0, 1, 2]]}, r"triangle6 cells of shape \(1, 3\); needed \(C, 6\)"),
        (SQUARE, {}, "there are no cells"),
        (SQUARE, {"tetra": [[0, 1, 2, 3]]}, "tetra cells on points of dimension 2; needed points of dimension 3"),
        (SQUARE, [[0, 1, 2, 3, 0]], r"needed at least one cell, as \(C, 2\) for line cells, \(C, 3\) for triangle cells"),
        (SQUARE, [[0.0, 1.0, 2.0]], "but they came as torch.float"),
        (SQUARE, {"quad": [[0, 1, 2, 4]]}, "name points 0 to 4, there are only 0 to 3"),
        ([[0.0, 0, 0, 0]] * 4, [[0, 1, 2]], r"needed \(K, d\) with d = 1, 2 or 3"),
        (CUBE, [[0, 1, 2, 3]], "1 of 1 cells are flat or not finite, the first is cell 0 with measure 0"),
        ([*CUBE[:3], CUBE[4], CUBE[7]], [[0, 1, 2, 3], [0, 1, 2, 4]], "same side of the face of points 0, "),
        (CUBE, [[0, 1, 2, 4]], "4 of 8 points belong to no cell, the first is point 3; Mesh.repaired"),
        ([[0.0], [1.0], [2.0]], [[0, 1], [0, 2]], "same side of point 0: they overlap"),
        (SQUARE, [[0, 1, 2, 3], [0, 1, 2, 3]], "they overlap"),
    ],
)
def test_broken_meshes_are_refused(points, cells, message):
    with pytest.raises(ValueError, match=message):
        Mesh(points, cells if isinstance(cells, dict) else np.array(cells))


def test_repaired_drops_flat_cells_and_unused_points_of_any_type():
    mesh, kept = Mesh.repaired([[9.0, 9.0], *SQUARE], {"triangle": [[1, 2, 2], [1, 3, 2]], "quad": [[1, 1, 3, 3]]})
    assert kept.tolist() == [1, 2, 3]
    assert mesh.measure == 0.5
    tets, kept = Mesh.repaired(CUBE, {"tetra": [[0, 1, 2, 3], [0, 1, 2, 4]]})
    assert (kept.tolist(), tets.measure) == ([0, 1, 2, 4], pytest.approx(1 / 6))


def test_only_triangles_are_refined():
    with pytest.raises(ValueError, match="only triangles can be cut; this mesh has quad cells"):
        box("quad").refined()
    fine = sphere(1).refined()
    assert len(fine.cells) == 4 * len(sphere(1).cells)


def test_normals_of_a_sphere_point_outwards():
    mesh = sphere(4)
    assert (mesh.measure_dim, mesh.dim) == (2, 3)
    assert mesh.measure == pytest.approx(4 * np.pi, rel=0.01)
    assert float(mesh.weights.sum()) == pytest.approx(mesh.measure)
    assert mesh.spacing == pytest.approx(np.sqrt(mesh.measure / len(mesh)))
    torch.testing.assert_close(mesh.normals(), mesh.points, atol=0.02, rtol=0)
    assert not mesh.boundary.any()
    assert mesh.distance() is None
    cells = mesh.cells.numpy().copy()
    some = np.random.default_rng(0).random(len(cells)) < 0.5
    cells[some] = cells[some][:, ::-1]
    torch.testing.assert_close(Mesh(mesh.points, cells).normals(), mesh.normals(), atol=1e-12, rtol=0)
    assert box("triangle").normals() is None
    assert box("tetra").normals() is None


def test_points_near_a_surface_are_projected_on_it(rng):
    mesh = sphere(3)
    x = torch.randn(500, 3, generator=rng, dtype=torch.float64)
    x /= x.norm(dim=1, keepdim=True)
    with pytest.raises(ValueError, match="outside"):
        mesh.interpolate(mesh.points, 0.9 * x)
    fine = sphere(5)
    found = fine.interpolate(fine.points, x)
    torch.testing.assert_close(found, x, atol=2e-3, rtol=0)
    at = inside(mesh, rng)
    torch.testing.assert_close(mesh.interpolate(linear(mesh.points), at), linear(at), rtol=1e-12, atol=1e-12)


def test_surfaces_of_other_cells_and_curves():
    plane = box("quad", 3)
    bent = torch.cat([plane.points, plane.points[:, :1] ** 2], 1)
    sheet = Mesh(bent, {"quad": plane.blocks["quad"]})
    assert torch.equal(sheet.boundary, plane.boundary)
    assert float(sheet.weights.sum()) == pytest.approx(sheet.measure)
    assert sheet.measure == pytest.approx(1.479, rel=0.03)  # the length of the parabola
    assert bool((sheet.normals()[:, 2] > 0).all())
    angle = torch.linspace(0, 2 * np.pi, 101, dtype=torch.float64)[:-1]
    circle = Mesh(
        torch.stack([angle.cos(), angle.sin()], 1), torch.stack([torch.arange(100), (torch.arange(100) + 1) % 100], 1)
    )
    assert (circle.measure_dim, circle.dim) == (1, 2)
    assert circle.measure == pytest.approx(2 * np.pi, rel=1e-3)
    assert circle.distance() is None
    assert circle.normals() is None


def test_a_moebius_strip_has_no_orientation_and_stays_as_it_is():
    n = 12
    angle = np.arange(n) * 2 * np.pi / n
    rows = []
    for side in (-0.3, 0.3):
        r = 1 + side * np.cos(angle / 2)
        rows.append(np.stack([r * np.cos(angle), r * np.sin(angle), side * np.sin(angle / 2)], 1))
    a, b = np.arange(n), np.arange(n) + n
    nexts = np.append(a[1:], b[0]), np.append(b[1:], a[0])
    cells = np.stack([a, nexts[0], nexts[1], b], 1)
    strip = Mesh(np.concatenate(rows), {"quad": cells})
    assert np.array_equal(strip.blocks["quad"].numpy(), cells)
    assert bool(strip.boundary.all())


def test_points_in_a_hole_are_refused():
    cubes = box("hexahedron", 3, jitter=0.0)
    hollow = Mesh(cubes.points, {"hexahedron": np.delete(cubes.blocks["hexahedron"].numpy(), 13, 0)})
    assert hollow.measure == pytest.approx(26 / 27)
    assert bool(hollow.boundary.all())
    middle = torch.full((1, 3), 0.5, dtype=torch.float64)
    assert not hollow.contains(middle).any()
    with pytest.raises(ValueError, match="outside the domain"):
        hollow.interpolate(hollow.points, middle)
    assert cubes.contains(middle).all()


def test_location_in_cells_of_very_different_sizes(rng):
    """Long thin cells and cells of all sizes next to each other."""
    x = torch.cat([torch.linspace(0, 1, 9, dtype=torch.float64) ** 12, torch.tensor([2.0, 4.0], dtype=torch.float64)])
    y = torch.linspace(0, 1, 5, dtype=torch.float64)
    points = torch.cartesian_prod(x, y)
    index = torch.arange(len(points)).reshape(len(x), len(y))
    corners = [index[:-1, :-1], index[1:, :-1], index[1:, 1:], index[:-1, 1:]]
    mesh = Mesh(points, torch.stack([corner.reshape(-1) for corner in corners], 1))
    at = inside(mesh, rng, 2000)
    torch.testing.assert_close(mesh.interpolate(linear(points), at), linear(at), rtol=1e-9, atol=1e-9)


def test_the_ball():
    mesh = ball()
    assert mesh.measure == pytest.approx(4 / 3 * np.pi, rel=0.05)
    assert [*mesh.blocks] == ["wedge", "tetra"]
    assert torch.equal(mesh.boundary, (mesh.points.norm(dim=1) - 1).abs() < 1e-9)


@pytest.mark.parametrize("mesh", [mixed(), box("triangle6"), sphere(1)], ids=["mixed", "second", "surface"])
def test_solvers_refuse_mixed_cells_second_order_and_surfaces(mesh):
    assert not is_discretised(mesh)
    with pytest.raises(ValueError, match=r"solve_darcy: a mesh of .* cells in dimension .; give a mesh of one kind of cells"):
        solve_darcy(mesh, 1.0)
    assert all(is_discretised(box(kind)) for kind in ("line", "triangle", "quad", "tetra", "hexahedron"))


@pytest.mark.parametrize("domain", [mixed(), Grid(4, periodic=True), Cloud(torch.rand(9, 2))], ids=["mesh", "grid", "cloud"])
def test_domains_can_be_pickled_after_use(domain):
    domain.interpolate(domain.points, domain.points)
    domain.distance()
    assert pickle.loads(pickle.dumps(domain)).same_as(domain)
