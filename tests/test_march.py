"""All steps as one function are the steps one by one."""

import copy
import io

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from gkn.graph.graph import Graph
from gkn.graph.neighbors import radius_graph
from gkn.models import GKN
from gkn.ops import integral as module
from gkn.ops.march import March


def setting(rng, kernel=(5, 7), steps=3, dtype=torch.float64, sizes=(9, 14, 2, 11), width=4, **options):
    torch.manual_seed(0)
    model = GKN(2, 2, 1, width=width, kernel=kernel, steps=steps, **options).to(dtype)
    points = [torch.rand(size, 2, generator=rng, dtype=torch.float64) for size in sizes]
    graph = Graph.batch([radius_graph(x, r=0.4) for x in points])
    a = torch.randn(graph.num_sources, 2, generator=rng, dtype=torch.float64)
    return model, graph, torch.cat(points).to(dtype), a.to(dtype)


def gradients(model, graph, x, a, weights=None, one_by_one=False):
    """The output, and its derivatives in all parameters and inputs (not the points, where a density needs them)."""
    x, a = x.clone().requires_grad_(model.rho is None), a.clone().requires_grad_()
    out = model.project(model.states(graph, x, a, weights)[-1]) if one_by_one else model(graph, x, a, weights)
    wanted = [*model.parameters(), a, *([x] if x.requires_grad else [])]
    return [out.detach(), *torch.autograd.grad(out.sin().sum(), wanted)]


@pytest.fixture
def marches(monkeypatch):
    """Record the number of groups of each call."""
    seen, call = [], March.__call__

    def watched(self, *given):
        seen.append(len(self.groups))
        return call(self, *given)

    monkeypatch.setattr(March, "__call__", watched)
    return seen


CASES = [((5,), {}), ((5, 7), {}), ((4, 6, 3), {}), ((5, 7), {"last_sigma": False}), ((5, 7), {"steps": 1})]


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize(
    ("backend", "kernel", "options", "measure"),
    [("factored", *case, measure) for case in CASES for measure in ("mean", "weights", "rho", "both")]
    + [("fused", *case, measure) for case, measure in zip(CASES[1:4], ("mean", "mean", "both"), strict=True)]
    + [pytest.param("fused", *case, "weights", marks=pytest.mark.slow) for case in (CASES[0], CASES[4])],
)
def test_it_is_the_steps_one_by_one(rng, monkeypatch, marches, backend, kernel, options, measure, recompute):
    if measure in ("rho", "both"):
        options = {**options, "rho": lambda x, y: torch.exp(-(x - y).square().sum(1))}
    model, graph, x, a = setting(rng, kernel, **options)
    weights = torch.rand(len(x), generator=rng, dtype=torch.float64) if measure in ("weights", "both") else None
    model.backend, model.recompute = "factored", False
    truth = gradients(model, graph, x, a, weights, one_by_one=True)
    assert not marches
    kind = torch.float32 if backend == "fused" else torch.float64
    model, x, a = model.to(kind), x.to(kind), a.to(kind)
    model.backend, model.recompute = backend, recompute
    for name in ("GROUP_BYTES", "KEPT_BYTES"):
        monkeypatch.setattr(module, name, {"cpu": 110 * sum(kernel) * kind.itemsize})
    found = gradients(model, graph, x, a, weights)
    assert len(marches) == 1
    assert marches[0] > 1, "several groups"
    for mine, exact in zip(found, truth, strict=True):
        assert float((mine.double() - exact).norm() / exact.norm()) < (1e-12 if kind == torch.float64 else 1e-4)


@pytest.mark.parametrize("recompute", [pytest.param(False, marks=pytest.mark.slow), True])
def test_twice_differentiable(rng, marches, recompute):
    model, graph, x, a = setting(rng, (3, 4), 2, sizes=(4, 3), width=2, recompute=recompute)
    names, given = zip(*model.named_parameters(), strict=True)

    def call(a, *parameters):
        return torch.func.functional_call(model, dict(zip(names, parameters, strict=True)), (graph, x, a))

    given = [tensor.detach().requires_grad_() for tensor in (a, *given)]
    assert torch.autograd.gradcheck(call, given)
    assert torch.autograd.gradgradcheck(call, given)
    assert marches


def test_frozen_parameters_and_twice_backward(rng):
    model, graph, x, a = setting(rng)
    truth = gradients(model, graph, x, a)
    model.kappa.requires_grad_(False)
    out = model(graph, x, a)
    for _ in range(2):
        model.zero_grad()
        out.sin().sum().backward(retain_graph=True)
        torch.testing.assert_close(model.W.weight.grad, truth[1 + [*dict(model.named_parameters())].index("W.weight")])
    assert model.kappa.W.grad is None


