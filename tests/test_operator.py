import json
import random
import time

import pytest
import torch

from gkn import (
    GKN,
    Cloud,
    Dataset,
    Exact,
    Grid,
    Mesh,
    Normalizer,
    Nystrom,
    Operator,
    Partition,
    Radius,
    Sample,
    Support,
    relative_l2,
)
from gkn.data.features import Features
from gkn.graph.neighbors import lumped
from gkn.models import Multigrid, NearFar, rivals
from gkn.models.model import AtMost
from gkn.operator import operator as module
from gkn.operator import ways
from gkn.system.files import CorruptFile, read_sealed_json, write_sealed_json

CLOSE = {"rtol": 1e-10, "atol": 1e-10}
POINTS = torch.rand(40, 2, generator=torch.Generator().manual_seed(4), dtype=torch.float64)


def normalizer(mean, std):
    return Normalizer(torch.tensor(mean), torch.tensor(std))


def make(size=9, fields=2, r=0.3, **options):
    torch.manual_seed(0)
    model = GKN(2, fields, 1, width=6, kernel=(8, 12), steps=3).double()
    inputs = normalizer([5.0, -1.0][:fields], [2.0, 3.0][:fields])
    outputs = normalizer([10.0], [0.5])
    operator = Operator(model, Radius(r), inputs, outputs, **options)
    return operator, sample_on(Grid(size), fields)


def sample_on(domain, fields=2):
    x = domain.points
    a = torch.stack([5 + torch.sin(3 * x[:, 0]), x[:, 1] ** 2][:fields], 1)
    return Sample(domain, a, a[:, :1])


def test_raw_in_raw_out():
    operator, sample = make()
    model = operator.model
    encoded = (sample.a - torch.tensor([5.0, -1.0])) / torch.tensor([2.0, 3.0])
    u = model(Radius(0.3).graph(sample.x), sample.x, encoded) * 0.5 + 10
    torch.testing.assert_close(operator(sample), u, **CLOSE)
    assert not operator(sample).requires_grad


@pytest.mark.parametrize("at", [None, POINTS])
@pytest.mark.parametrize("how", [Exact(), Support(30), Partition(40)])
def test_gradients_with_respect_to_the_sample(at, how):
    operator, sample = make()
    a = sample.a.clone().requires_grad_()
    assert not operator(Sample(sample.domain, a, sample.u), at, how=how).requires_grad
    found = operator(Sample(sample.domain, a, sample.u), at, how=how, differentiable=True)
    (gradient,) = torch.autograd.grad(found.square().sum(), a)
    direction = torch.randn(a.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)

    def shifted(step):
        return operator(Sample(sample.domain, sample.a + step * direction, sample.u), at, how=how).square().sum()

    slope = (shifted(1e-5) - shifted(-1e-5)) / 2e-5
    torch.testing.assert_close((gradient * direction).sum(), slope, rtol=1e-6, atol=1e-6)


def test_gradients_go_through_smoothed_fields():
    domain = Grid(9)
    features = Features(("a",), ("a", "a_smooth", "a_smooth_x", "a_smooth_y"), ("u",), (("a", 0.1),), {})
    torch.manual_seed(0)
    operator = Operator(GKN(2, 4, 1, width=6, kernel=(8, 12), steps=3).double(), Radius(0.3), features=features)
    a = sample_on(domain).a[:, 0].clone().requires_grad_()
    (gradient,) = torch.autograd.grad(operator(operator.sample(domain, a=a), differentiable=True).sum(), a)
    step = torch.zeros_like(a)
    step[40] = 1e-5
    above, below = (operator(operator.sample(domain, a=a.detach() + sign * step)).sum() for sign in (1, -1))
    torch.testing.assert_close(gradient[40], (above - below) / 2e-5, rtol=1e-6, atol=1e-8)


