"""Training: one call, for one processor or GPU and for many, that can be killed at any moment and goes on to the same bits."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from gkn.data.dataset import Dataset
from gkn.graph.rules import Nystrom, Radius, Rule
from gkn.models import Model, Multigrid, NearFar
from gkn.operator.evaluate import Test
from gkn.operator.operator import Operator
from gkn.system.files import locked
from gkn.train.loop import OtherRun, Report, Run
from gkn.train.ranks import join, signals
from gkn.train.recipe import Recipe, changed, recipe_named


def fit(
    model: Model,
    dataset: Dataset | Sequence[Dataset],
    rule: Rule | Sequence[Rule],
    recipe: str | Recipe = "ours",
    *,
    test: Dataset | None = None,
    how: Test | None = None,
    test_every: int | None = None,
    out: str | os.PathLike[str] | None = None,
    weighted: bool = False,
    units: Mapping[str, str] | None = None,
    about: Mapping[str, Any] | None = None,
    rng: torch.Generator | None = None,
    device: str | torch.device = "cpu",
    save_every: float = 60.0,
    keep: int = 2,
    timeout: float = 60.0,
    report: Report | None = None,
    warn: Callable[[str], None] | None = None,
    tensorboard: bool = False,
    capture: bool = True,
    **changes: Any,
) -> Operator:
    """Train a network and return it as an operator.

    model        is trained in place
    dataset      what to learn; several, e.g. of several resolutions, are learned together, each batch from one of them
    rule         how its points become graphs; of several datasets each may have its own, the operator has the first
    recipe       a name or a `Recipe`; `changes` to it by keyword, e.g. epochs=100
    test         judged now and then, and never learned from: no bit of the network depends on it
    how          in which way; None: on sampled nodes where the rule samples, else on all points
    out          the run's folder. Called again with the same arguments, a run that was killed goes on where it was, to the same
                 bits, and a finished one is read. SIGTERM and Ctrl-C then save first and raise `Stopped`.
    weighted     neighbours, and the relative loss, count with quadrature weights
    units, about of the fields, and whatever else the operator is to remember
    rng          where the recipe's seed is drawn from; None: it has one of its own
    device       cpu, cuda, or cuda:1. Under torchrun every rank takes its share of each batch.
    save_every   seconds between checkpoints
    keep         so many of the last checkpoints; the best is kept, too
    timeout      seconds after which a rank that does not answer ends the run: more than a step, or a test function, takes
    capture      on a GPU, steps of NearFar, and of Multigrid on whole domains, are compiled, recorded once and replayed
    """
    chosen = changed(recipe if isinstance(recipe, Recipe) else recipe_named(recipe), **changes)
    if rng is not None:
        chosen = replace(chosen, seed=int(torch.randint(2**62, (), generator=rng)))
    datasets = [dataset] if isinstance(dataset, Dataset) else [*dataset]
    device = str(device)
    rules: list[Any] = [*rule] if isinstance(rule, list | tuple) else [rule] * len(datasets)
    _check(model, datasets, rules, test)
    with products(chosen.precision), signals(out is not None) as stop:
        run = Run(model, datasets, rules, chosen, test, how, weighted, units, join(device, chosen.precision, timeout))
        run.stop, run.report, run.warn = stop, report, warn or (lambda text: None)
        run.save_every, run.about, run.capture = save_every, dict(about or {}), capture
        run.test_every = test_every or max(1, chosen.epochs // 20)
        if out is None:
            run.go()
            return run.operator()
        folder = Path(out)
        with locked(folder, OtherRun) if run.first else nullcontext():
            run.open(folder, keep)
            stop.begun = True
            with _tensorboard(folder) if tensorboard and run.first else nullcontext() as run.board:
                run.go()
            return run.close()


def _check(model: Model, datasets: Sequence[Dataset], rules: Sequence[Rule], test: Dataset | None) -> None:
    for rule in rules:
        if not isinstance(rule, Radius | Nystrom):
            raise ValueError(f"fit(rule={rule!r}): needed Radius(r) or Nystrom(r, m, l)")
        if isinstance(model, NearFar | Multigrid) and rule.r != model.radius:
            raise ValueError(
                f"fit: {rule}; the balls of this {type(model).__name__} have radius {model.radius}: needed the same"
            )
    if len(rules) != len(datasets):
        raise ValueError(f"fit: {len(rules)} rules for {len(datasets)} datasets; needed one, or one for each")
    if not datasets or not all(len(each) for each in datasets):
        raise ValueError("fit: there is nothing to learn: a dataset without samples")
    first = datasets[0]
    for each in [*datasets, *([] if test is None else [test])]:
        if (each.inputs, each.outputs) != (first.inputs, first.outputs):
            ours, other = (f"{', '.join(d.inputs)} -> {', '.join(d.outputs)}" for d in (first, each))
            raise ValueError(f"fit: datasets of different fields: {ours}, and {other}; choose with Dataset.using and smoothed")
    sizes = {"inputs": (first.inputs, model.in_channels), "outputs": (first.outputs, model.out_channels)}
    for what, (names, needed) in sizes.items():
        if len(names) != needed:
            raise ValueError(
                f"fit: the dataset has {len(names)} {what} ({', '.join(names)}); the network was made for {needed}"
            )
    for each in [*datasets, *([] if test is None or not len(test) else [test])]:
        if each[0].domain.dim != model.dim:
            raise ValueError(
                f"fit: a dataset has points of dimension {each[0].domain.dim}; the network was made for {model.dim}"
            )


@contextmanager
def products(precision: str) -> Iterator[None]:
    """Of float32 they are rounded to tf32 if that is asked for, and not otherwise."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@contextmanager
def _tensorboard(folder: Path) -> Iterator[Any]:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ImportError("--tensorboard needs the package tensorboard: pip install 'gkn[tensorboard]'") from error
    with SummaryWriter(str(folder / "tensorboard")) as board:
        yield board
