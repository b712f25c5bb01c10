"""Exact evaluation on full grids, every point a node: python -m benchmarks.full_grid [--sizes 61 121 241 421]

At 421 x 421 and r = 0.10 there are 10^9 edges; their features are computed anew in every step, a block at a time. In bf16,
after it agrees with float64 on a small grid.
"""

import argparse
import time

import numpy as np
import torch

from benchmarks import record
from gkn import GKN, Dataset, GaussianField, Grid, Operator, Radius, two_phase

RADIUS = 0.10


def sample(size):
    rng = torch.Generator().manual_seed(0)
    field = GaussianField(tau=3, alpha=2, boundary="neumann")
    grid = Grid(size)
    a = (two_phase(field.sample(grid, 1, rng)) - 7.5) / 4.5
    return Dataset(grid, a=a, u=a)[0]


def evaluate(model, size, device):
    """Seconds, peak bytes, edges, and what came out."""
    given, operator = sample(size), Operator(model, Radius(RADIUS))
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    start = time.perf_counter()
    with torch.autocast(device, torch.bfloat16):
        u = operator(given)
    torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    peak = torch.cuda.max_memory_allocated()
    edges = Radius(RADIUS).graph(given.x.to(device)).num_edges
    return seconds, peak, edges, u


def agrees(kernel, device, size=31):
    torch.manual_seed(0)
    model = GKN(2, kernel=kernel, recompute=True).to(device)
    exact = Operator(GKN(2, kernel=kernel, backend="reference").double(), Radius(RADIUS))
    exact.model.load_state_dict(model.state_dict())
    exact.model.to(device)
    u = evaluate(model, size, device)[3]
    truth = exact(sample(size))
    error = float((u.double() - truth).norm() / truth.norm())
    if not error < 2e-2:  # bf16 has 8 bits
        raise SystemExit(f"kernel {kernel} at {size} x {size}: relative error {error:.1e} in bf16: nothing to time")
    return error


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[61, 121, 241, 421])
    parser.add_argument("--kernels", nargs="+", default=["128,256", "512,1024"])
    options = parser.parse_args()
    device, rows = "cuda", []
    for text in options.kernels:
        kernel = tuple(int(size) for size in text.split(","))
        error = agrees(kernel, device)
        torch.manual_seed(0)
        model = GKN(2, kernel=kernel, recompute=True).to(device)
        row = {"kernel": kernel, "relative_error_bf16": error, "cells": []}
        for size in options.sizes[:2]:  # compiles, for small degrees and for large ones
            evaluate(model, size, device)
        for size in options.sizes:
            seconds, peak, edges, u = evaluate(model, size, device)
            if not torch.isfinite(u).all():
                raise SystemExit(f"kernel {kernel} at {size}: not finite")
            row["cells"].append({"size": size, "edges": edges, "seconds": seconds, "peak_gib": peak / 2**30})
            print(
                f"kernel {kernel}, {size:4} x {size:<4} {edges:11,} edges {seconds:8.2f} s {peak / 2**30:6.2f} GiB", flush=True
            )
        edges, seconds = ([cell[name] for cell in row["cells"]] for name in ("edges", "seconds"))
        if len(edges) > 1:
            row["slope"] = float(np.polyfit(np.log(edges), np.log(seconds), 1)[0])
            row["last_slope"] = float(np.diff(np.log(seconds))[-1] / np.diff(np.log(edges))[-1])
            print(f"slope {row['slope']:.3f}, of the last two {row['last_slope']:.3f}; error in bf16 at 31 x 31 {error:.1e}")
        rows.append(row)
    print(record("full-grid-gpu", {"r": RADIUS, "rows": rows}))


if __name__ == "__main__":
    main()
