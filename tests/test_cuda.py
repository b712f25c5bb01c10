"""The promises of the CPU, on a GPU. Run by `make test-gpu` on a machine that has one."""

import copy
import shutil

import pytest
import torch

from gkn import (
    GKN,
    Burgers,
    Cloud,
    Darcy,
    Dataset,
    GaussianField,
    Graph,
    Grid,
    Mesh,
    Nystrom,
    Operator,
    Partition,
    PoissonSquare,
    Radius,
    Stepping,
    Support,
    check_dataset,
    darcy_residual,
    fit,
    kernel_integral,
    load,
    make_dataset,
    radius_graph,
    relative_l2,
    smooth,
    solve_darcy,
    two_phase,
)
from gkn.data.sample import BadNumbers
from gkn.models import Multigrid, NearFar
from gkn.operator.checkpoint import Checkpoints
from gkn.ops.balls import ChipBalls, Neighbourhoods, make_balls
from gkn.ops.balls import ball_features as features
from gkn.ops.integral import plan_integral
from gkn.ops.kernel import Kernel
from gkn.train.capture import Captured
from gkn.train.loop import Trainer

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(("size", "dim"), [(129, 1), (61, 2), (421, 2), (17, 3)])
def test_solutions_agree_with_the_cpu(size, dim):
    grid = Grid(size, dim)
    rng = torch.Generator().manual_seed(0)
    a = 50 ** torch.rand(3, len(grid), generator=rng, dtype=torch.float64)
    f, g = torch.randn(2, 3, len(grid), generator=rng, dtype=torch.float64)
    u = solve_darcy(grid, a, f, g)
    there = solve_darcy(grid, a.cuda(), f, g)
    assert there.is_cuda
    torch.testing.assert_close(there.cpu(), u, rtol=0, atol=1e-9 * float(u.abs().max()))
    assert darcy_residual(grid, a.cuda(), there, f.cuda()).max() < 1e-9
    assert all(torch.equal(solve_darcy(grid, a.cuda(), f, g), there) for _ in range(5))  # the same bits again


@pytest.mark.parametrize("boundary", ["neumann", "periodic", "dirichlet"])
def test_fields_agree_with_the_cpu(boundary):
    series = GaussianField(3.0, 2.0, boundary).draw(3, torch.Generator().manual_seed(0))
    grid = Grid(61)
    torch.testing.assert_close(series.to("cuda")(grid).cpu(), series(grid), rtol=0, atol=1e-13)
    torch.testing.assert_close(series.to("cuda")(grid.points).cpu(), series(grid), rtol=0, atol=1e-12)


@pytest.mark.parametrize("recipe", [Darcy(size=61), PoissonSquare(size=33)], ids=["darcy", "poisson"])
def test_datasets(recipe, tmp_path):
    hashes = {make_dataset(recipe, 70, 0, tmp_path / str(i), device="cuda").manifest.hash for i in range(4)}
    assert len(hashes) == 1
    assert all(finding.ok for finding in check_dataset(tmp_path / "0", device="cuda"))
    on_cpu, on_gpu = make_dataset(recipe, 70), make_dataset(recipe, 70, device="cuda")
    name = recipe.inputs[0]
    torch.testing.assert_close(on_gpu.field(name), on_cpu.field(name), rtol=0, atol=1e-12)
    torch.testing.assert_close(on_gpu.field("u"), on_cpu.field("u"), rtol=1e-8, atol=1e-11)


def test_finite_elements_answer_where_they_were_asked():
    pytest.importorskip("skfem", reason="meshes need scikit-fem")
    mesh = Mesh.disk(0.3)
    a = torch.ones(2, len(mesh), dtype=torch.float64, device="cuda")
    u = solve_darcy(mesh, a)
    assert u.is_cuda
    assert darcy_residual(mesh, a, u).max() < 1e-9


def test_smoothing():
    grid = Grid(31)
    a = torch.rand(2, len(grid), dtype=torch.float64)
    for domain in (grid, Cloud(grid.points, grid.weights)):
        for there, here in zip(smooth(domain, a.cuda(), 0.1), smooth(domain, a, 0.1), strict=True):
            torch.testing.assert_close(there.cpu(), here, rtol=0, atol=1e-11)


