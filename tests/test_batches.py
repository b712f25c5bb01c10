import pytest
import torch

from gkn import Cloud, DarcyMesh, Dataset, Graph, Grid, Normalizer, Nystrom, Radius, make_dataset, radius_graph
from gkn.data.sample import BadNumbers
from gkn.graph.batches import Batches
from gkn.graph.neighbors import lumped
from gkn.models import MODELS
from gkn.train.losses import loss_terms
from gkn.train.prefetch import Prefetcher
from gkn.train.recipe import Recipe


def functions(n=5, size=9):
    rng = torch.Generator().manual_seed(0)
    grid = Grid(size)
    a, b, u = (torch.rand(n, len(grid), generator=rng, dtype=torch.float64) + i for i in range(3))
    return Dataset(grid, a=a, b=b, u=u)


def normalizers(dataset, pointwise=False):
    return Normalizer.fit(dataset, dataset.inputs), Normalizer.fit(dataset, dataset.outputs, pointwise)


def made(dataset, rule, pointwise=False, **options):
    return Batches(dataset, rule, *normalizers(dataset, pointwise), dtype=torch.float64, **options)


@pytest.mark.parametrize("pointwise", [False, True])
@pytest.mark.parametrize("rule", [Radius(0.3), Nystrom(0.3, 20, 2)])
def test_a_batch_is_its_graphs_side_by_side(rule, pointwise):
    """Values, points, normalisation and edges of each graph are those of its sample, by the book."""
    dataset = functions()
    inputs, outputs = normalizers(dataset, pointwise)
    batches = made(dataset, rule, pointwise, weighted=True)
    batches.draw(3, 4)
    l = getattr(rule, "l", 1)
    assert len(batches) == 5 * l
    graphs = [3, 0, 4]
    batch = batches.batch(graphs)
    assert batch.samples == tuple(g // l for g in graphs)
    edges, start = [], 0
    for g in graphs:
        sample = dataset[g // l]
        nodes = torch.arange(81) if l == 1 else rule.draws(81, [g // l], seed=3, epoch=4)[0, g % l]
        part = slice(start, start + len(nodes))
        assert torch.equal(batch.x[part], sample.x[nodes])
        assert torch.allclose(batch.a[part], inputs.encode(sample.a)[nodes], atol=1e-15)
        wanted = sample.weights if l == 1 else lumped(sample.x, sample.weights, nodes)
        assert torch.equal(batch.weights[part], wanted)
        std, mean, profile = (x[part] if len(x) > 1 else x for x in (batch.std, batch.counted, batch.profile))
        assert torch.allclose(batch.deviation[part] / std, outputs.encode(sample.u, sample.x)[nodes], atol=1e-13)
        assert torch.allclose((batch.deviation[part] + mean) * outputs.unit, sample.u[nodes], atol=1e-13)
        assert torch.allclose((profile - mean).std(0, correction=0), torch.zeros(1, dtype=torch.float64), atol=1e-13)
        edges.append(radius_graph(sample.x[nodes], r=0.3))
        start += len(nodes)
    wanted = Graph.batch(edges)
    assert torch.equal(batch.graph.ptr, wanted.ptr)
    assert torch.equal(batch.graph.src, wanted.src)
    assert batch.graph.cuts == wanted.cuts


@pytest.mark.parametrize("rule", [Radius(0.4), Nystrom(0.4, 12, 2)])
def test_samples_with_points_of_their_own(rule):
    meshes = make_dataset(DarcyMesh(size=6, modes=4, vary=True), 3, 0)
    batches = made(meshes, rule, weighted=True)
    batches.draw(0, 1)
    l = getattr(rule, "l", 1)
    batch = batches.batch([2 * l, 0])
    sizes = [len(meshes[2].domain), len(meshes[0].domain)] if l == 1 else [12, 12]
    assert batch.sizes == (*sizes,)
    assert batch.graph.num_targets == sum(sizes)
    nodes = torch.arange(sizes[0]) if l == 1 else rule.draws(len(meshes[2].domain), [2], epoch=1)[0, 0]
    assert torch.equal(batch.x[: sizes[0]], meshes[2].x[nodes])
    wanted = meshes[2].weights if l == 1 else lumped(meshes[2].x, meshes[2].weights, nodes)
    assert torch.equal(batch.weights[: sizes[0]], wanted)
    again = batches.batch([2 * l, 0])
    assert all(torch.equal(getattr(again, name), getattr(batch, name)) for name in ("x", "a", "deviation"))
    values = torch.arange(float(sum(sizes)))[:, None]
    assert torch.allclose(batch.sums(values), torch.stack([part.sum() for part in values.split(sizes)]))
    assert torch.allclose(batch.norms(values), torch.stack([part.norm() for part in values.split(sizes)]))


@pytest.mark.parametrize("rule", [Radius(0.3), Nystrom(0.3, 20, 2)])
def test_what_does_not_fit_is_read_when_needed(rule, monkeypatch):
    dataset = functions()
    whole = made(dataset, rule)
    monkeypatch.setattr("gkn.graph.batches.available_memory", lambda device: 100)
    little = made(dataset, rule)
    assert little._together is None
    for batches in (whole, little):
        batches.draw(1, 2)
    one, other = (batches.batch([4, 1]) for batches in (whole, little))
    for name in ("x", "a", "deviation"):
        assert torch.equal(getattr(one, name), getattr(other, name))
    assert torch.equal(one.graph.src, other.graph.src)
    assert not little._apart


def test_epochs_differ_and_come_back():
    batches = made(functions(), Nystrom(0.3, 20))
    seen = []
    for epoch in (0, 1, 0):
        batches.draw(0, epoch)
        seen.append(batches.batch([0, 1]).x)
    assert torch.equal(seen[0], seen[2])
    assert not torch.equal(seen[0], seen[1])


def test_equal_sizes_are_summed_as_one_array():
    batch = made(functions(), Radius(0.3)).batch([0, 1])
    values = torch.rand(162, 2, dtype=torch.float64)
    assert torch.allclose(batch.sums(values), torch.stack([part.sum() for part in values.split(81)]))
    assert torch.allclose(batch.norms(values), torch.stack([part.norm() for part in values.split(81)]))


def test_bad_numbers_have_a_name():
    dataset = functions()
    bad = dataset.field("b").clone()
    bad[2, 7] = float("inf")
    broken = Dataset(dataset.domain, a=dataset.field("a"), b=bad, u=dataset.field("u"))
    with pytest.raises(BadNumbers, match=r"sample 2, field 'b': 1 of 81 values are not finite, the first is inf at point 7"):
        Batches(broken, Radius(0.3), *normalizers(dataset))
    huge = Dataset(dataset.domain, a=dataset.field("a") * 1e300, b=dataset.field("b"), u=dataset.field("u"))
    with pytest.raises(BadNumbers, match=r"field 'a', normalised, in torch.float32"):
        Batches(huge, Radius(0.3), *normalizers(dataset))
    with pytest.raises(ValueError, match="no samples"):
        Batches(dataset.take(0), Radius(0.3), *normalizers(dataset))
    assert isinstance(Cloud(torch.rand(3, 2, dtype=torch.float64)), Cloud)


def test_several_at_once_are_those_one_by_one():
    for pointwise in (False, True):
        batches = made(functions(), Nystrom(0.3, 20, 2), pointwise, weighted=True)
        batches.draw(1, 1)
        parts = [[3, 0, 4], [9], [2, 7]]
        for part, found in zip(parts, batches.several(parts), strict=True):
            alone = batches.batch(part)
            for name in ("x", "a", "deviation", "std", "counted", "profile", "weights"):
                assert torch.equal(getattr(found, name), getattr(alone, name))
            assert (found.sizes, found.samples, found.graph.cuts) == (alone.sizes, alone.samples, alone.graph.cuts)
            assert torch.equal(found.graph.ptr, alone.graph.ptr)
            assert torch.equal(found.graph.src, alone.graph.src)
            assert found.graph.src.dtype == torch.int32
            assert torch.equal(found.graph.degrees, alone.graph.degrees)
            assert found.graph.max_degree == alone.graph.max_degree
            assert all(torch.equal(x, y) for x, y in zip(found.graph.by_source, alone.graph.by_source, strict=True))
            assert found.graph.edges_before([0, 20]) == alone.graph.edges_before([0, 20])
    with pytest.raises(ValueError, match="a batch without graphs"):
        batches.several([[1], []])


def test_what_is_fixed_is_the_same_in_every_batch(monkeypatch):
    """A step is recorded for such batches: whatever it does not copy must be what it was, in later epochs, too."""
    batches = made(functions(), Radius(0.3), weighted=True)
    one = batches.batch([3, 0])
    batches.draw(0, 1)
    other = batches.batch([1, 4])
    assert one.fixed
    assert other.graph is one.graph
    assert all(torch.equal(getattr(one, name), getattr(other, name)) for name in ("x", "weights", "std", "counted", "profile"))
    assert batches.batch([2]).graph is not one.graph
    assert not made(functions(), Nystrom(0.3, 20, 2)).batch([0, 1]).fixed
    assert not made(make_dataset(DarcyMesh(size=6, modes=4, vary=True), 2, 0), Radius(0.4)).batch([0, 1]).fixed
    monkeypatch.setattr("gkn.graph.batches.available_memory", lambda _: 1)
    assert not made(functions(), Radius(0.3)).batch([0, 1]).fixed


def test_an_epoch_may_have_some_of_the_graphs():
    """Others in the next epoch, without one twice; and as many steps as that takes."""
    source = made(functions(9), Radius(0.3))
    some = Prefetcher([source], Recipe(batch=2, per_epoch=5), 0, 1, torch.device("cpu"))
    assert some.steps == 3
    plans = [[graph for _, part in some._plan(epoch) for graph in part] for epoch in range(6)]
    assert [len({*plan}) for plan in plans] == [5] * 6
    assert {graph for plan in plans for graph in plan} == {*range(9)}
    assert Prefetcher([source], Recipe(batch=2, per_epoch=50), 0, 1, torch.device("cpu")).steps == 5


def of_three_sizes(n=6):
    """Functions on clouds of 20, 25 or 30 points each."""
    rng = torch.Generator().manual_seed(1)
    domains = [Cloud(torch.rand(20 + 5 * (i % 3), 2, generator=rng, dtype=torch.float64)) for i in range(n)]
    a, u = ([torch.randn(len(domain), generator=rng, dtype=torch.float64) for domain in domains] for _ in range(2))
    return Dataset(domains, a=a, u=u)


@pytest.mark.parametrize("model", ["NearFar", "Transformer", "SliceAttention"])
@pytest.mark.parametrize("weighted", [True, False])
def test_nodes_that_fill_up_a_batch_change_nothing(model, weighted):
    """Losses and gradients are those of the graphs as they are, and all graphs have as many nodes."""
    data = of_three_sizes()
    plain, filled = (made(data, Radius(0.4), weighted=weighted, fill=fill).batch([4, 0, 2]) for fill in (False, True))
    assert plain.sizes == (25, 20, 30)
    assert filled.sizes == (30, 30, 30)
    assert filled.graph.num_edges == plain.graph.num_edges
    assert filled.graph.present.reshape(3, 30).sum(1).tolist() == [25, 20, 30]
    sizes = {"width": 8, "blocks": 2, "head": 4, **({"radius": 0.4} if model == "NearFar" else {})}
    torch.manual_seed(0)
    network = MODELS[model](2, 1, 1, **sizes).double()
    assert network.fills
    found = []
    for batch in (plain, filled):
        answer = network(batch.graph, batch.x, batch.a, batch.weights)
        terms = loss_terms("relative", 0.1, answer, batch)
        found.append([terms, *torch.autograd.grad(terms.sum(), [*network.parameters()], materialize_grads=True)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


def test_only_graphs_of_different_sizes_are_filled_up(monkeypatch):
    """Not those of one size, nor if that would more than double the work."""
    data = of_three_sizes()
    assert made(data.take([0, 3]), Radius(0.4), fill=True).batch([0, 1]).graph.present is None
    assert made(functions(), Radius(0.3), fill=True).batch([0, 1]).graph.present is None
    monkeypatch.setattr("gkn.graph.batches.WASTE", 1.1)
    assert made(data, Radius(0.4), fill=True).batch([0, 1]).sizes == (20, 25)


def test_memory_that_is_filled_again_knows_which_nodes_are_there():
    batches = made(of_three_sizes(), Radius(0.4), fill=True)
    first, second = batches.batch([2, 5]), batches.batch([0, 1])
    place = first.graph.with_spare_memory(3.0)
    place.refill(second.graph)
    assert torch.equal(place.present, second.graph.present)
    assert bool(first.graph.present.all())
    pieces = batches.batch([0, 2, 1]).split([1, 2])
    assert torch.equal(torch.cat([piece.graph.present for piece in pieces]), batches.batch([0, 2, 1]).graph.present)
    plain = made(of_three_sizes(), Radius(0.4)).batch([1]).graph
    assert torch.equal(Graph.batch([plain, pieces[0].graph]).present[:25], torch.ones(25, dtype=torch.bool))
