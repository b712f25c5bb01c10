"""Trajectories of u' = -RATE u, with a random initial value at every point."""

import torch

from gkn import Dataset, Grid

RATE = 0.7


def decaying(n=3, T=6, grid=None, step=0.25):
    grid = grid or Grid(5)
    times = step * torch.arange(T, dtype=torch.float64)
    u0 = torch.rand(n, len(grid), dtype=torch.float64, generator=torch.Generator().manual_seed(0)) + 0.5
    return Dataset(grid, u=u0[:, None] * torch.exp(-RATE * times)[None, :, None], times=times)
