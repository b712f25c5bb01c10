"""Multigrid: levels, and promises of the model."""

from itertools import pairwise

import pytest
import torch

from gkn.data.generate import make_dataset
from gkn.data.problems import Darcy
from gkn.geometry.grid import Grid
from gkn.graph.graph import Graph
from gkn.graph.levels import levels_of
from gkn.graph.neighbors import radius_graph
from gkn.graph.rules import Radius
from gkn.models import Multigrid
from gkn.models import model_from as model_of
from gkn.operator.evaluate import relative_l2
from gkn.operator.saved import load
from gkn.train.fit import fit

R = 0.12


def small(**more):
    torch.manual_seed(0)
    sizes = {"width": 8, "cycles": 2, "levels": 3, "kernel": (8, 4), "radius": R}
    return Multigrid(2, 2, 1, **{**sizes, **more}).double().eval()


def points(rng, count=150):
    x = torch.rand(count, 2, generator=rng, dtype=torch.float64)
    a = torch.randn(count, 2, generator=rng, dtype=torch.float64)
    return x, a, torch.rand(count, generator=rng, dtype=torch.float64) + 0.5


def test_levels_have_fewer_points_the_same_measure_and_the_same_degrees(rng):
    x, _, w = points(rng, 20_000)
    r = 0.018
    levels = levels_of(radius_graph(x, r=r), x, w, r, 5)
    sizes = [len(level.nodes) for level in levels]
    assert all(b < a / 2 for a, b in pairwise(sizes))
    for level in levels[1:]:
        torch.testing.assert_close(level.weights.sum(), w.sum())
        assert level.within is not None
        assert 5 < level.within.num_edges / level.within.num_targets < 40
        assert (level.down.num_targets, level.up.num_sources) == (len(level.nodes), len(level.nodes))
        assert int(level.up.degrees.min()) > 0  # every point has one of the next level in its ball
        assert int(level.down.degrees.min()) > 0


@pytest.mark.parametrize("count", [4_000, 16_000])
def test_edges_grow_as_the_points(rng, count):
    x, _, w = points(rng, count)
    r = (20 / (3.14 * count)) ** 0.5
    levels = levels_of(radius_graph(x, r=r), x, w, r, 6)
    edges = sum(graph.num_edges for each in levels for graph in (each.within, each.down, each.up) if graph is not None)
    assert edges < 80 * count


def test_levels_do_not_depend_on_the_order_of_points(rng):
    x, _, w = points(rng)
    order = torch.randperm(len(x), generator=rng)
    one = levels_of(radius_graph(x, r=R), x, w, R, 3)
    other = levels_of(radius_graph(x[order], r=R), x[order], w[order], R, 3)
    for a, b in zip(one, other, strict=True):
        assert {*a.nodes.tolist()} == {*order[b.nodes].tolist()}


def test_on_a_grid_they_are_what_float32_says_they_are():
    x = Grid(33).points
    one, other = (levels_of(radius_graph(x, r=0.1), y, None, 0.1, 3) for y in (x, x))
    third = levels_of(radius_graph(x, r=0.1), x.float().double(), None, 0.1, 3)
    assert all(torch.equal(a.nodes, b.nodes) for a, b in zip(one, other, strict=True))
    assert all(torch.equal(a.nodes, b.nodes) for a, b in zip(one, third, strict=True))


def test_levels_are_those_of_the_points_and_weights_they_are_asked_of(rng):
    model, (x, a, w) = small(), points(rng)
    graph = radius_graph(x, r=R)
    model(graph, x, a, w)
    other = torch.rand(len(w), generator=rng, dtype=torch.float64) + 0.1
    torch.testing.assert_close(model(graph, x, a, other), model(radius_graph(x, r=R), x, a, other))
    torch.testing.assert_close(model(graph, 1 - x, a, w), model(radius_graph(x, r=R), 1 - x, a, w))


def test_a_turned_batch_has_the_levels_of_the_points_as_they_were(rng):
    x, _, w = points(rng)
    graph = radius_graph(x, r=R).with_points(x, w)
    one, other = (levels_of(graph, y, w, R, 3) for y in (1 - x, x))
    assert one is other
    fresh = levels_of(radius_graph(x, r=R), x, w, R, 3)
    assert all(torch.equal(a.nodes, b.nodes) for a, b in zip(one, fresh, strict=True))
    equal = levels_of(graph, x, None, R, 3)  # without weights, points count the same
    assert float(equal[1].weights.sum()) == len(x)
    assert float(one[1].weights.sum()) == pytest.approx(float(w.sum()))


