"""Files that are complete or absent: written under a temporary name, synced, renamed, and checked by their hash."""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

try:
    import fcntl
except ImportError:  # Windows: folders are not locked there
    fcntl = None  # type: ignore[assignment]

TEMPORARY = ".tmp-"
LOCK = ".lock"
_UNFINISHED = re.compile(r"(?P<name>.+)\.tmp-\d+-[0-9a-f]{8}")


class CorruptFile(ValueError):
    """A file's bytes are not the bytes that were written."""


def write(path: Path, data: bytes) -> None:
    """Replace `path`. A reader, or a machine that loses power, sees the old file or the new one, never a part."""
    place(prepare(path, data), path)


def prepare(path: Path, data: bytes) -> Path:
    """Write and sync the bytes under a temporary name: the first half of `write`. If it fails, no file remains."""
    temporary = path.with_name(f"{path.name}{TEMPORARY}{os.getpid()}-{secrets.token_hex(4)}")
    try:
        temporary.write_bytes(data)
        sync(temporary)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        raise _named(error, path) from None
    return temporary


def place(temporary: Path, path: Path) -> None:
    """Rename and sync the folder: the second half of `write`. The rename itself must survive a power cut."""
    try:
        os.replace(temporary, path)
        sync(path.parent)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        raise _named(error, path) from None


def _named(error: BaseException, path: Path) -> BaseException:
    """Return an error that names the file: "No space left on device" alone does not."""
    return OSError(error.errno, error.strerror, str(path)) if isinstance(error, OSError) else error


def sync(path: Path) -> None:
    """Force a file's bytes, or a folder's entries, to the disk."""
    if os.name == "nt":
        return  # Windows cannot open folders, and syncs only files that are open for writing
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def unfinished(folder: Path, ours: Callable[[str], bool]) -> list[Path]:
    """Return temporary files that killed writers left in `folder`."""
    found = ((path, _UNFINISHED.fullmatch(path.name)) for path in folder.iterdir())
    return [path for path, match in found if match and ours(match["name"])]


def make_folder(path: Path) -> None:
    """Make a folder and its parents, each synced like the files that will be in it."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in missing:
        sync(folder.parent)


@contextmanager
def locked(folder: Path, refuse: Callable[[str], Exception]) -> Iterator[None]:
    """Make a folder if need be and lock it for writing. The lock ends with the process, even if it is killed."""
    make_folder(folder)
    lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o644)
    try:
        try:
            if fcntl is not None:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise refuse(f"{folder}: another process is writing here; wait for it or choose another folder") from None
        yield
    finally:
        os.close(lock)


def difference(there: Any, here: Any) -> str:
    """Describe the first difference of two JSON values."""

    def leaves(value: Any, name: str = "") -> dict[str, Any]:
        if isinstance(value, Mapping):
            return {k: v for key, inner in value.items() for k, v in leaves(inner, f"{name}.{key}" if name else key).items()}
        return {name: value}

    of_there, of_here = leaves(there), leaves(here)
    keys = [key for key in {**of_there, **of_here} if of_there.get(key) != of_here.get(key)]
    return ", ".join(f"{key} = {of_there.get(key)} there, {of_here.get(key)} here" for key in keys)


def sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def canonical(value: Any) -> bytes:
    """Return JSON text in the one form this project uses; numbers of numpy and torch are allowed."""

    def number(x: Any) -> Any:
        if not hasattr(x, "item"):
            raise TypeError(f"{x!r} is nothing that JSON can hold")
        return x.item()

    return (json.dumps(value, indent=1, sort_keys=True, allow_nan=False, default=number) + "\n").encode()


def digest(value: Any) -> str:
    return hashlib.sha256(canonical(value)).hexdigest()


def write_sealed_json(path: Path, value: dict[str, Any]) -> None:
    """Write `value` with its own hash inside, so that a change of any byte is noticed by `read_sealed_json`."""
    write(path, canonical({**value, "sha256": digest(value)}))


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
