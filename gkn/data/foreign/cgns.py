"""CGNS files in HDF5: one zone, unstructured or structured, with its solutions and boundary conditions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from gkn.data.foreign.raw import SHAPES, Array, RawMesh, UnreadableFile
from gkn.system.files import CorruptFile
from gkn.system.hdf5 import check_fits, plain_array

# CGNS numbers of element types, and the order of their nodes in VTK's terms where it differs.
_TYPES = {
    2: ("vertex", 1),
    3: ("line", 2),
    4: ("line3", 3),
    5: ("triangle", 3),
    6: ("triangle6", 6),
    7: ("quad", 4),
    8: ("quad8", 8),
    9: ("quad9", 9),
    10: ("tetra", 4),
    11: ("tetra10", 10),
    12: ("pyramid", 5),
    14: ("wedge", 6),
    15: ("wedge15", 15),
    17: ("hexahedron", 8),
    18: ("hexahedron20", 20),
    19: ("hexahedron27", 27),
    21: ("pyramid13", 13),
}
# CGNS lists the middle edges before the upper ones; VTK the other way round. Faces come in another order, too.
_HEXAHEDRON = [*range(12), 16, 17, 18, 19, 12, 13, 14, 15]
_ORDER = {
    "hexahedron20": _HEXAHEDRON,
    "hexahedron27": [*_HEXAHEDRON, 24, 22, 21, 23, 20, 25, 26],
    "wedge15": [*range(9), 12, 13, 14, 9, 10, 11],
}
_REFUSED = {20: "MIXED inside MIXED", 22: "NGON_n", 23: "NFACE_n", 13: "PYRA_14", 16: "PENTA_18"}
_NAMES = ("CoordinateX", "CoordinateY", "CoordinateZ")


def parse_cgns(path: Path) -> RawMesh:
    with h5py.File(path, "r") as file:
        _check_links(path, file)
        zones = [(base, zone) for base in _children(file, "CGNSBase_t") for zone in _children(base, "Zone_t")]
        if len(zones) != 1:
            names = ", ".join(zone.name for _, zone in zones) or "none"
            raise UnreadableFile(f"{path}: {len(zones)} zones ({names}); needed one, so write one file per zone or join them")
        return _Zone(path, file, zones[0][1]).raw()


def _check_links(path: Path, file: h5py.File) -> None:
    """Refuse links, both HDF5's and CGNS's own, which may lead to other files."""
    count = 0

    def visit(group: h5py.Group, depth: int) -> None:
        nonlocal count
        for name in group:
            count += 1
            if count > 10**5 or depth > 32:
                raise UnreadableFile(f"{path}: has more nodes than any CGNS file needs")
            if not isinstance(group.get(name, getlink=True), h5py.HardLink):
                raise CorruptFile(f"{path}: {group.name}/{name} is a link to somewhere else")
            child = group[name]
            if isinstance(child, h5py.Group):
                if _text(child.attrs.get("type")) == "LK":
                    raise CorruptFile(f"{path}: {child.name} is a link to somewhere else")
                visit(child, depth + 1)

    visit(file, 0)


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace").strip("\0 ")
    return str(value).strip("\0 ")


def _children(group: h5py.Group, label: str) -> Iterator[h5py.Group]:
    """Return the nodes of a CGNS type below another node."""
    for name in group:
        child = group[name]
        if isinstance(child, h5py.Group) and _text(child.attrs.get("label")) == label:
            yield child


class _Zone:
    """A zone of a file, with access to the arrays below it."""

    def __init__(self, path: Path, file: h5py.File, zone: h5py.Group) -> None:
        self.path, self.file, self.zone = path, file, zone
        self.notes: list[str] = []
        self.read_bytes = 0

    def raw(self) -> RawMesh:
        zone = self.zone
        kind = next((self.string(each) for each in _children(zone, "ZoneType_t")), "Structured")
        grids = [*_children(zone, "GridCoordinates_t")]
        if not grids:
            raise UnreadableFile(f"{self.path}: zone {zone.name} has no coordinates")
        if len(grids) > 1:
            raise UnreadableFile(
                f"{self.path}: zone {zone.name} has coordinates for {len(grids)} times; needed one time per file"
            )
        given = {each.name.rsplit("/", 1)[1]: each for each in _children(grids[0], "DataArray_t")}
        axes = [name for name in _NAMES if name in given]
        if not axes or len(axes) != len(given):
            raise UnreadableFile(f"{self.path}: coordinates {', '.join(given)}; needed {', '.join(_NAMES)}")
        coordinates = [self.array(given[name]) for name in axes]
        points = np.stack([each.reshape(-1) for each in coordinates], 1)
        if kind == "Structured":
            shape = coordinates[0].shape
            cells: list[tuple[str, Array]] = [_structured(shape)]
            ranges = [np.arange(len(cells[0][1]))]
        elif kind == "Unstructured":
            cells, ranges = self.elements()
            shape = (len(points),)
        else:
            raise UnreadableFile(f"{self.path}: zone of type {kind!r}; needed Structured or Unstructured")
        point_data, at_cells = self.solutions(len(points))
        raw = RawMesh(points, cells, point_data, notes=self.notes)
        for name, values in at_cells.items():
            raw.cell_data[name] = self.split(name, values, cells, ranges)
        raw.point_sets, raw.cell_sets = self.boundary(len(points), shape, cells, ranges)
        return raw

    def array(self, node: h5py.Group, child: str = "") -> Array:
        """Return the data of a node, or of a child of it. CGNS stores them in an array called ' data'."""
        place = "/".join([*node.name.strip("/").split("/"), *([child] if child else []), " data"])
        stored = plain_array(self.file, place, self.path)
        self.read_bytes += stored.size * 8
        check_fits(self.path, {self.zone.name: ((self.read_bytes,), 1)})
        return np.asarray(stored[...])

    def string(self, node: h5py.Group) -> str:
        return self.array(node).astype(np.uint8).tobytes().decode("ascii", "replace").strip("\0 ")

    def elements(self) -> tuple[list[tuple[str, Array]], list[Array]]:
        """Return blocks of cells, and the CGNS numbers of the cells of each block."""
        cells: list[tuple[str, Array]] = []
        ranges: list[Array] = []
        sections = []
        for section in _children(self.zone, "Elements_t"):
            number = int(self.array(section).reshape(-1)[0])
            bounds = self.array(section, "ElementRange").reshape(-1)
            sections.append((int(bounds[0]), int(bounds[1]), number, section))
        for first, last, number, section in sorted(sections, key=lambda each: each[0]):
            if last < first:
                continue
            corners = self.array(section, "ElementConnectivity").reshape(-1).astype(np.int64)
            if number == 20:
                self._mixed(section, corners, first, last, cells, ranges)
                continue
            kind, nodes = self._type(section, number)
            if len(corners) != nodes * (last - first + 1):
                raise UnreadableFile(
                    f"{self.path}: section {section.name} has {len(corners)} indices for "
                    f"{last - first + 1} cells of {nodes} nodes"
                )
            cells.append((kind, _ordered(kind, corners.reshape(-1, nodes) - 1)))
            ranges.append(np.arange(first, last + 1))
        return cells, ranges

    def _type(self, section: h5py.Group, number: int) -> tuple[str, int]:
        if number not in _TYPES:
            name = _REFUSED.get(number, f"number {number}")
            known = ", ".join(kind for kind, _ in _TYPES.values())
            raise UnreadableFile(f"{self.path}: section {section.name} has elements of type {name}; needed {known}")
        return _TYPES[number]

    def _mixed(
        self, section: h5py.Group, flat: Array, first: int, last: int, cells: list[tuple[str, Array]], ranges: list[Array]
    ) -> None:
        """Add the elements of a section in which each element is preceded by its type."""
        found: dict[str, tuple[list[Array], list[int]]] = {}
        at = 0
        for element in range(first, last + 1):
            if at >= len(flat):
                raise UnreadableFile(f"{self.path}: section {section.name} ends before its last element")
            kind, nodes = self._type(section, int(flat[at]))
            corners = flat[at + 1 : at + 1 + nodes]
            if len(corners) != nodes:
                raise UnreadableFile(f"{self.path}: section {section.name} ends before its last element")
            found.setdefault(kind, ([], []))[0].append(corners)
            found[kind][1].append(element)
            at += 1 + nodes
        for kind, (rows, numbers) in found.items():
            cells.append((kind, _ordered(kind, np.stack(rows) - 1)))
            ranges.append(np.asarray(numbers))

    def solutions(self, count: int) -> tuple[dict[str, Array], dict[str, Array]]:
        """Return the fields at points and at cells; components called NameX, NameY, NameZ become one field Name."""
        found: dict[str, dict[str, Array]] = {"Vertex": {}, "CellCenter": {}}
        for solution in _children(self.zone, "FlowSolution_t"):
            where = next((self.string(each) for each in _children(solution, "GridLocation_t")), "Vertex")
            if where not in found:
                self.notes.append(f"solution left out, because its values are at {where}: {solution.name}")
                continue
            for each in _children(solution, "DataArray_t"):
                name = each.name.rsplit("/", 1)[1]
                if name in found[where]:
                    raise UnreadableFile(f"{self.path}: two solutions have a field {name} at {where}; needed one time per file")
                found[where][name] = self.array(each).reshape(-1)
        for name, values in found["Vertex"].items():
            if len(values) != count:
                raise UnreadableFile(f"{self.path}: field {name} has {len(values)} values for {count} points")
        at_points, at_cells = (_vectors(found[where]) for where in ("Vertex", "CellCenter"))
        return at_points, at_cells

    def split(self, name: str, values: Array, cells: list[tuple[str, Array]], ranges: list[Array]) -> list[Array | None]:
        """Return values at cells by block. CGNS gives values for the cells of the highest dimension, in their order."""
        dims = [SHAPES[kind][1] if kind in SHAPES else 0 for kind, _ in cells]
        top = [dim == max(dims) for dim in dims]
        numbers = np.sort(np.concatenate([each for each, chosen in zip(ranges, top, strict=True) if chosen]))
        if len(values) != len(numbers):
            raise UnreadableFile(f"{self.path}: field {name} has {len(values)} values for {len(numbers)} cells")
        return [values[np.searchsorted(numbers, each)] if chosen else None for each, chosen in zip(ranges, top, strict=True)]

    def boundary(
        self, count: int, shape: tuple[int, ...], cells: list[tuple[str, Array]], ranges: list[Array]
    ) -> tuple[dict[str, Array], dict[str, list[Array | None]]]:
        """Return the points of each boundary condition, and its faces if the condition lists elements."""
        points: dict[str, Array] = {}
        faces: dict[str, list[Array | None]] = {}
        for condition in [bc for zone in _children(self.zone, "ZoneBC_t") for bc in _children(zone, "BC_t")]:
            name = condition.name.rsplit("/", 1)[1]
            where = next((self.string(each) for each in _children(condition, "GridLocation_t")), "Vertex")
            if "PointList" in condition:
                listed = self.array(condition, "PointList").astype(np.int64)
                listed = listed.reshape(-1) if len(shape) == 1 else self._flat(listed.reshape(-1, len(shape)), shape)
            elif "PointRange" in condition:
                bounds = self.array(condition, "PointRange").astype(np.int64)
                bounds = bounds.reshape(2, -1).T if bounds.size == 2 or bounds.shape[0] == 2 else bounds.reshape(-1, 2)
                if (np.prod(np.abs(bounds[:, 1] - bounds[:, 0]) + 1.0)) > max(count, sum(map(len, ranges))):
                    raise UnreadableFile(f"{self.path}: boundary condition {name} covers more points than there are")
                axes = [np.arange(min(a, b), max(a, b) + 1) for a, b in bounds.tolist()]
                grid = np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, len(axes))
                listed = grid[:, 0] if len(shape) == 1 else self._flat(grid, shape)
            else:
                self.notes.append(f"boundary condition left out, because it lists no points: {name}")
                continue
            if where == "Vertex":
                if len(listed) and not (listed.min() >= 1 and listed.max() <= count):
                    raise UnreadableFile(f"{self.path}: boundary condition {name} lists points that do not exist")
                points[name] = listed - 1
            elif len(shape) == 1:
                faces[name] = [np.flatnonzero(np.isin(numbers, listed)) for numbers in ranges]
            else:
                self.notes.append(f"boundary condition left out, because it lists {where} of a structured zone: {name}")
        return points, faces

    def _flat(self, triples: Array, shape: tuple[int, ...]) -> Array:
        """Return numbers of points, from 1, for their indices (i, j, k) in a structured zone. h5py sees axes reversed."""
        index = triples[:, ::-1] - 1
        if len(index) and not ((index >= 0).all() and (index < np.asarray(shape)).all()):
            raise UnreadableFile(f"{self.path}: a boundary condition lists points that do not exist")
        return np.asarray(np.ravel_multi_index(tuple(index.T), shape)) + 1


def _ordered(kind: str, corners: Array) -> Array:
    return corners[:, _ORDER[kind]] if kind in _ORDER else corners


def _structured(shape: tuple[int, ...]) -> tuple[str, Array]:
    """Return the lines, quadrilaterals or hexahedra of a structured zone with this array shape."""
    index = np.arange(int(np.prod(shape))).reshape([extent for extent in shape if extent > 1] or [1])
    if index.ndim == 1:
        return "line", np.stack([index[:-1], index[1:]], 1)
    if index.ndim == 2:
        corners = [index[:-1, :-1], index[:-1, 1:], index[1:, 1:], index[1:, :-1]]
        return "quad", np.stack([each.reshape(-1) for each in corners], 1)
    low, high = index[:-1], index[1:]
    square = [(slice(None, -1), slice(None, -1)), (slice(None, -1), slice(1, None)), (slice(1, None), slice(1, None))]
    square.append((slice(1, None), slice(None, -1)))
    corners = [each[:, j, i] for each in (low, high) for j, i in square]
    return "hexahedron", np.stack([each.reshape(-1) for each in corners], 1)


def _vectors(fields: dict[str, Array]) -> dict[str, Array]:
    """Join NameX, NameY and perhaps NameZ to one field Name (K, 2 or 3)."""
    out: dict[str, Array] = {}
    for name, values in fields.items():
        stem = name[:-1]
        axes = [axis for axis in "XYZ" if f"{stem}{axis}" in fields]
        if stem and name[-1] in axes and axes in (["X", "Y"], ["X", "Y", "Z"]) and stem not in fields:
            out.setdefault(stem, np.stack([fields[f"{stem}{axis}"] for axis in axes], 1))
        else:
            out[name] = values
    return out
