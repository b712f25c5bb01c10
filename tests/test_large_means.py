"""Outputs with a large mean, or in units in which they are very large or very small."""

import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from gkn import GKN, Cloud, Dataset, Grid, Normalizer, Nystrom, Operator, Radius, fit, load, relative_l2, save
from gkn.data.normalizer import hidden_scales
from gkn.data.sample import BadNumbers
from gkn.graph.batches import Batches
from gkn.operator.evaluate import Judge, ratio_to_variation, relative_errors
from gkn.operator.trivial import compared
from gkn.operator.ways import Exact
from gkn.train.losses import differences, loss_terms
from tests.test_cli import run

GRID = Grid(9)


def functions(n=8, seed=0):
    rng = torch.Generator().manual_seed(seed)
    a = torch.rand(n, len(GRID), generator=rng, dtype=torch.float64)
    x, y = GRID.points.T
    waves = torch.sin(3 * x) * torch.cos(2 * y)
    return a, (1 + a.mean(1, keepdim=True)) * waves + 0.1 * a


def network():
    torch.manual_seed(0)
    return GKN(dim=2, width=4, kernel=(4,), steps=1)


def trained(u, a, **options):
    given = {"epochs": 3, "batch": 4, "warn": lambda text: None, "lr": 0.01, **options}
    return fit(Dataset(GRID, a=a, u=u), network(), Nystrom(0.4, 60), **given)


class Constant:
    """An answer that is the mean of u everywhere: its variation is wrong by 100 percent."""

    def __init__(self, value):
        self.value = value

    def ready(self, dataset):
        return dataset

    def __call__(self, sample):
        return torch.full_like(sample.u, self.value)


def test_the_error_of_a_field_with_a_large_mean_is_shown_twice():
    a, u = functions()
    found = relative_l2(Constant(1e8), Dataset(GRID, a=a, u=1e8 + u))
    assert 0 < found.mean < 1e-7
    wrong = (u - (GRID.weights * u).sum(1, keepdim=True)).square() @ GRID.weights
    exact = (u.square() @ GRID.weights / wrong).sqrt()
    assert found.of_variation["u"].tolist() == pytest.approx(exact.tolist(), rel=1e-6)
    assert "relative to its variation" in str(found)
    assert found.cautions()[0].startswith("the error of u is")
    assert found.json()["of_variation"]["u"] > 0.5
    usual = relative_l2(Constant(0.0), Dataset(GRID, a=a, u=u))
    assert not usual.of_variation
    assert "variation" not in str(usual)


@pytest.mark.parametrize("rule", ["batched", "one by one"])
def test_errors_do_not_cancel(rule):
    """An operator that is wrong by 150 percent of the variation was scored as perfect, because float32 has 7 digits."""
    a, u = functions()
    data = Dataset(GRID, a=a, u=1e8 + u)
    operator = Operator(network(), Radius(0.3), None, Normalizer(torch.tensor([1e8]), torch.tensor([3.0])))
    with torch.no_grad():
        for x in operator.model.parameters():
            x.mul_(0.1)
    if rule == "one by one":
        found = torch.stack([relative_errors(operator(s), s.u, s.weights[:, None], [(0, 1)]) for s in data])[:, 0]
    else:
        found = relative_l2(operator, data).each
    exact = []
    for sample in data:
        deviation = operator.model.double()(operator.rule.graph(sample.x), sample.x, sample.a.double()) * 3.0
        error = (deviation.detach() + 1e8 - sample.u)[:, 0]
        exact.append(math.sqrt(float(error.square() @ sample.weights) / float(sample.u[:, 0].square() @ sample.weights)))
    operator.model.float()
    assert found.tolist() == pytest.approx(exact, rel=1e-4)
    assert operator(data[0]).dtype == torch.float64  # single precision has no digits for the variation


def test_training_does_not_see_the_mean():
    """1e8 + u is learned as u + 64 is: loss and validation error are relative to the variation."""
    a, u = functions(12)
    said, curves = [], []
    for mean in (128.0, 1e8):
        log = []
        options = {"validation": Dataset(GRID, a=a[8:], u=mean + u[8:]), "evaluate_every": 1, "warn": said.append}
        operator = trained(mean + u[:8], a[:8], **options, report=lambda status, log=log: log.append(status.loss))
        curves.append((log, operator.about["metrics"]["validation"]))
    assert curves[0][0] == pytest.approx(curves[1][0], rel=1e-3)
    assert curves[0][1] == pytest.approx(curves[1][1], rel=1e-3)
    assert curves[1][1] > 0.05
    words = (
        "the mean of u is more than 30 times its standard deviation: loss and validation error are relative to its variation"
    )
    assert any(words in text for text in said)
    a, u = functions()
    quiet = []
    trained(u, a, warn=quiet.append)
    assert not [text for text in quiet if "standard deviation" in text]


