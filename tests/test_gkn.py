import inspect
import itertools
import math

import pytest
import torch

from gkn.geometry.grid import Grid
from gkn.graph.graph import Graph
from gkn.graph.neighbors import radius_graph
from gkn.models import GKN


def setting(rng, nodes=30, dim=2, fields=2, **options):
    torch.manual_seed(0)
    model = GKN(dim, fields, 1, width=6, kernel=(8, 12), steps=3, **options).double()
    x = torch.rand(nodes, dim, generator=rng, dtype=torch.float64)
    a = torch.randn(nodes, fields, generator=rng, dtype=torch.float64)
    return model, x, a, radius_graph(x, r=0.35)


def test_it_is_the_paper_edge_by_edge(rng):
    model, x, a, graph = setting(rng, nodes=12)
    v = model.P(torch.cat([x, a], 1))
    for _ in range(3):
        new = torch.zeros_like(v)
        for i in range(12):
            near = graph.src[graph.ptr[i] : graph.ptr[i + 1]].tolist()
            total = torch.zeros(6, dtype=torch.float64)
            for j in near:
                edge = torch.cat([x[i], a[i, :1], x[j], a[j, :1]])
                h = torch.relu(model.kappa.hidden[0](torch.relu(model.kappa.first(edge))))
                total += v[j] @ (torch.einsum("k,kji->ji", h, model.kappa.W) + model.kappa.B)
            new[i] = torch.relu(model.W(v[i]) + total / len(near))
        v = new
    torch.testing.assert_close(model(graph, x, a), model.Q(v), rtol=1e-12, atol=1e-12)
    with torch.no_grad():  # step by step, as in prediction, and not all steps in one function
        torch.testing.assert_close(model(graph, x, a), model.Q(v), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dim", [1, 2, 3])
@pytest.mark.parametrize(("fields", "features"), [(1, (0,)), (4, (0, 2)), (2, ()), (0, ())])
def test_any_dimension_and_any_fields(rng, dim, fields, features):
    model = GKN(dim, fields, 3, width=4, kernel=(5,), steps=2, features=features).double()
    x = torch.rand(20, dim, generator=rng, dtype=torch.float64)
    out = model(radius_graph(x, r=0.3), x, torch.randn(20, fields, generator=rng, dtype=torch.float64))
    assert out.shape == (20, 3)
    assert torch.isfinite(out).all()


def test_only_the_chosen_fields_enter_kappa(rng):
    model, x, a, graph = setting(rng, features=(1,))
    with torch.no_grad():
        model.P.weight[:, 2:] = 0  # the lift sees the points alone
    other = a.clone()
    other[:, 0] += 1
    assert torch.equal(model(graph, x, other), model(graph, x, a))
    other[:, 1] += 1
    assert not torch.allclose(model(graph, x, other), model(graph, x, a))


def test_activation_after_the_last_step_is_a_choice(rng):
    model, x, a, graph = setting(rng)
    assert (model.states(graph, x, a)[-1] >= 0).all()
    model.last_sigma = False
    assert (model.states(graph, x, a)[-1] < 0).any()
    model.sigma = torch.tanh
    assert model.states(graph, x, a)[1].abs().max() < 1


def test_nodes_may_come_in_any_order(rng):
    model, x, a, graph = setting(rng)
    order = torch.randperm(30, generator=rng)
    out = model(radius_graph(x[order], r=0.35), x[order], a[order])
    torch.testing.assert_close(out, model(graph, x, a)[order], rtol=1e-12, atol=1e-12)


def test_a_batch_is_a_loop_and_nan_stays_where_it_is(rng):
    parts = [setting(rng, nodes=n)[1:] for n in (10, 25, 3)]
    model = setting(rng)[0]
    graph = Graph.batch([g for _, _, g in parts])
    x, a = torch.cat([x for x, _, _ in parts]), torch.cat([a for _, a, _ in parts])
    alone = [model(g, x, a) for x, a, g in parts]
    together = model(graph, x, a)
    torch.testing.assert_close(together, torch.cat(alone), rtol=1e-12, atol=1e-12)
    a[12] = float("nan")
    found = model(graph, x, a)
    assert torch.isnan(found[10:35]).any()
    torch.testing.assert_close(found[:10], alone[0], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(found[35:], alone[2], rtol=1e-12, atol=1e-12)


def test_every_point_doubled_changes_nothing(rng):
    """A mean is a mean: neither the number of points nor where it is even matters, only where they lie."""
    model, x, a, graph = setting(rng)
    twice = model(radius_graph(torch.cat([x, x]), r=0.35), torch.cat([x, x]), torch.cat([a, a]))
    torch.testing.assert_close(twice[:30], model(graph, x, a), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(twice[30:], twice[:30], rtol=1e-12, atol=1e-12)


def test_quadrature_weights_undo_uneven_points(rng):
    """Points that are there three times with a third of the weight are points."""
    model, x, a, graph = setting(rng)
    weights = torch.rand(30, generator=rng, dtype=torch.float64)
    again = torch.cat([torch.arange(30), torch.tensor([4, 4, 9])])
    share = weights[again] / torch.bincount(again)[again]
    found = model(radius_graph(x[again], r=0.35), x[again], a[again], share)
    torch.testing.assert_close(found[:30], model(graph, x, a, weights), rtol=1e-12, atol=1e-12)
    assert not torch.allclose(model(graph, x, a, weights), model(graph, x, a))


def smooth_fields(x):
    return torch.stack([torch.sin(3 * x[:, 0]) * torch.cos(2 * x[:, 1]), x[:, 0] * x[:, 1]], 1)


def test_finer_grids_give_the_same_function(rng):
    """The integral is one of a function: outputs on s and 2s - 1 approach each other on the nodes they share."""
    torch.manual_seed(0)
    model = GKN(2, 2, 1, width=6, kernel=(8, 12), steps=2).double()
    outs = []
    for size in (9, 17, 33, 65):
        grid = Grid(size)
        out = model(radius_graph(grid.points, r=0.3), grid.points, smooth_fields(grid.points), grid.weights)
        outs.append(out.detach()[grid.stride((size - 1) // 8)])
    steps = [float((b - a).norm() / outs[-1].norm()) for a, b in itertools.pairwise(outs)]
    assert steps[1] < 0.7 * steps[0]
    assert steps[2] < 0.7 * steps[1]
    assert steps[2] < 0.01


def test_random_nodes_converge_as_monte_carlo_does():
    """The error of sub-graphs of m nodes falls as m^-1/2."""
    torch.manual_seed(0)
    model = GKN(2, 2, 1, width=6, kernel=(8, 12), steps=1).double()
    grid = Grid(61)
    at = torch.tensor([[0.5, 0.5], [0.3, 0.6], [0.25, 0.25]], dtype=torch.float64)

    def values(x):
        nodes = (x, smooth_fields(x))
        states = model.states(radius_graph(x, r=0.3), *nodes)
        return model.at(states, radius_graph(x, at, 0.3), (at, smooth_fields(at)), nodes).detach()

    truth = values(grid.points)
    rng = torch.Generator().manual_seed(0)
    sizes, errors = (50, 100, 200, 400), []
    for m in sizes:
        found = torch.stack([values(torch.rand(m, 2, generator=rng, dtype=torch.float64)) for _ in range(60)])
        errors.append(float((found - truth).square().mean().sqrt()))
    slope = (math.log(errors[-1]) - math.log(errors[0])) / (math.log(sizes[-1]) - math.log(sizes[0]))
    assert -0.6 < slope < -0.4, slope


def test_isolated_nodes_and_single_nodes(rng):
    model, x, a, _ = setting(rng)
    none = Graph(torch.zeros(31, dtype=torch.long), torch.zeros(0, dtype=torch.long), 30)
    v = model.lift(x, a)
    for _ in range(3):
        v = torch.relu(model.W(v))
    torch.testing.assert_close(model(none, x, a), model.project(v))
    assert torch.isfinite(model(radius_graph(x[:1], r=0.1), x[:1], a[:1])).all()


def test_gradients_reach_everything(rng):
    model, x, a, graph = setting(rng)
    x, a = x.requires_grad_(), a.requires_grad_()
    loss = model(graph, x, a).square().sum()
    grads = torch.autograd.grad(loss, [x, a, *model.parameters()])
    assert all(torch.isfinite(g).all() and g.abs().max() > 0 for g in grads)


def test_compiled_is_the_same(rng):
    model, x, a, graph = setting(rng)
    torch.testing.assert_close(torch.compile(model, backend="aot_eager")(graph, x, a), model(graph, x, a))


def test_autocast(rng):
    model, x, a, graph = setting(rng)
    model = model.float()
    with torch.autocast("cpu", torch.bfloat16):
        out = model(graph, x, a)
    assert out.dtype == torch.bfloat16
    assert float((out.float() - model(graph, x, a)).detach().norm() / out.float().detach().norm()) < 0.05


def test_what_does_not_match_is_refused(rng):
    model, x, a, graph = setting(rng)
    with pytest.raises(ValueError, match=r"points \(30, 2\) and fields \(30, 1\); needed \(K, 2\) and \(K, 2\)"):
        model(graph, x, a[:, :1])
    with pytest.raises(ValueError, match="for 29 points; needed a source for each"):
        model(graph, x[1:], a[1:])
    with pytest.raises(ValueError, match="the fields are on meta, the network on cpu"):
        model(graph, x, a.to("meta"))
    with pytest.raises(ValueError, match="needed as many targets as sources"):
        model(radius_graph(x, x[:3], 0.3), x, a)
    with pytest.raises(ValueError, match="for 3 queries; needed a target for each"):
        model.at(model.states(graph, x, a), graph, (x[:3], a[:3]), (x, a))
    with pytest.raises(ValueError, match=r"GKN\(width=0\): needed a whole number, at least 1"):
        GKN(2, width=0)
    unchecked = inspect.unwrap(GKN.__init__)  # as it is where types are not checked
    with pytest.raises(ValueError, match=r"GKN\(steps=2.5\): needed a whole number"):
        unchecked(object.__new__(GKN), 2, steps=2.5)
    with pytest.raises(ValueError, match=r"features=0\): needed a sequence of numbers of input fields, e.g. \(0,\)"):
        unchecked(object.__new__(GKN), 2, features=0)
    with pytest.raises(ValueError, match=r"features=\(1,\)\): needed different numbers of input fields, 0 to 0"):
        GKN(2, features=(1,))
    with pytest.raises(ValueError, match="in_channels=-1"):
        GKN(2, in_channels=-1)