def test_bf16_is_as_good_as_one_by_one(rng):
    model, graph, x, a = setting(rng, (16, 16), 3, torch.float32, sizes=(14, 20), width=8)
    truth = gradients(model.double(), graph, x.double(), a.double(), one_by_one=True)
    model = model.float()
    errors = {}
    for backend in ("factored", "fused"):
        model.backend = backend
        for one_by_one in (False, True):
            with torch.autocast("cpu", torch.bfloat16):
                found = gradients(model, graph, x, a, one_by_one=one_by_one)
            pairs = zip(found, truth, strict=True)
            errors[backend, one_by_one] = [float((mine.double() - exact).norm() / exact.norm()) for mine, exact in pairs]
        for mine, other in zip(errors[backend, False], errors[backend, True], strict=True):
            assert mine < 2 * other + 1e-3


def test_what_is_kept_between_the_passes(rng, marches):
    """With recompute nothing that grows with the edges; without it the last hidden features, once, and not those before."""
    held = {}
    for recompute in (False, True):
        for r in (0.1, 0.4):
            torch.manual_seed(0)
            model = GKN(2, 1, 1, width=4, kernel=(16, 16), steps=3, recompute=recompute)
            points = [torch.rand(200, 2, generator=torch.Generator().manual_seed(i), dtype=torch.float64) for i in range(2)]
            graph = Graph.batch([radius_graph(x, r=r) for x in points])
            seen = {}

            def pack(tensor, seen=seen):
                if tensor.is_floating_point():
                    seen[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
                return tensor

            with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
                model(graph, torch.cat(points).float(), torch.randn(400, 1, generator=rng))
            held[recompute, r] = sum(seen.values()), graph.num_edges * 16 * 4
    assert held[True, 0.4][0] == held[True, 0.1][0]
    for r in (0.1, 0.4):
        assert held[False, r][0] - held[True, r][0] == held[False, r][1]
    assert len(marches) == 4


def test_a_large_component_is_done_step_by_step(rng, monkeypatch, marches):
    model, graph, x, a = setting(rng, recompute=True)
    truth = gradients(model, graph, x, a)
    assert marches == [1]
    monkeypatch.setattr(module, "GROUP_BYTES", {"cpu": 100})
    found = gradients(model, graph, x, a)
    assert marches == [1]
    for mine, exact in zip(found, truth, strict=True):
        torch.testing.assert_close(mine, exact)


def test_the_same_bits_every_time(rng):
    model, graph, x, a = setting(rng, (16, 32), dtype=torch.float32, sizes=(60, 70))
    first = gradients(model, graph, x, a)
    for _ in range(10):
        assert all(torch.equal(one, other) for one, other in zip(gradients(model, graph, x, a), first, strict=True))


def test_nan_in_one_graph_stays_there(rng):
    model, graph, x, a = setting(rng)
    clean = model(graph, x, a)
    a[3] = float("nan")
    found = model(graph, x, a)
    assert torch.isnan(found[:9]).any()
    assert torch.equal(found[9:], clean[9:])


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("room", [2**26, 100])
def test_a_backward_pass_inside_autocast_is_the_one_outside(rng, monkeypatch, recompute, room):
    monkeypatch.setattr(module, "GROUP_BYTES", {"cpu": room})
    model, graph, x, a = setting(rng, dtype=torch.float32, recompute=recompute)
    found = []
    for inside in (False, True):
        states = model.states(graph, x, a) if room == 100 else None
        integral = model._plan(graph, (x, a), (x, a), None)
        out = states[-1] if states else integral.march(model.lift(x, a), model.W, 3, True)
        with torch.autocast("cpu", torch.bfloat16, enabled=inside):
            found.append(torch.autograd.grad(out.square().sum(), [model.kappa.W, model.kappa.B, model.kappa.hidden[0].weight]))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5 if not states else 3e-2, atol=1e-5 if not states else 3e-2)


