import pytest
import torch

from gkn import Dataset, Grid, Mesh, relative_l2
from gkn.data.dataset import BadNumbers
from gkn.data.generate import make_dataset
from gkn.data.problems import Darcy, PoissonSquare
from gkn.models.rivals.fcn import FCN
from gkn.models.rivals.pca import PCANet, principal
from gkn.models.rivals.pointwise import Pointwise
from gkn.models.rivals.rbm import ReducedBasis
from gkn.operator.operator import Support
from gkn.pde import solve_darcy
from gkn.train.baselines import ANYWHERE, BASELINES, fit_baseline

FEW = {
    "NN": {"epochs": 2},
    "FCN": {"epochs": 2, "start": 8, "growth": 4},
    "PCA+NN": {"epochs": 30, "hidden": (32, 32)},
    "RBM": {},
    "transformer": {"epochs": 2, "width": 8, "layers": 1, "head": 4},
    "FNO": {"epochs": 2, "modes": 3, "width": 4, "layers": 1},
    "dense": {"epochs": 60, "hidden": (32,)},
}


@pytest.fixture(scope="module")
def data():
    return make_dataset(Darcy(size=17), 40).split(32, 8)


@pytest.fixture(scope="module")
def fitted(data, neuraloperator):
    return {name: fit_baseline(name, data[0], seed=1, **FEW[name]) for name in BASELINES}


@pytest.mark.parametrize("name", BASELINES)
def test_each_is_judged_as_an_operator_is(name, fitted, data):
    found = relative_l2(fitted[name], data[1])
    u = data[1].field("u")
    mean = data[0].field("u").mean(0)
    guess = ((mean - u).norm(dim=1) / u.norm(dim=1)).mean()
    assert len(found.each) == 8
    assert found.mean < (guess if name in ("PCA+NN", "RBM") else 1.0)
    one = fitted[name](fitted[name].ready(data[1])[3])
    assert one.shape == (289, 1)
    assert float((one[:, 0] - u[3]).norm() / u[3].norm()) == pytest.approx(float(found.each[3]), rel=1e-6)


@pytest.mark.parametrize("name", BASELINES)
def test_the_same_seed_gives_the_same_answers(name, data, neuraloperator):
    one, again, other = (fit_baseline(name, data[0].take(8), seed=seed, **FEW[name]) for seed in (1, 1, 2))
    sample = again.ready(data[1])[0]
    assert torch.equal(again(sample), one(sample))
    assert name == "RBM" or not torch.equal(again(sample), other(sample))


@pytest.mark.parametrize("name", BASELINES)
def test_smoothed_fields_beside_a_are_left_alone(name, fitted, data):
    assert fitted[name].ready(data[1].smoothed(0.1)).inputs == ("a",)


@pytest.mark.parametrize("name", [name for name in BASELINES if name not in ANYWHERE])
def test_other_points_are_refused(name, fitted, data):
    with pytest.raises(
        ValueError, match=f"{name.replace('+', '.')} answers only on the points it was fitted on, a grid of 17 x 17"
    ):
        relative_l2(fitted[name], data[1].every(2))
    mesh = Mesh.square(0.2)
    other = Dataset(mesh, a=torch.ones(2, len(mesh)).double(), u=torch.ones(2, len(mesh)).double())
    with pytest.raises(ValueError, match=f"given a mesh of {len(mesh)} points. Fit it again"):
        relative_l2(fitted[name], other)


@pytest.mark.parametrize("name", ANYWHERE)
def test_some_take_any_points(name, fitted, data):
    assert relative_l2(fitted[name], data[1].every(2)).mean < 1


@pytest.mark.parametrize("name", ["FCN", "RBM", "FNO"])
def test_a_mesh_is_refused_by_what_needs_a_grid(name):
    mesh = Mesh.square(0.2)
    values = torch.rand(3, len(mesh), dtype=torch.float64) + 1
    with pytest.raises(ValueError, match=f"{name} needs a regular grid; this dataset is on a mesh"):
        fit_baseline(name, Dataset(mesh, a=values, u=values))


