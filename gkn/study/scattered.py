"""The functions of a grid on an unstructured mesh, and at random points."""

from __future__ import annotations

import numpy as np
import torch
from scipy.interpolate import RegularGridInterpolator
from scipy.spatial import Delaunay
from torch import Tensor

from gkn.data.dataset import Dataset
from gkn.geometry.cloud import Cloud
from gkn.geometry.domain import Domain
from gkn.geometry.mesh import Mesh
from gkn.system.randomness import stream

GRADED = 1.2
"""Exponent of the coordinates: across the mesh, distances grow as t^0.2, so density varies several times over."""


def unstructured(side: int, seed: int = 0) -> Mesh:
    """Triangulate [0,1]^2 with about side^2 points that lie on no lattice, denser towards one corner."""
    t = torch.linspace(0, 1, side, dtype=torch.float64)
    x, y = torch.meshgrid(t, t, indexing="ij")
    x = x + torch.where(torch.arange(side) % 2 == 1, 0.5 / (side - 1), 0.0)  # every other row half a step further
    moved = (torch.rand(2, side, side, dtype=torch.float64, generator=stream(seed, 0, 11)) - 0.5) * 0.5 / (side - 1)
    points = torch.stack([x, y], -1) + moved.movedim(0, -1)
    inner = points[1:-1, 1:-1].reshape(-1, 2)
    inner = inner[((inner > 0.4 / side) & (inner < 1 - 0.4 / side)).all(1)]
    walls = [torch.stack(pair, 1) for end in (0.0, 1.0) for pair in ((t, t * 0 + end), (t[1:-1] * 0 + end, t[1:-1]))]
    points = torch.cat([*walls, inner]) ** GRADED
    return Mesh.repaired(points, torch.from_numpy(Delaunay(points.numpy()).simplices.astype(np.int64)))[0]


def scattered(dataset: Dataset, side: int, seed: int = 0) -> Dataset:
    """Return the samples of a fine grid on such a mesh: two-phase fields from the nearest point, others interpolated."""
    grid = dataset.domain
    if grid.shape is None or grid.dim != 2:
        raise ValueError(f"scattered: samples on {grid.describe()}; needed a grid in the plane")
    mesh = unstructured(side, seed)
    fields = {
        name: torch.stack([_at(grid, dataset.value(name, i), mesh.points) for i in range(len(dataset))])
        for name in (*dataset.inputs, *dataset.outputs)
    }
    return dataset.elsewhere(mesh, fields) if dataset.smoothing else Dataset.of(mesh, fields, dataset.outputs)


def clouds(dataset: Dataset, count: int, seed: int = 0) -> Dataset:
    """Return the samples of a fine grid of the plane, each at random points of its own, without smoothed fields.

    Two-phase fields are taken from the nearest point, others interpolated linearly.
    """
    grid = dataset.domain
    domains = [Cloud(torch.rand(count, 2, dtype=torch.float64, generator=stream(seed, i, 12))) for i in range(len(dataset))]
    fields = {
        name: [_at(grid, dataset.value(name, i), domain.points) for i, domain in enumerate(domains)]
        for name in (*dataset.given, *dataset.outputs)
    }
    return Dataset.of(domains, fields, dataset.outputs)


def _at(grid: Domain, values: Tensor, points: Tensor) -> Tensor:
    assert grid.shape is not None
    image, axis = values.cpu().double().reshape(grid.shape).numpy(), np.linspace(0, 1, grid.shape[0])
    way = "nearest" if len(np.unique(image)) <= 2 else "linear"
    return torch.from_numpy(RegularGridInterpolator((axis, axis), image, method=way)(points.numpy()))