def test_a_sample_with_the_given_fields_only():
    """Smoothed fields are computed if a sample has only the fields that a user gives, as samples of a dataset have."""
    features = Features(("a",), ("a", "a_smooth", "a_smooth_x", "a_smooth_y"), ("u",), (("a", 0.1),), {})
    torch.manual_seed(0)
    operator = Operator(GKN(2, 4, 1, width=6, kernel=(8, 12), steps=3).double(), Radius(0.3), features=features)
    a = sample_on(Grid(9)).a[:, 0]
    data = Dataset(Grid(9), a=a[None], u=a[None])
    whole = operator(operator.ready(data)[0])
    torch.testing.assert_close(operator(data[0]), whole, **CLOSE)
    torch.testing.assert_close(operator(operator.sample(Grid(9), a=a)), whole, **CLOSE)


def test_evaluate_and_repr():
    operator, sample = make(fields=1)
    data = Dataset(sample.domain, a=sample.a.T, u=operator(sample).T + 0.1)
    assert torch.equal(operator.evaluate(data).each, relative_l2(operator, data).each)
    assert operator.evaluate(data, Support(20), seed=3).mean == relative_l2(operator, data, Support(20), seed=3).mean
    count = sum(each.numel() for each in operator.model.parameters())
    assert repr(operator).startswith(f"Operator(GKN of {count} parameters")
    assert "Radius(r=0.3)" in repr(operator)


def test_a_query_at_a_node_is_its_value():
    operator, sample = make()
    torch.testing.assert_close(operator(sample, at=sample.x), operator(sample), **CLOSE)
    some = torch.tensor([7, 3, 3, 80])
    torch.testing.assert_close(operator(sample, at=sample.x[some]), operator(sample)[some], **CLOSE)


def test_queries_do_not_disturb_anybody(rng, monkeypatch):
    operator, sample = make()
    at = torch.rand(300, 2, generator=rng, dtype=torch.float64)
    whole = operator(sample, at=at)
    order = torch.randperm(300, generator=rng)
    torch.testing.assert_close(operator(sample, at=at[order]), whole[order], **CLOSE)
    torch.testing.assert_close(operator(sample, at=at[17:18]), whole[17:18], **CLOSE)
    monkeypatch.setattr(module, "LEAST_QUERIES", 256)
    monkeypatch.setattr(module, "QUERIES", 256)
    seen = []
    torch.testing.assert_close(operator(sample, at=at, progress=lambda *done: seen.append(done)), whole, **CLOSE)
    assert seen == [(256, 300), (300, 300)]
    bad = torch.cat([at[:5], at[5:6]])
    a = torch.zeros(6, 2, dtype=torch.float64)
    a[5] = 1e6  # an absurd coefficient at one query
    found = operator(sample, at=bad, a=a)
    a[5] = 0
    torch.testing.assert_close(found[:5], operator(sample, at=bad, a=a)[:5], **CLOSE)


def test_support_is_a_small_graph_that_everything_asks(rng):
    operator, sample = make()
    nodes = torch.randperm(81, generator=torch.Generator().manual_seed(5))[:20].sort().values
    cloud = Sample(Cloud(sample.x[nodes]), sample.a[nodes], sample.u[nodes])
    expected = operator(cloud, at=sample.x, a=sample.a)
    found = operator(sample, how=Support(20), rng=torch.Generator().manual_seed(5))
    torch.testing.assert_close(found, expected, **CLOSE)
    torch.testing.assert_close(found[nodes], operator(cloud), **CLOSE)


def test_support_nodes_count_for_all_points_near_them():
    """Lumped weights are used if the operator is weighted, and only then."""
    plain, sample = make()
    operator = Operator(plain.model, plain.rule, plain.inputs, plain.outputs, weighted=True)
    nodes = torch.randperm(81, generator=torch.Generator().manual_seed(5))[:20].sort().values
    found = operator(sample, how=Support(20), rng=torch.Generator().manual_seed(5))
    answers = []
    for weights in (lumped(sample.x, sample.weights, nodes), sample.weights[nodes]):
        cloud = Sample(Cloud(sample.x[nodes], weights), sample.a[nodes], sample.u[nodes])
        answers.append(operator(cloud, at=sample.x, a=sample.a))
    torch.testing.assert_close(found, answers[0], **CLOSE)
    assert not torch.allclose(found, answers[1])


