"""Is our Darcy data the paper's? Mean and standard deviation of a and u over 1024 samples, beside the published set's.

python -m benchmarks.darcy_measure [--device cuda]
"""

import argparse
import math
import os
import tempfile

from benchmarks import record
from gkn import Darcy, make_dataset

PUBLISHED = {"mean_a": 7.4836, "std_a": 4.49996, "mean_u": 5.746e-3, "std_u": 3.884e-3}  # shared/paper/notes.md, 1


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--n", type=int, default=1024)
    parser.add_argument("--size", type=int, default=241)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:  # made by this code, now
        measure(
            make_dataset(Darcy(size=options.size), options.n, 0, folder, workers=os.cpu_count() or 1, device=options.device)
        )


def measure(data):
    found, error = {}, {}
    for name in ("a", "u"):
        values = data.field(name)
        each = values.mean(1)
        found[f"mean_{name}"], found[f"std_{name}"] = float(values.mean()), float(values.std())
        # Standard errors by sample, which are independent; points of one sample are not.
        error[f"mean_{name}"] = float(each.std() / math.sqrt(len(data)))
        squares = ((values - values.mean()) ** 2).mean(1)
        error[f"std_{name}"] = float(squares.std() / math.sqrt(len(data)) / (2 * values.std()))
        inside = values[:, ~data.domain.boundary]
        found[f"mean_{name}_inside"], found[f"std_{name}_inside"] = float(inside.mean()), float(inside.std())
    print(f"{'':8}{'ours':>12}{'published':>12}{'difference':>12}{'std. error':>12}")
    for key, published in PUBLISHED.items():
        print(f"{key:8}{found[key]:12.5g}{published:12.5g}{found[key] / published - 1:12.2%}{error[key] / published:12.2%}")
    print(f"without the boundary nodes, where u = 0: mean_u {found['mean_u_inside']:.5g}, std_u {found['std_u_inside']:.5g}")
    relative = {key: found[key] / published - 1 for key, published in PUBLISHED.items()}
    values = {"n": len(data), "size": data.domain.size, "seed": 0, "ours": found, "published": PUBLISHED}
    print(record("darcy241", {**values, "relative_difference": relative, "standard_error": error}))


if __name__ == "__main__":
    main()
