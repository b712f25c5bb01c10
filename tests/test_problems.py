import pytest
import torch

from gkn.pde import exact as problems


@pytest.mark.parametrize("dim", [1, 2, 3])
@pytest.mark.parametrize("make", [problems.sine, problems.poisson_sine, problems.patch, problems.layered])
def test_f_is_minus_div_a_grad_u(make, dim, rng):
    """By central differences of the fluxes, away from jumps."""
    problem, h = make(), 1e-4
    x = torch.rand(50, dim, generator=rng, dtype=torch.float64)
    x = x[(x[:, 0] - 1 / torch.e).abs() > 0.01]
    div = torch.zeros(len(x), dtype=torch.float64)
    for axis in range(dim):
        e = torch.zeros(dim, dtype=torch.float64)
        e[axis] = h
        right = problem.a(x + e / 2) * (problem.u(x + e) - problem.u(x))
        left = problem.a(x - e / 2) * (problem.u(x) - problem.u(x - e))
        div += (right - left) / h**2
        slope = (problem.u(x + e) - problem.u(x - e)) / (2 * h)
        torch.testing.assert_close(problem.grad_u(x)[:, axis], slope, atol=1e-5, rtol=0)
    torch.testing.assert_close(problem.f(x), -div, atol=1e-4, rtol=1e-4)


def test_layered_is_continuous_with_continuous_flux_and_f_is_one():
    p = 0.4
    problem = problems.layered(p)
    sides = torch.tensor([[p - 1e-9], [p + 1e-9]], dtype=torch.float64)
    u, flux = problem.u(sides), problem.a(sides) * problem.grad_u(sides)[:, 0]
    assert abs(float(u[0] - u[1])) < 1e-9
    assert abs(float(flux[0] - flux[1])) < 1e-8
    ends = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
    assert problem.u(ends).abs().max() < 1e-15
    torch.testing.assert_close(problem.f(sides), torch.ones(2, dtype=torch.float64))


def test_on_the_disk():
    x = torch.tensor([[0.6, 0.8], [-1.0, 0.0]], dtype=torch.float64)
    for problem in (problems.disk_constant(), problems.disk_smooth()):
        assert problem.where == "disk"
        assert problem.u(x).abs().max() < 1e-15
    torch.testing.assert_close(problems.disk_constant().f(x / 2), torch.ones(2, dtype=torch.float64))
