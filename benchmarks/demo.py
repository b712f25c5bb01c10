"""Measure the first five minutes: a fresh clone, `make demo`, and a new process that repeats its numbers.

    python -m benchmarks.demo

Nothing else should run on the machine meanwhile. The last commit is cloned into a temporary folder, so that only files that
git has are there.
"""

import json
import os
import re
import subprocess
import tempfile
import time
from pathlib import Path

from benchmarks import record

ROOT = Path(__file__).parent.parent


def main():
    with tempfile.TemporaryDirectory() as folder:
        clone = Path(folder) / "gkn"
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
        head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=clone, check=True, capture_output=True, text=True).stdout
        os.environ["GKN_COMMIT"] = head.strip()  # what is measured is the clone
        start = time.perf_counter()
        subprocess.run(["make", ".venv/.ready"], cwd=clone, check=True, capture_output=True)
        ready = time.perf_counter()
        said = subprocess.run(["make", "demo"], cwd=clone, check=True, capture_output=True, text=True).stdout
        done = time.perf_counter()
        print(said)
        demo = clone / "runs/demo"
        results = {path.stem: json.loads(path.read_text()) for path in (demo / "results").glob("*.json")}
        ((nearfar, gkn),) = re.findall(r"500 random points, from 31 x 31\s+([\d.]+)\s+([\d.]+)", said)
        repeated = (("NearFar-16x16", 16, "-40:", ["exact"]), ("GKN-241x241", 1, "-40:-32", ["partition", "--m", "256"]))
        for name, stride, chosen, how in repeated:
            run = f"runs/demo/{name.split('-')[0].lower()}"
            words = f"eval {run} runs/demo/darcy241-140 --every {stride} --out runs/again.json --how".split()
            subprocess.run([".venv/bin/gkn", *words, *how, "--samples", chosen], cwd=clone, check=True, capture_output=True)
            again = json.loads((clone / "runs/again.json").read_text())["errors"][0]["each"]
            if again != results[name]["each"]:
                raise SystemExit(f"{name}: a new process gives {again[:3]}, the demo had {results[name]['each'][:3]}")
        path = record(
            "demo-cpu",
            {
                "setup_seconds": ready - start,
                "demo_seconds": done - ready,
                "errors": {
                    name: {key: found[key] for key in ("mean", "spread", "worst", "samples")} for name, found in results.items()
                },
                "random_points": {"NearFar": float(nearfar), "GKN": float(gkn)},
                "repeated_by_a_new_process": True,
                "printed": said[said.index("trained on") :].partition("; the report")[0].splitlines(),
            },
        )
    print(f"set-up {ready - start:.0f} s, demo {done - ready:.0f} s: {path}")


if __name__ == "__main__":
    main()