@pytest.mark.parametrize("power", [130, -140])
def test_units_in_which_single_precision_ends(power):
    """u beyond 1e38, and below 1e-38: the same bits as in a moderate unit, since a power of 2 changes no digit."""
    a, u = functions()
    one, other = trained(u, a), trained(u * 2.0**power, a)
    assert all(torch.equal(x, y) for x, y in zip(one.model.parameters(), other.model.parameters(), strict=True))
    sample = Dataset(GRID, a=a, u=u * 2.0**power)[0]
    answer = other(sample)
    assert answer.dtype == torch.float64
    assert torch.isfinite(answer).all()
    assert float(relative_l2(other, Dataset(GRID, a=a, u=u * 2.0**power)).mean) == pytest.approx(
        relative_l2(one, Dataset(GRID, a=a, u=u)).mean, rel=1e-12
    )


def test_errors_of_numbers_whose_squares_overflow():
    truth = torch.full((5, 1), 1e200, dtype=torch.float64)
    assert float(relative_errors(1.5 * truth, truth, None, [(0, 1)])[0]) == pytest.approx(0.5)
    assert float(relative_errors(1.5e-300 * truth, 1e-300 * truth, None, [(0, 1)])[0]) == pytest.approx(0.5)


def test_a_field_that_does_not_vary_has_no_error_relative_to_its_variation():
    data = Dataset(GRID, u=torch.full((2, 81), 5.0, dtype=torch.float64), a=torch.zeros(2, 81))
    assert math.isnan(ratio_to_variation(data[0].u, GRID.weights[:, None]))
    assert math.isnan(ratio_to_variation(data[0].u, None))
    found = relative_l2(Constant(5.5), data)
    assert found.mean == pytest.approx(0.1)
    assert not found.of_variation


@pytest.mark.parametrize("constant", [0.5, 1000.0])
def test_an_output_that_is_the_same_everywhere(constant):
    """It has no variation that an error could be relative to."""
    a, u = functions()
    data = Dataset(GRID, a=a, u=u, rho=torch.full_like(u, constant), outputs=["u", "rho"])
    torch.manual_seed(0)
    model = GKN(dim=2, out_channels=2, width=4, kernel=(4,), steps=1)
    operator = fit(data, model, Nystrom(0.4, 60), epochs=1, warn=lambda text: None)
    assert math.isfinite(operator.about["metrics"]["loss"])
    assert math.isfinite(relative_l2(operator, data).mean)
    assert float(hidden_scales([data])[1]) == 0
    assert bool(hidden_scales([Dataset(GRID, a=a, u=constant + u)])[0] > 0) == (constant > 1)


def test_a_sample_that_does_not_vary_in_a_field_that_does():
    a, u = functions(10)
    u[9] = 0.0
    held = Dataset(GRID, a=a[8:], u=101325 + u[8:])
    operator = trained(101325 + u[:8], a[:8], validation=held)
    assert math.isfinite(operator.about["metrics"]["validation"])
    assert "nan" not in str(relative_l2(operator, held))


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("pointwise", [False, True])
def test_the_loss_is_relative_to_the_variation_of_each_sample(pointwise, apart):
    """To |u - its mean|, as validation is, however the means differ; to 0.01 standard deviations if u does not vary."""
    a, u = functions()
    u = 1e5 + 10 * torch.arange(8)[:, None] + u
    u[3] = u[3].mean()
    domain = Cloud(GRID.points, GRID.weights, GRID.boundary)
    data = Dataset(GRID, a=a, u=u) if pointwise or not apart else Dataset([domain] * 8, a=[*a], u=[*u])
    normalizers = Normalizer.fit(data, data.inputs), Normalizer.fit(data, data.outputs, pointwise)
    hidden = hidden_scales([data])
    assert float(hidden[0]) == pytest.approx(float(u.std()), rel=0.01)
    batches = Batches(data, Radius(0.3), *normalizers, weighted=True, dtype=torch.float64, hidden=hidden)
    batch = batches.batch([1, 3, 4])
    found = torch.randn(3 * 81, 1, dtype=torch.float64)
    terms = loss_terms("relative", 0.0, found, batch)
    w = GRID.weights
    for k, i in enumerate((1, 3, 4)):
        mean, std = (x.reshape(-1) for x in normalizers[1].at(GRID.points))
        error = found[81 * k : 81 * (k + 1), 0] * std + mean - u[i]
        variation = ((u[i] - (w * u[i]).sum()) ** 2 * w).sum().sqrt().clamp_min(0.01 * float(hidden[0]))
        assert float(terms[k]) == pytest.approx(float((error**2 * w).sum().sqrt() / variation), rel=1e-6)


