import pytest
import torch

from gkn import Grid, Mesh, Nystrom, Radius
from gkn.graph.rules import BALL, draw_nodes, usual_radius

PINNED = [[3, 304, 320, 717, 720, 952], [106, 449, 477, 748, 790, 818]]


def test_draws_are_nodes_without_replacement():
    draws = Nystrom(0.25, 50, 4).draws(120, [7, 3], seed=3)
    assert draws.shape == (2, 4, 50)
    rows = draws.reshape(8, 50)
    assert all(len({*row.tolist()}) == 50 for row in rows)
    assert torch.equal(rows, rows.sort().values)
    assert rows.min() >= 0
    assert rows.max() < 120
    assert len({tuple(row.tolist()) for row in rows}) == 8


def test_nodes_drawn_for_a_prediction_are_different(rng):
    assert torch.equal(draw_nodes(40, 40, rng), torch.arange(40))
    some = draw_nodes(40, 30, rng)
    assert len({*some.tolist()}) == 30
    assert torch.equal(some, some.sort().values)


def test_every_node_is_as_likely():
    """4000 draws of 5 of 20: each node within 5 standard errors of a quarter."""
    draws = Nystrom(0.25, 5, 4000).draws(20, [0])[0]
    share = torch.bincount(draws.reshape(-1), minlength=20) / 4000
    assert (share - 0.25).abs().max() < 5 * (0.25 * 0.75 / 4000) ** 0.5
    pairs = sum(1 for draw in draws.tolist() if 3 in draw and 11 in draw) / 4000
    expected = 5 * 4 / (20 * 19)
    assert abs(pairs - expected) < 5 * (expected * (1 - expected) / 4000) ** 0.5


def test_draws_of_samples_and_epochs_know_nothing_of_each_other():
    """3000 epochs of one sample, and 3000 samples of one epoch: a node is drawn again as often as chance has it."""
    rule = Nystrom(0.25, 5, 1)
    epochs = torch.stack([rule.draws(20, [4], epoch=epoch)[0, 0] for epoch in range(3000)])
    samples = rule.draws(20, range(3000))[:, 0]
    for draws in (epochs, samples):
        chosen = torch.zeros(3000, 20).scatter_(1, draws, 1.0)
        again = (chosen[1:] * chosen[:-1]).sum(1).mean()  # of 5, hypergeometric
        assert abs(float(again) - 5 * 5 / 20) < 5 * (0.7402 / 2999) ** 0.5 * 2


def test_draws_depend_on_seed_sample_draw_and_epoch_alone():
    rule = Nystrom(0.25, 50, 2)
    here = rule.draws(200, [2], seed=1, epoch=9)
    assert torch.equal(here, rule.draws(200, [5, 2, 7], seed=1, epoch=9)[1:2])  # whoever else is asked for
    assert torch.equal(here[:, :1], Nystrom(0.25, 50, 1).draws(200, [2], seed=1, epoch=9))
    for other in ({"seed": 2, "epoch": 9}, {"seed": 1, "epoch": 8}, {"seed": 9, "epoch": 1}):
        assert not torch.equal(here, rule.draws(200, [2], **other))
    assert not torch.equal(here, rule.draws(200, [3], seed=1, epoch=9))


def test_draws_are_the_same_on_every_machine():
    """Numbers worked out once; another version of torch, or a GPU, must not change what a run sees."""
    assert Nystrom(0.25, 6, 2).draws(1000, [3], seed=5, epoch=2)[0].tolist() == PINNED


def test_draws_in_parts(monkeypatch):
    whole = Nystrom(0.25, 5, 3).draws(40, range(7))
    monkeypatch.setattr("gkn.graph.rules._AT_A_TIME", 80)
    assert torch.equal(whole, Nystrom(0.25, 5, 3).draws(40, range(7)))


def test_graphs(rng):
    x = torch.rand(30, 2, generator=rng, dtype=torch.float64)
    assert Radius(0.1).graph(x, r=5.0).num_edges == 900
    assert Nystrom(5.0, 3).graph(x, x[:4]).num_edges == 120


def test_bad_rules_are_refused():
    with pytest.raises(ValueError, match=r"Radius\(r=0.0\): the radius must be a finite number > 0"):
        Radius(0)
    with pytest.raises(ValueError, match=r"r=nan"):
        Nystrom(float("nan"), 3)
    with pytest.raises(ValueError, match=r"Nystrom\(r=0.1, m=0, l=1\): needed at least one node"):
        Nystrom(0.1, 0)
    with pytest.raises(ValueError, match=r"300 nodes of a domain that has 200; use m <= 200, or Radius\(0.1\) for all"):
        Nystrom(0.1, 300).draws(200, [0])


@pytest.mark.parametrize("domain", [Grid(43), Grid(30, dim=3), Grid(401, dim=1), Mesh.square(0.03)])
def test_balls_that_have_enough_points(domain):
    """Away from the boundary; and as many of fewer points that are drawn."""
    inner = (domain.points - 0.5).norm(dim=1) < 0.1
    degrees = Radius(usual_radius(domain)).graph(domain.points, domain.points[inner]).degrees
    assert 0.6 < float(degrees.double().mean()) / BALL[domain.dim] < 1.4
    assert usual_radius(domain, len(domain) // 2) == pytest.approx(usual_radius(domain) * 2 ** (1 / domain.dim), rel=0.01)
