"""NearFar: promises of the model."""

import subprocess
import sys

import pytest
import torch

from gkn.data.dataset import Dataset
from gkn.data.generate import make_dataset
from gkn.data.problems import Darcy
from gkn.geometry.cloud import Cloud
from gkn.geometry.grid import Grid
from gkn.graph.graph import Graph
from gkn.graph.neighbors import radius_graph
from gkn.graph.rules import Radius
from gkn.models import NearFar
from gkn.models import model_from as model_of
from gkn.models.nearfar import EMPTY, RMS_EPSILON
from gkn.operator.evaluate import relative_l2
from gkn.operator.operator import Operator
from gkn.operator.saved import load
from gkn.ops.balls import window
from gkn.train.fit import fit

R = 0.3


def small(**more):
    torch.manual_seed(0)
    sizes = {"width": 16, "blocks": 2, "slices": 4, "head": 8, "kernel": (8, 4), "radius": R}
    return NearFar(2, 2, 1, **{**sizes, **more}).double().eval()


def points(rng, count=40):
    x = torch.rand(count, 2, generator=rng, dtype=torch.float64)
    a = torch.randn(count, 2, generator=rng, dtype=torch.float64)
    return x, a, torch.rand(count, generator=rng, dtype=torch.float64) + 0.5


def by_the_formula(model, x, a, w):
    """Loops over points, and a matrix for every pair."""
    v = model.lift(torch.nn.functional.gelu(model.P(torch.cat([x, a], 1))))
    f = torch.cat([x / model.radius, a[:, :1]], 1)
    K = len(x)
    for block in model.layers:
        n = block.norm(v)
        new = v.clone()
        for i in range(K):
            d = ((x[i] - x) / model.radius).norm(dim=1)
            rho = torch.where(d <= 1, (1 - d**2) ** 2, 0) * w
            kappa = block.near.kappa.matrices(f[i].expand(K, -1), f)
            if model.differences:
                new[i] = new[i] + torch.einsum("k,kn,knm->m", rho, n - n[i], kappa - block.near.kappa.B) / rho.sum()
                kappa = block.near.kappa.B.expand_as(kappa)
            new[i] = new[i] + torch.einsum("k,kn,knm->m", rho, n, kappa) / rho.sum()
        values = block.far.value(n).reshape(K, block.far.heads, block.far.head)
        p = block.far.slice(n).reshape(K, block.far.heads, block.far.slices).softmax(-1)
        z = torch.zeros(block.far.heads, block.far.slices, block.far.head, dtype=torch.float64)
        for h in range(block.far.heads):
            for s in range(block.far.slices):
                share = w * p[:, h, s] / w.sum()
                z[h, s] = share @ values[:, h] / (share.sum() + EMPTY)
        query, key = (
            each / (each.square().mean(-1, keepdim=True) + RMS_EPSILON).sqrt()
            for each in (block.far.query(z), block.far.key(z))
        )
        scores = (query @ key.transpose(1, 2) / block.far.head**0.5).softmax(-1)
        far = torch.einsum("khs,hsd->khd", p, scores @ block.far.answer(z))
        new = new + block.far.out(far.flatten(1))
        v = new + block.network.down(torch.nn.functional.gelu(block.network.up(block.network.norm(new))))
    return model.Q(model.norm(v))


@pytest.mark.parametrize("differences", [True, False])
@pytest.mark.parametrize("backend", ["reference", "factored", None])
@pytest.mark.parametrize("recompute", [True, False])
def test_it_is_the_formula(rng, recompute, backend, differences):
    model, (x, a, w) = small(recompute=recompute, backend=backend, differences=differences), points(rng)
    found = model(radius_graph(x, r=R), x, a, w)
    torch.testing.assert_close(found, by_the_formula(model, x, a, w))


