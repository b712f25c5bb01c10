"""Training at the paper's cell N=100, l=2, s=241, m=m'=200, r=.25, by both recipes; and where the time goes.

    python -m benchmarks.training [--cells paper-0 ours-0 ours-1000 ...] [--throughput] [--export gkn/operator/pretrained/darcy]

Finished cells are kept in results/training-gpu.json and not trained again. `--export` saves the operator of ours-1000: this is
how the pretrained operator was made.
"""

import argparse
import json
import time
from dataclasses import replace
from itertools import islice
from pathlib import Path

import torch

from benchmarks import RESULTS, commit, machine, record
from gkn import GKN, Darcy, Nystrom, fit, make_dataset, relative_l2
from gkn.models.gkn import NETWORKS, SMOOTHING
from gkn.operator.ways import Exact, Sampled, Support
from gkn.train.fit import products
from gkn.train.loop import LoopOptions, Trainer
from gkn.train.losses import LOSSES
from gkn.train.ranks import Stop, join
from gkn.train.recipe import RECIPES
from gkn.train.setup import Choices, set_up

NAME = "training-gpu"
TRAIN, TEST = 1000, 100


def cells():
    """Name -> recipe, number of pairs, rule, nodes of the test."""
    found = {}
    for seed in (0, 1, 2):
        paper, ours = (replace(RECIPES[name], seed=seed, precision=p) for name, p in (("paper", "tf32"), ("ours", "bf16")))
        found[f"paper-{seed}"] = ("paper", paper, 100, Nystrom(0.25, 200, 2), 200)
        found[f"paper-scalar-{seed}"] = ("paper", replace(paper, pointwise=False), 100, Nystrom(0.25, 200, 2), 200)
        found[f"ours-{seed}"] = ("ours", ours, 100, Nystrom(0.25, 200, 2), 200)
    found["ours-1000"] = ("ours", replace(RECIPES["ours"], epochs=200, precision="bf16"), 1000, Nystrom(0.25, 400), 800)
    return found


def data(device):
    """Darcy problems of seed 0: the first 1000 to learn from, the last 100 to judge by"""
    made = make_dataset(Darcy(size=241), TRAIN + TEST, 0, "runs/darcy241", device=device, workers=16)
    return made.take(TRAIN), made.take(range(TRAIN, TRAIN + TEST))


def train(name, parts, device):
    which, recipe, n, rule, m = cells()[name]
    learn, judge = (part.smoothed(SMOOTHING[which]) for part in parts)
    learn = learn.take(n)
    torch.manual_seed(recipe.seed)
    model = GKN(dim=2, in_channels=4, **NETWORKS[which])
    torch.cuda.reset_peak_memory_stats()
    about = {"script": "benchmarks/training.py", "machine": machine(), "commit": commit()}
    operator = fit(
        learn, model, rule, recipe, validation=judge, how=Sampled(m), evaluate_every=10**6, device=device, about=about
    )
    test, known = relative_l2(operator, judge, Sampled(m), seed=1), relative_l2(operator, learn.take(100), Sampled(m), seed=1)
    metrics = operator.about["metrics"]
    cell = {
        "commit": commit(),
        "recipe": which,
        "seed": recipe.seed,
        "N": n,
        "rule": repr(rule),
        "m_test": m,
        "epochs": recipe.epochs,
        "steps": metrics["step"],
        "precision": recipe.precision,
        "pointwise": recipe.pointwise,
        "smoothing": SMOOTHING[which],
        "test": {key: value for key, value in test.json().items() if key != "each"},
        "train": known.mean,
        "seconds": metrics["seconds"],
        "edges_per_second": metrics["edges_per_second"],
        "peak_bytes": torch.cuda.max_memory_allocated(),
    }
    if name == "ours-1000":
        cell["elsewhere"] = elsewhere(operator, judge)
        operator.about["tests"] = {"sampled, m' = 800": test.mean, **{key: e["mean"] for key, e in cell["elsewhere"].items()}}
    return cell, operator


