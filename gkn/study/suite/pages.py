"""The pages of results/suite, made from the results there are."""

from __future__ import annotations

import math
import statistics
from pathlib import Path
from typing import Any

from gkn.data.plot import save_figure
from gkn.data.plot_states import draw_over_time
from gkn.operator.report import draw_rollout, draw_sample
from gkn.study.document import Document, short
from gkn.study.suite.run import Cell, answered, result_of, rows_of, stepping_words, ways_of
from gkn.study.suite.tasks import Scale
from gkn.study.work import MOST_SEEDS, Place

TITLE = "The suite: many problems, one way to train, by gkn"
PICTURES = "figures"


def write_pages(place: Place, scale: Scale) -> Path:
    """Write index.html and README.md into the results folder; return the path of the first."""
    page = Document(TITLE)
    page.text(
        f"Made by `gkn suite --scale {scale.name}`; do not edit. Errors are relative l2 on test samples: mean over seeds, ± "
        "the deviation from seed to seed if there are several. Trajectories are rolled out from their first states, and the "
        "error is over all times that follow. All models have the same samples, inputs, smoothed and extended copies of them, "
        f"loss, recipe and {scale.seconds:g} seconds of training on the same machine; the network with the smallest "
        "validation error is tested. FNO is trained by AdamW, since Muon has no step for complex parameters; Potential too, "
        "as it begins with a least-squares fit. Potential is given the fundamental solution of the Laplace equation and its "
        "gradient, of which the kernels of its rows are made; no other model is. GKN and Multigrid have the radii and nodes "
        "that they suggest."
    )
    if scale.reach != 1:
        page.text(
            f"NearFar has {scale.reach:g} of the radius that it suggests. That and the sizes of its kernels were chosen by the "
            "validation samples of six rows. The settings of the other models are as they were set at first. Other sizes of "
            "NearFar and FNO were tried since and not taken over: docs/log.md."
        )
    if scale.name == "smoke":
        page.text("Scale smoke: few samples, tiny networks. These numbers only show that everything runs.")
    seeds = [rows_of(scale, seed) for seed in range(MOST_SEEDS)]
    _main_table(page, seeds, place, scale)
    _curves(page, seeds, place)
    _ways_table(page, [ways_of(scale, seed) for seed in range(MOST_SEEDS)], place, scale)
    _pictures(page, seeds[0], place)
    _published(page, scale)
    _costs(page, seeds, place)
    return page.write(place.results)


def _known(cells: list[Cell], place: Place) -> list[dict[str, Any]]:
    """Return the results of the seeds that were run."""
    return [found for cell in cells if (found := result_of(cell, place)) is not None]


def errors_of(known: list[dict[str, Any]]) -> list[float]:
    """Return the mean errors of some results; infinity for those that diverged."""
    return [math.inf if "failed" in each or each["error"]["mean"] is None else each["error"]["mean"] for each in known]


def _shown(known: list[dict[str, Any]]) -> str:
    if not known:
        return ""
    errors = errors_of(known)
    if any(map(math.isinf, errors)):
        return "diverged"
    spread = f" ± {statistics.stdev(errors):.4f}" if len(errors) > 1 else ""
    return f"{statistics.fmean(errors):.4f}{spread}"


def _both(known: list[dict[str, Any]]) -> str:
    """Return the errors of rollouts on test trajectories and, in brackets, on validation trajectories."""
    found = [each["rollouts"] for each in known if each.get("rollouts") is not None]
    return f"{_shown(known)} ({statistics.fmean(found):.4f})" if found else _shown(known)


def _main_table(page: Document, seeds: list[dict[str, dict[str, Cell]]], place: Place, scale: Scale) -> None:
    models, lines, first, rows = [*scale.sizes], [], 0, 0
    behind = []
    for task in scale.tasks:
        found = {name: _known([each[task.name][name] for each in seeds], place) for name in seeds[0][task.name]}
        means = {name: statistics.fmean(errors_of(known)) for name, known in found.items() if known}
        if not means:
            continue
        best = min(means, key=means.__getitem__)
        rows += 1
        first += best == "NearFar"
        if best != "NearFar" and "NearFar" in means:
            behind.append(f"{task.name} ({best} {means[best]:.4f}, NearFar {means['NearFar']:.4f})")
        count = max(len(known) for known in found.values())
        cells = [
            (f"**{_shown(found[name])}**" if name == best else _shown(found[name])) if name in found else "" for name in models
        ]
        train, _, test = task.counts
        lines.append([task.name, stepping_words(task.stepping, task.noise), f"{train}, {test}", str(count), *cells])
    if not lines:
        return
    page.heading("Errors at equal seconds")
    page.table(
        ["problem", "learned as", "training, test", "seeds", *models], [[_plain(cell) for cell in line] for line in lines]
    )
    page.text(f"NearFar has the smallest error in {first} of {rows} rows.")
    if behind:
        page.text(f"It is not first in: {'; '.join(behind)}. docs/log.md says what was tried.")