def test_what_slices_ask_each_other_has_no_size(rng):
    """Queries and keys that grow without bound, as they do in long trainings, make no slice deaf."""
    model, (x, a, w) = small(), points(rng)
    found = model(radius_graph(x, r=R), x, a, w)
    with torch.no_grad():
        for block in model.layers:
            block.far.query.weight *= 1e3
            block.far.key.weight *= 1e3
    torch.testing.assert_close(model(radius_graph(x, r=R), x, a, w), found, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("more", [{"near": False}, {"far": False}])
def test_one_field_alone(rng, more):
    model, (x, a, w) = small(**more), points(rng)
    graph = radius_graph(x, r=R)
    before = model(graph, x, a, w)
    moved = a.clone()
    moved[7] += 1
    changed = (model(graph, x, moved, w) - before).abs()[:, 0] > 1e-12
    reach = (x - x[7]).norm(dim=1) <= model.blocks * R
    assert bool(changed.all()) if not model.near else not bool(changed[~reach].any())


def test_the_order_of_points_does_not_matter(rng):
    model, (x, a, w) = small(), points(rng)
    order = torch.randperm(len(x), generator=rng)
    found = model(radius_graph(x[order], r=R), x[order], a[order], w[order])
    torch.testing.assert_close(found, model(radius_graph(x, r=R), x, a, w)[order])


def test_a_point_twice_with_half_its_weight_changes_nothing(rng):
    """Sums are quadratures: what counts is the measure, not how many points it is spread over."""
    model, (x, a, w) = small(), points(rng)
    twice = torch.cat([torch.arange(len(x)), torch.arange(10)])
    half = w[twice].clone()
    half[:10] /= 2
    half[len(x) :] /= 2
    found = model(radius_graph(x[twice], r=R), x[twice], a[twice], half)
    torch.testing.assert_close(found[: len(x)], model(radius_graph(x, r=R), x, a, w))


@pytest.mark.parametrize("sizes", [(40, 40), (40, 25, 31)])
def test_functions_side_by_side_do_not_see_each_other(rng, sizes):
    model = small()
    parts = [points(rng, size) for size in sizes]
    graph = Graph.batch([radius_graph(x, r=R) for x, _, _ in parts])
    together = model(graph, *(torch.cat([part[i] for part in parts]) for i in range(3)))
    alone = [model(radius_graph(x, r=R), x, a, w) for x, a, w in parts]
    torch.testing.assert_close(together, torch.cat(alone))


@pytest.mark.parametrize("differences", [True, False])
def test_queries_receive_and_do_not_send(rng, differences):
    model, (x, a, w) = small(differences=differences), points(rng)
    graph = radius_graph(x, r=R)
    states = model.states(graph, x, a, w)
    at, of_at, _ = points(rng, 15)
    alone = model.at(states, radius_graph(x, at[:1], r=R), (at[:1], of_at[:1]), (x, a), w)
    among = model.at(states, radius_graph(x, at, r=R), (at, of_at), (x, a), w)
    torch.testing.assert_close(among[:1], alone)
    torch.testing.assert_close(model.at(states, graph, (x, a), (x, a), w), model.finish(states))


def test_a_query_nobody_is_near_still_has_the_far_field(rng):
    model, (x, a, w) = small(), points(rng)
    at = torch.full((1, 2), 9.0, dtype=torch.float64)
    graph = radius_graph(x, at, r=R)
    assert graph.num_edges == 0
    states = model.states(radius_graph(x, r=R), x, a, w)
    assert torch.isfinite(model.at(states, graph, (at, a[:1]), (x, a), w)).all()


def test_the_window_is_smooth_at_the_radius():
    d = torch.tensor([[0.0], [0.5], [1.0], [1.2]], dtype=torch.float64, requires_grad=True)
    values = window(torch.zeros(4, 1, dtype=torch.float64), d)
    torch.testing.assert_close(values, torch.tensor([1, 0.5625, 0, 0], dtype=torch.float64))
    assert torch.autograd.grad(values.sum(), d)[0][2:].abs().max() == 0


@pytest.mark.parametrize("differences", [True, False])
@pytest.mark.parametrize("recompute", [True, False])
def test_gradients(rng, recompute, differences):
    model, (x, a, w) = small(recompute=recompute, differences=differences), points(rng, 12)
    graph = radius_graph(x, r=R)
    some = [dict(model.named_parameters())[name] for name in ("layers.0.near.kappa.W", "layers.1.far.slice.weight", "P.weight")]

    def loss():
        return model(graph, x, a, w).square().sum()

    gradients = torch.autograd.grad(loss(), some)
    for parameter, gradient in zip(some, gradients, strict=True):
        with torch.no_grad():
            direction = torch.randn(parameter.shape, generator=rng, dtype=torch.float64)
            eps = 1e-6
            parameter += eps * direction
            above = loss()
            parameter -= 2 * eps * direction
            below = loss()
            parameter += eps * direction
        torch.testing.assert_close((above - below) / (2 * eps), (gradient * direction).sum(), rtol=1e-5, atol=1e-8)


def test_made_again_from_its_description():
    model = small(near=True, features=(0, 1), differences=True)
    other = model_of(model.config()).double()
    other.load_state_dict(model.state_dict())
    assert other.config() == model.config()


def test_wrong_sizes_are_refused(rng):
    for wrong, said in (
        ({"width": 0}, "width=0"),
        ({"head": 3}, "heads of equal size"),
        ({"radius": -1.0}, "needed a length > 0"),
        ({"near": False, "far": False}, "at least one of the two"),
        ({"features": (2,)}, "needed different numbers of input fields, 0 to 1"),
        ({"kernel": ()}, "hidden layers"),
    ):
        with pytest.raises(ValueError, match=said):
            small(**wrong)
    model, (x, a, w) = small(), points(rng)
    with pytest.raises(ValueError, match=r"needed \(K, 2\) and \(K, 2\)"):
        model(radius_graph(x, r=R), x, a[:, :1], w)
    with pytest.raises(TypeError, match="needed"):
        NearFar.from_config({"kind": "NearFar", "dim": 2})
    known = small().config()
    assert NearFar.from_config(known).config() == known
    with pytest.raises(TypeError, match="a NearFar of form 1, made by another version of gkn; this one computes form 3"):
        NearFar.from_config({name: value for name, value in known.items() if name != "form"})


def test_it_is_trained_saved_and_asked_like_any_other(tmp_path):
    whole = make_dataset(Darcy(size=17), 24).smoothed(0.1)
    train, test = whole.split(16, 8)
    torch.manual_seed(0)
    model = NearFar(2, len(train.inputs), 1, 32, blocks=2, slices=8, radius=0.15)
    operator = fit(train, model, Radius(0.15), "nearfar", epochs=24, weighted=True, out=tmp_path / "run")
    found = relative_l2(operator, test)
    assert found.mean < 0.35
    again = load(tmp_path / "run")
    assert isinstance(again, Operator)
    assert isinstance(again.model, NearFar)
    sample = again.ready(test)[0]
    torch.testing.assert_close(again(sample), operator(sample))
    torch.testing.assert_close(again(sample, at=sample.x[3:9]), again(sample)[3:9], rtol=1e-4, atol=1e-5)
    cloud = Dataset(Cloud(sample.x, sample.weights), **{name: test.field(name) for name in ("a", "u")})
    assert again.ready(cloud)[0].domain.dim == 2
    fine = make_dataset(Darcy(size=33), 4, seed=5)
    assert relative_l2(again, fine).mean < 0.5
    assert isinstance(fine.domain, Grid)


@pytest.mark.parametrize("more", [{}, {"near": False}, {"far": False}, {"differences": True}])
def test_more_points_than_are_held_at_a_time(rng, monkeypatch, more):
    """In chunks, of functions of different sizes, with derivatives and with queries: the same."""
    sizes = (40, 25)
    given = [points(rng, size) for size in sizes]
    x, a, w = (torch.cat(each) for each in zip(*given, strict=True))
    graph = Graph.batch([radius_graph(each[0], r=R) for each in given])
    model = small(**more)
    at, nodes = (x[:20] + 0.01, a[:20]), (x[:40], a[:40])

    def everything():
        out = model(graph, x, a, w)
        states = model.states(radius_graph(x[:40], r=R), *nodes, w[:40])
        asked = model.at(states, radius_graph(x[:40], at[0], R), at, nodes, w[:40])
        return [out, asked, *torch.autograd.grad(out.square().sum() + asked.square().sum(), [*model.parameters()])]

    whole = everything()
    monkeypatch.setattr("gkn.ops.points.CHUNK", 16)
    for one, other in zip(everything(), whole, strict=True):
        torch.testing.assert_close(one, other)
    with torch.no_grad():
        torch.testing.assert_close(model(graph, x, a, w), whole[0])


def test_what_is_kept_for_the_derivative_does_not_grow_with_the_slices(rng, monkeypatch):
    """In chunks, the (points, slices) matrix is not among it."""
    x, a, w = points(rng, 60)
    graph, kept = radius_graph(x, r=R), {}
    for chunk in (16, 1000):
        monkeypatch.setattr("gkn.ops.points.CHUNK", chunk)
        seen = []
        with torch.autograd.graph.saved_tensors_hooks(lambda y, seen=seen: seen.append(y.numel()) or y, lambda y: y):
            small(near=False, slices=64, blocks=1)(graph, x, a, w)
        kept[chunk] = max(seen)
    assert kept[1000] >= 60 * 2 * 64
    assert kept[16] < 60 * 64


COMPILED = """
import torch
from contextlib import nullcontext
from functools import cache, partial
from torch._dynamo.testing import CompileCounterWithBackend
from gkn.models import NearFar, nearfar
from gkn.graph.neighbors import radius_graph

counter = CompileCounterWithBackend("aot_eager")
nearfar.compiled = cache(partial(torch.compile, dynamic=False, backend=counter))
torch.manual_seed(0)
model = NearFar(2, 2, 1, width=16, blocks=3, slices=4, head=8, kernel=(8, 4), radius=0.3).double()
x, a, w = torch.rand(40, 2).double(), torch.randn(40, 2).double(), torch.rand(40).double()
graph, found = radius_graph(x, r=0.3), []
for way in (nullcontext(), model.compiling()):
    model.zero_grad()
    with way:
        out = model(graph, x, a, w)
    out.square().sum().backward()
    found.append([out.detach(), *(each.grad.clone() for each in model.parameters())])
assert counter.frame_count == 2, counter.frame_count
for one, other in zip(*found):
    torch.testing.assert_close(one, other)
"""


def test_compiled_it_is_the_same_and_compiled_once_for_all_blocks():
    """Compile `send` and `update`, without the type checks that tests add to every call."""
    done = subprocess.run([sys.executable, "-c", COMPILED], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
