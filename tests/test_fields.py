import math
import re
from pathlib import Path

import pytest
import torch

from gkn import Cloud, GaussianField, Grid, Mesh, smooth, two_phase
from gkn.geometry import smoothing
from gkn.geometry.fields import Series

BOUNDARIES = ["neumann", "periodic", "dirichlet"]


def basis_1d(boundary, modes, x):
    """Eigenfunctions of -d^2/dx^2 on [0, 1] with norm 1, and their eigenvalues, written out once more."""
    phi, eigenvalues = [], []
    for j in range(modes):
        if boundary == "neumann":
            phi.append(torch.ones_like(x) if j == 0 else math.sqrt(2) * torch.cos(math.pi * j * x))
            eigenvalues.append((math.pi * j) ** 2)
        elif boundary == "dirichlet":
            phi.append(math.sqrt(2) * torch.sin(math.pi * (j + 1) * x))
            eigenvalues.append((math.pi * (j + 1)) ** 2)
        else:
            k = (j + 1) // 2
            wave = torch.cos if j % 2 else torch.sin
            phi.append(torch.ones_like(x) if j == 0 else math.sqrt(2) * wave(2 * math.pi * k * x))
            eigenvalues.append((2 * math.pi * k) ** 2)
    return torch.stack(phi, 1), torch.tensor(eigenvalues, dtype=torch.float64)


@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_the_field_has_its_law(boundary):
    """20,000 draws on 16 x 16: mean, covariance and the variance of each mode within 5 standard errors of the series'."""
    n, modes, tau, alpha, scale = 20_000, 20, 3.0, 2.0, 1.5
    grid = Grid(16)
    field = GaussianField(tau, alpha, boundary, modes=modes, scale=scale)
    draws = field.sample(grid, n, torch.Generator().manual_seed(1))
    phi, eigenvalues = basis_1d(boundary, modes, grid.axis)
    variance = scale**2 * (eigenvalues[:, None] + eigenvalues + tau**2) ** -alpha
    if boundary != "dirichlet":
        variance[0, 0] = 0
    two = torch.kron(phi, phi)
    covariance = two @ torch.diag(variance.reshape(-1)) @ two.T
    deviation = covariance.diagonal().sqrt()

    inside = deviation > 1e-9  # sines vanish on the boundary
    assert draws[:, ~inside].abs().sum() < 1e-9
    mean_error = draws.mean(0)[inside] / (deviation[inside] / math.sqrt(n))
    assert mean_error.abs().max() < 5

    standard_error = ((torch.outer(deviation**2, deviation**2) + covariance**2) / n).sqrt()
    error = (draws.T @ draws / n - covariance).abs()
    assert (error <= 5 * standard_error)[inside][:, inside].all()

    # Project on the modes the grid can tell apart: their variances are those of the law, with all that alias to them.
    low = 6
    project = torch.linalg.pinv(two)[[i * modes + j for i in range(low) for j in range(low)]]
    expected = (project @ covariance @ project.T).diagonal()
    coefficients = draws @ project.T
    seen = expected > 1e-12
    ratio = coefficients.var(0, correction=0)[seen] / expected[seen]
    assert ((ratio - 1).abs() < 5 * math.sqrt(2 / n)).all()


def test_the_series_itself_has_its_law(rng):
    """Without a grid between: the coefficients, mode by mode."""
    field = GaussianField(2.0, 1.5, "neumann", modes=8, constant=True)
    c = field.draw(20_000, rng).coefficients
    k = torch.arange(8, dtype=torch.float64) * math.pi
    expected = (k[:, None] ** 2 + k**2 + 4) ** -1.5
    assert ((c.var(0, correction=0) / expected - 1).abs() < 5 * math.sqrt(2 / 20_000)).all()


@pytest.mark.parametrize("boundary", BOUNDARIES)
@pytest.mark.parametrize(("dim", "modes", "sizes"), [(1, 100, (9, 33, 257)), (2, 24, (4, 9, 31)), (3, 9, (5, 8))])
def test_transforms_and_direct_sums_give_the_same_values(boundary, dim, modes, sizes, rng):
    field = GaussianField(3.0, 2.0, boundary, dim=dim, modes=modes, constant=True)
    functions = field.draw(3, rng)
    for size in sizes:
        grid = Grid(size, dim)
        torch.testing.assert_close(functions(grid), functions(grid.points), atol=1e-12, rtol=0)


