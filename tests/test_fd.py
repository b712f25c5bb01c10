import math

import numpy as np
import pytest
import torch

from gkn import GaussianField, Grid, NotConverged, darcy_residual, solve_darcy, two_phase
from gkn.pde import exact as problems
from tests import oracle


def l2(grid, error):
    return float((error**2 * grid.weights).sum().sqrt())


def errors(problem, sizes, dim):
    out = []
    for size in sizes:
        grid = Grid(size, dim)
        u = solve_darcy(grid, problem.a, problem.f, problem.u)
        out.append(l2(grid, u - problem.u(grid.points)))
    return out


def slope(sizes, errors):
    h = [1 / (size - 1) for size in sizes]
    return float(np.polyfit(np.log(h), np.log(errors), 1)[0])


@pytest.mark.parametrize(
    ("problem", "dim", "sizes", "bound"),
    [
        (problems.sine(), 1, (33, 65, 129, 257), 2e-5),
        (problems.sine(), 2, (33, 65, 129, 257), 3e-5),
        (problems.sine(), 3, (13, 25, 49), 1.1e-3),
        (problems.poisson_sine(), 2, (17, 33, 65, 129), 3e-5),
    ],
)
def test_second_order_on_smooth_problems(problem, dim, sizes, bound):
    found = errors(problem, sizes, dim)
    assert 1.9 <= slope(sizes, found) <= 2.1
    assert found[-1] <= bound


@pytest.mark.parametrize("dim", [1, 2, 3])
def test_the_patch_test_is_exact(dim):
    grid, problem = Grid(12, dim), problems.patch()
    u = solve_darcy(grid, problem.a, problem.f, problem.u)
    assert float((u - problem.u(grid.points)).abs().max()) < 1e-12


def test_first_order_where_the_coefficient_jumps():
    """Arithmetic means at a jump cost one order: the error is about h, up to where in its cell the jump falls.

    So average over the place of the jump, and assert the order that is there, not the one of smooth problems.
    """
    sizes = (33, 65, 129, 257)
    mean = np.mean([errors(problems.layered(p), sizes, 2) for p in np.linspace(0.31, 0.69, 13)], axis=0)
    assert 0.8 <= slope(sizes, mean) <= 1.2
    assert mean[-1] < 1.5e-5


@pytest.mark.parametrize(("size", "dim"), [(3, 1), (30, 1), (3, 2), (31, 2), (64, 2), (3, 3), (9, 3)])
@pytest.mark.parametrize("contrast", [1.0, 4.0, 1e3])
def test_agrees_with_superlu(size, dim, contrast, rng):
    grid = Grid(size, dim)
    a = contrast ** torch.rand(3, len(grid), generator=rng, dtype=torch.float64)
    f, g = (torch.randn(3, len(grid), generator=rng, dtype=torch.float64) for _ in range(2))
    u = solve_darcy(grid, a, f, g)
    for i in range(3):
        expected = oracle.solve(grid, a[i], f[i], g[i])
        assert np.abs(u[i].numpy() - expected).max() < 1e-8 * np.abs(expected).max()


def test_the_tolerance_bounds_the_energy_error(rng):
    """The stopping rule promises |u - u_h|_A <= tol |u_h|_A; check it against the exact discrete solution."""
    grid = Grid(41)
    a = 1e3 ** torch.rand(len(grid), generator=rng, dtype=torch.float64)
    exact = oracle.solve(grid, a, torch.ones_like(a), torch.zeros_like(a))
    matrix = oracle.system(41, 2, a.numpy())

    def energy(e):
        return math.sqrt(e @ (matrix @ e))

    for tol in (1e-2, 1e-4, 1e-8):
        error = solve_darcy(grid, a, tol=tol).numpy() - exact
        assert energy(error) <= tol * energy(exact)
        assert energy(error) > 1e-5 * tol * energy(exact)  # and is not wasteful

    # With boundary values: relative to what is left of u without their harmonic extension, however large they are.
    a = 2 ** torch.rand(len(grid), generator=rng, dtype=torch.float64)
    matrix = oracle.system(41, 2, a.numpy())
    for size in (1.0, 1e6):
        g = size * torch.sin(9 * grid.points[:, 0]) * torch.cos(5 * grid.points[:, 1])
        exact = oracle.solve(grid, a, torch.ones_like(a), g)
        harmonic = oracle.solve(grid, torch.ones_like(a), torch.zeros_like(a), g)
        for tol in (1e-2, 1e-8):
            error = solve_darcy(grid, a, 1.0, g, tol=tol).numpy() - exact
            assert energy(error) <= tol * energy(exact - harmonic)