def test_the_order_of_points_does_not_matter(rng):
    model, (x, a, w) = small(), points(rng)
    order = torch.randperm(len(x), generator=rng)
    found = model(radius_graph(x[order], r=R), x[order], a[order], w[order])
    torch.testing.assert_close(found, model(radius_graph(x, r=R), x, a, w)[order])


@pytest.mark.parametrize("sizes", [(150, 150), (150, 90, 120)])
def test_functions_side_by_side_do_not_see_each_other(rng, sizes):
    model = small()
    parts = [points(rng, size) for size in sizes]
    graph = Graph.batch([radius_graph(x, r=R) for x, _, _ in parts])
    together = model(graph, *(torch.cat([part[i] for part in parts]) for i in range(3)))
    alone = [model(radius_graph(x, r=R), x, a, w) for x, a, w in parts]
    torch.testing.assert_close(together, torch.cat(alone))


def test_one_v_cycle_reaches_every_point(rng):
    model, (x, a, w) = small(cycles=1, levels=4), points(rng)
    graph = radius_graph(x, r=R)
    before = model(graph, x, a, w)
    moved = a.clone()
    moved[7] += 1
    assert ((model(graph, x, moved, w) - before).abs()[:, 0] > 1e-12).float().mean() > 0.95


@pytest.mark.parametrize("levels", [1, 3])
def test_queries_receive_and_do_not_send(rng, levels):
    model, (x, a, w) = small(levels=levels), points(rng)
    graph = radius_graph(x, r=R)
    states = model.states(graph, x, a, w)
    at, of_at, _ = points(rng, 15)
    alone = model.at(states, radius_graph(x, at[:1], r=R), (at[:1], of_at[:1]), (x, a), w)
    among = model.at(states, radius_graph(x, at, r=R), (at, of_at), (x, a), w)
    torch.testing.assert_close(among[:1], alone)
    torch.testing.assert_close(model.at(states, graph, (x, a), (x, a), w), model.finish(states))


def test_made_again_from_its_description():
    model = small(features=(0, 1))
    other = model_of(model.config()).double()
    other.load_state_dict(model.state_dict())
    assert other.config() == model.config()


def test_wrong_sizes_are_refused(rng):
    for wrong, said in (({"cycles": 0}, "cycles=0"), ({"radius": 0.0}, "a length"), ({"features": (5,)}, "0 to 1")):
        with pytest.raises(ValueError, match=said):
            small(**wrong)
    model, (x, a, w) = small(), points(rng)
    with pytest.raises(ValueError, match=r"needed \(K, 2\) and \(K, 2\)"):
        model(radius_graph(x, r=R), x, a[:, :1], w)
    with pytest.raises(TypeError, match="needed"):
        Multigrid.from_config({"kind": "Multigrid"})
    known = small().config()
    assert Multigrid.from_config(known).config() == known
    with pytest.raises(TypeError, match="a Multigrid of form 1, made by another version of gkn; this one computes form 2"):
        Multigrid.from_config({name: value for name, value in known.items() if name != "form"})


def test_it_is_trained_saved_and_asked_like_any_other(tmp_path):
    train, test = make_dataset(Darcy(size=17), 24).smoothed(0.1).split(16, 8)
    torch.manual_seed(0)
    model = Multigrid(2, len(train.inputs), 1, 16, cycles=2, levels=3, kernel=(16, 8), radius=0.13)
    operator = fit(train, model, Radius(0.13), "nearfar", epochs=12, weighted=True, out=tmp_path / "run")
    assert relative_l2(operator, test).mean < 0.4
    again = load(tmp_path / "run")
    sample = again.ready(test)[0]
    torch.testing.assert_close(again(sample), operator(sample))
    torch.testing.assert_close(again(sample, at=sample.x[3:9]), again(sample)[3:9], rtol=1e-4, atol=1e-5)
    assert relative_l2(again, make_dataset(Darcy(size=33), 4, seed=5)).mean < 0.6


def test_another_radius_than_its_own_is_refused():
    data = make_dataset(Darcy(size=11), 4)
    with pytest.raises(ValueError, match=r"have radius 0\.12"):
        fit(data, Multigrid(2, 1, 1, 8, cycles=1, levels=2, radius=R), Radius(0.2), epochs=1)
    operator = fit(data, Multigrid(2, 1, 1, 8, cycles=1, levels=2, radius=R), Radius(R), epochs=1)
    with pytest.raises(ValueError, match=r"have radius 0\.12, not 0\.3"):
        operator(data[0], r=0.3)
