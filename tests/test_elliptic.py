"""Elliptic problems on meshes: Poisson's equation and Darcy flow with sources and boundary values, in 1 to 3 dimensions."""

import pytest
import torch

import gkn
from gkn import Darcy, DarcyMesh, DarcySource, PoissonMesh, solve_darcy
from gkn.data.problems import problem_named
from gkn.data.problems.mesh_problem import deviation

SMALL = [
    PoissonMesh(size=9, modes=8),
    PoissonMesh(size=9, modes=8, shape="holes", vary=True),
    PoissonMesh(size=17, modes=8, shape="interval", vary=True),
    PoissonMesh(size=5, modes=8, shape="cube", vary=True),
    PoissonMesh(size=6, modes=8, shape="ball"),
    DarcySource(size=9, modes=8, shape="disk"),
    DarcySource(size=5, modes=8, shape="cube", vary=True),
    DarcyMesh(size=5, modes=8, shape="cube", vary=True),
]


@pytest.mark.parametrize("problem", SMALL, ids=lambda each: f"{each.name}-{each.shape}")
def test_data_pass_their_checks(problem, tmp_path):
    """In memory and on disk, one after the other and together: the same bits."""
    data = gkn.make_dataset(problem, 3, 2, tmp_path / "data")
    findings = gkn.check_dataset(tmp_path / "data")
    assert all(finding.ok in (True, None) for finding in findings), findings
    assert next(finding for finding in findings if finding.what == "residual").ok
    for i in (2, 0):
        domain, fields = problem.sample(2, i)
        assert data[i].domain.same_as(domain)
        for name in (*problem.inputs, *problem.outputs):
            assert torch.equal(data.value(name, i), fields[name])
    if problem.vary:
        assert len({len(data[i].domain) for i in range(3)}) > 1


def test_fields_are_as_smooth_in_any_dimension():
    """With one square-integrable derivative; in space alpha = 2 would leave half of one, and no values on the boundary."""
    assert [PoissonMesh(shape=shape).alpha for shape in ("interval", "square", "cube")] == [1.5, 2.0, 2.5]
    assert DarcyMesh(shape="ball", alpha=2.0).alpha == 2.0


@pytest.mark.parametrize("shape", ["square", "l-shape"])
def test_sources_and_boundary_values_matter_alike(shape):
    """The norms of their parts of u differ by less than a factor of 2 on shapes in the unit square."""
    for problem in (PoissonMesh(size=17, shape=shape), DarcySource(size=17, shape=shape)):
        made, _ = problem.make(0, range(12), "cpu")
        mesh, a = problem.domain(), made.get("a", torch.ones_like(made["f"]))
        parts = solve_darcy(mesh, a, made["f"], 0.0, per="node"), solve_darcy(mesh, a, 0.0, made["g"], per="node")
        of_f, of_g = (float((part**2 @ mesh.weights).mean().sqrt()) for part in parts)
        assert 0.5 < of_f / of_g < 2
        torch.testing.assert_close(parts[0] + parts[1], made["u"], rtol=0, atol=1e-10)


def test_fields_have_the_sizes_that_were_asked_for():
    problem = PoissonMesh(size=9, f_size=3.0, g_size=0.5)
    made, _ = problem.make(0, range(60), "cpu")
    inside = ~problem.domain().boundary
    weights = problem.domain().weights
    assert float((made["f"] ** 2 @ weights).mean().sqrt()) == pytest.approx(3.0, rel=0.1)
    assert (made["g"][:, inside] == 0).all()
    assert torch.equal(made["g"][:, ~inside], made["u"][:, ~inside])
    assert 0.4 < float(made["g"][:, ~inside].std()) < 0.8  # a Neumann field varies more at the boundary
    assert deviation(problem.field()) == deviation(PoissonMesh(size=30).field())
    together = torch.corrcoef(torch.stack([made["f"][:, ~inside].flatten(), made["g"][:, ~inside].flatten()]))
    assert abs(float(together[0, 1])) < 0.15  # independent


def test_the_coefficient_is_that_of_darcy():
    """One seed, one function, whether sources vary or not; compared at the corners, where grids and meshes have nodes."""
    on_grid, with_sources = Darcy(size=9, modes=64), DarcySource(size=9, modes=64)
    mesh = with_sources.domain()
    corner = int((mesh.points == torch.tensor([1.0, 0.0])).all(1).nonzero()[0])
    for i in range(12):
        assert float(on_grid.sample(4, i)[1]["a"][72]) == float(with_sources.sample(4, i)[1]["a"][corner])
    same = DarcyMesh(size=9, modes=64).make(4, range(3), "cpu")[0]["a"]
    assert torch.equal(with_sources.make(4, range(3), "cpu")[0]["a"], same)


def test_the_residual_sees_the_boundary():
    for problem in (PoissonMesh(size=9, modes=8), DarcySource(size=9, modes=8)):
        made, _ = problem.make(0, range(2), "cpu")
        wrong = made["g"].clone()
        wrong[1] *= 1.01
        found = problem.residual(problem.domain(), {**made, "g": wrong})
        assert found[0] < 1e-12
        assert found[1] > 1e-4
        assert problem.residual(problem.domain(), {**made, "f": 1.1 * made["f"]}).min() > 1e-3


def test_meshes_of_samples_have_half_to_twice_the_points():
    for shape, size in (("square", 17), ("cube", 7)):
        problem = problem_named("poisson", shape=shape, size=size, modes=8, vary=True)
        counts = [len(problem.mesh(0, i)) for i in range(8)]
        assert max(counts) < 5 * min(counts)
        assert len({*counts}) > 4


def test_sizes_by_default():
    found = {shape: PoissonMesh(shape=shape).size for shape in ("square", "cube", "interval")}
    assert found == {"square": 41, "cube": 13, "interval": 129}
    assert DarcyMesh().describe()["size"] == 41


def test_darcy_in_space_on_a_grid(tmp_path):
    problem = problem_named("darcy", dim=3, size=9)
    gkn.make_dataset(problem, 2, 0, tmp_path / "d")
    findings = gkn.check_dataset(tmp_path / "d")
    assert all(finding.ok for finding in findings), findings
    assert problem.sample(0, 0)[1]["u"].shape == (729,)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: PoissonMesh(shape="star"),
            r"poisson\(shape='star'\): use one of square, holes, l-shape, disk, interval, cube",
        ),
        (lambda: DarcyMesh(shape="star"), r"darcy-mesh\(shape='star'\): use one of"),
        (lambda: PoissonMesh(size=2), "needed at least 3 points a side"),
        (lambda: PoissonMesh(f_size=-1.0), "needed finite numbers >= 0 that are not both 0"),
        (lambda: PoissonMesh(f_size=0.0, g_size=0.0), "needed finite numbers >= 0 that are not both 0"),
        (lambda: DarcySource(g_size=float("inf")), "needed finite numbers >= 0"),
        (lambda: DarcySource(low=0.0), "needs 0 < low"),
        (lambda: PoissonMesh(shape="cube", alpha=1.2), "only for alpha > dim/2"),
    ],
)
def test_messages(call, message):
    with pytest.raises(ValueError, match=message):
        call()
