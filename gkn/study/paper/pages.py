"""The pages: index.html and README.md, made from the cells and figures there are."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gkn.study.document import Document, short
from gkn.study.paper.figures import FIGURES, key_of, numbers_of, pictures
from gkn.study.paper.scale import Entry, Scale, entries_of
from gkn.study.paper.tables import CAUSES, CHANGES, TABLES, Table
from gkn.study.paper.trends import TRENDS
from gkn.study.work import ELAPSED, Place, seeds_of
from gkn.system.files import digest, read_regular

CLOSE = 0.15
TITLE = "The tables and figures of the Graph Kernel Network paper, by gkn"
RECIPES = {"paper": "the paper's recipe", "ours": "our recipe"}


@dataclass(frozen=True)
class Result:
    """The results of an entry, for every seed that was run."""

    entry: Entry
    printed: float
    found: tuple[dict[str, Any], ...]

    @property
    def errors(self) -> list[float]:
        return [each["error"]["mean"] for each in self.found if "error" in each]

    @property
    def mean(self) -> float | None:
        """The mean over seeds. None also if a seed diverged: the mean of the others alone would be a choice."""
        return statistics.fmean(self.errors) if self.errors and len(self.errors) == len(self.found) else None

    @property
    def difference(self) -> float | None:
        return None if self.mean is None else self.mean / self.printed - 1

    @property
    def text(self) -> str:
        if not self.found:
            return "not run"
        if self.mean is None:
            lost = len(self.found) - len(self.errors)
            return "diverged" if len(self.found) == 1 else f"{lost} of {len(self.found)} diverged"
        spread = f" ± {statistics.stdev(self.errors):.4f}" if len(self.errors) > 1 else ""
        return f"{self.mean:.4f}{spread}"

    @property
    def beside(self) -> str:
        """Our error, the paper's, and the difference."""
        percent = "" if self.difference is None else f", {100 * self.difference:+.0f} %"
        return f"{self.text} ({self.printed:.4f}{percent})"


def results_of(table: Table, recipe: str, scale: Scale, place: Place) -> list[Result]:
    """Return the results of every entry of a table, for every way to evaluate it and all seeds there are."""
    by_seed = [entries_of(table, recipe, scale, seed) for seed in seeds_of(place)]
    found = []
    for entries in zip(*by_seed, strict=True):
        cells = {entry.cell.hash: entry.cell for entry in entries}  # one, if nothing is drawn
        known = [known for cell in cells.values() if (known := place.result(cell)) is not None]
        printed = table.numbers[entries[0].row][entries[0].column]
        assert printed is not None
        found.append(Result(entries[0], printed, tuple(known)))
    return found


def own_way(results: Sequence[Result]) -> list[Result]:
    """Return one result per position: that of the first way."""
    first: dict[tuple[int, int], Result] = {}
    for each in results:
        first.setdefault((each.entry.row, each.entry.column), each)
    return [*first.values()]


def write_pages(place: Place, scale: Scale) -> Path:
    """Write index.html and README.md into the results folder; return the path of the first."""
    page = Document(TITLE)
    page.text(
        f"Made by `gkn reproduce all --scale {scale.name}`; do not edit. In every cell: our error (the paper's, difference). "
        f"Errors are relative l2 on the test functions, mean over seeds ± deviation from seed to seed if there are several. "
        f"Our recipe has the paper's architecture, with a kernel of 128-256 unless a table varies it."
    )
    if scale.name != "paper":
        page.text(f"Scale {scale.name}: fewer pairs, smaller networks, fewer steps than the paper: no reproductions.")
    found = {(t.name, recipe): results_of(t, recipe, scale, place) for t in TABLES for recipe in RECIPES}
    causes = results_of(CAUSES, "paper", scale, place)
    _summary(page, found, place, scale)
    for table in TABLES:
        page.heading(table.title)
        page.text(table.note)
        for recipe, name in RECIPES.items():
            results = found[table.name, recipe]
            if any(each.found for each in results):
                _table(page, table, results, name)
    _trends(page, found)
    for name, figure in FIGURES.items():
        known = numbers_of(place.results, name)
        if known is None or known["key"] != key_of(name, scale, place):
            continue
        page.heading(figure.title)
        shown = {key: value for key, value in known["numbers"].items() if isinstance(value, float | int | str)}
        if shown:
            page.text(
                "; ".join(
                    f"{key}: {value:.4g}" if isinstance(value, float) else f"{key}: {value}" for key, value in shown.items()
                )
            )
        if "training pairs" in known["numbers"]:
            _over_pairs(page, known["numbers"])
        for picture in pictures(place.results, name):
            page.picture(f"figures/{picture.name}", figure.title)
        page.text(f"On {known['machine']}, {known['device']}, commit {short(known['commit'])}.", small=True)
    _differences(page, causes)
    _far(page, found, causes)
    return page.write(place.results)


