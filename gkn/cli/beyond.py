"""gkn beyond: the tables that are past the paper."""

from __future__ import annotations

import shlex
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from gkn.beyond.beyond import ALL, go, only_pages
from gkn.beyond.tables import SCALES
from gkn.cli.learn import Device, device_named
from gkn.cli.shell import Config, console, plain
from gkn.runs.work import MOST_SEEDS, Place


def beyond(
    names: Annotated[list[str] | None, typer.Argument(help=f"all, or some of {', '.join(ALL)}.")] = None,
    scale: Annotated[str, typer.Option(help="smoke (seconds, says nothing) or full (a GPU).")] = "smoke",
    seeds: Annotated[int, typer.Option(min=1, max=MOST_SEEDS, help="So many of each training: mean and spread.")] = 1,
    out: Annotated[Path | None, typer.Option(help="Results and pages. [default: runs/beyond-SCALE]")] = None,
    work: Annotated[Path | None, typer.Option(help="Data and trained networks, which are large. [default: OUT/work]")] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Trainings at a time.")] = 1,
    device: Device = "auto",
    pages: Annotated[bool, typer.Option("--pages", help="Run nothing: only make the pages of what is there.")] = False,
    config: Config = None,
) -> None:
    """NearFar and Multigrid on the paper's benchmark. What is finished is kept: interrupted, the same command goes on."""
    if scale not in SCALES:
        raise typer.BadParameter(f"{scale!r}: use {', '.join(SCALES)}", param_hint="--scale")
    folder = (out or Path("runs") / f"beyond-{scale}").resolve()
    command = shlex.join(["gkn", *sys.argv[1:]])
    place = Place(folder, (work or folder / "work").resolve(), device_named(device), jobs, command)
    start = time.perf_counter()

    def say(done: int, total: int, what: str) -> None:
        console.print(f"{time.perf_counter() - start:7.1f} s  {done}/{total}  {plain(what)}", soft_wrap=True)

    page = only_pages(place, scale) if pages else go(names or ["all"], place, scale=scale, seeds=seeds, progress=say)
    console.print(f"the pages: {plain(page)}, {plain(page.with_name('README.md'))}", soft_wrap=True)
