"""The heat and the wave equation on meshes: orders in time and space, what is conserved, and the data made of them."""

import math

import numpy as np
import pytest
import torch

import gkn
from gkn import Cloud, Heat, Mesh, Wave, solve_heat, solve_wave
from gkn.data.problems import problem_named
from gkn.pde.evolution import smooth_start, wave_energy
from gkn.pde.finite_elements import Elements
from tests.meshes import box, mixed

PI = math.pi


def times(frames, end):
    return torch.linspace(0, end, frames + 1, dtype=torch.float64)


def sines(x):
    return torch.sin(PI * x).prod(-1)


def l2(mesh, u):
    return float((u**2 * mesh.weights).sum().sqrt())


def slope(h, errors):
    return np.polyfit(np.log(h), np.log(errors), 1)[0]


def eigenmode(mesh, lumped):
    """An eigenfunction of the discrete Laplacian that is neither the first nor symmetric, and its eigenvalue."""
    elements = Elements(mesh)
    inner = elements.inner
    mass = elements.mass()[inner][:, inner].toarray()
    if lumped:
        mass = np.diag(np.asarray(elements.mass().sum(1)).reshape(-1)[inner])
    root = np.linalg.inv(np.linalg.cholesky(mass))
    eigenvalues, vectors = np.linalg.eigh(root @ elements.inner_stiffness().toarray() @ root.T)
    mode = torch.zeros(len(mesh), dtype=torch.float64)
    mode[inner] = torch.from_numpy(root.T @ vectors[:, 3])
    return mode, float(eigenvalues[3])


# --- heat


@pytest.mark.parametrize("mesh", [Mesh.holes(0.15), box("line", 12), Mesh.cube(0.25)], ids=["triangles", "lines", "tetrahedra"])
def test_heat_is_of_second_order_in_time(mesh):
    """Against the exact solution of the semi-discrete equation, so that space contributes nothing."""
    mode, eigenvalue = eigenmode(mesh, lumped=True)
    steps, end = (4, 8, 16, 32), 1.2 / eigenvalue
    errors = [l2(mesh, solve_heat(mesh, mode, times(1, end), steps=n)[-1] - math.exp(-1.2) * mode) for n in steps]
    assert 1.95 <= -slope(steps, errors) <= 2.1
    assert errors[-1] < 1e-4 * l2(mesh, mode)


@pytest.mark.parametrize(("kind", "sizes"), [("line", (12, 24, 48)), ("triangle", (12, 20, 30)), ("tetra", (8, 11, 14))])
def test_heat_is_of_second_order_in_space(kind, sizes):
    errors, kappa, end = [], 0.5, 0.06
    for size in sizes:
        mesh = box(kind, size, jitter=0.1)
        exact = math.exp(-mesh.dim * PI**2 * kappa * end) * sines(mesh.points)
        errors.append(l2(mesh, solve_heat(mesh, sines, times(2, end), kappa=kappa, steps=20)[-1] - exact) / l2(mesh, exact))
    assert 1.9 <= -slope(sizes, errors) <= 2.15
    assert errors[-1] < 0.02