def _over_pairs(page: Document, numbers: dict[str, Any]) -> None:
    rows = [[name, *(f"{error:.4f}" for error in errors)] for name, errors in numbers["errors"].items()]
    page.table(["training pairs", *(str(count) for count in numbers["training pairs"])], rows)


def _summary(page: Document, found: dict[tuple[str, str], list[Result]], place: Place, scale: Scale) -> None:
    rows = []
    for recipe, name in RECIPES.items():
        cells = [each for table in TABLES for each in own_way(found[table.name, recipe]) if _is_gkn(each)]
        done = [each for each in cells if each.difference is not None]
        if not done:
            continue
        close = sum(abs(each.difference or 0) <= CLOSE for each in done)
        better = sum(each.difference is not None and each.difference < 0 for each in done)
        known = [one for table in TABLES for each in found[table.name, recipe] if _is_gkn(each) for one in each.found[:1]]
        fits = {one["training"]: _shared(one, "fit") for one in known if "seconds" in one}
        judged = {digest(one["cell"]): _shared(one, "judge") for one in known if "seconds" in one}
        counts = [f"{len(done)} of {len(cells)}", str(close), str(better), str(len(fits))]
        rows.append([name, *counts, f"{sum(fits.values()):.0f}", f"{sum(judged.values()):.0f}"])
    header = ["GKN cells", "run", "within 15 %", "better than the paper", "trainings", "seconds of training", "of judging"]
    page.table(header, rows)
    page.text(
        "Seconds of a device, for the first seed: trainings that shared one each have their share. Below: the time of all "
        "logged calls, with data, set-up, further seeds, and cells that were run again.",
        small=True,
    )
    for line in _elapsed(place, scale):
        page.text(line, small=True)


def _shared(known: dict[str, Any], what: str) -> float:
    seconds: float = known["seconds"][what] / known["jobs"]
    return seconds


def _elapsed(place: Place, scale: Scale) -> Iterator[str]:
    """Yield how long all calls together took, by recipe and machine."""
    total: dict[tuple[str, str], float] = {}
    try:
        lines = read_regular(place.results / ELAPSED).decode().splitlines()
        for line in lines:
            one = json.loads(line)
            if one["scale"] == scale.name:
                key = " and ".join(one["recipes"]), one["machine"]
                total[key] = total.get(key, 0.0) + one["seconds"]
    except (OSError, ValueError, KeyError, TypeError):
        return
    for (recipes, where), seconds in total.items():
        yield f"Elapsed in all, recipe {recipes}, tables, baselines and figures together: {seconds:.0f} s on {where}."


def _is_gkn(result: Result) -> bool:
    return result.entry.cell.training.model == "GKN"


def _table(page: Document, table: Table, results: Sequence[Result], name: str) -> None:
    (row, rows), (column, columns) = table.rows, table.columns
    by_position = {(each.entry.row, each.entry.column): each for each in own_way(results)}
    header = [name, *(_label(column, value) for value in columns)]
    lines = []
    for i, value in enumerate(rows):
        lines.append([_label(row, value), *(_cell(table, by_position.get((i, j)), i, j) for j in range(len(columns)))])
    page.table(header, lines)
    ways = [*dict.fromkeys(each.entry.way for each in results if each.entry.way)]
    if ways:
        _ways(page, table, results, ways, name)
    _costs(page, table, by_position.values(), name)


def _label(word: str, value: Any) -> str:
    """Return a setting as the paper writes it."""
    return value if isinstance(value, str) else f"{word.replace('_test', chr(39))} = {value}"


def _cell(table: Table, result: Result | None, i: int, j: int) -> str:
    if result is None:
        return ""
    text = result.beside
    if table.edges is not None and result.found and result.found[0].get("edges"):
        text += f"; edges {result.found[0]['edges']['test']:.0f} ({table.edges[i][j]})"
    return text


def _ways(page: Document, table: Table, results: Sequence[Result], ways: Sequence[str], name: str) -> None:
    """Add a table of all ways to evaluate on all points of the grid, with the number of functions."""
    page.text(f"All points of the grid, GKN, {name}, for each way (number of functions; empty: too many edges to afford):")
    by_way = {(each.entry.way, each.entry.column): each for each in results}
    lines = []
    for way in ways:
        line = [way]
        for j in range(len(table.columns[1])):
            each = by_way.get((way, j))
            line.append("" if each is None else f"{each.text} ({each.entry.cell.functions})")
        lines.append(line)
    page.table(["", *(f"{table.columns[0]} = {value}" for value in table.columns[1])], lines)


