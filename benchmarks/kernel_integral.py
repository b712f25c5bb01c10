"""One training step of the paper's network, PyG's NNConv and ours: python -m benchmarks.kernel_integral [--device cuda]

Prints nothing before the results agree: ours and PyG's, in the same precision and with the same weights, against ours in
float64. Width 64, T = 6, Nystrom graphs of m = 200 nodes; kernels (width/2, width).
"""

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import time
from contextlib import nullcontext

import torch

from benchmarks import RESULTS, commit, record
from benchmarks.nnconv import NNConvGKN, problem
from gkn.models.pyg import from_nnconv

NAMES = ("ours", "ours, recomputed", "pyg")
RADII = (0.15, 0.25, 0.40, 1.0)
STEPS, WIDTH = 6, 64
FLIP = 1e-5  # a ReLU whose argument is 0 to rounding may open or close: seen as 1e-6 of a gradient, in either network


def kernel_sizes(width):
    return (width // 2, width)


def floor(graph, kernel, tflops):
    """Seconds the arithmetic of one training step takes at the measured rate of a large bf16 product: each sum done once, with
    the cheapest order of contraction, and twice that again in the backward pass."""
    E, K, (k1, k), n = graph.num_edges, graph.num_targets, kernel, WIDTH
    forward = 2 * E * k1 * k + STEPS * (2 * E * k * n + 2 * K * k * n * n)
    return 3 * forward / (tflops * 1e12)


def matmul_rate():
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    return 2 * 8192**3 / timed(lambda: a @ b, 20) / 1e12


def precision(name, device):
    """fp32, tf32 or bf16: how matrix products are done."""
    if device == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = name != "fp32"
        torch.backends.cudnn.allow_tf32 = name != "fp32"
    return torch.autocast(device, torch.bfloat16) if name == "bf16" else nullcontext()


def stepper(model, u, *inputs, kind="fp32"):
    device = u.device.type
    adam = torch.optim.Adam(model.parameters(), lr=1e-4, weight_decay=5e-4, fused=True, capturable=device == "cuda")

    def step():
        with precision(kind, device):
            loss = (model(*inputs).float() - u).square().mean()
        loss.backward()
        adam.step()
        adam.zero_grad(set_to_none=True)

    return step


def timed(call, repeats):
    """Median seconds of a call."""
    if not torch.cuda.is_available():
        times = []
        for _ in range(repeats):
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
        return statistics.median(times)
    for _ in range(3):
        call()
    events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(repeats)]
    for start, end in events:
        start.record()
        call()
        end.record()
    torch.cuda.synchronize()
    return statistics.median(start.elapsed_time(end) for start, end in events) / 1000


def captured(step):
    """The step as one CUDA graph: what the machine does when Python is out of the way."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def peak_of(call, device):
    """Bytes: on a GPU all that torch holds at the peak; on the CPU how far the process grows."""
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        call()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated()
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    before = _status("VmRSS")
    call()
    return _status("VmHWM") - before


def _status(name):
    with open("/proc/self/status") as file:
        return 1024 * int(next(line for line in file if line.startswith(name)).split()[1])


def agreement(width, r, device):
    """Errors of ours and of PyG's, relative to float64, of outputs and gradients: ours at most twice (thrice) theirs."""
    graph, x, a, u, data = problem(2, 200, r, device, seed=1)
    torch.manual_seed(0)
    peer = NNConvGKN(kernel=kernel_sizes(width)).to(device)
    found = {}
    exact_model = from_nnconv(peer, 2, STEPS).double()
    exact = results(exact_model, u.double(), graph, x.double(), a.double())
    for kind in ("fp32", "tf32", "bf16") if device == "cuda" else ("fp32",):
        with precision(kind, device):
            ours = results(from_nnconv(peer, 2, STEPS), u, graph, x, a)
            again = results(from_nnconv(peer, 2, STEPS, recompute=True), u, graph, x, a)
            theirs = results(peer_as_ours(peer), u, data)
        found[kind] = {}
        for name in exact:
            error, error_again, peers = (relative(got[name], exact[name]) for got in (ours, again, theirs))
            found[kind][name] = {"ours": error, "recomputed": error_again, "pyg": peers}
            limit = 2 if name == "out" else 3
            if not max(error, error_again) <= limit * peers + FLIP:  # NaN is no agreement, either
                raise SystemExit(
                    f"{kind}, {name}: error {error:.2e}, recomputed {error_again:.2e}, PyG's {peers:.2e}: no comparison"
                )
    return found