@pytest.mark.parametrize("dim", [1, 2, 3])
def test_poisson_takes_one_step(dim, rng):
    """For constant a the preconditioner is the inverse, up to a factor: one wrong eigenvalue and it takes many steps."""
    grid = Grid(11, dim)
    f = torch.randn(len(grid), generator=rng, dtype=torch.float64)
    expected = oracle.solve(grid, torch.full_like(f, 7.0), f, torch.zeros_like(f))
    torch.testing.assert_close(solve_darcy(grid, 7.0, f, max_steps=1).numpy(), expected, rtol=0, atol=1e-12)


def test_contrast_beyond_reach_says_so(rng):
    grid = Grid(17)
    a = 1e3 ** torch.rand(2, len(grid), generator=rng, dtype=torch.float64)
    assert torch.isfinite(solve_darcy(grid, a)).all()
    message = r"sample 0 has a relative error of up to .* after 5 steps, tol = 1e-10 was asked for; its contrast"
    with pytest.raises(NotConverged, match=message):
        solve_darcy(grid, a, max_steps=5)
    with pytest.raises(NotConverged, match="contrast"):
        solve_darcy(Grid(65), 1e14 ** torch.rand(65**2, generator=rng, dtype=torch.float64))


@pytest.fixture
def darcy(rng):
    grid = Grid(33)
    a = two_phase(GaussianField(3.0, 2.0, modes=32).sample(grid, 4, rng))
    return grid, a, solve_darcy(grid, a)


