from fractions import Fraction
from itertools import product

import pytest
import torch

from gkn.geometry.grid import Grid
from gkn.graph import neighbors
from gkn.graph.neighbors import lumped, nearest, radius_graph

BACKENDS = ("brute", "tree", "cells")
SIZES = (16, 31, 61, 85, 121, 141, 211, 241, 421)
RADII = ("0.05", "0.10", "0.15", "0.25", "0.40", "1.0")


def sets(graph):
    return [set(part.tolist()) for part in graph.src.split(graph.degrees.tolist())]


def same(a, b):
    return torch.equal(a.ptr, b.ptr) and torch.equal(a.src, b.src)


def exact_on_grid(size, r, node):
    """The neighbours of a node of a grid, in rational arithmetic."""
    limit = (Fraction(r) * (size - 1)) ** 2
    i, j = divmod(node, size)
    reach = int(limit**0.5) + 1
    rows, columns = (range(max(0, c - reach), min(size, c + reach + 1)) for c in (i, j))
    return {a * size + b for a, b in product(rows, columns) if (a - i) ** 2 + (b - j) ** 2 <= limit}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("size", SIZES)
def test_exact_on_the_papers_grids(size, backend):
    x = Grid(size).points
    nodes = torch.tensor([0, size // 3, len(x) // 2 + 5, len(x) - size])
    for r in RADII:
        if backend == "brute" and size > 141:
            continue
        found = sets(radius_graph(x, x[nodes], float(r), backend=backend))
        assert found == [exact_on_grid(size, r, int(node)) for node in nodes], r


@pytest.mark.parametrize(("size", "edges"), [(16, 2116), (31, 25673), (61, 386221)])
def test_edge_counts_at_a_tenth(size, edges):
    graphs = [radius_graph(Grid(size).points, r=0.10, backend=backend) for backend in BACKENDS]
    assert [graph.num_edges for graph in graphs] == [edges] * 3
    assert same(graphs[0], graphs[1])
    assert same(graphs[0], graphs[2])
    back, _ = graphs[0].transpose()
    assert same(back, graphs[0]), "symmetric"
    assert all(i in near for i, near in enumerate(sets(graphs[0]))), "every node is its own neighbour"


def exact_on_cloud(x, y, r):
    """|x - y|^2 <= r^2 for the numbers that are there, in rational arithmetic."""
    X, Y = ([[Fraction(c) for c in point] for point in points.tolist()] for points in (x, y))
    limit = Fraction(r) ** 2
    return [{j for j, q in enumerate(Y) if sum((a - b) ** 2 for a, b in zip(p, q, strict=True)) <= limit} for p in X]


@pytest.mark.parametrize("seed", range(200))
def test_exact_on_random_clouds(seed):
    rng = torch.Generator().manual_seed(seed)
    d, n, m = 1 + seed % 3, 5 + seed % 40, 1 + seed % 17
    r = (0.05, 0.2, 0.5, 3.0)[seed % 4]
    y, x = (torch.rand(size, d, dtype=torch.float64, generator=rng) for size in (n, m))
    x = 1.5 * x - 0.25  # some targets lie outside
    expected = exact_on_cloud(x, y, r)
    graph = radius_graph(y, x, r)
    assert sets(graph) == expected
    assert all(same(radius_graph(y, x, r, backend=backend), graph) for backend in BACKENDS)
    for other in (torch.float32, torch.float64):  # in float32 the points move by 1e-8; no distance here is that near to r
        assert sets(radius_graph(y.to(other), x, r)) == expected
    shifted = [radius_graph(y + 1000, x + 1000, r, backend=backend) for backend in BACKENDS]
    assert all(same(found, graph) for found in shifted)
    order = torch.randperm(n, generator=rng)
    place = torch.argsort(order)
    assert sets(radius_graph(y[order], x, r)) == [{int(place[j]) for j in near} for near in expected]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("backend", BACKENDS)
def test_ties_survive_any_type_and_a_shift(dtype, backend):
    x = Grid(31).points
    exact = radius_graph(x, r=0.1)
    assert same(radius_graph(x.to(dtype), r=0.1, backend=backend), exact)
    assert same(radius_graph((x + 1000).to(dtype), r=0.1, backend=backend), exact)


def test_no_cap_and_a_radius_beyond_the_domain(rng):
    x = torch.rand(700, 2, generator=rng, dtype=torch.float64)
    for backend in BACKENDS:
        graph = radius_graph(x, r=100.0, backend=backend)
        assert graph.degrees.tolist() == [700] * 700
        assert torch.equal(graph.src[:700], torch.arange(700, dtype=torch.int32))


@pytest.mark.parametrize("backend", BACKENDS)
def test_blocks_do_not_show(monkeypatch, rng, backend):
    x = torch.rand(300, 2, generator=rng, dtype=torch.float64)
    whole = radius_graph(x, r=0.2, backend="brute")
    monkeypatch.setattr(neighbors, "CANDIDATES", {"cpu": 50})
    monkeypatch.setattr(neighbors, "MANY", 10)  # go through the estimate, too
    assert same(radius_graph(x, r=0.2, backend=backend), whole)


def test_the_estimate_may_be_wrong(monkeypatch, rng):
    """Half of the points in one place, where the few targets that are looked at do not lie."""
    x = torch.cat([torch.rand(200, 2, generator=rng, dtype=torch.float64), torch.full((200, 2), 0.5, dtype=torch.float64)])
    whole = radius_graph(x, r=0.01, backend="brute")
    monkeypatch.setattr(neighbors, "MANY", 10)
    monkeypatch.setattr(neighbors, "CANDIDATES", {"cpu": 1000})
    monkeypatch.setattr(neighbors, "_estimate", lambda *_: 3.0)
    assert same(radius_graph(x, r=0.01, backend="cells"), whole)


@pytest.mark.parametrize("backend", BACKENDS)
def test_few_or_no_points(backend):
    one, none = torch.zeros(1, 2, dtype=torch.float64), torch.zeros(0, 2, dtype=torch.float64)
    assert radius_graph(one, r=0.1, backend=backend).src.tolist() == [0]
    assert radius_graph(none, one, 0.1, backend=backend).degrees.tolist() == [0]
    assert radius_graph(one, none, 0.1, backend=backend).num_targets == 0
    assert radius_graph(none, r=0.1, backend=backend).num_targets == 0
    twice = torch.zeros(3, 2, dtype=torch.float64)
    assert radius_graph(twice, r=1e-100, backend=backend).src.tolist() == [0, 1, 2] * 3
    far = torch.tensor([[1e140, 1e140]], dtype=torch.float64)
    assert radius_graph(one, far, 0.1, backend=backend).num_edges == 0


def test_four_dimensions(rng):
    x = torch.rand(800, 4, generator=rng, dtype=torch.float64)
    assert same(radius_graph(x, r=0.3), radius_graph(x, r=0.3, backend="brute"))


@pytest.mark.parametrize("r", [0, -1, float("nan"), float("inf")])
def test_a_bad_radius_is_refused(r):
    with pytest.raises(ValueError, match=r"radius_graph\(\(3, 2\), \(3, 2\), r=.*\): the radius must be a finite number > 0"):
        radius_graph(torch.zeros(3, 2), r=r)


def test_bad_points_are_refused():
    x = torch.zeros(3, 2)
    with pytest.raises(ValueError, match=r"sources must be finite, but 1 of 6 are not; the first is nan at \(1, 0\)"):
        radius_graph(torch.tensor([[0, 0], [float("nan"), 0], [0, 0]]), r=1.0)
    with pytest.raises(ValueError, match="same dimension"):
        radius_graph(x, torch.zeros(3, 3), 1.0)
    with pytest.raises(ValueError, match="floating-point"):
        radius_graph(x.long(), r=1.0)
    with pytest.raises(ValueError, match="floating-point"):
        radius_graph(x[0], r=1.0)
    with pytest.raises(ValueError, match="use one of brute, tree, cells"):
        radius_graph(x, r=1.0, backend="knn")
    with pytest.raises(ValueError, match="sources are on meta, targets on cpu"):
        neighbors.check_same_device(x.to("meta"), x, "radius_graph")


def test_what_cannot_fit_is_refused_with_the_number(monkeypatch, rng):
    """10^10 edges would be found on any machine; here only a small one is simulated, before anything is allocated."""
    x = torch.rand(20000, 2, generator=rng, dtype=torch.float64)
    monkeypatch.setattr("gkn.system.memory.available_memory", lambda device="cpu": 2**20)
    with pytest.raises(MemoryError, match=r"about 4.00e\+08 edges: needs 1.56 GiB, but 0.000977 GiB are free on cpu"):
        radius_graph(x, r=2.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_far_point_is_nobodys_business(rng, backend, dtype):
    """The rounding of a pair depends on that pair alone, not on other points."""
    x = torch.rand(200, 2, generator=rng, dtype=torch.float64).to(dtype)
    alone = radius_graph(x, r=0.1, backend=backend)
    far = torch.tensor([[1e14, 0.0]], dtype=dtype)
    assert torch.equal(radius_graph(x, torch.cat([x, far]), 0.1, backend=backend).src, alone.src)
    assert torch.equal(radius_graph(torch.cat([x, far]), x, 0.1, backend=backend).src, alone.src)


@pytest.mark.parametrize("scale", [1e-100, 1e-9, 1e9, 1e100])
def test_any_unit_of_length(rng, scale):
    x = torch.rand(60, 2, generator=rng, dtype=torch.float64)
    expected = radius_graph(x, r=0.2)
    for backend in BACKENDS:
        assert same(radius_graph(scale * x, r=0.2 * scale, backend=backend), expected)
    with pytest.raises(ValueError, match="coordinates beyond"):
        radius_graph(1e200 * x, r=0.2)


def test_an_estimate_that_is_fooled_refuses_nothing(monkeypatch, rng):
    """Targets on a regular stride see everything, the others nothing."""
    sources, targets = torch.zeros(3000, 2, dtype=torch.float64), 50 + torch.rand(64000, 2, generator=rng, dtype=torch.float64)
    targets[::1000] = 0
    monkeypatch.setattr("gkn.system.memory.available_memory", lambda device="cpu": 2**26)
    assert radius_graph(sources, targets, 0.1).num_edges == 64 * 3000


def test_boxes_are_for_three_dimensions(rng):
    with pytest.raises(ValueError, match="points of dimension 12; boxes are for 1, 2 and 3"):
        radius_graph(torch.rand(10, 12), r=0.1, backend="cells")


def test_numbers_of_any_kind_are_radii():
    import numpy as np

    x = torch.rand(5, 2)
    for r in (1, np.float32(1), torch.tensor(1.0)):
        assert radius_graph(x / 2, r=r).num_edges == 25


def test_the_nearest_of_some_points(rng):
    for dim in (1, 2, 3):
        y, x = (torch.rand(many, dim, generator=rng, dtype=torch.float64) * 10 + 5 for many in (17, 60))
        assert torch.equal(nearest(y, x), torch.cdist(x, y).argmin(1))
    for one, other in ((y[:0], x), (y[:, :2], x), (y, x[0])):
        with pytest.raises(ValueError, match="nearest"):
            nearest(one, other)


def test_weights_of_drawn_nodes_are_those_of_all_points_near_them(rng):
    grid = Grid(6)
    nodes = torch.stack([torch.arange(36), torch.randperm(36, generator=rng)])
    torch.testing.assert_close(lumped(grid.points, grid.weights, nodes), grid.weights[nodes])  # all of them keep their own
    few = torch.tensor([[0, 35], [7, 28]])
    found = lumped(grid.points, grid.weights, few)
    torch.testing.assert_close(found.sum(1), torch.ones(2, dtype=torch.float64))
    assert float(found.min()) > 0.4
    assert lumped(grid.points, grid.weights, few[:0]).shape == (0, 2)


def test_a_sum_over_drawn_nodes_is_an_integral(rng):
    """With equal weights it is off by a tenth, as nodes that are drawn lie."""
    grid = Grid(31)
    nodes = torch.stack([torch.randperm(len(grid), generator=rng)[:120] for _ in range(20)])
    values = (grid.points[:, 0] * 7).sin() * grid.points[:, 1] + 1
    exact, found = float(grid.weights @ values), (lumped(grid.points, grid.weights, nodes) * values[nodes]).sum(1)
    off, usual = (float((each / exact - 1).square().mean().sqrt()) for each in (found, values[nodes].mean(1)))
    assert off < usual / 3