def elsewhere(operator, judge):
    """Evaluate the network on full grids: with all points and all edges, and all points from few nodes."""
    found = {}
    for stride, how, few in (
        (16, Exact(), 100),
        (8, Exact(), 100),
        (4, Exact(), 100),
        (2, Exact(), 20),
        (1, Support(800, 2), 20),
    ):
        side = 240 // stride + 1
        start = time.perf_counter()
        errors = relative_l2(operator, judge.every(stride).take(few), how)
        seconds = (time.perf_counter() - start) / few
        found[f"{side} x {side}, {how}"] = {"mean": errors.mean, "functions": few, "seconds_each": seconds}
    return found


def throughput(which, precision, parts, device, epochs=10):
    """Seconds a step of the loop, and of the network alone: the same batches, made before, forward, backward, optimiser."""
    recipe = replace(RECIPES[which], epochs=epochs, precision=precision, fresh=True)
    learn = parts[0].smoothed(SMOOTHING[which]).take(100)

    def made():
        torch.manual_seed(0)
        model = GKN(dim=2, in_channels=4, **NETWORKS[which])
        setup = set_up(learn, Choices(model, rule=Nystrom(0.25, 200, 2), recipe=recipe), device, None)
        return Trainer(setup, join(device, precision, 60.0), Stop(), LoopOptions())

    def network(run):
        term = LOSSES[recipe.loss][0]
        for _ in range(epochs):
            for batch, graphs in batches:
                run.step.optimizer.zero_grad()
                with run.fabric.autocast():
                    found = run.model(batch.graph, batch.x, batch.a, batch.weights)
                (term(found.to(batch.deviation.dtype), batch).sum() / graphs).backward()
                run.step.optimizer.step()

    def seconds(work, run):
        torch.cuda.synchronize()
        start = time.perf_counter()
        work(run)
        torch.cuda.synchronize()
        return time.perf_counter() - start

    with products(precision):
        runs = [made() for _ in range(3)]
        runs[0].go()  # compiles
        batches = [*islice(runs[1].prefetcher.batches(0, 0), runs[1].progress.steps)]  # one epoch's, on the device
        alone = min(seconds(network, made()) for _ in range(3))
        loop = min(seconds(Trainer.go, run) for run in runs[1:])
    if [e["loss"] for e in runs[1].progress.metrics] != [e["loss"] for e in runs[2].progress.metrics]:
        raise SystemExit("the same run gave other losses: nothing to time")
    steps = runs[1].progress.steps * epochs
    return {
        "commit": commit(),
        "recipe": which,
        "precision": precision,
        "steps": steps,
        "edges_per_step": runs[1].progress.edges / steps,
        "seconds_per_step": loop / steps,
        "network_seconds_per_step": alone / steps,
        "share_not_in_network": 1 - alone / loop,
        "edges_per_second": runs[1].progress.edges / loop,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", nargs="*", default=[*cells()])
    parser.add_argument("--throughput", action="store_true")
    parser.add_argument("--export", type=Path)
    options = parser.parse_args()
    path = RESULTS / f"{NAME}.json"
    kept = json.loads(path.read_text()) if path.exists() else {}
    result = {"cells": kept.get("cells", {}), "throughput": kept.get("throughput", [])}
    parts = data("cuda")
    if options.throughput:
        result["throughput"] = [
            throughput(which, precision, parts, "cuda")
            for which, precision in (("paper", "bf16"), ("paper", "tf32"), ("ours", "bf16"))
        ]
        record(NAME, result)
    for name in options.cells:
        if name in result["cells"]:
            continue
        result["cells"][name], operator = train(name, parts, "cuda")
        if options.export is not None and name == "ours-1000":
            operator.save(options.export)
        record(NAME, result)
        cell = result["cells"][name]
        print(f"{name:16} test {cell['test']['mean']:.4f} train {cell['train']:.4f} {cell['seconds']:.0f} s", flush=True)
    for row in result["throughput"]:
        print(
            f"{row['recipe']} {row['precision']}: {1e3 * row['seconds_per_step']:.2f} ms a step, in the network "
            f"{1e3 * row['network_seconds_per_step']:.2f}, share elsewhere {row['share_not_in_network']:.3f}, "
            f"{row['edges_per_second']:.3g} edges/s"
        )
    for name, each in result["cells"].get("ours-1000", {}).get("elsewhere", {}).items():
        print(name, each)


if __name__ == "__main__":
    main()
