import math

import pytest
import torch

from gkn import Cloud, Grid, Mesh


@pytest.mark.parametrize("dim", [1, 2, 3])
def test_grid_has_its_boundary_and_integrates_linear_functions(dim):
    grid = Grid(5, dim)
    assert grid.points.shape == (5**dim, dim)
    assert len(grid) == 5**dim
    assert grid.points.min() == 0
    assert grid.points.max() == 1
    assert float(grid.weights.sum()) == pytest.approx(1, abs=1e-15)
    assert float((grid.weights * grid.points.sum(-1)).sum()) == pytest.approx(dim / 2, abs=1e-14)
    assert int((~grid.boundary).sum()) == 3**dim


@pytest.mark.parametrize("dim", [1, 2, 3])
def test_every_keeps_the_very_same_nodes(dim):
    fine = Grid(13, dim)
    for k in (1, 2, 3, 4, 6, 12):
        coarse = fine.every(k)
        assert torch.equal(fine.points[fine.stride(k)], coarse.points)  # the same floating-point numbers
    assert Grid(241).every(15) == Grid(17)
    assert [Grid(241).every(k).size for k in (2, 4, 8, 16)] == [121, 61, 31, 16]
    assert [Grid(421).every(k).size for k in (2, 3, 5)] == [211, 141, 85]
    assert Grid(31).refined() == Grid(61)


def test_a_stride_that_does_not_divide_names_those_that_do():
    message = r"Grid.every\(7\): the stride must divide size-1 = 60; use one of 1, 2, 3, 4, 5, 6, 10, 12, 15, 20, 30, 60"
    with pytest.raises(ValueError, match=message):
        Grid(61).every(7)
    with pytest.raises(ValueError, match="the stride must divide"):
        Grid(61).every(0)


@pytest.mark.parametrize(("size", "dim"), [(1, 2), (5, 0), (5, 4), (10**7, 3)])
def test_impossible_grids(size, dim):
    with pytest.raises(ValueError, match="Grid"):
        Grid(size, dim)


@pytest.mark.parametrize(
    ("mesh", "area"),
    [
        (lambda h: Mesh.square(h), 1.0),
        (lambda h: Mesh.l_shape(h), 0.75),
        (lambda h: Mesh.holes(h, [(0.5, 0.5, 0.25)]), 1 - math.pi / 16),
        (lambda h: Mesh.disk(h), math.pi),
    ],
)
def test_named_shapes(mesh, area):
    made = mesh(0.05)
    assert made.measure == pytest.approx(area, rel=2e-3)
    assert float(made.weights.sum()) == pytest.approx(made.measure, rel=1e-14)
    # Weights integrate linear functions exactly.
    p = made.points[made.cells].mean(1)
    assert float((made.weights * made.points[:, 0]).sum()) == pytest.approx(float((made.areas * p[:, 0]).sum()), abs=1e-14)
    assert torch.equal(mesh(0.05).points, made.points)  # the mesher has no whims
    inner = ~made.boundary
    assert 0 < int(inner.sum()) < len(made)


def test_boundaries_are_where_they_are():
    disk = Mesh.disk(0.1)
    assert torch.allclose(disk.points[disk.boundary].norm(dim=1), torch.tensor(1.0, dtype=torch.float64), atol=1e-12)
    assert float(disk.points[~disk.boundary].norm(dim=1).max()) < 1 - 1e-3
    ring = Mesh.holes(0.1, [(0.5, 0.5, 0.25)])
    x = ring.points[ring.boundary]
    on_hole = ((x - 0.5).norm(dim=1) - 0.25).abs() < 1e-9
    on_square = ((x == 0) | (x == 1)).any(1)
    assert bool((on_hole | on_square).all())
    assert bool(on_hole.any())
    assert bool(on_square.any())


def test_refined_cuts_every_cell_in_four():
    mesh = Mesh.l_shape(0.2)
    fine = mesh.refined()
    assert len(fine.cells) == 4 * len(mesh.cells)
    assert torch.equal(fine.points[: len(mesh)], mesh.points)
    assert fine.measure == pytest.approx(mesh.measure, rel=1e-14)


def test_contains_agrees_with_geometry(rng):
    x = torch.rand(4000, 2, generator=rng, dtype=torch.float64) * 2.4 - 1.2
    disk = Mesh.disk(0.05)
    r = x.norm(dim=1)
    sure = (r - 1).abs() > 2e-3  # the polygon is not quite the disk
    assert torch.equal(disk.contains(x)[sure], (r <= 1)[sure])
    bent = Mesh.l_shape(0.1)
    expected = (x >= 0).all(1) & (x <= 1).all(1) & ~((x[:, 0] > 0.5) & (x[:, 1] > 0.5))
    assert torch.equal(bent.contains(x), expected)
    assert bool(bent.contains(bent.points).all())
    assert torch.equal(Grid(5).contains(x), (x >= 0).all(1) & (x <= 1).all(1))


SQUARE = torch.tensor([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]], dtype=torch.float64)


