"""Libraries in C++ that are compiled on the machine that runs them, once, and kept in the user's cache folder.

They have plain C interfaces and are called by ctypes, so that compiling takes two seconds; with torch's headers it takes forty.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import signal
import subprocess
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path

from gkn.system.files import sha256, write

COMPILERS = ("c++", "g++", "clang++")
FLAGS = ("-O3", "-std=c++17", "-ffp-contract=fast", "-fPIC", "-shared", "-pthread")
NATIVE = (("-march=native",), ("-mcpu=native",), ())
"""Flags for the processor at hand: the first that the compiler takes."""
SECONDS = 120
"""A compiler that takes longer is stopped. It needs two."""


class NotCompiled(RuntimeError):
    """There is no compiler here, or it failed. The text says which."""


@cache
def library(source: Path) -> ctypes.CDLL:
    """Return a library made of one C++ file, compiled now or before. Raise NotCompiled if it cannot be had."""
    if os.environ.get("GKN_COMPILE") == "0":
        raise NotCompiled("GKN_COMPILE=0 says not to compile")
    if os.name != "posix":
        raise NotCompiled(f"{platform.system()} is not among the systems it is compiled on")
    try:
        name, folder = f"{source.stem}-{_key(source)}-", _folder()
        for path in sorted(folder.glob(f"{name}*.so")) if folder else []:
            if path.name == f"{name}{sha256(path)}.so":  # a damaged library could end the process
                return ctypes.CDLL(str(path))
        with tempfile.TemporaryDirectory(prefix="gkn-") as own:
            made = Path(own) / source.with_suffix(".so").name
            _compile(_compiler(), source, made)
            return ctypes.CDLL(str(_kept(made, folder, name) or made))
    except OSError as error:
        raise NotCompiled(f"{source.name}: {error}") from error


def _folder() -> Path | None:
    """Return the folder for compiled files, which nobody else can write to; None if there is none."""
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gkn" / "compiled"
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        about = folder.stat()
    except (OSError, RuntimeError):  # it is read only, or the user has no home
        return None
    return folder if about.st_uid == os.getuid() and not about.st_mode & 0o022 else None


def _kept(made: Path, folder: Path | None, name: str) -> Path | None:
    """Keep a compiled file for other processes; return where. It is named by its contents, so writers cannot disagree."""
    if folder is None:
        return None
    with suppress(OSError):  # the disk is full, or read only: this process has the file all the same
        path = folder / f"{name}{sha256(made)}.so"
        write(path, made.read_bytes())
        return path
    return None


def _key(source: Path) -> str:
    """Return a name for all that the compiled file depends on: the source, the flags and the processor.

    The compiler is not part of it, unless one was named: machines that share a folder may not all have one.
    """
    native = [flag for flags in NATIVE for flag in flags]
    about = [os.environ.get("CXX", ""), *FLAGS, *native, platform.machine(), platform.system(), _processor()]
    return hashlib.sha256(source.read_bytes() + "\n".join(about).encode()).hexdigest()[:20]


def _processor() -> str:
    """Return what the processor can do, as far as it says: folders may be shared by machines that differ."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return "\n".join(sorted({line for line in lines if line.startswith(("flags", "Features", "model name"))}))


def _compiler() -> list[str]:
    """Return the command of the compiler: what CXX says, or the first that is installed."""
    try:
        given = shlex.split(os.environ.get("CXX", ""))
    except ValueError as error:
        raise NotCompiled(f"CXX={os.environ['CXX']}: {error}") from error
    command = given or [next((path for path in map(shutil.which, COMPILERS) if path), "")]
    if not command[0] or shutil.which(command[0]) is None:
        raise NotCompiled(f"no C++ compiler found ({', '.join(given[:1] or COMPILERS)})")
    return command


def _compile(command: list[str], source: Path, made: Path) -> None:
    said = []
    for native in NATIVE:
        status, text = _run([*command, *FLAGS, *native, "-o", str(made), str(source)])
        if status == 0:
            return
        lines = text.strip().splitlines() or [f"exit status {status}"]
        said.append(f"{command[0]}: {next((line for line in lines if 'error:' in line), lines[0])}")
    raise NotCompiled(said[0])


def _run(command: list[str]) -> tuple[int, str]:
    """Return the exit status of a command and what it wrote. One that hangs is stopped, with all that it started."""
    channels = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    env = {**os.environ, "LC_ALL": "C"}
    with subprocess.Popen(command, env=env, text=True, errors="replace", start_new_session=True, **channels) as running:  # type: ignore[call-overload]
        try:
            text, _ = running.communicate(timeout=SECONDS)
        except BaseException as error:
            with suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)
            if isinstance(error, subprocess.TimeoutExpired):
                raise NotCompiled(f"{command[0]}: not done after {SECONDS} s") from error
            raise
    return running.returncode, text
