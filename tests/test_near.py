"""gkn.ops.near, in Triton's interpreter: small kernel networks whose edges are never in memory."""

import pytest
import torch

from gkn.graph.batches import Batch
from gkn.graph.graph import Graph
from gkn.graph.neighbors import radius_graph
from gkn.models import NearFar
from gkn.ops import near
from gkn.ops.balls import ChipBalls, Neighbourhoods, ball_features, make_balls
from gkn.ops.kernel import Kernel
from gkn.train.losses import differences

R = 0.4


def case(rng, targets=None, sources=20, dim=2, n=6, m=9, hidden=(7, 3), dtype=torch.float32):
    """A graph with its features, a kernel, and v: targets None: the sources themselves."""
    y = torch.rand(sources, dim, generator=rng, dtype=torch.float64)
    x = y if targets is None else torch.rand(targets, dim, generator=rng, dtype=torch.float64)
    graph = radius_graph(y, r=R) if targets is None else radius_graph(y, x, R)
    ay = torch.randn(sources, 2, generator=rng)
    ax = ay if targets is None else torch.randn(targets, 2, generator=rng)
    torch.manual_seed(int(torch.randint(2**31, (), generator=rng)))
    kernel = Kernel(dim + 1, hidden, n, m, smooth=True).to(dtype)
    of = [ball_features(p.to(dtype), a.to(dtype), R, (0,)) for p, a in ((x, ax), (y, ay))]
    v = torch.randn(sources, n, generator=rng, dtype=torch.float64).to(dtype).requires_grad_()
    return graph, of, dim, kernel, v, torch.rand(sources, generator=rng) + 0.5


def passes(graph, of, dim, kernel, v, weights, backend, d=None, own=None, recompute=False):
    """Return the integral and all gradients."""
    balls = make_balls(Neighbourhoods(graph, *of, dim, weights), kernel, 1, recompute=recompute, backend=backend)
    assert isinstance(balls, ChipBalls) == (backend == "fused")
    out = balls(kernel, v, own)
    d = torch.ones_like(out) if d is None else d.to(out.dtype)
    return [out, *torch.autograd.grad(out, [v, *([] if own is None else [own]), *kernel.parameters()], d)]


