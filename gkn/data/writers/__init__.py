"""Answers to files: .npz, or .vtu for ParaView and whatever else reads VTK."""

from __future__ import annotations

import io
import math
import os
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from gkn.geometry.domain import Cloud, Domain, Mesh
from gkn.system.files import make_folder, write

KINDS = (".npz", ".vtu")
GEOMETRY = ("points", "cells", "weights", "boundary")


def check(path: Path, names: Iterable[str]) -> None:
    """Before anything is computed that could then not be written."""
    if path.suffix.lower() not in KINDS:
        raise ValueError(f"{path}: say what kind of file by its ending: {' or '.join(KINDS)}")
    wrong = [name for name in names if name in GEOMETRY or not name.isprintable() or not name or "/" in name]
    if wrong:
        raise ValueError(f"{path}: a field cannot be called {wrong[0]!r} in a file; rename it")


def save(path: str | os.PathLike[str], domain: Domain, fields: Mapping[str, Tensor]) -> None:
    """Fields (K,) on the points of a domain. An .npz can be imported again, and a .vtu of a mesh or grid in the plane."""
    path = Path(path)
    check(path, fields)
    arrays = {name: values.detach().cpu().numpy() for name, values in fields.items()}
    wrong = [name for name, values in arrays.items() if values.shape != (len(domain),)]
    if wrong:
        raise ValueError(f"{path}: field {wrong[0]!r} of shape {arrays[wrong[0]].shape} on {len(domain)} points")
    make_folder(path.parent)
    if path.suffix.lower() == ".npz":
        parts = {Mesh: ("cells",), Cloud: ("weights", "boundary")}.get(type(domain), ())
        geometry = {"points": domain.points.numpy(), **{name: getattr(domain, name).numpy() for name in parts}}
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:  # numpy's own savez takes some names for flags
            for name, array in {**geometry, **arrays}.items():
                with archive.open(f"{name}.npy", "w") as entry:
                    np.lib.format.write_array(entry, array, allow_pickle=False)
        write(path, file.getvalue())
    else:
        write(path, _vtu(domain, arrays))


def _vtu(domain: Domain, arrays: Mapping[str, Any]) -> bytes:
    """VTK's XML format, as text: an unstructured grid of triangles, quadrilaterals, lines, or single points."""
    points = np.zeros((len(domain), 3))
    points[:, : domain.dim] = domain.points.numpy()
    cells, kind = _cells(domain)
    parts = [
        '<?xml version="1.0"?>',
        '<VTKFile type="UnstructuredGrid" version="1.0" byte_order="LittleEndian">',
        f'<UnstructuredGrid><Piece NumberOfPoints="{len(points)}" NumberOfCells="{len(cells)}">',
        f"<Points>{_array('Points', points, 3)}</Points>",
        "<Cells>",
        _array("connectivity", cells.reshape(-1)),
        _array("offsets", np.arange(1, len(cells) + 1) * cells.shape[1]),
        _array("types", np.full(len(cells), kind, dtype=np.uint8)),
        "</Cells>",
        "<PointData>",
        *(_array(name, values) for name, values in arrays.items()),
        "</PointData>",
        "</Piece></UnstructuredGrid></VTKFile>",
    ]
    return "\n".join(parts).encode()


def _cells(domain: Domain) -> tuple[Any, int]:
    """Corners of the cells, and VTK's number for their kind."""
    if isinstance(domain, Mesh):
        return domain.cells.numpy(), 5
    if isinstance(domain, Cloud) or domain.dim > 2:
        return np.arange(len(domain))[:, None], 1
    index = np.arange(len(domain)).reshape(domain.shape)
    if domain.dim == 1:
        return np.stack([index[:-1], index[1:]], -1), 3
    corners = [index[:-1, :-1], index[1:, :-1], index[1:, 1:], index[:-1, 1:]]
    return np.stack([corner.reshape(-1) for corner in corners], -1), 9


def _array(name: str, values: Any, components: int = 1) -> str:
    kinds = {"f": "Float64", "i": "Int64", "u": "Int64", "b": "UInt8"}
    if values.dtype.kind not in kinds:
        raise ValueError(f"field {name!r} has type {values.dtype}; needed real numbers")
    kind = "UInt8" if values.dtype == np.uint8 else kinds[values.dtype.kind]
    safe = name.replace("&", "&amp;").replace("<", "&lt;").replace('"', "&quot;")
    flat = values.reshape(-1).tolist()
    text = " ".join(map(repr, flat)) if kind == "Float64" else " ".join(str(int(value)) for value in flat)
    if kind == "Float64" and not all(map(math.isfinite, flat)):
        raise ValueError(f"field {name!r} is not finite everywhere")
    of = f' NumberOfComponents="{components}"' if components > 1 else ""
    return f'<DataArray type="{kind}" Name="{safe}"{of} format="ascii">{text}</DataArray>'
