import itertools

import pytest
import torch

from gkn.graph.graph import Graph, offsets


def random_graph(rng, targets=7, sources=5, edges=20):
    src = torch.randint(0, sources, (edges,), generator=rng)
    to = torch.randint(0, targets, (edges,), generator=rng)
    return Graph.of_edges(src, to, sources, targets)


def pairs(graph):
    return sorted(zip(graph.targets.tolist(), graph.src.tolist(), strict=True))


def test_neighbours_are_those_of_the_edges(rng):
    src, to = torch.tensor([3, 1, 1, 0, 2]), torch.tensor([1, 0, 1, 1, 3])
    graph = Graph.of_edges(src, to, 4, 5)
    assert [graph.src[graph.ptr[i] : graph.ptr[i + 1]].tolist() for i in range(5)] == [[1], [3, 1, 0], [], [2], []]
    assert graph.degrees.tolist() == [1, 3, 0, 1, 0]
    assert graph.max_degree == 3
    assert (graph.num_targets, graph.num_sources, graph.num_edges) == (5, 4, 5)
    assert repr(graph) == "Graph(5 targets <- 4 sources, 5 edges)"


def test_transposed_twice_is_the_same(rng):
    graph = random_graph(rng)
    back, order = graph.transpose()
    assert (back.num_targets, back.num_sources) == (graph.num_sources, graph.num_targets)
    assert sorted((s, t) for t, s in pairs(back)) == pairs(graph)
    assert torch.equal(graph.src[order], back.targets)
    assert torch.equal(graph.targets[order], back.src)
    assert pairs(back.transpose()[0]) == pairs(graph)


def test_a_batch_has_no_edge_between_its_graphs(rng):
    graphs = [random_graph(rng, 3, 2, 9), random_graph(rng, 1, 4, 0), random_graph(rng, 2, 3, 5)]
    batch = Graph.batch(graphs)
    expected = []
    for graph, t, s in zip(graphs, (0, 3, 4), (0, 2, 6), strict=True):
        expected += [(i + t, j + s) for i, j in pairs(graph)]
    assert pairs(batch) == sorted(expected)
    assert (batch.num_targets, batch.num_sources) == (6, 9)
    Graph(batch.ptr, batch.src, batch.num_sources)  # valid


def test_parts_make_up_the_whole(rng):
    graph = random_graph(rng, 50, 20, 300)
    ranges = [*graph.blocks(edges=25, targets=9)]
    assert ranges[0][0] == 0
    assert ranges[-1][1] == 50
    assert all(a[1] == b[0] for a, b in itertools.pairwise(ranges))
    whole = []
    for start, stop in ranges:
        part = graph.part(start, stop)
        assert part.num_edges <= 25 or stop == start + 1
        assert stop - start <= 9
        assert part.max_degree == int(part.degrees.max())
        whole += [(i + start, j) for i, j in pairs(part)]
        small, left = part.compact
        assert torch.equal(left[small.src.long()].int(), part.src)
        assert small.num_sources == len(set(part.src.tolist()))
    assert sorted(whole) == pairs(graph)


def test_a_target_with_more_edges_than_a_block_is_a_block():
    graph = Graph(torch.tensor([0, 100, 101]), torch.zeros(101, dtype=torch.long), 1)
    assert [*graph.blocks(edges=10, targets=10)] == [(0, 1), (1, 2)]


def test_sorted_by_degree(rng):
    graph = random_graph(rng, 40, 20, 300)
    (tidy, order), edge = graph.by_degree, graph.edges_by_degree
    assert tidy.is_sorted
    assert not graph.is_sorted
    assert torch.equal(tidy.degrees, graph.degrees[order])
    assert torch.equal(tidy.src, graph.src[edge])
    assert torch.equal(order[tidy.targets.long()].int(), graph.targets[edge])


def test_empty():
    graph = Graph(torch.tensor([0]), torch.zeros(0, dtype=torch.long), 0)
    assert (graph.num_targets, graph.max_degree, graph.is_sorted) == (0, 0, True)
    assert [*graph.blocks(5, 5)] == []
    none = Graph(torch.tensor([0, 0, 0]), torch.zeros(0, dtype=torch.int32), 4)
    assert none.transpose()[0].degrees.tolist() == [0, 0, 0, 0]
    assert offsets(torch.tensor([2, 0, 3])).tolist() == [0, 2, 2, 5]


@pytest.mark.parametrize(
    ("ptr", "src", "sources", "message"),
    [
        ([1, 2], [0], 1, "rise from 0 to the number of edges, 1"),
        ([0, 2], [0], 1, "rise from 0 to the number of edges, 1"),
        ([0, 2, 1, 2], [0, 0], 1, "without ever falling"),
        ([], [], 1, "rise from 0"),
        ([0, 1], [3], 3, "names sources 3 to 3, there are only 0 to 2"),
        ([0, 1], [-1], 3, "names sources -1 to -1"),
        ([0], [], -1, "-1 sources"),
        ([0], [], 2**31, "2147483648 sources"),
    ],
)
def test_bad_arrays_are_refused(ptr, src, sources, message):
    with pytest.raises(ValueError, match=message):
        Graph(torch.tensor(ptr, dtype=torch.long), torch.tensor(src, dtype=torch.long), sources)


def test_wrong_types_are_refused():
    with pytest.raises(ValueError, match=r"src is torch.float32 of shape \(1,\); needed a vector of int32 or int64"):
        Graph(torch.tensor([0, 1]), torch.tensor([0.0]), 1)
    with pytest.raises(ValueError, match=r"ptr is torch.int64 of shape \(1, 2\)"):
        Graph(torch.tensor([[0, 1]]), torch.tensor([0]), 1)
    with pytest.raises(ValueError, match="no graphs"):
        Graph.batch([])
    with pytest.raises(ValueError, match="targets 0 to 5, there are only 0 to 4"):
        Graph.of_edges(torch.tensor([0, 0]), torch.tensor([0, 5]), 1, 5)
    with pytest.raises(ValueError, match="needed pairs"):
        Graph.of_edges(torch.tensor([0, 0]), torch.tensor([0]), 1, 5)
