"""Moments: means over balls that integrate polynomials exactly, whatever points there are in a ball."""

import math

import pytest
import torch

import gkn
from gkn import Cloud, Dataset, Grid, Mesh, NearFar, Operator
from gkn.geometry.quadrature import simplex_quadrature
from gkn.graph.graph import Graph, window
from gkn.graph.moments import ball_moments, degree_of, polynomials, turned
from gkn.graph.rules import Nystrom, Radius
from gkn.models import model_from
from gkn.operator.ways import Sampled, Support
from gkn.ops.balls import BlockBalls, EdgeBalls, Neighbourhoods
from gkn.ops.corrected import MOST, coefficients, corrected_window
from gkn.ops.kernel import Kernel
from tests import meshes


def moments_of_whole_ball(dim):
    """Windowed means of z_i z_i over a whole ball: 1/(d + 6), and 0 for all other polynomials but 1."""
    whole = torch.zeros(1 + dim + dim * (dim + 1) // 2, dtype=torch.float64)
    whole[0] = 1
    pairs = [(i, j) for i in range(dim) for j in range(i, dim)]
    for k, (i, j) in enumerate(pairs):
        whole[1 + dim + k] = float(i == j) / (dim + 6)
    return whole


@pytest.mark.parametrize("dim", [1, 2, 3])
def test_a_whole_ball_has_the_moments_of_theory(dim):
    middle = torch.full((1, dim), 0.5, dtype=torch.float64)
    found = ball_moments(Grid(9, dim), middle, 0.4, 2)[0]
    torch.testing.assert_close(found, moments_of_whole_ball(dim), atol=3e-3, rtol=0)


def test_half_a_ball_at_a_wall():
    """The mean of z over z > 0 is the integral of z (1 - z^2)^2 over that of (1 - z^2)^2."""
    found = ball_moments(Grid(9, 1), torch.zeros(1, 1, dtype=torch.float64), 0.4, 1)[0]
    torch.testing.assert_close(found, torch.tensor([1, (1 / 6) / (8 / 15)], dtype=torch.float64), atol=3e-3, rtol=0)


def test_periodic_balls_are_whole_everywhere():
    grid = Grid(8, periodic=True)
    found = ball_moments(grid, grid.points, 0.3, 2, grid.periods)
    torch.testing.assert_close(found, moments_of_whole_ball(2).expand(len(grid), -1), atol=3e-3, rtol=0)


def test_balls_without_points_have_none():
    far = torch.tensor([[9.0, 9.0], [0.5, 0.5]], dtype=torch.float64)
    found = ball_moments(Grid(9), far, 0.2, 1)
    assert found[0].isnan().all()
    assert found[1].isfinite().all()
    assert ball_moments(Grid(9), far[:1], 0.2, 1).isnan().all()


@pytest.mark.parametrize(("dim", "degree"), [(d, degree) for d in (1, 2, 3) for degree in (0, 1, 2)])
def test_degrees_and_columns(dim, degree, rng):
    z = torch.randn(5, dim, generator=rng)
    assert degree_of(polynomials(z, degree).shape[1], dim) == degree


@pytest.mark.parametrize("m", [1, 2, 3])
def test_a_simplex_integrates_quadratics(m, rng):
    """The mean of z_i z_j over a simplex is (sum of corners_i sum of corners_j + sum of products) / ((m + 1)(m + 2))."""
    corners = torch.randn(3, m + 1, m, generator=rng, dtype=torch.float64)
    points, weights = simplex_quadrature(corners, torch.tensor([1.0, 2.0, 0.5], dtype=torch.float64))
    points, weights = points.reshape(3, m + 1, m), weights.reshape(3, m + 1)
    found = torch.einsum("sk,ski,skj->sij", weights, points, points) / weights.sum(1)[:, None, None]
    total = corners.sum(1)
    expected = (total[:, :, None] * total[:, None] + torch.einsum("ski,skj->sij", corners, corners)) / ((m + 1) * (m + 2))
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(
    "make", [lambda: meshes.box("triangle", 6), lambda: Cloud(torch.rand(50, 2, dtype=torch.float64)), lambda: Grid((5, 7))]
)
def test_fine_quadratures_have_the_measure(make):
    domain = make()
    points, weights = domain.fine_quadrature(0.5)
    torch.testing.assert_close(weights.sum(), domain.weights.sum(), rtol=1e-9, atol=0)
    torch.testing.assert_close(weights @ points, domain.weights @ domain.points, rtol=1e-2, atol=1e-3)


def neighbourhoods(rng, degree, count=300, targets=40, r=0.3):
    domain = Cloud(torch.rand(count, 2, generator=rng, dtype=torch.float64))
    at = torch.rand(targets, 2, generator=rng, dtype=torch.float64)
    graph = Radius(r).graph(domain.points, at).with_moments(ball_moments(Grid(3), at, r, degree))
    fields = [torch.randn(n, 1, generator=rng, dtype=torch.float64) for n in (targets, count)]
    of_x, of_y = (torch.cat([x / r, a], 1) for x, a in zip((at, domain.points), fields, strict=True))
    return Neighbourhoods(graph, of_x, of_y, 2, domain.weights)


@pytest.mark.parametrize("degree", [1, 2])
def test_means_of_polynomials_are_exact(degree, rng):
    """In balls where no factor of the window reaches its limits."""
    graph, of_x, of_y, _, weights = neighbourhoods(rng, degree)
    x, y = of_x[:, :2], of_y[:, :2]
    c = coefficients(graph, x, y, weights, graph.moments)
    target, source = graph.targets.long(), graph.src.long()
    rho = corrected_window(x[target], y[source], c[target]) * weights[source]
    z = polynomials(y[source] - x[target], degree)
    sums = torch.zeros(len(x), z.shape[1], dtype=z.dtype).index_add_(0, target, rho[:, None] * z)
    factor = (polynomials(y[source] - x[target], degree) * c[target]).sum(1)
    limited = torch.zeros(len(x)).index_add_(0, target, ((factor < 0) | (factor > MOST)).float()) > 0
    assert limited.float().mean() < 0.25
    torch.testing.assert_close((sums / sums[:, :1])[~limited], graph.moments[~limited], atol=1e-5, rtol=0)
    plain = torch.zeros_like(sums).index_add_(0, target, (window(x[target], y[source]) * weights[source])[:, None] * z)
    assert (plain / plain[:, :1] - graph.moments).abs().max() > 0.03


def test_moments_that_are_met_change_nothing(rng):
    where = neighbourhoods(rng, 2)
    graph, x, y = where.graph, where.of_x[:, :2], where.of_y[:, :2]
    target, source = graph.targets.long(), graph.src.long()
    z = polynomials(y[source] - x[target], 2)
    rho = window(x[target], y[source]) * where.weights[source]
    sums = torch.zeros(len(x), z.shape[1], dtype=z.dtype).index_add_(0, target, rho[:, None] * z)
    c = coefficients(graph, x, y, where.weights, sums / sums[:, :1])
    torch.testing.assert_close(c, torch.eye(6, dtype=c.dtype)[:1].expand(len(x), -1), atol=1e-9, rtol=0)


def test_balls_without_sources_and_unknown_moments_are_not_corrected():
    x = torch.tensor([[0.0, 0.0], [9.0, 9.0]], dtype=torch.float64)
    y = torch.rand(20, 2, dtype=torch.float64) * 0.2
    graph = Radius(1.0).graph(y, x)
    moments = torch.full((2, 3), torch.nan, dtype=torch.float64)
    assert coefficients(graph, x, y, None, moments).tolist() == [[1, 0, 0], [1, 0, 0]]


@pytest.mark.parametrize("differences", [True, False])
@pytest.mark.parametrize("backend", ["reference", "factored"])
def test_both_kinds_of_balls_are_the_same(differences, backend, rng):
    where = neighbourhoods(rng, 2)
    torch.manual_seed(0)
    kernel = Kernel(3, (8, 4), 5, 5, smooth=True).double()
    v = torch.randn(300, 5, generator=rng, dtype=torch.float64)
    moved = torch.randn(40, 5, generator=rng, dtype=torch.float64) if differences else None
    one, other = (kind(where, backend)(kernel, v, moved) for kind in (EdgeBalls, BlockBalls))
    torch.testing.assert_close(one, other)
    plain = EdgeBalls(where._replace(graph=where.graph.with_moments(None)), backend)(kernel, v, moved)
    assert not torch.allclose(one, plain, rtol=1e-3)


@pytest.mark.parametrize("degree", [1, 2])
def test_turned_moments_are_those_of_turned_points(degree, rng):
    points = torch.rand(30, 3, generator=rng, dtype=torch.float64)
    axes = torch.rand(30, 3, generator=rng).argsort(1)
    reversed = torch.rand(30, 3, generator=rng) < 0.5
    z = points.gather(1, axes)
    z = torch.where(reversed, -z, z)
    torch.testing.assert_close(turned(polynomials(points, degree), axes, reversed), polynomials(z, degree))


def network(**more):
    torch.manual_seed(0)
    sizes = {"width": 8, "blocks": 2, "slices": 2, "head": 4, "kernel": (8, 4), "radius": 0.3, "far": False}
    return NearFar(2, 1, 1, **{**sizes, "moments": 2, **more}).double().eval()


def operator(**more):
    return Operator(network(**more), Radius(0.3), weighted=True)


def smooth(points):
    x, y = points.T
    return torch.sin(3 * x + y) + x * y


def data_on(domain, count=1):
    values = smooth(domain.points).expand(count, -1)
    return Dataset(domain, a=values, u=values)


def test_random_points_come_nearer_to_a_fine_grid(rng):
    """The integral of a smooth kernel and a smooth v over a ball, by few random points and by many of a lattice."""
    at, r = torch.rand(50, 2, generator=rng, dtype=torch.float64), 0.3
    torch.manual_seed(0)
    kernel = Kernel(2, (8, 4), 3, 3, smooth=True).double()

    def integral(domain, degree):
        moments = ball_moments(Grid(3), at, r, degree) if degree else None
        graph = Radius(r).graph(domain.points, at).with_moments(moments)
        v, moved = (torch.stack([smooth(x), x[:, 0], x[:, 1]], 1) for x in (domain.points, at))
        where = Neighbourhoods(graph, at / r, domain.points / r, 2, domain.weights)
        return EdgeBalls(where, "factored")(kernel, v, moved).detach()

    truth = integral(Grid((300, 300), low=(0, 0), high=(1, 1), nodes="centres"), 0)
    cloud = Cloud(torch.rand(600, 2, generator=rng, dtype=torch.float64))
    errors = [float((integral(cloud, degree) - truth).norm() / truth.norm()) for degree in (0, 1, 2)]
    assert errors[1] < errors[0] / 3
    assert errors[2] < errors[1] / 2


def test_queries_at_nodes_have_the_values_of_the_nodes():
    u, sample = operator(), data_on(Grid(12))[0]
    at = torch.tensor([0, 5, 77])
    torch.testing.assert_close(u(sample, at=sample.x[at]), u(sample)[at])


def test_a_batch_is_its_samples(rng):
    u = operator()
    domains = [Cloud(torch.rand(count, 2, generator=rng, dtype=torch.float64)) for count in (90, 60)]
    several = Dataset(domains, a=[smooth(each.points) for each in domains], u=[smooth(each.points) for each in domains])
    together = u.evaluate(several).each
    alone = [u.evaluate(several.take([i])).each[0] for i in range(2)]
    torch.testing.assert_close(torch.as_tensor(together).flatten(), torch.as_tensor(alone).flatten())


@pytest.mark.parametrize("how", [Sampled(300), Support(300)])
def test_drawn_nodes_have_the_moments_of_the_whole_domain(how):
    """Near to the answer on all points; without moments it is off by several times as much."""
    data = data_on(Grid(31), 2)

    def off(moments):
        u = operator(moments=moments)
        if isinstance(how, Sampled):
            own = Dataset(Grid(31), a=data.field("a"), u=torch.stack([u(data[i])[:, 0] for i in range(2)]))
            return u.evaluate(own, how=how).mean
        whole = u(data[0])
        return float((u(data[0], how=how) - whole).norm() / whole.norm())

    assert off(2) < off(0) / 2


def test_a_training_with_symmetries_sees_turned_balls():
    data = data_on(Cloud(torch.rand(200, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))), 4)
    settings = {"width": 8, "blocks": 1, "slices": 2, "head": 4, "kernel": (4, 2), "moments": 2}
    more = {"symmetries": True, "epochs": 2, "batch": 2, "warn": lambda text: None, "smoothing": {}}
    assert math.isfinite(gkn.fit(data, settings=settings, **more).evaluate(data).mean)


