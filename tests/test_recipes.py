import math
from itertools import pairwise

import pytest
import torch

from gkn import Dataset, Grid, Normalizer, Radius, Recipe
from gkn.graph.batches import Batches
from gkn.models.gkn import NETWORKS, SMOOTHING
from gkn.train.losses import LOSSES
from gkn.train.recipe import RECIPES, changed, recipe_named


def batch(pointwise=False):
    grid, rng = Grid(5), torch.Generator().manual_seed(0)
    a, u = (torch.rand(3, 25, generator=rng, dtype=torch.float64) + 1 for _ in range(2))
    data = Dataset(grid, a=a, u=u)
    normalizers = Normalizer.fit(data, ["a"]), Normalizer.fit(data, ["u"], pointwise)
    return Batches(data, Radius(0.4), *normalizers, dtype=torch.float64).batch([0, 2]), u[[0, 2]], normalizers[1]


@pytest.mark.parametrize("pointwise", [False, True])
def test_losses_by_the_book(pointwise):
    some, u, outputs = batch(pointwise)
    found = torch.rand(50, 1, dtype=torch.float64)
    encoded = torch.stack([outputs.encode(each[:, None], Grid(5).points) for each in u])[..., 0]
    guess = found.reshape(2, 25)
    assert torch.allclose(LOSSES["mse"][0](found, some), ((guess - encoded) ** 2).mean(1))
    assert torch.allclose(LOSSES["abs"][0](found, some), (guess - encoded).abs().sum(1))
    decoded = torch.stack([outputs.decode(each[:, None], Grid(5).points) for each in guess])[..., 0]
    assert torch.allclose(LOSSES["relative"][0](found, some), (decoded - u).norm(dim=1) / u.norm(dim=1))
    assert {name: mean for name, (_, mean) in LOSSES.items()} == {"mse": True, "abs": False, "relative": True}


def test_a_perfect_answer_has_a_gradient():
    some, u, outputs = batch()
    found = ((u.reshape(-1, 1) - outputs.mean) / outputs.std).requires_grad_()
    LOSSES["relative"][0](found, some).sum().backward()
    assert torch.isfinite(found.grad).all()


def test_schedules():
    steps = 10
    step = Recipe(schedule="step", lr=1.0, every=2, factor=0.5, epochs=8)
    assert [step.rate(10 * epoch, steps) for epoch in range(6)] == [1, 1, 0.5, 0.5, 0.25, 0.25]
    assert step.rate(19, steps) == 1  # the whole epoch
    cosine = Recipe(schedule="cosine", lr=1.0, epochs=8)
    assert [round(cosine.rate(s, steps), 6) for s in (0, 40, 80)] == [1, 0.5, 0]
    one = Recipe(schedule="onecycle", lr=1.0, epochs=10, warm=0.3)
    rates = [one.rate(s, steps) for s in range(100)]
    assert rates[0] == pytest.approx(1 / 25)
    assert max(rates) == pytest.approx(1.0)
    assert rates.index(max(rates)) == 30
    assert rates[-1] < 1e-3
    assert all(b > a for a, b in pairwise(rates[:31]))
    assert all(b < a for a, b in pairwise(rates[30:]))
    assert Recipe(schedule="constant", lr=3.0).rate(12345, 7) == 3.0
    assert Recipe(warm=0.0, lr=1.0).rate(0, steps) == 1.0


def test_the_paper_and_ours():
    paper, ours = RECIPES["paper"], RECIPES["ours"]
    assert (paper.loss, paper.lr, paper.decay, paper.schedule, paper.every, paper.factor) == (
        "mse",
        1e-4,
        5e-4,
        "step",
        50,
        0.5,
    )
    assert (paper.optimizer, paper.epochs, paper.batch, paper.fresh, paper.clip) == ("adam", 200, 20, False, None)
    assert (ours.loss, ours.fresh, ours.pointwise, ours.schedule) == ("relative", True, False, "onecycle")
    assert NETWORKS["paper"]["kernel"] == (512, 1024)
    assert (SMOOTHING["paper"], SMOOTHING["ours"]) == (0.05, 0.1)
    assert {*NETWORKS} == {*SMOOTHING} < {*RECIPES}


def test_bad_recipes_are_refused():
    for changes, said in (
        ({"loss": "l7"}, r"Recipe\(loss='l7'\): use one of mse, abs, relative"),
        ({"optimizer": "sgd"}, "use one of adam, adamw, muon"),
        ({"schedule": "fast"}, "use one of constant, step, cosine, onecycle"),
        ({"precision": "fp8"}, "use one of fp64, fp32, tf32, bf16"),
        ({"epochs": 0}, r"Recipe\(epochs=0\): needed a whole number, at least 1, at most 2\^62"),
        ({"seed": 2**63}, "at most"),
        ({"lr": 0.0}, r"Recipe\(lr=0.0\): needed a number, > 0"),
        ({"lr": math.nan}, r"lr=nan"),
        ({"decay": -1.0}, ">= 0"),
        ({"clip": -1.0}, "> 0"),
        ({"warm": 1.5}, "at most 1"),
    ):
        with pytest.raises(ValueError, match=said):
            changed(Recipe(), **changes)
    with pytest.raises(ValueError, match="no recipe 'mine'; there are paper, ours"):
        recipe_named("mine")
    with pytest.raises(ValueError, match="a recipe has no 'learning_rate'; it has epochs, batch"):
        recipe_named("ours", learning_rate=1.0)