def _plain(cell: str) -> str:
    """Return a cell with the best error marked by a word: pages have no markup in tables."""
    return f"{cell.strip('*')} (best)" if cell.startswith("**") else cell


def _curves(page: Document, seeds: list[dict[str, dict[str, Cell]]], place: Place) -> None:
    """Draw errors over time, a picture for each evolving problem."""
    begun = False
    for name, cells in seeds[0].items():
        curves = {}
        for model, cell in cells.items():
            found = result_of(cell, place)
            if found is not None and "over_time" in found.get("error", {}):
                each = [*found["error"]["over_time"].values()]
                means = [statistics.fmean([x for x in row if x is not None] or [math.nan]) for row in zip(*each, strict=True)]
                curves[model] = (found["error"]["times"], means)
        if not curves:
            continue
        if not begun:
            page.heading("Errors over time")
            begun = True
        path = f"{PICTURES}/time-{_file(name)}.png"
        save_figure(draw_over_time(curves, name), place.results / path)
        page.picture(path, f"errors of rollouts over time: {name}", pdf=False)


def _ways_table(page: Document, seeds: list[dict[str, dict[str, Cell]]], place: Place, scale: Scale) -> None:
    lines = []
    for way in seeds[0]:
        cells = [_both(_known([each[way][name] for each in seeds], place)) for name in scale.ways]
        if any(cells):
            lines.append([way, *cells])
    if lines:
        page.heading("Ways to learn steps")
        page.text(
            "NearFar, with the same samples and seconds for each way. Errors of rollouts on test trajectories and, in "
            "brackets, on validation trajectories. By the latter one step was chosen for the rows above, for all models, with "
            "quotients and nothing unrolled. For steps of one length quotients are the same as differences: what the two "
            "differ by here is chance."
        )
        page.table(["target, pairs", *scale.ways], lines)


def _pictures(page: Document, cells: dict[str, dict[str, Cell]], place: Place) -> None:
    """Draw the first test sample of each problem, as NearFar answers it."""
    drawn = []
    for name, models in cells.items():
        path = place.results / PICTURES / f"answer-{_file(name)}.png"
        found = answered(models["NearFar"], place) if result_of(models["NearFar"], place) is not None else None
        if found is not None:
            operator, test = found
            save_figure(draw_rollout(operator, test, 0) if test.in_time else draw_sample(operator, test, 0), path)
        if path.is_file():
            drawn.append((name, f"{PICTURES}/{path.name}"))
    if drawn:
        page.heading("First test samples, answered by NearFar")
    for name, file in drawn:
        page.picture(file, f"{name}: truth and answer", pdf=False)


def _published(page: Document, scale: Scale) -> None:
    lines = [[task.name, each.model, f"{each.error:.4f}", each.protocol] for task in scale.tasks for each in task.published]
    if lines:
        page.heading("Published errors")
        page.text("For other samples of the same laws; cited as published, not measured here.")
        page.table(["problem", "model", "error", "protocol"], lines)


def _costs(page: Document, seeds: list[dict[str, dict[str, Cell]]], place: Place) -> None:
    rows = []
    for cells in seeds:
        for name, models in cells.items():
            for model, cell in models.items():
                found = result_of(cell, place)
                if found is not None and "seconds" in found:
                    numbers = [str(found["parameters"]), str(found["epochs"]), f"{found['seconds']['fit']:.0f}"]
                    known = found["validation"]
                    where = [str(found["jobs"]), found["machine"], short(found["commit"])]
                    rows.append([name, model, str(cell.seed), *numbers, "" if known is None else f"{known:.4f}", *where])
    if rows:
        header = ["problem", "model", "seed", "parameters", "epochs", "seconds", "validation", "at a time", "machine", "commit"]
        page.more("What each training took", header, rows)


def _file(name: str) -> str:
    return "".join(character if character.isalnum() else "-" for character in name)
