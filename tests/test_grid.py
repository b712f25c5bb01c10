import itertools
import time

import pytest
import torch

from gkn import Grid, Mesh
from gkn.geometry.smoothing import smooth
from gkn.pde import darcy_residual, is_discretised, solve_darcy

BOXES = {
    "unit": Grid(5, 2),
    "interval": Grid(7, 1, low=-2.0, high=0.5),
    "sides": Grid((4, 6), low=(-1.0, 2.0), high=(2.0, 2.5)),
    "centres": Grid((4, 5, 3), low=0.1, high=(0.7, 0.8, 0.4), nodes="centres"),
    "left": Grid((6, 4), high=(1.0, 3.0), nodes="left"),
    "periodic": Grid((8, 6), low=(0.0, -1.0), high=(2.0, 1.0), periodic=True),
    "channel": Grid((8, 5, 4), low=-0.3, high=1.1, periodic=(True, False, True)),
    "periodic centres": Grid((6, 5), high=(1.0, 0.5), periodic=(False, True), nodes="centres"),
}


@pytest.mark.parametrize("name", BOXES)
def test_weights_sum_to_the_measure(name):
    grid = BOXES[name]
    measure = float(torch.tensor(grid.sides).prod())
    assert grid.measure == pytest.approx(measure)
    assert float(grid.weights.sum()) == pytest.approx(measure, rel=1e-6)
    assert grid.points.shape == (len(grid), grid.dim)
    assert float(grid.spacing) == pytest.approx(float(torch.tensor(grid.steps).prod()) ** (1 / grid.dim), rel=1e-5)
    assert grid.scale == max(grid.sides)
    assert bool(grid.contains(grid.points).all())


@pytest.mark.parametrize("name", BOXES)
def test_linear_functions_are_interpolated_exactly(name, rng):
    grid = BOXES[name]
    still = [i for i, wraps in enumerate(grid.periodic) if not wraps]

    def function(x):
        wave = sum(torch.cos(2 * torch.pi * x[:, i] / grid.sides[i]) for i in range(grid.dim) if grid.periodic[i])
        return torch.stack([1 + (x[:, still] * torch.arange(1.0, len(still) + 1)).sum(1), wave + 0 * x[:, 0]], 1)

    at = torch.rand(300, grid.dim, generator=rng, dtype=torch.float64) * torch.tensor(grid.sides) + torch.tensor(grid.low)
    corners = torch.tensor(list(itertools.product(*zip(grid.low, grid.high, strict=True))), dtype=torch.float64)
    for x in (at, corners):  # up to the very edge
        found = grid.interpolate(function(grid.points), x)
        torch.testing.assert_close(found[:, 0], function(x)[:, 0], rtol=1e-12, atol=1e-12)
    values = torch.randn(len(grid), 3, generator=rng, dtype=torch.float64)
    assert torch.equal(grid.interpolate(values, grid.points), values)
    outside = at[:1].clone()
    for i in range(grid.dim):
        outside[:, i] += 2 * grid.sides[i]
    if all(grid.periodic):
        torch.testing.assert_close(grid.interpolate(values, outside), grid.interpolate(values, at[:1]))
    else:
        with pytest.raises(ValueError, match="1 of 1 points lie outside the domain"):
            grid.interpolate(values, outside)


def test_periodic_axes_wrap():
    grid = Grid(4, 1, periodic=True)
    assert grid.points[:, 0].tolist() == [0, 0.25, 0.5, 0.75]
    values = torch.tensor([[0.0], [1.0], [2.0], [4.0]], dtype=torch.float64)
    assert grid.interpolate(values, torch.tensor([[0.875], [-0.125], [1.0], [7.5]])).tolist() == [[2], [2], [0], [2]]
    centres = Grid(2, 1, periodic=True, nodes="centres")
    assert centres.interpolate(values[1:3], torch.tensor([[0.0], [0.125], [0.5]])).tolist() == [[1.5], [1.25], [1.5]]
    assert grid.periods.tolist() == [1.0]
    assert BOXES["channel"].periods.tolist() == pytest.approx([1.4, torch.inf, 1.4])
    assert BOXES["sides"].periods is None


