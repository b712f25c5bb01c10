"""Readers of files from other programs, one module per format. A new format is a function registered with `reader`.

No code inside a file is ever run, and no size that a file claims is trusted."""

from __future__ import annotations

from gkn.data.foreign.raw import UnreadableFile
from gkn.data.readers import cgns, csv, hdf5, mat, mesh, npz, pt, vtu
from gkn.data.readers.format import READERS, READING, Content, Nodes, ReadOptions, read_file, reader
from gkn.data.readers.importing import (
    FileSample,
    import_files,
    listed_files,
    parameters_of,
    read_files,
    read_sample,
    to_dataset,
)
from gkn.data.readers.npz import read_points
from gkn.data.readers.report import describe

__all__ = [
    "READERS",
    "READING",
    "Content",
    "FileSample",
    "Nodes",
    "ReadOptions",
    "UnreadableFile",
    "cgns",
    "csv",
    "describe",
    "hdf5",
    "import_files",
    "listed_files",
    "mat",
    "mesh",
    "npz",
    "parameters_of",
    "pt",
    "read_file",
    "read_files",
    "read_points",
    "read_sample",
    "reader",
    "to_dataset",
    "vtu",
]
