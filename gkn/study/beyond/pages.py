"""The pages of results/beyond, made of the results there are."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from gkn.study.beyond import cost, draw, solver
from gkn.study.beyond.tables import PUBLISHED, Row, Scale, Table, first_of, tables
from gkn.study.cells import Run
from gkn.study.document import Document, short
from gkn.study.work import Place, seeds_of

SLOPES: dict[str, dict[str, int]] = {"slope from 1e+04 on": {"start": 10**4}, "slope of the last two": {"last": 2}}
NOT_RUN = "not run"
TITLE = "Past the paper: near field and far field, by gkn"


def write_pages(place: Place, scale: Scale) -> Path:
    """index.html and README.md in the results folder; the path of the first."""
    page = Document(TITLE)
    page.text(
        f"Made by `gkn beyond --scale {scale.name}`; do not edit. Errors are relative l2 on functions that were not learned "
        "from, mean over seeds ± deviation from seed to seed where there are several; behind it of how many seeds, and on how "
        "many functions."
    )
    if scale.name != "full":
        page.text(f"Scale {scale.name}: few functions, tiny networks. These numbers say nothing but that it runs.")
    by_seed = [tables(scale, seed) for seed in seeds_of(place)]
    for name in by_seed[0]:
        seeds = [each[name] for each in by_seed]
        more = _own_errors(solver.known(place.results, scale)) if name == "resolution" else []
        if more or any(place.done(run) for table in seeds for row in table.rows for run in row.runs.values()):
            _table(page, seeds, place, more)
            if name == "resolution":
                _ratios(page, seeds, place, first_of(scale))
                _resolutions(page, seeds, place, first_of(scale), solver.known(place.results, scale))
    costs = cost.known(place.results, scale)
    _time_against_accuracy(page, by_seed, place, costs)
    _costs(page, costs, place)
    return page.write(place.results)


def _time_against_accuracy(
    page: Document, by_seed: list[dict[str, Table]], place: Place, costs: dict[str, dict[int, dict[str, Any]]]
) -> None:
    sizes = sorted({K for entries in costs.values() for K in entries})
    lines, points = [], []
    for name in ("accuracy", "multigrid"):
        for rows in zip(*(each[name].rows for each in by_seed), strict=True):
            first, runs = rows[0], [row.runs["s = 85"] for row in rows]
            known = [each for each in _known([*runs], place) if "error" in each]
            if not known:
                continue
            entries, alone = costs.get(first.training.method, {}), min(known, key=_jobs)
            seconds, answers = alone["seconds"]["fit"], [_spent(entries.get(K), "forward") for K in sizes]
            cells = str(alone.get("parameters", "")), f"{seconds:.0f}", str(alone["jobs"]), _cell([*runs], place)
            lines.append([first.label, *cells, *answers])
            shared = f" ({alone['jobs']} at a time)" if alone["jobs"] > 1 else ""
            points.append((f"{first.label}{shared}", seconds, statistics.fmean(_errors(known))))
    if lines:
        page.heading("Time against accuracy")
        page.text(
            "Seconds of one training, how many ran beside each other then, the error it comes to at s = 85, and what an answer "
            "at so many points takes (of Multigrid: with more levels where there are more points)."
        )
        page.table(["", "parameters", "training, s", "at a time", "error", *(f"{K:.0e} points" for K in sizes)], lines)
        draw.accuracy(points, PUBLISHED, place.results / "figures/accuracy")
        page.picture("figures/accuracy.png", "errors over seconds of training")


def _jobs(cell: dict[str, Any]) -> int:
    return int(cell["jobs"])


def _costs(page: Document, found: dict[str, dict[int, dict[str, Any]]], place: Place) -> None:
    if not found:
        return
    page.heading("Seconds and bytes, over the number of points")
    page.text(
        f"Of one function: points drawn uniformly, {' and '.join(map(str, cost.BALLS.values()))} in a ball of "
        f"{' and '.join(cost.BALLS)}, neighbours known already (the search has a column of its own); the Fourier operator "
        "on a grid of as many points, in float32, the others in bf16. Steps are launched kernel by kernel, with AdamW: up to "
        "some 10^5 points that is what takes the time, and `gkn train` records them. Medians; what takes longer than "
        f"{cost.LONG / 2:g} s is measured once. Slopes are in logarithms."
    )
    for what, name in (("forward", "answering"), ("step", "a training step")):
        lines = []
        for K in sorted({K for entries in found.values() for K in entries}):
            lines.append([f"{K:.0e}", *(_spent(entries.get(K), what) for entries in found.values())])
        for label, which in SLOPES.items():
            slopes = [cost.slope(entries, what, **which) for entries in found.values()]
            lines.append([label, *("" if slope is None else f"{slope:.2f}" for slope in slopes)])
        page.table([name, *found], lines)
    draw.cost(found, place.results / "figures/cost")
    page.picture("figures/cost.png", "seconds over points")
    rows = []
    for kind, entries in found.items():
        for K, each in entries.items():
            numbers = ["" if each.get(key) is None else f"{each[key]:.3g}" for key in ("parameters", "search", "edges")]
            numbers.append("" if each.get("edges") is None else f"{each['edges'] / K:.0f}")
            rows.append([kind, f"{K:.0e}", *numbers, each["machine"], short(each["commit"])])
    header = ["network", "points", "parameters", "search, s", "edges", "a point", "machine", "commit"]
    page.more("Seconds and bytes: where they were measured", header, rows)


def _spent(entry: dict[str, Any] | None, what: str) -> str:
    if entry is None:
        return ""
    if not entry.get(what):
        return str(entry.get("why", ""))
    memory = f", {entry[what]['bytes'] / 2**30:.2f} GiB" if "bytes" in entry[what] else ""
    return f"{entry[what]['seconds']:.3g} s{memory}"


def summary(place: Place, scale: Scale) -> list[str]:
    """Lines of Markdown: the benchmark beside what is published, and one network on all kinds of points."""
    by_seed = [tables(scale, seed) for seed in seeds_of(place)]
    lines = ["| error, relative l2, s = 85, 1000 training functions | |", "|---|---|"]
    lines += [f"| {label} | {error:.4f} |" for label, error in PUBLISHED.items()]
    for name in ("accuracy", "few", "multigrid"):
        for rows in zip(*(each[name].rows for each in by_seed), strict=True):
            cell = _cell([row.runs["s = 85"] for row in rows], place)
            label = f"{rows[0].label}, {by_seed[0][name].title}" if name == "few" else rows[0].label
            lines += [] if cell == NOT_RUN else [f"| {label} | **{cell}** |"]
    table = [each["resolution"] for each in by_seed]
    columns = [column for column in table[0].columns if column != first_of(scale)]
    lines += ["", f"| learned from | {' | '.join(columns)} |", f"|---{'|---' * len(columns)}|"]
    for rows in zip(*(each.rows for each in table), strict=True):
        cells = [_cell([row.runs.get(column) for row in rows], place) for column in columns]
        if {*cells} - {NOT_RUN, ""}:
            lines.append(f"| {rows[0].label} | {' | '.join(cells)} |")
    return lines


def _own_errors(found: dict[str, Any] | None) -> list[tuple[str, dict[str, str]]]:
    """A row of what solvers themselves are off by, where they were asked."""
    if found is None:
        return []
    size, count = found["against"], found["functions"]
    errors = {column: f"{error:.4f} ({count})" for column, error in found["errors"].items()}
    return [(f"for comparison: solved anew on these points, against {size} x {size}", errors)]


def _table(page: Document, seeds: list[Table], place: Place, more: list[tuple[str, dict[str, str]]]) -> None:
    first = seeds[0]
    page.heading(first.title)
    page.text(f"{first.note}.")
    lines, costs, missing = [], [], []
    for rows in zip(*(table.rows for table in seeds), strict=True):
        cells = [_cell([row.runs.get(column) for row in rows], place) for column in first.columns]
        if {*cells} <= {"", NOT_RUN}:
            missing.append(rows[0].label)
            continue
        lines.append([rows[0].label, *cells])
        costs += _cost(rows[0], place)
    for label, known in more:
        lines.append([label, *(known.get(column, "") for column in first.columns)])
    for label in first.published:
        lines.append([label, f"{PUBLISHED[label]:.4f} (published)", *[""] * (len(first.columns) - 1)])
    page.table(["", *first.columns], lines)
    if missing:
        page.text(f"Not run: {'; '.join(missing)}.")
    if costs:
        header = ["training of", "network", "parameters", "epochs", "steps", "seconds", "at a time"]
        header += ["GiB, judging included", "machine", "commit"]
        page.more(f"{first.title}: what each training took", header, costs)


def _ratios(page: Document, seeds: list[Table], place: Place, first: str) -> None:
    """Errors over those at s = 85, on the same functions where that is known."""
    columns = [column for column in seeds[0].columns if column not in ("s = 85", first)]
    lines = []
    for rows in zip(*(table.rows for table in seeds), strict=True):
        cells = []
        for column in columns:
            found = [_ratio(row, column, first, place) for row in rows]
            same = [ratio for ratio, fair in filter(None, found) if fair]
            others = [ratio for ratio, _ in filter(None, found)]
            shown = f"{statistics.fmean(same):.2f}" if same else f"{statistics.fmean(others):.2f} *" if others else ""
            cells.append(shown)
        if any(cells):
            lines.append([rows[0].label, *cells])
    if lines:
        page.text("As multiples of the error at s = 85 on the same functions; *: of that on all functions there.")
        page.table(["", *columns], lines)


def _ratio(row: Row, column: str, first: str, place: Place) -> tuple[float, bool] | None:
    """Over the error at s = 85 of the same row, and whether that is of the same functions."""
    known, whole, some = (
        None if run is None else place.done(run) for run in (row.runs.get(name) for name in (column, "s = 85", first))
    )
    if known is None or whole is None or "error" not in known or "error" not in whole:
        return None
    count = known["run"]["functions"]
    for base in (whole, some):
        errors = [] if base is None else base.get("error", {}).get("each", [])
        if len(errors) >= count:
            return known["error"]["mean"] / statistics.fmean(errors[:count]), True
    return known["error"]["mean"] / whole["error"]["mean"], count == whole["run"]["functions"]


def _resolutions(page: Document, seeds: list[Table], place: Place, first: str, solved: dict[str, Any] | None) -> None:
    """The table before, as a picture."""
    columns, shown = [column for column in seeds[0].columns if column != first], {}
    for rows in zip(*(table.rows for table in seeds), strict=True):
        known = {column: _errors(_known([row.runs.get(column) for row in rows], place)) for column in columns}
        shown[rows[0].label] = {column: statistics.fmean(errors) for column, errors in known.items() if errors}
    if solved is not None:
        shown["for comparison: solved anew"] = solved["errors"]
    draw.resolution(columns, {k: v for k, v in shown.items() if v}, place.results / "figures/resolution")
    page.picture("figures/resolution.png", "errors over kinds of points")


def _known(runs: list[Run | None], place: Place) -> list[dict[str, Any]]:
    """Of the seeds of a cell, those that were run."""
    return [found for run in dict.fromkeys(runs) if run is not None and (found := place.done(run)) is not None]


def _errors(known: list[dict[str, Any]]) -> list[float]:
    return [each["error"]["mean"] for each in known if "error" in each]


def _cell(runs: list[Run | None], place: Place) -> str:
    known = _known(runs, place)
    if not known:
        return "" if all(run is None for run in runs) else NOT_RUN
    errors = _errors(known)
    if len(errors) < len(known):
        return f"{len(known) - len(errors)} of {len(known)} diverged"
    count = f"({known[0]['run']['functions']})"
    if len(errors) > 1:
        spread = statistics.stdev(errors)
        count = f"± {spread:.{5 if spread >= 5e-6 else 6}f} ({len(errors)} x {known[0]['run']['functions']})"
    return f"{statistics.fmean(errors):.5f} {count}"


def _cost(row: Row, place: Place) -> list[list[str]]:
    """What the first seed of a row took, where it is known."""
    for run in row.runs.values():
        known: dict[str, Any] | None = place.done(run)
        if known is None or "seconds" not in known:
            continue
        recipe, peak = row.training.recipe, known["peak_bytes"]
        size = "" if known.get("parameters") is None else str(known["parameters"])
        time, jobs = f"{known['seconds']['fit']:.0f}", str(known["jobs"])
        memory = "" if peak is None else f"{peak / 2**30:.1f}"
        where = [known["machine"], short(known["commit"])]
        epochs = "" if recipe is None else str(recipe.epochs)
        return [[row.label, row.training.method, size, epochs, str(known["steps"]), time, jobs, memory, *where]]
    return []
