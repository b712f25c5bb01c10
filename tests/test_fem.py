import math

import numpy as np
import pytest
import torch

from gkn import Cloud, Grid, Mesh, darcy_residual, solve_darcy, two_phase
from gkn.geometry.fields import GaussianField
from gkn.pde import exact as problems
from gkn.pde import finite_elements
from tests.meshes import box


def norms(mesh, u, problem):
    """L2 error and H1 error (of the gradient), by the midpoints of the edges, a rule of degree 2 on each cell."""
    p, q, r = mesh.points[mesh.cells].unbind(1)
    jacobian = torch.stack([q - p, r - p], -1)
    du = torch.stack([u[mesh.cells[:, 1]] - u[mesh.cells[:, 0]], u[mesh.cells[:, 2]] - u[mesh.cells[:, 0]]], -1)
    gradient = torch.linalg.solve(jacobian.mT, du)
    l2 = h1 = 0.0
    at_p, at_q, at_r = u[mesh.cells].unbind(1)
    for middle, value in (((p + q) / 2, (at_p + at_q) / 2), ((q + r) / 2, (at_q + at_r) / 2), ((r + p) / 2, (at_r + at_p) / 2)):
        l2 += float(((problem.u(middle) - value) ** 2 * mesh.areas / 3).sum())
        h1 += float((((problem.grad_u(middle) - gradient) ** 2).sum(-1) * mesh.areas / 3).sum())
    return math.sqrt(l2), math.sqrt(h1)


def slopes(meshes, problem):
    found = [norms(mesh, solve_darcy(mesh, problem.a, problem.f, problem.u), problem) for mesh in meshes]
    h = np.log([1 / math.sqrt(len(mesh.cells)) for mesh in meshes])
    return [float(np.polyfit(h, np.log(column), 1)[0]) for column in zip(*found, strict=True)], found[-1]


def refinements(mesh, times):
    out = [mesh]
    for _ in range(times):
        out.append(out[-1].refined())
    return out


@pytest.mark.parametrize("mesh", [lambda: Mesh.square(0.1), lambda: Mesh.holes(0.1), lambda: Mesh.l_shape(0.1)])
def test_second_order_in_l2_first_in_h1(mesh):
    (l2, h1), (error, gradient) = slopes(refinements(mesh(), 3), problems.sine())
    assert 1.9 <= l2 <= 2.1
    assert 0.9 <= h1 <= 1.1
    assert error < 4e-4
    assert gradient < 0.09


@pytest.mark.parametrize(("problem", "bound"), [(problems.disk_constant(), 9e-5), (problems.disk_smooth(), 6e-4)])
def test_on_the_disk(problem, bound):
    """Polygons approach the disk as h^2, which costs no order; these are not nested, so the band is wider."""
    (l2, h1), (error, _) = slopes([Mesh.disk(h) for h in (0.2, 0.1, 0.05, 0.025)], problem)
    assert 1.8 <= l2 <= 2.25
    assert 0.85 <= h1 <= 1.15
    assert error < bound


def test_first_order_where_the_coefficient_jumps():
    """A jump inside cells: order 1 in L2 and 1/2 in H1, not 2 and 1; averaged over the place of the jump."""
    meshes = refinements(Mesh.square(0.1), 3)
    found = [slopes(meshes, problems.layered(p))[0] for p in (0.35, 0.41, 0.437, 0.48, 0.53, 0.57, 0.61)]
    l2, h1 = np.mean(found, axis=0)
    assert 0.8 <= l2 <= 1.3
    assert 0.4 <= h1 <= 0.7


@pytest.mark.parametrize("mesh", [lambda: Mesh.holes(0.15), lambda: Mesh.disk(0.2)])
def test_the_patch_test_is_exact(mesh):
    mesh, problem = mesh(), problems.patch()
    u = solve_darcy(mesh, problem.a, problem.f, problem.u)
    assert float((u - problem.u(mesh.points)).abs().max()) < 1e-12


def test_coefficient_per_node_per_cell_and_as_a_function():
    mesh, problem = Mesh.square(0.1), problems.sine()
    nodal = problem.a(mesh.points)
    u = solve_darcy(mesh, nodal, problem.f)
    torch.testing.assert_close(solve_darcy(mesh, nodal[mesh.cells].mean(1), problem.f), u)
    torch.testing.assert_close(solve_darcy(mesh, nodal[mesh.cells].mean(1).numpy(), problem.f), u)
    torch.testing.assert_close(solve_darcy(mesh, problem.a, problem.f), u)
    batch = solve_darcy(mesh, torch.stack([nodal, 2 * nodal]), torch.stack([problem.f(mesh.points)] * 2))
    torch.testing.assert_close(batch[1], batch[0] / 2)
    assert darcy_residual(mesh, torch.stack([nodal, 2 * nodal]), batch, problem.f(mesh.points)).max() < 1e-10
    assert darcy_residual(mesh, nodal, batch[1], problem.f(mesh.points)) > 0.1


