"""`gkn beyond`: whatever is missing of its tables, and the pages made of all there is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gkn.beyond import report
from gkn.beyond.tables import NAMES, SCALES, tables
from gkn.runs.document import check_own
from gkn.runs.work import Place, Progress, RunsFailed, do_all, elapsed


def chosen(names: Sequence[str]) -> tuple[str, ...]:
    """Names of tables; `all` stands for all."""
    found: dict[str, None] = {}
    for name in names or ["all"]:
        if name != "all" and name not in NAMES:
            raise ValueError(f"nothing called {name!r} past the paper; there are all, {', '.join(NAMES)}")
        found |= dict.fromkeys(NAMES if name == "all" else (name,))
    return tuple(found)


def go(names: Sequence[str], place: Place, *, scale: str = "smoke", seeds: int = 1, progress: Progress | None = None) -> Path:
    """Do what is missing and write the pages; the path of index.html. What cannot be done is said in the end."""
    size, wanted = SCALES[scale], chosen(names)
    check_own(place.results, report.TITLE)
    with elapsed(place, scale, ["beyond"]):
        by_seed = [tables(size, seed) for seed in range(seeds)]
        runs = [run for each in by_seed for name in wanted for row in each[name].rows for run in row.runs.values()]
        failed = do_all(runs, place, progress)
    page = report.write_pages(place, size)
    if failed:
        raise RunsFailed(failed)
    return page


def only_pages(place: Place, scale: str) -> Path:
    """The pages of what is there; the path of index.html."""
    check_own(place.results, report.TITLE)
    return report.write_pages(place, SCALES[scale])
