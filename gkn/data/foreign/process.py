"""Parsing of foreign files in a process of its own, with limits of time and memory.

Libraries for mesh files, HDF5 and MATLAB files loop for ever on some damaged files and believe the sizes that files claim. The
process is kept for the next file. If it takes too long or dies, that is an error of the file, and the next file gets a new one.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import numpy as np

from gkn.data.foreign.raw import Array, RawMesh, UnreadableFile
from gkn.data.foreign.wire import receive
from gkn.system.memory import available_memory

SECONDS = 10.0
"""Time on a processor that a file of no size may take."""
BYTES_PER_SECOND = 2**20
"""Larger files may take a further second for so many bytes."""
WALL = 10.0
"""How many times as long by the clock, if other programs keep the processors busy."""
START = 120.0
"""Seconds after which a process that does not start is given up."""


def parsed_mesh(parser: str, path: Path) -> RawMesh:
    """Return the content of a mesh file."""
    return RawMesh(**_WORKER.ask(parser, path))


def parsed_arrays(parser: str, path: Path) -> tuple[dict[str, Array], list[str]]:
    """Return the arrays of a file by name, and the names of what else it holds."""
    arrays, others = _WORKER.ask(parser, path)
    return arrays, others


_PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])  # so that the same gkn is imported, installed or not, and nothing else from there
import gkn
sys.path.append(sys.path.pop(0))
from gkn.data.foreign.worker import main
main()
"""


class _Worker:
    """The other process, started when it is first needed."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = self._asked = 0

    def ask(self, parser: str, path: Path) -> Any:
        """Return what a parser finds in a file. Threads take turns."""
        with self._turn:
            process = self._started()
            seconds = SECONDS + path.stat().st_size / BYTES_PER_SECOND
            self._asked += 1
            request: dict[str, Any] = {"number": self._asked, "parser": parser, "path": str(path.absolute())}
            request |= {"memory": available_memory(), "seconds": seconds}
            try:
                assert process.stdin is not None
                process.stdin.write(json.dumps(request).encode() + b"\n")
                reply = receive(_Reader(process, time.monotonic() + WALL * seconds))
                if reply == "ready" or reply["number"] != self._asked:  # cannot be: an unread reply ends the process
                    self.stop()
                    raise UnreadableFile(f"{path}: cannot be read: its parser answered for another file")
            except (EOFError, BrokenPipeError):
                raise UnreadableFile(f"{path}: cannot be read: {self._ending(seconds)}") from None
            except TimeoutError:
                self.stop()
                raise UnreadableFile(f"{path}: cannot be read: its parser did not end after {WALL * seconds:.0f} s") from None
            except BaseException:  # such as Ctrl-C, after which the answer would be taken for that of the next file
                self.stop()
                raise
        if "missing" in reply:
            raise ImportError(reply["missing"])
        if "wrong" in reply:
            raise UnreadableFile(reply["wrong"].replace(str(path.absolute()), str(path)))
        return reply["found"]

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._owner == os.getpid() and self._process.poll() is None:
            return self._process
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        pipes: dict[str, Any] = {
            "stdin": subprocess.PIPE,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.DEVNULL,
            "bufsize": 0,
        }
        command = [sys.executable, "-P", "-c", _PROGRAM, str(Path(__file__).parents[3]), str(os.getpid())]
        # -P: no modules of the current folder
        pipes |= {"start_new_session": True} if os.name == "posix" else {}  # Ctrl-C is for this process, which ends the other
        self._process, self._owner = subprocess.Popen(command, env=environment, **pipes), os.getpid()
        try:
            _widen(self._process.stdout)
            receive(_Reader(self._process, time.monotonic() + START))
        except (EOFError, TimeoutError) as error:
            self.stop()
            raise OSError("the process that reads files of other programs does not start") from error
        except BaseException:
            self.stop()
            raise
        return self._process

    def _ending(self, seconds: float) -> str:
        """Return why the process has ended, and forget it."""
        assert self._process is not None
        code = self._process.wait()
        self.stop()
        if code == -getattr(signal, "SIGXCPU", 0):
            return f"its parser did not end after {seconds:.0f} s"
        return "its parser needs more memory than there is" if code == -9 else f"its parser crashed (exit code {code})"

    def stop(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is None or self._owner != os.getpid():
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


class _Reader:
    """Reads as many bytes as it is asked for; raises TimeoutError after a deadline, and EOFError if the process has ended."""

    def __init__(self, process: subprocess.Popen[bytes], deadline: float) -> None:
        assert process.stdout is not None
        self.pipe, self.deadline = process.stdout.fileno(), deadline

    def __call__(self, count: int) -> Array:
        data = np.empty(count, np.uint8)  # not filled with zeros first, as a bytearray is
        rest = data.data
        while rest:
            left = self.deadline - time.monotonic()
            if os.name == "posix" and not select.select([self.pipe], [], [], max(left, 0))[0]:
                raise TimeoutError
            got = os.readv(self.pipe, [rest]) if hasattr(os, "readv") else self._read(rest)
            if not got:
                raise EOFError
            rest = rest[got:]
        return data

    def _read(self, rest: memoryview) -> int:
        part = os.read(self.pipe, len(rest))
        rest[: len(part)] = part
        return len(part)


def _widen(pipe: IO[bytes] | None) -> None:
    """Let a pipe hold 1 MiB and not 64 KiB, where the system can do that: large arrays take fewer turns."""
    with suppress(ImportError, AttributeError, OSError):
        import fcntl

        assert pipe is not None
        fcntl.fcntl(pipe.fileno(), fcntl.F_SETPIPE_SZ, 2**20)


_WORKER = _Worker()
atexit.register(_WORKER.stop)