def test_without_an_oracle(rng):
    mesh = Mesh.holes(0.08)
    a = two_phase(GaussianField(3.0, 2.0, modes=32).sample(mesh, 2, rng))
    u = solve_darcy(mesh, a)
    assert (u[:, ~mesh.boundary] > 0).all()
    assert (u[:, mesh.boundary] == 0).all()
    torch.testing.assert_close(solve_darcy(mesh, 5 * a), u / 5)
    f1, f2 = (torch.randn(len(mesh), generator=rng, dtype=torch.float64) for _ in range(2))
    both = solve_darcy(mesh, a, f1 + 2 * f2)
    torch.testing.assert_close(both, solve_darcy(mesh, a, f1) + 2 * solve_darcy(mesh, a, f2), rtol=0, atol=1e-12)
    order = torch.randperm(len(mesh), generator=rng)
    place = torch.empty_like(order)
    place[order] = torch.arange(len(mesh))
    shuffled = Mesh(mesh.points[order], place[mesh.cells])
    torch.testing.assert_close(solve_darcy(shuffled, a[:, order]), u[:, order], rtol=0, atol=1e-13)


def test_what_flows_out_is_what_comes_in(rng):
    """Tested with the function 1, the equation says: the nodal fluxes on the boundary sum to the integral of f."""
    mesh = Mesh.holes(0.08)
    a = two_phase(GaussianField(3.0, 2.0, modes=32).sample(mesh, 1, rng))[0]
    u = solve_darcy(mesh, a)
    p, q, r = mesh.points[mesh.cells].unbind(1)
    jacobian = torch.stack([q - p, r - p], -1)
    shape_gradients = torch.linalg.solve(jacobian.mT, torch.tensor([[-1.0, 1, 0], [-1, 0, 1]], dtype=torch.float64))
    flux = a[mesh.cells].mean(1)[:, None] * (shape_gradients @ u[mesh.cells].unsqueeze(-1)).squeeze(-1)
    tested = torch.einsum("cd,cdk,c->ck", flux, shape_gradients, mesh.areas)
    reaction = (
        torch.zeros(len(mesh), dtype=torch.float64).index_add(0, mesh.cells.reshape(-1), tested.reshape(-1)) - mesh.weights
    )
    assert float(reaction[~mesh.boundary].abs().max()) < 1e-12  # inside: the equation, assembled once more
    assert float(-reaction[mesh.boundary].sum()) == pytest.approx(mesh.measure, rel=1e-10)


def test_finite_differences_agree_with_finite_elements():
    """Two schemes for one smooth problem agree within their errors."""
    grid, mesh, problem = Grid(61), Mesh.square(0.02), problems.sine()
    on_grid = solve_darcy(grid, problem.a, problem.f, problem.u)
    on_mesh = solve_darcy(mesh, problem.a, problem.f, problem.u)
    from scipy.interpolate import RegularGridInterpolator

    there = RegularGridInterpolator((grid.axis.numpy(),) * 2, on_grid.reshape(61, 61).numpy(), method="cubic")(
        mesh.points.numpy()
    )
    assert float(((on_mesh - torch.from_numpy(there)) ** 2 * mesh.weights).sum().sqrt()) < 1e-3


def test_two_phase_solutions_agree_across_schemes():
    field, seed = GaussianField(3.0, 2.0, modes=32), 5
    grid, mesh = Grid(129), Mesh.square(1 / 128)
    u = []
    for domain in (grid, mesh):
        a = two_phase(field.sample(domain, 1, torch.Generator().manual_seed(seed)))[0]
        u.append(solve_darcy(domain, a))
    from scipy.interpolate import RegularGridInterpolator

    there = RegularGridInterpolator((grid.axis.numpy(),) * 2, u[0].reshape(129, 129).numpy())(mesh.points.numpy())
    error = ((u[1] - torch.from_numpy(there)) ** 2 * mesh.weights).sum().sqrt() / (u[1] ** 2 * mesh.weights).sum().sqrt()
    assert float(error) < 0.02


def test_bad_coefficients():
    annulus = Mesh.holes(0.5, [(0.5, 0.5, 0.3)])
    with pytest.raises(ValueError, match="a must be > 0"):
        solve_darcy(annulus, torch.zeros(len(annulus)))
    with pytest.raises(ValueError, match="on a domain of"):
        solve_darcy(annulus, torch.ones(len(annulus) + len(annulus.cells)))
    with pytest.raises(ValueError, match="its last axis must have"):
        solve_darcy(annulus, torch.ones(1), per="cell")
    with pytest.raises(ValueError, match="must be finite"):
        solve_darcy(annulus, 1.0, lambda x: x[:, 0] / 0)
    with pytest.raises(ValueError, match="no discretisation"):
        solve_darcy(Cloud(annulus.points), 1.0)
    with pytest.raises(ValueError, match="no discretisation"):
        darcy_residual(Cloud(annulus.points), 1.0, annulus.weights)