def test_support_averages_over_its_draws():
    operator, sample = make()
    rng = torch.Generator().manual_seed(1)
    each = [operator(sample, how=Support(20), rng=rng) for _ in range(3)]
    together = operator(sample, how=Support(20, l=3), rng=torch.Generator().manual_seed(1))
    torch.testing.assert_close(together, sum(each) / 3, **CLOSE)
    assert not torch.allclose(each[0], each[1])
    at = sample.x[:4] + 0.01
    assert operator(sample, at=at, how=Support(20, l=3)).shape == (4, 1)
    torch.testing.assert_close(operator(sample, how=Support(81)), operator(sample), **CLOSE)


def test_another_radius():
    operator, sample = make()
    other = Operator(operator.model, Radius(0.5), operator.inputs, operator.outputs)
    torch.testing.assert_close(operator(sample, r=0.5), other(sample), **CLOSE)
    torch.testing.assert_close(operator(sample, at=sample.x[:3], r=0.5), other(sample, at=sample.x[:3]), **CLOSE)
    assert not torch.allclose(operator(sample), other(sample))


@pytest.mark.parametrize("m", [1, 5, 16, 20, 80, 81])
def test_a_partition_predicts_every_node_once(m, rng):
    operator, sample = make()
    parts = [*Partition(m).parts(sample.domain, rng)]
    own = torch.cat([part.nodes[: part.predicted] for part in parts])
    assert torch.equal(own.sort().values, torch.arange(81))
    assert all(len(part.nodes) == m and len(set(part.nodes.tolist())) == m for part in parts)
    found = operator(sample, how=Partition(m))
    assert found.shape == (81, 1)
    if m == 81:
        torch.testing.assert_close(found, operator(sample), **CLOSE)


def test_parts_of_a_grid_are_strided_sub_grids(rng):
    first = next(iter(Partition(300).parts(Grid(421), rng)))
    i, j = first.nodes[: first.predicted] // 421, first.nodes[: first.predicted] % 421
    assert set(i.tolist()) == set(range(0, 421, 25))
    assert set(j.tolist()) == set(range(0, 421, 25))
    assert len(first.nodes) == 300


def test_a_part_is_predicted_by_itself():
    operator, sample = make()
    part = next(iter(Partition(20).parts(sample.domain, torch.Generator().manual_seed(0))))
    cloud = Sample(Cloud(sample.x[part.nodes]), sample.a[part.nodes], sample.u[part.nodes])
    found = operator(sample, how=Partition(20), rng=torch.Generator().manual_seed(0))
    torch.testing.assert_close(found[part.nodes[: part.predicted]], operator(cloud)[: part.predicted], **CLOSE)
    asked = operator(sample, at=sample.x[:3], how=Partition(20))
    assert asked.shape == (3, 1)


def test_any_domain(rng):
    operator, _ = make()
    mesh = Mesh.square(0.2)
    found = operator(sample_on(mesh), at=torch.tensor([[0.31, 0.52]]))
    weighted = Operator(operator.model, Radius(0.3), operator.inputs, operator.outputs, weighted=True)
    assert found.shape == (1, 1)
    assert not torch.allclose(weighted(sample_on(mesh)), operator(sample_on(mesh)))
    cloud = Cloud(torch.rand(50, 2, generator=rng, dtype=torch.float64))
    assert operator(sample_on(cloud), how=Partition(7)).shape == (50, 1)


def test_trained_on_one_grid_asked_on_another():
    """Nothing in it depends on the number of points."""
    operator, coarse = make(size=9)
    fine = sample_on(Grid(33))
    on_fine = operator(fine)[Grid(33).stride(4)]
    assert float((on_fine - operator(coarse)).norm() / (on_fine - 10).norm()) < 0.3


