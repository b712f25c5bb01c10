"""VTK's XML files of unstructured grids, all pieces of them; and .pvd files, which list such files with their times."""

from __future__ import annotations

import base64
import lzma
import math
import re
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import torch

from gkn.data.foreign.raw import SHAPES, Array, RawMesh, UnreadableFile
from gkn.data.readers.cells import ROUNDING, content_of
from gkn.data.readers.format import Content, ReadOptions, read_file, reader
from gkn.data.readers.join import joined
from gkn.system.hdf5 import check_fits

TYPES = {
    1: "vertex",
    3: "line",
    5: "triangle",
    8: "pixel",
    9: "quad",
    10: "tetra",
    11: "voxel",
    12: "hexahedron",
    13: "wedge",
    14: "pyramid",
    21: "line3",
    22: "triangle6",
    23: "quad8",
    24: "tetra10",
    25: "hexahedron20",
    26: "wedge15",
    27: "pyramid13",
    28: "quad9",
    29: "hexahedron27",
    34: "triangle7",
}
"""VTK's numbers of cell types, by meshio's names."""
WEDGE = [0, 2, 1, 3, 5, 4]
"""VTK's order of the corners of a wedge, in terms of meshio's. The order is its own inverse."""
_NODES = {1: 1, 3: 2, 5: 3, 8: 4, 9: 4, 10: 4, 11: 8, 12: 8, 13: 6, 14: 5, 21: 3, 22: 6, 23: 8, 24: 10, 25: 20, 26: 15}
_NODES |= {27: 13, 28: 9, 29: 27, 34: 7}
_NUMBERS = {
    f"{sign}{kind}{8 * size}": f"{code}{size}"
    for sign, kind, code, sizes in (("", "Int", "i", (1, 2, 4, 8)), ("U", "Int", "u", (1, 2, 4, 8)), ("", "Float", "f", (4, 8)))
    for size in sizes
}
SAME = 1e-9  # of the largest value of a field: how far values at a point that pieces share may differ
_LZMA = 2**28  # bytes; files claim how much memory their dictionary needs
_TEXT, _ELEMENT = 32, 600  # bytes of memory that a character of numbers, and an element of XML with its attributes, may take
_UNPACK: dict[str, Callable[[bytes, int], bytes]] = {
    "vtkZLibDataCompressor": lambda data, size: zlib.decompressobj().decompress(data, size + 1),
    "vtkLZMADataCompressor": lambda data, size: lzma.LZMADecompressor(memlimit=_LZMA).decompress(data, size + 1),
}


@reader(".vtu")
def read_vtu(path: Path, options: ReadOptions) -> Content:
    file = _open(path)
    grid = file.root.find("UnstructuredGrid")
    if file.root.tag != "VTKFile" or grid is None:
        raise UnreadableFile(f"{path}: no UnstructuredGrid in it")
    raws = [_piece(file, piece) for piece in grid.findall("Piece")]
    raws = [raw for raw in raws if len(raw.points)]
    if not raws:
        raise UnreadableFile(f"{path}: no points in it")
    raw = raws[0] if len(raws) == 1 else _merged(path, raws)
    for array in [each for data in (*file.root.findall("FieldData"), *grid.findall("FieldData")) for each in data]:
        name = array.get("Name", "")
        values = file.numbers(array) if array.get("type") in _NUMBERS else np.zeros(0)
        if values.size == 1:
            raw.parameters[name] = float(values.reshape(-1)[0])
        else:
            raw.notes.append(f"field data left out, because they are not one number: {name}")
    return content_of(path, raw, options)


