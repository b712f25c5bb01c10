"""Figures 2, 3 and 7: Green's functions, learned from pairs (f, u) of a linear equation and read out of the network."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gkn.data.dataset import Dataset
from gkn.data.generate import make_dataset
from gkn.data.problems import PoissonDisk, PoissonInterval, PoissonSquare, Problem
from gkn.data.storage import MANIFEST, Manifest
from gkn.models import GreenNet
from gkn.pde.greens_functions import green_disk, green_interval
from gkn.system.randomness import stream
from gkn.train.fit import fit
from gkn.train.recipe import one_cycle

BALL = 0.05  # around the singularity of the disk's Green's function, where nothing is promised


@dataclass(frozen=True)
class Setting:
    """Settings for learning a Green's function.

    size     of the grid or mesh
    pairs    samples to learn from; `tests` to evaluate on
    kernel   hidden layers of kappa
    steps    of Adam, with learning rate `lr`
    rows     points whose u is compared in a step; None: all
    white    pairs are combined, which a linear equation allows: 0 leaves them as they are, at 1 their f are orthonormal
    counts   numbers of training pairs that are compared
    epochs   of the dense network
    """

    size: int
    pairs: int
    tests: int
    kernel: tuple[int, ...]
    steps: int
    lr: float
    rows: int | None = None
    white: float = 0.0
    counts: tuple[int, ...] = ()
    epochs: int = 0
    precision: str = "fp32"
    seed: int = 0


SETTINGS: dict[str, dict[str, Setting]] = {
    "fig-green-1d": {
        "smoke": Setting(9, 8, 4, (8, 8), 3, 4e-3, precision="fp64"),
        "small": Setting(65, 512, 100, (64, 64), 1000, 4e-3, precision="fp64"),
        "paper": Setting(65, 2048, 1000, (128, 128), 5000, 4e-3, precision="fp64"),
    },
    "fig-green-2d-samples": {
        "smoke": Setting(5, 4, 4, (8, 8), 3, 3e-3, counts=(1, 4), epochs=2),
        "small": Setting(13, 100, 200, (64, 64), 400, 3e-3, rows=24, counts=(1, 5, 20, 100), epochs=300),
        "paper": Setting(17, 100, 1000, (128, 128), 2500, 3e-3, rows=48, counts=(1, 2, 5, 10, 20, 50, 100), epochs=2000),
    },
    "fig-green-disk": {
        "smoke": Setting(5, 8, 4, (8, 8), 3, 3e-3, rows=8, white=0.8),
        "small": Setting(17, 300, 50, (64, 64), 600, 3e-3, rows=32, white=0.8),
        "paper": Setting(31, 1000, 200, (128, 128), 4000, 3e-3, rows=48, white=0.8),
    },
}


def learn(net: GreenNet, data: Dataset, setting: Setting, device: str) -> GreenNet:
    """Train with Adam, one cycle. The loss is the relative l2 error of u; of all pairs together if they are combined."""
    kind = torch.float64 if setting.precision == "fp64" else torch.float32
    x, weights = data.domain.points, data.domain.weights
    f, u = (data.field(name).T.double() for name in (data.inputs[0], data.outputs[0]))
    if setting.white and len(data) > 1:
        f, u = combined(f, u, weights, setting.white)
    integrand, u, x = ((weights[:, None] * f).to(device, kind), u.to(device, kind), x.to(device, kind))
    net = net.to(device, kind)
    optimizer = torch.optim.Adam(net.parameters(), lr=setting.lr)
    rng, norms = stream(setting.seed, 6), u.norm(dim=0)
    whole = norms.norm()
    for step in range(setting.steps):
        optimizer.param_groups[0]["lr"] = setting.lr * one_cycle(step / setting.steps, 0.1)
        some = torch.randperm(len(x), generator=rng)[: setting.rows].to(device)
        error = matrix(net, x[some], x) @ integrand - u[some]
        loss = error.norm() / whole if setting.white else (error.norm(dim=0) / norms).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return net


def combined(f: Tensor, u: Tensor, weights: Tensor, power: float) -> tuple[Tensor, Tensor]:
    """Return other pairs (K, n) with the same span: if (f_j, u_j) solve a linear equation, so do their combinations.

    Gaussian fields f lie almost in a few directions, and a loss over them sees little else. The new f are orthogonal in L2,
    of norm s^(1 - power), where s are the singular values of the given ones.
    """
    _, s, v = torch.linalg.svd(weights.sqrt()[:, None] * f, full_matrices=False)
    used = s > 1e-7 * s[0]
    change = v[used].T * s[used] ** -power
    return f @ change, u @ change


def matrix(net: GreenNet, targets: Tensor, sources: Tensor) -> Tensor:
    """Return G(x, y) for all x among the targets and y among the sources."""
    x = targets.repeat_interleave(len(sources), 0)
    y = sources.repeat(len(targets), 1)
    return net.read(x, y).reshape(len(targets), len(sources))


@torch.no_grad()
def whole_matrix(net: GreenNet, x: Tensor) -> Tensor:
    """Return G(x, y) for all pairs of points, in float64 on the CPU, computed a few rows at a time."""
    like = net.kappa.W
    rows = [matrix(net, part, x.to(like)) for part in x.to(like).split(64)]
    return torch.cat(rows).double().cpu()


def error_of_u(G: Tensor, data: Dataset) -> float:
    """Return the mean relative l2 error of u = integral of G f."""
    f, u = (data.field(name).T for name in (data.inputs[0], data.outputs[0]))
    found = G @ (data.domain.weights[:, None] * f)
    return float(((found - u).norm(dim=0) / u.norm(dim=0)).mean())


def _pairs(problem: Problem, setting: Setting, folder: Path) -> tuple[Dataset, Dataset]:
    """Return training and test samples. Data that are there are taken as they are: not every machine can make meshes."""
    n = setting.pairs + setting.tests
    where = folder / f"{problem.name}{setting.size}-{n}-seed{setting.seed}"
    data = Dataset.open(where) if (where / MANIFEST).is_file() and Manifest.read(where).complete else None
    train, test = (data or make_dataset(problem, n, setting.seed, where)).kept().split(setting.pairs, setting.tests)
    return train, test


def interval(setting: Setting, device: str, folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Compute figure 2."""
    train, test = _pairs(PoissonInterval(size=setting.size), setting, folder)
    torch.manual_seed(setting.seed)
    net = learn(GreenNet(1, setting.kernel), train, setting, device)
    x = train.domain.points
    learned, exact = whole_matrix(net, x), green_interval(x, x.T)
    numbers = {
        "error of the kernel": float((learned - exact).norm() / exact.norm()),
        "error of u": error_of_u(learned, test),
        "error of u with the exact kernel": error_of_u(exact, test),
    }
    return numbers, {"x": x[:, 0], "learned": learned, "exact": exact}