def test_validation_is_measured_as_the_loss_is():
    """Samples that do not vary count with 0.01 standard deviations, and not as if they had no error."""
    a, u = functions(12)
    u[9:] = u[9:].mean()
    u += 101325
    held = Dataset(GRID, a=a[8:], u=u[8:])
    operator = trained(u[:8], a[:8], validation=held, evaluate_every=3)
    hidden = hidden_scales([Dataset(GRID, a=a[:8], u=u[:8])])
    errors = []
    for sample in held:
        error = (operator(sample, check=False).double() - sample.u)[:, 0]
        varies = sample.u[:, 0] - (GRID.weights * sample.u[:, 0]).sum()
        norms = [float((GRID.weights * x**2).sum().sqrt()) for x in (error, varies)]
        errors.append(norms[0] / max(norms[1], 0.01 * float(hidden)))
    apart = Dataset([GRID] * 4, a=[*a[8:]], u=[*u[8:]])
    for data in (held, apart):
        judged = Judge(operator, operator.ready(data), Exact(), hidden=hidden).errors(range(4))
        assert judged[:, 0].tolist() == pytest.approx(errors, rel=1e-4)


def test_further_training_looks_at_its_own_data(tmp_path):
    """Whether the mean is large was decided by the normaliser of the first training."""
    a, u = functions()
    said = []
    operator = trained(u, a)
    fit(Dataset(GRID, a=a, u=1000 + u), operator, epochs=1, warn=said.append)
    assert [text for text in said if "the mean of u is more than 30 times" in text]
    said.clear()
    fit(Dataset(GRID, a=a, u=u), trained(1000 + u, a), epochs=1, warn=said.append)
    assert not [text for text in said if "times its standard deviation" in text]


def test_a_variation_of_a_billionth_is_no_constant():
    a, u = functions()
    said = []
    operator = trained(1e12 + u, a, warn=said.append)
    assert [text for text in said if "the mean of u is more than 30 times" in text]
    assert float(operator.outputs.std) == pytest.approx(float(u.std(correction=0)), rel=0.01)


def test_errors_beside_trivial_ones_are_those_of_the_variation():
    """All usual errors of such a field are 0.0000."""
    a, u = functions(4)
    data = Dataset(GRID, a=a, u=1e8 + u)
    good, bad = relative_l2(Constant(1e8), data), relative_l2(Constant(1e8 + 9), data)
    (text,) = compared(bad, {"mean": good})
    assert re.search(r"u: the error [\d.]+ relative to its variation is larger than that of the mean, [\d.]+;", text)
    assert compared(good, {"mean": bad}) == []


def test_no_error_at_all_beside_trivial_answers():
    a, u = functions(4)
    data = Dataset(GRID, a=a, u=1e6 + u)

    class Perfect(Constant):
        def __call__(self, sample):
            return sample.u

    found = relative_l2(Perfect(0.0), data)
    beside = replace(found, trivial={"mean": relative_l2(Constant(1e6), data)})
    assert "relative to its variation 0.0000" in str(beside)


@pytest.mark.parametrize(
    ("factor", "what"), [(1e300, "large that their squares overflow"), (1e-200, "small that their squares")]
)
def test_values_whose_squares_overflow_are_named(factor, what):
    a, u = functions()
    with pytest.raises(ValueError, match=f"the values of u are so {what}.*; use another unit"):
        trained(factor * u, a)


@pytest.mark.parametrize(("sample", "factor"), [(3, 1e60), (3, 1e-60)])
def test_samples_of_very_different_sizes_are_named(sample, factor):
    """The sentence was "If u is 0 on all nodes", of samples that were not."""
    a, u = functions(8)
    u[sample] *= factor
    with pytest.raises(BadNumbers) as raised:
        trained(u, a)
    text = str(raised.value)
    assert re.search(r"u of sample \d is at most \S+, that of sample \d up to \S+: single precision cannot hold both", text)
    assert f"sample {sample} is at most" in text if factor < 1 else f"sample {sample} up to" in text
    assert "is 0" not in text


def test_a_dataset_in_another_unit_has_large_errors():
    """The errors are 1e60, and not infinite because u and its mean cancel."""
    a, u = functions()
    operator = trained(u, a)
    found = relative_l2(operator, Dataset(GRID, a=a, u=1e-60 * u))
    assert 1e58 < found.mean < 1e62


