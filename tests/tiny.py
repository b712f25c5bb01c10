"""The tiny run of quality.md: 8 pairs, s = 16, width 8, 40 steps. As a script: python -m tests.tiny FOLDER [OPTIONS]."""

import json
import sys

import torch

from gkn import GKN, Darcy, Nystrom, fit, make_dataset
from gkn.operator.checkpoint import Checkpoints

STEPS = 40


def data(n=10, size=16):
    whole = make_dataset(Darcy(size=size, modes=8), n, 7)
    return whole.take(8), whole.take(range(8, n))


def network(seed=0, **options):
    torch.manual_seed(seed)
    return GKN(dim=2, width=8, kernel=(8, 8), steps=2, **options)


def run(folder=None, *, network_options=None, **options):
    train, test = data()
    given = {"epochs": 10, "batch": 2, "validation": test, "evaluate_every": 2, "save_every": 0.0, **options}
    return fit(train, network(**(network_options or {})), Nystrom(0.3, 60), out=folder, **given)


def final(folder):
    """Everything the promise is about, of the last checkpoint: tensors, and the log without what clocks say."""
    checkpoints = Checkpoints(folder / "checkpoints")
    last = checkpoints.load(checkpoints.steps()[-1])
    clocks = ("seconds", "edges_per_second")
    log = [{key: value for key, value in entry.items() if key not in clocks} for entry in last.state["metrics"]]
    state = {key: value for key, value in last.state.items() if key not in ("metrics", "seconds")}
    return {name: x.numpy().tobytes() for name, x in last.tensors.items()}, log, state


if __name__ == "__main__":
    torch.set_num_threads(1)
    run(sys.argv[1], **(json.loads(sys.argv[2]) if len(sys.argv) > 2 else {}))
