"""Learn a Green's function: the paper's figure 2.

For -u'' = f on [0, 1] with u(0) = u(1) = 0 the solution is the integral of G(x, y) f(y) with a kernel that is known:
min(x, y) (1 - max(x, y)). Shown nothing but pairs (f, u), the network finds it.
"""

from pathlib import Path

import matplotlib.pyplot as plt
import torch

import gkn
from gkn.data.plot import save_figure


def main(out: Path | None = None) -> float:
    data = gkn.make_dataset(gkn.PoissonInterval(size=65), 512)
    x, weights = data.domain.points[:, 0], data.domain.weights
    f, u = data.field("f").T, data.field("u").T  # (65, 512): a column for each sample
    pairs = torch.cartesian_prod(x, x)

    torch.manual_seed(0)
    net = gkn.GreenNet(dim=1, kernel=(64, 64)).double()
    optimizer = torch.optim.Adam(net.parameters(), lr=4e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=1500)
    for _ in range(1500):
        optimizer.zero_grad()
        G = net.read(pairs[:, :1], pairs[:, 1:]).reshape(65, 65)
        answer = G @ (weights[:, None] * f)  # u(x) is the integral of G(x, y) f(y)
        loss = ((answer - u).norm(dim=0) / u.norm(dim=0)).mean()
        loss.backward()
        optimizer.step()
        schedule.step()

    learned = net.read(pairs[:, :1], pairs[:, 1:]).detach().reshape(65, 65)
    exact = gkn.green_interval(pairs[:, 0], pairs[:, 1]).reshape(65, 65)
    error = float((learned - exact).norm() / exact.norm())
    if out:
        figure, axes = plt.subplots(1, 3, figsize=(11.5, 3.3), layout="constrained")
        most = float((learned - exact).abs().max())
        parts = [("learned", learned, 0, 0.25, "viridis"), ("exact", exact, 0, 0.25, "viridis")]
        parts.append(("difference", learned - exact, -most, most, "PuOr"))
        for axis, (name, values, low, high, colours) in zip(axes, parts, strict=True):
            drawn = axis.imshow(values, origin="lower", extent=(0, 1, 0, 1), vmin=low, vmax=high, cmap=colours)
            axis.set(title=name, xlabel="y", ylabel="x")
            figure.colorbar(drawn, ax=axis, shrink=0.85)
        save_figure(figure, out)
    return error


if __name__ == "__main__":
    print(f"relative L2 error of the learned Green's function: {main(Path('docs/examples/green_function.png')):.4f}")