def test_two_phase_stays_on_its_device():
    assert two_phase(torch.zeros(3, device="cuda")).is_cuda


def random_graph(rng, targets, sources, edges):
    src, to = (torch.randint(0, size, (edges,), generator=rng) for size in (sources, targets))
    return Graph.of_edges(src, to, sources, targets)


@pytest.mark.parametrize("kind", ["fp32", "tf32", "bf16"])
@pytest.mark.parametrize(
    "case",
    [(1, 1, 1, 1, 1, 1), (2, 3, 0, 2, 3, 2), (17, 59, 257, 59, 17, 3), (30, 40, 1500, 257, 64, 64), (4, 40, 900, 59, 256, 59)],
    ids=str,
)
def test_the_fused_op_is_the_formula(rng, case, kind, monkeypatch):
    """Forward and gradients: at most 2x (3x) the error of the plain formula in the same precision."""
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", kind != "fp32")
    targets, sources, edges, k, n, m = case
    graph = random_graph(rng, targets, sources, edges).to("cuda")
    dtype = torch.bfloat16 if kind == "bf16" else torch.float32
    shapes = ((edges, k), (k, n, m), (n, m), (sources, n), (targets, m))
    *exact, d = (torch.randn(shape, generator=rng).to(dtype).double().cuda() for shape in shapes)
    rho = torch.rand(edges, generator=rng).to(dtype).cuda()

    def run(backend, dtype):
        given = [x.to(dtype).requires_grad_() for x in exact]
        out = kernel_integral(*given, graph, rho=rho, backend=backend)
        return [x.detach().double() for x in (out, *torch.autograd.grad(out, given, d.to(dtype)))]

    truth = run("reference", torch.float64)
    eps = {"fp32": 2**-24, "tf32": 2**-12, "bf16": 2**-9}[kind]
    for i, (mine, plain, t) in enumerate(zip(run("fused", dtype), run("reference", dtype), truth, strict=True)):
        if t.numel() and t.norm() > 0:
            error, theirs = (float((x - t).norm() / t.norm()) for x in (mine, plain))
            assert error <= (2 if i == 0 else 3) * max(theirs, eps), (i, error, theirs)
        else:
            assert mine.abs().sum() == 0


def test_the_fused_op_gives_the_same_bits_fifty_times(rng):
    graph = random_graph(rng, 300, 200, 9000).to("cuda")
    given = [
        torch.randn(s, generator=rng).cuda().bfloat16().requires_grad_()
        for s in ((9000, 96), (96, 32, 32), (32, 32), (200, 32))
    ]

    def bits():
        out = kernel_integral(*given, graph)
        return torch.cat([out.detach().flatten(), *(g.flatten() for g in torch.autograd.grad(out.square().sum(), given))])

    first = bits()
    assert all(torch.equal(bits(), first) for _ in range(50))


def test_poison_beside_the_inputs_is_not_read(rng):
    graph = Graph(torch.tensor([0, 2, 2, 7]), torch.tensor([0, 2, 2, 0, 3, 5, 0]), 7).to("cuda")
    h, W, B, v = (torch.randn(s, generator=rng).cuda() for s in ((7, 33), (33, 17, 17), (17, 17), (7, 17)))
    v[[1, 4, 6]] = float("nan")  # nobody asks them
    rest = [torch.full((2**20,), float("nan"), device="cuda") for _ in range(64)]  # what the allocator hands out next
    del rest
    given = [x.requires_grad_() for x in (h, W, B, v)]
    out = kernel_integral(*given, graph)
    assert torch.isfinite(out).all()
    assert out[1].abs().max() == 0
    assert all(torch.isfinite(g).all() for g in torch.autograd.grad(out.square().sum(), given))