def test_graphs_keep_their_moments(rng):
    points = torch.rand(30, 2, generator=rng, dtype=torch.float64)
    moments = torch.randn(30, 3, generator=rng, dtype=torch.float64)
    graph = Radius(0.4).graph(points).with_moments(moments)
    both = Graph.batch([graph, graph])
    assert torch.equal(both.moments, torch.cat([moments, moments]))
    assert torch.equal(both.split([0, 30, 60])[1].moments, moments)
    assert torch.equal(graph.with_points(points, points[:, 0]).moments, moments)
    assert torch.equal(graph.to("cpu").moments, moments)
    tidy, order = graph.by_degree
    assert torch.equal(tidy.moments, moments[order])
    assert Graph.batch([graph, Radius(0.4).graph(points)]).moments is None


def test_configurations_without_moments_are_as_before():
    assert "moments" not in network(moments=0).config()
    assert model_from(network().config()).moments == 2


def test_training_on_draws_has_moments():
    data = data_on(Grid(15), 4)
    settings = {"width": 8, "blocks": 1, "slices": 2, "head": 4, "kernel": (4, 2), "radius": 0.3, "moments": 1}
    trained = gkn.fit(data, settings=settings, rule=Nystrom(0.3, 60), epochs=1, warn=lambda text: None, weighted=True)
    assert trained.model.moments == 1


@pytest.mark.parametrize("wrong", [3, -1, True])
def test_wrong_degrees_are_refused(wrong):
    with pytest.raises(ValueError, match="moments="):
        network(moments=wrong)


def test_meshes_are_corrected_too():
    mesh = meshes.box("triangle", 6)
    assert isinstance(mesh, Mesh)
    assert operator()(data_on(mesh)[0]).isfinite().all()
