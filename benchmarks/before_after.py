"""Compare the speed of another checkout with this one: python -m benchmarks.before_after OTHER [--device cuda]

Measures the paper's kernel integral and a training step of GKN and NearFar through `fit`. The two trees take turns, each
measurement in a process of its own, because the speed of a shared machine drifts. Times of training steps are medians over
windows of some steps. The losses of an early step must agree before times are compared; later, rounding in bf16 makes two
trainings differ, also of the same code. The other checkout may be from before the folders were made, when `fit` took the model
first.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parent.parent
AGREE, EARLY = 1e-2, 3  # relative difference of losses, at this step
NAMES = ("kernel integral", "GKN", "NearFar, random nodes", "NearFar, grid")


def measure(name, device):
    """Return milliseconds of a step and the loss of an early one, for the tree in the working directory."""
    sys.path.insert(0, os.getcwd())
    gpu = device == "cuda"
    if name == "kernel integral":
        from benchmarks.kernel_integral import cell

        found = cell(20 if gpu else 2, 1024, 0.25, device, "bf16" if gpu else "fp32", "ours")
        return {"ms": found["ms"], "loss": None}
    return training_step(name, device, gpu)


def training_step(name, device, gpu):
    import torch

    import gkn

    is_new = hasattr(gkn, "Model")
    if is_new:  # formerly set on import
        from gkn.system.memory import keep_freed

        keep_freed()
    common = {"device": device, "capture": True, "epochs": 1000, "precision": "bf16" if gpu else "fp32"}
    if name == "GKN":
        data = gkn.make_dataset(gkn.Darcy(size=241, modes=32), 40 if gpu else 8, device=device).smoothed(0.1).kept(device)
        rule, steps, window = gkn.Nystrom(0.25, 200, 2), 400 if gpu else 18, 40 if gpu else 4
        torch.manual_seed(0)
        model = gkn.GKN(2, 4, width=64, kernel=(512, 1024) if gpu else (128, 256), steps=6)
        common |= {"recipe": "ours", "batch": 20 if gpu else 4}
    else:
        data = gkn.make_dataset(gkn.Darcy(size=85 if gpu else 43, modes=32), 64 if gpu else 8, device=device)
        data = data.smoothed(0.03).kept(device)
        small = {} if gpu else {"width": 32, "blocks": 4, "slices": 16, "head": 8}
        if name == "NearFar, grid":
            data, rule = data.every(2 if gpu else 1), gkn.Radius(0.12)
        else:
            rule = gkn.Nystrom(0.12, 1849)
        steps, window = (480, 40) if gpu else (12, 4)
        torch.manual_seed(0)
        model = gkn.NearFar(2, 4, features=(1,), radius=0.12, **small)
        common |= {"recipe": "nearfar", "zero": "box", "symmetries": True, "weighted": True}
    times, losses = {}, {}

    def report(status):
        if gpu and status.step % window == 0:
            torch.cuda.synchronize()
        times[status.step], losses[status.step] = time.perf_counter(), status.loss
        if status.step >= steps:
            raise KeyboardInterrupt

    with suppress(KeyboardInterrupt):
        gkn.fit(*((data, model, rule) if is_new else (model, data, rule)), report=report, **common)
    ends = [step for step in times if step % window == 0 and step >= steps // 3]
    per_step = [1e3 * (times[stop] - times[start]) / window for start, stop in pairwise(ends)]
    return {"ms": statistics.median(per_step), "loss": losses[EARLY]}


def in_tree(tree, name, device):
    python = tree / ".venv/bin/python"
    command = [str(python) if python.exists() else sys.executable, str(Path(__file__).resolve()), "--measure", name]
    done = subprocess.run([*command, "--device", device], cwd=tree, check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def commit_of(tree):
    return subprocess.run(["git", "rev-parse", "HEAD"], cwd=tree, check=True, capture_output=True, text=True).stdout.strip()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path, nargs="?", help="folder of the other checkout")
    parser.add_argument("--other-commit", help="its commit, if the folder has no .git")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=NAMES, help="measure these and keep the other results there are")
    parser.add_argument("--measure", choices=NAMES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(options.measure, options.device)))
        return
    from benchmarks import RESULTS, commit, record

    trees = {"before": options.other.resolve(), "after": ROOT}
    result = f"before-after-{options.device.replace('cuda', 'gpu')}"
    path = RESULTS / f"{result}.json"
    rows = json.loads(path.read_text())["rows"] if options.only else {}
    for name in options.only or NAMES:
        found = {when: [] for when in trees}
        for _ in range(options.rounds):
            for when, tree in trees.items():
                found[when].append(in_tree(tree, name, options.device))
        losses = [each["loss"] for seen in found.values() for each in seen if each["loss"] is not None]
        if losses and not max(losses) - min(losses) <= AGREE * min(losses):
            raise SystemExit(f"{name}: the losses differ, no comparison: {losses}")
        rounds = {when: [each["ms"] for each in seen] for when, seen in found.items()}
        before, after = (statistics.median(rounds[when]) for when in trees)
        rows[name] = {"before_ms": before, "after_ms": after, "ratio": after / before, "rounds_ms": rounds, "losses": losses}
        rows[name]["commit"] = commit()
        print(f"{name:24} before {before:9.2f} ms, after {after:9.2f} ms, ratio {after / before:.3f}", flush=True)
        values = {"other_commit": options.other_commit or commit_of(trees["before"]), "rows": rows}
        record(result, values)
    print(path)


if __name__ == "__main__":
    main()
