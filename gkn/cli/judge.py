"""Errors of an operator beside those of trivial answers: printed, and as a report. Used by `train` and `eval`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.table import Table

from gkn.cli.console import console, plain, warn
from gkn.cli.shell import progress_bar
from gkn.data.dataset import Dataset
from gkn.operator.evaluate import Errors, judgeable, relative_l2
from gkn.operator.operator import Operator
from gkn.operator.over_time import rollout_errors
from gkn.operator.report import error_table, write_report
from gkn.operator.trivial import compared, trivial_errors
from gkn.operator.ways import Exact


def judge(
    operator: Operator, test: Dataset, train: Dataset | None, folder: Path, what: str, run: Path | None = None, **way: Any
) -> tuple[Errors, dict[str, Errors]]:
    """Evaluate an operator, print its errors per field beside the trivial ones, and write report.html into a folder.

    train   the samples it learned from, if they are known
    what    a word for the samples that are evaluated, e.g. test
    run     the folder of the run, if the report is written elsewhere
    way     further options of `relative_l2`
    """
    test, left_out = judgeable(test)
    for text in left_out:
        warn(text)
    if not len(test):
        raise ValueError("no sample is left to be judged")
    known = train is not None and what not in ("train", "all")  # learned samples are their own nearest ones
    with progress_bar("eval") as progress:
        if test.in_time:
            _only_steps(way)
            rolled = rollout_errors(operator, test, step=way.get("step"), train=train if known else None, progress=progress)
            found, trivial = rolled, dict(rolled.trivial)
        else:
            way = {name: value for name, value in way.items() if name != "step"}
            found = relative_l2(operator, test, **way, progress=progress)
            trivial = trivial_errors(operator, train, test) if known and train is not None else {}
    header, rows = error_table(found, trivial, test)
    table = Table(*header, box=None, pad_edge=False)
    for row in rows:
        table.add_row(*(plain(cell) for cell in row))
    console.print(f"relative l2 error on {len(test)} {what} {'trajectories, rolled out' if test.in_time else 'samples'}")
    console.print(table)
    warnings = [*found.cautions(), *compared(found, trivial)]
    for text in warnings:
        warn(text)
    title = f"gkn: {(run or folder).name}"
    report = write_report(folder, title, operator, test, found, trivial, warnings, what, way.get("how"), run)
    console.print(f"the report: {plain(report)}", soft_wrap=True)
    return found, trivial


def _only_steps(way: dict[str, Any]) -> None:
    """Raise an error for ways of evaluation that rollouts do not have."""
    if way.get("r") is not None or way.get("how", Exact()) != Exact():
        raise ValueError("trajectories are rolled out on all points with the radius of training; leave out --how, --m and --r")
