"""Work of every rank of a split function: python -m tests.split FOLDER."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist

from gkn.models import NearFar
from gkn.ops.split import Split, parts

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, world, folder = dist.get_rank(), dist.get_world_size(), Path(sys.argv[1])
given = torch.load(folder / "given.pt")
torch.manual_seed(0)
model = NearFar(2, 2, 1, **given["sizes"]).double()
own = parts(given["x"], world)[rank]
x, a, w, u = (given[name][own] for name in ("x", "a", "w", "u"))
split = Split(x, given["sizes"]["radius"])
assert split.borrowed < len(given["x"]) - len(own)
found = model(split.graph, x, a, w, split)
sums = split.sum(torch.stack([(w[:, None] * (found - u).square()).sum(), (w[:, None] * u.square()).sum()]))
loss = (sums[0] / sums[1]).sqrt()
(loss / world).backward()
for parameter in model.parameters():
    dist.all_reduce(parameter.grad)
gradients = {name: each.grad for name, each in model.named_parameters()}
torch.save({"own": own, "u": found.detach(), "loss": loss.detach(), "gradients": gradients}, folder / f"rank{rank}.pt")
dist.destroy_process_group()
