"""Work of every rank of a test under torchrun: python -m tests.ranks WHAT FOLDER."""

import math
import os
import signal
import sys
import time
from pathlib import Path

import torch

from gkn import Nystrom, fit
from gkn.data.sample import BadNumbers
from gkn.graph.batches import Batches
from gkn.train.ranks import Stopped
from gkn.train.step import Step
from tests import tiny

torch.set_num_threads(1)
what, folder = sys.argv[1], Path(sys.argv[2])
rank, attempt = int(os.environ.get("RANK", 0)), int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0))
folder.mkdir(parents=True, exist_ok=True)
train, test = tiny.data()
options = {"validation": test, "evaluate_every": 2, "out": folder / "run", "save_every": 0.0, "batch": 2, "epochs": 10}
seen = {"gradients": [], "samples": []}
step = Step.__call__


def disturbed(self, batch, graphs, number, *rest):
    """One step, and what the test wants to happen to it."""
    if what == "record":
        seen["samples"].append([] if batch is None else [*batch.samples])
    elif what == "die" and rank == 1 and attempt == 0 and number == 13:
        (folder / "died").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    elif what == "hang" and rank == 1 and number == 13:
        (folder / "stopped").touch()
        os.kill(os.getpid(), signal.SIGSTOP)
    elif what == "slow":
        time.sleep(0.3)
    return step(self, batch, graphs, number, *rest)


Step.__call__ = disturbed
if what == "record":
    options |= {"batch": 3, "epochs": 3, "precision": "fp64", "clip": None}
    adam = torch.optim.Adam.step

    def recorded(self, *args):
        seen["gradients"].append([x.grad.clone() for group in self.param_groups for x in group["params"]])
        return adam(self, *args)

    torch.optim.Adam.step = recorded
if what == "hang":
    options["timeout"] = 8.0
if what == "bad-data" and rank == 1:
    load = Batches._load

    def poisoned(self, *args):
        functions = load(self, *args)
        if len(functions.deviation) == 8:
            functions.deviation[5, :] = math.nan
        return functions

    Batches._load = poisoned
if what == "bad-gradient" and rank == 1:
    backward = torch.Tensor.backward

    def bad(self, *args, **kwargs):
        backward(self, *args, **kwargs)
        for name, x in model.named_parameters():
            if name == "kappa.W":
                x.grad[0, 0, 0] = math.nan

    torch.Tensor.backward = bad
model = tiny.network(rank if what == "born" else 0)
try:
    operator = fit(train, model, Nystrom(0.3, 60), **options)
    seen["run"] = operator.about.get("run")
except BadNumbers as error:
    print(f"rank {rank} stopped: {error}", flush=True)
    sys.exit(1)
except Stopped as stopped:
    sys.exit(128 + stopped.number)
except RuntimeError:
    (folder / "gave-up").touch()
    raise
if what == "record":
    torch.save(seen, folder / f"rank{rank}.pt")
if what == "born":
    (folder / f"weights{rank}").write_text(repr([x.tolist() for x in model.parameters()]))
