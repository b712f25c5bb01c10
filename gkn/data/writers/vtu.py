"""VTK's XML format for unstructured grids, for ParaView and other programs that read VTK.

Arrays are base64 inside the XML, with a header of 8 bytes, little endian: a million points take seconds."""

from __future__ import annotations

import base64
from collections.abc import Mapping

import numpy as np

from gkn.data.readers.vtu import TYPES, WEDGE
from gkn.data.writers.format import Array, writer
from gkn.geometry.domain import Domain

_NUMBERS = {name: number for number, name in TYPES.items()}


@writer(".vtu")
def vtu_image(
    domain: Domain, fields: Mapping[str, Array], cell_data: Mapping[str, list[Array]], parameters: Mapping[str, float]
) -> bytes:
    points = np.zeros((len(domain), 3))
    points[:, : domain.dim] = domain.points.numpy()
    blocks = [(kind, np.asarray(corners)) for kind, corners in domain.cell_blocks()]
    blocks = [(kind, corners[:, WEDGE] if kind == "wedge" else corners) for kind, corners in blocks]
    connectivity = np.concatenate([corners.reshape(-1) for _, corners in blocks]).astype(np.int64)
    sizes = np.concatenate([np.full(len(corners), corners.shape[1]) for _, corners in blocks])
    types = np.concatenate([np.full(len(corners), _NUMBERS[kind], dtype=np.uint8) for kind, corners in blocks])
    for name, values in fields.items():
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            raise ValueError(f"field {name!r} is not finite everywhere")
    at_cells = {name: np.concatenate(arrays) for name, arrays in cell_data.items()}
    numbers = {name: np.array([value], dtype=np.float64) for name, value in parameters.items()}
    parts = [
        b'<?xml version="1.0"?>',
        b'<VTKFile type="UnstructuredGrid" version="1.0" byte_order="LittleEndian" header_type="UInt64"><UnstructuredGrid>',
        b"<FieldData>",
        *(_array(name, values, ' NumberOfTuples="1"') for name, values in numbers.items()),
        b"</FieldData>",
        f'<Piece NumberOfPoints="{len(points)}" NumberOfCells="{len(sizes)}">'.encode(),
        b"<Points>",
        _array("Points", points),
        b"</Points>\n<Cells>",
        _array("connectivity", connectivity),
        _array("offsets", sizes.cumsum().astype(np.int64)),
        _array("types", types),
        b"</Cells>\n<PointData>",
        *(_array(name, _padded(values)) for name, values in fields.items()),
        b"</PointData>\n<CellData>",
        *(_array(name, _padded(values)) for name, values in at_cells.items()),
        b"</CellData>",
        b"</Piece></UnstructuredGrid></VTKFile>",
    ]
    return b"\n".join(parts if numbers else [*parts[:2], *parts[4:]])


def _padded(values: Array) -> Array:
    """Return vectors with three components, as ParaView's filters need them."""
    return np.pad(values, ((0, 0), (0, 1))) if values.ndim == 2 and values.shape[1] == 2 else values


def _array(name: str, values: Array, more: str = "") -> bytes:
    kinds = {"f": "Float", "i": "Int", "u": "UInt", "b": "UInt"}
    size = values.dtype.itemsize
    if values.dtype.kind not in kinds or (values.dtype.kind == "f" and size not in (4, 8)):
        raise ValueError(f"field {name!r} has type {values.dtype}; needed real numbers of 4 or 8 bytes")
    safe = name.replace("&", "&amp;").replace("<", "&lt;").replace('"', "&quot;")
    components = f' NumberOfComponents="{values[0:1].size}"' if values.ndim > 1 else ""
    data = np.ascontiguousarray(values).astype(values.dtype.newbyteorder("<"), copy=False).tobytes()
    head = f'<DataArray type="{kinds[values.dtype.kind]}{8 * size}" Name="{safe}"{components}{more} format="binary">'
    return head.encode() + base64.b64encode(len(data).to_bytes(8, "little") + data) + b"</DataArray>"
