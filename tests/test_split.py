"""One function over several processes is the function in one."""

import subprocess
import sys

import pytest
import torch

from gkn.graph.neighbors import radius_graph
from gkn.models import NearFar
from gkn.ops.split import parts
from tests.test_train import ENVIRONMENT, ROOT, free_port


@pytest.mark.parametrize("ranks", [2, 3])
def test_split_over_ranks_is_one_process_to_rounding(tmp_path, rng, ranks):
    x = torch.rand(400, 2, generator=rng, dtype=torch.float64)
    a, u = (torch.randn(400, k, generator=rng, dtype=torch.float64) for k in (2, 1))
    w = torch.rand(400, generator=rng, dtype=torch.float64) + 0.5
    sizes = {"width": 16, "blocks": 2, "slices": 4, "head": 8, "kernel": (8, 4), "radius": 0.12, "differences": ranks == 2}
    torch.save({"x": x, "a": a, "u": u, "w": w, "sizes": sizes}, tmp_path / "given.pt")
    command = f"{sys.executable} -m torch.distributed.run --nproc-per-node {ranks} --master-port {free_port()} -m tests.split"
    done = subprocess.run(
        [*command.split(), str(tmp_path)], cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    torch.manual_seed(0)
    model = NearFar(2, 2, 1, **sizes).double()
    found = model(radius_graph(x, r=0.12), x, a, w)
    loss = ((w[:, None] * (found - u).square()).sum() / (w[:, None] * u.square()).sum()).sqrt()
    loss.backward()
    for rank in range(ranks):
        part = torch.load(tmp_path / f"rank{rank}.pt")
        torch.testing.assert_close(part["u"], found[part["own"]].detach(), rtol=1e-11, atol=1e-12)
        torch.testing.assert_close(part["loss"], loss.detach(), rtol=1e-12, atol=0)
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(part["gradients"][name], parameter.grad, rtol=1e-8, atol=1e-11)


@pytest.mark.parametrize("count", [1, 3, 8])
def test_parts_are_compact_and_equal(rng, count):
    x = torch.rand(1000, 2, generator=rng)
    found = parts(x, count)
    assert torch.equal(torch.cat(found).sort().values, torch.arange(1000))
    assert max(map(len, found)) - min(map(len, found)) <= 2
    area = sum(float((x[each].amax(0) - x[each].amin(0)).prod()) for each in found)
    assert area <= 1
    with pytest.raises(ValueError, match="needed 1 to 1000"):
        parts(x, 0)