def test_what_cannot_be_fitted_is_said(data):
    with pytest.raises(ValueError, match="no baseline 'CNN'; there are NN, FCN"):
        fit_baseline("CNN", data[0])
    with pytest.raises(ValueError, match="without samples"):
        fit_baseline("RBM", data[0].take(0))
    grid = Grid(5)
    three = {name: torch.rand(2, 25).double() + 1 for name in ("a", "b", "u")}
    with pytest.raises(ValueError, match="RBM maps one field to one field; this dataset has a, b -> u"):
        fit_baseline("RBM", Dataset(grid, **three))
    apart = Dataset([grid, grid], a=[three["a"][0]] * 2, u=[three["u"][0]] * 2)
    with pytest.raises(ValueError, match=r"PCA\+NN needs all samples on one domain"):
        fit_baseline("PCA+NN", apart)
    with pytest.raises(ValueError, match="functions; needed at least 2"):
        fit_baseline("RBM", data[0].take(1))
    for wrong in ({"epochs": 0}, {"batch": -1}, {"epochs": 1.5}):
        with pytest.raises(ValueError, match="needed a whole number, at least 1"):
            fit_baseline("NN", data[0], **wrong)
    with pytest.raises(ValueError, match=r"lr=0\.0\): needed a number > 0"):
        fit_baseline("NN", data[0], lr=0.0)
    with pytest.raises(ValueError, match="RBM has no setting 'epochs'; it has size, f"):
        fit_baseline("RBM", data[0], epochs=3)
    for wrong in ({"hidden": (0,)}, {"hidden": 5}, {"hidden": ()}):
        with pytest.raises(ValueError, match="needed some sizes, whole numbers, at least 1"):
            fit_baseline("NN", data[0], **wrong)
    with pytest.raises(ValueError, match="needed 3 sizes"):
        fit_baseline("FCN", data[0], blocks=(1, 2))
    with pytest.raises(ValueError, match="places=1\\): needed True or False"):
        fit_baseline("FCN", data[0], places=1)
    with pytest.raises(ValueError, match="seed=-1"):
        fit_baseline("NN", data[0], seed=-1)
    with pytest.raises(ValueError, match="cuda"):
        fit_baseline("NN", data[0], device="cuda")
    zero = data[0].field("u").clone()
    zero[5] = 0
    with pytest.raises(ValueError, match="u of sample 5 is 0 everywhere"):
        fit_baseline("FCN", Dataset(Grid(17), a=data[0].field("a"), u=zero))
    with pytest.raises(ValueError, match="all functions are the same"):
        fit_baseline("PCA+NN", Dataset(Grid(17), a=torch.ones(32, 289).double(), u=data[0].field("u")))
    line = Dataset(Grid(5, dim=1), a=torch.ones(2, 5).double(), u=torch.ones(2, 5).double())
    with pytest.raises(ValueError, match="NN was fitted in dimension 2; given points of dimension 1"):
        relative_l2(fit_baseline("NN", data[0], epochs=1), line)
    bad = data[0].field("a").clone()
    bad[3, 7] = float("nan")
    with pytest.raises(BadNumbers, match="sample 3, field 'a': 1 of 289 values are not finite"):
        fit_baseline("RBM", Dataset(Grid(17), a=bad, u=data[0].field("u")))


def test_the_convolutional_network_learns_the_right_way_round():
    """u = a shifted along the first axis: a network that saw u transposed could not have it."""
    rng = torch.Generator().manual_seed(0)
    a = torch.rand(24, 13, 13, generator=rng, dtype=torch.float64)
    u = a.roll(1, 1)
    data = Dataset(Grid(13), a=a.flatten(1), u=u.flatten(1))
    baseline = fit_baseline("FCN", data, epochs=40, batch=8, start=16, growth=8, blocks=(2, 2, 2))
    other = Dataset(Grid(13), a=a.flatten(1), u=u.transpose(1, 2).flatten(1))
    assert relative_l2(baseline, data).mean < 0.6 * relative_l2(baseline, other).mean


