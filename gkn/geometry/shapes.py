"""Named shapes, meshed by netgen with triangles or tetrahedra."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Cells = tuple[NDArray[Any], NDArray[Any]]
"""Points (K, d) and cells (C, d + 1)."""
Outline = Sequence[tuple[float, float]]
"""Corners of a polygon."""


def interval(h: float) -> Cells:
    """Cut [0, 1] into equal intervals."""
    _check(h)
    count = max(1, round(1 / h))
    return np.linspace(0, 1, count + 1)[:, None], np.stack([np.arange(count), np.arange(1, count + 1)], 1)


def square_with_holes(h: float, holes: Sequence[tuple[float, float, float]]) -> Cells:
    """Mesh [0,1]^2 without the disks (x, y, radius)."""
    _check(h)
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


def l_shape(h: float) -> Cells:
    """Mesh [0,1]^2 without its upper right quarter."""
    _check(h)
    return polygon([(0, 0), (1, 0), (1, 0.5), (0.5, 0.5), (0.5, 1), (0, 1)], (), h)


def polygon(corners: Outline, holes: Sequence[Outline], h: float, **options: Any) -> Cells:
    """Mesh a polygon without the polygons in `holes`, which must lie inside and apart; all corners are counter-clockwise.

    options   of netgen, such as grading
    """

    def outline(geometry: Any) -> None:
        for ring, left, right in [(corners, 1, 0), *((hole, 0, 1) for hole in holes)]:  # the region is netgen's domain 1
            ids = [geometry.AppendPoint(*corner) for corner in ring]
            for i, j in zip(ids, ids[1:] + ids[:1], strict=True):
                geometry.Append(["line", i, j], leftdomain=left, rightdomain=right)

    return _netgen(outline, h, **options)


def disk(h: float) -> Cells:
    """Mesh the unit disk around the origin, as a polygon whose corners lie on the circle."""
    _check(h)
    return _netgen(lambda geometry: geometry.AddCircle((0, 0), 1), h)


def cube(h: float) -> Cells:
    """Mesh [0,1]^3 with tetrahedra."""
    return _netgen_solid("OrthoBrick", [(0, 0, 0), (1, 1, 1)], (), h)


def ball(h: float) -> Cells:
    """Mesh the unit ball around the origin, as a polyhedron whose corners lie on the sphere."""
    return _netgen_solid("Sphere", [(0, 0, 0)], (1,), h)


def _netgen(outline: Callable[[Any], None], h: float, **options: Any) -> Cells:
    try:
        from netgen.geom2d import SplineGeometry
        from netgen.meshing import SetMessageImportance
    except ImportError as error:
        raise ImportError(_NETGEN) from error
    SetMessageImportance(0)
    geometry = SplineGeometry()
    outline(geometry)
    try:
        made = geometry.GenerateMesh(maxh=h, quad_dominated=False, **options)
    except Exception as error:
        raise ValueError(f"Mesh: netgen cannot mesh this shape with h = {h}: {error}") from error
    return _arrays(made, made.Elements2D(), 2)


def _netgen_solid(shape: str, points: Sequence[tuple[float, float, float]], numbers: Sequence[float], h: float) -> Cells:
    _check(h)
    try:
        from netgen import csg, meshing
    except ImportError as error:
        raise ImportError(_NETGEN) from error
    meshing.SetMessageImportance(0)
    geometry = csg.CSGeometry()
    geometry.Add(getattr(csg, shape)(*(csg.Pnt(*point) for point in points), *numbers))
    try:
        # The same mesh with one thread; with several, netgen waits for cores that other programs use.
        made = geometry.GenerateMesh(maxh=h, grading=0.2, parallel_meshing=False)
    except Exception as error:
        raise ValueError(f"Mesh: netgen cannot mesh this shape with h = {h}: {error}") from error
    return _arrays(made, made.Elements3D(), 3)


def _arrays(made: Any, cells: Any, dim: int) -> Cells:
    points = np.array([point.p[:dim] for point in made.Points()])
    return points, np.array([[vertex.nr - 1 for vertex in cell.vertices] for cell in cells])


def _check(h: float) -> None:
    if not 0 < h <= 1:
        raise ValueError(f"Mesh: edge length h = {h}; needed 0 < h <= 1")


_NETGEN = "meshes of named shapes need netgen: pip install 'gkn[fem]'"