def relative(got, exact):
    return float((got.double() - exact).norm() / exact.norm())


class peer_as_ours:
    """PyG's network, with its gradients under our names."""

    def __init__(self, peer):
        self.peer = peer

    def zero_grad(self):
        self.peer.zero_grad()

    def __call__(self, data):
        return self.peer(data)

    def grads(self):
        last = self.peer.conv1.nn[-1].weight.grad
        return {
            "P": self.peer.fc1.weight.grad,
            "Q": self.peer.fc2.weight.grad,
            "W": self.peer.conv1.lin.weight.grad,
            "kappa": last.T.reshape(-1, WIDTH, WIDTH),
            "hidden": self.peer.conv1.nn[2].weight.grad,
        }


def results(model, u, *inputs):
    model.zero_grad()
    out = model(*inputs)
    (out.to(u.dtype) - u).square().mean().backward()
    if isinstance(model, peer_as_ours):
        grads = model.grads()
    else:
        grads = {
            "P": model.P.weight.grad,
            "Q": model.Q.weight.grad,
            "W": model.W.weight.grad,
            "kappa": model.kappa.W.grad,
            "hidden": model.kappa.hidden[0].weight.grad,
        }
    return {"out": out.detach(), **{name: grad.detach().clone() for name, grad in grads.items()}}


def kept_rows(name, options):
    """Return the agreement and the rows measured before, without the rows to be measured now."""
    now = {(kernel_sizes(width), r) for width in options.widths for r in options.radii}
    before = json.loads((RESULTS / f"{name}.json").read_text())
    rows = [{"commit": before["commit"]} | row for row in before["rows"]]
    return before["agreement"], [row for row in rows if (tuple(row["kernel"]), row["r"]) not in now]


def measure(graphs, width, r, device, rate, rounds):
    graph = problem(graphs, 200, r, device)[0]
    row = {"kernel": kernel_sizes(width), "r": r, "edges": graph.num_edges, "degree": graph.num_edges / graph.num_targets}
    if device == "cuda":
        row["floor_bf16_ms"] = 1000 * floor(graph, kernel_sizes(width), rate)
    if device == "cuda":
        for kind in ("fp32", "tf32", "bf16"):
            for name in NAMES:
                row[f"{name}, {kind}"] = cell(graphs, width, r, device, kind, name)
    else:
        turns = rounds or (3 if r <= 0.25 else 1)
        row |= {f"{name}, fp32": found for name, found in in_turns(graphs, width, r, turns).items()}
    show(row, device)
    return row


def in_turns(graphs, width, r, rounds):
    """On a CPU that others use, too, speed drifts: the networks take turns, and the median round counts. Each has its own
    process, since memory is measured as the growth of the process."""
    seen = {name: [] for name in NAMES}
    for _ in range(rounds):
        for name in NAMES:
            arguments = [str(value) for value in (graphs, width, r, "cpu", "fp32", name)]
            child = [sys.executable, "-m", "benchmarks.kernel_integral", "--cell", *arguments]
            seen[name].append(json.loads(subprocess.run(child, capture_output=True, text=True, check=True).stdout))
    return {
        name: {"ms": statistics.median(one["ms"] for one in found), "peak_gib": max(one["peak_gib"] for one in found)}
        | {"rounds_ms": [one["ms"] for one in found]}
        for name, found in seen.items()
    }


