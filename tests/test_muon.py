"""Muon: what a step is."""

import pytest
import torch
from torch import nn

from gkn.data.generate import make_dataset
from gkn.data.problems import Darcy
from gkn.graph.rules import Radius
from gkn.models import NearFar
from gkn.train.fit import fit
from gkn.train.muon import LENGTH, MOMENTUM, Muon, orthogonal


@pytest.mark.parametrize("shape", [(1, 16, 16), (3, 8, 40), (6, 40, 8)])
def test_nearly_orthogonal(rng, shape):
    """Singular vectors are kept and singular values are near 1 for matrices of any size."""
    x = torch.randn(shape, generator=rng, dtype=torch.float64)
    for scale in (1e-6, 1.0, 1e6):
        found = orthogonal(scale * x)
        assert found.shape == x.shape
        values = torch.linalg.svdvals(found)
        assert float(values.min()) > 0.6
        assert float(values.max()) < 1.3
        u, _, v = torch.linalg.svd(x, full_matrices=False)
        inner = u.mT @ found @ v.mT
        torch.testing.assert_close(inner, torch.diag_embed(inner.diagonal(dim1=-2, dim2=-1)), atol=1e-8, rtol=0)
    for scale in (0.0, 1e-25, 1e-40):  # as of a unit that has not been active for long: squares of these numbers are 0
        assert float(orthogonal(scale * x.float()).abs().max()) < 1e-12


def test_a_step(rng):
    """A step of a stack of matrices equals one computed by hand; all other parameters take the step of AdamW."""
    matrices, vector = torch.randn(3, 8, 20, generator=rng), torch.randn(20, generator=rng)
    ours = [nn.Parameter(each.clone()) for each in (matrices, vector)]
    theirs = nn.Parameter(vector.clone())
    one, other = Muon(ours, lr=0.1, weight_decay=0.2), torch.optim.AdamW([theirs], lr=0.1, weight_decay=0.2)
    momentum, wanted = torch.zeros_like(matrices), matrices.clone()
    for lr in (0.1, 0.05):
        of_matrices, of_vector = torch.randn(3, 8, 20, generator=rng), torch.randn(20, generator=rng)
        ours[0].grad, ours[1].grad, theirs.grad = of_matrices, of_vector, of_vector.clone()
        one.param_groups[0]["lr"] = other.param_groups[0]["lr"] = lr
        one.step()
        other.step()
        momentum = MOMENTUM * momentum + (1 - MOMENTUM) * of_matrices
        ahead = (1 - MOMENTUM) * of_matrices + MOMENTUM * momentum
        wanted = wanted * (1 - lr * 0.2) - lr * LENGTH * 20**0.5 * torch.cat([orthogonal(each[None]) for each in ahead])
        torch.testing.assert_close(ours[0].data, wanted)
        assert torch.equal(ours[1], theirs)
    assert {*one.state[ours[0]]} == {"momentum"}
    assert "exp_avg" in one.state[ours[1]]
    ours[0].grad = ours[1].grad = None
    one.step()  # nothing to do
    torch.testing.assert_close(ours[0].data, wanted)


def test_one_kind_alone(rng):
    for shape in ((9, 9), (3,)):
        only = nn.Parameter(torch.randn(shape, generator=rng))
        before, only.grad = only.detach().clone(), torch.ones(shape)
        Muon([only], lr=0.1).step()
        assert (only != before).all()


def test_it_learns_and_goes_on_after_a_stop_to_the_same_bits(tmp_path):
    data = make_dataset(Darcy(size=9, modes=8), 6)

    def network():
        torch.manual_seed(0)
        return NearFar(2, 1, 1, width=16, blocks=1, slices=4, head=8, kernel=(8, 4), radius=0.3)

    options = {"optimizer": "muon", "lr": 1e-2, "batch": 2, "epochs": 4}
    whole = fit(data, network(), Radius(0.3), "ours", **options)
    assert whole.about["metrics"]["loss"] < 0.9

    class Enough(Exception):
        pass

    def stop(status):
        if status.step == 7:
            raise Enough

    with pytest.raises(Enough):
        fit(data, network(), Radius(0.3), "ours", out=tmp_path, save_every=0.0, report=stop, **options)
    again = fit(data, network(), Radius(0.3), "ours", out=tmp_path, **options)
    for one, other in zip(again.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(one, other)