def test_isolated_queries_and_single_points():
    operator, _ = make(r=0.01)
    sample = sample_on(Cloud(torch.tensor([[0.5, 0.5]])))
    found = operator(sample, at=torch.tensor([[0.9, 0.9], [0.5, 0.5]]))
    assert torch.isfinite(found).all()
    torch.testing.assert_close(found[1:], operator(sample), **CLOSE)
    assert operator(sample, at=torch.zeros(0, 2)).shape == (0, 1)


def test_training_mode_is_put_back():
    operator, sample = make()
    operator.model.train()
    operator(sample)
    assert operator.model.training


def test_rules_of_sampling_are_rules_too():
    operator, sample = make()
    nystrom = Operator(operator.model, Nystrom(0.3, 20), operator.inputs, operator.outputs)
    torch.testing.assert_close(nystrom(sample), operator(sample), **CLOSE)


def test_normaliser_of_a_dataset(rng):
    a = 3 + 2 * torch.randn(50, 81, generator=rng, dtype=torch.float64)
    data = Dataset(Grid(9), a=a, c=torch.full((50, 81), 1e9, dtype=torch.float64), u=a)
    fitted = Normalizer.fit(data, ("a", "c"))
    torch.testing.assert_close(fitted.mean, torch.tensor([float(a.mean()), 1e9], dtype=torch.float64))
    torch.testing.assert_close(fitted.std, torch.tensor([float(a.std(correction=0)), 1.0], dtype=torch.float64))
    values = torch.stack([a[0], a[1]], 1)
    torch.testing.assert_close(fitted.decode(fitted.encode(values)), values)
    huge = Dataset(Grid(9), a=a + 1e8, u=a)  # a sum of squares would have lost it
    torch.testing.assert_close(Normalizer.fit(huge, ("a",)).std[0], a.std(correction=0), rtol=1e-6, atol=0)
    with pytest.raises(ValueError, match="needed a finite mean and a std > 0 per field"):
        normalizer([0.0], [0.0])


def test_what_does_not_match_is_refused():
    operator, sample = make()
    with pytest.raises(
        ValueError, match=r"fields \(81, 1\) on 81 points of dimension 2; this network was made for 2 fields in dimension 2"
    ):
        operator(sample_on(Grid(9), 1))
    with pytest.raises(ValueError, match=r"of shape \(2,\); needed points \(P, 2\)"):
        operator(sample, at=torch.zeros(2))
    with pytest.raises(ValueError, match="points must be finite"):
        operator(sample, at=torch.tensor([[0.5, float("nan")]]))
    with pytest.raises(ValueError, match="1 of 1 points lie outside the domain"):
        operator(sample, at=torch.tensor([[0.5, 1.5]]))
    with pytest.raises(ValueError, match="say where: at=points"):
        operator(sample, a=sample.a)
    with pytest.raises(ValueError, match=r"shape \(3, 1\); needed \(2, 2\)"):
        operator(sample, at=torch.zeros(2, 2), a=torch.zeros(3, 1))
    with pytest.raises(ValueError, match=r"Support\(m=82, l=1\): the sample has 81 points; use m <= 81, or Exact\(\) for all"):
        operator(sample, how=Support(82))
    with pytest.raises(ValueError, match="needed at least one node"):
        Partition(0)
    with pytest.raises(ValueError, match="the radius must be a finite number > 0"):
        operator(sample, r=-1.0)
    with pytest.raises(ValueError, match="normalises 1 fields, the network has 2"):
        Operator(operator.model, Radius(0.3), normalizer([0.0], [1.0]))
    broken = Sample(sample.domain, sample.a.clone(), sample.u)
    broken.a[3, 1] = float("inf")
    with pytest.raises(ValueError, match="a must be finite, but 1 of 162 are not"):
        operator(broken)
    assert Exact() == Exact()