@pytest.mark.parametrize("kernel", [(24,), (40, 72), (160, 72), (16, 24, 40)])
def test_the_network_is_the_same_on_the_gpu(rng, kernel):
    """Kept, recomputed, and in one go without gradients: against float64 on the CPU."""
    torch.manual_seed(0)
    x = torch.rand(400, 2, generator=rng, dtype=torch.float64)
    a = torch.randn(400, 2, generator=rng, dtype=torch.float64)
    exact = GKN(2, 2, 1, width=16, kernel=kernel, steps=3).double()
    graph = radius_graph(x, r=0.2)
    truth = torch.autograd.grad(exact(graph, x, a).square().sum(), [*exact.parameters()])
    u = exact(graph, x, a).detach()
    graph, x, a = graph.to("cuda"), x.cuda(), a.cuda()
    for recompute in (False, True):
        model = GKN(2, 2, 1, width=16, kernel=kernel, steps=3, recompute=recompute).cuda()
        model.load_state_dict(exact.state_dict())
        out = model(graph, x, a)
        grads = torch.autograd.grad(out.square().sum(), [*model.parameters()])
        with torch.no_grad():
            quiet = model(graph, x, a)
        for found in (out.detach(), quiet):
            assert float((found.cpu() - u).norm() / u.norm()) < 1e-5
        for mine, plain in zip(grads, truth, strict=True):
            assert float((mine.cpu() - plain).norm() / plain.norm()) < 1e-4


@pytest.mark.parametrize("d", [1, 2, 3])
def test_neighbours_are_the_same_on_the_gpu(rng, d):
    x = torch.rand(3000, d, generator=rng, dtype=torch.float64)
    expected = radius_graph(x, r=0.05, backend="brute")
    for backend in ("cells", "brute"):
        found = radius_graph(x.cuda(), r=0.05, backend=backend)
        assert torch.equal(found.src.cpu(), expected.src)
        assert torch.equal(found.ptr.cpu(), expected.ptr)
    grid = Grid(61).points.cuda()
    assert [radius_graph(p, r=0.1).num_edges for p in (grid, grid.float(), grid + 1000)] == [386221] * 3


def test_the_operator_runs_where_its_network_is(rng):
    torch.manual_seed(0)
    operator = Operator(GKN(2, width=8, kernel=(8, 16), steps=2), Radius(0.2))
    grid = Grid(17)
    sample = Dataset(grid, a=torch.randn(1, 289, generator=rng), u=torch.zeros(1, 289))[0]
    at = torch.rand(50, 2, generator=rng, dtype=torch.float64)
    here = [
        operator(sample),
        operator(sample, at=at),
        operator(sample, how=Support(100, 2)),
        operator(sample, how=Partition(50)),
    ]
    operator.model.cuda()
    there = [
        operator(sample),
        operator(sample, at=at),
        operator(sample, how=Support(100, 2)),
        operator(sample, how=Partition(50)),
    ]
    for mine, other in zip(there, here, strict=True):
        torch.testing.assert_close(mine.cpu(), other, rtol=1e-4, atol=1e-5)


def test_what_is_on_two_devices_is_refused(rng):
    graph = random_graph(rng, 4, 3, 9)
    given = [torch.randn(s, generator=rng) for s in ((9, 2), (2, 3, 3), (3, 3), (3, 3))]
    with pytest.raises(ValueError, match=r"the graph is on cpu, v on cuda:0"):
        kernel_integral(*(x.cuda() for x in given), graph)
    with pytest.raises(ValueError, match="needed one type and one device"):
        kernel_integral(given[0], *(x.cuda() for x in given[1:]), graph.to("cuda"))
    with pytest.raises(ValueError, match="sources are on cuda:0, targets on cpu"):
        radius_graph(torch.zeros(2, 2, device="cuda"), torch.zeros(2, 2), 0.1)


def test_nan_is_not_hidden(rng):
    """A ReLU that is done as a product is written must not turn NaN into 0."""
    torch.manual_seed(0)
    x = torch.rand(50, 2, generator=rng).cuda()
    graph, v = radius_graph(x, r=0.2), torch.randn(50, 8, generator=rng).cuda()
    features = x.clone()
    features[7] = float("nan")
    for sizes in ((8,), (8, 16), (200, 16)):
        kernel = Kernel(2, sizes, 8, 8).cuda()
        for recompute in (False, True):
            assert torch.isnan(plan_integral(kernel, graph, features, features, recompute=recompute).integral()(v)[7]).all()
            with torch.no_grad():
                assert torch.isnan(plan_integral(kernel, graph, features, features, recompute=recompute).integral()(v)[7]).all()


