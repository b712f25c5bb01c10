import math

import numpy as np
import pytest
import torch

from gkn import Cloud, Grid
from gkn.geometry import quadrature


def disk_with_hole(rng, count):
    x = torch.rand(4 * count, 2, generator=rng, dtype=torch.float64) * 2 - 1
    r = x.norm(dim=1)
    return x[(r < 1) & (r > 0.3)][:count]


def l_shape(rng, count):
    x = torch.rand(2 * count, 2, generator=rng, dtype=torch.float64)
    return x[~((x > 0.5).all(1))][:count]


@pytest.mark.parametrize(("region", "area"), [(l_shape, 0.75), (disk_with_hole, math.pi * 0.91)])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_weights_leave_holes_and_notches_empty(region, area, seed):
    cloud = Cloud(region(torch.Generator().manual_seed(seed), 2000))
    assert cloud.measure == pytest.approx(area, rel=0.03)
    assert float(cloud.weights.min()) > 0
    assert cloud.weights is cloud.weights  # computed once


@pytest.mark.parametrize("dim", [1, 2, 3])
def test_weights_of_a_convex_region_sum_to_its_measure(rng, dim):
    """If the boundary is sampled too, weights integrate linear functions exactly, also for uneven points."""
    grid = Grid({1: 20, 2: 12, 3: 7}[dim], dim)
    x = grid.points.clone()
    x[~grid.boundary] += (
        0.3 * grid.spacing * (torch.rand(int((~grid.boundary).sum()), dim, generator=rng, dtype=torch.float64) - 0.5)
    )
    dense = 0.4 + 0.1 * torch.rand(300, dim, generator=rng, dtype=torch.float64)
    for points in (x, torch.cat([x, dense])):
        weights = Cloud(points).weights
        assert float(weights.sum()) == pytest.approx(1)
        assert float(weights @ (1 + 2 * points[:, 0])) == pytest.approx(2, rel=1e-9)


def test_weights_of_a_line_are_half_the_gaps():
    assert Cloud(torch.tensor([[4.0], [0.0], [1.0], [1.0]])).weights.tolist() == [1.5, 0.5, 1.0, 1.0]


def test_points_that_coincide_share_their_weight(rng):
    x = torch.rand(100, 2, generator=rng, dtype=torch.float64)
    once, twice = Cloud(x).weights, Cloud(torch.cat([x, x[:10]])).weights
    torch.testing.assert_close(twice[:10], once[:10] / 2)
    assert torch.equal(twice[:10], twice[100:])
    torch.testing.assert_close(twice[10:100], once[10:])


@pytest.mark.parametrize(
    "points",
    [
        torch.linspace(0, 1, 5, dtype=torch.float64)[:, None].expand(-1, 2),
        torch.cat([torch.rand(50, 2, dtype=torch.float64), torch.zeros(50, 1)], 1),
        torch.zeros(1, 3),
        torch.zeros(4, 2),
        torch.tensor([[0.0, 0.0], [1.0, 1.0]]),
    ],
    ids=["line", "plane", "point", "same", "two"],
)
def test_points_that_fill_nothing_have_weights(points):
    weights = Cloud(points).weights
    assert bool(torch.isfinite(weights).all())
    assert float(weights.min()) > 0


def test_many_points_get_the_volumes_of_balls(rng, monkeypatch):
    monkeypatch.setattr(quadrature, "_MOST", 1000)
    for dim in (2, 3):
        cloud = Cloud(torch.rand(3000, dim, generator=rng, dtype=torch.float64))
        assert cloud.measure == pytest.approx(1, rel=0.3)
        assert float(cloud.weights.min()) > 0


@pytest.mark.parametrize("dim", [1, 2, 3])
def test_mapping_is_exact_for_powers_of_two(rng, dim):
    x = torch.rand(200, dim, generator=rng, dtype=torch.float64)
    shift, scale = torch.rand(dim, generator=rng, dtype=torch.float64), 0.7
    for weights in (None, torch.rand(200, generator=rng, dtype=torch.float64)):
        one = Cloud(x, weights).mapped(shift, scale)
        for unit in (2.0**10, 2.0**-10):
            given = None if weights is None else weights * unit**dim
            assert torch.equal(Cloud(x * unit, given).weights, Cloud(x, weights).weights * unit**dim)
            other = Cloud(x * unit, given).mapped(shift * unit, scale * unit)
            assert torch.equal(one.points, other.points)
            assert torch.equal(one.weights, other.weights)
        torch.testing.assert_close(one.weights, Cloud(x, weights).weights / scale**dim)
    cloud = Cloud(x)
    assert cloud.mapped(torch.zeros(dim), 1.0) is cloud


def test_weights_given_stay_as_given(rng):
    x, weights = torch.rand(9, 2, generator=rng), torch.rand(9, generator=rng).double()
    cloud = Cloud(x, weights, np.arange(9) < 3)
    assert torch.equal(cloud.weights, weights)
    again = Cloud.from_arrays(cloud.arrays(), {})
    assert again.same_as(cloud)
    assert Cloud.from_arrays(Cloud(x).arrays(), {}).same_as(Cloud(x))
    with pytest.raises(AttributeError):
        cloud.points = x


def test_points_of_a_lattice_have_the_same_weights_in_any_unit():
    grid = Grid(9)
    for scale, shift in ((1.0, 0.0), (1e3, 0.0), (1e-3, 0.0), (1.0, 5e5)):
        weights = Cloud(grid.points * scale + shift).weights / scale**2
        torch.testing.assert_close(weights, grid.weights, rtol=1e-6, atol=1e-9)