def test_a_float32_query_at_a_node_is_its_value_too():
    """Ties at the radius are decided by the type the points came in."""
    operator, sample = make(size=11, r=0.2)
    torch.testing.assert_close(operator(sample, at=sample.x.float()), operator(sample), rtol=1e-5, atol=1e-5)


def test_a_far_query_disturbs_nobody(rng):
    operator, _ = make()
    cloud = sample_on(Cloud(torch.rand(60, 2, generator=rng, dtype=torch.float64)))
    at = torch.rand(20, 2, generator=rng, dtype=torch.float64)
    far = torch.cat([at, torch.tensor([[1e14, 0.0]], dtype=torch.float64)])
    torch.testing.assert_close(operator(cloud, at=far)[:20], operator(cloud, at=at), **CLOSE)


def test_autocast_rounds_inside_and_not_the_answer():
    operator, sample = make(size=17)
    operator.model.float()
    for mean, dtype in ((100.0, torch.float32), (1000.0, torch.float64)):  # single precision has too few digits for the last
        operator = Operator(operator.model, Radius(0.3), operator.inputs, normalizer([mean], [0.5]))
        exact = operator(sample)
        with torch.autocast("cpu", torch.bfloat16):
            found = operator(sample)
        assert found.dtype == dtype
        assert len(found.unique()) > 100
        assert float((found - exact).norm() / (exact - mean).norm()) < 0.05


def test_progress_of_exact_evaluation():
    operator, sample = make()
    seen = []
    operator(sample, progress=lambda *done: seen.append(done))
    assert seen == [(27, 81), (54, 81), (81, 81)]
    seen.clear()
    operator(sample, how=Partition(40), progress=lambda *done: seen.append(done))
    assert seen[-1] == (81, 81)
    assert seen == sorted(seen)


def test_numbers_too_large_for_the_network_are_refused():
    operator, sample = make()
    operator.model.float()
    huge = Sample(sample.domain, sample.a * 1e39, sample.u)
    with pytest.raises(ValueError, match=r"normalised, in torch.float32, must be finite"):
        operator(huge)


def test_wrong_kinds_of_arguments_are_refused():
    operator, sample = make()
    for how in ("exact", Exact, None):
        with pytest.raises(Exception, match=r"use Exact\(\), Support\(m, l\) or Partition\(m\)|how"):
            operator(sample, how=how)
    flat = Sample.__new__(Sample)
    for name, value in (("domain", sample.domain), ("a", sample.a[:, 0]), ("u", sample.u)):
        object.__setattr__(flat, name, value)
    with pytest.raises(ValueError, match=r"fields \(81,\) on 81 points"):
        operator(flat)


# --- saved and loaded ----------------------------------------------------------------------------------------------------


def trained(pointwise=False, domain=None, **options):
    torch.manual_seed(0)
    domain = Grid(7) if domain is None else domain
    rng = torch.Generator().manual_seed(1)
    a, u = (torch.rand(4, len(domain), generator=rng, dtype=torch.float64) for _ in range(2))
    data = Dataset(domain, a=a, u=u).smoothed(0.2)
    model = GKN(dim=2, in_channels=4, width=5, kernel=(6, 4), steps=2, sigma=torch.nn.functional.gelu, last_sigma=False)
    normalizers = Normalizer.fit(data, data.inputs), Normalizer.fit(data, ["u"], pointwise)
    about = {"recipe": {"lr": 1e-3}, "metrics": {"test": 0.05}}
    features = module.Features.of(data, {"u": "Pa"})
    return Operator(model, Nystrom(0.3, 20, 2), *normalizers, True, features, about), data


