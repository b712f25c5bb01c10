"""Peak memory and time of smoothing on clouds of 10^4, 10^5 and 10^6 points: python -m benchmarks.smoothing

Nothing is measured before sums by way of a grid agree with direct ones. Each row is a process of its own.
"""

import argparse
import json
import subprocess
import sys
import time

import torch

from benchmarks import record
from benchmarks.kernel_integral import peak_of
from gkn import Cloud, smooth
from gkn.geometry import smoothing

POINTS, WIDTHS, DIMS = (10**4, 10**5, 10**6), (0.03, 0.1), (2, 3)


def cloud(count, dim):
    """Return random points of the unit box with equal weights, and a function on them."""
    rng = torch.Generator().manual_seed(0)
    x = torch.rand(count, dim, generator=rng, dtype=torch.float64)
    weights = torch.full((count,), 1 / count, dtype=torch.float64)
    return Cloud(x, weights, torch.zeros(count, dtype=torch.bool)), torch.sin(9 * x[:, 0]) + (x[:, -1] > 0.5)


def agree():
    """Return the largest differences of values and gradients between direct sums and those by way of a grid."""
    worst = [0.0, 0.0]
    for dim in DIMS:
        domain, a = cloud(4000, dim)
        found = []
        for most in (2**40, 0):
            smoothing._MOST_PAIRS = most
            found.append(smooth(domain, a, 0.1))
        for i, (direct, grid) in enumerate(zip(*found, strict=True)):
            worst[i] = max(worst[i], float((direct - grid).abs().max() / direct.abs().max()))
    if worst[0] > 1e-9 or worst[1] > 1e-7:
        raise SystemExit(f"the ways to smooth do not agree: {worst}")
    return worst


def measure(count, dim, width):
    domain, a = cloud(count, dim)
    smooth(*cloud(100, dim), width)  # loads libraries
    start = time.perf_counter()
    peak = peak_of(lambda: smooth(domain, a, width), "cpu")
    seconds = time.perf_counter() - start
    return {"points": count, "dim": dim, "width": width, "seconds": seconds, "peak_mib": peak / 2**20}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--row", nargs=3, type=float, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.row:
        print(json.dumps(measure(int(options.row[0]), int(options.row[1]), options.row[2])))
        return
    values, gradients = agree()
    rows = []
    for dim in DIMS:
        for width in WIDTHS:
            for count in POINTS:
                command = [sys.executable, "-m", "benchmarks.smoothing", "--row", str(count), str(dim), str(width)]
                rows.append(json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout))
                print(rows[-1], flush=True)
    print(record("smoothing-cpu", {"rows": rows, "difference_of_values": values, "difference_of_gradients": gradients}))


if __name__ == "__main__":
    main()