@pytest.mark.parametrize("kind", ["fp32", "bf16"])
@pytest.mark.parametrize("recompute", [False, True])
def test_all_steps_as_one_function(rng, monkeypatch, kind, recompute):
    """Output and gradients as near to float64 as those of the steps one by one, also in many groups and blocks."""
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", False)
    torch.manual_seed(0)
    model = GKN(2, 2, 1, width=32, kernel=(32, 48), steps=4).cuda()
    points = [torch.rand(size, 2, generator=rng, dtype=torch.float64) for size in (60, 1, 90, 40, 80)]
    graph = Graph.batch([radius_graph(x, r=0.3) for x in points]).to("cuda")
    x, a = torch.cat(points).cuda(), torch.randn(graph.num_sources, 2, generator=rng, dtype=torch.float64).cuda()
    weights = torch.rand(len(x), generator=rng, dtype=torch.float64).cuda()

    def run(model, dtype, one_by_one):
        given = graph, x.to(dtype), a.to(dtype), weights.to(dtype)
        with torch.autocast("cuda", torch.bfloat16, enabled=kind == "bf16" and dtype == torch.float32):
            out = model.project(model.states(*given)[-1]) if one_by_one else model(*given)
        return [out.detach(), *torch.autograd.grad(out.float().square().sum(), [*model.parameters()])]

    truth = run(copy.deepcopy(model).double(), torch.float64, True)
    plain = run(model, torch.float32, True)
    model.recompute = recompute
    ours = [run(model, torch.float32, False)]
    for name in ("GROUP_BYTES", "KEPT_BYTES"):
        monkeypatch.setattr(f"gkn.ops.integral.{name}", {"cpu": 2**17, "cuda": 2**17})
    monkeypatch.setattr("gkn.ops.library.BLOCK_BYTES", {"cpu": 2**16, "cuda": 2**16})
    ours.append(run(model, torch.float32, False))
    eps = {"fp32": 2**-21, "bf16": 2**-8}[kind]
    for found in ours:
        for mine, theirs, exact in zip(found, plain, truth, strict=True):
            error, other = (float((x.double() - exact).norm() / exact.norm()) for x in (mine, theirs))
            assert error <= 2 * max(other, eps)


def test_a_compiled_kernel_is_not_used_for_pointers_it_was_not_made_for(rng):
    """Rows of v that begin at a multiple of 16 bytes, and then others that do not."""
    graph = random_graph(rng, 20, 30, 200).to("cuda")
    h, W, B, v = (torch.randn(s, generator=rng).cuda().bfloat16() for s in ((200, 16), (16, 16, 16), (16, 16), (30, 16)))
    truth = kernel_integral(h, W, B, v, graph, backend="reference")
    for shift in (0, 1, 3, 0, 8):
        room = torch.full((30 * 16 + 16,), float("nan"), device="cuda", dtype=torch.bfloat16)
        moved = room[shift : shift + 30 * 16].view(30, 16).copy_(v)
        out = kernel_integral(h, W, B, moved, graph, backend="fused")
        assert float((out - truth).float().norm() / truth.float().norm()) < 1e-2


# --- training ------------------------------------------------------------------------------------------------------------


def test_draws_are_those_of_the_cpu():
    rule = Nystrom(0.25, 200, 2)
    here, there = (rule.draws(58081, range(30), seed=3, epoch=4, device=device) for device in ("cpu", "cuda"))
    assert torch.equal(here, there.cpu())


go = Trainer.go


def tiny(out=None, **options):
    torch.manual_seed(0)
    data = make_dataset(Darcy(size=16, modes=8), 12, 0)
    train, test = data.split(8, 4)
    model = GKN(2, 1, 1, width=16, kernel=(16, 32), steps=3)
    given = {"epochs": 6, "batch": 3, "device": "cuda", "validation": test, "evaluate_every": 2, "save_every": 0.0, "keep": 100}
    return fit(train, model, Nystrom(0.3, 60, 2), out=out, **{**given, **options})


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
def test_a_run_has_the_same_bits_again_and_when_resumed(precision, tmp_path):
    first = tiny(tmp_path / "a", precision=precision)
    again = tiny(precision=precision)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    Checkpoints(tmp_path / "b/checkpoints").drop_after(17)  # in the middle of an epoch
    resumed = tiny(tmp_path / "b", precision=precision)
    for name, x in first.model.state_dict().items():
        assert torch.equal(x, again.model.state_dict()[name]), name
        assert torch.equal(x, resumed.model.state_dict()[name]), name
    here = load(tmp_path / "a", best=True, device="cpu")  # on another machine
    data = make_dataset(Darcy(size=16, modes=8), 12, 0)
    assert torch.allclose(relative_l2(here, data).each, relative_l2(first, data).each, rtol=0.02)


