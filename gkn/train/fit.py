"""fit: training in one call, on one device or many. A run can be killed at any moment and resumes to the same bits."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch

from gkn.data.dataset import Dataset
from gkn.data.stepping import Stepping
from gkn.graph.rules import Rule
from gkn.models import Model
from gkn.operator.operator import Operator
from gkn.operator.ways import Test
from gkn.system.checks import device_named
from gkn.system.files import locked
from gkn.train.bar import default_report
from gkn.train.estimate import announcement
from gkn.train.loop import LoopOptions, Trainer
from gkn.train.progress import Report
from gkn.train.ranks import join, signals
from gkn.train.recipe import Recipe
from gkn.train.run_folder import OtherRun, RunFolder
from gkn.train.setup import Choices, set_up


def fit(
    dataset: Dataset | Sequence[Dataset],
    model: Model | type[Model] | str | Operator | None = None,
    rule: Rule | Sequence[Rule] | None = None,
    recipe: str | Recipe | None = None,
    *,
    size: str | None = None,
    settings: Mapping[str, Any] | None = None,
    smoothing: Mapping[str, float] | None = None,
    extended: Sequence[str] | None = None,
    geometry: bool | None = None,
    validation: Dataset | float | None = None,
    how: Test | None = None,
    evaluate_every: int | None = None,
    out: str | os.PathLike[str] | None = None,
    weighted: bool | None = None,
    stepping: Stepping | None = None,
    units: Mapping[str, str] | None = None,
    about: Mapping[str, Any] | None = None,
    rng: torch.Generator | None = None,
    device: str | torch.device = "auto",
    save_every: float = 60.0,
    keep: int = 2,
    timeout: float = 60.0,
    report: Report | None = None,
    warn: Callable[[str], None] | None = None,
    announce: Callable[[str], None] | None = None,
    tensorboard: bool = False,
    capture: bool = True,
    **changes: Any,
) -> Operator:
    """Train a model and return it as an operator. What is not given follows from the data: see `Model.defaults`.

    All lengths (radii, widths of Gaussians) are in the unit of the data.

    dataset      what to learn; several, e.g. of several resolutions, are learned together, each batch from one of them
    model        a model, which is trained in place to the last step; or its name or class; by default NearFar. Or a trained
                 operator: a copy of it is trained further, with its fields, frame and normalisers
    rule         how points become graphs; of several datasets each may have its own, the operator has the first
    recipe       a name or a `Recipe`; `changes` to it by keyword, e.g. epochs=100
    size         of a model given by name or class: small, medium or large; by default small on a CPU, large on a GPU
    settings     of a model given by name or class: arguments of its constructor, e.g. {"width": 64}
    smoothing    for such a model: widths of Gaussians for inputs that are also given smoothed, e.g. {"a": 0.03}
    extended     for such a model: inputs known on the boundary that are also given extended to all points; by default all that
                 are 0 elsewhere
    geometry     for such a model: features of the geometry are inputs; by default if the samples' domains differ
    validation   a dataset that is evaluated now and then and not learned from; the best network by it is returned; or a
                 number of samples to hold out, the last ones; or a share such as 0.1, drawn at random
    how          how to evaluate it; by default on sampled nodes if the rule samples, else on all points
    evaluate_every   epochs between evaluations; by default 20 evaluations per run
    out          the run's folder. Called again with the same arguments, a killed run is resumed to the same bits, and a
                 finished one is read; with more epochs, the run goes on. SIGTERM and Ctrl-C save first and raise `Stopped`.
    weighted     neighbours and the relative loss count with quadrature weights
    stepping     for trajectories: how steps are learned from them; see `Stepping`
    units, about units of the fields, and anything else the operator is to remember
    rng          generator from which the recipe's seed is drawn; by default the recipe's own seed is used
    device       auto (a GPU if there is one), cpu, cuda or cuda:1. Under torchrun every rank takes its share of each batch
    save_every   seconds between checkpoints
    keep         number of last checkpoints to keep, beside the best
    timeout      seconds after which a silent rank ends the run; must exceed the longest step and test evaluation
    report       called with a `Status` after every step; by default a bar is shown if the output is a terminal
    warn         called with warnings; by default `warnings.warn`
    announce     called before training with a sentence about the model, the number of steps and the time they will take
    tensorboard  also write for TensorBoard, into the run's folder
    capture      on a GPU, compile, record and replay steps of models that allow it
    """
    if rng is not None:
        changes["seed"] = int(torch.randint(2**62, (), generator=rng))
    folder = None if out is None else Path(out)
    ways: dict[str, Any] = {"weighted": weighted, "validation": validation, "how": how, "units": units, "size": size}
    ways["stepping"] = stepping
    chosen = Choices(model, settings or {}, rule, recipe, changes, smoothing, extended, geometry, **ways)
    device = device_named(str(device))
    setup = set_up(dataset, chosen, device, folder)
    tell = warn or (lambda text: warnings.warn(text, stacklevel=4))
    every = evaluate_every or max(1, setup.recipe.epochs // 20)
    if announce is not None:
        announce(announcement(setup, device))
    with products(setup.recipe.precision), signals(folder is not None) as stop, default_report(report) as shown:
        options = LoopOptions(every, shown, capture, {"split": setup.split(), **(about or {})}, tell)
        fabric = join(device, setup.recipe.precision, timeout)
        if folder is None:
            trainer = Trainer(setup, fabric, stop, options)
            trainer.go()
            return trainer.close()
        first = fabric.global_rank == 0
        with locked(folder, OtherRun) if first else nullcontext():
            trainer = Trainer(setup, fabric, stop, options)
            shared: dict[str, Any] = {"first": first, "world": fabric.world_size, "warn": tell}
            trainer.open(RunFolder(folder, setup.config(), keep=keep, save_every=save_every, **shared))
            stop.begun = True
            with _tensorboard(folder) if tensorboard and first else nullcontext() as board:
                trainer.go(board)
            return trainer.close()


@contextmanager
def products(precision: str) -> Iterator[None]:
    """Let products of float32 be rounded to tf32 if the precision asks for it, and not otherwise."""
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