@pytest.mark.parametrize(
    "sizes",
    [
        {},
        {"targets": 9},
        {"dim": 1, "hidden": (16, 16)},
        {"dim": 3, "n": 17, "m": 1},
        {"sources": 1},
        {"targets": 1, "hidden": (1, 1)},
    ],
)
@pytest.mark.parametrize("weighted", [True, False])
def test_it_is_the_sum_over_edges(rng, sizes, weighted):
    graph, of, dim, kernel, v, weights = case(rng, **sizes)
    weights = weights if weighted else None
    d = torch.randn(graph.num_targets, kernel.W.shape[2], generator=rng)
    found, wanted = (passes(graph, of, dim, kernel, v, weights, backend, d) for backend in ("fused", "factored"))
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("sizes", "weighted"), [({}, False), ({"targets": 9}, True), ({"dim": 3, "n": 17, "m": 1}, True)])
def test_of_differences(rng, sizes, weighted):
    """In three ways; and of a v that is the same everywhere, nothing but what the constant makes of it."""
    graph, of, dim, kernel, v, weights = case(rng, **sizes)
    weights = weights if weighted else None
    own = torch.randn(graph.num_targets, kernel.W.shape[1], generator=rng).requires_grad_()
    d = torch.randn(graph.num_targets, kernel.W.shape[2], generator=rng)
    ways = [("fused", False), ("factored", False), ("factored", True)]
    found, *others = (passes(graph, of, dim, kernel, v, weights, backend, d, own, again) for backend, again in ways)
    for other in others:
        for a, b in zip(found, other, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    same = torch.randn(1, kernel.W.shape[1], generator=rng)
    balls = make_balls(Neighbourhoods(graph, *of, dim, weights), kernel, 1, backend="fused")
    out = balls(kernel, same.expand(len(v), -1), same.expand(graph.num_targets, -1))
    wanted = (graph.degrees > 0)[:, None] * (same @ kernel.B)
    torch.testing.assert_close(out, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("differences", [True, False])
def test_in_parts_and_by_few_programs(rng, monkeypatch, differences):
    *given, v, weights = case(rng, sources=23)
    own = v.detach().flip(0).requires_grad_() if differences else None
    whole = passes(*given, v, weights, "fused", own=own)
    monkeypatch.setattr(near, "BLOCK_BYTES", 4 * 4 * (3 * 6 + 6))
    monkeypatch.setattr(near, "PROGRAMS", 3)
    for a, b in zip(passes(*given, v, weights, "fused", own=own), whole, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_edges_that_are_not_there_are_not_seen(rng):
    """A graph with room for more, and refilled with another's edges: passes and differences are that other's."""
    first, second = case(rng, sources=23), case(rng, sources=23)
    graph, of, dim, kernel, v, weights = second
    place = first[0].with_spare_memory(9.0)
    for each in (radius_graph(torch.rand(23, 2, generator=rng), r=1.5), graph):  # many edges, and then few
        assert each.num_edges <= place.num_edges
        place.refill(each)
    d = torch.randn(23, 9, generator=rng)
    for a, b in zip(*(passes(each, of, dim, kernel, v, weights, "fused", d) for each in (place, graph)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    x, u, answer = (torch.rand(23, many, generator=rng) for many in (2, 1, 1))
    zero, one, sizes = torch.zeros(1, 1), torch.ones(1, 1), (23,)
    found = [differences(answer, Batch(each, x, x, u, zero, one, zero, None, sizes, (0,))) for each in (place, graph)]
    torch.testing.assert_close(*found)


def test_a_target_with_nothing_in_its_ball(rng):
    graph, of, dim, kernel, v, weights = case(rng)
    nobody = Graph(torch.cat([graph.ptr, graph.ptr[-1:]]), graph.src, graph.num_sources)
    of[0] = torch.cat([of[0], of[0][:1] + 100])
    out, dv, *slopes = passes(nobody, of, dim, kernel, v, weights, "fused")
    before = passes(graph, [of[1], of[1]], dim, kernel, v, weights, "fused")
    assert not out[-1].any()
    for a, b in zip((out[:-1], dv, *slopes), before, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    none = Graph(torch.zeros(1, dtype=torch.int64), graph.src[:0], graph.num_sources)
    assert passes(none, [of[0][:0], of[1]], dim, kernel, v, weights, "fused")[0].shape == (0, 9)


@pytest.mark.parametrize("differences", [True, False])
def test_bf16_is_as_exact_as_the_other_way(rng, differences):
    """Each beside float64: what it does on the chip costs no digits."""
    graph, of, dim, kernel, v, weights = case(rng, sources=40)
    own = v.detach().flip(0).requires_grad_() if differences else None
    exact = Kernel(dim + 1, (7, 3), 6, 9, smooth=True).double()
    exact.load_state_dict(kernel.state_dict())
    d = torch.randn(40, 9, generator=rng).bfloat16()
    wide = [x.double() for x in of], dim, exact, v.detach().double().requires_grad_(), weights.double()
    right = passes(graph, *wide, "factored", d, None if own is None else own.detach().double().requires_grad_())
    off = {}
    for backend in ("fused", "factored"):
        with torch.autocast("cpu", torch.bfloat16):
            found = passes(graph, of, dim, kernel, v, weights, backend, d, own)
        off[backend] = [((a - b).norm() / b.norm()).item() for a, b in zip(found, right, strict=True)]
    assert max(off["fused"]) < 0.03
    assert sum(off["fused"]) < 2 * sum(off["factored"])


@pytest.mark.parametrize("differences", [True, False])
def test_second_derivatives(rng, differences):
    graph, of, dim, kernel, v, weights = case(rng, sources=12)
    found = {}
    for backend in ("fused", "factored"):
        balls = make_balls(Neighbourhoods(graph, *of, dim, weights), kernel, 1, recompute=False, backend=backend)
        out = balls(kernel, v, v if differences else None)
        (dv,) = torch.autograd.grad(out.square().sum(), v, create_graph=True)
        found[backend] = torch.autograd.grad(dv.square().sum(), [v, *kernel.parameters()])
    for a, b in zip(found["fused"], found["factored"], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


def test_what_does_not_fit_is_done_otherwise(rng):
    assert near.fits((32, 8), 4, 128, torch.bfloat16)
    for sizes, count, width, dtype in (
        ((128, 8), 4, 64, torch.float32),
        ((32,), 4, 64, torch.float32),
        ((32, 64), 4, 64, torch.float32),
        ((32, 8), 17, 64, torch.float32),
        ((32, 8), 4, 129, torch.float32),
        ((32, 8), 4, 64, torch.float64),
    ):
        assert not near.fits(sizes, count, width, dtype)
    graph, of, dim, kernel, _, weights = case(rng, sources=8, hidden=(65, 2))
    assert not isinstance(make_balls(Neighbourhoods(graph, *of, dim, weights), kernel, 1, backend="fused"), ChipBalls)


def test_a_network_of_them(rng):
    """All of NearFar, queries included."""
    x = torch.rand(20, 2, generator=rng, dtype=torch.float64)
    a, graph = torch.randn(20, 2, generator=rng), radius_graph(x, r=R)
    found = {}
    for backend in ("fused", "factored"):
        torch.manual_seed(0)
        model = NearFar(
            2, 2, 1, width=8, blocks=2, slices=3, head=4, kernel=(6, 3), radius=R, differences=True, backend=backend
        )
        states = model.states(graph, x.float(), a)
        nodes = x.float(), a
        at = model.at(states, radius_graph(x, x[:5] + 0.01, R), (x[:5].float() + 0.01, a[:5]), nodes)
        loss = model.finish(states).square().sum() + at.square().sum()
        found[backend] = [model.finish(states), at, *torch.autograd.grad(loss, [*model.parameters()])]
    for one, other in zip(found["fused"], found["factored"], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)
