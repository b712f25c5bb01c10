"""What verbs share that fill tables: where results go, and what is said meanwhile."""

from __future__ import annotations

import shlex
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from gkn.cli.learn import device_named
from gkn.cli.shell import console, plain
from gkn.study.work import MOST_SEEDS, Place, Progress

Seeds = Annotated[int, typer.Option(min=1, max=MOST_SEEDS, help="So many of each training: mean and spread.")]
Work = Annotated[Path | None, typer.Option(help="Data and trained networks, which are large. By default OUT/work.")]
Pages = Annotated[bool, typer.Option("--pages", help="Run nothing: only make the pages of what is there.")]


def place_of(out: Path, work: Path | None, device: str, jobs: int) -> Place:
    """With folders as they are called from everywhere: workers may be elsewhere."""
    folder = out.resolve()
    command = shlex.join(["gkn", *sys.argv[1:]])
    return Place(folder, (work or folder / "work").resolve(), device_named(device), jobs, command)


def said() -> Progress:
    """One line for each that is done, with the seconds since this was called."""
    start = time.perf_counter()

    def say(done: int, total: int, what: str) -> None:
        console.print(f"{time.perf_counter() - start:7.1f} s  {done}/{total}  {plain(what)}", soft_wrap=True)

    return say


def show_pages(page: Path) -> None:
    console.print(f"the pages: {plain(page)}, {plain(page.with_name('README.md'))}", soft_wrap=True)