def test_rough_initial_states_do_not_ring():
    """Time steps 500 times longer than those in which the highest mode decays: Crank-Nicolson keeps 99 % of it."""
    mesh = Mesh.square(0.05)
    rough = torch.randn(len(mesh), dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    u = solve_heat(mesh, rough, times(4, 0.2), steps=1)
    assert float(u[1].abs().max()) < 0.2 * float(u[0].abs().max())
    assert float((u[2] - u[1]).norm()) < 0.15 * float((u[1] - u[0]).norm())
    fine = solve_heat(mesh, rough, times(4, 0.2), steps=100)
    assert l2(mesh, u[-1] - fine[-1]) < 0.05 * l2(mesh, fine[1])


def test_heat_leaves_through_the_boundary_and_the_maximum_falls():
    """d/dt int u = -kappa times the flux, which the stiffness matrix tests with the function that is 1 inside, 0 outside."""
    mesh, kappa = Mesh.holes(0.08), 0.3
    start = smooth_start(mesh, lambda x: 1 + x[:, 0] * torch.cos(5 * x[:, 1]), 0.05)
    u = solve_heat(mesh, start, times(200, 0.05), kappa=kappa)
    assert (u.amax(1).diff() < 0).all()
    assert (u >= -1e-12).all()
    assert (u[:, mesh.boundary] == 0).all()
    elements = Elements(mesh)
    inside = (~mesh.boundary).double().numpy()
    flux = torch.from_numpy(elements.stiffness(np.ones(len(mesh.cells))) @ u.numpy().T).T @ torch.from_numpy(inside)
    lost = kappa * torch.trapezoid(flux, times(200, 0.05))
    content = u @ mesh.weights
    assert float(content[0] - content[-1]) == pytest.approx(float(lost), rel=1e-4)
    assert float(content[-1]) < 0.8 * float(content[0])


def test_recorded_times_do_not_change_the_solution():
    """Twice as many frames with half as many steps between them are the same time steps, and a later start goes on alike."""
    mesh = Mesh.l_shape(0.15)
    few = solve_heat(mesh, sines, times(2, 0.02), steps=4)
    many = solve_heat(mesh, sines, times(4, 0.02), steps=2)
    assert torch.equal(few, many[::2])
    torch.testing.assert_close(solve_heat(mesh, few[1], times(1, 0.01), steps=4)[1], few[2], rtol=0, atol=1e-15)


# --- waves


@pytest.mark.parametrize("mesh", [Mesh.holes(0.15), box("line", 12), Mesh.cube(0.25)], ids=["triangles", "lines", "tetrahedra"])
def test_waves_are_of_second_order_in_time(mesh):
    mode, eigenvalue = eigenmode(mesh, lumped=False)
    c = 1.7
    frequency, steps = c * math.sqrt(eigenvalue), (16, 32, 64, 128)
    end, found = 2.5 / frequency, []
    for n in steps:
        u, v = solve_wave(mesh, mode, times(1, end), v0=0.4 * frequency * mode, c=c, steps=n)
        exact = (math.cos(2.5) + 0.4 * math.sin(2.5)) * mode, (0.4 * math.cos(2.5) - math.sin(2.5)) * frequency * mode
        found.append([l2(mesh, u[-1] - exact[0]), l2(mesh, v[-1] - exact[1]) / frequency])
    for errors in zip(*found, strict=True):
        assert 1.95 <= -slope(steps, errors) <= 2.05
        assert errors[-1] < 2e-4 * l2(mesh, mode)


@pytest.mark.parametrize(("kind", "sizes"), [("line", (12, 24, 48)), ("triangle", (12, 20, 30)), ("tetra", (8, 11, 14))])
def test_waves_are_of_second_order_in_space(kind, sizes):
    errors, c, end = [], 0.8, 0.5
    for size in sizes:
        mesh = box(kind, size, jitter=0.1)
        exact = math.cos(math.sqrt(mesh.dim) * PI * c * end) * sines(mesh.points)
        u, _ = solve_wave(mesh, sines, times(1, end), c=c, steps=60)
        errors.append(l2(mesh, u[-1] - exact))
    assert 1.9 <= -slope(sizes, errors) <= 2.2
    assert errors[-1] < 0.02


@pytest.mark.parametrize("mesh", [Mesh.holes(0.1), Mesh.cube(0.25), mixed], ids=["plane", "space", "mixed"])
def test_waves_keep_their_energy(mesh):
    """Rough data and long time steps too."""
    if mesh is mixed:
        with pytest.raises(ValueError, match="solve_wave: a mesh of 15 points; needed a mesh of one kind of cells"):
            solve_wave(mixed(), 1.0, times(1, 1.0))
        return
    u0, v0 = torch.randn(2, len(mesh), dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * ~mesh.boundary
    u, v = solve_wave(mesh, u0, times(20, 5.0), v0=10 * v0, c=0.7, steps=2)
    energy = wave_energy(mesh, u, v, c=0.7)
    assert float((energy / energy[0] - 1).abs().max()) < 1e-10
    assert (u[:, mesh.boundary] == 0).all()
    assert (v[:, mesh.boundary] == 0).all()


def test_energy_is_that_of_the_functions():
    mesh = box("triangle", 40, jitter=0.0)
    found = wave_energy(mesh, sines(mesh.points), 3 * sines(mesh.points), c=2.0)
    assert float(found) == pytest.approx(0.5 * (9 / 4 + 4 * PI**2 / 2), rel=2e-3)


def test_waves_run_backwards():
    mesh = Mesh.disk(0.3)
    start = smooth_start(mesh, lambda x: torch.cos(3 * x[:, 0]), 0.2)
    u, v = solve_wave(mesh, start, times(5, 1.0))
    back, speed = solve_wave(mesh, u[-1], times(5, 1.0), v0=-v[-1])
    torch.testing.assert_close(back[-1], start, rtol=0, atol=1e-13)
    torch.testing.assert_close(back[2], u[3], rtol=0, atol=1e-13)
    assert speed[-1].abs().max() < 1e-11


# --- both


def test_solutions_are_linear_and_do_not_depend_on_what_is_beside_them(rng):
    mesh = Mesh.holes(0.12)
    start = torch.randn(3, len(mesh), dtype=torch.float64, generator=rng)
    both = torch.stack([start[0], start[1], 2 * start[0] - start[1]])
    heat, (u, v) = solve_heat(mesh, both, times(3, 0.1)), solve_wave(mesh, both, times(3, 0.5))
    for found in (heat, u, v):
        assert found.shape == (3, 4, len(mesh))
        torch.testing.assert_close(found[2], 2 * found[0] - found[1], rtol=1e-10, atol=1e-11)
    assert torch.equal(solve_heat(mesh, both[1], times(3, 0.1)), heat[1])
    assert torch.equal(solve_wave(mesh, both[1], times(3, 0.5))[1], v[1])
    assert solve_heat(mesh, both[None], times(3, 0.1)).shape == (1, 3, 4, len(mesh))


def test_smooth_starts():
    """The function solves (1 - s^2 Lap)^2 u = w; for a product of sines that is a division."""
    mesh = box("triangle", 40, jitter=0.1)
    found, s = smooth_start(mesh, sines, 0.1), 0.1
    assert l2(mesh, found - sines(mesh.points) / (1 + 2 * s**2 * PI**2) ** 2) < 2e-3
    assert (found[mesh.boundary] == 0).all()
    rough = smooth_start(mesh, torch.ones(2, len(mesh)), 0.02)
    assert rough.shape == (2, len(mesh))
    assert float(rough[0, (mesh.points - 0.5).norm(dim=1).argmin()]) == pytest.approx(1, abs=0.01)


MESH = Mesh.square(0.3)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: solve_heat(MESH, 1.0, times(2, 1.0), kappa=0.0), r"solve_heat\(kappa=0.0\): needed a finite number > 0"),
        (lambda: solve_wave(MESH, 1.0, times(2, 1.0), c=-1.0), r"solve_wave\(c=-1.0\): needed a finite number > 0"),
        (lambda: solve_heat(MESH, 1.0, times(2, 1.0), steps=0), "needed at least 1 time step between two recorded times"),
        (lambda: solve_heat(MESH, 1.0, torch.tensor([0.0, 1.0, 3.0])), "times .*; needed equally spaced ones from 0 on"),
        (lambda: solve_heat(MESH, 1.0, torch.tensor([1.0, 2.0])), "needed equally spaced ones from 0 on"),
        (lambda: solve_heat(MESH, 1.0, torch.tensor([0.0])), "needed equally spaced ones from 0 on"),
        (lambda: solve_wave(MESH, 1.0, torch.tensor([0.0, math.nan])), "needed equally spaced ones from 0 on"),
        (lambda: solve_heat(Cloud(MESH.points), 1.0, times(2, 1.0)), "solve_heat: a cloud of .* points; needed a mesh"),
        (lambda: solve_heat(box("line", 1), 1.0, times(2, 1.0)), "all 2 points are on the boundary"),
        (lambda: solve_heat(MESH, lambda x: x[:, 0] / 0, times(2, 1.0)), "u0 must be finite"),
        (lambda: Heat(kappa=-1.0), r"heat\(kappa=-1.0\): needed a finite number > 0"),
        (lambda: Wave(c=math.nan), r"wave\(c=nan\): needed a finite number > 0"),
        (lambda: Heat(frames=0), r"heat\(frames=0\): needed at least 1"),
        (lambda: Heat(steps=0), r"heat\(steps=0\): needed at least 1"),
        (lambda: Wave(end=-1.0), r"wave\(end=-1.0\): needed a finite time > 0, or 0 for the usual one"),
        (lambda: Heat(tau=0.0), r"heat\(tau=0.0\): needed tau > 0"),
        (lambda: Heat(shape="triangle"), r"heat\(shape='triangle'\): use one of square, holes, l-shape, disk"),
        (lambda: Heat(size=2), "needed at least 3 points a side"),
    ],
)
def test_messages(call, message):
    with pytest.raises(ValueError, match=message):
        call()