def test_differences_do_not_see_the_mean():
    """Samples with points of their own, in one batch: the loss of differences vanished at a mean of 1e8."""
    rng = torch.Generator().manual_seed(0)
    clouds = [Cloud(torch.rand(40, 2, generator=rng, dtype=torch.float64)) for _ in range(4)]
    terms = []
    for mean in (0.0, 1e8):
        data = Dataset(clouds, a=[c.points[:, 0] for c in clouds], u=[mean + 3 * c.points[:, 1] for c in clouds])
        normalizers = Normalizer.fit(data, data.inputs), Normalizer.fit(data, data.outputs)
        batch = Batches(data, Radius(0.4), *normalizers, weighted=True).batch([0, 1, 2, 3])
        terms.append(differences(torch.zeros(len(batch.x), 1), batch))
    assert terms[0].tolist() == pytest.approx([1.0] * 4, rel=1e-5)
    assert terms[1].tolist() == pytest.approx([1.0] * 4, rel=1e-5)


def test_a_mean_at_every_point_is_part_of_the_differences():
    """With pointwise normalisation the mean varies: it counts, but not its constant part."""
    a, u = functions()
    terms = []
    for mean in (0.0, 1e8):
        data = Dataset(GRID, a=a, u=mean + u)
        normalizers = Normalizer.fit(data, data.inputs), Normalizer.fit(data, data.outputs, pointwise=True)
        batches = Batches(data, Nystrom(0.4, 30), *normalizers, weighted=True)
        batch = batches.batch([1])
        terms.append(float(differences(torch.zeros(30, 1), batch)[0]))
    assert terms[0] == pytest.approx(terms[1], rel=1e-4)
    graph, place = batch.graph, (batch.x[:, None] - GRID.points).square().sum(-1).argmin(1)
    mean = data.field("u").mean(0)
    squares = []
    for values in (data[1].u[:, 0] - mean, data[1].u[:, 0]):
        length = (batch.x[graph.targets] - batch.x[graph.src]).square().sum(1)
        steps = (values[place][graph.targets] - values[place][graph.src]).square()
        squares.append(float(steps[length > 0].div(length[length > 0]).sum()))
    assert terms[1] == pytest.approx((squares[0] / squares[1]) ** 0.5, rel=1e-3)


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("own_points", [True, False])
def test_errors_relative_to_the_variation_are_quadratures_or_sums(weighted, own_points):
    """As the usual errors are: with the same weights, in batches and one by one."""
    a, u = functions()
    u = 50 + u + (GRID.boundary * torch.arange(81)) / 81  # varies most where weights are small
    domain = Cloud(GRID.points, GRID.weights, GRID.boundary)
    data = Dataset([domain] * 8, a=[*a], u=[*u]) if own_points else Dataset(GRID, a=a, u=u)
    operator = Operator(network(), Radius(0.3), None, Normalizer(torch.tensor([50.0]), torch.tensor([1.0])))
    found = relative_l2(operator, data, weighted=weighted)
    w = GRID.weights if weighted else torch.ones(81, dtype=torch.float64)
    for i, sample in enumerate(data):
        error = operator(sample, check=False).double()[:, 0] - u[i]
        varies = u[i] - (w * u[i]).sum() / w.sum()
        exact = math.sqrt(float((w * error**2).sum() / (w * varies**2).sum()))
        assert float(found.of_variation["u"][i]) == pytest.approx(exact, rel=1e-4)


def test_the_command_line_warns(tmp_path):
    a, u = functions(10)
    Dataset(GRID, a=a, u=101325 + u).save(tmp_path / "data")
    options = "--model GKN --network width=4 --network kernel=4,4 --epochs 1 --device cpu"
    said = run("train", tmp_path / "data", "--out", tmp_path / "run", *options.split())
    assert "the error of u is" in said
    assert "relative to its variation" in (tmp_path / "run/report.html").read_text()
    run("eval", tmp_path / "run", tmp_path / "data", "--device", "cpu")
    assert json.loads((tmp_path / "run/eval.json").read_text())["errors"][0]["of_variation"]["u"] > 0.01
    save(tmp_path / "in.npz", GRID, {"a": a[0], "u": 101325 + u[0]})
    said = run("predict", tmp_path / "run", "--input", tmp_path / "in.npz", "--out", tmp_path / "out.npz")
    assert "relative to its variation" in said
    answer = np.load(tmp_path / "out.npz")["u"]
    sample = Dataset.open(tmp_path / "data")[0]
    assert np.array_equal(answer, load(tmp_path / "run", best=True)(sample).double().numpy()[:, 0])
