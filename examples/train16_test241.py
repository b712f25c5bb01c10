"""Train on 16 x 16, predict on 241 x 241: the paper's figure 1, in a minute and with a small network.

Nothing in the network depends on the number of points, so the parameters learned on a coarse grid are those of an operator.
"""

from pathlib import Path

import torch

import gkn
from gkn.data.plot import show_answers


def main(out: Path | None = None) -> float:
    data = gkn.make_dataset(gkn.Darcy(size=241), 34).smoothed(0.1)  # a, a smoothed, and its gradient
    train, test = data.split(32, 2)

    torch.manual_seed(0)
    model = gkn.GKN(dim=2, in_channels=4, width=16, kernel=(16, 32), steps=4, last_sigma=False)
    operator = gkn.fit(train.every(16), model, gkn.Radius(0.2), epochs=25, batch=4, lr=5e-3)

    coarse = gkn.relative_l2(operator, test.every(16))
    fine = gkn.relative_l2(operator, test, gkn.Partition(256))  # 256 shifted sub-grids of 16 x 16
    print(f"on 16 x 16:   {coarse}\non 241 x 241: {fine}")
    if out:
        sample = test[0]
        found = operator(sample, how=gkn.Partition(256))[:, 0].double()
        row = ("241 x 241", sample.domain, sample.a[:, 0], sample.u[:, 0], found, found - sample.u[:, 0])
        show_answers([row], out, "trained on 16 x 16, asked on 241 x 241")
    return fine.mean


if __name__ == "__main__":
    print(f"relative error on 241 x 241: {main(Path('docs/examples/train16_test241.png')):.4f}")