# --- data


@pytest.mark.parametrize("name", ["heat", "wave"])
@pytest.mark.parametrize("vary", [False, True])
def test_samples_depend_on_their_seed_and_number_alone(name, vary):
    problem = problem_named(name, size=9, modes=16, shape="holes", vary=vary, frames=3)
    made, meshes = problem.make(5, range(4), "cpu")
    assert len(problem.times()) == 4
    assert problem.evolving == problem.outputs
    for i in (3, 0):
        domain, fields = problem.sample(5, i)
        assert (meshes is None) != vary
        assert vary is False or domain.same_as(meshes[i])
        for output in problem.outputs:
            assert fields[output].shape == (4, len(domain))
            assert torch.equal(fields[output], made[output][i])
            assert (fields[output][:, domain.boundary] == 0).all()
    assert not vary or len({len(mesh) for mesh in meshes}) > 1
    assert not torch.equal(problem.sample(6, 0)[1]["u"].amax(), made["u"][0].amax())


@pytest.mark.parametrize("name", ["heat", "wave"])
@pytest.mark.parametrize("shape", ["square", "disk", "l-shape", "holes", "interval"])
def test_solutions_change_clearly_over_the_recorded_times(name, shape):
    """Heat falls to about a third, between 0.15 and 0.6; waves reach another state with the same energy."""
    problem = problem_named(name, size=17, shape=shape)
    made, _ = problem.make(0, range(6), "cpu")
    mesh, u = problem.domain(), made["u"]
    norms = ((u**2) @ mesh.weights).sqrt()
    if name == "heat":
        assert 0.15 < float((norms[:, -1] / norms[:, 0]).mean()) < 0.6
        assert (norms.diff(dim=1) < 0).all()
    else:
        away = (((u[:, -1] - u[:, 0]) ** 2) @ mesh.weights).sqrt()
        assert float((away / norms[:, 0]).mean()) > 0.7
        energy = wave_energy(mesh, u, made["u_t"])
        torch.testing.assert_close(energy, energy[:, :1].expand_as(energy), rtol=1e-10, atol=0)
        assert (made["u_t"][:, 0] == 0).all()