@reader(".pvd")
def read_pvd(path: Path, options: ReadOptions) -> Content:
    """Read the files in the order of their times. They are the states of one trajectory if the times differ."""
    root = _parse(path, path.read_bytes())
    entries = root.findall("Collection/DataSet")
    if root.tag != "VTKFile" or not entries:
        raise UnreadableFile(f"{path}: no DataSet in its Collection")
    folder = path.parent.resolve()
    files, times = [], []
    for entry in entries:
        name = entry.get("file", "")
        file = path.parent / name
        if not name or Path(name).is_absolute() or not file.resolve().is_relative_to(folder):
            raise UnreadableFile(f"{path}: lists {name!r}, which is not in the folder of the list")
        if file.suffix.lower() not in (".vtu", ".vtk"):
            raise UnreadableFile(f"{path}: lists {name!r}; needed .vtu or .vtk files")
        if not file.exists():
            when = f" for time {entry.attrib['timestep']}" if "timestep" in entry.attrib else ""
            raise UnreadableFile(f"{path}: lists {name!r}{when}, which is missing; write it again, or take it out of the list")
        files.append(file)
        times.append(float(entry.get("timestep", "0")))
    again, most = Counter(files).most_common(1)[0]
    if most > 1:
        raise UnreadableFile(f"{path}: lists {again.name} {most} times")
    twice, most = Counter(times).most_common(1)[0]
    timed = any("timestep" in entry.attrib for entry in entries)
    if most > 1 and (timed or len({entry.get("part", "0") for entry in entries}) > 1):
        raise UnreadableFile(
            f"{path}: lists {most} files for time {twice:g}; needed one file per time, so join the parts first"
        )
    if timed and not all(map(math.isfinite, times)):
        raise UnreadableFile(f"{path}: a time in it is not finite")
    order = sorted(range(len(files)), key=times.__getitem__)
    files, times = [files[i] for i in order], [times[i] for i in order]
    content = joined([read_file(file, options) for file in files])
    if len({*times}) > 1:
        if "time" in content.parameters or "time" in content.fields:
            raise UnreadableFile(f"{path}: lists times, but its files have a field or parameter 'time' already")
        time = torch.tensor(times, dtype=torch.float64)
        numbers, sources = (0,) * len(times), tuple(f"{path}, time {each:g}" for each in times)
        content = replace(content, parameters={**content.parameters, "time": time})
        return content if options.as_samples else replace(content, series=numbers, sources=sources)
    return content


@dataclass(frozen=True)
class _File:
    """A parsed file: its XML, and the bytes of its appended data."""

    path: Path
    root: ElementTree.Element
    appended: bytes
    raw: bool
    taken: Counter[str] = field(default_factory=Counter)  # bytes that were decoded and unpacked, by kind

    def numbers(self, array: ElementTree.Element) -> Array:
        """Return the values of a DataArray, (count,) or (count, components)."""
        kind, how, name = array.get("type", ""), array.get("format", "ascii"), array.get("Name", "")
        if kind not in _NUMBERS:
            raise UnreadableFile(f"{self.path}: array {name!r} holds {kind or 'nothing'}, not numbers")
        order = ">" if self.root.get("byte_order") == "BigEndian" else "<"
        dtype = np.dtype(order + _NUMBERS[kind])
        if how == "ascii":
            check_fits(self.path, {f"the text of {name!r}": ((len(array.text or ""),), _TEXT)})
            values = np.array([*map(float if dtype.kind == "f" else int, (array.text or "").split())], dtype=dtype)
        elif how == "binary":
            values = np.frombuffer(self._block(_base64("".join((array.text or "").split()).encode())), dtype)
        elif how == "appended":
            decode, offset = (_plain if self.raw else _base64), int(array.get("offset", "0"))
            before = self.taken["stored"]
            values = np.frombuffer(self._block(decode(self.appended, offset)), dtype)
            self.taken["appended"] += self.taken["stored"] - before
            if self.taken["appended"] > len(self.appended):
                raise UnreadableFile(f"{self.path}: its arrays overlap: together they have more bytes than the file")
        else:
            raise UnreadableFile(f"{self.path}: array {name!r} has the unknown format {how!r}")
        components = int(array.get("NumberOfComponents") or 1)
        values = values.astype(dtype.newbyteorder("="), copy=False)
        if components < 1 or len(values) % components:
            raise UnreadableFile(f"{self.path}: array {name!r} has {len(values)} values for {components} components")
        return values if components == 1 else values.reshape(-1, components)

    def _block(self, take: Callable[[int, int], bytes]) -> bytes:
        """Return the bytes of an array. take(start, count) decodes `count` bytes that are stored after `start` others."""
        head = np.dtype(
            (">" if self.root.get("byte_order") == "BigEndian" else "<")
            + ("u8" if self.root.get("header_type") == "UInt64" else "u4")
        )
        compressor = self.root.get("compressor")
        if compressor is None:
            (size,) = np.frombuffer(take(0, head.itemsize), head)
            return self._count(take(0, head.itemsize + int(size))[head.itemsize :], int(size))
        if compressor not in _UNPACK:
            raise UnreadableFile(f"{self.path}: compressed by {compressor}; needed {' or '.join(_UNPACK)}")
        (count,) = np.frombuffer(take(0, head.itemsize), head)
        if not count:
            return b""
        length = head.itemsize * (3 + int(count))
        _, size, last, *stored = (int(each) for each in np.frombuffer(take(0, length), head))
        check_fits(self.path, {"compressed arrays": ((self.taken["unpacked"] + int(count) * size,), 1)})
        data, parts, start = take(length, sum(stored)), [], 0
        for i, length in enumerate(stored):
            whole = last if i == len(stored) - 1 and last else size
            parts.append(_UNPACK[compressor](data[start : start + length], whole))
            if len(parts[-1]) != whole:
                raise UnreadableFile(f"{self.path}: a compressed block does not have the {whole} bytes that its header claims")
            start += length
        return self._count(b"".join(parts), sum(stored))

    def _count(self, block: bytes, stored: int) -> bytes:
        """Return the bytes of an array, after counting them."""
        self.taken["unpacked"] += len(block)
        self.taken["stored"] += stored
        return block


