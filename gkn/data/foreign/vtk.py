"""Field data of VTK's legacy files, which meshlane does not return."""

from __future__ import annotations

import re
from itertools import islice
from pathlib import Path

import numpy as np

from gkn.data.foreign.raw import UnreadableFile

_TYPES = {
    "double": "f8",
    "float": "f4",
    "long": "i8",
    "unsigned_long": "u8",
    "vtktypeint64": "i8",
    "int": "i4",
    "vtkidtype": "i4",
}
_TYPES |= {"unsigned_int": "u4", "short": "i2", "unsigned_short": "u2", "char": "i1", "unsigned_char": "u1"}
_HEAD = 2**20  # field data come first in a file


def field_numbers(path: Path) -> tuple[dict[str, float], list[str]]:
    """Return the field data that are one number each, and the names of the others."""
    with open(path, "rb") as file:
        head = file.read(_HEAD)
    start = re.search(rb"^\s*DATASET +\w+\s+FIELD +\S+ +(\d+) *\r?\n", head, re.M)
    if start is None:
        return {}, []
    binary = re.search(rb"^BINARY\s*$", head[: start.start()], re.M) is not None
    numbers: dict[str, float] = {}
    others: list[str] = []
    at = start.end()
    for _ in range(int(start[1])):
        line = re.compile(rb"\s*(\S+) +(\d+) +(\d+) +(\w+) *\r?\n").match(head, at)
        kind = line[4].decode().lower() if line else ""
        if line is None or (kind not in _TYPES and (binary or kind != "string")):
            raise UnreadableFile(f"{path}: its field data cannot be read; save it as .vtu")
        name, count, at = line[1].decode("utf-8", "replace"), int(line[2]) * int(line[3]), line.end()
        if binary:
            size = count * np.dtype(_TYPES[kind]).itemsize
            data, at = head[at : at + size], at + size
            values = np.frombuffer(data, ">" + _TYPES[kind]) if len(data) == size else np.zeros(0)
        else:
            words = [*islice(re.compile(rb"\S+").finditer(head, at), min(count, len(head)))]
            if len(words) != count or not words:
                raise UnreadableFile(f"{path}: its field data cannot be read; save it as .vtu")
            values = np.zeros(0) if kind == "string" else np.array([float(word[0]) for word in words])
            at = words[-1].end()
        if values.size == 1:
            numbers[name] = float(values[0])
        else:
            others.append(name)
        metadata = re.compile(rb"\s*METADATA\b.*?\n[ \t]*\r?\n", re.S).match(head, at)
        at = metadata.end() if metadata else at
    return numbers, others