def cell(graphs, width, r, device, kind, name):
    left = 0
    if device == "cuda":  # what earlier cells have not given back
        gc.collect()
        torch.cuda.empty_cache()
        left = torch.cuda.memory_allocated()
    graph, x, a, u, data = problem(graphs, 200, r, device)
    torch.manual_seed(0)
    peer = NNConvGKN(kernel=kernel_sizes(width)).to(device)
    model = peer if name == "pyg" else from_nnconv(peer, 2, STEPS, recompute=name != "ours")
    step = stepper(model, u, *((data,) if name == "pyg" else (graph, x, a)), kind=kind)
    del peer, model
    try:
        if device == "cuda":
            step()
        found = {"peak_gib": (peak_of(step, device) - left) / 2**30}
        repeats = (3 if name == "pyg" else 20) if device == "cuda" else (1 if name == "pyg" else 5)
        found["ms"] = 1000 * timed(step, repeats)
        if device == "cuda" and name != "pyg":
            found["captured_ms"] = 1000 * timed(captured(step), repeats)
    except torch.cuda.OutOfMemoryError:
        found = {"out_of_memory": True}
    del step
    if device == "cuda":
        gc.collect()
        torch.cuda.empty_cache()
    return found


def show(row, device):
    print(f"kernel {row['kernel']}, r = {row['r']}, degree {row['degree']:.0f}", end="")
    print(f", floor in bf16 {row['floor_bf16_ms']:.2f} ms" if device == "cuda" else "")
    for name, cell in row.items():
        if isinstance(cell, dict):
            text = "out of memory" if "ms" not in cell else f"{cell['ms']:9.2f} ms {cell['peak_gib']:7.2f} GiB"
            print(f"  {name:24}{text}", f"captured {cell['captured_ms']:.2f}" if "captured_ms" in cell else "", flush=True)


def profile(graphs, width, r, kind):
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiler

    graph, x, a, u, _ = problem(graphs, 200, r, "cuda")
    model = from_nnconv(NNConvGKN(kernel=kernel_sizes(width)).to("cuda"), 2, STEPS, recompute=False)
    step = stepper(model, u, graph, x, a, kind=kind)
    for _ in range(3):
        step()
    with profiler(activities=[ProfilerActivity.CUDA]) as seen:
        for _ in range(5):
            step()
        torch.cuda.synchronize()
    for event in sorted(seen.key_averages(), key=lambda e: -e.self_device_time_total)[:24]:
        print(f"{event.self_device_time_total / 5000:8.3f} ms {event.count / 5:6.1f} x {event.key[:110]}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=("cpu", "cuda"))
    parser.add_argument("--graphs", type=int, help="in a batch; 20 on a GPU, 2 on a CPU unless said otherwise")
    parser.add_argument("--widths", type=int, nargs="+", default=[256, 1024])
    parser.add_argument("--radii", type=float, nargs="+", default=RADII)
    parser.add_argument("--rounds", type=int, help="turns each network takes on a CPU; 3, or 1 where PyG takes minutes")
    parser.add_argument("--add", action="store_true", help="keep the other rows of the results there are")
    parser.add_argument("--profile", metavar="KIND", help="only show where the time goes: fp32, tf32 or bf16")
    parser.add_argument("--cell", nargs=6, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(os.cpu_count() or 1)
    if options.cell:
        graphs, width, r, *rest = options.cell
        print(json.dumps(cell(int(graphs), int(width), float(r), *rest)))
        return None
    graphs = options.graphs or (20 if options.device == "cuda" else 2)
    if options.profile:
        return profile(graphs, options.widths[0], options.radii[0], options.profile)
    found = {f"{width}, r = {r}": agreement(width, r, options.device) for width in options.widths for r in options.radii}
    print(
        "agree:",
        json.dumps(
            {
                name: {kind: f"{v['out']['ours']:.1e} (PyG {v['out']['pyg']:.1e})" for kind, v in kinds.items()}
                for name, kinds in found.items()
            }
        ),
    )
    rate = matmul_rate() if options.device == "cuda" else None
    name = f"kernel-integral-{options.device.replace('cuda', 'gpu')}"
    agreed, rows = kept_rows(name, options) if options.add else ({}, [])
    found, path = {**agreed, **found}, None
    for width in options.widths:
        for r in options.radii:
            rows.append(measure(graphs, width, r, options.device, rate, options.rounds) | {"commit": commit()})
            values = {"graphs": graphs, "m": 200, "bf16_tflops": rate, "threads": torch.get_num_threads()}
            # After every row: what is measured is not lost when time runs out.
            path = record(name, {**values, "agreement": found, "rows": rows})
    print(path)
    return None


if __name__ == "__main__":
    main()
