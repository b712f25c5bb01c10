"""CGNS files in HDF5: one zone, unstructured or structured, with its solutions and boundary conditions."""

from __future__ import annotations

from pathlib import Path

from gkn.data.foreign.process import parsed_mesh
from gkn.data.readers.cells import content_of
from gkn.data.readers.format import Content, ReadOptions, reader


@reader(".cgns")
def read_cgns(path: Path, options: ReadOptions) -> Content:
    return content_of(path, parsed_mesh("cgns", path), options)
