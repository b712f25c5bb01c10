"""gkn beyond: the tables past the paper."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from gkn.cli.options import verb
from gkn.cli.places import Pages, Seeds, Work, place_of, printed, show_pages
from gkn.cli.shell import Config, Device
from gkn.study.beyond.beyond import ALL, export, go, only_pages
from gkn.study.beyond.tables import SCALES


@dataclass(frozen=True)
class BeyondOptions:
    """Options of `gkn beyond`."""

    names: Annotated[list[str] | None, typer.Argument(help=f"all, or some of {', '.join(ALL)}.")] = None
    scale: Annotated[str, typer.Option(help="smoke (seconds, meaningless numbers) or full (a GPU).")] = "smoke"
    only: Annotated[str, typer.Option(help="Fill only rows whose label contains this.")] = ""
    seeds: Seeds = 1
    out: Annotated[Path | None, typer.Option(help="Folder for results and pages. By default runs/beyond-SCALE.")] = None
    work: Work = None
    jobs: Annotated[int, typer.Option(min=1, help="Trainings at a time.")] = 1
    device: Device = "auto"
    pages: Pages = False
    export: Annotated[
        Path | None, typer.Option("--export", help="Save the NearFar of the first seed here, and train nothing.")
    ] = None
    config: Config = None


@verb(BeyondOptions)
def beyond(options: BeyondOptions) -> None:
    """Train NearFar, Multigrid and rivals on the paper's benchmark. After an interruption, the same command resumes."""
    scale = options.scale
    if scale not in SCALES:
        raise typer.BadParameter(f"{scale!r}: use {', '.join(SCALES)}", param_hint="--scale")
    place = place_of(options.out or Path("runs") / f"beyond-{scale}", options.work, options.device, options.jobs)
    if options.export is not None:
        export(place, scale, options.export)
        return
    if options.pages:
        show_pages(only_pages(place, scale))
        return
    names = options.names or ["all"]
    show_pages(go(names, place, scale=scale, seeds=options.seeds, only=options.only, progress=printed()))
