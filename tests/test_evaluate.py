import pytest
import torch

from gkn import (
    GKN,
    Darcy,
    DarcyMesh,
    Dataset,
    Errors,
    Exact,
    Normalizer,
    Nystrom,
    Operator,
    Partition,
    Radius,
    Sampled,
    Support,
    make_dataset,
    relative_l2,
)
from gkn.data.sample import BadNumbers


@pytest.fixture(scope="module")
def data():
    return make_dataset(Darcy(size=13, modes=8), 7, 0)


def operator(data, float32=False, **options):
    torch.manual_seed(0)
    model = GKN(dim=2, width=6, kernel=(6, 5), steps=2).to(torch.float32 if float32 else torch.float64)
    normalizers = Normalizer.fit(data, ["a"]), Normalizer.fit(data, ["u"])
    return Operator(model, Radius(0.3), *normalizers, **options)


def by_hand(found, u, weights=None):
    w = 1.0 if weights is None else weights[:, None]
    return float(((w * (found - u) ** 2).sum() / (w * u**2).sum()).sqrt())


@pytest.mark.parametrize("how", [Exact(), Partition(50), Support(60, 2)])
def test_errors_by_hand(data, how):
    F = operator(data)
    found = relative_l2(F, data, how)
    wanted = [by_hand(F(sample, how=how), sample.u, sample.weights) for sample in data]
    assert torch.allclose(found.each, torch.tensor(wanted, dtype=torch.float64), rtol=1e-12)
    assert found.each.dtype == torch.float64
    assert found.mean == pytest.approx(sum(wanted) / 7)
    assert found.spread == pytest.approx(float(torch.tensor(wanted, dtype=torch.float64).std(correction=0)))
    assert found.worst == (pytest.approx(max(wanted)), wanted.index(max(wanted)))
    assert float(found) == found.mean
    assert relative_l2(operator(data, float32=True), data, how).each.dtype == torch.float64


def test_in_batches_as_one_by_one(data, monkeypatch):
    F = operator(data)
    whole = relative_l2(F, data)
    monkeypatch.setattr("gkn.operator.evaluate.NODES", 169 * 3)  # too few for a batch
    seen = []
    alone = relative_l2(F, data, progress=lambda *done: seen.append(done))
    assert torch.allclose(whole.each, alone.each, rtol=1e-12)
    assert seen == [(i, 7) for i in range(1, 8)]


def test_sampled_nodes(data):
    """Judged on the drawn nodes, and nowhere else; the mean over draws."""
    F = operator(data)
    found = relative_l2(F, data, Sampled(40, 3), seed=5, weighted=False)
    nodes = Nystrom(0.3, 40, 3).draws(169, range(7), seed=5)
    for i, sample in enumerate(data):
        errors = []
        for some in nodes[i]:
            encoded = F.inputs.encode(sample.a[some])
            answer = F.outputs.decode(F.model(Radius(0.3).graph(sample.x[some]), sample.x[some], encoded)).detach()
            errors.append(by_hand(answer, sample.u[some]))
        assert float(found.each[i]) == pytest.approx(sum(errors) / 3, rel=1e-12)
    assert not torch.equal(found.each, relative_l2(F, data, Sampled(40, 3), seed=6).each)


def test_norms_are_quadratures_unless_plain_sums_are_wanted(data):
    F = operator(data)
    meshes = make_dataset(DarcyMesh(size=9, modes=8, shape="holes"), 2, 0)
    for dataset in (meshes, data):
        for weighted in (True, False):
            found = relative_l2(F, dataset, weighted=weighted)
            assert weighted is False or torch.equal(found.each, relative_l2(F, dataset).each)
            for i, sample in enumerate(dataset):
                weights = sample.weights if weighted else None
                assert float(found.each[i]) == pytest.approx(by_hand(F(sample), sample.u, weights), rel=1e-11)
    own = make_dataset(DarcyMesh(size=7, modes=8, vary=True), 2, 0)
    found = relative_l2(F, own)
    assert [float(e) for e in found.each] == [pytest.approx(by_hand(F(s), s.u, s.weights), rel=1e-11) for s in own]


def test_another_resolution_and_radius(data):
    F = operator(data)
    coarse = relative_l2(F, data.every(2), r=0.4)
    sample = data.every(2)[3]
    assert float(coarse.each[3]) == pytest.approx(by_hand(F(sample, r=0.4), sample.u, sample.weights), rel=1e-12)
    assert not torch.equal(coarse.each, relative_l2(F, data.every(2)).each)


def test_what_errors_say(data):
    errors = Errors(torch.tensor([0.1, 0.3, 0.2], dtype=torch.float64))
    assert str(errors) == "0.2000 (median 0.2000, spread 0.0816, worst 0.3000 of sample 1, 3 samples)"
    assert errors.json()["each"] == [0.1, 0.3, 0.2]
    assert errors.json()["worst_sample"] == 1


def test_bad_calls(data):
    F = operator(data)
    with pytest.raises(ValueError, match="no samples"):
        relative_l2(F, data.take(0))
    with pytest.raises(ValueError, match=r"Sampled\(m=0, l=1\): needed at least one node"):
        Sampled(0)
    u = data.field("u").clone()
    u[1, 3] = float("nan")
    broken = Dataset(data.domain, a=data.field("a"), u=u)
    for how in (Exact(), Partition(50)):
        with pytest.raises(BadNumbers, match="sample 1, field 'u'"):
            relative_l2(F, broken, how)
    with pytest.raises(
        ValueError, match="this dataset has the inputs a, a_smooth, a_smooth_x, a_smooth_y; the network was made for 1"
    ):
        relative_l2(F, data.smoothed(0.1))
