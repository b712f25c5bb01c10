"""Tables as text: a line of names, then one line per point. Columns x, y, z are coordinates."""

from __future__ import annotations

import csv
import math
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from gkn.data.foreign.raw import Array, RawMesh, UnreadableFile
from gkn.data.readers.cells import content_of
from gkn.data.readers.format import Content, ReadOptions, reader
from gkn.system.files import check_regular
from gkn.system.hdf5 import check_fits

_PARAVIEW = re.compile(r"(.+):(\d)")


@reader(".csv")
def read_csv(path: Path, options: ReadOptions) -> Content:
    columns, words = read_table(path)
    columns = {_renamed(name): values for name, values in columns.items()}
    lower = {name.lower(): name for name in columns}
    axes = [lower[axis] for axis in "xyz" if axis in lower]
    if not axes or [axis.lower() for axis in axes] != [*"xyz"[: len(axes)]]:
        raise UnreadableFile(
            f"{path}: columns {', '.join((*columns, *words))}; needed coordinates called x, or x and y, or x, y and "
            "z; a table of parameters is given with --parameters"
        )
    points = np.stack([columns.pop(axis) for axis in axes], 1)
    notes = [f"columns left out, because they hold words: {', '.join(words)}"] if words else []
    return content_of(path, RawMesh(points, [], _vectors(columns), notes=notes), options)


def read_table(path: Path, texts: Sequence[str] = ()) -> tuple[dict[str, Array], dict[str, list[str]]]:
    """Return the columns of numbers of a text file with a line of names, and the columns of words.

    An empty place in a column of numbers is NaN. Columns with one of the names in `texts` hold words, whatever they look like.
    """
    check_regular(path)
    check_fits(path, {"text": ((path.stat().st_size,), 32)})
    with open(path, newline="", encoding="utf-8-sig") as file:
        head = file.readline()
        file.seek(0)
        separator = max(",;\t", key=head.count)
        rows = [
            row for row in csv.reader(file, delimiter=separator, skipinitialspace=True) if any(each.strip() for each in row)
        ]
    names = [name.strip() for name in rows[0]] if rows else []
    if len(rows) < 2 or not all(names):
        raise UnreadableFile(f"{path}: needed a line of names and at least one line of values")
    if len({*names}) != len(names):
        raise UnreadableFile(f"{path}: two columns are called {Counter(names).most_common(1)[0][0]!r}")
    for number, row in enumerate(rows, start=1):
        if len(row) != len(names):
            raise UnreadableFile(f"{path}: row {number} has {len(row)} values for {len(names)} columns")
    numbers: dict[str, Array] = {}
    words: dict[str, list[str]] = {}
    for name, column in zip(names, zip(*rows[1:], strict=True), strict=True):
        values = [] if name.lower() in texts else [_number(each) for each in column]
        if all(value is None for value in values):
            words[name] = [each.strip() for each in column]
            continue
        if None in values:
            line = values.index(None)
            raise UnreadableFile(f"{path}: {column[line]!r} in column {name}, row {line + 2}, is not a number")
        numbers[name] = np.array(values, dtype=np.float64)
    return numbers, words


def _number(text: str) -> float | None:
    try:
        return float(text) if text.strip() else math.nan
    except ValueError:
        return None


def _renamed(name: str) -> str:
    """Return x for ParaView's Points:0, and v_x for its v:0."""
    match = _PARAVIEW.fullmatch(name)
    if not match or match[2] not in "012":
        return name
    axis = "xyz"[int(match[2])]
    return axis if match[1] == "Points" else f"{match[1]}_{axis}"


def _vectors(columns: dict[str, Array]) -> dict[str, Array]:
    """Join the columns v_x, v_y and perhaps v_z to one field v."""
    fields: dict[str, Array] = {}
    for name, values in columns.items():
        stem, _, axis = name.rpartition("_")
        axes = [each for each in "xyz" if f"{stem}_{each}" in columns]
        if stem and axis in axes and axes in (["x", "y"], ["x", "y", "z"]) and stem not in columns:
            fields.setdefault(stem, np.stack([columns[f"{stem}_{each}"] for each in axes], 1))
        else:
            fields[name] = values
    return fields