@pytest.mark.parametrize(
    ("points", "cells", "message"),
    [
        (SQUARE, [[0, 1, 2], [0, 2, 3], [1, 1, 3]], "1 of 3 cells are flat or not finite, the first is cell 2 with measure 0"),
        (SQUARE, [[0, 1, 2]], "1 of 4 points belong to no cell, the first is point 3"),
        (SQUARE, [[0, 1, 4]], "name points 0 to 4, there are only 0 to 3"),
        (SQUARE, [[0, 1, 1], [0, 1, 2], [0, 2, 3]], "flat or not finite"),
        (SQUARE * 1e200, [[0, 1, 2], [0, 2, 3]], "flat or not finite"),
        (SQUARE * float("nan"), [[0, 1, 2], [0, 2, 3]], "must be finite"),
        (SQUARE[:3], torch.empty(0, 3, dtype=torch.long), "needed at least one cell, as"),
    ],
)
def test_broken_meshes_are_refused(points, cells, message):
    with pytest.raises(ValueError, match=message):
        Mesh(points, torch.as_tensor(cells))


@pytest.mark.parametrize("cells", [[[0, 1, 2], [0, 1, 3], [0, 1, 4]], [[0, 1, 2], [0, 1, 3], [0, 1, 4], [0, 1, 2]]])
def test_cells_that_overlap_are_refused(cells):
    points = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.5, 0.6], [0.2, 0.9]], dtype=torch.float64)
    with pytest.raises(ValueError, match="same side of the edge from point 0 to point 1: they overlap"):
        Mesh(points, torch.tensor(cells))
    with pytest.raises(ValueError, match="overlap"):
        Mesh(points[:3], torch.tensor([[0, 1, 2], [1, 2, 0]]))  # one triangle, twice


def test_repaired():
    extra = torch.cat([torch.tensor([[9.0, 9.0]], dtype=torch.float64), SQUARE])
    mesh, kept = Mesh.repaired(extra, torch.tensor([[1, 2, 3], [1, 4, 3], [1, 2, 2]]))
    assert kept.tolist() == [1, 2, 3, 4]
    assert mesh.measure == 1
    for wrong in ([[-1, 0, 1]], [[0, 1, 5]], [[0.0, 1.0, 2.0]]):
        with pytest.raises(ValueError, match="cells"):
            Mesh.repaired(extra, torch.tensor(wrong))


def test_holes_must_lie_inside_and_apart():
    with pytest.raises(ValueError, match="must lie inside the square"):
        Mesh.holes(0.1, [(0.9, 0.5, 0.2)])
    with pytest.raises(ValueError, match="overlap"):
        Mesh.holes(0.1, [(0.4, 0.5, 0.15), (0.6, 0.5, 0.15)])
    with pytest.raises(ValueError, match="0 < h <= 1"):
        Mesh.square(0.0)


def test_cloud(rng):
    cloud = Cloud(torch.rand(7, 3, generator=rng, dtype=torch.float64))
    assert float(cloud.weights.min()) > 0
    assert not cloud.boundary.any()
    assert cloud.dim == 3
    with pytest.raises(ValueError, match="weight 1 is negative"):
        Cloud(cloud.points[:2], torch.tensor([1.0, -1.0], dtype=torch.float64))
    with pytest.raises(ValueError, match="weights of shape"):
        Cloud(cloud.points, torch.ones(3, dtype=torch.float64))
    with pytest.raises(ValueError, match="must be finite"):
        Cloud(cloud.points / 0)


@pytest.mark.parametrize("domain", [Grid(5, 1), Grid(4, 2), Grid(3, 3), Mesh.square(0.3), Mesh.disk(0.4)], ids=repr)
def test_interpolation_is_exact_for_linear_functions_and_at_nodes(domain, rng):
    def linear(x):
        return torch.stack([1 + x @ torch.arange(1.0, domain.dim + 1, dtype=torch.float64), x[:, 0]], 1)

    at = torch.rand(50, domain.dim, generator=rng, dtype=torch.float64) * (1 if isinstance(domain, Grid) else 0.5)
    torch.testing.assert_close(domain.interpolate(linear(domain.points), at), linear(at), rtol=1e-12, atol=1e-12)
    values = torch.randn(len(domain), 3, generator=rng, dtype=torch.float64)
    torch.testing.assert_close(domain.interpolate(values, domain.points), values, rtol=1e-12, atol=1e-12)
    outside = torch.full((1, domain.dim), 1.5, dtype=torch.float64)
    with pytest.raises(ValueError, match="1 of 1 points lie outside the domain"):
        domain.interpolate(values, outside)


def test_interpolation_on_a_grid_is_exact_at_every_node_of_every_size():
    for size in range(2, 60):
        grid = Grid(size, 1)
        values = torch.arange(size, dtype=torch.float64)[:, None] ** 2
        assert torch.equal(grid.interpolate(values, grid.points), values)


def test_a_cloud_answers_with_its_nearest_point(rng):
    cloud = Cloud(torch.tensor([[0.0, 0.0], [1.0, 0.0]]))
    values = torch.tensor([[3.0], [4.0]], dtype=torch.float64)
    at = torch.tensor([[0.4, 5.0], [0.6, -1.0]], dtype=torch.float64)
    assert cloud.interpolate(values, at).tolist() == [[3.0], [4.0]]


def test_points_are_found_in_their_cells(rng):
    mesh = Mesh.l_shape(0.2)
    cell = torch.randint(0, len(mesh.cells), (40,), generator=rng)
    share = torch.rand(40, 3, generator=rng, dtype=torch.float64) + 0.1
    share /= share.sum(1, keepdim=True)
    at = (share[..., None] * mesh.points[mesh.cells[cell]]).sum(1)
    found, where = mesh.locate(at)
    assert torch.equal(found, cell)
    torch.testing.assert_close(where, share)
    assert mesh.locate(torch.tensor([[0.9, 0.9]], dtype=torch.float64))[0].tolist() == [-1]
