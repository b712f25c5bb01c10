"""Functions on domains, drawn with matplotlib: the plane as it is, surfaces in an oblique view, volumes by a slice."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from gkn.geometry.topology import Facets

if TYPE_CHECKING:
    from gkn.geometry.domain import Domain
    from gkn.geometry.grid import Grid
    from gkn.geometry.mesh import Mesh

Array = NDArray[Any]

_PIXELS = 160  # of the longer side of a slice
_SLAB = 0.05  # half the thickness of the slab of points drawn of a cloud in space, relative to its extent
# View from the front, the right and above: rows are the directions right, up and towards the viewer.
_RIGHT = np.array([0.82, 0.57, 0.0])
_VIEW = np.stack([_RIGHT, [-0.23, 0.33, 0.91], [0.52, -0.75, 0.41]])
_VIEW /= np.sqrt((_VIEW**2).sum(1, keepdims=True))


def draw_points(axis: Any, domain: Domain, function: Array, **style: Any) -> Any:
    """Draw one dot per point. In space only points in a slab about the middle of the shortest axis are drawn."""
    points, shown = domain.points.numpy(), np.ones(len(domain), dtype=bool)
    if domain.dim == 3:
        across, middle, extent = _middle(points)
        near = np.abs(points[:, across] - middle)
        shown = near <= max(_SLAB * extent, float(np.partition(near, min(200, len(near) - 1))[min(200, len(near) - 1)]))
        points = np.delete(points, across, 1)
    axis.margins(0.02)
    x, y = points[shown].T
    return axis.scatter(x, y, c=function[shown], s=max(1.0, 20000 / int(shown.sum())), linewidths=0, **style)


def draw_grid(axis: Any, grid: Grid, function: Array, **style: Any) -> Any:
    """Draw one pixel per node; of a grid in space the middle layer across its shortest axis."""
    image, low, high = function.reshape(grid.shape), list(grid.low), list(grid.high)
    if grid.dim == 3:
        across = 2 - int(np.argmin(grid.sides[::-1]))  # the last one, if several are the shortest
        image = image.take(grid.shape[across] // 2, across)
        del low[across], high[across]
    axis.margins(0)
    extent = (low[0], high[0], low[1], high[1])
    return axis.imshow(image.T, origin="lower", extent=extent, interpolation="nearest", **style)


def draw_mesh(axis: Any, mesh: Mesh, function: Array, **style: Any) -> Any:
    """Draw a mesh: coloured triangles in the plane, a view of a surface, a slice of a volume, the lines of a curve."""
    if mesh.measure_dim == 3:
        return _slice(axis, mesh, function, **style)
    if mesh.measure_dim == 1:
        return _curve(axis, mesh, function, **style)
    if mesh.dim == 3:
        return _surface(axis, mesh, function, **style)
    from matplotlib.tri import Triangulation

    x, y = mesh.points.T.numpy()
    axis.margins(0)
    return axis.tripcolor(Triangulation(x, y, mesh.simplices.numpy()), function, shading="gouraud", **style)


def _slice(axis: Any, mesh: Mesh, function: Array, **style: Any) -> Any:
    """Draw the values in the plane through the middle of the shortest axis as an image, empty outside the mesh."""
    points = mesh.points.numpy()
    across, middle, _ = _middle(points)
    i, j = (other for other in range(3) if other != across)
    low, high = points.min(0), points.max(0)
    sides = (high - low)[[i, j]]
    width, height = (max(2, round(_PIXELS * side / sides.max())) for side in sides)
    x = low[i] + sides[0] * (np.arange(width) + 0.5) / width
    y = low[j] + sides[1] * (np.arange(height) + 0.5) / height
    at = np.empty((height, width, 3))
    at[..., i], at[..., j], at[..., across] = x, y[:, None], middle
    cell, share = mesh.locate(torch.from_numpy(at.reshape(-1, 3)), 1e-6)
    values = (share.numpy() * function[mesh.simplices.numpy()[cell.numpy()]]).sum(1)
    image = np.where(cell.numpy() >= 0, values, np.nan).reshape(height, width)
    axis.margins(0)
    extent = (low[i], high[i], low[j], high[j])
    return axis.imshow(image, origin="lower", extent=extent, interpolation="nearest", **style)


def _surface(axis: Any, mesh: Mesh, function: Array, **style: Any) -> Any:
    """Draw triangles from back to front in an oblique view. Of a closed surface only those that face the viewer are drawn."""
    from matplotlib.collections import PolyCollection

    cells = mesh.simplices.numpy()
    corners = (mesh.points.numpy() @ _VIEW.T)[cells]
    order = np.argsort(corners[..., 2].mean(1), kind="stable")
    if (Facets.of(cells, len(mesh)).count == 2).all():
        edges = corners[:, 1:, :2] - corners[:, :1, :2]
        front = edges[:, 0, 0] * edges[:, 1, 1] - edges[:, 0, 1] * edges[:, 1, 0] > 0
        order = order[front[order]]
    colours = function[cells].mean(1)[order]
    drawn = PolyCollection(list(corners[order][..., :2]), array=colours, edgecolors="face", linewidths=0.5)
    return _add(axis, drawn, corners[..., :2].reshape(-1, 2), style)


def _curve(axis: Any, mesh: Mesh, function: Array, **style: Any) -> Any:
    """Draw the intervals of a curve, in space in an oblique view."""
    from matplotlib.collections import LineCollection

    points, cells = mesh.points.numpy(), mesh.simplices.numpy()
    corners = ((points @ _VIEW.T)[:, :2] if mesh.dim == 3 else points)[cells]
    drawn = LineCollection(list(corners), array=function[cells].mean(1), linewidths=2)
    return _add(axis, drawn, corners.reshape(-1, 2), style)


def _add(axis: Any, drawn: Any, corners: Array, style: dict[str, Any]) -> Any:
    """Add a collection to the axis, set its colours and show all of it."""
    style = dict(style)
    drawn.set_clim(style.pop("vmin", None), style.pop("vmax", None))
    drawn.set(**style)
    axis.add_collection(drawn)
    axis.set_aspect("equal")
    axis.update_datalim(corners)
    axis.margins(0.02)
    axis.autoscale_view()
    return drawn


def _middle(points: Array) -> tuple[int, float, float]:
    """Return the shortest axis of the points (the last, if several are), its middle and its extent."""
    low, high = points.min(0), points.max(0)
    across = 2 - int(np.argmin((high - low)[::-1]))
    return across, float(low[across] + high[across]) / 2, float((high - low)[across])