def test_a_gpu_run_is_a_cpu_run_to_rounding():
    there, here = (tiny(precision="fp64", device=device) for device in ("cuda", "cpu"))
    for name, x in here.model.state_dict().items():
        assert torch.allclose(x, there.model.state_dict()[name].cpu(), rtol=1e-6, atol=1e-9), name


def test_bad_numbers_stop_a_gpu_run_within_a_step(tmp_path):
    really, calls = torch.Tensor.backward, []

    def poisoned(loss, *args, **kwargs):
        really(loss, *args, **kwargs)
        calls.append(1)
        if len(calls) == 9:
            torch.cuda.synchronize()
            model[0].kappa.W.grad[0, 0, 0] = float("nan")

    model = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "backward", poisoned)
        patch.setattr("gkn.train.loop.Trainer.go", lambda run, *board: (model.append(run.model), go(run, *board))[1])
        with pytest.raises(BadNumbers, match=r"step 8: the gradient of kappa\.W is not finite"):
            tiny(tmp_path / "a", save_every=1e9)
    assert len(calls) <= 10
    found, _ = Checkpoints(tmp_path / "a/checkpoints").newest()
    assert all(torch.isfinite(x.double()).all() for x in found.tensors.values())


# --- near and far


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_small_kernels_on_the_chip_are_the_sum_over_edges(kind):
    """In float32 to rounding; in bf16, where the gradient of the first layer loses a fortieth, no worse than edge by edge."""
    rng = torch.Generator().manual_seed(0)
    x = torch.rand(3000, 2, generator=rng, dtype=torch.float64)
    graph, a = radius_graph(x, r=0.05), torch.randn(3000, 2, generator=rng)
    torch.manual_seed(0)
    kernel = Kernel(3, (32, 8), 128, 128, smooth=True)
    v, d = (torch.randn(3000, 128, generator=rng).bfloat16().float() for _ in range(2))

    def all_of(device, backend, dtype):
        """Return all gradients, those of target values for differences included."""
        of = features(x.to(dtype), a.to(dtype), 0.05, (0,)).to(device)
        here = copy.deepcopy(kernel).to(device, dtype)
        values = v.to(device, dtype).requires_grad_()
        with torch.autocast(device, kind, enabled=device == "cuda" and kind != torch.float32):
            balls = make_balls(Neighbourhoods(graph.to(device), of, of, 2, None), here, 1, recompute=False, backend=backend)
            out = balls(here, values, values)
        assert isinstance(balls, ChipBalls) == (backend == "fused")
        gradients = torch.autograd.grad(out, [values, *here.parameters()], d.to(device, out.dtype))
        return [each.detach().cpu().double() for each in (out, *gradients)]

    exact = all_of("cpu", "factored", torch.float64)
    chip, edges = (all_of("cuda", backend, torch.float32) for backend in ("fused", "factored"))
    for true, one, other in zip(exact, chip, edges, strict=True):
        error, usual = (float((each - true).norm() / true.norm()) for each in (one, other))
        assert error < (1e-4 if kind == torch.float32 else 1.2 * usual + 1e-3)


def test_small_kernels_give_the_same_bits_twenty_times():
    x = torch.rand(2000, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64).cuda()
    torch.manual_seed(0)
    model = NearFar(2, 1, 1, width=64, blocks=2, radius=0.05).cuda()
    graph, a = radius_graph(x, r=0.05), torch.randn(2000, 1, device="cuda")
    found = []
    for _ in range(20):
        with torch.autocast("cuda", torch.bfloat16):
            out = model(graph, x.float(), a)
        found.append([out.detach(), *torch.autograd.grad(out.square().sum(), [*model.parameters()])])
    for again in found[1:]:
        assert all(torch.equal(one, other) for one, other in zip(again, found[0], strict=True))


