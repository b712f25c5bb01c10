"""All three implementations are the formula: forward, gradients, gradients of gradients."""

import itertools

import pytest
import torch

from gkn import ops
from gkn.graph.graph import Graph
from gkn.ops import BACKENDS, kernel_integral, reference
from gkn.ops.edges import Edges
from gkn.ops.last import Last, product

FAST = ("factored", "fused")


def graph_of(rng, targets, sources, edges):
    src = torch.randint(0, sources, (edges,), generator=rng)
    to = torch.randint(0, targets, (edges,), generator=rng)
    return Graph.of_edges(src, to, sources, targets)


def inputs_of(rng, graph, k, n, m, dtype=torch.float64):
    shapes = ((graph.num_edges, k), (k, n, m), (n, m), (graph.num_sources, n))
    return [torch.randn(shape, generator=rng, dtype=torch.float64).to(dtype) for shape in shapes]


def by_hand(h, W, B, v, graph, weights, rho, mean):
    """One edge after the other, in Python."""
    out = torch.zeros(graph.num_targets, W.shape[2], dtype=torch.float64)
    for x in range(graph.num_targets):
        total = 0.0
        for e in range(int(graph.ptr[x]), int(graph.ptr[x + 1])):
            y = int(graph.src[e])
            kappa = B.clone()
            for k in range(len(W)):
                kappa += h[e, k] * W[k]
            w = 1.0 if weights is None else float(weights[y])
            out[x] += w * (1.0 if rho is None else float(rho[e])) * (v[y] @ kappa)
            total += w
        if mean and total:
            out[x] /= total
    return out


@pytest.mark.parametrize("mean", [True, False])
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("dense", [True, False])
@pytest.mark.parametrize("backend", BACKENDS)
def test_it_is_the_formula(rng, backend, weighted, dense, mean):
    graph = graph_of(rng, 6, 5, 17)
    h, W, B, v = inputs_of(rng, graph, 3, 4, 2)
    weights = torch.rand(5, generator=rng, dtype=torch.float64) if weighted else None
    rho = torch.rand(17, generator=rng, dtype=torch.float64) if dense else None
    expected = by_hand(h, W, B, v, graph, weights, rho, mean)
    kind = torch.float32 if backend == "fused" else torch.float64
    given = [x.to(kind) for x in (h, W, B, v)]
    out = kernel_integral(*given, graph, weights=weights, rho=rho, mean=mean, backend=backend)
    torch.testing.assert_close(
        out.double(), expected, rtol=1e-12 if kind == torch.float64 else 1e-5, atol=1e-12 if kind == torch.float64 else 1e-5
    )


CASES = [  # targets, sources, edges, k, n, m
    (1, 1, 1, 1, 1, 1),
    (2, 3, 0, 2, 3, 2),
    (3, 2, 5, 17, 2, 3),
    (17, 3, 59, 3, 17, 1),
    (2, 257, 257, 17, 16, 16),
    (9, 17, 59, 257, 3, 17),
    (5, 5, 400, 2, 59, 59),
    (3, 3, 30, 59, 257, 2),
]


