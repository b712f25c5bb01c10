"""The pages of results/beyond, made from the results there are."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from gkn.study.beyond import cost, draw, information, solver
from gkn.study.beyond.tables import PUBLISHED, Row, Scale, Table, first_of, tables
from gkn.study.cells import Cell
from gkn.study.document import Document, short
from gkn.study.work import Place, seeds_of

SLOPES: dict[str, dict[str, int]] = {"slope from 1e+04 on": {"start": 10**4}, "slope of the last two": {"last": 2}}
NOT_RUN = "not run"
TITLE = "Past the paper: near field and far field, by gkn"


def write_pages(place: Place, scale: Scale) -> Path:
    """Write index.html and README.md into the results folder; return the path of the first."""
    page = Document(TITLE)
    page.text(
        f"Made by `gkn beyond --scale {scale.name}`; do not edit. Errors are relative l2 on test functions: mean over seeds, "
        "± the deviation from seed to seed if there are several, and in brackets the number of seeds and test functions."
    )
    if scale.name != "full":
        page.text(f"Scale {scale.name}: few functions, tiny networks. These numbers only show that everything runs.")
    by_seed = [tables(scale, seed) for seed in seeds_of(place)]
    for name in by_seed[0]:
        seeds = [each[name] for each in by_seed]
        more = _own_errors(solver.known(place.results, scale)) if name == "resolution" else []
        if more or any(place.result(cell) for table in seeds for row in table.rows for cell in row.cells.values()):
            _table(page, seeds, place, more)
            if name == "resolution":
                _ratios(page, seeds, place, first_of(scale))
                _resolutions(page, seeds, place, first_of(scale), solver.known(place.results, scale))
    _information(page, information.known(place.results, scale))
    costs = cost.known(place.results, scale)
    _time_against_accuracy(page, by_seed, place, costs)
    _costs(page, costs, place)
    return page.write(place.results)


def _information(page: Document, found: dict[str, Any] | None) -> None:
    """Write how much of the solution a coefficient on a coarse grid leaves open."""
    if found is None:
        return
    side = f"{found['known']} x {found['known']}"
    page.heading(f"What a coefficient on {side} leaves open")
    page.text(
        f"The phases on {side} are given, and Gaussian fields on {found['size']} x {found['size']} that have them are drawn: "
        f"{found['draws']} for each of {found['functions']} functions, by Hamiltonian Monte Carlo with walls. Its trajectories "
        "between two draws are four of time 0.4 or one of pi/2. The error of the mean of all their solutions is the least "
        "that any network which sees the coefficient on that grid alone can have on average. In the third row the values of "
        "the Gaussian field at the nodes are given, and not only its signs."
    )
    lines = []
    for name, each in found["left open"].items():
        numbers = (each["error"], each["standard error"], each["quantiles"]["0.1"], each["quantiles"]["0.9"], each["apart"])
        lines.append([name, *(f"{number:.5f}" for number in numbers)])
    header = ["trajectories", "least error", "standard error", "10 % of functions below", "90 % below", "two draws apart"]
    page.table(header, lines)
    page.text(f"{found['machine']}, commit {short(found['commit'])}, {found['command']}")


def _time_against_accuracy(
    page: Document, by_seed: list[dict[str, Table]], place: Place, costs: dict[str, dict[int, dict[str, Any]]]
) -> None:
    sizes = sorted({K for entries in costs.values() for K in entries})
    lines, points = [], []
    for name in ("accuracy", "multigrid"):
        for rows in zip(*(each[name].rows for each in by_seed), strict=True):
            first, some = rows[0], [row.cells["s = 85"] for row in rows]
            known = [each for each in _known([*some], place) if "error" in each]
            if not known:
                continue
            entries, alone = costs.get(first.training.model, {}), min(known, key=_jobs)
            seconds, answers = alone["seconds"]["fit"], [_spent(entries.get(K), "forward") for K in sizes]
            cells = str(alone.get("parameters", "")), f"{seconds:.0f}", str(alone["jobs"]), _cell([*some], place)
            lines.append([first.label, *cells, *answers])
            shared = f" ({alone['jobs']} at a time)" if alone["jobs"] > 1 else ""
            points.append((f"{first.label}{shared}", seconds, statistics.fmean(_errors(known))))
    if lines:
        page.heading("Time against accuracy")
        page.text(
            "Seconds of one training, the number of trainings that shared the GPU then, the error at s = 85, and the time of a "
            "prediction at so many points (Multigrid: with more levels for more points)."
        )
        page.table(["", "parameters", "training, s", "shared by", "error", *(f"{K:.0e} points" for K in sizes)], lines)
        draw.accuracy(points, PUBLISHED, place.results / "figures/accuracy")
        page.picture("figures/accuracy.png", "errors over seconds of training")


def _jobs(cell: dict[str, Any]) -> int:
    return int(cell["jobs"])


def _costs(page: Document, found: dict[str, dict[int, dict[str, Any]]], place: Place) -> None:
    if not found:
        return
    page.heading("Seconds and bytes, over the number of points")
    page.text(
        f"For one function: points drawn uniformly, {' and '.join(map(str, cost.BALLS.values()))} in a ball of "
        f"{' and '.join(cost.BALLS)}, with the neighbours given (finding them has a column of its own); FNO on a grid of as "
        "many points, in float32, the others in bf16. Steps are launched kernel by kernel, with AdamW: up to some 10^5 points "
        "launching takes most of the time, and `gkn train` records steps instead. Medians; what takes longer than "
        f"{cost.LONG / 2:g} s is measured once. Slopes are in logarithms."
    )
    for what, name in (("forward", "prediction"), ("step", "training step")):
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
    """Return lines of Markdown: one table of errors on several kinds of points, beside published ones."""
    by_seed = [tables(scale, seed) for seed in seeds_of(place)]
    columns = ["s = 85", "s = 211", f"{scale.clouds[1]} random points", "unstructured mesh"]
    lines = [f"| relative l2 error | {' | '.join(columns)} |", f"|---{'|---' * len(columns)}|"]
    for name in ("resolution", "accuracy", "few", "multigrid"):
        for rows in zip(*(each[name].rows for each in by_seed), strict=True):
            cells = [_short([row.cells.get(column) for row in rows], place) for column in columns]
            label = f"{rows[0].label}, {by_seed[0][name].title}" if name == "few" else rows[0].label
            label = f"NearFar, trained on {label}" if name == "resolution" else label
            known = name == "accuracy" and label == "NearFar"  # the first row has its numbers
            lines += [f"| {label} | {' | '.join(cells)} |"] if any(cells) and not known else []
    empty = " |" * (len(columns) - 1)
    return [*lines, *(f"| published: {label} | {error:.4f} |{empty}" for label, error in PUBLISHED.items())]


def _short(cells: list[Cell | None], place: Place) -> str:
    errors = _errors(_known(cells, place))
    return f"{statistics.fmean(errors):.4f}" if errors else ""


def _own_errors(found: dict[str, Any] | None) -> list[tuple[str, dict[str, str]]]:
    """Return a row with the solvers' own errors."""
    if found is None:
        return []
    size, count = found["against"], found["functions"]
    errors = {column: f"{error:.4f} ({count})" for column, error in found["errors"].items()}
    return [(f"for comparison: the solver on these points, against {size} x {size}", errors)]


