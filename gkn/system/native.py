"""Libraries in C++ that are compiled on the machine that runs them, once, and kept in the user's cache folder.

They have plain C interfaces and are called by ctypes, so that compiling takes two seconds; with torch's headers it takes forty.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import secrets
import shlex
import shutil
import subprocess
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path

COMPILERS = ("c++", "g++", "clang++")
FLAGS = ("-O3", "-std=c++17", "-ffp-contract=fast", "-fPIC", "-shared", "-pthread")
NATIVE = (("-march=native",), ("-mcpu=native",), ())
"""Flags for the processor at hand: the first that the compiler takes."""
SECONDS = 120


class NotCompiled(RuntimeError):
    """There is no compiler here, or it failed. The text says which."""


@cache
def library(source: Path) -> ctypes.CDLL:
    """Return a library made of one C++ file, compiled now or before. Raise NotCompiled if it cannot be had."""
    if os.environ.get("GKN_COMPILE") == "0":
        raise NotCompiled("GKN_COMPILE=0 says not to compile")
    given = shlex.split(os.environ.get("CXX", ""))
    command = given or [next((path for path in map(shutil.which, COMPILERS) if path), "")]
    if not command[0] or shutil.which(command[0]) is None:
        raise NotCompiled(f"no C++ compiler found ({', '.join(given[:1] or COMPILERS)})")
    try:
        path = _folder() / f"{source.stem}-{_key(source, command)}.so"
        with suppress(OSError):  # not there yet, or broken
            return ctypes.CDLL(str(path))
        _compile(command, source, path)
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise NotCompiled(f"{source.name}: {error}") from error


def _folder() -> Path:
    """Return a folder for compiled files that only this user can write to."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gkn"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError:  # no home, or one that is read only: compiled for this process alone
        return Path(tempfile.mkdtemp(prefix="gkn-"))


def _key(source: Path, command: list[str]) -> str:
    """Return a name for all that the compiled file depends on: the source, the compiler and the processor."""
    about = [*command, *FLAGS, platform.machine(), platform.system(), _run([*command, "--version"], 10), _processor()]
    return hashlib.sha256(source.read_bytes() + "\n".join(about).encode()).hexdigest()[:20]


def _processor() -> str:
    """Return what the processor can do, as far as it says: folders may be shared by machines that differ."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return "\n".join(sorted({line for line in lines if line.startswith(("flags", "Features", "model name"))}))


def _compile(command: list[str], source: Path, path: Path) -> None:
    """Compile to a name of our own and rename, since other processes may do the same at this moment."""
    made, said = path.with_name(f"{path.name}.tmp-{os.getpid()}-{secrets.token_hex(4)}"), ""
    try:
        for native in NATIVE:
            try:
                _run([*command, *FLAGS, *native, "-o", str(made), str(source)], SECONDS)
            except NotCompiled as error:
                said = said or str(error)
                continue
            os.replace(made, path)
            return
    finally:
        made.unlink(missing_ok=True)
    raise NotCompiled(said)


def _run(command: list[str], seconds: float) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotCompiled(f"{command[0]}: {error}") from error
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        raise NotCompiled(f"{command[0]}: {next((line for line in said if 'error:' in line), said[0])}")
    return done.stdout
