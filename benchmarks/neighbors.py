"""Radius search at 10^6 points and 10^8 edges, every backend: python -m benchmarks.neighbors [--device cuda]

Nothing is timed before all backends give the same edges in the same order.
"""

import argparse
import json
import math
import subprocess
import sys
import time

import torch

from benchmarks import record
from benchmarks.kernel_integral import peak_of
from gkn.graph.neighbors import radius_graph


def points(n, d, device):
    return torch.rand(n, d, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).to(device)


def agree(device):
    for d in (1, 2, 3):
        x = points(4000, d, device)
        found = [radius_graph(x, r=0.07, backend=backend) for backend in ("brute", "tree", "cells")]
        if not all(torch.equal(found[0].src, g.src) and torch.equal(found[0].ptr, g.ptr) for g in found[1:]):
            raise SystemExit(f"the backends do not agree in dimension {d}")


def measure(n, degree, device, backend):
    x = points(n, 2, device)
    r = math.sqrt(degree / n / math.pi)
    made = {}

    def search():
        made["edges"] = radius_graph(x, r=r, backend=backend).num_edges
        if device == "cuda":
            torch.cuda.synchronize()

    if device == "cuda":
        search()  # loads kernels
    peak = peak_of(search, device)
    start = time.perf_counter()
    search()
    return {"backend": backend, "seconds": time.perf_counter() - start, "peak_gib": peak / 2**30, "edges": made["edges"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=("cpu", "cuda"))
    parser.add_argument("--points", type=int, default=10**6)
    parser.add_argument("--degree", type=float, default=100)
    parser.add_argument("--backend", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.backend:
        print(json.dumps(measure(options.points, options.degree, options.device, options.backend)))
        return
    agree(options.device)
    rows = []
    for backend in ("cells",) if options.device == "cuda" else ("tree", "cells"):
        arguments = ["--points", options.points, "--degree", options.degree, "--device", options.device, "--backend", backend]
        child = [sys.executable, "-m", "benchmarks.neighbors", *map(str, arguments)]
        row = json.loads(subprocess.run(child, capture_output=True, text=True, check=True).stdout)
        print(
            f"{options.device}, {backend}: {row['edges']:,} edges, {row['seconds']:.2f} s, {row['peak_gib']:.2f} GiB",
            flush=True,
        )
        rows.append(row)
    print(record(f"neighbors-{'gpu' if options.device == 'cuda' else 'cpu'}", {"points": options.points, "rows": rows}))


if __name__ == "__main__":
    main()
