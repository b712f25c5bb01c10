"""VTK's XML format for unstructured grids, as text, for ParaView and other programs that read VTK."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from gkn.data.writers.format import writer
from gkn.geometry.domain import Domain

VTK_TYPES = {"vertex": 1, "line": 3, "triangle": 5, "quad": 9}


@writer(".vtu")
def vtu_image(domain: Domain, arrays: Mapping[str, Any]) -> bytes:
    points = np.zeros((len(domain), 3))
    points[:, : domain.dim] = domain.points.numpy()
    blocks = domain.cell_blocks()
    connectivity = np.concatenate([corners.reshape(-1) for _, corners in blocks])
    sizes = np.concatenate([np.full(len(corners), corners.shape[1]) for _, corners in blocks])
    types = np.concatenate([np.full(len(corners), VTK_TYPES[name], dtype=np.uint8) for name, corners in blocks])
    parts = [
        '<?xml version="1.0"?>',
        '<VTKFile type="UnstructuredGrid" version="1.0" byte_order="LittleEndian">',
        f'<UnstructuredGrid><Piece NumberOfPoints="{len(points)}" NumberOfCells="{len(sizes)}">',
        f"<Points>{_array('Points', points, 3)}</Points>",
        "<Cells>",
        _array("connectivity", connectivity),
        _array("offsets", sizes.cumsum()),
        _array("types", types),
        "</Cells>",
        "<PointData>",
        *(_array(name, values) for name, values in arrays.items()),
        "</PointData>",
        "</Piece></UnstructuredGrid></VTKFile>",
    ]
    return "\n".join(parts).encode()


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