@pytest.mark.parametrize("boundary", BOUNDARIES)
@pytest.mark.parametrize("dim", [1, 2, 3])
@pytest.mark.parametrize(("periodic", "nodes"), [(True, "vertices"), (False, "left"), ((True, False, True), "vertices")])
def test_periodic_grids_by_transforms(boundary, dim, periodic, nodes, rng, monkeypatch):
    """In the box of the field, with axes of different sizes: the sum of the series, without summing it."""
    wraps = periodic if isinstance(periodic, bool) else periodic[:dim]
    modes = {1: 100, 2: 24, 3: 9}[dim]
    for low, high in ((0.0, 1.0), (-1.5, 2.0)):
        functions = GaussianField(3.0, 2.0, boundary, dim=dim, modes=modes, lower=low, upper=high).draw(3, rng)
        for size in (4, 21):
            grid = Grid([size + i for i in range(dim)], low=low, high=high, periodic=wraps, nodes=nodes)
            expected = functions(grid.points)
            with monkeypatch.context() as changed:
                changed.setattr(Series, "_at", None)
                torch.testing.assert_close(functions(grid), expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize(
    "grid",
    [
        Grid(6, low=0.25, periodic=True),
        Grid(6, high=(1.0, 0.5), periodic=True),
        Grid(6, periodic=True, nodes="centres"),
    ],
    ids=repr,
)
def test_grids_that_do_not_fit_are_summed(grid, rng):
    functions = GaussianField(3.0, 2.0, "periodic", modes=9).draw(2, rng)
    torch.testing.assert_close(functions(grid), functions(grid.points), atol=1e-12, rtol=0)


@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_one_seed_is_one_function_at_every_resolution(boundary):
    field = GaussianField(3.0, 2.0, boundary)
    coarse = Grid(31)
    on = [field.sample(grid, 2, torch.Generator().manual_seed(7)) for grid in (coarse, coarse.refined())]
    torch.testing.assert_close(on[0], on[1][:, coarse.refined().stride(2)], atol=1e-13, rtol=0)
    mesh = Mesh.square(0.2)
    on_mesh = field.sample(mesh, 2, torch.Generator().manual_seed(7))
    corners = [int((mesh.points == torch.tensor(c)).all(1).nonzero()[0]) for c in ((0.0, 0.0), (1.0, 0.0), (1.0, 1.0))]
    torch.testing.assert_close(on_mesh[:, corners], on[0][:, [0, 30 * 31, 31 * 31 - 1]], atol=1e-12, rtol=0)


def test_a_box_of_another_size_is_a_change_of_variables(rng):
    """On [-1,1] the field with tau is that of [0,1] with 2 tau, stretched: eigenvalues shrink by 4, densities by 2."""
    wide = GaussianField(1.5, 2.0, modes=16, lower=-1.0, upper=1.0)
    unit = GaussianField(3.0, 2.0, modes=16)
    x = torch.rand(50, 2, generator=rng, dtype=torch.float64)
    a = wide.draw(2, torch.Generator().manual_seed(3))(2 * x - 1)
    b = unit.draw(2, torch.Generator().manual_seed(3))(x)
    # (lambda/4 + tau^2)^(-alpha/2) = 4^(alpha/2) (lambda + 4 tau^2)^(-alpha/2); two axes of norm 1/sqrt(2) each.
    torch.testing.assert_close(a, b * 4.0 / 2.0, atol=1e-12, rtol=0)


def test_sampling_in_chunks_draws_the_same_functions(monkeypatch):
    field = GaussianField(3.0, 2.0, modes=5)
    whole = field.sample(Grid(5), 10, torch.Generator().manual_seed(0))
    cloud = Cloud(Grid(5).points)
    monkeypatch.setattr("gkn.geometry.fields._CHUNK", 3 * 25)  # three functions, or a few points, at a time
    torch.testing.assert_close(field.sample(Grid(5), 10, torch.Generator().manual_seed(0)), whole, atol=1e-13, rtol=0)
    torch.testing.assert_close(field.sample(Grid(5), 4, torch.Generator().manual_seed(0)), whole[:4], atol=1e-13, rtol=0)
    torch.testing.assert_close(field.sample(cloud, 10, torch.Generator().manual_seed(0)), whole, atol=1e-13, rtol=0)


def test_points_outside_and_impossible_fields():
    series = GaussianField(3.0, 2.0, modes=4).draw(1, torch.Generator())
    with pytest.raises(ValueError, match=r"1 of 2 points lie outside \[0.0, 1.0\]\^2, the first is point 1 at \(1.5, 0.5\)"):
        series(torch.tensor([[0.5, 0.5], [1.5, 0.5]], dtype=torch.float64))
    with pytest.raises(ValueError, match="must be finite"):
        series(torch.tensor([[0.5, float("nan")]], dtype=torch.float64))
    with pytest.raises(ValueError, match="alpha > dim/2"):
        GaussianField(1.0, 1.0, dim=2)
    for wrong in (
        {"scale": math.inf},
        {"lower": -math.inf},
        {"tau": 1e-200, "constant": True},
        {"tau": 1e200},
        {"modes": 10**5},
    ):
        with pytest.raises(ValueError, match=r"finite|too many"):
            GaussianField(**{"tau": 3.0, "alpha": 2.0, **wrong})
    with pytest.raises(ValueError, match="infinite variance"):
        GaussianField(0.0, 2.0, constant=True)
    with pytest.raises(ValueError, match="dimension 2 was asked for on a grid of dimension 1"):
        series(Grid(5, 1))


def test_two_phase():
    assert two_phase(torch.tensor([-1.0, 0.0, 2.0])).tolist() == [3, 12, 12]
    assert two_phase(torch.tensor([-1.0, 1.0], dtype=torch.float64), 0.7, 1.1).tolist() == [0.7, 1.1]  # not through float32
    assert two_phase(torch.tensor([-1, 1]), 0.5, 3.7).tolist() == [0.5, 3.7]
    with pytest.raises(ValueError, match="0 < low <= high"):
        two_phase(torch.zeros(1), low=-1)
    with pytest.raises(ValueError, match="must be finite"):
        two_phase(torch.tensor([0.0, math.nan]))


@pytest.mark.parametrize("dim", [1, 2, 3])
def test_smoothing_keeps_constants(dim):
    grid = Grid(9, dim)
    a, gradient = smooth(grid, torch.full((2, len(grid)), 5.0, dtype=torch.float64), 0.1)
    torch.testing.assert_close(a, torch.full_like(a, 5.0), atol=1e-13, rtol=0)
    torch.testing.assert_close(gradient, torch.zeros_like(gradient), atol=1e-11, rtol=0)


def test_smoothing_a_step_gives_the_error_function():
    grid, width = Grid(401, 1), 0.03
    x = grid.points[:, 0]
    step = (x > 0.5).double() + 0.5 * (x == 0.5)
    a, gradient = smooth(grid, step, width)
    torch.testing.assert_close(a, 0.5 * (1 + torch.erf((x - 0.5) / (width * math.sqrt(2)))), atol=2e-4, rtol=0)
    density = torch.exp(-(((x - 0.5) / width) ** 2) / 2) / (width * math.sqrt(2 * math.pi))
    torch.testing.assert_close(gradient[:, 0], density, atol=2e-2, rtol=0)


def test_the_gradient_is_that_of_the_smoothed_function(rng):
    """Central differences of a_eps between points of a finer grid, the boundary layer included."""
    grid = Grid(161)
    a = two_phase(GaussianField(3.0, 2.0, modes=64).sample(grid, 1, rng))[0]
    smoothed, gradient = smooth(grid, a, 0.06)
    s, g = smoothed.reshape(161, 161), gradient.reshape(161, 161, 2)
    difference = (s[2:, :] - s[:-2, :]) * 80
    torch.testing.assert_close(g[1:-1, :, 0], difference, atol=0.02 * float(g.abs().max()), rtol=0)
    difference = (s[:, 2:] - s[:, :-2]) * 80
    torch.testing.assert_close(g[:, 1:-1, 1], difference, atol=0.02 * float(g.abs().max()), rtol=0)


def test_grids_and_points_are_smoothed_by_the_same_formula(rng):
    grid = Grid(15)
    a = torch.randn(2, len(grid), generator=rng, dtype=torch.float64)
    cloud = Cloud(grid.points, grid.weights, grid.boundary)
    for of_grid, of_cloud in zip(smooth(grid, a, 0.05), smooth(cloud, a, 0.05), strict=True):
        torch.testing.assert_close(of_grid, of_cloud, atol=1e-8, rtol=1e-8)


def test_a_mesh_sees_the_same_smooth_function_as_a_grid():
    """A smooth function smoothed on a mesh and on a grid: the same, up to the quadrature of either."""

    def function(x):
        return torch.sin(3 * x[:, 0]) * torch.cos(2 * x[:, 1])

    mesh, grid = Mesh.square(0.02), Grid(101)
    on_mesh, slope_mesh = smooth(mesh, function(mesh.points), 0.08)
    on_grid, slope_grid = smooth(grid, function(grid.points), 0.08)
    from scipy.interpolate import RegularGridInterpolator

    at = mesh.points.numpy()
    axes = (grid.axis.numpy(),) * 2
    there = torch.from_numpy(RegularGridInterpolator(axes, on_grid.reshape(101, 101).numpy())(at))
    torch.testing.assert_close(on_mesh, there, atol=5e-3, rtol=0)
    there = torch.from_numpy(RegularGridInterpolator(axes, slope_grid.reshape(101, 101, 2).numpy())(at))
    torch.testing.assert_close(slope_mesh, there, atol=8e-2, rtol=0)


@pytest.mark.parametrize("dim", [1, 2, 3])
def test_wide_gaussians_by_way_of_a_grid(dim, rng, monkeypatch):
    """The same values as the sum over all neighbours, on uneven points with uneven weights; in any unit of length."""
    count, unit = 1500, 1e-3
    points = unit * torch.rand(count, dim, generator=rng, dtype=torch.float64) ** 2
    cloud = Cloud(points, torch.rand(count, generator=rng, dtype=torch.float64), torch.zeros(count, dtype=torch.bool))
    a = torch.randn(2, count, generator=rng, dtype=torch.float64)
    wanted, wanted_slope = smooth(cloud, a, 0.1 * unit)
    monkeypatch.setattr(smoothing, "_MOST_PAIRS", 0)
    found, slope = smooth(cloud, a, 0.1 * unit)
    assert float((found - wanted).abs().max()) < 1e-9
    assert float((slope - wanted_slope).abs().max()) < 1e-7 * float(wanted_slope.abs().max())
    assert not torch.equal(found, wanted)
    monkeypatch.setattr(smoothing, "_MOST_NODES", 0)  # nor a grid: sums that are computed again in every call
    monkeypatch.setattr(smoothing, "_NODES_PER_POINT", 0)
    monkeypatch.setattr(smoothing, "_far_groups", lambda points, reach: [range(len(points))])
    found, slope = smooth(cloud, a, 0.1 * unit)
    assert torch.equal(found, wanted)
    assert torch.equal(slope, wanted_slope)


def test_far_points_are_smoothed_without_a_grid(rng):
    """A few clusters that are 10^6 widths apart: a grid would have 10^12 nodes."""
    centres = 1e6 * torch.rand(3, 2, generator=rng, dtype=torch.float64)
    near = 0.1 * torch.rand(3, 1300, 2, generator=rng, dtype=torch.float64)
    points = (centres[:, None] + near).reshape(-1, 2)
    cloud = Cloud(points, torch.ones(3900, dtype=torch.float64), torch.zeros(3900, dtype=torch.bool))
    found, _ = smooth(cloud, torch.arange(3.0).repeat_interleave(1300), 1.0)
    torch.testing.assert_close(found, torch.arange(3.0).repeat_interleave(1300), atol=1e-6, rtol=0)


def test_one_far_point_does_not_slow_the_others(rng, monkeypatch):
    """A grid for all would be nearly empty, and the sum over all pairs took a time of K^2."""
    points = torch.rand(4000, 2, generator=rng, dtype=torch.float64)
    points[0], points[1:3] = 1e5, torch.tensor([[1e3, 0.0], [1e3, 0.1]])
    cloud = Cloud(points, torch.ones(4000, dtype=torch.float64), torch.zeros(4000, dtype=torch.bool))
    a = torch.randn(4000, generator=rng, dtype=torch.float64)
    wanted, wanted_slope = smooth(cloud, a, 0.1)  # few enough for all pairs
    made = []
    really = smoothing._Direct.__init__

    def watched(self, points, *given, targets=None, **options):
        made.append(len(points if targets is None else targets))
        really(self, points, *given, targets=targets, **options)

    monkeypatch.setattr(smoothing._Direct, "__init__", watched)
    monkeypatch.setattr(smoothing, "_MOST_PAIRS", 20_000)
    found, slope = smooth(cloud, a, 0.1)
    assert made == [3, 3]  # the far points, twice, since their sums of weights are small; the others have a grid
    torch.testing.assert_close(found, wanted, atol=1e-8, rtol=0)
    torch.testing.assert_close(slope, wanted_slope, atol=1e-6, rtol=0)


def test_a_lone_point_does_not_slow_the_others(rng, monkeypatch):
    """Its sum of weights is small, so it is computed directly; the others are not."""
    points = torch.rand(4000, 2, generator=rng, dtype=torch.float64)
    points[0] = 2.5
    weights = torch.ones(4000, dtype=torch.float64)
    weights[0] = 0.01
    cloud = Cloud(points, weights, torch.zeros(4000, dtype=torch.bool))
    made = []
    really = smoothing._Direct.__init__

    def watched(self, points, *given, targets=None, **options):
        made.append(len(points if targets is None else targets))
        really(self, points, *given, targets=targets, **options)

    a = torch.randn(4000, generator=rng, dtype=torch.float64)
    wanted, wanted_slope = smooth(cloud, a, 0.1)
    monkeypatch.setattr(smoothing._Direct, "__init__", watched)
    monkeypatch.setattr(smoothing, "_MOST_PAIRS", 20_000)
    found, slope = smooth(cloud, a, 0.1)
    assert made == [1]
    torch.testing.assert_close(found, wanted, atol=1e-8, rtol=0)
    torch.testing.assert_close(slope, wanted_slope, atol=1e-6, rtol=0)


def test_many_groups_keep_no_more_than_one(rng, monkeypatch):
    """The matrices of all groups together have as many pairs as those of one cloud may have."""
    kept = []
    really = smoothing._Direct.__init__

    def watched(self, points, weights, width, keep, targets=None):
        really(self, points, weights, width, keep, targets)
        kept.append(sum(average.nnz for average, _ in self.blocks) if self.blocks else 0)

    monkeypatch.setattr(smoothing._Direct, "__init__", watched)
    monkeypatch.setattr(smoothing, "_SMALL", 100)
    monkeypatch.setattr(smoothing, "_MOST_NODES", 0)
    monkeypatch.setattr(smoothing, "_NODES_PER_POINT", 10)
    monkeypatch.setattr(smoothing, "_MOST_PAIRS", 100_000)
    points = torch.cat([torch.rand(200, 2, generator=rng, dtype=torch.float64) + 100 * i for i in range(8)])
    cloud = Cloud(points, torch.ones(1600, dtype=torch.float64), torch.zeros(1600, dtype=torch.bool))
    a = torch.randn(1600, generator=rng, dtype=torch.float64)
    found, _ = smooth(cloud, a, 0.5)
    assert sum(kept) <= 100_000
    monkeypatch.setattr(smoothing, "_MOST_PAIRS", 2**22)
    torch.testing.assert_close(found, smooth(cloud, a, 0.5)[0], atol=1e-8, rtol=0)


def test_weights_of_very_different_sizes(rng, monkeypatch):
    """A grid is exact to 1e-10 of the largest sum; these differ by 1e16."""
    points = torch.cat([torch.rand(300, 2, generator=rng, dtype=torch.float64) + i for i in (0, 3)])
    weights = torch.tensor([1.0, 1e-16], dtype=torch.float64).repeat_interleave(300)
    cloud = Cloud(points, weights, torch.zeros(600, dtype=torch.bool))
    a = torch.randn(600, generator=rng, dtype=torch.float64)
    wanted, wanted_slope = smooth(cloud, a, 0.3)
    monkeypatch.setattr(smoothing, "_MOST_PAIRS", 0)
    found, slope = smooth(cloud, a, 0.3)
    torch.testing.assert_close(found, wanted, atol=1e-9, rtol=0)
    torch.testing.assert_close(slope, wanted_slope, atol=1e-7, rtol=0)


@pytest.mark.parametrize("periodic", [False, True, (True, False), (False, True)])
@pytest.mark.parametrize("width", [0.02, 0.3])
@pytest.mark.parametrize("nodes", ["vertices", "centres"])
def test_long_axes_by_transforms(periodic, width, nodes, rng, monkeypatch):
    """The same values as by matrices, on every kind of axis."""
    grid = Grid((40, 31), low=(0.0, 0.0), high=(1.0, 2.0), periodic=periodic, nodes=nodes)
    a = torch.randn(2, len(grid), generator=rng, dtype=torch.float64)
    wanted, wanted_slope = smooth(grid, a, width)
    for longest in (35, 1):  # one axis, both axes
        monkeypatch.setattr(smoothing, "_LONG", longest)
        found, slope = smooth(grid, a, width)
        torch.testing.assert_close(found, wanted, atol=1e-13, rtol=0)
        torch.testing.assert_close(slope, wanted_slope, atol=1e-11, rtol=0)


def status(name):
    return 1024 * int(re.search(rf"{name}:\s+(\d+)", Path("/proc/self/status").read_text())[1])


@pytest.mark.parametrize(("dim", "width"), [(2, 0.1), (2, 0.03), (3, 0.1)])
def test_smoothing_takes_little_memory(dim, width, rng):
    """12,000 points took 15 GB."""
    points = torch.rand(12_000, dim, generator=rng, dtype=torch.float64)
    cloud = Cloud(points, torch.ones(12_000, dtype=torch.float64), torch.zeros(12_000, dtype=torch.bool))

    Path("/proc/self/clear_refs").write_text("5")  # forgets the peak
    before = status("VmRSS")
    smooth(cloud, points[:, 0], width)
    assert status("VmHWM") - before < 200 * 2**20


@pytest.mark.parametrize("periodic", [False, True])
def test_a_long_axis_takes_little_memory(periodic, monkeypatch):
    """Matrices of an axis with 6000 nodes would take 1.2 GiB."""
    line, coarse = (Grid(n, 1, periodic=periodic) for n in (6000, 2000))

    def wave(grid):
        return torch.sin((2 * math.pi if periodic else 7) * grid.points[:, 0])

    Path("/proc/self/clear_refs").write_text("5")  # forgets the peak
    before = status("VmRSS")
    found, slope = smooth(line, wave(line), 0.03)
    assert status("VmHWM") - before < 200 * 2**20
    wanted, wanted_slope = smooth(coarse, wave(coarse), 0.03)
    same, there = (slice(None, None, 3), slice(None)) if periodic else ([0, -1], [0, -1])  # the same places
    torch.testing.assert_close(found[same], wanted[there], atol=1e-5, rtol=0)
    torch.testing.assert_close(slope[same], wanted_slope[there], atol=1e-3, rtol=0)
    values = wave(coarse)
    monkeypatch.setattr("gkn.system.memory.available_memory", lambda device="cpu": 1000)
    with pytest.raises(MemoryError, match="smoothing on a"):
        smooth(coarse, values, 0.03)
    monkeypatch.setattr("gkn.system.memory.available_memory", lambda device="cpu": 2**26)  # less than its matrix has
    with pytest.raises(MemoryError, match="smoothing on a"):
        smooth(coarse, values, 0.03)


def test_a_large_mean_does_not_cancel_in_single_precision(rng):
    a = torch.rand(400, generator=rng, dtype=torch.float64)
    single = (1e6 + a).float()
    for exact, found in zip(smooth(Grid(20), single.double(), 0.1), smooth(Grid(20), single, 0.1), strict=True):
        assert found.dtype == torch.float32
        assert float((found.double() - exact).abs().max()) < 0.07  # half a unit in the last place


@pytest.mark.parametrize("most", [2**40, 0])
def test_memory_is_asked_for_before_it_is_taken(most, rng, monkeypatch):
    monkeypatch.setattr(smoothing, "_MOST_PAIRS", most)
    monkeypatch.setattr("gkn.system.memory.available_memory", lambda device="cpu": 1000)
    with pytest.raises(MemoryError, match=r"smoothing of 500 points.*: needs .* GiB, but"):
        smooth(Cloud(torch.rand(500, 2, generator=rng, dtype=torch.float64)), torch.ones(500), 0.1)


def test_smooth_refuses_nonsense():
    with pytest.raises(ValueError, match="a length > 0"):
        smooth(Grid(3), torch.ones(9), 0.0)
    with pytest.raises(ValueError, match="a length > 0"):
        smooth(Grid(3), torch.ones(9), 1e-160)
    with pytest.raises(ValueError, match="9 points"):
        smooth(Grid(3), torch.ones(8), 0.1)
    for domain in (Grid(3), Cloud(Grid(3).points)):
        torch.testing.assert_close(smooth(domain, torch.full((9,), 7), 0.3)[0], torch.full((9,), 7.0, dtype=torch.float64))
