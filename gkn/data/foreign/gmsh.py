"""Order of the data in gmsh's text files. meshlane takes values in the order in which they are listed, whatever their tags."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from gkn.data.foreign.raw import UnreadableFile


def check_order(path: Path) -> None:
    """Refuse a file whose data are not listed in the order of its nodes or elements."""
    data = path.read_bytes()
    if b"$NodeData" not in data and b"$ElementData" not in data:
        return
    head = re.match(rb"\s*\$MeshFormat\s+(\S+)\s+(\d)", data)
    if head is None or head[2] != b"0":
        raise UnreadableFile(f"{path}: binary, with data whose order cannot be checked; save it as text or as .vtu")
    version = head[1].decode()
    sections = re.findall(r"^\$(\w+)\s*?\n(.*?)^\$End\1", data.decode("utf-8", "replace"), re.S | re.M)
    lines = {name: text.splitlines() for name, text in sections}
    for kind, whole in (("NodeData", "Nodes"), ("ElementData", "Elements")):
        tags = [*_tags(lines.get(whole, []), version, whole == "Nodes")]
        for name, text in sections:
            if name == kind and [*_data_tags(text.splitlines())] != tags:
                raise UnreadableFile(f"{path}: a section ${kind} does not list all of ${whole} in their order; save it as .vtu")


def _tags(lines: list[str], version: str, nodes: bool) -> Iterator[int]:
    """Yield the tags of nodes or elements in the order of the file."""
    if version.startswith("2"):
        yield from (int(line.split()[0]) for line in lines[1:])
        return
    at = 1
    while at < len(lines):
        count = int(lines[at].split()[3])
        yield from (int(line.split()[0]) for line in lines[at + 1 : at + 1 + count])
        # Version 4.1 lists the coordinates of a block of nodes after all of their tags.
        at += 1 + count * (2 if nodes and version != "4" and version != "4.0" else 1)


def _data_tags(lines: list[str]) -> Iterator[int]:
    at = 0
    for _ in range(3):  # texts, real numbers and whole numbers, each with their count
        at += 1 + int(lines[at])
    yield from (int(line.split()[0]) for line in lines[at:])