def test_cuts_are_those_of_the_batch(rng):
    one, two = (radius_graph(torch.rand(n, 2, generator=rng, dtype=torch.float64), r=0.5) for n in (5, 8))
    batch = Graph.batch([one, two, one])
    assert batch.cuts == (0, 5, 13, 18)
    assert Graph.batch([batch, two]).cuts == (0, 5, 13, 18, 26)
    assert batch.to("cpu").cuts == batch.cuts
    for piece, graph in zip(((0, 5), (5, 13), (13, 18)), (one, two, one), strict=True):
        assert torch.equal(batch.between(*piece).ptr, graph.ptr)
        assert torch.equal(batch.between(*piece).src, graph.src)
    bipartite = Graph(torch.tensor([0, 1]), torch.tensor([2]), 3)
    assert Graph.batch([bipartite, bipartite]).cuts == (0, 2)


def test_nodes_by_degree_is_the_same_graph_renumbered(rng):
    graph = radius_graph(torch.rand(30, 2, generator=rng, dtype=torch.float64), r=0.3)
    tidy, order = graph.nodes_by_degree
    assert tidy.is_sorted
    pairs = {(int(order[t]), int(order[s])) for t, s in zip(tidy.targets, tidy.src, strict=True)}
    assert pairs == set(zip(graph.targets.tolist(), graph.src.tolist(), strict=True))


@pytest.mark.parametrize("room", [2**26, 400, 100], ids=["a group", "groups", "blocks"])
@pytest.mark.parametrize("options", [{}, {"last_sigma": False, "recompute": True}])
def test_a_derivative_that_can_be_differentiated_again_is_the_same(rng, monkeypatch, options, room):
    """Also where inputs depend on each other, or are there twice: through one network twice, and with tied layers."""
    for name in ("GROUP_BYTES", "KEPT_BYTES"):
        monkeypatch.setattr(module, name, {"cpu": room * 15 if room == 400 else room})
    rho = {"rho": lambda x, y: torch.exp(-(x - y).square().sum(1))}
    model, graph, x, a = setting(rng, (5, 5, 5), **options, **rho)
    model.kappa.hidden[1].weight = model.kappa.hidden[0].weight
    weights = torch.rand(len(x), generator=rng, dtype=torch.float64)
    parameters = [*model.parameters()]

    def loss():
        once = model(graph, x, a, weights)
        return model(graph, x, torch.cat([once, a[:, 1:]], 1), weights).sin().sum()

    exact = torch.autograd.grad(loss(), parameters)
    for one, other in zip(torch.autograd.grad(loss(), parameters, create_graph=True), exact, strict=True):
        torch.testing.assert_close(one.detach(), other, rtol=1e-10, atol=1e-12)


def test_layers_that_do_more_are_called(rng, marches):
    model, graph, x, a = setting(rng)
    model(graph, x, a)
    assert marches == [1]
    calls = []
    handle = model.W.register_forward_hook(lambda *given: calls.append(1))
    model(graph, x, a)
    assert len(calls) == 3
    handle.remove()
    model.W = torch.nn.Linear(4, 4, bias=False).double()
    torch.testing.assert_close(model(graph, x, a), model.project(model.states(graph, x, a)[-1]))
    model.W = torch.nn.utils.parametrizations.spectral_norm(torch.nn.Linear(4, 4).double())
    model(graph, x, a).sum().backward()
    assert model.W.parametrizations.weight.original.grad.abs().sum() > 0
    assert marches == [1]


def test_inside_a_checkpoint(rng):
    for recompute in (False, True):
        model, graph, x, a = setting(rng, recompute=recompute)
        truth = torch.autograd.grad(model(graph, x, a).sin().sum(), model.kappa.W)[0]
        for call in (model, lambda *given, model=model: model.project(model.states(*given)[-1])):
            out = checkpoint(call, graph, x, a, use_reentrant=False)
            torch.testing.assert_close(torch.autograd.grad(out.sin().sum(), model.kappa.W)[0], truth)


@pytest.mark.parametrize("backend", ["factored", "fused"])
def test_the_gradient_that_is_given_is_not_overwritten(rng, backend):
    model, graph, x, a = setting(rng, dtype=torch.float32, sizes=(9,), backend=backend)
    v, integral = model._start(graph, x, a, None)
    out = integral.march(v, model.W, 3, True)
    given = torch.ones_like(out)
    out.backward(given)
    assert (given == 1).all()
    assert (out == 0).any()


def test_many_groups_in_bf16_add_up_in_full_precision(rng, monkeypatch):
    model, graph, x, a = setting(rng, (8, 8), 2, torch.float32, sizes=(12,) * 60, width=6)

    def gradient(room, enabled):
        monkeypatch.setattr(module, "KEPT_BYTES", {"cpu": room})
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            out = model(graph, x, a)
        wanted = [model.kappa.W, model.W.bias, model.kappa.hidden[0].weight, model.kappa.hidden[0].bias]
        return torch.autograd.grad(out.float().sum(), wanted)

    truth = gradient(2**26, False)
    found = [gradient(room, True) for room in (2**26, 100)]
    for exact, one, many in zip(truth, *found, strict=True):
        one, many = (float((x - exact).norm() / exact.norm()) for x in (one, many))
        assert many < 1.5 * max(one, 2**-9)


