"""Files that are whole or not there: written under a temporary name, synced, renamed, and known by their hash."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

TEMPORARY = ".tmp-"  # a file with this in its name is unfinished, and nobody's


class CorruptFile(ValueError):
    """A file's bytes are not the bytes that were written."""


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path to write to; then sync it and rename it to `path`.

    A reader, or a machine that loses power, sees the old file or the new one, never a part. If the body or
    the disk fails, the temporary file is removed and the old one stays.
    """
    temporary = path.with_name(f"{path.name}{TEMPORARY}{os.getpid()}-{secrets.token_hex(4)}")
    try:
        yield temporary
        sync(temporary)
        os.rename(temporary, path)
        sync(path.parent)  # the rename itself must survive a power cut
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def sync(path: Path) -> None:
    """Force a file's bytes, or a folder's entries, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_unfinished(folder: Path) -> None:
    """Remove what killed writers left in `folder`."""
    for path in folder.glob(f"*{TEMPORARY}*"):
        path.unlink(missing_ok=True)


def sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def canonical(value: Any) -> bytes:
    """The one way this project writes a JSON value."""
    return (json.dumps(value, indent=1, sort_keys=True, allow_nan=False) + "\n").encode()


def digest(value: Any) -> str:
    return hashlib.sha256(canonical(value)).hexdigest()


def write_sealed_json(path: Path, value: dict[str, Any]) -> None:
    """Write `value` with its own hash inside, so that a change of any byte is noticed by `read_sealed_json`."""
    with replacing(path) as temporary:
        temporary.write_bytes(canonical({**value, "sha256": digest(value)}))


def read_sealed_json(path: Path, max_bytes: int = 64 * 2**20) -> dict[str, Any]:
    size = path.stat().st_size
    if size > max_bytes:
        raise CorruptFile(f"{path}: {size} bytes, but such a file has at most {max_bytes}; it is not ours")
    data = path.read_bytes()
    try:
        sealed = json.loads(data)
        seal = sealed.pop("sha256")
        intact = data == canonical({**sealed, "sha256": seal}) and seal == digest(sealed)
    except (ValueError, AttributeError, KeyError, TypeError, RecursionError) as error:
        raise CorruptFile(f"{path}: not readable ({error}); restore it from a copy or make it again") from error
    if not intact:
        raise CorruptFile(f"{path}: changed since it was written; restore it from a copy or make it again")
    return dict(sealed)