def test_boundaries():
    assert not BOXES["centres"].boundary.any()
    assert not BOXES["periodic"].boundary.any()
    left = BOXES["left"]
    assert torch.equal(left.boundary, (left.points == 0).any(1))
    channel = BOXES["channel"]
    assert torch.equal(channel.boundary, (channel.points[:, 1] == -0.3) | (channel.points[:, 1] == 1.1))


@pytest.mark.parametrize("name", BOXES)
def test_stored_and_equal_by_value(name):
    grid = BOXES[name]
    again = Grid.from_arrays(grid.arrays(), grid.numbers())
    assert again == grid
    assert hash(again) == hash(grid)
    assert torch.equal(again.points, grid.points)
    assert {array.dtype for array in grid.arrays().values()} <= {torch.float64, torch.int64, torch.bool}
    if name == "unit":
        assert (grid.numbers(), grid.arrays()) == ({"size": 5, "dim": 2}, {})
    else:
        assert grid.numbers() == {}
    assert eval(repr(grid)) == grid
    with pytest.raises(AttributeError):
        grid.low = (1.0,)


def test_grids_that_differ_are_not_equal():
    assert len({*BOXES.values(), Grid(5), Grid(5, 3), Grid((5, 5)), Grid(5, nodes="left")}) == len(BOXES) + 2
    assert Grid((61, 61)) == Grid(61)
    assert repr(Grid(61)) == "Grid(size=61, dim=2)"


@pytest.mark.parametrize("name", BOXES)
def test_mapping_is_exact_for_powers_of_two(name, rng):
    grid = BOXES[name]
    shift, scale = torch.rand(grid.dim, generator=rng, dtype=torch.float64), 0.7
    one = grid.mapped(shift, scale)
    assert torch.equal(one.points, (grid.points - shift) / scale)
    for unit in (2.0**10, 2.0**-10):
        low, high = ([x * unit for x in corner] for corner in (grid.low, grid.high))
        other = Grid(grid.shape, low=low, high=high, periodic=grid.periodic, nodes=grid.nodes).mapped(
            shift * unit, scale * unit
        )
        assert torch.equal(one.points, other.points)
        assert torch.equal(one.weights, other.weights)
    torch.testing.assert_close(one.weights, grid.weights / scale**grid.dim)
    assert torch.equal(one.boundary, grid.boundary)
    found = one.distance()
    assert found is None or bool((found[0][one.boundary] == 0).all())
    assert grid.mapped(torch.zeros(grid.dim), 1.0) is grid


@pytest.mark.parametrize("name", ["unit", "interval", "left", "periodic"])
def test_every_and_refined_keep_nodes(name):
    grid = BOXES[name]
    for fine, k in ((grid, 2), (grid.refined(), 2), (grid.refined(), 4)):
        coarse = fine.every(k)
        assert torch.equal(fine.points[fine.stride(k)], coarse.points)
    assert grid.refined().every(2) == grid


def test_strides_that_do_not_fit():
    with pytest.raises(ValueError, match=r"Grid.every\(5\): the stride must divide size = 12; use one of 1, 2, 3, 4, 6"):
        Grid(12, 1, periodic=True).every(5)
    with pytest.raises(ValueError, match=r"the stride must divide size = 12"):
        Grid(12, 1, nodes="left").every(12)
    with pytest.raises(ValueError, match=r"the stride must divide size-1 = 5; use one of 1, 5"):
        Grid((5, 6)).every(4)
    with pytest.raises(ValueError, match=r"Grid.every\(2\): centres of cells are no centres of larger cells"):
        Grid(12, nodes="centres").every(2)
    with pytest.raises(ValueError, match="no finer grid of cell centres"):
        Grid(12, nodes="centres").refined()


@pytest.mark.parametrize("name", BOXES)
@pytest.mark.parametrize("m", [1, 7, 1000])
def test_parts_cover_every_node_once(name, m, rng):
    grid = BOXES[name]
    parts = list(grid.parts(m, rng))
    assert torch.equal(torch.cat(parts).sort().values, torch.arange(len(grid)))
    assert max(map(len, parts)) <= m


