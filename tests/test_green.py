import math

import pytest
import torch

from gkn import Grid, Mesh, green_disk, green_interval, solve_darcy
from gkn.pde import exact as problems


def test_interval_inverts_the_laplacian():
    """u(x) = int G(x,y) f(y) dy is the solution: against the solver and against the exact one."""
    grid, problem = Grid(401, 1), problems.poisson_sine()
    x = grid.points[:, 0]
    f = problem.f(grid.points)
    u = (green_interval(x[:, None], x) * f * grid.weights).sum(1)
    torch.testing.assert_close(u, problem.u(grid.points), atol=2e-5, rtol=0)
    torch.testing.assert_close(u, solve_darcy(grid, 1.0, f), atol=1e-9, rtol=0)  # this scheme has G exactly at its nodes


def test_disk_inverts_the_laplacian():
    """Against the solver on a mesh, for a source without symmetry; the singularity is integrable and costs little."""
    mesh, problem = Mesh.disk(0.03), problems.disk_smooth()
    f = problem.f(mesh.points)
    u = solve_darcy(mesh, 1.0, problem.f)
    at = torch.tensor([[0.0, 0.0], [0.3, -0.2], [-0.6, 0.1], [0.1, 0.85]], dtype=torch.float64)
    for x in at:
        kernel = green_disk(x, mesh.points)
        kernel = torch.where(torch.isfinite(kernel), kernel, 0.0)
        value = float((kernel * f * mesh.weights).sum())
        nearest = int((mesh.points - x).norm(dim=1).argmin())
        exact = float(problem.u(x[None])[0])
        assert value == pytest.approx(exact, abs=3e-3)
        assert float(u[nearest]) == pytest.approx(float(problem.u(mesh.points[nearest][None])[0]), abs=1e-3)


def test_disk_is_symmetric_positive_and_zero_on_the_boundary(rng):
    r, t = torch.rand(2, 200, generator=rng, dtype=torch.float64)
    x = torch.stack([r.sqrt() * torch.cos(7 * t), r.sqrt() * torch.sin(7 * t)], -1)
    y = x.roll(1, 0)
    torch.testing.assert_close(green_disk(x, y), green_disk(y, x))
    assert (green_disk(x, y) > 0).all()
    edge = torch.stack([torch.cos(9 * t), torch.sin(9 * t)], -1)
    torch.testing.assert_close(green_disk(x, edge), torch.zeros(200, dtype=torch.float64), atol=1e-12, rtol=0)
    assert green_disk(x[0], x[0]) == math.inf


def test_disk_is_the_papers_formula_with_its_parenthesis_and_sign_mended():
    rho, theta, rho_, theta_ = 0.3, 0.5, 0.8, 2.1
    cosine = math.cos(theta_ - theta)
    printed = math.log((rho_**2 + rho**2 - 2 * rho * rho_ * cosine) / (rho_**2 * rho**2 + 1 - 2 * rho * rho_ * cosine))
    x = torch.tensor([rho * math.cos(theta), rho * math.sin(theta)], dtype=torch.float64)
    y = torch.tensor([rho_ * math.cos(theta_), rho_ * math.sin(theta_)], dtype=torch.float64)
    assert float(green_disk(x, y)) == pytest.approx(-printed / (4 * math.pi), rel=1e-12)
    centre = torch.zeros(2, dtype=torch.float64)
    assert float(green_disk(centre, y)) == pytest.approx(-math.log(rho_) / (2 * math.pi), rel=1e-12)


def test_points_outside():
    with pytest.raises(ValueError, match=r"outside \[0, 1\], the first is point 0 at \(1.5,\)"):
        green_interval(torch.tensor(1.5), torch.tensor(0.5))
    with pytest.raises(ValueError, match="outside the unit disk"):
        green_disk(torch.tensor([0.9, 0.9]), torch.tensor([0.0, 0.0]))
    with pytest.raises(ValueError, match="points of the plane"):
        green_disk(torch.tensor([0.1, 0.1, 0.1]), torch.tensor([0.0, 0.0, 0.0]))
    with pytest.raises(ValueError, match="must be finite"):
        green_disk(torch.tensor([math.nan, 0.9]), torch.tensor([0.0, 0.0]))
