"""Predict at any points. Query points receive from the nodes and never send, so predictions do not depend on each other."""

from pathlib import Path

import matplotlib.pyplot as plt
import torch

import gkn
from gkn.data.plot import save_figure


def main(out: Path | None = None) -> float:
    operator = gkn.pretrained("darcy")
    fine = operator.ready(gkn.make_dataset(gkn.Darcy(size=241), 1, seed=5))[0]
    nodes = torch.Generator().manual_seed(0)

    t = torch.linspace(0, 1, 301, dtype=torch.float64)
    line = torch.stack([t, 0.2 + 0.6 * t], 1)  # across the square, off every grid
    a, truth = (fine.domain.interpolate(values, line) for values in (fine.a, fine.u))
    found = operator(fine, at=line, a=a, how=gkn.Support(400, l=4), rng=nodes).double()  # 400 nodes carry the computation
    error = float((found - truth).norm() / truth.norm())
    if out:
        figure, axis = plt.subplots(figsize=(6.4, 3.2), layout="constrained")
        axis.plot(t, truth, color="black", linewidth=1, label="truth")
        axis.plot(t, found, color="#d95f02", linewidth=1, label="asked at 301 points")
        axis.set(xlabel="x along the line", ylabel="u", title=f"relative error {error:.4f}")
        axis.legend(frameon=False)
        save_figure(figure, out)
    return error


if __name__ == "__main__":
    print(f"relative error along the line: {main(Path('docs/examples/ask_anywhere.png')):.4f}")
