"""`gkn reproduce`: fill what is missing of tables and figures, and write the pages."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gkn.study.document import check_own
from gkn.study.paper import figures
from gkn.study.paper import pages as report
from gkn.study.paper.scale import SCALES, Entry, Scale, entries_of
from gkn.study.paper.tables import CAUSES, TABLES
from gkn.study.work import FAILURES, CellsFailed, Place, Progress, elapsed, fill

RECIPES = tuple(report.RECIPES)
NAMES = (*(table.name for table in TABLES), CAUSES.name, *figures.FIGURES)


def chosen(names: Sequence[str]) -> tuple[str, ...]:
    """Return names of tables and figures; `all`, `tables` and `figures` stand for many."""
    many = {"all": NAMES, "tables": NAMES[: len(TABLES) + 1], "figures": tuple(figures.FIGURES)}
    found: dict[str, None] = {}
    for name in names or ["all"]:
        if name not in many and name not in NAMES:
            raise ValueError(f"nothing called {name!r} in the paper; there are all, tables, figures, {', '.join(NAMES)}")
        found |= dict.fromkeys(many.get(name, (name,)))
    return tuple(found)


def entries(names: Sequence[str], scale: Scale, recipes: Sequence[str], seed: int) -> list[Entry]:
    """Return the entries of the named tables, and of the tables that the named figures are drawn from."""
    wanted = {*names, *(table for name in names if name in figures.FIGURES for table in figures.FIGURES[name].tables)}
    found = []
    for table in (*TABLES, CAUSES):
        for recipe in recipes:
            if table.name in wanted and (table is not CAUSES or recipe == "paper"):
                found += entries_of(table, recipe, scale, seed)
    return found


def reproduce(
    names: Sequence[str],
    place: Place,
    *,
    scale: str = "small",
    recipes: Sequence[str] = RECIPES,
    seeds: int = 1,
    under: float | None = None,
    progress: Progress | None = None,
) -> Path:
    """Fill what is missing, draw, write the pages and return the path of index.html; raise `CellsFailed` at the end if need be.

    under   further seeds only of cells whose first training took fewer seconds; None: of all
    """
    size, wanted = SCALES[scale], chosen(names)
    check_own(place.results, report.TITLE)
    drawn = [name for name in wanted if name in figures.FIGURES]
    trainings = [
        training for name in drawn if _missing(name, size, place) for training in figures.FIGURES[name].trainings(size)
    ]
    with elapsed(place, scale, recipes):
        first, *further = ([each.cell for each in entries(wanted, size, recipes, seed)] for seed in range(seeds))
        failed = fill(first, place, progress, trainings)
        pairs = [pair for some in further for pair in zip(some, first, strict=True)]
        more = [cell for cell, like in pairs if _is_quick(place.result(like), under)]
        failed += fill(more, place, progress) if more else []
        for done, name in enumerate(drawn, start=1):
            try:
                figures.make(name, size, place)
            except FAILURES as error:
                failed.append(f"{name}: {error}")
            if progress is not None:
                progress(done, len(drawn), name)
    page = report.write_pages(place, size)
    if failed:
        raise CellsFailed(failed)
    return page


def _is_quick(known: dict[str, Any] | None, under: float | None) -> bool:
    return under is None or (known is not None and "seconds" in known and known["seconds"]["fit"] < under)


def only_pages(place: Place, scale: str) -> Path:
    """Write the pages of what is there and return the path of index.html."""
    if not (place.results / "cells").is_dir():
        raise ValueError(f"{place.results} holds no results to make pages of")
    check_own(place.results, report.TITLE)
    return report.write_pages(place, SCALES[scale])


def _missing(name: str, scale: Scale, place: Place) -> bool:
    known = figures.numbers_of(place.results, name)
    return known is None or known["key"] != figures.key_of(name, scale, place)
