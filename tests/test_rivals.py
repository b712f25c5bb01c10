"""Rivals are models: trained by `fit`, evaluated as operators, saved and read again."""

import pytest
import torch

import gkn
from gkn import Dataset, Grid, Mesh, Points, fit
from gkn.data.generate import make_dataset
from gkn.data.problems import Darcy
from gkn.models.rivals import FCN, PCANet, Pointwise
from gkn.models.rivals.pca import principal
from gkn.models.rivals.rbm import ReducedBasis
from gkn.operator.saved import load
from gkn.pde import solve_darcy

SMALL = {
    "Pointwise": ({}, {"epochs": 2}),
    "FCN": ({"start": 8, "growth": 4}, {"epochs": 2}),
    "PCANet": ({"hidden": (32, 32)}, {"epochs": 30}),
    "RBM": ({}, {}),
    "Transformer": ({"width": 8, "blocks": 1, "head": 4}, {"epochs": 2}),
    "SliceAttention": ({"width": 8, "blocks": 1, "head": 4, "slices": 2}, {"epochs": 2}),
    "FNO": ({"modes": 3, "width": 4, "layers": 1}, {"epochs": 2}),
    "Dense": ({"hidden": (32,)}, {"epochs": 60}),
}
ANYWHERE = ("Pointwise", "Transformer", "SliceAttention")


def trained(name, data, seed=1, **options):
    settings, recipe = SMALL[name]
    return fit(data, name, settings=settings, **{**recipe, "seed": seed, **options})


@pytest.fixture(scope="module")
def data():
    return make_dataset(Darcy(size=17), 40).split(32, 8)


@pytest.fixture(scope="module")
def operators(data, neuraloperator):
    return {name: trained(name, data[0]) for name in SMALL}


@pytest.mark.parametrize("name", SMALL)
def test_each_is_trained_by_fit_and_evaluated_as_an_operator(name, operators, data):
    found = operators[name].evaluate(data[1])
    u = data[1].field("u")
    mean = data[0].field("u").mean(0)
    guess = ((mean - u).norm(dim=1) / u.norm(dim=1)).mean()
    assert len(found.each) == 8
    assert found.mean < (guess if name in ("PCANet", "RBM") else 1.0)
    one = operators[name](operators[name].ready(data[1])[3])
    assert one.shape == (289, 1)
    w = data[1].domain.weights.sqrt()
    assert float((w * (one[:, 0].double() - u[3])).norm() / (w * u[3]).norm()) == pytest.approx(float(found.each[3]), rel=1e-4)


@pytest.mark.parametrize("name", SMALL)
def test_each_is_saved_and_read_again(name, operators, data, tmp_path):
    operators[name].save(tmp_path)
    sample = operators[name].ready(data[1])[0]
    assert torch.equal(load(tmp_path)(sample), operators[name](sample))


@pytest.mark.parametrize("name", SMALL)
def test_the_same_seed_gives_the_same_answers(name, data, neuraloperator):
    one, again, other = (trained(name, data[0].take(8), seed) for seed in (1, 1, 2))
    sample = again.ready(data[1])[0]
    assert torch.equal(again(sample), one(sample))
    assert name == "RBM" or not torch.equal(again(sample), other(sample))


