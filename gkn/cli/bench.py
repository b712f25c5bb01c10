"""gkn bench: how fast this machine is."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gkn.cli.shell import Device, console
from gkn.study.bench import markdown, measure
from gkn.system.checks import device_named
from gkn.system.files import canonical, write


def bench(
    device: Device = "auto",
    out: Annotated[Path | None, typer.Option(help="Also write all figures to this .json file.")] = None,
) -> None:
    """Measure this machine in about two minutes, and print a table that can be pasted into an issue.

    Answers and training steps of NearFar, Multigrid, GKN, a transformer and FNO, the search for neighbours, and the solver.
    """
    if out is not None and (out.suffix != ".json" or not out.parent.is_dir()):
        raise typer.BadParameter(f"{out}: needed a .json file in a folder that exists", param_hint="--out")
    with console.status("") as status:
        found = measure(str(device_named(device)), lambda what: status.update(f"measuring: {what}"))
    typer.echo(markdown(found))
    if out is not None:
        write(out, canonical(found))