@pytest.mark.parametrize("pointwise", [False, True])
@pytest.mark.parametrize("domain", [Grid(7), Mesh.square(0.3), Cloud(POINTS)], ids=["grid", "mesh", "cloud"])
def test_a_saved_operator_gives_the_same_bits(domain, pointwise, tmp_path):
    operator, data = trained(pointwise, domain)
    operator.save(tmp_path / "op")
    again = Operator.load(tmp_path / "op")
    assert again.rule == operator.rule
    assert again.weighted
    assert again.features == operator.features
    assert again.about["metrics"] == {"test": 0.05}
    assert again.about["versions"]["torch"]
    assert again.model.config() == operator.model.config()
    sample = data[2]
    assert torch.equal(again(sample), operator(sample))
    points = torch.rand(5, 2, dtype=torch.float64) * 0.5 + 0.25
    assert torch.equal(again(sample, at=points), operator(sample, at=points))


def test_loaded_in_another_type(tmp_path):
    operator, data = trained()
    operator.save(tmp_path / "op")
    again = Operator.load(tmp_path / "op", dtype=torch.float64)
    assert again.model.W.weight.dtype == torch.float64
    assert torch.allclose(again(data[0]).double(), operator(data[0]).double(), rtol=1e-4, atol=1e-6)
    assert all(x.requires_grad for x in again.model.parameters())


def test_saving_again_replaces_it_at_once(tmp_path):
    operator, _ = trained()
    operator.save(tmp_path / "op")
    (tmp_path / "op/tensors-mine.txt").write_text("mine")
    with torch.no_grad():
        operator.model.W.weight += 1
    operator.save(tmp_path / "op")
    assert sorted(path.suffix for path in (tmp_path / "op").iterdir()) == [".json", ".safetensors", ".txt"]
    assert torch.equal(Operator.load(tmp_path / "op").model.W.weight, operator.model.W.weight)


