"""The process in which foreign files are parsed. See process.py for its other end."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import Any

from gkn.data.foreign.raw import RawMesh, UnreadableFile
from gkn.data.foreign.wire import send
from gkn.system.files import CorruptFile
from gkn.system.memory import assume_available
from gkn.system.stopping import end_with

LIBRARIES = 2**28
"""Bytes that parsers may take beside the content of a file."""
PARSERS = {
    "mesh": "gkn.data.foreign.meshes.parse_mesh",
    "cgns": "gkn.data.foreign.cgns.parse_cgns",
    "hdf5": "gkn.data.foreign.hdf5.parse_hdf5",
    "mat": "gkn.data.foreign.mat.parse_mat",
}


def answer(parser: str, path: Path) -> dict[str, Any]:
    """Parse a file; return its content, or what went wrong."""
    module, _, function = PARSERS[parser].rpartition(".")
    try:
        found = getattr(import_module(module), function)(path)
        if isinstance(found, RawMesh):
            found = {each.name: getattr(found, each.name) for each in fields(found)}
        return {"found": found}
    except ImportError as error:
        return {"missing": str(error)}
    except (UnreadableFile, CorruptFile) as error:
        return {"wrong": str(error)}
    except (MemoryError, RecursionError):
        return {"wrong": f"{path}: would take more memory than there is"}
    except Exception as error:  # parsers of foreign formats raise anything at all on damaged bytes
        return {"wrong": f"{path}: cannot be read: {type(error).__name__}: {error}"}


def limit(memory: int, seconds: float) -> None:
    """Limit the memory this process may take from now on, and its time on a processor. Some systems have no such limits."""
    try:
        import resource

        with open("/proc/self/statm") as file:
            used = int(file.read().split()[0]) * resource.getpagesize()
    except (ImportError, OSError):
        return
    spent = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
    for kind, most in ((resource.RLIMIT_AS, used + memory), (resource.RLIMIT_CPU, int(spent + seconds) + 1)):
        hard = resource.getrlimit(kind)[1]
        resource.setrlimit(kind, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))


def serve(requests: Any, write: Callable[[Any], object]) -> None:
    """Parse one file after the other, until there are no more requests."""
    send("ready", write)
    for line in requests:
        request = json.loads(line)
        assume_available(request["memory"])
        limit(LIBRARIES + request["memory"] // 2, request["seconds"])
        found = {"number": request["number"], **answer(request["parser"], Path(request["path"]))}
        try:
            send(found, write)
        except UnreadableFile as error:
            send({"number": request["number"], "wrong": f"{request['path']}: {error}"}, write)


def main() -> None:
    if os.name == "posix":
        end_with(int(sys.argv[2]))
    out = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # what a library prints must not get among the answers

    def write(data: Any) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[out.write(rest) :]

    serve(sys.stdin.buffer, write)