def errors(backend, dtype, graph, exact, weights, rho):
    """Relative errors of the result and of its gradients, in a type, against the formula in float64."""

    def run(values, kind):
        values = [value.to(kind).requires_grad_() for value in values]
        chosen = "reference" if kind == torch.float64 else backend
        out = kernel_integral(*values, graph, weights=weights, rho=rho, backend=chosen)
        assert out.dtype == kind
        grads = torch.autograd.grad(out, values, cotangent.to(kind))
        assert all(grad.dtype == kind for grad in grads)
        return [out.detach(), *grads]

    cotangent = torch.randn(
        graph.num_targets, exact[1].shape[2], dtype=torch.float64, generator=torch.Generator().manual_seed(1)
    )
    cotangent = cotangent.to(dtype).double()
    truth = run(exact, torch.float64)
    found = run(exact, dtype)
    return [
        float((f.double() - t).norm() / t.norm()) if t.numel() and t.norm() > 0 else float(f.double().norm())
        for f, t in zip(found, truth, strict=True)
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("backend", FAST)
def test_errors_are_those_of_plain_pytorch(rng, backend, case, dtype):
    targets, sources, edges, k, n, m = case
    if backend == "fused" and n > 256:
        n = 256  # the most it takes; more is refused, see below
    ours, plain = [], []
    for _ in range(4):
        graph = graph_of(rng, targets, sources, edges)
        # Inputs that the type can hold, so that the only errors are those of the arithmetic.
        exact = [x.to(dtype).double() for x in inputs_of(rng, graph, k, n, m)]
        rho = torch.rand(edges, generator=rng, dtype=torch.float64).to(dtype).double()
        ours.append(errors(backend, dtype, graph, exact, None, rho))
        plain.append(errors("reference", dtype, graph, exact, None, rho))
    ours, plain = (torch.tensor(found).square().mean(0).sqrt().tolist() for found in (ours, plain))
    eps = torch.finfo(dtype).eps
    for name, mine, theirs, times in zip(("out", "h", "W", "B", "v"), ours, plain, (2, 3, 3, 3, 3), strict=True):
        assert mine <= times * max(theirs, eps / 2), (name, mine, theirs)


@pytest.mark.parametrize("backend", FAST)
def test_many_neighbours_and_many_blocks(rng, backend, monkeypatch):
    """Degrees beyond one tile, and more targets than one block of A."""
    monkeypatch.setattr(ops.library, "BLOCK_BYTES", {"cpu": 4 * 8 * 4 * 3})  # three targets
    to = torch.cat([torch.zeros(300), torch.ones(1), torch.full((70,), 4), torch.full((2,), 6)]).long()
    graph = Graph.of_edges(torch.randint(0, 9, (len(to),), generator=rng), to, 9, 8)
    exact = inputs_of(rng, graph, 8, 4, 4, torch.float32)
    ours = errors(backend, torch.float32, graph, exact, None, None)
    assert max(ours) < 2e-6


@pytest.mark.parametrize("backend", BACKENDS)
def test_poison_beside_the_inputs_is_not_read(rng, backend):
    """Inputs are windows into larger arrays of NaN; those that nobody asks for are NaN themselves."""
    graph = Graph(torch.tensor([0, 2, 2, 7]), torch.tensor([0, 2, 2, 0, 3, 5, 0]), 7)  # nobody asks 1, 4 and 6
    h, W, B, v = inputs_of(rng, graph, 5, 3, 3, torch.float32)
    v[[1, 4, 6]] = float("nan")
    windows = []
    for x in (h, W, B, v):
        large = torch.full([size + 4 for size in x.shape], float("nan"))
        window = large[tuple(slice(2, size + 2) for size in x.shape)]
        window.copy_(x)
        windows.append(window.requires_grad_())
    out = kernel_integral(*windows, graph, backend=backend)
    truth = kernel_integral(*(x.double() for x in (h, W, B, v.nan_to_num())), graph, backend="reference")
    torch.testing.assert_close(out.double(), truth, rtol=1e-5, atol=1e-5)
    assert out[1].tolist() == [0, 0, 0], "no neighbours"
    grads = torch.autograd.grad(out.square().sum(), windows)
    assert all(torch.isfinite(grad).all() for grad in grads)
    assert grads[3][[1, 4, 6]].abs().max() == 0


@pytest.mark.parametrize("backend", BACKENDS)
def test_nan_stays_where_it_is(rng, backend):
    graph = Graph.batch([graph_of(rng, 4, 4, 9) for _ in range(3)])
    h, W, B, v = inputs_of(rng, graph, 5, 3, 3, torch.float32)
    clean = kernel_integral(h, W, B, v, graph, backend=backend)
    v[5] = float("nan")
    h[10] = float("nan")
    out = kernel_integral(h, W, B, v, graph, backend=backend)
    assert torch.isnan(out[4:8]).any()
    assert torch.equal(out[:4], clean[:4])
    assert torch.equal(out[8:], clean[8:])


@pytest.mark.parametrize("backend", FAST)
def test_expanded_and_strided_inputs(rng, backend):
    graph = graph_of(rng, 6, 5, 20)
    h = torch.randn(1, 4, generator=rng).expand(20, 4)
    W = torch.randn(3, 3, 4, generator=rng).permute(2, 0, 1)
    B, v = torch.randn(3, 6, generator=rng)[:, ::2], torch.randn(3, 5, generator=rng).T
    out = kernel_integral(h, W, B, v, graph, backend=backend)
    plain = kernel_integral(*(x.contiguous() for x in (h, W, B, v)), graph, backend="reference")
    torch.testing.assert_close(out, plain, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("backend", FAST)
def test_fifty_times_the_same_bits(rng, backend):
    graph = graph_of(rng, *((4, 5, 30) if backend == "fused" else (20, 15, 150)))
    given = [x.requires_grad_() for x in inputs_of(rng, graph, 6, 5, 5, torch.float32)]

    def bits():
        out = kernel_integral(*given, graph, backend=backend)
        return torch.cat([out.detach().flatten(), *(g.flatten() for g in torch.autograd.grad(out.square().sum(), given))])

    first = bits()
    assert all(torch.equal(bits(), first) for _ in range(50))


@pytest.mark.parametrize("backend", ["reference", "factored"])
def test_gradients(rng, backend):
    graph = graph_of(rng, 4, 3, 9)
    given = [x.requires_grad_() for x in inputs_of(rng, graph, 2, 3, 2)]
    rho, weights = torch.rand(9, generator=rng, dtype=torch.float64), torch.rand(3, generator=rng, dtype=torch.float64)

    def call(*values):
        return kernel_integral(*values, graph, weights=weights, rho=rho, backend=backend)

    assert torch.autograd.gradcheck(call, given)
    assert torch.autograd.gradgradcheck(call, given)


@pytest.mark.parametrize("backend", FAST)
def test_gradients_of_gradients_are_the_formulas(rng, backend):
    graph = graph_of(rng, 5, 4, 12)
    kind = torch.float64 if backend == "factored" else torch.float32
    exact = inputs_of(rng, graph, 3, 4, 2, kind)

    def second(chosen, kind):
        values = [x.to(kind).requires_grad_() for x in exact]
        out = kernel_integral(*values, graph, backend=chosen)
        first = torch.autograd.grad(out.sin().sum(), values, create_graph=True)
        return torch.autograd.grad(sum(g.square().sum() for g in first), values)

    for mine, plain in zip(second(backend, kind), second("reference", torch.float64), strict=True):
        assert float((mine.double() - plain).norm() / plain.norm()) < (1e-12 if kind == torch.float64 else 1e-5)


@pytest.mark.parametrize("backend", ["reference", "factored"])
def test_the_taylor_remainder_has_slope_two(rng, backend):
    graph = graph_of(rng, 6, 5, 20)
    given = [x.requires_grad_() for x in inputs_of(rng, graph, 3, 4, 2)]
    directions = [torch.randn(x.shape, generator=rng, dtype=torch.float64) for x in given]

    def loss(values):
        return kernel_integral(*values, graph, backend=backend).sin().sum()

    value = loss(given)
    slope = sum((g * d).sum() for g, d in zip(torch.autograd.grad(value, given), directions, strict=True))
    sizes = [2.0**-i for i in range(8, 13)]
    rest = [
        float((loss([x + t * d for x, d in zip(given, directions, strict=True)]) - value - t * slope).detach().abs())
        for t in sizes
    ]
    orders = [torch.log2(torch.tensor(a / b)) for a, b in itertools.pairwise(rest)]
    assert all(1.9 < order < 2.1 for order in orders), orders


@pytest.mark.parametrize("backend", FAST)
def test_registered_as_torch_wants_it(rng, backend):
    graph = graph_of(rng, 4, 3, 9)
    kind = torch.float64 if backend == "factored" else torch.float32
    h, W, B, v = (x.requires_grad_() for x in inputs_of(rng, graph, 2, 3, 2, kind))
    scale = torch.ones(4, dtype=kind)
    rest = (graph.ptr, graph.src, *graph.by_source, graph.max_degree, None, scale, backend)
    torch.library.opcheck(torch.ops.gkn.kernel_sum.default, (h, W, B, v, *rest))
    d = torch.randn(4, 2, generator=rng, dtype=kind)
    torch.library.opcheck(torch.ops.gkn.kernel_sum_backward.default, (d, h.detach(), W.detach(), B.detach(), v.detach(), *rest))
    p, q = torch.randn(4, 5, dtype=kind, requires_grad=True), torch.randn(3, 5, dtype=kind, requires_grad=True)
    arrays = (graph.ptr, graph.src, *graph.by_source)
    torch.library.opcheck(torch.ops.gkn.edge_relu.default, (p, q, *arrays, graph.max_degree, kind, backend))
    out = ops.edge_relu(p, q, graph, backend=backend).detach()
    torch.library.opcheck(torch.ops.gkn.edge_relu_backward.default, (torch.randn_like(out), out, *arrays, kind, backend))


def test_compiled_is_the_same(rng):
    graph = graph_of(rng, 6, 5, 20)
    given = [x.requires_grad_() for x in inputs_of(rng, graph, 3, 4, 4)]

    def call(*values):
        return kernel_integral(*values, graph).sin().sum()

    compiled = torch.compile(call, backend="aot_eager", fullgraph=True)
    for a, b in zip(torch.autograd.grad(call(*given), given), torch.autograd.grad(compiled(*given), given), strict=True):
        torch.testing.assert_close(a, b)


def test_autocast_casts_as_torch_does(rng):
    graph = graph_of(rng, 6, 5, 20)
    given = [x.requires_grad_() for x in inputs_of(rng, graph, 3, 4, 4, torch.float32)]
    with torch.autocast("cpu", torch.bfloat16):
        out = kernel_integral(*given, graph)
        double = kernel_integral(*(x.double() for x in given), graph)
    assert out.dtype == torch.bfloat16
    assert double.dtype == torch.float64
    assert all(g.dtype == torch.float32 for g in torch.autograd.grad(out.float().sum(), given))


@pytest.mark.parametrize("backend", BACKENDS)
def test_edge_relu(rng, backend):
    graph = graph_of(rng, 6, 5, 200)
    kind = torch.float32 if backend == "fused" else torch.float64
    p, q = (torch.randn(size, 19, generator=rng, dtype=kind, requires_grad=True) for size in (6, 5))
    out = ops.edge_relu(p, q, graph, backend=backend)
    plain = torch.relu(p[graph.targets.long()] + q[graph.src.long()])
    assert torch.equal(out, plain)
    d = torch.randn(out.shape, generator=rng, dtype=kind)
    for a, b in zip(torch.autograd.grad(out, (p, q), d), torch.autograd.grad(plain, (p, q), d), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def test_edge_relu_twice_differentiable(rng):
    graph = graph_of(rng, 4, 3, 9)
    p, q = (torch.randn(size, 2, generator=rng, dtype=torch.float64, requires_grad=True) for size in (4, 3))
    assert torch.autograd.gradcheck(lambda p, q: ops.edge_relu(p, q, graph), (p, q))
    assert torch.autograd.gradgradcheck(lambda p, q: ops.edge_relu(p, q, graph).square(), (p, q))


def test_the_choice_has_a_reason():
    assert ops.choose("cpu", torch.float32, 64) == ("factored", "cpu: plain PyTorch; Triton needs an NVIDIA GPU")
    assert ops.choose("cuda", torch.bfloat16, 64)[0] == "fused"
    name, reason = ops.choose("cuda", torch.float64, 64)
    assert name == "factored"
    assert "float64" in reason
    name, reason = ops.choose("cuda", torch.float32, 300)
    assert name == "factored"
    assert "width 300" in reason


def test_weights_that_are_all_zero_give_zero(rng):
    graph = graph_of(rng, 3, 3, 9)
    given = inputs_of(rng, graph, 2, 2, 2)
    out = kernel_integral(*given, graph, weights=torch.zeros(3, dtype=torch.float64))
    assert out.abs().max() == 0


def test_what_does_not_match_is_refused(rng):
    graph = graph_of(rng, 4, 3, 9)
    h, W, B, v = inputs_of(rng, graph, 2, 3, 2)
    text = r"Graph\(4 targets <- 3 sources, 9 edges\) and W \(2, 3, 2\) need"
    with pytest.raises(ValueError, match=rf"h of shape \(8, 2\); {text} \(9, 2\)"):
        kernel_integral(h[:8], W, B, v, graph)
    with pytest.raises(ValueError, match=rf"v of shape \(4, 3\); {text} \(3, 3\)"):
        kernel_integral(h, W, B, torch.zeros(4, 3, dtype=torch.float64), graph)
    with pytest.raises(ValueError, match=r"W of shape \(2, 3\); needed \(k, n, m\)"):
        kernel_integral(h, W[..., 0], B, v, graph)
    with pytest.raises(ValueError, match=r"rho of shape \(3,\)"):
        kernel_integral(h, W, B, v, graph, rho=torch.ones(3))
    with pytest.raises(
        ValueError, match=r"weights: torch.float32 of shape \(9,\) on cpu; .* needs \(3,\) floating-point numbers on cpu"
    ):
        kernel_integral(h, W, B, v, graph, weights=torch.ones(9))
    with pytest.raises(
        ValueError, match=r"B is torch.float32 on cpu, v is torch.float64 on cpu; needed one type and one device"
    ):
        kernel_integral(h, W, B.float(), v, graph)
    with pytest.raises(ValueError, match=r"W is torch.float64 on meta, v is torch.float64 on cpu"):
        kernel_integral(h, W.to("meta"), B, v, graph)
    with pytest.raises(ValueError, match=r"the graph is on meta, v on cpu; use graph.to\('cpu'\)"):
        kernel_integral(h, W, B, v, graph.to("meta"))
    with pytest.raises(ValueError, match=r"h is torch.int64; needed floating-point numbers"):
        kernel_integral(h.long(), W.long(), B.long(), v.long(), graph)
    with pytest.raises(ValueError, match="use one of reference, factored, fused"):
        kernel_integral(h, W, B, v, graph, backend="fast")
    with pytest.raises(ValueError, match="edge_relu: p"):
        ops.edge_relu(v, v, graph)


def test_reference_is_short():
    """It is what everything else is compared with, so it must be read at a glance."""
    import inspect

    assert len(inspect.getsource(reference).splitlines()) < 40


@pytest.mark.parametrize("backend", FAST)
def test_third_derivatives_too(rng, backend):
    """The form is linear in each argument, so its derivatives of any order are sums of itself."""
    graph = graph_of(rng, 5, 4, 12)
    kind = torch.float64 if backend == "factored" else torch.float32
    exact = inputs_of(rng, graph, 3, 4, 2, kind)

    def third(chosen, kind):
        values = [(0.1 * x).to(kind).requires_grad_() for x in exact]
        found = (kernel_integral(*values, graph, backend=chosen) ** 4).sum()
        for _ in range(2):
            found = sum(g.square().sum() for g in torch.autograd.grad(found, values, create_graph=True))
        return torch.autograd.grad(found, values)

    for mine, plain in zip(third(backend, kind), third("reference", torch.float64), strict=True):
        assert float((mine.double() - plain).norm() / plain.norm()) < (1e-11 if kind == torch.float64 else 1e-4)


def test_forward_mode_and_transforms_go_through_the_formula(rng):
    graph = graph_of(rng, 5, 4, 12)
    h, W, B, v = inputs_of(rng, graph, 3, 4, 2)
    direction = torch.randn(v.shape, generator=rng, dtype=torch.float64)
    _, found = torch.func.jvp(lambda v: kernel_integral(h, W, B, v, graph), (v,), (direction,))
    torch.testing.assert_close(found, kernel_integral(h, W, B, direction, graph))
    grad = torch.func.grad(lambda v: kernel_integral(h, W, B, v, graph).square().sum())(v)
    v = v.requires_grad_()
    torch.testing.assert_close(grad, torch.autograd.grad(kernel_integral(h, W, B, v, graph).square().sum(), v)[0])


@pytest.mark.parametrize("backend", FAST)
def test_many_small_blocks_lose_nothing_in_bf16(rng, backend, monkeypatch):
    """The gradient of W is a sum over all targets, a block at a time: in float32, whatever the type."""
    targets = 100 if backend == "fused" else 3000
    graph = graph_of(rng, targets, 50, 4 * targets)
    exact = [x.bfloat16().double() for x in inputs_of(rng, graph, 8, 4, 4)]
    exact[0], exact[3] = exact[0].abs(), exact[3].abs()  # sums that grow

    def error():
        def grad(kind, chosen):
            given = [x.to(kind).requires_grad_() for x in exact]
            return torch.autograd.grad(kernel_integral(*given, graph, backend=chosen).sum(), given[1])[0].double()

        truth = grad(torch.float64, "reference")
        return float((grad(torch.bfloat16, backend) - truth).norm() / truth.norm())

    monkeypatch.setattr(ops.library, "BLOCK_BYTES", {"cpu": 2**30})
    whole = error()
    monkeypatch.setattr(ops.library, "BLOCK_BYTES", {"cpu": 8 * 4 * 2 * 4})
    assert error() < 2 * max(whole, 2**-9)


def test_parts_that_cancel_are_added_before_they_are_rounded(rng):
    """kappa often depends on x - y: p and q are then large, and their sum is small."""
    graph = graph_of(rng, 20, 20, 200)
    q = 100 * torch.randn(20, 16, generator=rng)
    p = -q + torch.randn(20, 16, generator=rng)
    both = torch.arange(20)
    graph = Graph.of_edges(both, both, 20, 20)
    for backend in BACKENDS:
        out = ops.edge_relu(p, q, graph, dtype=torch.bfloat16, backend=backend)
        assert out.dtype == torch.bfloat16
        truth = torch.relu(p.double() + q.double())
        assert float((out.double() - truth).norm() / truth.norm()) < 2**-8


def test_what_has_no_gradient_says_so(rng):
    graph = graph_of(rng, 4, 3, 9)
    given = inputs_of(rng, graph, 2, 3, 2)
    with pytest.raises(ValueError, match=r"a gradient is asked of rho, which is a constant here; use rho.detach\(\)"):
        kernel_integral(*given, graph, rho=torch.ones(9, requires_grad=True))
    with pytest.raises(ValueError, match=r"a gradient is asked of quadrature weights, .* use weights.detach\(\)"):
        kernel_integral(*given, graph, weights=torch.ones(3, requires_grad=True))
    for bad in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="some are negative or not finite; quadrature weights are >= 0"):
            kernel_integral(*given, graph, weights=torch.tensor([1.0, bad, 1.0]))


@pytest.mark.parametrize("size", [1e-42, 1e-30, 1.0, 2e38])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_mean_does_not_depend_on_the_size_of_the_weights(rng, backend, size):
    graph = graph_of(rng, 4, 3, 9)
    given = inputs_of(rng, graph, 2, 3, 2, torch.float32)
    plain = kernel_integral(*given, graph, backend="reference")
    found = kernel_integral(*given, graph, weights=torch.full((3,), size), backend=backend)
    torch.testing.assert_close(found, plain, rtol=1e-5, atol=1e-5)


def test_what_fused_cannot_do_is_refused(rng, monkeypatch):
    graph = graph_of(rng, 4, 3, 9)
    with pytest.raises(ValueError, match="backend='fused' cannot be used here: Triton has no matrix products in float64"):
        kernel_integral(*inputs_of(rng, graph, 2, 3, 2), graph, backend="fused")
    with pytest.raises(ValueError, match="backend='fused' cannot be used here: width 257"):
        kernel_integral(*inputs_of(rng, graph, 2, 257, 2, torch.float32), graph, backend="fused")
    monkeypatch.delenv("TRITON_INTERPRET")
    with pytest.raises(ValueError, match="backend='fused' cannot be used here: cpu: plain PyTorch; Triton needs an NVIDIA GPU"):
        kernel_integral(*inputs_of(rng, graph, 2, 3, 2, torch.float32), graph, backend="fused")


def test_a_matrix_for_every_edge_must_fit(rng, monkeypatch):
    graph = graph_of(rng, 4, 3, 9)
    monkeypatch.setattr("gkn.system.memory.available_memory", lambda device="cpu": 100)
    with pytest.raises(MemoryError, match="a matrix for every edge of Graph"):
        kernel_integral(*inputs_of(rng, graph, 2, 3, 2), graph, backend="reference")


@pytest.mark.parametrize("backend", FAST)
def test_nan_beside_the_arrays_is_not_read(rng, backend):
    """The operator itself, on windows of one array of NaN: what lies before and behind each input is poison."""
    graph = Graph(torch.tensor([0, 2, 2, 7]), torch.tensor([0, 2, 2, 0, 3, 5, 0]), 7)
    exact = inputs_of(rng, graph, 5, 3, 3, torch.float32)
    flat = torch.full((sum(x.numel() + 64 for x in exact) + 64,), float("nan"))
    start, windows = 64, []
    for x in exact:
        window = flat[start : start + x.numel()].view(x.shape)
        window.copy_(x)
        windows.append(window)
        start += x.numel() + 64
    scale = torch.ones(3)
    edges = Edges(graph.ptr, graph.src, graph.by_source, graph.max_degree, None, scale, 1)
    rest = (graph.ptr, graph.src, *graph.by_source, graph.max_degree, None, scale, backend)
    out = torch.ops.gkn.kernel_sum(*windows, *rest)
    grads = torch.ops.gkn.kernel_sum_backward(torch.ones_like(out), *windows, *rest)
    assert all(torch.isfinite(x).all() for x in (out, *grads))
    torch.testing.assert_close(out, reference.forward(exact[0], Last(*exact[1:3]), exact[3], edges), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
def test_nan_in_one_sample_reaches_no_other_gradient(rng, backend):
    graph = Graph.batch([graph_of(rng, 4, 4, 9) for _ in range(3)])
    h, W, B, v = inputs_of(rng, graph, 5, 3, 3, torch.float32)
    v[5] = float("nan")
    given = [h.requires_grad_(), W, B, v.requires_grad_()]
    dh, dv = torch.autograd.grad(kernel_integral(*given, graph, backend=backend).sum(), (h, v))
    assert torch.isfinite(dv[:4]).all()
    assert torch.isfinite(dv[8:]).all()
    assert torch.isfinite(dh[:9]).all()
    assert torch.isfinite(dh[18:]).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_inputs_may_begin_inside_a_larger_array(rng, backend):
    graph = Graph(torch.tensor([0, 0, 2, 7]), torch.tensor([0, 2, 2, 0, 3, 5, 0]), 7)  # sorted: nothing is copied
    shapes = (7, 5), (5, 3, 2), (3, 2), (7, 3)
    whole = [torch.randn(size + 4, *rest, generator=rng) for size, *rest in shapes]
    inside = [x[3:-1].requires_grad_() for x in whole]
    alone = [x[3:-1].clone().requires_grad_() for x in whole]
    for given in (inside, alone):
        kernel_integral(*given, graph, backend=backend).square().sum().backward()
    for one, other in zip(inside, alone, strict=True):
        torch.testing.assert_close(one.grad, other.grad)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_density_may_have_any_strides(rng, backend):
    graph = graph_of(rng, 6, 6, 20)
    given = inputs_of(rng, graph, 5, 3, 3, torch.float32)
    table = torch.rand(20, 3, generator=rng)
    for rho in (table[:, 1], table[0, :1].expand(20)):
        truth = kernel_integral(*given, graph, rho=rho.clone(), backend="reference")
        torch.testing.assert_close(kernel_integral(*given, graph, rho=rho, backend=backend), truth)


@pytest.mark.parametrize("shape", [(3, 15163, 2), (200, 5000, 8), (2, 272, 16), (0, 300, 4), (9, 129, 9)])
def test_narrow_products_are_exact_on_every_processor(rng, shape):
    """Some add up number by number where there are few rows or columns: 1.6e-6 for 15163 terms."""
    rows, inner, columns = shape
    a, b = torch.randn(rows, inner, generator=rng), torch.randn(inner, columns, generator=rng)
    exact, out = a.double() @ b.double(), torch.empty(rows, columns)
    assert product(a, b, out) is out
    assert float((out.double() - exact).norm()) <= 6e-7 * float(exact.norm())
