"""The content of a file as parsers return it: arrays as the file has them, before they are interpreted."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

Array = NDArray[Any]


class UnreadableFile(ValueError):
    """The file is damaged, hostile, or not of the kind its name says."""


# Simplices that a cell is cut into, by its corners.
SIMPLICES = {
    "line": [[0, 1]],
    "triangle": [[0, 1, 2]],
    "quad": [[0, 1, 2], [0, 2, 3]],
    "tetra": [[0, 1, 2, 3]],
    "pyramid": [[0, 1, 2, 4], [0, 2, 3, 4]],
    "wedge": [[0, 1, 2, 5], [0, 1, 5, 4], [0, 4, 5, 3]],
    "hexahedron": [[0, 1, 2, 6], [0, 2, 3, 6], [0, 3, 7, 6], [0, 7, 4, 6], [0, 4, 5, 6], [0, 5, 1, 6]],
}
_ORDERS = {
    "line": (2, 3),
    "triangle": (3, 6, 7),
    "quad": (4, 8, 9),
    "tetra": (4, 10),
    "pyramid": (5, 13),
    "wedge": (6, 15),
    "hexahedron": (8, 20, 27),
}
SHAPES = {
    shape if i == 0 else f"{shape}{nodes}": (shape, len(SIMPLICES[shape][0]) - 1, nodes)
    for shape, counts in _ORDERS.items()
    for i, nodes in enumerate(counts)
}
"""Cell types by meshio's names: the shape, its dimension, and the number of nodes."""


@dataclass
class RawMesh:
    """The content of a mesh file before it is interpreted.

    points      (K, 1 to 3)
    cells       (type, (C, nodes)) by block, lower-dimensional ones included
    point_data  arrays (K, ...)
    cell_data   arrays (C, ...), one per block, or None for a block without
    point_sets  named indices of points
    cell_sets   named indices of cells, one array per block, or None
    group_names names of the whole numbers in `cell_data`, by (number, dimension)
    parameters  named numbers
    notes       sentences about what was left out
    """

    points: Array
    cells: list[tuple[str, Array]]
    point_data: dict[str, Array] = field(default_factory=dict)
    cell_data: dict[str, list[Array | None]] = field(default_factory=dict)
    point_sets: dict[str, Array] = field(default_factory=dict)
    cell_sets: dict[str, list[Array | None]] = field(default_factory=dict)
    group_names: dict[tuple[int, int], str] = field(default_factory=dict)
    parameters: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
