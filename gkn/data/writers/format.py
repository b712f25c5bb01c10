"""The registry of writers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from gkn.geometry.domain import Domain

Writer: TypeAlias = Callable[[Domain, Mapping[str, Any]], bytes]
"""(domain, arrays (K,) by name) -> the bytes of the file."""
WRITERS: dict[str, Writer] = {}
"""The writer of each file name ending."""


def writer(ending: str) -> Callable[[Writer], Writer]:
    """Register a function as the writer of files with this ending."""

    def register(function: Writer) -> Writer:
        WRITERS[ending] = function
        return function

    return register
