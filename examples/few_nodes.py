"""Learn from few sampled nodes (the paper's Nystrom approximation), and answer better from more.

A function on 61 x 61 has 3721 values; the network sees 100 of them at a time, others in every epoch.
"""

from pathlib import Path

import matplotlib.pyplot as plt
import torch

import gkn
from gkn.data.plot import save_figure


def main(out: Path | None = None) -> float:
    train, test = gkn.make_dataset(gkn.Darcy(size=61, modes=64), 70).smoothed(0.1).split(50, 20)
    torch.manual_seed(0)
    model = gkn.GKN(dim=2, in_channels=4, width=16, kernel=(16, 32), steps=4, last_sigma=False)
    operator = gkn.fit(train, model, gkn.Nystrom(0.3, 100), epochs=25, batch=5, lr=5e-3)

    nodes = [50, 100, 200, 400, 800]
    errors = [gkn.relative_l2(operator, test, gkn.Sampled(m)).mean for m in nodes]
    for m, error in zip(nodes, errors, strict=True):
        print(f"from {m:4} nodes: {error:.4f}")
    if out:
        figure, axis = plt.subplots(figsize=(4.6, 3.2), layout="constrained")
        axis.semilogx(nodes, errors, "o-", color="#1f4e79")
        axis.set(xlabel="nodes m' of a test function", ylabel="relative l2 error", title="trained on 100 nodes at a time")
        axis.set_xticks(nodes, [str(m) for m in nodes])
        axis.minorticks_off()
        axis.grid(alpha=0.3)
        save_figure(figure, out)
    return errors[-1]


if __name__ == "__main__":
    print(f"relative error from 800 nodes: {main(Path('docs/examples/few_nodes.png')):.4f}")
