"""The registry of writers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from numpy.typing import NDArray

from gkn.geometry.domain import Domain

Array = NDArray[Any]
Writer: TypeAlias = Callable[[Domain, Mapping[str, Array], Mapping[str, list[Array]], Mapping[str, float]], bytes]
"""(domain, fields (K,) or (K, c), cell data by block of cells, parameters) -> the bytes of the file."""
WRITERS: dict[str, Writer] = {}
"""The writer of each file name ending."""
RESERVED: dict[str, Callable[[str], bool]] = {}
"""For each ending, a function that is True for names that a field cannot have in such a file."""


def writer(ending: str, reserved: Callable[[str], bool] | None = None) -> Callable[[Writer], Writer]:
    """Register a function as the writer of files with this ending."""

    def register(function: Writer) -> Writer:
        WRITERS[ending] = function
        if reserved is not None:
            RESERVED[ending] = reserved
        return function

    return register
