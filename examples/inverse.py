"""Recover a coefficient from observations, by gradients through the trained operator.

The coefficient is 12 where a sum of eight cosines is positive, else 3. 64 values of u are known. The operator is
differentiable, so the eight numbers are found by gradient descent.
"""

import math
from pathlib import Path

import matplotlib.pyplot as plt
import torch

import gkn
from gkn.data.plot import draw, save_figure

GRID, FINE, STEPS = gkn.Grid(17), gkn.Grid(241), 50
MODES = [(i, j) for i in range(3) for j in range(3) if i + j]


def coefficient(c: torch.Tensor, grid: gkn.Grid, width: float) -> torch.Tensor:
    """Return the coefficient with an edge of some width, so that it has a derivative. The edge gets sharper step by step."""
    x, y = math.pi * grid.points.T
    level = torch.stack([torch.cos(i * x) * torch.cos(j * y) for i, j in MODES], 1) @ c
    return 3 + 9 * torch.sigmoid(level / width)


def main(out: Path | None = None) -> float:
    operator = gkn.pretrained("darcy")
    sizes = torch.tensor([1 / (i * i + j * j + 0.9) for i, j in MODES], dtype=torch.float64)
    hidden = sizes * torch.randn(len(MODES), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    u = gkn.solve_darcy(FINE, coefficient(hidden, FINE, 1e-6))[FINE.stride(15)]
    observed = torch.arange(len(GRID)).reshape(GRID.shape)[1::2, 1::2].reshape(-1)

    def predicted(c: torch.Tensor, width: float) -> torch.Tensor:
        sample = operator.sample(GRID, a=coefficient(c, GRID, width))
        return operator(sample, differentiable=True)[:, 0].double()

    guess = torch.zeros(len(MODES), dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam([guess], lr=0.06)
    for step in range(STEPS):
        optimizer.zero_grad()
        misfit = (predicted(guess, 0.3 * 0.2 ** (step / STEPS))[observed] - u[observed]).norm() / u[observed].norm()
        misfit.backward()
        optimizer.step()
    truth, found = (coefficient(c.detach(), FINE, 1e-6) for c in (hidden, guess))
    if out:
        figure, axes = plt.subplots(1, 2, figsize=(6.4, 3.4), layout="constrained")
        for axis, name, a in zip(axes, ("hidden", "found from u at the dots"), (truth, found), strict=True):
            draw(axis, FINE, a, 3, 12, "cividis").axes.set_title(name)
            axis.plot(*GRID.points[observed].T, "r.", markersize=3)
        save_figure(figure, out)
    return float(((truth > 7.5) == (found > 7.5)).double().mean())


if __name__ == "__main__":
    print(f"share of the square whose phase was found: {main(Path('docs/examples/inverse.png')):.4f}")
