"""Waves: Fourier coefficients on any points of a periodic domain, and the periodic field of NearFar."""

import math
from itertools import pairwise

import pytest
import torch

from gkn.data.dataset import Dataset
from gkn.geometry.cloud import Cloud
from gkn.geometry.grid import Grid
from gkn.graph.rules import Radius
from gkn.models import NearFar
from gkn.models import model_from as model_of
from gkn.operator.operator import Operator
from gkn.ops import points
from gkn.ops.waves import Waves, wave_vectors


def waves_of(x, longest=3):
    return Waves(x, 2 * math.pi * wave_vectors(x.shape[1], tuple(range(x.shape[1])), longest))


def shares(count):
    return torch.full((count,), 1 / count, dtype=torch.float64)


@pytest.mark.parametrize("dim", [1, 2, 3])
def test_vectors_are_one_of_each_pair_in_a_ball(dim):
    vectors = wave_vectors(dim, tuple(range(dim)), 3)
    both = {tuple(k) for k in vectors.tolist()} | {tuple(k) for k in (-vectors).tolist()}
    sides = [range(-3, 4)] * dim
    expected = [k for k in torch.cartesian_prod(*map(torch.tensor, sides)).reshape(-1, dim).tolist() if math.hypot(*k) <= 3]
    assert both == {tuple(map(float, k)) for k in expected}
    assert len(vectors) == (len(expected) + 1) // 2


def test_vectors_lie_along_the_periodic_axes():
    assert wave_vectors(3, (1,), 2).tolist() == [[0, 0, 0], [0, 1, 0], [0, 2, 0]]


def test_a_function_of_few_waves_comes_back():
    x = Grid(9, periodic=True).points
    phase = 2 * math.pi * x
    v = torch.stack([1 + 2 * (2 * phase[:, 0] - phase[:, 1]).sin(), 2 * phase[:, 1].cos() + 3], 1)
    waves = waves_of(x)
    found = waves.values(waves.coefficients(v, shares(len(x)), (0, len(x))), (0, len(x)))
    means = v.mean(0)
    torch.testing.assert_close(found, means + (v - means) / 2)


@pytest.mark.parametrize("cuts", [(0, 30), (0, 10, 20, 30), (0, 7, 30)])
def test_coefficients_are_the_sums(cuts, rng):
    x, v, share = (torch.rand(30, n, generator=rng, dtype=torch.float64) for n in (2, 5, 1))
    vectors = wave_vectors(2, (0, 1), 3) * 2 * math.pi
    found = Waves(x, vectors).coefficients(v, share[:, 0], cuts)
    for part, (start, stop) in zip(found, pairwise(cuts), strict=True):
        some = slice(start, stop)
        for j, k in enumerate(vectors):
            for offset, wave in ((0, torch.cos), (len(vectors), torch.sin)):
                expected = (share[some] * wave(x[some] @ k)[:, None] * v[some]).sum(0)
                torch.testing.assert_close(part[j + offset], expected)


def test_many_points_in_chunks_are_the_same(rng, monkeypatch):
    x, v, share = (torch.rand(40, n, generator=rng, dtype=torch.float64) for n in (2, 3, 1))
    v.requires_grad_()
    results = []
    for chunk in (100, 7):
        monkeypatch.setattr("gkn.ops.waves.CHUNK", chunk)
        monkeypatch.setattr(points, "CHUNK", chunk)
        waves = waves_of(x)
        c = waves.coefficients(v, share[:, 0], (0, 15, 40))
        u = waves.values(c * torch.arange(c.shape[1])[:, None], (0, 15, 40))
        results.append((c, u, *torch.autograd.grad(u.square().sum(), v)))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other)


def model(dim=2, **more):
    torch.manual_seed(0)
    sizes = {"width": 16, "blocks": 2, "slices": 4, "head": 8, "kernel": (8, 4), "radius": 0.3}
    return NearFar(dim, 2, 1, **{**sizes, "periodic": (*range(dim),), "waves": 3, **more}).double().eval()


