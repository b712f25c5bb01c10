import pytest
import torch

from gkn import Nystrom, Radius


def test_draws_are_nodes_without_replacement():
    draws = Nystrom(0.25, 50, 4).draws(120, seed=3, sample=7)
    assert draws.shape == (4, 50)
    assert all(len(set(draw.tolist())) == 50 for draw in draws)
    assert draws.min() >= 0
    assert draws.max() < 120
    assert len({tuple(draw.tolist()) for draw in draws}) == 4


def test_every_node_is_as_likely():
    """4000 draws of 5 of 20: each node within 5 standard errors of a quarter."""
    draws = Nystrom(0.25, 5, 4000).draws(20)
    share = torch.bincount(draws.reshape(-1), minlength=20) / 4000
    assert (share - 0.25).abs().max() < 5 * (0.25 * 0.75 / 4000) ** 0.5
    pairs = sum(1 for draw in draws.tolist() if 3 in draw and 11 in draw) / 4000
    expected = 5 * 4 / (20 * 19)
    assert abs(pairs - expected) < 5 * (expected * (1 - expected) / 4000) ** 0.5


def test_fixed_or_fresh():
    fixed, fresh = Nystrom(0.25, 50, 2), Nystrom(0.25, 50, 2, fresh=True)
    assert torch.equal(fixed.draws(200, seed=1, sample=2, epoch=0), fixed.draws(200, seed=1, sample=2, epoch=9))
    assert not torch.equal(fresh.draws(200, seed=1, sample=2, epoch=0), fresh.draws(200, seed=1, sample=2, epoch=9))
    assert torch.equal(fresh.draws(200, seed=1, sample=2, epoch=9), fresh.draws(200, seed=1, sample=2, epoch=9))
    for key in ({"seed": 1}, {"sample": 1}):
        assert not torch.equal(fixed.draws(200), fixed.draws(200, **key))


def test_radius_takes_every_node(rng):
    assert torch.equal(Radius(0.1).draws(7), torch.arange(7)[None])
    x = torch.rand(30, 2, generator=rng, dtype=torch.float64)
    assert Radius(0.1).graph(x, r=5.0).num_edges == 900
    assert Nystrom(5.0, 3).graph(x, x[:4]).num_edges == 120


def test_bad_rules_are_refused():
    with pytest.raises(ValueError, match=r"Radius\(r=0.0\): the radius must be a finite number > 0"):
        Radius(0)
    with pytest.raises(ValueError, match=r"r=nan"):
        Nystrom(float("nan"), 3)
    with pytest.raises(ValueError, match=r"Nystrom\(r=0.1, m=0, l=1, fresh=False\): needed at least one node"):
        Nystrom(0.1, 0)
    with pytest.raises(ValueError, match=r"300 nodes of a domain that has 200; use m <= 200, or Radius\(0.1\) for all"):
        Nystrom(0.1, 300).draws(200)
