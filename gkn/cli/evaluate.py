"""gkn eval: errors of an operator on a dataset."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from gkn.cli.judge import judge
from gkn.cli.options import verb
from gkn.cli.shell import Best, DatasetPath, Device, L, M, R, RunPath, console, load_chosen, plain, warn, way_named
from gkn.cli.train import in_time
from gkn.data.dataset import Dataset, described
from gkn.data.split import Split
from gkn.operator.evaluate import judgeable
from gkn.operator.operator import Operator
from gkn.operator.runs import RUN
from gkn.operator.saved import is_finished
from gkn.operator.unusual import unusual_samples
from gkn.system.checks import device_named
from gkn.system.files import canonical, make_folder, write


@dataclass(frozen=True)
class EvalOptions:
    """Options of `gkn eval`."""

    run: RunPath
    data: DatasetPath
    on: Annotated[
        str | None,
        typer.Option(
            help="test, unseen, validation, train or all. By default the test samples of the run, or else those it has not "
            "seen; of another dataset all."
        ),
    ] = None
    how: Annotated[str, typer.Option(help="exact, spread, support, partition, or sampled: on drawn nodes only.")] = "exact"
    m: M = None
    l: L = 1
    r: R = None
    every: Annotated[list[int] | None, typer.Option(min=1, help="Every k-th node of a grid; may be repeated.")] = None
    samples: Annotated[
        str | None, typer.Option(metavar="START:STOP", help="Of those, use only a range: :8 the first 8, -40: the last 40.")
    ] = None
    frames: Annotated[
        str | None, typer.Option(metavar="FIRST:LAST", help="Of trajectories: these times only; the first are given.")
    ] = None
    step: Annotated[float | None, typer.Option(help="Of trajectories: the longest step. By default that of training.")] = None
    seed: Annotated[int, typer.Option(min=0, help="Seed of the draws.")] = 0
    best: Best = None
    out: Annotated[Path | None, typer.Option(help="The JSON file. By default eval.json in the run's folder.")] = None
    device: Device = "auto"


@verb(EvalOptions)
def evaluate(options: EvalOptions) -> None:
    """Evaluate an operator: relative l2 errors per field, at any resolution, beside those of trivial answers; and a report."""
    chosen = way_named(options.how, options.m, options.l)
    operator = load_chosen(options.run, options.best, device_named(options.device))
    whole = in_time(Dataset.open(options.data), options.frames, operator.about.get("between"))
    part, train, what = _chosen(operator, whole, options.on)
    if options.samples is not None:
        part = part.take(_range(options.samples, len(part)))
    if what == "given":
        for text in unusual_samples(operator, part):
            warn(text)
    where_to = options.out or options.run / "eval.json"
    make_folder(where_to.parent)
    rows = []
    for k in options.every or [1]:
        some, learned = part.every(k), None if train is None else train.every(k)
        console.print(plain(_points(some)), soft_wrap=True)
        way = {"how": chosen, "r": options.r, "seed": options.seed, "step": options.step}
        found, trivial = judge(operator, some, learned, where_to.parent, what, options.run, **way)
        beside = {name: each.json() for name, each in trivial.items()}
        rows.append(
            {"points": _points(some), "every": k, "how": repr(chosen), "r": options.r, **found.json(), "trivial": beside}
        )
    hash_of = whole.manifest.hash if whole.manifest else None
    samples = {"on": what, "samples": [part.number(i) for i in range(len(part))]}
    entries = {
        "run": str(options.run),
        "data": str(options.data),
        "hash": hash_of,
        "step": (operator.about.get("metrics") or {}).get("step"),
        "unfinished": (options.run / RUN).exists() and not is_finished(options.run),
        "seed": options.seed,
        **samples,
        "errors": rows,
    }
    write(where_to, canonical(entries))
    console.print(f"{plain(where_to)}", soft_wrap=True)


def _chosen(operator: Operator, whole: Dataset, on: str | None) -> tuple[Dataset, Dataset | None, str]:
    """Return the samples to evaluate, those that were learned from if they are known, and a word for the first."""
    said = operator.about.get("split")
    split = Split.from_json(said) if said else None
    if split is not None and (split.hash is None or whole.manifest is None or split.hash != whole.manifest.hash):
        split = None  # of another dataset
    if on not in (None, "all", "test", "unseen", "validation", "train"):
        raise typer.BadParameter(f"{on!r}: use test, unseen, validation, train or all", param_hint="--on")
    if split is None:
        if said is None:
            warn("the operator does not know which samples it has learned from; these may be among them")
        if on not in (None, "all"):
            raise typer.BadParameter("this is not the dataset the run was split from; use --on all", param_hint="--on")
        return whole, None, "given"
    train = whole.take(split.train)
    if on == "all":
        warn("these samples include those that were learned from")
        return whole, train, "all"
    seen = {*split.train, *split.validation, *split.test}
    unseen = tuple(i for i in range(len(whole)) if i not in seen)
    if unseen and on is None and not split.test and not len(judgeable(whole.take(unseen))[0]):
        unseen = ()  # those that were left out of training because they are 0
    what = on or ("test" if split.test else "unseen" if unseen else "validation" if split.validation else "train")
    samples = unseen if what == "unseen" else getattr(split, what)
    if not samples:
        raise typer.BadParameter(f"the run has no {what} samples", param_hint="--on")
    if what == "train":
        warn("these samples were learned from")
    return whole.take(samples), train, what


def _range(text: str, count: int) -> range:
    """Return the samples that START:STOP stands for, as in Python; either may be missing."""
    start, colon, stop = text.partition(":")
    try:
        found = range(count)[int(start) if start else None : int(stop) if stop else None]
    except ValueError:
        found = range(0)
    if not colon or not found:
        raise typer.BadParameter(f"{text!r}: needed START:STOP within the {count} samples, e.g. :8", param_hint="--samples")
    return found


def _points(dataset: Dataset) -> str:
    return described(dataset.domain) if dataset.one_domain else f"{len(dataset.domain_of(0))} points and others"