def samples(setting: Setting, device: str, folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Compute figure 3: three networks and the same pairs.

    One kernel is symmetric. The other also has what every Dirichlet problem of second order has: it sees the distance, and is 0
    on the boundary.
    """
    train, test = _pairs(PoissonSquare(size=setting.size), setting, folder)
    kernels: dict[str, dict[str, Any]] = {
        "kernel of x, y": {},
        "kernel of x, y, |x-y|, 0 on the boundary": {"distance": True, "factor": to_the_boundary},
    }
    curves: dict[str, list[float]] = {name: [] for name in ("dense", *kernels)}
    for count in setting.counts:
        few = train.take(count)
        epochs = max(1, setting.epochs // max(1, count // 20))
        dense = fit(few, "Dense", epochs=epochs, seed=setting.seed, device=device, precision="fp32")
        curves["dense"].append(dense.evaluate(test).mean)
        for name, options in kernels.items():
            torch.manual_seed(setting.seed)
            net = learn(GreenNet(2, setting.kernel, symmetric=True, **options), few, setting, device)
            curves[name].append(error_of_u(whole_matrix(net, test.domain.points), test))
    return {"training pairs": [*setting.counts], "tests": setting.tests, "errors": curves}, {}


def to_the_boundary(x: Tensor) -> Tensor:
    """Return 0 on the boundary of the unit square and 1 in its middle.

    It is a root: for two points at distance d from the boundary and from each other, G is of order 1 and not d^2.
    """
    return (4 * x * (1 - x)).clamp_min(0).prod(1).sqrt()


def disk(setting: Setting, device: str, folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Compute figure 7."""
    train, test = _pairs(PoissonDisk(size=setting.size), setting, folder)
    torch.manual_seed(setting.seed)
    net = learn(GreenNet(2, setting.kernel, symmetric=True), train, setting, device)
    rho, theta = torch.linspace(0, 1, 101, dtype=torch.float64)[1:], torch.linspace(0, 2 * torch.pi, 73, dtype=torch.float64)
    points = polar(rho, theta)
    exact, learned = green_disk(torch.zeros_like(points), points), _at_centre(net, points)
    area = rho.repeat_interleave(len(theta))  # rho d rho d theta
    far = area > BALL
    errors = {}
    for name, chosen in (("away from the singularity", far), ("everywhere else", ~far)):
        errors[name] = float(((area * (learned - exact).square())[chosen].sum() / (area * exact.square())[chosen].sum()).sqrt())
    numbers = {
        "error of the kernel at the centre, away from a ball of 0.05": errors["away from the singularity"],
        "error of the kernel at the centre, in that ball": errors["everywhere else"],
        "error of u": error_of_u(whole_matrix(net, test.domain.points), test),
        "points": len(test.domain),
    }
    shape = (len(rho), len(theta))
    return numbers, {"rho": rho, "theta": theta, "learned": learned.reshape(shape), "exact": exact.reshape(shape)}


def polar(rho: Tensor, theta: Tensor) -> Tensor:
    """Return the points (rho x theta, 2) of the plane."""
    return torch.stack([torch.outer(rho, theta.cos()).reshape(-1), torch.outer(rho, theta.sin()).reshape(-1)], 1)


@torch.no_grad()
def _at_centre(net: GreenNet, points: Tensor) -> Tensor:
    like = net.kappa.W
    return net.read(torch.zeros_like(points).to(like), points.to(like)).double().cpu()