def _plain(data: bytes, offset: int = 0) -> Callable[[int, int], bytes]:
    """Return a function that takes bytes as they are."""
    return lambda start, count: _all(data[offset + start : offset + start + count], count)


def _base64(data: bytes, offset: int = 0) -> Callable[[int, int], bytes]:
    """Return a function that decodes. The header of compressed data is encoded apart, padding included."""

    def take(start: int, count: int) -> bytes:
        at = offset + -(-start // 3) * 4
        part = data[at : at + -(-count // 3) * 4]
        return _all(base64.b64decode(part + b"=" * (-len(part) % 4))[:count], count)

    return take


def _all(data: bytes, count: int) -> bytes:
    if len(data) != count:
        raise ValueError(f"{count} bytes claimed, {len(data)} bytes there")
    return data


def _open(path: Path) -> _File:
    """Parse the XML. Appended data, which need not be XML, are cut out first."""
    data = path.read_bytes()
    start = re.search(rb"<AppendedData[^>]*>\s*_", data)
    if start is None:
        return _File(path, _parse(path, data), b"", False)
    end = data.rfind(b"</AppendedData>")
    root = _parse(path, data[: start.end() - 1] + data[max(end, start.end()) :])
    raw = b"base64" not in start.group()
    inside = data[start.end() : end]
    return _File(path, root, inside if raw else b"".join(inside.split()), raw)


def _parse(path: Path, data: bytes) -> ElementTree.Element:
    """Parse XML without a document type, whose entities could grow without bound or name other files."""
    check_fits(path, {"text": ((len(data),), 4), "XML elements": ((data.count(b"<"),), _ELEMENT)})
    if b"<!DOCTYPE" in data or b"<!ENTITY" in data:
        raise UnreadableFile(f"{path}: has a document type, which VTK files do not have")
    return ElementTree.fromstring(data)


def _piece(file: _File, piece: ElementTree.Element) -> RawMesh:
    path = file.path
    arrays: dict[str, dict[str, Any]] = {}
    for tag in ("Points", "Cells", "PointData", "CellData"):
        children = [array for each in piece.findall(tag) for array in each]
        arrays[tag] = {child.get("Name", tag): child for child in children}
        if len(arrays[tag]) != len(children):
            raise UnreadableFile(f"{path}: two arrays of one name in {tag}")
    count, number = (int(piece.get(key, "0")) for key in ("NumberOfPoints", "NumberOfCells"))
    points = next((file.numbers(array) for array in arrays["Points"].values()), np.zeros((0, 3)))
    if len(points) != count:
        raise UnreadableFile(f"{path}: {len(points)} points in a piece of {count}")
    corners, ends, types = (
        file.numbers(arrays["Cells"][name]) if name in arrays["Cells"] else np.zeros(0, int)
        for name in ("connectivity", "offsets", "types")
    )
    if not len(ends) == len(types) == number:
        raise UnreadableFile(f"{path}: {len(ends)} offsets and {len(types)} types in a piece of {number} cells")
    notes: list[str] = []
    data: dict[str, dict[str, Array]] = {"PointData": {}, "CellData": {}}
    for tag, length in (("PointData", count), ("CellData", number)):
        for name, array in arrays[tag].items():
            if array.get("type") not in _NUMBERS:
                notes.append(f"array left out, because it does not hold numbers: {name}")
                continue
            values = file.numbers(array)
            if len(values) != length:
                raise UnreadableFile(f"{path}: array {name!r} has {len(values)} values; needed {length}")
            if name == "vtkGhostType":
                if values.any():
                    raise UnreadableFile(f"{path}: has ghost cells or points; save it without them")
                continue
            data[tag][name] = values
    cells: list[tuple[str, Array]] = []
    cell_data: dict[str, list[Array | None]] = {name: [] for name in data["CellData"]}
    # A block is a run of cells of one type.
    edges = [0, *(np.flatnonzero(types[1:] != types[:-1]) + 1).tolist(), number] if number else [0]
    starts = np.concatenate([[0], ends.astype(np.int64)])
    for first, last in pairwise(edges):
        kind = int(types[first])
        if kind == 7:  # a polygon with three or four corners is a triangle or a quadrilateral
            kind = {3: 5, 4: 9}.get(int(starts[first + 1] - starts[first]), 7)
        name = TYPES.get(kind, "")
        if not name:
            known = ", ".join(f"{number} ({each})" for number, each in TYPES.items())
            raise UnreadableFile(f"{path}: cells of VTK's type {kind}; needed {known}")
        if (np.diff(starts[first : last + 1]) != _NODES[kind]).any():
            raise UnreadableFile(f"{path}: cells of type {name} with other than {_NODES[kind]} nodes")
        block = corners[starts[first] : starts[last]]
        block = block.astype(np.int64).reshape(last - first, _NODES[kind])
        cells.append((name, block[:, WEDGE] if name == "wedge" else block))
        for each, values in data["CellData"].items():
            cell_data[each].append(values[first:last])
    return RawMesh(points, cells, data["PointData"], cell_data, notes=notes)


def _merged(path: Path, raws: list[RawMesh]) -> RawMesh:
    """Join the pieces of a file. Points that two pieces share, with the same data up to rounding, become one.

    Whole numbers, such as the number of a part, are not compared: the point keeps that of the first piece.
    """
    first = raws[0]
    for raw in raws[1:]:
        for ours, theirs, what in ((first.point_data, raw.point_data, "point"), (first.cell_data, raw.cell_data, "cell")):
            if {*ours} != {*theirs}:
                raise UnreadableFile(f"{path}: its pieces have different {what} data: {', '.join(ours)}; {', '.join(theirs)}")
    points = np.concatenate([raw.points for raw in raws])
    data = {name: np.concatenate([raw.point_data[name] for raw in raws]) for name in first.point_data}
    piece = np.repeat(np.arange(len(raws)), [len(raw.points) for raw in raws])
    place = _places(points)
    columns = [np.zeros((len(points), 1))]
    columns += [each.reshape(len(points), -1).astype(np.float64) for each in data.values() if each.dtype.kind == "f"]
    group = _with_equal_values(place, np.concatenate(columns, 1))
    places = int(place.max()) + 1
    # Equal points inside one piece are kept apart: the file means them to be two.
    _, group = np.unique(np.stack([group, _repeats(group, piece)], 1), axis=0, return_inverse=True)
    _, firsts, index = np.unique(group.reshape(-1), return_index=True, return_inverse=True)
    order = np.argsort(firsts)
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order))
    kept, index = firsts[order], rank[index.reshape(-1)]
    notes = [note for raw in raws for note in raw.notes]
    notes.append(f"{len(raws)} pieces joined; points that pieces share: {len(points) - len(kept)}")
    if len(kept) > places:
        notes.append(f"points kept apart, because their data differ from those of another point there: {len(kept) - places}")
    starts = np.cumsum([0, *(len(raw.points) for raw in raws)])
    cells = []
    for start, raw in zip(starts[:-1], raws, strict=True):
        for kind, corners in raw.cells:
            if len(corners) and not 0 <= corners.min() <= corners.max() < len(raw.points):
                raise UnreadableFile(f"{path}: cells name points that their piece does not have")
            cells.append((kind, index[corners + start]))
    cell_data: dict[str, list[Array | None]] = {
        name: [block for raw in raws for block in raw.cell_data[name]] for name in first.cell_data
    }
    _check_pieces(path, cells, piece, index)
    return RawMesh(points[kept], cells, {name: values[kept] for name, values in data.items()}, cell_data, notes=notes)


def _check_pieces(path: Path, cells: list[tuple[str, Array]], piece: Array, index: Array) -> None:
    """Raise an error if a piece has points that belong to no cell of the highest dimension: they would be lost."""
    dims = [0 if kind == "vertex" else SHAPES[kind][1] for kind, _ in cells]
    top = max(dims, default=0)
    if top == 0:
        return
    used = np.zeros(int(index.max()) + 1, dtype=bool)
    for (_, corners), dim in zip(cells, dims, strict=True):
        if dim == top:
            used[corners] = True
    has_some = np.bincount(piece, weights=used[index]) > 0
    lost = np.flatnonzero(~has_some)
    if len(lost):
        what = ("", "lines", "areas", "volumes")[top]
        raise UnreadableFile(f"{path}: piece {lost[0] + 1} has points, but no cells that are {what}, as other pieces have")


def _places(points: Array) -> Array:
    """Return the number of the place of each point: points that differ by rounding only have the same place."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components
    from scipy.spatial import cKDTree

    if not np.isfinite(points).all():  # an error later
        return np.arange(len(points))
    _, same = np.unique(points + 0.0, axis=0, return_inverse=True)  # -0 is 0
    same = same.reshape(-1)
    _, first = np.unique(same, return_index=True)
    close = cKDTree(points[first]).query_pairs(ROUNDING * float(np.ptp(points, 0).max()), output_type="ndarray")
    links = coo_array((np.ones(len(close)), (close[:, 0], close[:, 1])), shape=(len(first), len(first)))
    return np.asarray(connected_components(links, directed=False)[1])[same]


def _with_equal_values(place: Array, values: Array) -> Array:
    """Return groups of points at one place whose values (K, n) are equal up to rounding; NaN equals NaN."""
    size = np.abs(np.where(np.isfinite(values), values, 0)).max(0)
    out, rest, count = np.empty(len(place), dtype=np.int64), np.arange(len(place)), 0
    while len(rest):
        _, first, at = np.unique(place[rest], return_index=True, return_inverse=True)
        theirs, mine = values[rest][first][at.reshape(-1)], values[rest]
        with np.errstate(invalid="ignore"):
            equal = (np.abs(mine - theirs) <= SAME * size) | (mine == theirs) | (np.isnan(mine) & np.isnan(theirs))
        equal = equal.all(1)
        out[rest[equal]] = count + at.reshape(-1)[equal]
        rest, count = rest[~equal], count + len(first)
    return out


def _repeats(group: Array, piece: Array) -> Array:
    """Return how many points of the same group and piece come before each point."""
    order = np.lexsort((piece, group))
    g, p = group[order], piece[order]
    new = np.concatenate([[True], (g[1:] != g[:-1]) | (p[1:] != p[:-1])])
    run = np.arange(len(order)) - np.maximum.accumulate(np.where(new, np.arange(len(order)), 0))
    out = np.empty(len(order), dtype=np.int64)
    out[order] = run
    return out
