"""`gkn reproduce`: whatever is missing of the tables and figures asked for, and the pages made of all there is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gkn.study.document import check_own
from gkn.study.paper import figures
from gkn.study.paper import pages as report
from gkn.study.paper.scale import SCALES, Cell, Scale, cells_of
from gkn.study.paper.tables import CAUSES, TABLES
from gkn.study.work import FAILURES, Place, Progress, RunsFailed, do_all, elapsed

RECIPES = tuple(report.RECIPES)
NAMES = (*(table.name for table in TABLES), CAUSES.name, *figures.FIGURES)


def chosen(names: Sequence[str]) -> tuple[str, ...]:
    """Names of tables and figures; `all`, `tables` and `figures` stand for many."""
    many = {"all": NAMES, "tables": NAMES[: len(TABLES) + 1], "figures": tuple(figures.FIGURES)}
    found: dict[str, None] = {}
    for name in names or ["all"]:
        if name not in many and name not in NAMES:
            raise ValueError(f"nothing called {name!r} in the paper; there are all, tables, figures, {', '.join(NAMES)}")
        found |= dict.fromkeys(many.get(name, (name,)))
    return tuple(found)


def cells(names: Sequence[str], scale: Scale, recipes: Sequence[str], seed: int) -> list[Cell]:
    """Those of the tables among the names, and of the tables their figures are drawn from."""
    wanted = {*names, *(table for name in names if name in figures.FIGURES for table in figures.FIGURES[name].tables)}
    found = []
    for table in (*TABLES, CAUSES):
        for recipe in recipes:
            if table.name in wanted and (table is not CAUSES or recipe == "paper"):
                found += cells_of(table, recipe, scale, seed)
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
    """Do what is missing, draw, and write the pages; the path of index.html. What cannot be done is said in the end.

    under   further seeds only of cells whose first took fewer seconds to train; None: of all
    """
    size, wanted = SCALES[scale], chosen(names)
    check_own(place.results, report.TITLE)
    drawn = [name for name in wanted if name in figures.FIGURES]
    trainings = [
        training for name in drawn if _missing(name, size, place) for training in figures.FIGURES[name].trainings(size)
    ]
    with elapsed(place, scale, recipes):
        first, *further = ([cell.run for cell in cells(wanted, size, recipes, seed)] for seed in range(seeds))
        failed = do_all(first, place, progress, trainings)
        more = [run for runs in further for run, like in zip(runs, first, strict=True) if _is_quick(place.done(like), under)]
        failed += do_all(more, place, progress) if more else []
        for done, name in enumerate(drawn, start=1):
            try:
                figures.make(name, size, place)
            except FAILURES as error:
                failed.append(f"{name}: {error}")
            if progress is not None:
                progress(done, len(drawn), name)
    page = report.write_pages(place, size)
    if failed:
        raise RunsFailed(failed)
    return page


def _is_quick(known: dict[str, Any] | None, under: float | None) -> bool:
    return under is None or (known is not None and "seconds" in known and known["seconds"]["fit"] < under)


def only_pages(place: Place, scale: str) -> Path:
    """The pages of what is there; the path of index.html."""
    if not (place.results / "cells").is_dir():
        raise ValueError(f"{place.results} holds no results to make pages of")
    check_own(place.results, report.TITLE)
    return report.write_pages(place, SCALES[scale])


def _missing(name: str, scale: Scale, place: Place) -> bool:
    known = figures.numbers_of(place.results, name)
    return known is None or known["key"] != figures.key_of(name, scale, place)
