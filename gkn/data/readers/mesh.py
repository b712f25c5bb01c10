"""Mesh files with data at points and cells, one sample per file, read by meshlane."""

from __future__ import annotations

from pathlib import Path

from gkn.data.foreign.process import parsed_mesh
from gkn.data.readers.cells import content_of
from gkn.data.readers.format import Content, ReadOptions, reader

# Formats of meshlane that cannot refer to other files. XDMF, Abaqus and HDF5-based ones can.
ENDINGS = (".vtk", ".msh", ".mesh", ".meshb", ".su2", ".off", ".obj", ".stl", ".ply", ".mdpa", ".ugrid", ".avs", ".vol")


@reader(*ENDINGS)
def read_mesh(path: Path, options: ReadOptions) -> Content:
    return content_of(path, parsed_mesh("mesh", path), options)
