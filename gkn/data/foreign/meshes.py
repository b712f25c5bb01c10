"""Mesh files with data at points and cells, parsed by meshlane."""

from __future__ import annotations

import io
import re
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import numpy as np

from gkn.data.foreign.gmsh import check_order
from gkn.data.foreign.raw import RawMesh, UnreadableFile
from gkn.data.foreign.vtk import field_numbers


def parse_mesh(path: Path) -> RawMesh:
    try:
        import meshlane
    except ImportError as error:
        raise ImportError(f"{path}: mesh files need meshlane: pip install 'gkn[io]'") from error
    if path.suffix.lower() == ".msh":
        check_order(path)
    said = io.StringIO()
    try:
        with redirect_stdout(said), redirect_stderr(said):
            mesh = meshlane.read(path)
    except SystemExit:  # meshlane exits instead of raising
        raise UnreadableFile(f"{path}: cannot be read: {' '.join(said.getvalue().split())}") from None
    warned = " ".join(said.getvalue().split())
    if "cannot handle" in warned:  # meshlane drops such cells
        raise UnreadableFile(f"{path}: {warned.removeprefix('Warning: ')}")
    # meshlane turns SU2's names of boundaries into numbers and says so.
    markers = [(name, int(number)) for name, number in re.findall(r"Surface tag (\S+) will be replaced by (\d+)", warned)]
    raw = RawMesh(
        np.asarray(mesh.points),
        [(block.type, block.data) for block in mesh.cells],
        mesh.point_data,
        mesh.cell_data,
        mesh.point_sets,
        mesh.cell_sets,
        group_names={(number, dim): name for name, number in markers for dim in (1, 2)},
        notes=[warned] if warned and not markers else [],
    )
    if path.suffix.lower() == ".vtk":
        raw.parameters, others = field_numbers(path)
        raw.notes += [f"field data left out, because they are not one number: {name}" for name in others]
    for name, value in mesh.field_data.items():
        each = np.asarray(value)
        if path.suffix.lower() == ".msh" and each.shape == (2,):  # gmsh: number and dimension of a physical group
            raw.group_names[int(each[0]), int(each[1])] = name
        elif each.size == 1 and each.dtype.kind in "fiub":
            raw.parameters[name] = float(each.reshape(-1)[0])
        else:
            raw.notes.append(f"field data left out, because they are not one number: {name}")
    return raw
