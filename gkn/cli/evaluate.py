"""gkn eval: errors of an operator on a dataset."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from gkn.cli.options import verb
from gkn.cli.shell import Best, DatasetPath, Device, L, M, R, RunPath, console, plain, progress_bar, way_named
from gkn.data.dataset import Dataset, described
from gkn.operator.evaluate import relative_l2
from gkn.operator.saved import load
from gkn.system.checks import device_named
from gkn.system.files import canonical, make_folder, write


@dataclass(frozen=True)
class EvalOptions:
    """Options of `gkn eval`."""

    run: RunPath
    data: DatasetPath
    how: Annotated[str, typer.Option(help="exact, support, partition, or sampled: on drawn nodes only.")] = "exact"
    m: M = None
    l: L = 1
    r: R = None
    every: Annotated[list[int] | None, typer.Option(min=1, help="Every k-th node of a grid; may be repeated.")] = None
    last: Annotated[int | None, typer.Option(min=1, help="Use only this many samples, the last ones. By default all.")] = None
    first: Annotated[int | None, typer.Option(min=1, help="Of those, use only the first ones. By default all.")] = None
    seed: Annotated[int, typer.Option(min=0, help="Seed of the draws.")] = 0
    best: Best = False
    out: Annotated[Path | None, typer.Option(help="The JSON file. By default eval.json in the run's folder.")] = None
    device: Device = "auto"


@verb(EvalOptions)
def evaluate(options: EvalOptions) -> None:
    """Evaluate an operator: relative l2 errors, at any resolution."""
    chosen = way_named(options.how, options.m, options.l)
    operator = load(options.run, best=options.best, device=device_named(options.device))
    whole = Dataset.open(options.data)
    if options.last is not None:
        whole = whole.take(range(max(0, len(whole) - options.last), len(whole)))
    if options.first is not None:
        whole = whole.take(min(options.first, len(whole)))
    where_to = options.out or options.run / "eval.json"
    make_folder(where_to.parent)
    table = Table("points", "field", "mean", "spread", "worst", "of sample", box=None, pad_edge=False)
    rows = []
    for k in options.every or [1]:
        part = whole.every(k)
        with progress_bar(f"every {k}" if k > 1 else "eval") as progress:
            found = relative_l2(operator, part, chosen, r=options.r, seed=options.seed, progress=progress)
        error, sample = found.worst
        where, number = _points(part), str(part.number(sample))
        names = ", ".join(found.by_field)
        table.add_row(where, plain(names), f"{found.mean:.4f}", f"{found.spread:.4f}", f"{error:.4f}", number)
        for name, each in found.by_field.items() if len(found.by_field) > 1 else ():
            worst = int(each.argmax())
            numbers = [f"{float(x):.4f}" for x in (each.mean(), each.std(correction=0), each[worst])]
            table.add_row("", plain(name), *numbers, str(part.number(worst)))
        rows.append({"points": where, "every": k, "how": repr(chosen), "r": options.r, **found.json()})
    console.print(table)
    hash_of = whole.manifest.hash if whole.manifest else None
    entries = {"run": str(options.run), "data": str(options.data), "hash": hash_of, "seed": options.seed, "errors": rows}
    write(where_to, canonical(entries))
    console.print(f"{plain(where_to)}", soft_wrap=True)


def _points(dataset: Dataset) -> str:
    return described(dataset.domain) if dataset.one_domain else f"{len(dataset[0].domain)} points and others"
