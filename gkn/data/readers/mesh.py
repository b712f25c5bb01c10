"""Mesh files with point data, one sample per file, read by meshlane."""

from __future__ import annotations

import io
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import numpy as np

from gkn.data.readers.arrays import GEOMETRY, Array, plain
from gkn.data.readers.format import Part, ReadOptions, UnreadableFile, reader

# Formats of meshlane that cannot refer to other files. XDMF, Abaqus and HDF5-based ones can.
ENDINGS = (".vtu", ".vtk", ".msh", ".mesh", ".meshb", ".su2", ".off", ".obj", ".stl", ".ply", ".mdpa", ".ugrid", ".avs", ".vol")


@reader(*ENDINGS)
def read_mesh(path: Path, options: ReadOptions) -> Part:
    try:
        import meshlane
    except ImportError as error:
        raise ImportError(f"{path}: mesh files need meshlane: pip install 'gkn[io]'") from error
    said = io.StringIO()
    try:
        with redirect_stdout(said), redirect_stderr(said):
            mesh = meshlane.read(path)
    except SystemExit:  # meshlane exits instead of raising
        raise UnreadableFile(f"{path}: cannot be read: {' '.join(said.getvalue().split())}") from None
    points = np.asarray(mesh.points, dtype=np.float64)
    if points.shape[1] == 3:
        if np.ptp(points[:, 2]) > 1e-9 * max(1.0, float(np.ptp(points[:, :2]))):
            raise UnreadableFile(f"{path}: a surface or volume in space; needed a mesh in the plane")
        points = points[:, :2]
    triangles = []
    for block in mesh.cells:
        corners = np.asarray(block.data)
        if block.type == "triangle":
            triangles.append(corners)
        elif block.type == "quad":
            triangles += [corners[:, [0, 1, 2]], corners[:, [0, 2, 3]]]
        elif block.type not in ("vertex", "line"):
            raise UnreadableFile(f"{path}: cells of type {block.type}; needed triangles or quadrilaterals")
    if not triangles:
        raise UnreadableFile(f"{path}: no triangles in it")
    fields: dict[str, Array] = {"points": points, "cells": np.concatenate(triangles)}
    for name, values in mesh.point_data.items():
        columns = np.asarray(values).reshape(len(points), -1).T
        if len(columns) == 3 and not columns[2].any():
            columns = columns[:2]  # VTK has no vectors in the plane
        names = [name] if len(columns) == 1 else [f"{name}_{axis}" for axis in range(len(columns))]
        for key, column in zip(names, columns, strict=True):
            if key in fields or key in GEOMETRY:
                raise UnreadableFile(f"{path}: two fields would be called {key!r}; rename one")
            fields[key] = column[None]
    return plain(path, fields, options.repair)