def _table(page: Document, seeds: list[Table], place: Place, more: list[tuple[str, dict[str, str]]]) -> None:
    first = seeds[0]
    page.heading(first.title)
    page.text(f"{first.note}.")
    lines, costs, missing = [], [], []
    for rows in zip(*(table.rows for table in seeds), strict=True):
        cells = [_cell([row.cells.get(column) for row in rows], place) for column in first.columns]
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
        header = ["training of", "network", "parameters", "epochs", "steps", "seconds", "trainings at a time"]
        header += ["GiB, judging included", "machine", "commit"]
        page.more(f"{first.title}: what each training took", header, costs)


def _ratios(page: Document, seeds: list[Table], place: Place, first: str) -> None:
    """Add a table of errors relative to those at s = 85, on the same functions if possible."""
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
        page.text("Errors divided by the error at s = 85 on the same functions; *: on all functions there.")
        page.table(["", *columns], lines)


def _ratio(row: Row, column: str, first: str, place: Place) -> tuple[float, bool] | None:
    """Return the error relative to that at s = 85 of the same row, and True if both are of the same functions."""
    known, whole, some = (
        None if cell is None else place.result(cell) for cell in (row.cells.get(name) for name in (column, "s = 85", first))
    )
    if known is None or whole is None or "error" not in known or "error" not in whole:
        return None
    count = known["cell"]["functions"]
    for base in (whole, some):
        errors = [] if base is None else base.get("error", {}).get("each", [])
        if len(errors) >= count:
            return known["error"]["mean"] / statistics.fmean(errors[:count]), True
    return known["error"]["mean"] / whole["error"]["mean"], count == whole["cell"]["functions"]


def _resolutions(page: Document, seeds: list[Table], place: Place, first: str, solved: dict[str, Any] | None) -> None:
    """Draw the table before."""
    columns, shown = [column for column in seeds[0].columns if column != first], {}
    for rows in zip(*(table.rows for table in seeds), strict=True):
        known = {column: _errors(_known([row.cells.get(column) for row in rows], place)) for column in columns}
        shown[rows[0].label] = {column: statistics.fmean(errors) for column, errors in known.items() if errors}
    if solved is not None:
        shown["for comparison: the solver"] = solved["errors"]
    draw.resolution(columns, {k: v for k, v in shown.items() if v}, place.results / "figures/resolution")
    page.picture("figures/resolution.png", "errors over kinds of points")


def _known(cells: list[Cell | None], place: Place) -> list[dict[str, Any]]:
    """Return the results of those seeds of a cell that were run."""
    return [found for cell in dict.fromkeys(cells) if cell is not None and (found := place.result(cell)) is not None]


def _errors(known: list[dict[str, Any]]) -> list[float]:
    return [each["error"]["mean"] for each in known if "error" in each]


def _cell(cells: list[Cell | None], place: Place) -> str:
    known = _known(cells, place)
    if not known:
        return "" if all(cell is None for cell in cells) else NOT_RUN
    errors = _errors(known)
    if len(errors) < len(known):
        return f"{len(known) - len(errors)} of {len(known)} diverged"
    count = f"({known[0]['cell']['functions']})"
    if len(errors) > 1:
        spread = statistics.stdev(errors)
        count = f"± {spread:.{5 if spread >= 5e-6 else 6}f} ({len(errors)} x {known[0]['cell']['functions']})"
    return f"{statistics.fmean(errors):.5f} {count}"


def _cost(row: Row, place: Place) -> list[list[str]]:
    """Return what the first seed of a row took, if it is known."""
    for cell in row.cells.values():
        known: dict[str, Any] | None = place.result(cell)
        if known is None or "seconds" not in known:
            continue
        peak = known["peak_bytes"]
        size = "" if known.get("parameters") is None else str(known["parameters"])
        time, jobs = f"{known['seconds']['fit']:.0f}", str(known["jobs"])
        memory = "" if peak is None else f"{peak / 2**30:.1f}"
        where = [known["machine"], short(known["commit"])]
        epochs = str(row.training.recipe.epochs)
        return [[row.label, row.training.model, size, epochs, str(known["steps"]), time, jobs, memory, *where]]
    return []
