"""Speed of solve_darcy and of making a dataset.

python -m benchmarks.solvers                         SuperLU against solve_darcy on this machine's CPU
python -m benchmarks.solvers --device cuda           solves per second, batched, on the GPU
python -m benchmarks.solvers --dataset [--device D]  1024 samples at 421 x 421: made, written, checked
"""

import argparse
import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from scipy.sparse.linalg import splu

from benchmarks import record
from gkn import Darcy, GaussianField, Grid, check_dataset, make_dataset, solve_darcy, two_phase
from tests import oracle

AGREEMENT = 1e-8
ORDERINGS = {
    "COLAMD": {"permc_spec": "COLAMD"},
    "MMD_AT_PLUS_A": {"permc_spec": "MMD_AT_PLUS_A"},
    "MMD_AT_PLUS_A, symmetric": {"permc_spec": "MMD_AT_PLUS_A", "options": {"SymmetricMode": True}, "diag_pivot_thresh": 0.0},
    "MMD_ATA": {"permc_spec": "MMD_ATA"},
}


def coefficients(grid, n):
    return two_phase(GaussianField(3.0, 2.0).sample(grid, n, torch.Generator().manual_seed(0)))


def system(grid, a):
    inner = ~grid.boundary.numpy()
    return oracle.system(grid.size, grid.dim, a.numpy())[inner][:, inner].tocsc(), inner


def seconds(function, device="cpu", repeats=1):
    times = []
    for _ in range(repeats):
        if device == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        function()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def disagreement(grid, a, u):
    """From SuperLU's solution, relative, in the largest norm over the first samples."""
    worst = 0.0
    for coefficient, solution in zip(a, u, strict=True):
        matrix, inner = system(grid, coefficient)
        exact = splu(matrix, **ORDERINGS["MMD_AT_PLUS_A"]).solve(np.ones(int(inner.sum())))
        worst = max(worst, float(np.abs(solution.numpy()[inner] - exact).max() / np.abs(exact).max()))
    return worst


def against_superlu(size, samples):
    torch.set_num_threads(os.cpu_count() or 1)
    grid = Grid(size)
    a = coefficients(grid, samples)
    worst = disagreement(grid, a[:2], solve_darcy(grid, a[:2]))
    if not worst <= AGREEMENT:
        raise SystemExit(f"no timing: solve_darcy and SuperLU differ by {worst:.1e}")
    matrix, inner = system(grid, a[0])
    ones = np.ones(int(inner.sum()))
    # The two take turns, so that a busy moment of the machine falls on both.
    direct: dict[str, list[float]] = {name: [] for name in ORDERINGS}
    ours: list[float] = []
    for _ in range(3):
        for name, options in ORDERINGS.items():
            direct[name].append(seconds(lambda options=options: splu(matrix, **options).solve(ones)))
            ours.append(seconds(lambda: solve_darcy(grid, a)) / samples)
    superlu = {name: statistics.median(times) for name, times in direct.items()}
    pcg = statistics.median(ours)
    best = min(superlu, key=lambda name: superlu[name])
    print(f"{size} x {size}, {torch.get_num_threads()} threads; largest relative difference {worst:.1e}")
    for name, value in superlu.items():
        print(f"  SuperLU {name:28} {value:8.3f} s")
    print(f"  solve_darcy                          {pcg:8.3f} s    {superlu[best] / pcg:.1f} x the best SuperLU")
    return {
        "size": size,
        "threads": torch.get_num_threads(),
        "relative_difference": worst,
        "superlu_seconds": superlu,
        "solve_darcy_seconds": pcg,
        "ratio_to_best_superlu": superlu[best] / pcg,
    }


def on_gpu(size, batch):
    grid = Grid(size)
    a = coefficients(grid, 64)
    worst = disagreement(grid, a[:2], solve_darcy(grid, a[:2].cuda()).cpu())
    if not worst <= AGREEMENT:
        raise SystemExit(f"no timing: solve_darcy on the GPU and SuperLU differ by {worst:.1e}")
    many = a.cuda().repeat(-(-batch // 64), 1)[:batch]
    solve_darcy(grid, many)
    torch.cuda.reset_peak_memory_stats()
    took = seconds(lambda: solve_darcy(grid, many), "cuda", repeats=5)
    rate, memory = batch / took, torch.cuda.max_memory_allocated() / 2**30
    print(f"{size} x {size}, {batch} together: {rate:.0f} solves/s, {memory:.1f} GiB; largest relative difference {worst:.1e}")
    return {"size": size, "batch": batch, "relative_difference": worst, "solves_per_second": rate, "peak_gib": memory}


def dataset(n, size, device):
    folder = Path(tempfile.mkdtemp(dir=os.environ.get("GKN_SCRATCH"))) / "darcy"
    try:
        start = time.perf_counter()
        made = make_dataset(Darcy(size=size), n, 0, folder, workers=os.cpu_count() or 1, device=device)
        between = time.perf_counter()
        findings = check_dataset(folder, device=device)
        end = time.perf_counter()
        bad = [finding for finding in findings if not finding.ok]
        if bad:
            raise SystemExit(f"no timing: {bad}")
        gigabytes = sum(shard.bytes for shard in made.manifest.shards) / 1e9
    finally:
        shutil.rmtree(folder.parent)
    print(
        f"{n} samples at {size} x {size} on {device}: made and written {between - start:.1f} s, checked {end - between:.1f} s"
    )
    return {
        "n": n,
        "size": size,
        "device": device,
        "made_and_written_seconds": between - start,
        "checked_seconds": end - between,
        "total_seconds": end - start,
        "gigabytes": gigabytes,
        "residual": next(finding.text for finding in findings if finding.what == "residual"),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--dataset", action="store_true")
    parser.add_argument("--size", type=int, default=421)
    parser.add_argument("--n", type=int, default=1024)
    options = parser.parse_args()
    where = "cpu" if options.device == "cpu" else "gpu"
    if options.dataset:
        print(record(f"dataset-{where}", dataset(options.n, options.size, options.device)))
    elif options.device == "cpu":
        print(record("solvers-cpu", against_superlu(options.size, 4)))
    else:
        print(record("solvers-gpu", on_gpu(options.size, options.n)))


if __name__ == "__main__":
    main()