@pytest.mark.parametrize("name", SMALL)
def test_other_points(name, operators, data):
    """Some take any points; the others say which they need; all answer at query points."""
    points = torch.rand(5, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert operators[name](operators[name].ready(data[1])[0], at=points).shape == (5, 1)
    coarse = data[1].every(2)
    if name in (*ANYWHERE, "FCN", "FNO"):
        assert operators[name].evaluate(coarse).mean < 1.5
    else:
        with pytest.raises(ValueError, match=f"{name} answers only on the 289 points it was fitted on; given"):
            operators[name].evaluate(coarse)


@pytest.mark.parametrize("name", ["FCN", "FNO"])
def test_images_do_not_depend_on_the_order_of_points(name, operators, data):
    operator = operators[name]
    sample = operator.ready(data[1])[0]
    order = torch.randperm(289, generator=torch.Generator().manual_seed(0))
    x, a = sample.x.float(), operator.inputs.encode(sample.a).float()
    graph = Points().graph(x)
    with torch.no_grad():
        model = operator.model.eval()
        torch.testing.assert_close(model(graph, x[order], a[order]), model(graph, x, a)[order])
        with pytest.raises(ValueError, match=f"{name} needs a regular grid"):
            model(Points().graph(x[:288]), x[:288], a[:288])
        with pytest.raises(ValueError, match=f"{name} needs a regular grid; these points do not fill one"):
            model(graph, torch.rand(289, 2), a)


def test_what_needs_a_grid_or_one_field_says_so(data):
    mesh = Mesh.square(0.2)
    values = torch.rand(3, len(mesh), dtype=torch.float64) + 1
    with pytest.raises(ValueError, match="RBM needs a regular grid; this dataset is on a mesh"):
        fit(Dataset(mesh, a=values, u=values), "RBM")
    three = {name: torch.rand(2, 25).double() + 1 for name in ("a", "b", "u")}
    with pytest.raises(ValueError, match="RBM maps one field to one field; given 2 and 1"):
        fit(Dataset(Grid(5), **three), "RBM")
    with pytest.raises(ValueError, match="functions; needed at least 2"):
        fit(data[0].take(1), "RBM")
    with pytest.raises(ValueError, match="all functions are the same"):
        fit(Dataset(Grid(17), a=torch.ones(32, 289).double(), u=data[0].field("u")), "PCANet")
    with pytest.raises(ValueError, match="needed whole numbers, three blocks"):
        FCN(blocks=(1, 2))


def test_the_convolutional_network_learns_the_right_way_round():
    """u = a shifted along the first axis: a network that saw u transposed could not learn it."""
    rng = torch.Generator().manual_seed(0)
    a = torch.rand(24, 13, 13, generator=rng, dtype=torch.float64)
    u = a.roll(1, 1)
    data = Dataset(Grid(13), a=a.flatten(1), u=u.flatten(1))
    operator = fit(data, "FCN", settings={"start": 16, "growth": 8, "blocks": (2, 2, 2)}, epochs=40)
    other = Dataset(Grid(13), a=a.flatten(1), u=u.transpose(1, 2).flatten(1))
    assert operator.evaluate(data).mean < 0.6 * operator.evaluate(other).mean


def test_the_convolutional_network_sees_where_it_is():
    """u = 1 + x whatever a is, mostly farther from the boundary than a window reaches."""
    grid = Grid(65)
    a = torch.rand(16, len(grid), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    train, test = Dataset(grid, a=a, u=(1 + grid.points[:, 0]).expand(16, -1).clone()).split(8, 8)
    errors = []
    for places in (True, False):
        settings = {"start": 8, "growth": 4, "blocks": (1, 1, 1), "places": places}
        errors.append(fit(train, "FCN", settings=settings, epochs=30, batch=4, lr=1e-2).evaluate(test).mean)
    assert errors[0] < 0.5 * errors[1]


def test_the_pointwise_network_learns_a_function_of_the_point():
    rng = torch.Generator().manual_seed(0)
    grid = Grid(9)
    a = torch.rand(30, 81, generator=rng, dtype=torch.float64)
    train, test = Dataset(grid, a=a, u=a * (1 + grid.points[:, 0])).split(20, 10)
    assert fit(train, "Pointwise", epochs=60).evaluate(test).mean < 0.05


@pytest.mark.parametrize("name", ["Transformer", "SliceAttention"])
def test_attention_at_a_node_is_its_value(name, rng):
    """Queries receive from the nodes as nodes do; functions of a batch do not see each other."""
    torch.manual_seed(0)
    model = gkn.models.MODELS[name](2, 2, 1, **SMALL[name][0]).double().eval()
    x, a = torch.rand(20, 2, generator=rng).double(), torch.randn(20, 2, generator=rng).double()
    with torch.no_grad():
        whole = model(Points().graph(x), x, a)
        states = model.states(Points().graph(x), x, a)
        found = model.at(states, Points().graph(x, x[3:5]), (x[3:5], a[3:5]), (x, a))
        torch.testing.assert_close(found, whole[3:5])
        two = gkn.Graph.batch([Points().graph(x), Points().graph(x[:7])])
        both = model(two, torch.cat([x, x[:7]]), torch.cat([a, a[:7]]))
        torch.testing.assert_close(both[:20], whole)


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
    a, u = (torch.randn(5, 25, generator=rng).double() for _ in range(2))
    data = Dataset(Grid(5), a=a, u=u)
    net = PCANet(2, 1, 1, points=25, inputs=10, outputs=10)
    normal = gkn.Normalizer.none(1)
    net.prepare([data], normal, normal)
    assert int((net.a_basis.abs().sum(0) > 0).sum()) == 4  # five functions differ in four directions
    wanted = ((u.float() - net.u_mean) * net.weights) @ net.u_basis / net.u_std
    torch.testing.assert_close(net.decode(wanted), u.float(), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("dim", [1, 2])
def test_a_reduced_basis_that_has_the_solution_finds_it(dim):
    """Galerkin's projection is exact on the span of the basis: the faces are those of solve_darcy."""
    grid = Grid(17, dim=dim)
    rng = torch.Generator().manual_seed(0)
    a = 1 + 9 * torch.rand(4, len(grid), generator=rng, dtype=torch.float64)
    u = solve_darcy(grid, a, 3.0)
    found = ReducedBasis.of(grid, u, size=4).solve(a, f=3.0)
    torch.testing.assert_close(found, u, rtol=1e-8, atol=1e-10)


def test_a_larger_basis_is_better():
    train, test = make_dataset(Darcy(size=17), 60).split(50, 10)
    small, large = (fit(train, "RBM", settings={"size": size}).evaluate(test).mean for size in (5, 40))
    assert large < 0.8 * small


def test_the_convolutional_network_sees_a_window():
    torch.manual_seed(0)
    net = FCN(start=8, growth=4).eval()
    image = torch.randn(1, 3, 121, 121)
    other = image.clone()
    other[..., 0, 0] += 100
    difference = (net.image(image) - net.image(other)).abs()[0, 0]
    assert difference[:8, :8].max() > 1e-4
    assert difference[80:, 80:].max() == 0


@pytest.mark.parametrize("size", [7, 16, 31])
def test_the_convolutional_network_keeps_the_size(size):
    assert FCN(start=8, growth=4).image(torch.randn(2, 3, size, size)).shape == (2, 1, size, size)


def test_the_pointwise_network_sees_a_point():
    torch.manual_seed(0)
    net = Pointwise(2)
    x, a = torch.rand(9, 2), torch.rand(9, 1)
    graph, order = Points().graph(x), torch.randperm(9)
    torch.testing.assert_close(net(graph, x[order], a[order]), net(graph, x, a)[order])
    other = a.clone()
    other[0] += 1
    torch.testing.assert_close(net(graph, x, other)[1:], net(graph, x, a)[1:])