@pytest.mark.parametrize("name", BOXES)
def test_cells_between_nodes_form_a_mesh(name):
    grid = BOXES[name]
    kind, cells = grid.cell_blocks()[0]
    assert kind == {1: "line", 2: "quad", 3: "hexahedron"}[grid.dim]
    mesh = Mesh(grid.points, {kind: cells})
    assert torch.equal(mesh.blocks[kind], torch.from_numpy(cells))  # none has to be turned
    extent = grid.points.amax(0) - grid.points.amin(0)
    assert mesh.measure == pytest.approx(float(extent.prod()))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Grid((3, 4, 5, 6)), "dim must be 1, 2 or 3"),
        (lambda: Grid((3, 1)), "at least 2 nodes a side"),
        (lambda: Grid(3, low=1.0), "needed low < high on every axis"),
        (lambda: Grid(3, high=float("inf")), "needed low < high on every axis, all finite"),
        (lambda: Grid(3, low=(0.0, 0.0, 0.0)), r"Grid\(low=.*3 entries for 2 axes"),
        (lambda: Grid(3, nodes="right"), "use one of 'vertices', 'centres', 'left'"),
        (lambda: Grid((3, 4)).size, "Grid.size: the axes of a grid of 3 x 4 differ; use Grid.shape"),
        (lambda: Grid(3, high=(1.0, 2.0)).axis, "Grid.axis: the axes of a grid of 3 x 3 differ; use Grid.axes"),
        (lambda: Grid(3).distance(torch.zeros(4, 3)), r"distance: points of shape \(4, 3\); needed \(P, 2\)"),
    ],
)
def test_messages(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("name", [name for name in BOXES if name != "unit"])
def test_solvers_refuse_all_but_the_unit_grid(name):
    grid = BOXES[name]
    assert not is_discretised(grid)
    with pytest.raises(ValueError, match="is not the unit grid; give Grid"):
        solve_darcy(grid, 1.0)
    with pytest.raises(ValueError, match="is not the unit grid; give Grid"):
        darcy_residual(grid, 1.0, torch.zeros(len(grid)))
    assert is_discretised(BOXES["unit"])


@pytest.mark.parametrize("name", BOXES)
def test_smoothing_equals_the_sum_over_all_points(name, rng):
    grid = BOXES[name]
    a = torch.rand(len(grid), generator=rng, dtype=torch.float64)
    width = 0.2 * grid.scale
    difference = grid.points[:, None] - grid.points
    if grid.periods is not None:
        wrap = torch.isfinite(grid.periods)
        difference[..., wrap] -= grid.periods[wrap] * (difference[..., wrap] / grid.periods[wrap]).round()
    kernel = torch.exp(-(difference**2).sum(-1) / (2 * width**2)) * grid.weights
    total = kernel.sum(1)
    if grid.periods is not None:  # a point half a period away pulls from both sides
        difference = torch.where(2 * difference.abs() > (1 - 1e-9) * grid.periods, 0.0, difference)
    slopes = -difference / width**2 * kernel[..., None]
    smoothed, gradient = smooth(grid, a, width)
    expected = kernel @ a / total
    torch.testing.assert_close(smoothed, expected, rtol=1e-9, atol=1e-9)
    slope = (torch.einsum("kjd,j->kd", slopes, a) - expected[:, None] * slopes.sum(1)) / total[:, None]
    torch.testing.assert_close(gradient, slope, rtol=1e-8, atol=1e-8)


def test_smoothing_commutes_with_shifts_on_a_periodic_grid(rng):
    grid = BOXES["periodic"]
    a = torch.rand(grid.shape, generator=rng, dtype=torch.float64)
    shifted = smooth(grid, a.roll((3, 2), (0, 1)).reshape(-1), 0.3)[0].reshape(grid.shape)
    torch.testing.assert_close(shifted, smooth(grid, a.reshape(-1), 0.3)[0].reshape(grid.shape).roll((3, 2), (0, 1)))


def test_every_node_of_a_grid_is_the_grid():
    for nodes in ("vertices", "centres", "left"):
        grid = Grid(6, nodes=nodes)
        assert grid.every(1) is grid
        assert grid.stride(1).tolist() == [*range(36)]


def test_a_dimension_is_checked_before_anything_is_made():
    """It may come from a file."""
    start = time.monotonic()
    for dim in (10**10, 0, -1, 4):
        with pytest.raises(ValueError, match="dim must be 1, 2 or 3"):
            Grid(16, dim)
    assert time.monotonic() - start < 5
