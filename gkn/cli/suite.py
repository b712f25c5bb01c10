"""gkn suite: many problems, many models, one table."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from gkn.cli.options import verb
from gkn.cli.places import Pages, Seeds, Work, place_of, printed, show_pages
from gkn.cli.shell import Config, Device
from gkn.study.document import check_own
from gkn.study.suite.pages import TITLE, write_pages
from gkn.study.suite.run import fill, rows_of, ways_of
from gkn.study.suite.tasks import SCALES
from gkn.study.work import CellsFailed, elapsed

TABLES = ("problems", "ways")


@dataclass(frozen=True)
class SuiteOptions:
    """Options of `gkn suite`."""

    tables: Annotated[list[str] | None, typer.Argument(help=f"{' or '.join(TABLES)}; by default both.")] = None
    scale: Annotated[
        str,
        typer.Option(help="smoke (meaningless numbers), small (an hour on one core), medium or full (1 or 10 hours on a GPU)."),
    ] = "smoke"
    only: Annotated[list[str] | None, typer.Option(help="Only problems whose name contains this; may be repeated.")] = None
    model: Annotated[list[str] | None, typer.Option(help="Only this model; may be repeated.")] = None
    seeds: Seeds = 1
    out: Annotated[Path | None, typer.Option(help="Folder for results and pages. By default runs/suite-SCALE.")] = None
    work: Work = None
    jobs: Annotated[int, typer.Option(min=1, help="Trainings at a time.")] = 1
    device: Device = "auto"
    pages: Pages = False
    config: Config = None


@verb(SuiteOptions)
def suite(options: SuiteOptions) -> None:
    """Train all models on all problems for the same seconds, and write a page. The same command resumes."""
    if options.scale not in SCALES:
        raise typer.BadParameter(f"{options.scale!r}: use {', '.join(SCALES)}", param_hint="--scale")
    wrong = [name for name in options.tables or () if name not in TABLES]
    if wrong:
        raise typer.BadParameter(f"{wrong[0]!r}: use {' or '.join(TABLES)}", param_hint="TABLES")
    scale = SCALES[options.scale]
    place = place_of(options.out or Path("runs") / f"suite-{scale.name}", options.work, options.device, options.jobs)
    check_own(place.results, TITLE)
    if options.pages:
        show_pages(write_pages(place, scale))
        return
    cells = []
    for seed in range(options.seeds):
        rows = rows_of(scale, seed) if "problems" in (options.tables or TABLES) else {}
        cells += [cell for models in rows.values() for cell in models.values()]
        found = ways_of(scale, seed) if "ways" in (options.tables or TABLES) else {}
        cells += [cell for tasks in found.values() for cell in tasks.values()]
    cells = [cell for cell in cells if not options.only or any(part in cell.task.name for part in options.only)]
    cells = [cell for cell in cells if not options.model or cell.model in options.model]
    if not cells:
        names = ", ".join(task.name for task in scale.tasks)
        raise typer.BadParameter(f"no such problem or model; there are {names}; {', '.join(scale.sizes)}", param_hint="--only")
    with elapsed(place, scale.name, ["suite"]):
        failed = fill(cells, place, printed())
    show_pages(write_pages(place, scale))
    if failed:
        raise CellsFailed(failed)