@pytest.mark.parametrize(("name", "most"), [("heat", 1e-4), ("wave", 0.02)])
def test_time_steps_of_the_data_are_short_enough(name, most):
    problem, finer = (problem_named(name, size=21, **steps) for steps in ({}, {"steps": 64}))
    made, exact = problem.make(0, range(3), "cpu")[0], finer.make(0, range(3), "cpu")[0]
    for output in problem.outputs:
        away = (made[output][:, -1] - exact[output][:, -1]).norm(dim=1)
        assert float((away / exact[output][:, -1].norm(dim=1)).max()) < most


@pytest.mark.parametrize("name", ["heat", "wave"])
def test_the_residual_notices_a_changed_state(name):
    problem = problem_named(name, size=9, modes=16, frames=3)
    made, _ = problem.make(0, range(2), "cpu")
    assert problem.residual(problem.domain(), made).max() < 1e-12
    for output in problem.outputs:
        wrong = {**made, output: made[output].clone()}
        wrong[output][1, 2] *= 1.01
        found = problem.residual(problem.domain(), wrong)
        assert found[0] < 1e-12
        assert found[1] > 1e-3


def test_one_function_on_different_meshes():
    """Sample i of a seed is the same function on coarse and fine meshes, up to the error of the solver."""
    coarse, fine = (Heat(size=size, frames=2) for size in (21, 41))
    (one, u), (other, v) = coarse.sample(3, 1), fine.sample(3, 1)
    there = other.interpolate(v["u"].T, one.points).T
    assert float((u["u"] - there).norm() / there.norm()) < 0.05


def test_datasets_of_trajectories(tmp_path):
    problem = Wave(size=9, modes=16, vary=True, frames=3)
    data = gkn.make_dataset(problem, 3, 1, tmp_path / "waves")
    assert data.manifest.evolving == ("u", "u_t")
    assert data.manifest.inputs == ()
