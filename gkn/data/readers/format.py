"""Parts shared by all file formats: the registry of readers, their options, and protection against hostile files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from gkn.geometry.domain import Domain
from gkn.system.files import CorruptFile
from gkn.system.memory import available_memory

Nodes = Literal["vertices", "centres"]
Part: TypeAlias = tuple[Domain | Sequence[Domain], dict[str, Any]]
"""Content of a file: its domain, or one per sample; and fields by name, (n, K) tensors or n tensors (K_i,)."""


class UnreadableFile(ValueError):
    """The file is damaged, hostile, or not of the kind its name says."""


@dataclass(frozen=True)
class ReadOptions:
    """Options of readers.

    nodes      where values of an s x s array without coordinates lie: at i/(s-1), or at cell centres (i+1/2)/s
    low, high  values of a coefficient that is stored as False and True
    repair     turn clockwise cells round and drop unused points, instead of refusing such a mesh
    """

    nodes: Nodes = "vertices"
    low: float = 3.0
    high: float = 12.0
    repair: bool = False


Reader: TypeAlias = Callable[[Path, ReadOptions], Part]
READERS: dict[str, Reader] = {}
"""The reader of each file name ending."""


def reader(*endings: str) -> Callable[[Reader], Reader]:
    """Register a function (path, options) -> Part as the reader of files with these endings."""

    def register(function: Reader) -> Reader:
        READERS.update(dict.fromkeys(endings, function))
        return function

    return register


def read_file(path: Path, options: ReadOptions) -> Part:
    """Read one file. Whatever goes wrong inside a parser becomes an `UnreadableFile` with the name of the file."""
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file")
    ending = path.suffix.lower()
    if ending not in READERS:
        known = ", ".join(READERS)
        raise UnreadableFile(f"{path}: {ending or 'such'} files are not read; there are {known} (convert meshes to .vtu)")
    try:
        with _bounded_memory():
            return READERS[ending](path, options)
    except (UnreadableFile, ImportError):
        raise
    except MemoryError as error:
        raise UnreadableFile(f"{path}: would take more memory than there is") from error
    except CorruptFile as error:
        raise UnreadableFile(str(error)) from error
    except Exception as error:  # parsers of foreign formats raise anything at all on damaged bytes
        raise UnreadableFile(f"{path}: cannot be read: {type(error).__name__}: {error}") from error


@contextmanager
def _bounded_memory() -> Iterator[None]:
    """Let a file that unpacks to more than half of the free memory end in a MemoryError, whatever its parser believes.

    Where the system has no such limit, nothing happens.
    """
    try:
        import resource

        with open("/proc/self/statm") as file:
            used = int(file.read().split()[0]) * resource.getpagesize()
    except (ImportError, OSError):
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = used + available_memory() // 2
    resource.setrlimit(resource.RLIMIT_AS, (min([limit, *(x for x in (soft, hard) if x != resource.RLIM_INFINITY)]), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