def _costs(page: Document, table: Table, results: Any, name: str) -> None:
    rows = []
    seen = set()
    for each in results:
        for known in each.found[:1]:
            if "seconds" not in known or known["training"] in seen:
                continue
            seen.add(known["training"])
            training = each.entry.cell.training
            shortened = f"{training.recipe.epochs} of {training.asked}" if training.asked else ""
            epochs = shortened or str(training.recipe.epochs)
            row, column = table.rows[1][each.entry.row], table.columns[1][each.entry.column]
            where = f"{_label(table.rows[0], row)}, {_label(table.columns[0], column)}"
            edges = known.get("edges") or {}
            rows.append(
                [
                    where,
                    training.model,
                    str(len(each.found)),
                    epochs,
                    "" if known["steps"] is None else str(known["steps"]),
                    f"{edges['train']:.0f}" if "train" in edges else "",
                    f"{known['seconds']['fit']:.0f}",
                    f"{_shared(known, 'fit'):.0f}",
                    f"{known['seconds']['judge']:.1f}",
                    "" if known["peak_bytes"] is None else f"{known['peak_bytes'] / 2**30:.1f}",
                    str(known["jobs"]),
                    short(known["commit"]),
                ]
            )
    header = [
        "training of",
        "method",
        "seeds",
        "epochs",
        "steps",
        "edges a graph",
        "seconds",
        "its share",
        "to judge",
        "GiB, with judging",
        "at a time",
        "commit",
    ]
    if rows:
        page.more(f"{table.title}, {name}: what each training took", header, rows)


def _trends(page: Document, found: dict[tuple[str, str], list[Result]]) -> None:
    rows = []
    for trend in TRENDS:
        for recipe in RECIPES:
            needed = [each for each in own_way(found[trend.table, recipe]) if trend.row in (None, each.entry.row)]
            errors = {(each.entry.row, each.entry.column): each.mean for each in needed if each.mean is not None}
            if not errors:
                continue
            if len(errors) < len(needed):
                rows.append([trend.table, trend.says, recipe, "not asked", f"{len(needed) - len(errors)} cells are missing"])
                continue
            holds, shown = trend.ask(errors)
            rows.append([trend.table, trend.says, recipe, "holds" if holds else "does not hold", shown])
    if rows:
        page.heading("The paper's statements about its tables, checked on ours")
        page.table(["table", "the paper says", "recipe", "", "numbers"], rows)


def _differences(page: Document, causes: Sequence[Result]) -> None:
    page.heading("What differs, and why")
    for part in (Path(__file__).parent / "differences.md").read_text().split("\n## ")[1:]:
        title, _, text = part.partition("\n")
        page.text(f"{title}. {' '.join(text.split())}")
    if any(each.found for each in causes):
        page.text(f"{CAUSES.title}. {CAUSES.note}.")
        names = CAUSES.rows[1]
        page.table(["change", "error"], [[str(names[each.entry.row]), each.text] for each in causes])


def _far(page: Document, found: dict[tuple[str, str], list[Result]], causes: Sequence[Result]) -> None:
    """Add a table of cells with the paper's recipe that are far from the paper, and what more steps would do to them."""
    far = [
        (table, each)
        for table in TABLES
        for each in own_way(found[table.name, "paper"])
        if _is_gkn(each) and each.difference is not None and abs(each.difference) > CLOSE
    ]
    slope = slope_of(causes)
    if not far or slope is None:
        return
    page.heading(f"Cells with the paper's recipe that differ by more than {100 * CLOSE:.0f} %")
    page.text(
        f"The longer this recipe trains, the better: over 60, 200 and 600 epochs the error of one cell goes as "
        f"epochs^{slope:.3f} (the table before this one). For a training that was shortened, the last columns extrapolate its "
        "error to all epochs by this law. They are no measurement."
    )
    rows, explained = [], 0
    for table, each in far:
        training, where = each.entry.cell.training, (table.rows[1][each.entry.row], table.columns[1][each.entry.column])
        assert each.mean is not None
        name = f"{table.title.partition(':')[0]}, {_label(table.rows[0], where[0])}, {_label(table.columns[0], where[1])}"
        line = [name, each.text, f"{each.printed:.4f}", f"{100 * (each.difference or 0):+.1f} %"]
        if training.asked is not None:
            with_all = each.mean * (training.asked / training.recipe.epochs) ** slope
            off = with_all / each.printed - 1
            explained += abs(off) <= CLOSE
            line += [f"{training.recipe.epochs} of {training.asked}", f"{with_all:.4f}", f"{100 * off:+.1f} %"]
        else:
            line += ["all", "", ""]
        rows.append(line)
    page.table(["cell", "ours", "the paper's", "difference", "epochs", "with all epochs", "difference"], rows)
    page.text(f"{len(far)} cells; extrapolated, {explained} of them are within {100 * CLOSE:.0f} %.")


def slope_of(causes: Sequence[Result]) -> float | None:
    """Return the exponent of the error of one cell over the number of epochs; None if that was not measured."""
    points = []
    for each in causes:
        changed = CHANGES[CAUSES.rows[1][each.entry.row]]
        if each.mean is not None and not {*changed} - {"epochs", "every"}:
            points.append((math.log(each.entry.cell.training.recipe.epochs), math.log(each.mean)))
    if len({x for x, _ in points}) < 2:
        return None
    return statistics.linear_regression(*zip(*points, strict=True)).slope
