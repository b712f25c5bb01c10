"""Potential: one integral, linear in f, whose kernel is learned."""

import math

import pytest
import torch

from gkn import Dataset, LayerPotential, Operator, fit
from gkn.data.normalizer import Normalizer
from gkn.geometry.cloud import Cloud
from gkn.graph.rules import Radius
from gkn.models import Potential, model_from, potential


def learned(kind, size, **more):
    data = LayerPotential(kind=kind, size=size, frequencies=4).generate(24)
    return fit(data, "Potential", epochs=1, lr=1e-6, settings={"kernel": (8,), **more}, warn=lambda text: None)


def curves(kind, size, count=4, **more):
    return LayerPotential(kind=kind, size=size, frequencies=4, curves=2, **more).generate(count, 1)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("kind", "bound"), [("single", 0.012), ("double", 0.02)])
def test_learned_on_one_curve_it_answers_on_two(kind, bound):
    """Both kernels are in the span of s, grad s and the normals, so what is left is the error of the quadrature."""
    assert learned(kind, 48).evaluate(curves(kind, 48)).mean < bound


@pytest.mark.filterwarnings("ignore")
def test_twice_the_points_are_the_same_operator():
    operator = learned("single", 64)
    assert operator.evaluate(curves("single", 128)).mean < 0.01


def random_model(rng, channels=3, linear=(0,), dim=2, measured=1, outputs=1):
    torch.manual_seed(0)
    model = Potential(dim, channels, outputs, linear, kernel=(8, 8), measured=measured).double()
    for each in (model.A, model.network[-1], model.C):
        each.weight.data.normal_(generator=rng)
    model.f_mean.fill_(0.3)
    model.u_mean.fill_(-0.2)
    model.u_std.fill_(2.0)
    return model


def given(rng, count=20, channels=3, dim=2):
    x, a = (torch.randn(count, n, generator=rng, dtype=torch.float64) for n in (dim, channels))
    return x, a, torch.rand(count, generator=rng, dtype=torch.float64)


def answer(model, x, a, weights):
    graph = Radius(1.0).graph(x)
    return model(graph, x, a, weights) * model.u_std + model.u_mean


@pytest.mark.parametrize("dim", [1, 2, 3])
def test_the_sum_is_the_formula(dim, rng):
    """Pair by pair, with the kernel written out."""
    model = random_model(rng, dim=dim)
    x, a, weights = given(rng, dim=dim)
    f = a[:, 0] + 0.3
    expected = []
    for i in range(len(x)):
        total = model.C.weight[0, 0] * f[i]
        for j in range(len(x)):
            z = x[i] - x[j]
            rho = (z.square().sum() + (weights[j] / (2 * math.pi)) ** 2).sqrt()
            s = {1: rho, 2: rho.log(), 3: -1 / rho}[dim][None]
            one, g = rho.new_ones(1), torch.cat([a[i, 1:], a[j, 1:]])
            outer = torch.outer(torch.cat([one, z, s, z / rho**dim]), torch.cat([one, g])).flatten()
            seen = torch.cat([z, rho.log()[None] if dim == 3 else s, z / rho, g])
            K, L = model.A(outer) + model.network(seen)
            total = total + weights[j] * (K * f[j] + L * f[i])
        expected.append(total)
    torch.testing.assert_close(answer(model, x, a, weights)[:, 0], torch.stack(expected))


def test_it_is_linear_in_f_whatever_the_parameters(rng):
    model = random_model(rng)
    x, a, weights = given(rng)
    f, g = (torch.randn(len(x), generator=rng, dtype=torch.float64) for _ in range(2))

    def of(values):
        return answer(model, x, torch.cat([(values - 0.3)[:, None], a[:, 1:]], 1), weights)

    torch.testing.assert_close(of(2 * f - 3 * g), 2 * of(f) - 3 * of(g))


def test_answers_on_two_domains_add_up(rng):
    """u on a part is the sum of the integrals over both parts: nothing is divided by the measure."""
    model = random_model(rng, linear=(0, 1, 2))
    model.f_mean.fill_(0)
    x, a, weights = given(rng)
    first = torch.arange(len(x)) < 8
    alone = [answer(model, x, torch.where(part[:, None], a, 0.0), weights) for part in (first, ~first)]
    torch.testing.assert_close(alone[0] + alone[1], answer(model, x, a, weights))


def test_pairs_in_parts_are_the_same(rng, monkeypatch):
    x, a, weights = given(rng)
    results = []
    for pairs in (10**6, 45):
        monkeypatch.setattr(potential, "PAIRS", pairs)
        model = random_model(torch.Generator().manual_seed(1))
        u = answer(model, x, a, weights)
        results.append((u, *torch.autograd.grad(u.square().sum(), [*model.parameters()])))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other)


def test_queries_at_nodes_have_the_values_of_the_nodes(rng):
    points = torch.rand(30, 2, generator=rng, dtype=torch.float64)
    f, u = (torch.randn(4, 30, generator=rng, dtype=torch.float64) for _ in range(2))
    data = Dataset(Cloud(points), f=f, u=u)
    operator = Operator(random_model(rng, channels=1, measured=2), Radius(1.0), weighted=True)
    at = torch.tensor([2, 17])
    exact = operator(data[0])
    # A query has f by interpolation, and its distance to itself is that of the node: the values are the same.
    torch.testing.assert_close(operator(data[0], at=points[at]), exact[at])


def test_means_and_deviations_are_those_of_the_data(rng):
    data = LayerPotential(size=24, frequencies=4).generate(6)
    model = Potential(2, 1, 1, kernel=(4,))
    inputs, outputs = (Normalizer.fit(data, names) for names in (data.inputs, data.outputs))
    model.prepare([data], inputs, outputs)
    torch.testing.assert_close(model.u_std.double(), outputs.std, atol=1e-6, rtol=1e-6)
    assert float(model.A.weight.detach().abs().max()) > 0.1


def test_a_stored_model_is_the_same(rng):
    model = random_model(rng)
    again = model_from(model.config()).double()
    again.load_state_dict(model.state_dict())
    x, a, weights = given(rng)
    assert torch.equal(answer(model, x, a, weights), answer(again, x, a, weights))


def test_normals_and_marks_are_for_the_kernel():
    data = LayerPotential(kind="double", size=24, frequencies=4).generate(2)
    suggested = Potential.defaults(data)
    assert suggested.settings == {"linear": (0,), "measured": 1}


@pytest.mark.parametrize("wrong", [{"linear": ()}, {"kernel": ()}, {"measured": 3}])
def test_wrong_settings_are_refused(wrong):
    with pytest.raises(ValueError, match=r"Potential\("):
        Potential(2, 2, 1, **{"linear": (0,), **wrong})


def test_weights_are_needed(rng):
    x, a, _ = given(rng)
    with pytest.raises(ValueError, match="weighted=True"):
        random_model(rng)(Radius(1.0).graph(x), x, a)