def test_as_many_points_as_cells():
    """A ring of 2n points has 2n cells: whose are the numbers?"""
    n = 8
    angle = torch.arange(n, dtype=torch.float64) * (2 * math.pi / n)
    circle = torch.stack([angle.cos(), angle.sin()], 1)
    i = torch.arange(n)
    j = (i + 1) % n
    cells = torch.cat([torch.stack([i, i + n, j], 1), torch.stack([j, i + n, j + n], 1)])
    ring = Mesh(torch.cat([0.5 * circle, circle]), cells)
    assert len(ring) == len(ring.cells)
    a = torch.rand(len(ring), dtype=torch.float64) + 1
    with pytest.raises(ValueError, match="say per='node' or per='cell'"):
        solve_darcy(ring, a)
    g = ring.points[:, 0]
    assert solve_darcy(ring, a, 0.0, g, per="node").shape == solve_darcy(ring, a, 0.0, g, per="cell").shape


# --- intervals, quads, tetrahedra, hexahedra

ORDERS = {
    "line": (16, 32, 64),
    "triangle": (12, 16, 24),
    "quad": (12, 16, 24),
    "tetra": (13, 17, 22),
    "hexahedron": (10, 14, 18),
}


@pytest.mark.parametrize("kind", ORDERS)
def test_second_order_on_cells_of_any_kind(kind):
    """With a variable coefficient, and boundary values that are not 0. Inner nodes are moved at random."""
    sine = problems.sine()
    problem = problems.ExactSolution("shifted", sine.a, lambda x: sine.u(0.8 * x + 0.1) + x[:, 0])
    errors = []
    for size in ORDERS[kind]:
        mesh = box(kind, size, jitter=0.1)
        u = solve_darcy(mesh, problem.a, problem.f, problem.u)
        errors.append(float(((u - problem.u(mesh.points)) ** 2 * mesh.weights).sum().sqrt()))
    assert 1.9 <= -np.polyfit(np.log(ORDERS[kind]), np.log(errors), 1)[0] <= 2.1
    assert errors[-1] < 0.008
    assert darcy_residual(mesh, problem.a, u, problem.f) < 1e-10


@pytest.mark.parametrize("kind", ORDERS)
def test_the_patch_test_is_exact_on_cells_of_any_kind(kind):
    mesh, problem = box(kind, 6), problems.patch()
    u = solve_darcy(mesh, problem.a, problem.f, problem.u)
    assert float((u - problem.u(mesh.points)).abs().max()) < 1e-12


@pytest.mark.parametrize("mesh", [lambda: Mesh.cube(0.2), lambda: Mesh.ball(0.4), lambda: Mesh.interval(0.1)])
def test_the_patch_test_is_exact_on_named_shapes(mesh):
    mesh, problem = mesh(), problems.patch()
    assert torch.equal(solve_darcy(mesh, 2.0, 0.0, problem.u)[mesh.boundary], problem.u(mesh.points[mesh.boundary]))
    assert float((solve_darcy(mesh, 2.0, 0.0, problem.u) - problem.u(mesh.points)).abs().max()) < 1e-12


def test_hexahedra_agree_with_finite_differences():
    """Two schemes on the same nodes: the difference is of second order."""
    problem, away = problems.sine(), []
    for size in (9, 17):
        grid, mesh = Grid(size, 3), box("hexahedron", size - 1, jitter=0.0)
        away.append(float((solve_darcy(grid, problem.a, problem.f) - solve_darcy(mesh, problem.a, problem.f)).abs().max()))
    assert away[1] < 0.3 * away[0] < 0.1


def test_measures_of_named_shapes():
    assert Mesh.cube(0.25).measure == pytest.approx(1)
    assert Mesh.interval(0.3).points[:, 0].tolist() == pytest.approx([0, 1 / 3, 2 / 3, 1])
    assert Mesh.ball(0.3).measure == pytest.approx(4 / 3 * math.pi, rel=0.05)
    for shape in (Mesh.cube, Mesh.ball, Mesh.interval, Mesh.l_shape):
        with pytest.raises(ValueError, match="edge length h = 0; needed 0 < h <= 1"):
            shape(0)


def test_direct_and_iterative_solvers_agree(monkeypatch, rng):
    mesh = Mesh.cube(0.2)
    a = two_phase(GaussianField(3.0, 2.0, dim=3, modes=16).sample(mesh, 2, rng), 1.0, 1e4)
    u = solve_darcy(mesh, a, 1.0, mesh.points[:, 0])
    monkeypatch.setattr(finite_elements, "_MOST_STEPS", 0)
    direct = solve_darcy(mesh, a, 1.0, mesh.points[:, 0])
    assert not torch.equal(u, direct)
    torch.testing.assert_close(u, direct, rtol=0, atol=1e-11)


def test_in_space_scale_does_not_matter():
    """Squares of 1e-200 are 0: the solution must not be."""
    mesh = Mesh.cube(0.3)
    torch.testing.assert_close(solve_darcy(mesh, 1.0, 1e-200) * 1e200, solve_darcy(mesh, 1.0), rtol=1e-10, atol=0)
    assert (solve_darcy(mesh, 1.0, 0.0) == 0).all()
