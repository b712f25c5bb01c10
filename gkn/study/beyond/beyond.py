"""`gkn beyond`: fill what is missing of its tables, and write the pages."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gkn.operator.saved import load
from gkn.study.beyond import cost, information, solver
from gkn.study.beyond import pages as report
from gkn.study.beyond.tables import NAMES, SCALES, tables
from gkn.study.document import check_own
from gkn.study.work import CellsFailed, Place, Progress, elapsed, fill

ALL = (*NAMES, "solver", "information", "cost")


def chosen(names: Sequence[str]) -> tuple[str, ...]:
    """Return names of tables; `all` stands for all."""
    found: dict[str, None] = {}
    for name in names or ["all"]:
        if name != "all" and name not in ALL:
            raise ValueError(f"nothing called {name!r} past the paper; there are all, {', '.join(ALL)}")
        found |= dict.fromkeys(ALL if name == "all" else (name,))
    return tuple(found)


def go(
    names: Sequence[str],
    place: Place,
    *,
    scale: str = "smoke",
    seeds: int = 1,
    only: str = "",
    progress: Progress | None = None,
) -> Path:
    """Fill what is missing, write the pages and return the path of index.html; raise `CellsFailed` at the end if need be.

    only   fill only rows whose label contains this
    """
    size, wanted = SCALES[scale], chosen(names)
    check_own(place.results, report.TITLE)
    with elapsed(place, scale, ["beyond"]):
        some = [each[name] for each in (tables(size, seed) for seed in range(seeds)) for name in wanted if name in each]
        rows = [row for table in some for row in table.rows if only in row.label]
        if only and not rows:
            labels = dict.fromkeys(row.label for table in some for row in table.rows) or ["none"]
            raise ValueError(f"no row whose label contains {only!r}; there are {', '.join(labels)}")
        failed = fill([cell for row in rows for cell in row.cells.values()], place, progress)
        if "solver" in wanted and not only:
            solver.measure(size, place, progress)
        if "information" in wanted and not only:
            information.measure(size, place, progress)
        if "cost" in wanted and not only:
            cost.measure(size, place, progress)
    page = report.write_pages(place, size)
    if failed:
        raise CellsFailed(failed)
    return page


def export(place: Place, scale: str, folder: Path) -> None:
    """Save the NearFar of the first seed as an operator, with its test errors."""
    row = tables(SCALES[scale], 0)["resolution"].rows[0]
    if not place.trained(row.training).is_dir():
        raise ValueError(f"{place.work} holds no network to export; train it with gkn beyond resolution --scale {scale}")
    operator, known = load(place.trained(row.training)), {name: place.result(cell) for name, cell in row.cells.items()}
    tests = {name: each["error"]["mean"] for name, each in known.items() if each is not None and "error" in each}
    judged = next((each for each in known.values() if each is not None), {})
    origin: dict[str, Any] = {key: judged[key] for key in ("machine", "versions", "commit", "command") if key in judged}
    operator.about = {**operator.about, "tests": tests, **origin}
    operator.save(folder)


def only_pages(place: Place, scale: str) -> Path:
    """Write the pages of what is there and return the path of index.html."""
    if not any((place.results / part).exists() for part in ("cells", "cost", solver.FILE, information.FILE)):
        raise ValueError(f"{place.results} holds no results to make pages of")
    check_own(place.results, report.TITLE)
    return report.write_pages(place, SCALES[scale])
