"""Outlines of named shapes, meshed with triangles by netgen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Triangles = tuple[NDArray[Any], NDArray[Any]]
"""Points (K, 2) and cells (C, 3)."""


def square_with_holes(h: float, holes: Sequence[tuple[float, float, float]]) -> Triangles:
    """Mesh [0,1]^2 without the disks (x, y, radius)."""
    for n, (x, y, radius) in enumerate(holes):
        if not (radius > 0 and radius < min(x, 1 - x) and radius < min(y, 1 - y)):
            raise ValueError(f"Mesh.holes: the disk ({x}, {y}, {radius}) must lie inside the square")
        for other in holes[:n]:
            if np.hypot(x - other[0], y - other[1]) <= radius + other[2]:
                raise ValueError(f"Mesh.holes: the disks {other} and {(x, y, radius)} overlap")

    def outline(geometry: Any) -> None:
        geometry.AddRectangle((0, 0), (1, 1))
        for x, y, radius in holes:
            geometry.AddCircle((x, y), radius, leftdomain=0, rightdomain=1)

    return _netgen(outline, h)


def l_shape(h: float) -> Triangles:
    """Mesh [0,1]^2 without its upper right quarter."""

    def outline(geometry: Any) -> None:
        corners = [(0, 0), (1, 0), (1, 0.5), (0.5, 0.5), (0.5, 1), (0, 1)]
        ids = [geometry.AppendPoint(*corner) for corner in corners]
        for i, j in zip(ids, ids[1:] + ids[:1], strict=True):
            geometry.Append(["line", i, j])

    return _netgen(outline, h)


def disk(h: float) -> Triangles:
    """Mesh the unit disk around the origin, as a polygon whose corners lie on the circle."""
    return _netgen(lambda geometry: geometry.AddCircle((0, 0), 1), h)


def _netgen(outline: Callable[[Any], None], h: float) -> Triangles:
    if not 0 < h <= 1:
        raise ValueError(f"Mesh: edge length h = {h}; needed 0 < h <= 1")
    try:
        from netgen.geom2d import SplineGeometry
    except ImportError as error:
        raise ImportError("meshes of named shapes need netgen: pip install 'gkn[fem]'") from error
    geometry = SplineGeometry()
    outline(geometry)
    try:
        made = geometry.GenerateMesh(maxh=h, quad_dominated=False)
    except Exception as error:
        raise ValueError(f"Mesh: netgen cannot mesh this shape with h = {h}: {error}") from error
    points = np.array([point.p[:2] for point in made.Points()])
    return points, np.array([[vertex.nr - 1 for vertex in cell.vertices] for cell in made.Elements2D()])
