"""gkn.ops.near, in C++ and in Triton's interpreter: small kernel networks whose edges are never in memory."""

import copy
import platform

import pytest
import torch

from gkn.graph.batches import Batch
from gkn.graph.graph import Graph
from gkn.graph.neighbors import radius_graph
from gkn.models import GKN, NearFar
from gkn.ops import near, near_cpp, near_triton
from gkn.ops.balls import ChipBalls, Neighbourhoods, ball_features, make_balls
from gkn.ops.kernel import Kernel
from gkn.system import native
from gkn.train.losses import differences

R = 0.4


@pytest.fixture(params=["fused", "compiled"])
def chip(request):
    return request.param


@pytest.fixture(params=["this processor", "one without AVX-512"])
def processor(request, monkeypatch, tmp_path_factory):
    """The loops have two forms, for long and for short vectors."""
    if request.param == "this processor":
        yield
        return
    if platform.machine() != "x86_64":
        pytest.skip("this processor has no other instructions that a compiler could leave out")
    monkeypatch.setenv("CXX", f"{native._compiler()[0]} -mno-avx512f")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp()))
    for each in (native.library, near_cpp.why_not):
        each.cache_clear()
    yield
    for each in (native.library, near_cpp.why_not):
        each.cache_clear()


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
    kind = {"fused": near_triton.TritonNear, "compiled": near_cpp.CompiledNear}.get(backend)
    assert isinstance(balls.near, kind) if kind else not isinstance(balls, ChipBalls)
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
def test_it_is_the_sum_over_edges(chip, rng, sizes, weighted):
    graph, of, dim, kernel, v, weights = case(rng, **sizes)
    weights = weights if weighted else None
    d = torch.randn(graph.num_targets, kernel.W.shape[2], generator=rng)
    found, wanted = (passes(graph, of, dim, kernel, v, weights, backend, d) for backend in (chip, "factored"))
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("sizes", "weighted"), [({}, False), ({"targets": 9}, True), ({"dim": 3, "n": 17, "m": 1}, True)])
def test_of_differences(chip, rng, sizes, weighted):
    """In three ways; and of a v that is the same everywhere, nothing but what the constant makes of it."""
    graph, of, dim, kernel, v, weights = case(rng, **sizes)
    weights = weights if weighted else None
    own = torch.randn(graph.num_targets, kernel.W.shape[1], generator=rng).requires_grad_()
    d = torch.randn(graph.num_targets, kernel.W.shape[2], generator=rng)
    ways = [(chip, False), ("factored", False), ("factored", True)]
    found, *others = (passes(graph, of, dim, kernel, v, weights, backend, d, own, again) for backend, again in ways)
    for other in others:
        for a, b in zip(found, other, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    same = torch.randn(1, kernel.W.shape[1], generator=rng)
    balls = make_balls(Neighbourhoods(graph, *of, dim, weights), kernel, 1, backend=chip)
    out = balls(kernel, same.expand(len(v), -1), same.expand(graph.num_targets, -1))
    wanted = (graph.degrees > 0)[:, None] * (same @ kernel.B)
    torch.testing.assert_close(out, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("differences", [True, False])
def test_in_parts_and_by_few_programs(chip, rng, monkeypatch, differences):
    *given, v, weights = case(rng, sources=23)
    own = v.detach().flip(0).requires_grad_() if differences else None
    whole = passes(*given, v, weights, chip, own=own)
    for kind in (near_triton.TritonNear, near_cpp.CompiledNear):
        monkeypatch.setattr(kind, "block_bytes", 4 * 4 * (3 * 6 + 6))
    monkeypatch.setattr(near_triton, "PROGRAMS", 3)
    monkeypatch.setattr(near_cpp, "GROUPS", 3)
    for a, b in zip(passes(*given, v, weights, chip, own=own), whole, strict=True):
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


def test_a_target_with_nothing_in_its_ball(chip, rng):
    graph, of, dim, kernel, v, weights = case(rng)
    nobody = Graph(torch.cat([graph.ptr, graph.ptr[-1:]]), graph.src, graph.num_sources)
    of[0] = torch.cat([of[0], of[0][:1] + 100])
    out, dv, *slopes = passes(nobody, of, dim, kernel, v, weights, chip)
    before = passes(graph, [of[1], of[1]], dim, kernel, v, weights, chip)
    assert not out[-1].any()
    for a, b in zip((out[:-1], dv, *slopes), before, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    none = Graph(torch.zeros(1, dtype=torch.int64), graph.src[:0], graph.num_sources)
    assert passes(none, [of[0][:0], of[1]], dim, kernel, v, weights, chip)[0].shape == (0, 9)


@pytest.mark.parametrize("differences", [True, False])
def test_bf16_is_as_exact_as_the_other_way(chip, rng, differences):
    """Each beside float64: what it does on the chip costs no digits."""
    graph, of, dim, kernel, v, weights = case(rng, sources=40)
    own = v.detach().flip(0).requires_grad_() if differences else None
    exact = Kernel(dim + 1, (7, 3), 6, 9, smooth=True).double()
    exact.load_state_dict(kernel.state_dict())
    d = torch.randn(40, 9, generator=rng).bfloat16()
    wide = [x.double() for x in of], dim, exact, v.detach().double().requires_grad_(), weights.double()
    right = passes(graph, *wide, "factored", d, None if own is None else own.detach().double().requires_grad_())
    off = {}
    for backend in (chip, "factored"):
        with torch.autocast("cpu", torch.bfloat16):
            found = passes(graph, of, dim, kernel, v, weights, backend, d, own)
        off[backend] = [((a - b).norm() / b.norm()).item() for a, b in zip(found, right, strict=True)]
    assert max(off[chip]) < 0.03
    assert sum(off[chip]) < 2 * sum(off["factored"])


@pytest.mark.parametrize("differences", [True, False])
def test_second_derivatives(chip, rng, differences):
    graph, of, dim, kernel, v, weights = case(rng, sources=12)
    found = {}
    for backend in (chip, "factored"):
        balls = make_balls(Neighbourhoods(graph, *of, dim, weights), kernel, 1, recompute=False, backend=backend)
        out = balls(kernel, v, v if differences else None)
        (dv,) = torch.autograd.grad(out.square().sum(), v, create_graph=True)
        found[backend] = torch.autograd.grad(dv.square().sum(), [v, *kernel.parameters()])
    for a, b in zip(found[chip], found["factored"], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


def test_what_does_not_fit_is_done_otherwise(rng):
    assert near_triton.fits((32, 8), 4, 128, torch.bfloat16)
    for sizes, count, width, dtype in (
        ((128, 8), 4, 64, torch.float32),
        ((32,), 4, 64, torch.float32),
        ((32, 64), 4, 64, torch.float32),
        ((32, 8), 17, 64, torch.float32),
        ((32, 8), 4, 129, torch.float32),
        ((32, 8), 4, 64, torch.float64),
    ):
        assert not near_triton.fits(sizes, count, width, dtype)
        assert near_cpp.fits(sizes, dtype) == (len(sizes) == 2 and max(sizes) <= 32 and dtype == torch.float32)
    graph, of, dim, kernel, _, weights = case(rng, sources=8, hidden=(65, 2))
    for backend in ("fused", None):
        assert not isinstance(make_balls(Neighbourhoods(graph, *of, dim, weights), kernel, 1, backend=backend), ChipBalls)


@pytest.mark.parametrize("differences", [True, False])
@pytest.mark.parametrize(
    "sizes",
    [
        {"n": 32, "m": 24, "hidden": (32, 8)},
        {"n": 49, "m": 5, "hidden": (16, 16)},
        {"n": 33, "m": 64, "hidden": (9, 17), "targets": 30},
        {"n": 128, "m": 128, "hidden": (33, 32), "dim": 1},
        {"n": 1, "m": 2, "hidden": (8, 9)},
    ],
)
def test_vectors_that_are_full_and_that_are_not(processor, rng, sizes, differences):
    """In C++, for balls of more edges than a tile has."""
    graph, of, dim, kernel, v, weights = case(rng, sources=150, **sizes)
    assert graph.max_degree > 64
    own = torch.randn(graph.num_targets, sizes["n"], generator=rng).requires_grad_() if differences else None
    d = torch.randn(graph.num_targets, sizes["m"], generator=rng)
    found, wanted = (passes(graph, of, dim, kernel, v, weights, backend, d, own) for backend in ("compiled", "factored"))
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def test_differences_of_a_constant_vanish_exactly(rng):
    """In C++: not a digit is left of K applied to them."""
    graph, of, dim, kernel, _, weights = case(rng, n=33, m=9)
    balls = make_balls(Neighbourhoods(graph, *of, dim, weights), kernel, 1, backend="compiled")
    same = torch.randn(1, 33, generator=rng).expand(graph.num_sources, -1)
    before = balls(kernel, same, same)
    torch.nn.init.normal_(kernel.W)
    assert torch.equal(balls(kernel, same, same), before)


def test_the_number_of_threads_changes_no_bit(processor, rng):
    graph, of, dim, kernel, v, weights = case(rng, sources=600, n=16, m=16)
    own, found = v.detach().flip(0).requires_grad_(), []
    threads = torch.get_num_threads()
    try:
        for number in (1, 2, 5):
            torch.set_num_threads(number)
            balls = make_balls(Neighbourhoods(graph, *of, dim, weights), kernel, 1, backend="compiled").near
            net = near.Network(torch.randn(600, 7), torch.randn(600, 7), kernel.hidden[0].weight.detach(), torch.ones(3))
            torch.manual_seed(0)
            net = net._replace(p=torch.randn(600, 7), q=torch.randn(600, 7))
            sums = balls.summed(net, v.detach(), own.detach(), None)
            into = torch.empty(600, 7), torch.empty(600, 16), torch.empty(600, 3)
            slopes = balls.slopes(sums[:, :48].contiguous(), net, (v.detach(), own.detach()), slice(0, 600), into)
            found.append([balls.rho, sums, *slopes, *into])
    finally:
        torch.set_num_threads(threads)
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


def test_the_sigmoid_is_as_sharp_as_float32(processor, rng):
    """In C++: h of single edges beside float64, over all of its range."""
    point, one = torch.zeros(1, 1), Graph(torch.tensor([0, 1]), torch.tensor([0]), 1)
    kernel, z, found = Kernel(1, (1, 1), 1, 1, smooth=True).requires_grad_(False), torch.linspace(-20, 20, 4001), []
    kernel.hidden[0].weight.fill_(0)
    kernel.W.fill_(1)
    kernel.B.fill_(0)
    for h in z.tolist():
        kernel.hidden[0].bias.fill_(h)
        balls = make_balls(Neighbourhoods(one, point, point, 1, None), kernel, 1, backend="compiled")
        found.append(float(balls(kernel, torch.ones(1, 1))))
    wide = z.double()
    torch.testing.assert_close(torch.tensor(found).double(), wide * wide.sigmoid(), rtol=4e-7, atol=1e-12)


@pytest.mark.parametrize(
    ("network", "dtype"),
    [({"kernel": (65, 8)}, torch.float32), ({"kernel": (8,)}, torch.float32), ({"kernel": (8, 4)}, torch.float64)],
)
def test_loops_that_cannot_be_had_are_refused(rng, network, dtype):
    x, a = torch.rand(20, 2, generator=rng, dtype=torch.float64), torch.randn(20, 1, generator=rng)
    model = NearFar(2, width=8, blocks=1, slices=2, head=4, radius=R, backend="compiled", **network).to(dtype)
    with pytest.raises(ValueError, match="backend='compiled' cannot be used here: needed a CPU, float32, and a smooth kernel"):
        model(radius_graph(x, r=R), x.to(dtype), a.to(dtype))
    other = GKN(2, 1, 1, width=8, kernel=(8,), steps=1, backend="compiled")
    with pytest.raises(ValueError, match="only balls of NearFar and Multigrid have loops in C"):
        other(radius_graph(x, r=R), x.float(), a)


def test_values_far_out(processor, rng):
    """Hidden features that are huge, and numbers that are none."""
    graph, of, dim, kernel, v, weights = case(rng, hidden=(8, 8))
    with torch.no_grad():
        large = copy.deepcopy(kernel)
        large.first.bias.fill_(3e14)
    found, wanted = (passes(graph, of, dim, large, v, weights, backend)[0] for backend in ("compiled", "factored"))
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=0)
    for size in (1e2, 1e4):
        with torch.no_grad():
            kernel.first.weight.mul_(size)
        found, wanted = (passes(graph, of, dim, kernel, v, weights, backend) for backend in ("compiled", "factored"))
        for a, b in zip(found, wanted, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4 * float(b.detach().abs().max()))
    with torch.no_grad():
        kernel.first.weight[0, 0] = float("nan")
    assert passes(graph, of, dim, kernel, v, weights, "compiled")[0].isnan().all()


def test_a_network_of_them(chip, rng):
    """All of NearFar, queries included."""
    x = torch.rand(20, 2, generator=rng, dtype=torch.float64)
    a, graph = torch.randn(20, 2, generator=rng), radius_graph(x, r=R)
    found = {}
    for backend in (chip, "factored"):
        torch.manual_seed(0)
        model = NearFar(
            2, 2, 1, width=8, blocks=2, slices=3, head=4, kernel=(6, 3), radius=R, differences=True, backend=backend
        )
        states = model.states(graph, x.float(), a)
        nodes = x.float(), a
        at = model.at(states, radius_graph(x, x[:5] + 0.01, R), (x[:5].float() + 0.01, a[:5]), nodes)
        loss = model.finish(states).square().sum() + at.square().sum()
        found[backend] = [model.finish(states), at, *torch.autograd.grad(loss, [*model.parameters()])]
    for one, other in zip(found[chip], found["factored"], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)
