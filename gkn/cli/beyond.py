"""gkn beyond: the tables that are past the paper."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gkn.cli.learn import Device
from gkn.cli.runs import Pages, Seeds, Work, place_of, said, show_pages
from gkn.cli.shell import Config
from gkn.study.beyond.beyond import ALL, export, go, only_pages
from gkn.study.beyond.tables import SCALES


def beyond(
    names: Annotated[list[str] | None, typer.Argument(help=f"all, or some of {', '.join(ALL)}.")] = None,
    scale: Annotated[str, typer.Option(help="smoke (seconds, says nothing) or full (a GPU).")] = "smoke",
    only: Annotated[str, typer.Option(help="Of the tables' rows, those whose label contains this.")] = "",
    seeds: Seeds = 1,
    out: Annotated[Path | None, typer.Option(help="Results and pages. By default runs/beyond-SCALE.")] = None,
    work: Work = None,
    jobs: Annotated[int, typer.Option(min=1, help="Trainings at a time.")] = 1,
    device: Device = "auto",
    pages: Pages = False,
    export_: Annotated[
        Path | None, typer.Option("--export", help="Save the NearFar of the first seed here, and run nothing.")
    ] = None,
    config: Config = None,
) -> None:
    """NearFar and Multigrid on the paper's benchmark. What is finished is kept: interrupted, the same command goes on."""
    if scale not in SCALES:
        raise typer.BadParameter(f"{scale!r}: use {', '.join(SCALES)}", param_hint="--scale")
    place = place_of(out or Path("runs") / f"beyond-{scale}", work, device, jobs)
    if export_ is not None:
        export(place, scale, export_)
        return
    if pages:
        show_pages(only_pages(place, scale))
        return
    show_pages(go(names or ["all"], place, scale=scale, seeds=seeds, only=only, progress=said()))
