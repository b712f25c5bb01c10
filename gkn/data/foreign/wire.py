"""Arrays, texts and numbers between two processes, as JSON followed by the bytes of the arrays. Nothing is pickled."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from gkn.data.foreign.raw import Array, UnreadableFile

_LENGTH = struct.Struct("<Q")
_PLAIN = (str, int, float, bool, type(None))


def send(value: Any, write: Callable[[Any], object]) -> None:
    """Write a value made of dictionaries, lists, tuples, texts, numbers and arrays of numbers or texts."""
    arrays: list[Array] = []
    head = json.dumps(_described(value, arrays)).encode()
    write(_LENGTH.pack(len(head)) + head)
    for array in arrays:
        write(array.data.cast("B") if array.size else b"")


def receive(read: Callable[[int], Any]) -> Any:
    """Read what `send` wrote. `read` returns as many bytes as it is asked for."""
    (length,) = _LENGTH.unpack(read(_LENGTH.size))
    return _restored(json.loads(bytes(read(length))), read)


def _described(value: Any, arrays: list[Array]) -> Any:
    """Return JSON in which arrays are described, and append them to a list."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, np.ndarray):
        if value.dtype.kind not in "fiubcSU":
            raise UnreadableFile(f"an array holds {value.dtype}, not real numbers")
        whole = np.ascontiguousarray(value).reshape(value.shape)
        flat = whole.view(np.uint8) if whole.ndim else whole.reshape(1).view(np.uint8)
        arrays.append(flat)
        return {"array": [value.dtype.str, [*value.shape]]}
    if isinstance(value, dict):
        return {"dict": [[_described(key, arrays), _described(inner, arrays)] for key, inner in value.items()]}
    if isinstance(value, list | tuple):
        return {"tuple" if isinstance(value, tuple) else "list": [_described(inner, arrays) for inner in value]}
    raise UnreadableFile(f"holds a {type(value).__name__}")


def _restored(said: Any, read: Callable[[int], Any]) -> Any:
    if not isinstance(said, dict):
        return said
    ((kind, inner),) = said.items()
    if kind == "array":
        dtype, shape = np.dtype(inner[0]), tuple(inner[1])
        count = int(np.prod(shape, dtype=np.int64))
        return np.frombuffer(read(count * dtype.itemsize), dtype, count).reshape(shape)
    if kind == "dict":
        return {_restored(key, read): _restored(each, read) for key, each in inner}
    return (tuple if kind == "tuple" else list)(_restored(each, read) for each in inner)
