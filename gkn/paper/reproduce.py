"""`gkn reproduce`: whatever is missing of the tables and figures asked for, and the pages made of all there is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gkn.paper import figures, report
from gkn.paper.scale import SCALES, Cell, Scale, cells_of
from gkn.paper.tables import CAUSES, TABLES
from gkn.paper.work import Place, Progress, do_all

RECIPES = ("paper", "ours")
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


def cells(names: Sequence[str], scale: Scale, recipes: Sequence[str], seeds: int) -> list[Cell]:
    """Those of the tables among the names, and of the tables their figures are drawn from."""
    wanted = {*names, *(table for name in names if name in figures.FIGURES for table in figures.FIGURES[name].tables)}
    found = []
    for table in (*TABLES, CAUSES):
        for recipe in recipes:
            if table.name in wanted and (table is not CAUSES or recipe == "paper"):
                found += [cell for seed in range(seeds) for cell in cells_of(table, recipe, scale, seed)]
    return found


def reproduce(
    names: Sequence[str],
    place: Place,
    *,
    scale: str = "small",
    recipes: Sequence[str] = RECIPES,
    seeds: int = 1,
    progress: Progress | None = None,
) -> Path:
    """Do what is missing, draw, and write the pages; the path of index.html."""
    size, wanted = SCALES[scale], chosen(names)
    do_all([cell.run for cell in cells(wanted, size, recipes, seeds)], place, progress)
    for name in wanted:
        if name in figures.FIGURES:
            figures.make(name, size, place)
            if progress is not None:
                progress(1, 1, name)
    return report.write_pages(place, size)
