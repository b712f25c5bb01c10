import pytest
import torch

from gkn.graph.graph import Graph
from gkn.graph.neighbors import radius_graph
from gkn.ops import BACKENDS, library
from gkn.ops import integral as module
from gkn.ops.integral import OnChip, plan_integral
from gkn.ops.kernel import Kernel


def integrate(kernel, graph, x, y, **options):
    """The integral of a kernel over a graph."""
    return plan_integral(kernel, graph, x, y, **options).integral()


def setting(rng, sizes=(5, 7), n=4, m=3, nodes=20, dtype=torch.float64):
    torch.manual_seed(0)
    kernel = Kernel(3, sizes, n, m).to(dtype)
    x = torch.rand(nodes, 2, generator=rng, dtype=torch.float64)
    graph = radius_graph(x, r=0.35)
    features = torch.randn(nodes, 3, generator=rng, dtype=torch.float64).to(dtype)
    v = torch.randn(nodes, n, generator=rng, dtype=torch.float64).to(dtype)
    return kernel, graph, x, features, v


def plain(kernel, graph, features, v, weights=None, rho=None):
    """kappa as a plain network of both features, edge by edge."""
    out = torch.zeros(graph.num_targets, kernel.W.shape[2], dtype=v.dtype)
    for x in range(graph.num_targets):
        total = 0.0
        for e in range(int(graph.ptr[x]), int(graph.ptr[x + 1])):
            y = int(graph.src[e])
            h = torch.relu(kernel.first(torch.cat([features[x], features[y]])))
            for layer in kernel.hidden:
                h = torch.relu(layer(h))
            kappa = torch.einsum("k,kji->ji", h, kernel.W) + kernel.B
            w = 1.0 if weights is None else weights[y]
            out[x] = out[x] + w * (1.0 if rho is None else rho[e]) * (v[y] @ kappa)
            total += w
        out[x] = out[x] / total
    return out


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("sizes", [(5,), (5, 7), (4, 6, 3)])
def test_it_is_the_network_edge_by_edge(rng, monkeypatch, sizes, backend, recompute):
    monkeypatch.setattr(module, "BLOCK_BYTES", {"cpu": 1000})  # many blocks
    kernel, graph, x, features, v = setting(rng, sizes)
    weights = torch.rand(len(x), generator=rng, dtype=torch.float64)

    def density(x, y):
        return torch.exp(-(x - y).square().sum(1))

    rho = density(x[graph.targets.long()], x[graph.src.long()])
    expected = plain(kernel, graph, features, v, weights, rho)
    kind = torch.float32 if backend == "fused" else torch.float64
    kernel, features, v = kernel.to(kind), features.to(kind), v.to(kind)
    options = {"weights": weights, "rho": density, "points": (x, x), "recompute": recompute, "backend": backend}
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            out = integrate(kernel, graph, features, features, **options)(v)
        error = float((out.detach().double() - expected.detach()).norm() / expected.detach().norm())
        assert error < (1e-12 if kind == torch.float64 else 1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("sizes", [(5,), (5, 7), (4, 6, 3)])
def test_gradients_kept_or_recomputed_are_those_of_the_plain_network(rng, monkeypatch, sizes, backend):
    monkeypatch.setattr(module, "BLOCK_BYTES", {"cpu": 1000})
    kind = torch.float32 if backend == "fused" else torch.float64

    def grads(kernel, features, v, call):
        features, v = features.detach().requires_grad_(), v.detach().requires_grad_()
        kernel.zero_grad()
        loss = call(kernel, features, v).sin().sum()
        return torch.autograd.grad(loss, [*kernel.parameters(), features, v])

    kernel, graph, _, features, v = setting(rng, sizes, nodes=9, m=4)
    truth = grads(kernel, features, v, lambda kernel, f, v: plain(kernel, graph, f, plain(kernel, graph, f, v)))
    kernel, features, v = kernel.to(kind), features.to(kind), v.to(kind)
    for recompute in (False, True):

        def twice(kernel, f, v, recompute=recompute):
            integral = integrate(kernel, graph, f, f, recompute=recompute, backend=backend)
            return integral(integral(v))  # two steps with one h: its gradient has two terms

        for mine, exact in zip(grads(kernel, features, v, twice), truth, strict=True):
            assert float((mine.double() - exact).norm() / exact.norm()) < (1e-11 if kind == torch.float64 else 1e-4)


@pytest.mark.parametrize("recompute", [False, True])
def test_twice_differentiable(rng, recompute):
    kernel, graph, _, features, v = setting(rng, (3, 4), n=2, m=2, nodes=5)

    def call(features, v, *parameters):
        names = [name for name, _ in kernel.named_parameters()]

        class Caller(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.kernel = kernel

            def forward(self, f, v):
                integral = integrate(self.kernel, graph, f, f, recompute=recompute)
                return integral(integral(v))

        values = {f"kernel.{name}": value for name, value in zip(names, parameters, strict=True)}
        return torch.func.functional_call(Caller(), values, (features, v))

    given = [x.detach().requires_grad_() for x in (features, v, *kernel.parameters())]
    assert torch.autograd.gradcheck(call, given)
    assert torch.autograd.gradgradcheck(call, given)


def test_recomputing_needs_memory_for_a_block_only(rng):
    """The largest tensor that is allocated does not grow with the number of edges."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Largest(TorchDispatchMode):
        size = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            for one in out if isinstance(out, tuple | list) else (out,):
                if isinstance(one, torch.Tensor) and one.is_floating_point():
                    self.size = max(self.size, one.untyped_storage().nbytes())
            return out

    found = {}
    for nodes in (300, 900):
        kernel, graph, _, features, v = setting(rng, (16, 32), n=4, m=4, nodes=nodes)
        for recompute in (True, False):
            with torch.no_grad(), Largest() as seen:
                integrate(kernel, graph, features, features, recompute=recompute)(v)
            found[nodes, recompute] = seen.size
    assert found[900, False] > 8 * found[300, False]
    room = module.BLOCK_BYTES["cpu"]
    assert found[900, True] <= room
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "BLOCK_BYTES", {"cpu": 2**18})
        for nodes in (300, 900):
            kernel, graph, _, features, v = setting(rng, (16, 32), n=4, m=4, nodes=nodes)
            with torch.no_grad(), Largest() as seen:
                integrate(kernel, graph, features, features, recompute=True)(v)
            assert seen.size <= 2**18


def test_kept_where_it_fits(rng, monkeypatch):
    kernel, graph, _, features, _ = setting(rng)
    assert not integrate(kernel, graph, features, features).plan.recompute
    monkeypatch.setattr(module, "available_memory", lambda device: 1000)
    assert integrate(kernel, graph, features, features).plan.recompute


def test_the_same_bits_every_time(rng):
    kernel, graph, _, features, v = setting(rng, (16, 32), n=8, m=8, nodes=60, dtype=torch.float32)

    def bits():
        kernel.zero_grad()
        integral = integrate(kernel, graph, features, features)
        integral(integral(v)).square().sum().backward()
        return torch.cat([p.grad.flatten() for p in kernel.parameters()])

    first = bits()
    assert all(torch.equal(bits(), first) for _ in range(10))


def test_no_edges(rng):
    kernel, _, _, features, v = setting(rng)
    none = Graph(torch.zeros(21, dtype=torch.long), torch.zeros(0, dtype=torch.long), 20)
    for backend in BACKENDS:
        for recompute in (False, True):
            kind = torch.float32 if backend == "fused" else torch.float64
            out = integrate(kernel.to(kind), none, features.to(kind), features.to(kind), recompute=recompute, backend=backend)(
                v.to(kind)
            )
            assert out.shape == (20, 3)
            assert out.abs().max() == 0
            out.sum().backward()


def test_matrices_are_what_is_integrated(rng):
    kernel, graph, _, features, v = setting(rng)
    kappa = kernel.matrices(features[graph.targets.long()], features[graph.src.long()])
    message = torch.einsum("ej,eji->ei", v[graph.src.long()], kappa)
    sums = torch.zeros(20, 3, dtype=torch.float64).index_add(0, graph.targets.long(), message)
    torch.testing.assert_close(integrate(kernel, graph, features, features, mean=False)(v), sums)


def test_bad_arguments_are_refused(rng):
    with pytest.raises(
        ValueError, match=r"kernel=\(\): needed the sizes of the hidden layers, at least one, e.g. \(512, 1024\)"
    ):
        Kernel(3, (), 4, 4)
    with pytest.raises(ValueError, match=r"kernel=\(5, 0\)"):
        Kernel(3, (5, 0), 4, 4)
    kernel, graph, x, features, v = setting(rng)
    with pytest.raises(ValueError, match="needs the points"):
        integrate(kernel, graph, features, features, rho=lambda x, y: x[:, 0])
    with pytest.raises(ValueError, match="needed one number an edge"):
        integrate(kernel, graph, features, features, rho=lambda x, y: x, points=(x, x))
    with pytest.raises(ValueError, match="v of shape"):
        integrate(kernel, graph, features, features)(v[:5])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("sizes", [(5, 7), (128, 17), (16, 130)])
def test_hidden_features_that_never_leave_the_chip(rng, monkeypatch, sizes, dtype):
    """Without gradients the fused implementation does not write h at all."""
    monkeypatch.setattr(library, "BLOCK_BYTES", {"cpu": 2**15})  # several blocks of sums
    kernel, graph, x, features, v = setting(rng, sizes, nodes=12)
    weights = torch.rand(len(x), generator=rng, dtype=torch.float64)
    expected = plain(kernel, graph, features, v, weights).detach()
    kernel = kernel.float()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        integral = integrate(
            kernel, graph, features.float(), features.float(), weights=weights, recompute=True, backend="fused"
        )
        assert isinstance(integral, OnChip)
        out = integral(v.float())
    assert out.dtype == dtype
    assert float((out.double() - expected).norm() / expected.norm()) < (1e-5 if dtype == torch.float32 else 2e-2)


def test_recomputing_keeps_nothing_of_the_edges_for_the_backward_pass(rng, monkeypatch):
    """Memory held after a forward pass with gradients does not grow with the number of edges."""
    monkeypatch.setattr(module, "BLOCK_BYTES", {"cpu": 2**16})
    held = {}
    for r in (0.1, 0.4):
        torch.manual_seed(0)
        kernel = Kernel(3, (16, 16), 4, 4)
        x = torch.rand(400, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        graph, features = radius_graph(x, r=r), torch.randn(400, 3, generator=rng)
        seen = {}

        def pack(tensor, seen=seen):
            if tensor.is_floating_point():
                seen[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            integral = integrate(
                kernel, graph, features, features, recompute=True, rho=lambda x, y: (x - y).norm(dim=1), points=(x, x)
            )
            v = torch.randn(400, 4, generator=rng, requires_grad=True)
            for _ in range(3):
                v = integral(v)
        held[r] = sum(seen.values())
        edges = graph.num_edges
        assert held[r] < edges * 16 * 4, "less than one hidden layer of all edges"
    assert held[0.4] < 1.5 * held[0.1]


def test_gradients_of_others_are_not_overwritten(rng):
    kernel, graph, _, features, _ = setting(rng)
    features = features.requires_grad_()
    p, q = kernel.parts(features, features)
    h = kernel.edges(p, q, graph, "factored")
    given = torch.ones_like(h)
    h.backward(given)
    assert (given == 1).all()


def test_recomputing_in_bf16_adds_up_in_full_precision(rng, monkeypatch):
    kernel, graph, _, features, v = setting(rng, (8, 8), n=4, m=4, nodes=200, dtype=torch.float32)
    v = v.abs()

    def grad(block, enabled):
        monkeypatch.setattr(module, "BLOCK_BYTES", {"cpu": block})
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            out = integrate(kernel, graph, features, features, recompute=True)(v)
        return torch.autograd.grad(out.float().sum(), kernel.W)[0]

    truth = grad(2**26, False)
    one, many = (float((grad(block, True) - truth).norm() / truth.norm()) for block in (2**26, 500))
    assert many < 2 * max(one, 2**-8)


def test_v_is_checked_whatever_the_way(rng):
    kernel, graph, _, features, v = setting(rng, dtype=torch.float32)
    for recompute in (False, True):
        for backend in BACKENDS:
            with torch.no_grad(), pytest.raises(ValueError, match="v of shape"):
                integrate(kernel, graph, features, features, recompute=recompute, backend=backend)(v[:5])
    with pytest.raises(ValueError, match=r"weights: torch.float32 of shape \(1,\)"):
        integrate(kernel, graph, features, features, weights=torch.ones(1))
    scale, points = torch.ones(1, requires_grad=True), torch.rand(20, 2)
    for recompute in (False, True):
        with pytest.raises(ValueError, match="a density is a constant here"):
            integrate(
                kernel,
                graph,
                features,
                features,
                rho=lambda x, y: scale * x[:, 0],
                points=(points, points),
                recompute=recompute,
            )


def test_what_must_be_kept_must_fit(rng, monkeypatch):
    kernel, graph, _, features, _ = setting(rng)
    monkeypatch.setattr("gkn.system.memory.available_memory", lambda device="cpu": 1000)
    with pytest.raises(MemoryError, match="recompute=False: hidden features of Graph"):
        integrate(kernel, graph, features, features, recompute=False)


@pytest.mark.parametrize("recompute", [False, True])
def test_second_derivatives_beside_frozen_parameters(rng, recompute):
    """The gradient of a gradient with respect to v alone, as with a kernel that is no longer trained."""
    kernel, graph, _, features, v = setting(rng, (3, 4), n=2, m=2, nodes=5)
    kernel.requires_grad_(False)
    v = v.requires_grad_()

    def call(v):
        return integrate(kernel, graph, features, features, recompute=recompute)(v).square()

    assert torch.autograd.gradgradcheck(call, (v,))


def test_a_density_is_asked_once_an_edge_and_a_first_time_before(rng):
    kernel, graph, x, features, v = setting(rng)
    asked = []

    def rho(x, y):
        asked.append(len(x))
        return torch.ones(len(x), dtype=torch.float64)

    integral = integrate(kernel, graph, features, features, rho=rho, points=(x, x))
    integral(integral(v)[:, :1].expand(-1, 4))
    assert asked == [1, graph.num_edges]


def test_forward_mode_keeps_nothing_on_the_chip(rng):
    kernel, graph, _, features, v = setting(rng, (5, 7), nodes=6, dtype=torch.float32)
    direction = torch.randn_like(v)

    def tangent(backend):
        def call(v):
            return integrate(kernel, graph, features, features, recompute=True, backend=backend)(v)

        with torch.no_grad():
            return torch.func.jvp(call, (v,), (direction,))[1]

    torch.testing.assert_close(tangent("fused"), tangent("reference"))


def test_a_smooth_kernel_has_no_kinks(rng):
    """SiLU after every layer but the last: on a line of pairs second differences are as small as steps are short."""
    torch.manual_seed(0)
    for smooth in (True, False):
        kernel = Kernel(1, (16, 8), 2, 2, smooth=smooth).double()
        with torch.no_grad():
            kernel.first.weight *= 5
        y = torch.linspace(-1, 1, 4001, dtype=torch.float64)[:, None]
        found = kernel.matrices(torch.zeros_like(y), y).flatten(1).detach()
        curved = found.diff(n=2, dim=0).abs().max() / 0.0005**2
        assert (float(curved) < 50) == smooth
