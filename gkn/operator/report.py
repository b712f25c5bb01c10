"""report.html: errors of a trained operator, learning curves, and its best, median and worst answers as pictures."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from gkn.data.dataset import Dataset
from gkn.geometry.domain import Domain
from gkn.operator.evaluate import Errors
from gkn.operator.operator import Operator
from gkn.operator.rollout import Law, roll_out
from gkn.operator.runs import METRICS
from gkn.operator.ways import Exact, How, Test
from gkn.system.files import read_regular
from gkn.system.machine import machine, versions
from gkn.system.page import Page


def write_report(
    folder: Path,
    title: str,
    operator: Operator,
    dataset: Dataset,
    errors: Errors,
    trivial: Mapping[str, Errors],
    warnings: Sequence[str] = (),
    what: str = "test",
    how: Test | None = None,
    run: Path | None = None,
) -> Path:
    """Write report.html into a folder and return its path; for samples other than the test samples, report-WHAT.html.

    dataset    the samples that were evaluated, as they were given
    errors     of the operator on them
    trivial    of trivial answers on them, by name
    warnings   sentences that are shown first
    what       a word for the samples: test, unseen, validation, train, all or given
    how        the way in which they were evaluated, in which pictures are computed too; None: the usual one
    run        the folder of the run with its learning curves, if the report is written elsewhere
    """
    from gkn.data.plot import save_figure, show_losses

    page = Page(title)
    for text in warnings:
        page.text(f"Warning: {text}.")
    page.text(f"{operator!r}", small=True)
    page.heading(f"Relative l2 error on {len(dataset)} {what} {'trajectories' if dataset.in_time else 'samples'}")
    page.table(*error_table(errors, trivial, dataset))
    page.text(
        "|answer - truth| / |truth|, with norms that are integrals over the domain; a vector counts as one field. Below each "
        "field: what trivial answers have.",
        small=True,
    )
    if errors.over_time:
        save_figure(draw_errors(errors), folder / "over_time.png")
        page.heading("Error over time")
        page.picture(folder / "over_time.png", "mean relative error of rollouts over time, beside trivial forecasts")
    metrics = (run or folder) / METRICS
    if metrics.is_file() and metrics.stat().st_size:
        page.heading("Learning curves")
        entries = [json.loads(line) for line in read_regular(metrics).decode().splitlines()]
        show_losses(entries, folder / "learning.png")
        page.picture(folder / "learning.png", "training loss and validation error over epochs")
    order = errors.each.argsort()
    chosen = {"worst": order[-1], "median": order[len(order) // 2], "best": order[0]}
    for which, place in chosen.items():
        i = int(place)
        page.heading(f"The {which} answer: sample {dataset.label(i)}, error {float(errors.each[i]):.4f}")
        picture = folder / f"{which}.png"
        drawn = draw_rollout(operator, dataset, i) if dataset.in_time else draw_sample(operator, dataset, i, how)
        save_figure(drawn, picture)
        page.picture(picture, f"inputs, truth, answer and difference of sample {dataset.label(i)}")
        way = _way(operator, dataset.domain_of(i), how)
        if way != Exact():
            page.text(f"The picture is computed with {way}.", small=True)
    page.heading("Settings and machine")
    recipe = operator.about.get("recipe")
    page.code(f"{operator.model.config()}\n{operator.rule}\n{recipe}\n{machine()}\n{versions()}")
    path = folder / ("report.html" if what == "test" else f"report-{what}.html")
    page.write(path)
    return path


def error_table(
    errors: Errors, trivial: Mapping[str, Errors], dataset: Dataset
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return the header and the rows of a table: each field, and below it the trivial answers."""
    rows = []
    for what, each in errors.rows(trivial):
        worst = int(torch.where(each.isnan(), -1.0, each).argmax())
        numbers = (f"{float(x):.4f}" for x in (each.nanmean(), each.nanquantile(0.5), each[worst]))
        rows.append((what, *numbers, dataset.label(worst)))
    return ("field", "mean", "median", "worst", "of sample"), rows


def _way(operator: Operator, domain: Domain, how: Test | None) -> How:
    """Return the way to predict on all points of a sample: the given one, or the usual one."""
    return how if isinstance(how, How) and how != Exact() else operator.usual_way(domain)


def draw_errors(errors: Errors) -> Any:
    """Draw the mean errors of rollouts over time, field by field, beside those of trivial forecasts."""
    from gkn.data.plot_states import draw_over_time

    curves = {name: (errors.times, each.mean(0).tolist()) for name, each in errors.over_time.items()}
    for what, other in errors.trivial.items():
        for name, each in other.over_time.items():
            curves[f"{name}: {what.partition(':')[0]}"] = (other.times, each.mean(0).tolist())
    return draw_over_time(curves)


def draw_rollout(operator: Operator, dataset: Dataset, i: int) -> Any:
    """Draw one trajectory: truth, answer and difference of each field at a few times; vectors by their length."""
    from gkn.data.plot_states import draw_states

    law = Law.of(operator)
    trajectory, history = dataset.using(law.static, law.states).trajectory(i), law.stepping.history
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # said when it was evaluated
        found = roll_out(operator, trajectory).stack()
    if not len(found):  # not finite from the first step on: the initial state is drawn
        found, history = trajectory.u[history - 1 : history].double(), history - 1
    times, truth = trajectory.times[history:].tolist()[: len(found)], trajectory.u[history:][: len(found)].double()
    fields = {}
    for name, (start, stop) in dataset.output_fields.items():
        both = [x[..., start:stop] for x in (truth, found)]
        many = stop - start > 1
        fields[f"|{name}|" if many else name] = [x.norm(dim=-1) if many else x[..., 0] for x in both]
    return draw_states(trajectory.domain, times, fields)


def draw_sample(operator: Operator, dataset: Dataset, i: int, how: Test | None = None) -> Any:
    """Draw one sample: a row per output field with input, truth, answer and difference; vectors by their length."""
    from gkn.data.plot import draw_answers

    sample, rows = dataset[i], []
    found = operator(operator.ready(dataset.take([i]))[0], how=_way(operator, sample.domain, how), check=False).cpu().double()
    shown = [name for name in dataset.given if name not in dataset.parameters]
    for name, (start, stop) in dataset.output_fields.items():
        truth, answer = (sample.u[:, start:stop].double(), found[:, start:stop])
        given = dataset.value(shown[0], i).double() if shown else torch.zeros(len(truth), dtype=torch.float64)
        size = (answer - truth).norm(dim=1) if stop - start > 1 else (answer - truth)[:, 0]
        first, second = (x.norm(dim=1) if stop - start > 1 else x[:, 0] for x in (truth, answer))
        rows.append((f"|{name}|" if stop - start > 1 else name, sample.domain, given, first, second, size))
    numbers = ", ".join(f"{name} = {dataset.parameter(name, i):.4g}" for name in dataset.parameters)
    return draw_answers(rows, numbers, shown[0] if shown else "no input field")
