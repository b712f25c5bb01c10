"""What the CPU promises, on a GPU. Run by `make test-gpu` on a machine that has one."""

import pytest
import torch

from gkn import (
    Cloud,
    Darcy,
    GaussianField,
    Grid,
    Mesh,
    PoissonSquare,
    check_dataset,
    darcy_residual,
    make_dataset,
    smooth,
    solve_darcy,
    two_phase,
)

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(("size", "dim"), [(129, 1), (61, 2), (421, 2), (17, 3)])
def test_solutions_agree_with_the_cpu(size, dim):
    grid = Grid(size, dim)
    rng = torch.Generator().manual_seed(0)
    a = 50 ** torch.rand(3, len(grid), generator=rng, dtype=torch.float64)
    f, g = torch.randn(2, 3, len(grid), generator=rng, dtype=torch.float64)
    u = solve_darcy(grid, a, f, g)
    there = solve_darcy(grid, a.cuda(), f, g)
    assert there.is_cuda
    torch.testing.assert_close(there.cpu(), u, rtol=0, atol=1e-9 * float(u.abs().max()))
    assert darcy_residual(grid, a.cuda(), there, f.cuda()).max() < 1e-9
    assert all(torch.equal(solve_darcy(grid, a.cuda(), f, g), there) for _ in range(5))  # the same bits again


@pytest.mark.parametrize("boundary", ["neumann", "periodic", "dirichlet"])
def test_fields_agree_with_the_cpu(boundary):
    series = GaussianField(3.0, 2.0, boundary).draw(3, torch.Generator().manual_seed(0))
    grid = Grid(61)
    torch.testing.assert_close(series.to("cuda")(grid).cpu(), series(grid), rtol=0, atol=1e-13)
    torch.testing.assert_close(series.to("cuda")(grid.points).cpu(), series(grid), rtol=0, atol=1e-12)


@pytest.mark.parametrize("recipe", [Darcy(size=61), PoissonSquare(size=33)], ids=["darcy", "poisson"])
def test_datasets(recipe, tmp_path):
    hashes = {make_dataset(recipe, 70, 0, tmp_path / str(i), device="cuda").manifest.hash for i in range(4)}
    assert len(hashes) == 1
    assert all(finding.ok for finding in check_dataset(tmp_path / "0", device="cuda"))
    on_cpu, on_gpu = make_dataset(recipe, 70), make_dataset(recipe, 70, device="cuda")
    name = recipe.inputs[0]
    torch.testing.assert_close(on_gpu.field(name), on_cpu.field(name), rtol=0, atol=1e-12)
    torch.testing.assert_close(on_gpu.field("u"), on_cpu.field("u"), rtol=1e-8, atol=1e-11)


def test_finite_elements_answer_where_they_were_asked():
    pytest.importorskip("skfem", reason="meshes need scikit-fem")
    mesh = Mesh.disk(0.3)
    a = torch.ones(2, len(mesh), dtype=torch.float64, device="cuda")
    u = solve_darcy(mesh, a)
    assert u.is_cuda
    assert darcy_residual(mesh, a, u).max() < 1e-9


def test_smoothing():
    grid = Grid(31)
    a = torch.rand(2, len(grid), dtype=torch.float64)
    for domain in (grid, Cloud(grid.points, grid.weights)):
        for there, here in zip(smooth(domain, a.cuda(), 0.1), smooth(domain, a, 0.1), strict=True):
            torch.testing.assert_close(there.cpu(), here, rtol=0, atol=1e-11)


def test_two_phase_stays_on_its_device():
    assert two_phase(torch.zeros(3, device="cuda")).is_cuda