def test_the_convolutional_network_sees_where_it_is():
    """u = 1 + x whatever a is, most of it further from the boundary than a window reaches."""
    grid = Grid(65)
    a = torch.rand(16, len(grid), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    train, test = Dataset(grid, a=a, u=(1 + grid.points[:, 0]).expand(16, -1).clone()).split(8, 8)
    sizes = {"epochs": 30, "batch": 4, "lr": 1e-2, "start": 8, "growth": 4, "blocks": (1, 1, 1)}
    placed, lost = (relative_l2(fit_baseline("FCN", train, places=places, **sizes), test).mean for places in (True, False))
    assert placed < 0.5 * lost


def test_the_pointwise_network_learns_a_function_of_the_point():
    rng = torch.Generator().manual_seed(0)
    grid = Grid(9)
    a = torch.rand(30, 81, generator=rng, dtype=torch.float64)
    train, test = Dataset(grid, a=a, u=a * (1 + grid.points[:, 0])).split(20, 10)
    assert relative_l2(fit_baseline("NN", train, epochs=60), test).mean < 0.05


def test_a_baseline_has_no_other_way_to_be_asked(fitted, data):
    with pytest.raises(ValueError, match="Baseline answers on a sample's own points; no how"):
        relative_l2(fitted["RBM"], data[1], Support(10))


def test_a_learning_rate_that_is_too_large_is_said(data):
    with pytest.raises(ArithmeticError, match="the loss became nan"):
        fit_baseline("dense", data[0], epochs=30, lr=1e30)


def test_principal_functions(rng):
    weights = torch.rand(30, generator=rng, dtype=torch.float64) + 0.1
    values = torch.randn(6, 30, generator=rng, dtype=torch.float64)
    mean, basis, std = principal(values, weights, 5)
    torch.testing.assert_close(basis.T @ (weights[:, None] * basis), torch.eye(5, dtype=torch.float64), atol=1e-9, rtol=0)
    coefficients = ((values - mean) * weights) @ basis
    torch.testing.assert_close(mean + coefficients @ basis.T, values)  # six functions differ in five directions
    torch.testing.assert_close(coefficients.square().mean(0).sqrt(), std)
    assert (std[:-1] >= std[1:]).all()


def test_principal_functions_where_a_point_has_no_weight(rng):
    weights = torch.cat([torch.zeros(1), torch.ones(9)]).double()
    values = torch.randn(4, 10, generator=rng, dtype=torch.float64)
    mean, basis, _ = principal(values, weights, 3)
    torch.testing.assert_close(mean + (((values - mean) * weights) @ basis) @ basis.T, values)


def test_pca_net_can_represent_what_it_was_fitted_on(rng):
    a, u = (torch.randn(5, 20, generator=rng) for _ in range(2))
    net = PCANet(a, u, torch.full((20,), 1 / 20), inputs=10, outputs=10)
    assert net.encode(a).shape == (5, 4)  # five functions differ in four directions
    wanted = ((u - net.u_mean) * net.weights) @ net.u_basis / net.u_std
    torch.testing.assert_close(net.decode(wanted), u, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("dim", [1, 2])
def test_a_reduced_basis_that_has_the_solution_finds_it(dim):
    """Galerkin's projection is exact on the span of the basis: the faces are those of solve_darcy."""
    grid = Grid(17, dim=dim)
    rng = torch.Generator().manual_seed(0)
    a = 1 + 9 * torch.rand(4, len(grid), generator=rng, dtype=torch.float64)
    u = solve_darcy(grid, a, 3.0)
    found = ReducedBasis(grid, u, size=4).solve(a, f=3.0)
    torch.testing.assert_close(found, u, rtol=1e-8, atol=1e-10)


def test_a_larger_basis_is_better():
    train, test = make_dataset(Darcy(size=17), 60).split(50, 10)
    small, large = (relative_l2(fit_baseline("RBM", train, size=size), test).mean for size in (5, 40))
    assert large < 0.8 * small


def test_the_convolutional_network_sees_a_window():
    torch.manual_seed(0)
    net = FCN(start=8, growth=4).eval()
    image = torch.randn(1, 1, 121, 121)
    other = image.clone()
    other[..., 0, 0] += 100
    difference = (net(image) - net(other)).abs()[0, 0]
    assert difference[:8, :8].max() > 1e-4
    assert difference[80:, 80:].max() == 0


@pytest.mark.parametrize("size", [7, 16, 31])
def test_the_convolutional_network_keeps_the_size(size):
    assert FCN(start=8, growth=4)(torch.randn(2, 1, size, size)).shape == (2, 1, size, size)


def test_the_pointwise_network_sees_a_point():
    torch.manual_seed(0)
    net = Pointwise(2)
    x, a = torch.rand(9, 2), torch.rand(9, 1)
    order = torch.randperm(9)
    torch.testing.assert_close(net(x[order], a[order]), net(x, a)[order])
    other = a.clone()
    other[0] += 1
    torch.testing.assert_close(net(x, other)[1:], net(x, a)[1:])


def test_other_names_of_fields():
    train, test = make_dataset(PoissonSquare(size=9), 30).split(25, 5)
    assert relative_l2(fit_baseline("dense", train, **FEW["dense"]), test).mean < 1