@pytest.mark.parametrize(
    ("kind", "rule"), [(NearFar, Radius(0.1)), (NearFar, Nystrom(0.1, 300)), (Multigrid, Radius(0.1))], ids=str
)
@pytest.mark.parametrize("more", [{}, {"symmetries": True, "gradient": 0.1}], ids=["plain", "all"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_recorded_step_is_the_step(precision, kind, rule, more, monkeypatch):
    """Replayed or not, a run has the same losses up to rounding, which grows with the steps in bf16.

    Some models add up in any order on a GPU. How much a plain run differs from itself is measured and allowed beside.

    A last batch that is smaller has a record of its own, and one with more edges than fit is recorded anew.
    """
    monkeypatch.setattr("gkn.train.capture.SPARE", 1.001)
    data = make_dataset(Darcy(size=31), 10, device="cuda").smoothed(0.05)

    def losses(capture, precision):
        torch.manual_seed(0)
        model, seen = kind(2, len(data.inputs), 1, width=32, radius=0.1), []
        options = {"device": "cuda", "weighted": True, "zero": "box", "batch": 4, "epochs": 3, "precision": precision, **more}
        fit(data, model, rule, "ours", capture=capture, report=seen.append, **options)
        return torch.tensor([status.loss for status in seen[1:]])

    recorded, plain = losses(True, precision), losses(False, precision)
    assert len(recorded) == 8
    if precision == "fp32":
        torch.testing.assert_close(recorded, plain, rtol=1e-5, atol=0)
        return
    again = losses(False, precision)
    error, noise = (float(((each - plain) / plain).abs()[:4].max()) for each in (recorded, again))
    assert error <= 2e-3 + noise, (error, noise)


@pytest.mark.parametrize("kind", ["NearFar", "Transformer", "SliceAttention"])
@pytest.mark.parametrize("more", [{}, {"symmetries": True, "gradient": 0.1}], ids=["plain", "all"])
def test_a_recorded_step_of_samples_with_their_own_points_is_the_step(kind, more, monkeypatch):
    """Their graphs are filled up to the same number of nodes, and recorded steps give the same losses."""
    records = []
    monkeypatch.setattr("gkn.train.step.Captured", lambda *given: records.append(given) or Captured(*given))
    rng = torch.Generator().manual_seed(0)
    domains = [Cloud(torch.rand(300 + 50 * (i % 3), 2, generator=rng, dtype=torch.float64)) for i in range(12)]
    fields = {name: [torch.randn(len(domain), generator=rng, dtype=torch.float64) for domain in domains] for name in "au"}
    data = Dataset(domains, **fields)

    def losses(capture):
        seen = []
        settings = {"width": 16, "blocks": 2, "head": 8, **({"radius": 0.2, "kernel": (8, 4)} if kind == "NearFar" else {})}
        options = {"settings": settings, "rule": Radius(0.2), "epochs": 4, "device": "cuda", "precision": "fp32", **more}
        fit(data, kind, **options, capture=capture, report=seen.append, warn=lambda text: None, weighted=True)
        return torch.tensor([status.loss for status in seen[1:]])

    plain = losses(False)
    assert not records
    recorded = losses(True)
    assert records
    assert len(recorded) >= 8
    torch.testing.assert_close(recorded[:8], plain[:8], rtol=1e-4, atol=0)


@pytest.mark.parametrize("pairs", ["one", "all"])
def test_a_recorded_step_of_trajectories_is_the_step(pairs):
    """The waves of a periodic domain and norms that depend on the length of a step are recorded with the rest."""
    data = make_dataset(Burgers(size=64, frames=5), 6, device="cuda")

    def losses(capture):
        seen = []
        settings = {"width": 16, "blocks": 2, "slices": 8, "head": 8, "kernel": (8, 4)}
        options = {"settings": settings, "stepping": Stepping(pairs=pairs), "epochs": 2, "device": "cuda", "precision": "fp32"}
        fit(data, "NearFar", **options, capture=capture, report=seen.append, warn=lambda text: None)
        return torch.tensor([status.loss for status in seen[1:]])

    recorded, plain = losses(True), losses(False)
    assert len(recorded) > 8
    torch.testing.assert_close(recorded[:8], plain[:8], rtol=1e-4, atol=0)
