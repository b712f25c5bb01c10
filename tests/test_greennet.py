import pytest
import torch

from gkn.geometry.grid import Grid
from gkn.graph.neighbors import radius_graph
from gkn.models import GreenNet
from gkn.pde.greens_functions import green_interval


def setting(rng, fields=1, dim=1, nodes=25, more=None):
    torch.manual_seed(0)
    model = GreenNet(dim, kernel=(16, 16), fields=fields, **(more or {})).double()
    x = torch.rand(nodes, dim, generator=rng, dtype=torch.float64)
    weights = torch.rand(nodes, generator=rng, dtype=torch.float64)
    return model, x, weights, radius_graph(x, r=10.0)


def bubble(x):
    return (x * (1 - x)).prod(1)


SOME = [
    {},
    {"symmetric": True},
    {"distance": True},
    {"factor": bubble},
    {"symmetric": True, "distance": True, "factor": bubble},
]


@pytest.mark.parametrize("more", SOME)
@pytest.mark.parametrize("fields", [1, 2])
def test_it_is_the_quadrature_of_the_kernel_that_is_read_out(rng, fields, more):
    model, x, weights, graph = setting(rng, fields, dim=2, more=more)
    f = torch.randn(25, fields, generator=rng, dtype=torch.float64)
    u = model(graph, x, f, weights)
    expected = torch.zeros(25, fields, dtype=torch.float64)
    for j in range(25):
        kernel = model.read(x, x[j].expand(25, -1)).reshape(25, fields, fields)
        expected += weights[j] * (kernel @ f[j])
    torch.testing.assert_close(u, expected)


def test_symmetric(rng):
    model, x, *_ = setting(rng, 2, dim=2, more={"symmetric": True, "distance": True})
    y = torch.rand(25, 2, generator=rng, dtype=torch.float64)
    torch.testing.assert_close(model.read(x, y), model.read(y, x).transpose(1, 2))
    plain, *_ = setting(rng, 2, dim=2)
    assert not torch.allclose(plain.read(x, y), plain.read(y, x).transpose(1, 2))


def test_distance_enters_the_kernel(rng):
    model, x, *_ = setting(rng, dim=2, more={"distance": True})
    near = model.read(x, x)
    with torch.no_grad():
        model.of_distance.mul_(3)
    torch.testing.assert_close(model.read(x, x), near)  # |x - x| = 0
    y = torch.rand(25, 2, generator=rng, dtype=torch.float64)
    before = model.read(x, y)
    with torch.no_grad():
        model.of_distance.mul_(3)
    assert not torch.allclose(model.read(x, y), before)


def test_a_factor_makes_the_kernel_0_where_it_is_0_at_both_ends(rng):
    model, x, *_ = setting(rng, dim=2, more={"factor": bubble})
    plain, *_ = setting(rng, dim=2)
    y = torch.rand(25, 2, generator=rng, dtype=torch.float64)
    torch.testing.assert_close(model.read(x, y), plain.read(x, y) * bubble(x) * bubble(y))
    edge = torch.stack([torch.ones(25, dtype=torch.float64), y[:, 1]], 1)
    assert model.read(edge, x).abs().max() == 0 == model.read(x, edge).abs().max()


@pytest.mark.parametrize("more", [{}, {"symmetric": True}])
def test_several_right_hand_sides_are_columns(rng, more):
    model, x, weights, graph = setting(rng, 2, more=more)
    f, g = (torch.randn(25, 2, generator=rng, dtype=torch.float64) for _ in range(2))
    both = model(graph, x, torch.cat([f, g], 1), weights)
    torch.testing.assert_close(both, torch.cat([model(graph, x, f, weights), model(graph, x, g, weights)], 1))


def test_linear_in_f(rng):
    model, x, weights, graph = setting(rng)
    f, g = (torch.randn(25, 1, generator=rng, dtype=torch.float64) for _ in range(2))
    torch.testing.assert_close(
        model(graph, x, 2 * f - 3 * g, weights), 2 * model(graph, x, f, weights) - 3 * model(graph, x, g, weights)
    )
    both = model(graph, x, torch.cat([f, g], 1), weights)
    torch.testing.assert_close(both, torch.cat([model(graph, x, f, weights), model(graph, x, g, weights)], 1))


def test_queries(rng):
    model, x, weights, graph = setting(rng)
    f = torch.randn(25, 1, generator=rng, dtype=torch.float64)
    at = torch.cat([x[:3], torch.rand(4, 1, generator=rng, dtype=torch.float64)])
    found = model(radius_graph(x, at, 10.0), x, f, weights, at=at)
    torch.testing.assert_close(found[:3], model(graph, x, f, weights)[:3])


def test_it_can_learn_the_green_function_of_the_interval(rng):
    """A few steps on -u'' = f already turn the kernel towards min(x, y)(1 - max(x, y))."""
    torch.manual_seed(0)
    grid = Grid(33, dim=1)
    x, weights = grid.points, grid.weights
    G = green_interval(x[:, None, 0], x[None, :, 0])
    f = torch.randn(33, 64, generator=rng, dtype=torch.float64)
    u = G @ (weights[:, None] * f)
    model, graph = GreenNet(1, kernel=(64, 64)).double(), radius_graph(x, r=2.0)
    adam = torch.optim.Adam(model.parameters(), lr=3e-3)
    pairs = [p.reshape(-1, 1) for p in torch.meshgrid(x[:, 0], x[:, 0], indexing="ij")]

    def distance():
        return float((model.read(*pairs).reshape(33, 33) - G).detach().norm() / G.norm())

    before = distance()
    for _ in range(400):
        adam.zero_grad()
        # All f at once through the kernel that is read out; forward() is the same sum, tested above.
        kernel = model.read(*pairs).reshape(33, 33)
        loss = (kernel @ (weights[:, None] * f) - u).square().mean() / u.square().mean()
        loss.backward()
        adam.step()
    assert distance() < 0.1 < before
    one = model(graph, x, f[:, :1], weights)
    assert float((one - u[:, :1]).detach().norm() / u[:, :1].norm()) < 0.1


def test_what_does_not_match_is_refused(rng):
    model, x, weights, graph = setting(rng)
    f = torch.zeros(25, 1, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"f of shape \(24, 1\); needed \(25, 1\)"):
        model(graph, x, f[1:], weights)
    with pytest.raises(ValueError, match=r"weights \(24,\)"):
        model(graph, x, f, weights[1:])
    with pytest.raises(ValueError, match=r"points \(25, 2\)"):
        model(graph, x.expand(25, 2), f, weights)
    with pytest.raises(ValueError, match="needed at least 1 of each"):
        GreenNet(0)
