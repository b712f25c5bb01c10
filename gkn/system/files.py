"""Files that are complete or absent: written under a temporary name, synced, renamed, and checked by their hash."""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import Any

try:
    import fcntl
except ImportError:  # Windows: folders are not locked there
    fcntl = None  # type: ignore[assignment]

TEMPORARY = ".tmp-"
DEEP = 32
"""Levels of lists and dictionaries that a file of ours may have."""
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


def no_folder(path: Path, what: str) -> str:
    """Return a sentence if a path is not a folder, where that of something was needed; else an empty text."""
    if path.is_dir():
        return ""
    found = next(each for each in (path, *path.parents) if each.exists())
    return f"{path}: no such folder" if found.is_dir() else f"{found}: a file; needed the folder of {what}"


def make_folder(path: Path) -> None:
    """Make a folder and its parents, each synced like the files that will be in it."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    link = next((folder for folder in missing if folder.is_symlink()), None)
    if link is not None:
        raise FileExistsError(f"{link}: a link to something that is not there; choose another name")
    found = next(folder for folder in (path, *path.parents) if folder.exists())
    if not found.is_dir():
        raise FileExistsError(f"{found}: a file, where a folder is needed; choose another name")
    path.mkdir(parents=True, exist_ok=True)
    for folder in missing:
        sync(folder.parent)


@contextmanager
def locked(folder: Path, refuse: Callable[[str], Exception], wait: float = 0.0) -> Iterator[None]:
    """Make a folder if need be and lock it for writing. The lock ends with the process, even if it is killed.

    wait   seconds to wait for another process that is writing there
    """
    lock = _lock(folder, wait)
    if lock is None:
        since = f"has been writing here for {wait:.0f} s; choose" if wait else "is writing here; wait for it or choose"
        raise refuse(f"{folder}: another process {since} another folder")
    try:
        yield
    finally:
        os.close(lock)


@contextmanager
def locked_briefly(folder: Path, wait: float = 60.0) -> Iterator[None]:
    """Lock a folder as `locked` does, for a short write: wait for others, and leave no lock file behind."""
    with locked(folder, OSError, wait):
        try:
            yield
        finally:
            with suppress(OSError):  # Windows does not remove open files
                (folder / LOCK).unlink(missing_ok=True)


def _lock(folder: Path, wait: float) -> int | None:
    """Return the descriptor of the locked file; None if another process has it for so many seconds."""
    make_folder(folder)
    path, end = folder / LOCK, time.monotonic() + wait
    while True:
        lock = _locked_file(path)
        if lock is not None and _is_still_at(lock, path):
            return lock
        if lock is not None:
            os.close(lock)  # another process removed the file after this one had opened it
        elif time.monotonic() >= end:
            return None
        time.sleep(0.002)


def _locked_file(path: Path) -> int | None:
    """Open and lock a file; return its descriptor, or None if another process has the lock."""
    lock = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o644)
    try:
        if fcntl is not None:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    except BaseException:
        os.close(lock)
        raise
    return lock


def _is_still_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def read_regular(path: Path, max_bytes: int | None = None) -> bytes:
    """Return the bytes of a file. Folders, pipes and devices are refused: reading them could block or never end."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if max_bytes is not None and size > max_bytes:
            raise CorruptFile(f"{path}: {size} bytes, but such a file has at most {max_bytes}; it is not ours")
        return file.read()


def open_regular(path: Path) -> BufferedReader:
    """Open a file for reading; refuse folders, pipes and devices."""
    check_regular(path)
    descriptor = os.open(
        path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    )
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):  # replaced since it was checked
        os.close(descriptor)
        raise CorruptFile(f"{path}: not a regular file")
    return open(descriptor, "rb")


def check_regular(path: Path) -> None:
    """Raise an error that says what a path is, unless it is a regular file."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        raise FileNotFoundError(f"{path}: no such file") from None
    except OSError as error:  # a loop of links, a file on the way in place of a folder
        raise FileNotFoundError(f"{path}: cannot be opened: {error.strerror}") from error
    if stat.S_ISDIR(mode):
        raise CorruptFile(f"{path}: a folder; needed a file")
    if not stat.S_ISREG(mode):
        raise CorruptFile(f"{path}: a pipe or device; needed a regular file")


def difference(there: Any, here: Any, words: Mapping[str, str] | None = None) -> str:
    """Describe the differences of two JSON values.

    words   what to say of entries whose values mean nothing to people, such as digests; * stands for any index
    """

    known = words or {}

    def entries(value: Any) -> dict[str, Any]:
        if isinstance(value, list) and any(isinstance(each, Mapping) for each in value):
            return {str(i): each for i, each in enumerate(value)}
        return dict(value) if isinstance(value, Mapping) else {}

    def compared(theirs: Any, ours: Any, name: str = "") -> Iterator[str]:
        described = known.get(re.sub(r"\.\d+(?=\.|$)", ".*", name))
        inside, outside = entries(theirs), entries(ours)
        if inside and outside:
            for key in {**inside, **outside}:
                yield from compared(inside.get(key), outside.get(key), f"{name}.{key}" if name else key)
        elif theirs != ours:
            only = f"{name} is given {'here' if theirs is None else 'there'} only"
            missing = (theirs is None or ours is None) and (inside or outside)
            yield described or (only if missing else f"{name} = {theirs} there, {ours} here")

    return ", ".join(dict.fromkeys(compared(there, here)))


def version_of(path: Path) -> tuple[int, ...]:
    """Return numbers that change when a file is replaced, even by one with the same content; none if there is no file."""
    try:
        found = path.stat()
    except OSError:
        return ()
    return found.st_ino, found.st_mtime_ns, found.st_size


def sha256(path: Path) -> str:
    with open_regular(path) as file:
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
    if _depth(value) > DEEP:
        raise ValueError(f"{path}: its entries are nested in more than {DEEP} levels")
    write(path, canonical({**value, "sha256": digest(value)}))


def read_sealed_json(path: Path, max_bytes: int = 64 * 2**20) -> dict[str, Any]:
    data = read_regular(path, max_bytes)
    try:
        sealed = json.loads(data)
        seal = sealed.pop("sha256")
        intact = data == canonical({**sealed, "sha256": seal}) and seal == digest(sealed)
    except (ValueError, AttributeError, KeyError, TypeError, RecursionError) as error:
        raise CorruptFile(f"{path}: not readable ({error}); restore it from a copy or make it again") from error
    if not intact:
        raise CorruptFile(f"{path}: changed since it was written; restore it from a copy or make it again")
    if _depth(sealed) > DEEP:
        raise CorruptFile(f"{path}: its entries are nested deeper than gkn writes them")
    return dict(sealed)


def _depth(value: Any) -> int:
    """Return how deep lists and dictionaries are nested; at most a little more than `DEEP`."""
    level, depth = [value], 0
    while level and depth <= DEEP:
        inner = [each for each in level if isinstance(each, dict | list | tuple)]
        level = [one for each in inner for one in (each.values() if isinstance(each, dict) else each)]
        depth += bool(inner)
    return depth