def test_a_wave_field_is_a_convolution(rng):
    """Each coefficient is multiplied by a complex matrix per head, between two real ones."""
    field = model().layers[0].waves
    M = len(field.real)
    c = torch.randn(2, 2 * M, 16, generator=rng, dtype=torch.float64)
    whole = torch.complex(c[:, :M], -c[:, M:]) @ field.value.weight.T.to(torch.complex128)
    R = torch.complex(field.real, field.imaginary)
    mixed = torch.stack([whole[..., h * 8 : h * 8 + 8, None].mT @ R[None, :, h].mT for h in range(2)], 2).flatten(2)
    expected = mixed @ field.out.weight.T.to(torch.complex128)
    torch.testing.assert_close(field(c), torch.cat([expected.real, -expected.imag], 1))


def operator(network, rng, grid):
    a, b, u = (torch.randn(4, len(grid), generator=rng, dtype=torch.float64) for _ in range(3))
    data = Dataset(grid, a=a, b=b, u=u)
    return Operator(network, Radius(network.radius)), data


@pytest.mark.parametrize("backend", ["reference", "factored"])
def test_hidden_features_that_are_computed_again_change_nothing(rng, backend):
    grid = Grid(8, periodic=True)
    graph, a = Radius(0.3).wrapped(grid.points, periods=grid.periods), torch.randn(64, 2, generator=rng, dtype=torch.float64)
    found = [model(recompute=again, backend=backend)(graph, grid.points, a) for again in (True, False)]
    torch.testing.assert_close(*found)


def test_queries_at_nodes_have_the_values_of_the_nodes(rng):
    grid = Grid(10, periodic=True)
    trained, data = operator(model(), rng, grid)
    exact = trained(data[0])
    at = torch.tensor([0, 17, 99])
    torch.testing.assert_close(trained(data[0], at=grid.points[at]), exact[at])


def test_waves_reach_across_the_domain(rng):
    """The far field sees which values there are, and not where: on a periodic domain it needs waves for that."""
    grid = Grid(16, periodic=True)
    a = torch.randn(2, len(grid), generator=rng, dtype=torch.float64)
    moving = ((grid.points - torch.tensor([0.5, 0.5])).abs() < 0.13).all(1)
    moved = a.clone()
    moved[:, moving] = a[:, moving].flip(1)  # the same values at other points
    for waves, reached in ((0, False), (3, True)):
        network = model(waves=waves, near=False)
        data = Dataset(grid, a=torch.stack([a[0], moved[0]]), b=torch.stack([a[1], moved[1]]), u=a)
        u = Operator(network, Radius(network.radius))
        difference = float((u(data[0])[0] - u(data[1])[0]).abs().max())
        assert (difference > 1e-9) == reached


def test_configurations_without_waves_are_as_before():
    assert "waves" not in model(waves=0).config()
    assert model_of(model().config()).waves == 3
    assert model_of(model(waves=0).config()).waves == 0


@pytest.mark.parametrize("wrong", [{"waves": -1}, {"waves": 3, "periodic": ()}])
def test_wrong_numbers_of_waves_are_refused(wrong):
    with pytest.raises(ValueError, match="waves="):
        model(**wrong)


def test_a_domain_without_periods_is_refused(rng):
    cloud = Cloud(torch.rand(30, 2, generator=rng, dtype=torch.float64))
    trained, data = operator(model(), rng, cloud)
    with pytest.raises(ValueError, match="period"):
        trained(data[0])


@pytest.mark.parametrize(("dim", "size", "waves"), [(1, 256, 32), (1, 32, 8), (2, 64, 12), (2, 8, 2), (3, 32, 5)])
def test_suggested_waves_are_resolved(dim, size, waves):
    grid = Grid((size,) * dim, periodic=True)
    data = Dataset(grid, a=torch.rand(2, len(grid)), u=torch.rand(2, len(grid)))
    assert NearFar.defaults(data).settings["waves"] == waves


def test_an_operator_with_waves_is_read_in_another_process(tmp_path, rng):
    """Networks are first built without memory; their wave vectors must not be."""
    with torch.device("meta"):
        assert wave_vectors(2, (0, 1), 3).device.type == "cpu"
    trained, data = operator(model(), rng, Grid(8, periodic=True))
    trained.save(tmp_path)
    assert torch.equal(Operator.load(tmp_path, dtype=torch.float64)(data[0]), trained(data[0]))