def test_every_flipped_bit_and_cut_is_noticed(tmp_path):
    """60 flips and 20 cuts of each file of an exported operator."""
    operator, _ = trained(pointwise=True)
    operator.save(tmp_path / "op")
    random.seed(0)
    for path in sorted((tmp_path / "op").iterdir()):
        good = path.read_bytes()
        spots = random.sample(range(8 * len(good)), 60)
        damaged = [bytes([*good[: s // 8], good[s // 8] ^ 1 << s % 8, *good[s // 8 + 1 :]]) for s in spots]
        damaged += [good[:size] for size in random.sample(range(len(good)), 20)]
        for data in damaged:
            path.write_bytes(data)
            with pytest.raises(CorruptFile, match=path.name):
                Operator.load(tmp_path / "op")
        path.write_bytes(good)
    Operator.load(tmp_path / "op")


def test_cards_that_make_no_sense(tmp_path):
    operator, _ = trained()
    operator.save(tmp_path / "op")
    path = tmp_path / "op/operator.json"
    card = {key: value for key, value in json.loads(path.read_text()).items() if key != "sha256"}
    for change, said in (
        ({"schema": 2}, "schema 2, but this version of gkn reads schema 1; update gkn"),
        ({"model": {**card["model"], "width": 6}}, "the tensors are not those of the network it describes"),
        ({"model": {**card["model"], "width": 10**6}}, "the tensors are not those of the network it describes"),
        ({"model": {**card["model"], "width": 10**18}}, "fields missing or unknown"),
        ({"model": {**card["model"], "sigma": "os.system"}}, "fields missing or unknown"),
        ({"model": {**card["model"], "colour": 3}}, "fields missing or unknown"),
        ({"model": {**card["model"], "rho": "x"}}, "fields missing or unknown"),
        ({"rule": {"kind": "Ball", "r": 1.0}}, "fields missing or unknown"),
        ({"features": {"inputs": ["a"]}}, "fields missing or unknown"),
        ({"tensors": {**card["tensors"], "file": "/etc/passwd"}}, "its entry 'tensors' makes no sense"),
    ):
        write_sealed_json(path, {**card, **change})
        with pytest.raises(CorruptFile, match=said):
            Operator.load(tmp_path / "op")
    for missing in ("model", "rule", "normalizers", "tensors", "features", "about", "weighted"):
        write_sealed_json(path, {key: value for key, value in card.items() if key != missing})
        with pytest.raises(CorruptFile, match=f"no '{missing}' in it"):
            Operator.load(tmp_path / "op")
    with pytest.raises(FileNotFoundError, match=r"no operator, it has no operator\.json"):
        Operator.load(tmp_path)


@pytest.mark.parametrize("calls", range(40, 52))
def test_a_network_that_is_refused_leaves_derivatives_on(calls):
    """Parameters are filled without derivatives. The refusal may come at any call, also at the one that ends this."""
    counter = AtMost(0)
    counter.left = calls
    with pytest.raises(ValueError, match="more parameters than the 0"), counter:
        torch.nn.ModuleList(torch.nn.LayerNorm(3) for _ in range(100))
    assert torch.is_grad_enabled()


@pytest.mark.parametrize(
    ("model", "change"),
    [
        (NearFar(2, width=8, head=4, blocks=2, slices=4), {"blocks": 10**6}),
        (Multigrid(2, width=8, cycles=2, levels=2), {"cycles": 10**6}),
        (Multigrid(2, width=8, cycles=2, levels=2), {"levels": 10**6}),
        (rivals.Transformer(2, width=8, head=4, blocks=2), {"blocks": 10**6}),
        (GKN(2, width=4, kernel=(4,)), {"kernel": [4] * 10**6}),
        (GKN(2, width=4, kernel=(4,)), {"steps": 10**6}),
    ],
    ids=["blocks", "cycles", "levels", "transformer", "layers", "steps"],
)
def test_a_million_layers_are_not_built(model, change, tmp_path):
    """The file has tensors for a few. They are counted before the network is built."""
    Operator(model, Radius(0.05)).save(tmp_path / "op")
    path = tmp_path / "op/operator.json"
    card = {key: value for key, value in json.loads(path.read_text()).items() if key != "sha256"}
    Operator.load(tmp_path / "op")
    write_sealed_json(path, {**card, "model": {**card["model"], **change}})
    start = time.monotonic()
    with pytest.raises(CorruptFile, match=r"more parameters than the \d+ that are stored|steps=1000000"):
        Operator.load(tmp_path / "op")
    assert time.monotonic() - start < 5
    write_sealed_json(path, card)
    Operator.load(tmp_path / "op")


@pytest.mark.parametrize(
    "ranges",
    [
        True,
        [5],
        {"low": 5},
        {"low": [0.0], "high": [1.0, 1.0]},
        {"measure": [1.0]},
        {"spacing": "x"},
        {"inputs": {"a": ["x", 2]}},
    ],
)
def test_ranges_that_make_no_sense(ranges, tmp_path):
    operator, _ = trained()
    operator.about["ranges"] = ranges
    operator.save(tmp_path / "op")
    with pytest.raises(CorruptFile, match="the ranges of the training data make no sense"):
        Operator.load(tmp_path / "op")


def test_sizes_that_are_no_numbers(tmp_path):
    """They are checked before anything is multiplied by them: a list times a number is a long list."""
    Operator(rivals.Dense(2, points=4, hidden=(4,)), Radius(0.3)).save(tmp_path / "op")
    card = read_sealed_json(tmp_path / "op/operator.json")
    for change in ({"in_channels": True}, {"in_channels": -1}, {"out_channels": True}, {"points": True}, {"points": 0}):
        write_sealed_json(tmp_path / "op/operator.json", {**card, "model": {**card["model"], **change}})
        with pytest.raises(CorruptFile, match="needed a whole number"):
            Operator.load(tmp_path / "op")


def test_weights_that_are_no_numbers(tmp_path):
    operator, _ = trained()
    operator.model.W.weight.data[0, 0] = float("nan")
    operator.save(tmp_path / "op")
    with pytest.raises(CorruptFile, match="its weights are not finite numbers of one type"):
        Operator.load(tmp_path / "op")


def test_code_of_somebody_is_not_saved(tmp_path):
    model = GKN(dim=2, width=4, kernel=(4,), sigma=lambda x: x)
    with pytest.raises(
        ValueError, match=r"its sigma is code of yours, which is not saved; use no rho, and sigma = one of relu"
    ):
        Operator(model, Radius(0.3)).save(tmp_path / "op")
    with pytest.raises(ValueError, match="rho is code of yours"):
        GKN(dim=2, width=4, kernel=(4,), rho=lambda x, y: x[:, 0]).config()
    with pytest.raises(TypeError, match="JSON"):
        Operator(GKN(dim=2, width=4, kernel=(4,)), Radius(0.3), about={"x": object}).save(tmp_path / "op")
    assert not (tmp_path / "op").exists()


def test_features_are_made_of_what_is_given():
    operator, data = trained()
    raw = Dataset(data.domain, a=data.field("a"), u=data.field("u"), other=data.field("a"))
    assert operator.ready(raw).inputs == data.inputs
    assert operator.ready(data).inputs == data.inputs
    sample = operator.sample(data.domain, a=data.value("a", 1), extra=data.value("u", 1))
    assert torch.equal(sample.a, data[1].a)
    assert torch.equal(operator(sample), operator(data[1]))
    with pytest.raises(KeyError, match="the operator needs the field 'a'; given are: b"):
        operator.sample(data.domain, b=data.value("a", 1))
    with pytest.raises(KeyError, match="no field 'a' in this dataset; it has b, u"):
        operator.ready(Dataset(data.domain, b=data.field("a"), u=data.field("u")))
    with pytest.raises(ValueError, match=r"this dataset is smoothed by .*0\.1.*, the operator was trained with .*0\.2"):
        operator.ready(raw.smoothed(0.1))
    with pytest.raises(ValueError, match="does not know the names of its fields"):
        Operator(operator.model, Radius(0.3)).sample(data.domain, a=data.value("a", 1))


def test_features_in_another_order_and_without_what_they_are_made_of():
    _, data = trained()
    raw = Dataset(data.domain, a=data.field("a"), u=data.field("u"))
    for names in (["a_smooth", "a_smooth_y", "a"], ["a_smooth"]):
        some = data.using(names)
        model = GKN(dim=2, in_channels=len(names), width=4, kernel=(4,), steps=1)
        operator = Operator(model, Radius(0.3), features=module.Features.of(some))
        assert operator.ready(raw).inputs == operator.ready(data).inputs == tuple(names)
        assert torch.equal(operator.sample(data.domain, a=data.value("a", 1)).a, some[1].a)


def test_point_wise_normalisers_are_interpolated_off_their_points():
    """A network whose last layer gives 0 answers the mean solution, everywhere."""
    operator, data = trained(pointwise=True)
    torch.nn.init.zeros_(operator.model.Q.weight)
    torch.nn.init.zeros_(operator.model.Q.bias)
    mean = data.field("u").mean(0)
    assert torch.allclose(operator(data[0])[:, 0].double(), mean, rtol=1e-5)
    points = torch.tensor([[0.5, 0.5], [1 / 12, 0.0]], dtype=torch.float64)
    found = operator(data[0], at=points)[:, 0].double()
    grid = mean.reshape(7, 7)
    assert torch.allclose(found, torch.stack([grid[3, 3], (grid[0, 0] + grid[1, 0]) / 2]), rtol=1e-5)


@pytest.mark.parametrize("count", [0, 3, 30, 60])
def test_nodes_that_fill_up_a_part(count):
    """Distinct, none of the part's own, each of the others as likely; by either way of drawing them."""
    rng, own, seen = torch.Generator().manual_seed(0), torch.arange(0, 400, 10), torch.zeros(400)
    for _ in range(400):
        found = ways._others(400, own, count, rng)
        assert len({*found.tolist()}) == count == len(found)
        seen[found] += 1
    assert seen[own].sum() == 0
    others = torch.ones(400, dtype=torch.bool)
    others[own] = False
    share = count / 360
    assert ((seen[others] - 400 * share).abs() <= 5 * (400 * share * (1 - share)) ** 0.5 + 1e-9).all()