@pytest.mark.parametrize("size", [1e-300, 1e-170, 1e160, 1e290])
def test_numbers_of_any_size(darcy, size):
    """Squares of the residual would overflow, or vanish and pass for convergence."""
    grid, a, u = darcy
    torch.testing.assert_close(solve_darcy(grid, a, size) / size, u, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(solve_darcy(grid, a / a.max() * size, size), u * a.max(), rtol=1e-9, atol=1e-12)
    assert darcy_residual(grid, a, u * size, size).max() < 1e-9


def test_overflow_is_said():
    a = torch.full((25,), 1e-300, dtype=torch.float64)
    a[3] = 1e300
    with pytest.raises(NotConverged, match="overflows"):
        solve_darcy(Grid(5), a)


def test_no_gradients_and_no_values_of_g_inside():
    grid = Grid(9)
    a = torch.ones(81, dtype=torch.float64, requires_grad=True)
    assert not solve_darcy(grid, a).requires_grad
    u = solve_darcy(grid, 1.0, 0.0, lambda x: torch.log((x - 0.5).norm(dim=-1)))  # singular in the middle, harmonic else
    assert torch.isfinite(u).all()


def test_scaling(darcy):
    grid, a, u = darcy
    torch.testing.assert_close(solve_darcy(grid, 7 * a), u / 7, rtol=1e-9, atol=1e-12)
    tiny = solve_darcy(grid, a * 1e-150, f=1e150)
    torch.testing.assert_close(tiny * 1e-300, u, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    "turn", [lambda x: x.flip(1), lambda x: x.flip(2), lambda x: x.transpose(1, 2)], ids=["flip_x", "flip_y", "transpose"]
)
def test_symmetries_of_the_square(darcy, turn):
    grid, a, u = darcy
    turned = solve_darcy(grid, turn(a.reshape(-1, 33, 33)).reshape(4, -1))
    torch.testing.assert_close(turned, turn(u.reshape(-1, 33, 33)).reshape(4, -1), rtol=0, atol=1e-11)


def test_linear_in_the_source_and_in_the_boundary_values(darcy, rng):
    grid, a, _ = darcy
    f1, f2, g1, g2 = (torch.randn(len(grid), generator=rng, dtype=torch.float64) for _ in range(4))
    both = solve_darcy(grid, a, 2 * f1 - 3 * f2, 2 * g1 - 3 * g2)
    apart = 2 * solve_darcy(grid, a, f1, g1) - 3 * solve_darcy(grid, a, f2, g2)
    torch.testing.assert_close(both, apart, rtol=0, atol=1e-8)


def test_maximum_principle(darcy, rng):
    grid, a, u = darcy
    assert (u[:, ~grid.boundary] > 0).all()
    assert (u[:, grid.boundary] == 0).all()
    f = torch.zeros(len(grid), dtype=torch.float64)
    f[400] = 1.0
    assert (solve_darcy(grid, a, f) >= -1e-12).all()
    g = torch.rand(len(grid), generator=rng, dtype=torch.float64)
    inside = solve_darcy(grid, a, 0.0, g)[:, ~grid.boundary]
    assert inside.min() >= g[grid.boundary].min() - 1e-9
    assert inside.max() <= g[grid.boundary].max() + 1e-9


def test_what_flows_out_is_what_comes_in(darcy):
    """The sum of the fluxes through the boundary is the integral of f over the interior cells."""
    grid, a, u = darcy
    a, u, h = a.reshape(-1, 33, 33), u.reshape(-1, 33, 33), grid.spacing
    out = torch.zeros(4, dtype=torch.float64)
    for x, v in ((a, u), (a.flip(1), u.flip(1)), (a.mT, u.mT), (a.mT.flip(1), u.mT.flip(1))):
        out += ((x[:, 0] + x[:, 1]) / 2 * (v[:, 1] - v[:, 0]) / h * h)[:, 1:-1].sum(1)
    torch.testing.assert_close(out, torch.full_like(out, (31 * h) ** 2), rtol=1e-9, atol=0)


def test_batch_is_loop_and_shapes_are_kept(darcy):
    grid, a, u = darcy
    for i in range(4):
        torch.testing.assert_close(solve_darcy(grid, a[i]), u[i], rtol=0, atol=1e-13)
    assert solve_darcy(grid, a.reshape(2, 2, -1)).shape == (2, 2, len(grid))
    assert solve_darcy(grid, a[0], torch.ones(3, len(grid))).shape == (3, len(grid))
    assert solve_darcy(grid, a.float()).dtype == torch.float64
    assert solve_darcy(grid, 1.0).shape == (len(grid),)
    assert torch.equal(solve_darcy(grid, a, 0.0), torch.zeros_like(a))


def test_the_same_bits_again(darcy):
    grid, a, u = darcy
    assert all(torch.equal(solve_darcy(grid, a), u) for _ in range(5))


def test_residual(darcy):
    grid, a, u = darcy
    assert darcy_residual(grid, a, u).max() < 1e-9
    assert darcy_residual(grid, a, u.float().double()).max() < 1e-4  # rounding in u stays small in this norm
    shifted = darcy_residual(grid, a, u.roll(1, 1))
    assert (shifted > 1e-2).all()
    assert darcy_residual(grid, a[1:2], u[:1]) > 1e-2  # another sample's coefficient
    assert darcy_residual(grid, a, u, 2.0).min() > 0.4
    f = torch.ones_like(u)
    f[1] *= 1e200
    alone = darcy_residual(grid, a[0], 2 * u[0], f[0])
    torch.testing.assert_close(darcy_residual(grid, a[:2], 2 * u[:2], f[:2])[0], alone)  # whatever is beside it
    g = torch.sin(5 * grid.points[:, 0])
    assert darcy_residual(grid, a, solve_darcy(grid, a, 0.0, g), 0.0).max() < 1e-9  # the boundary drives it alone


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_a_coefficient_that_is_none(bad):
    a = torch.ones(2, 25, dtype=torch.float64)
    a[1, 7] = bad
    with pytest.raises(ValueError, match=r"a must be (> 0|finite).*\(1, 7\)"):
        solve_darcy(Grid(5), a)


def test_bad_sources_and_shapes():
    grid = Grid(5)
    with pytest.raises(ValueError, match="f must be finite"):
        solve_darcy(grid, 1.0, math.nan)
    with pytest.raises(ValueError, match=r"g of shape .* on a domain of 25 points"):
        solve_darcy(grid, 1.0, 1.0, torch.zeros(24))
    with pytest.raises(ValueError, match="1e-13 <= tol < 1"):
        solve_darcy(grid, 1.0, tol=1e-15)
    with pytest.raises(ValueError, match="a must be > 0"):
        darcy_residual(grid, -1.0, torch.zeros(25, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"g of shape \(16, 1\)"):
        solve_darcy(grid, 1.0, 1.0, lambda x: x[:, :1])
    with pytest.raises(ValueError, match="a must be real"):
        solve_darcy(grid, torch.ones(25, dtype=torch.complex128))
    expected = solve_darcy(grid, 1.0, 1.0, 2.0)
    for g in (lambda x: 2.0, lambda x: np.full(len(x), 2.0), np.full(25, 2.0)):
        torch.testing.assert_close(solve_darcy(grid, 1.0, 1.0, g), expected)
    with pytest.raises(ValueError, match="per node"):
        solve_darcy(grid, 1.0, per="cell")
