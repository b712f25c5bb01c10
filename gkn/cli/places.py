"""Helpers of the verbs that fill tables: folders of results, and lines of progress."""

from __future__ import annotations

import shlex
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from gkn.cli.shell import console, plain
from gkn.study.work import MOST_SEEDS, Place, Progress
from gkn.system.checks import device_named

Seeds = Annotated[int, typer.Option(min=1, max=MOST_SEEDS, help="Number of seeds of each training: mean and spread.")]
Work = Annotated[Path | None, typer.Option(help="Folder for data and trained networks, which are large. By default OUT/work.")]
Pages = Annotated[bool, typer.Option("--pages", help="Train nothing: only write the pages of existing results.")]


def place_of(out: Path, work: Path | None, device: str, jobs: int) -> Place:
    """Return folders and device as absolute paths, since workers may run in another directory."""
    folder = out.resolve()
    command = shlex.join(["gkn", *sys.argv[1:]])
    return Place(folder, (work or folder / "work").resolve(), device_named(device), jobs, command)


def printed() -> Progress:
    """Return a function that prints one line for each finished training, with the seconds since the start."""
    start = time.perf_counter()

    def say(done: int, total: int, what: str) -> None:
        console.print(f"{time.perf_counter() - start:7.1f} s  {done}/{total}  {plain(what)}", soft_wrap=True)

    return say


def show_pages(page: Path) -> None:
    console.print(f"the pages: {plain(page)}, {plain(page.with_name('README.md'))}", soft_wrap=True)