def test_many_groups_of_a_bf16_network_add_up_in_full_precision(rng, monkeypatch):
    """A graph four hundred times: in bf16, which has 8 bits, most of them would be lost."""
    model, graph, x, a = setting(rng, (4, 4), 1, torch.bfloat16, sizes=(5,), width=4)
    many = 400
    graph, x, a = Graph.batch([graph] * many), x.repeat(many, 1), a.repeat(many, 1)

    def gradients(room):
        monkeypatch.setattr(module, "KEPT_BYTES", {"cpu": room})
        return torch.autograd.grad(model(graph, x, a).sum(), [*model.kappa.parameters(), model.W.bias])

    for one, other in zip(gradients(2**26), gradients(1), strict=True):
        torch.testing.assert_close(one, other, rtol=2e-2, atol=2e-2 * float(one.abs().max()))


def test_how_large_groups_are(rng, monkeypatch, marches):
    model, graph, x, a = setting(rng, sizes=(10,) * 8)
    monkeypatch.setattr(module, "GROUP_BYTES", {"cpu": graph.num_edges * 12 * 8 // 4 + 1000})
    model(graph, x, a)
    model.recompute = True
    model(graph, x, a)
    assert marches[0] == 1, "kept"
    assert 4 <= marches[1] <= 8, "a quarter at a time"
    model.recompute = None
    for bits in range(14, 17):  # where recomputing is needed, as large as there is room for
        monkeypatch.setattr(module, "available_memory", lambda device, bits=bits: 2**bits)
        model(graph, x, a)
    assert marches[2] >= marches[3] >= marches[4]
    monkeypatch.setattr(module, "GROUP_BYTES", {"cpu": 1})
    for free in (2**15, 2**15 + 77):
        monkeypatch.setattr(module, "available_memory", lambda device, free=free: free)
        assert model._start(graph, x, a, None)[1].group_bytes == 2**12, "whatever the last bytes"


def test_what_does_not_match_is_refused(rng):
    model, graph, x, a = setting(rng)
    model.kappa.B = torch.nn.Parameter(torch.zeros(3, 4, dtype=torch.float64))
    with pytest.raises(ValueError, match="B of shape"):
        model(graph, x, a)
    model, graph, x, a = setting(rng)
    model.W.float()
    with pytest.raises(RuntimeError, match="dtype"):
        model(graph, x, a)


def test_predicting_first_and_training_afterwards(rng):
    for recompute in (False, True):
        model, graph, x, a = setting(rng, recompute=recompute)
        truth = gradients(model, copy.deepcopy(graph), x, a)
        with torch.inference_mode():
            model(graph, x, a)
        for one_by_one in (True, False):
            for found, exact in zip(gradients(model, graph, x, a, one_by_one=one_by_one), truth, strict=True):
                torch.testing.assert_close(found, exact, rtol=1e-12, atol=1e-12)


def test_a_graph_is_copied_without_what_it_has_worked_out(rng):
    _, graph, _, _ = setting(rng)
    graph.between(*graph.cuts[:2]).by_source  # noqa: B018
    buffer = io.BytesIO()
    torch.save(graph, buffer)
    buffer.seek(0)
    for again in (copy.deepcopy(graph), torch.load(buffer, weights_only=False)):
        assert set(again.__dict__) == {"ptr", "src", "num_sources", "cuts", "images", "moments", "present"}
        assert again.cuts == graph.cuts
        assert torch.equal(again.src, graph.src)


@pytest.mark.parametrize("recompute", [False, True])
def test_functional_transforms(rng, recompute):
    model, graph, x, a = setting(rng, recompute=recompute)
    leaf = a.clone().requires_grad_()
    truth = torch.autograd.grad(model(graph, x, leaf).sum(), leaf)[0]
    torch.testing.assert_close(torch.func.grad(lambda a: model(graph, x, a).sum())(a), truth)
    direction = torch.randn_like(a)
    with torch.no_grad():
        tangent = torch.func.jvp(lambda a: model(graph, x, a).sum(), (a,), (direction,))[1]
    torch.testing.assert_close(tangent, (truth * direction).sum())
