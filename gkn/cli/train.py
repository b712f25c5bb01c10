"""gkn train: learn an operator."""

from __future__ import annotations

import shlex
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import torch
import typer
from rich.progress import BarColumn, Progress, TextColumn

from gkn.cli.options import verb
from gkn.cli.shell import Config, DatasetPath, Device, console, errors, literal, literals, plain, settings, warn
from gkn.data.dataset import Dataset
from gkn.graph.rules import Rule, rule_from
from gkn.models import MODELS
from gkn.operator.saved import OPERATOR
from gkn.operator.ways import Sampled
from gkn.system.checks import device_named
from gkn.train.fit import fit
from gkn.train.progress import Report, Status
from gkn.train.recipe import RECIPES, Recipe


@dataclass(frozen=True)
class TrainOptions:
    """Options of `gkn train`. What is not given follows from the data, as in `gkn.fit`."""

    data: DatasetPath
    out: Annotated[Path, typer.Option(help="The run's folder. After an interruption, the same command resumes the run.")]
    model: Annotated[str, typer.Option(help=f"Model to train: {', '.join(MODELS)}.")] = "NearFar"
    recipe: Annotated[str | None, typer.Option(help=f"Recipe: {', '.join(RECIPES)}. By default the model's own.")] = None
    test: Annotated[int, typer.Option(min=0, help="Number of samples, the last ones, that are held out for evaluation.")] = 0
    train: Annotated[
        int | None,
        typer.Option("--train", min=1, help="Number of samples to learn from, the first ones. By default all."),
    ] = None
    every: Annotated[list[int] | None, typer.Option(min=1, help="Every k-th node of a grid; several: learned together.")] = None
    inputs: Annotated[
        list[str] | None, typer.Option("--input", help="A field to learn from. By default the dataset's inputs.")
    ] = None
    outputs: Annotated[
        list[str] | None, typer.Option("--output", help="A field to be learned. By default the dataset's outputs.")
    ] = None
    smooth: Annotated[
        float | None,
        typer.Option(min=0, help="Width of the Gaussian that smooths `a`, a length; 0: none. By default the model's."),
    ] = None
    r: Annotated[float | None, typer.Option("--r", min=0, help="Neighbours within r. By default the model's.")] = None
    m: Annotated[int | None, typer.Option("--m", min=1, help="Draw m nodes for each graph. By default the model's.")] = None
    l: Annotated[int, typer.Option("--l", min=1, help="Graphs per sample, if nodes are drawn.")] = 1
    mixed: Annotated[
        int | None,
        typer.Option(min=1, help="Beside the grids of --every, learn from this many random points, drawn in every epoch."),
    ] = None
    network: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="A setting of the model, e.g. width=64 or kernel=128,256.")
    ] = None
    epochs: Annotated[int | None, typer.Option(min=1, help="Passes over the data.")] = None
    batch: Annotated[int | None, typer.Option(min=1, help="Graphs per step, on all ranks.")] = None
    lr: Annotated[float | None, typer.Option(help="Learning rate.")] = None
    precision: Annotated[str | None, typer.Option(help="fp64, fp32, tf32 or bf16. By default fp32; on a GPU less.")] = None
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of everything that is drawn. By default 0.")] = None
    set_: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any other entry of the recipe.")] = None
    weighted: Annotated[bool | None, typer.Option(help="Count with quadrature weights. By default as the model needs.")] = None
    unit: Annotated[list[str] | None, typer.Option(metavar="FIELD=UNIT", help="Units of fields, for the record.")] = None
    test_m: Annotated[
        int | None, typer.Option("--test-m", min=1, help="Evaluate on this many drawn nodes. By default as in training.")
    ] = None
    test_every: Annotated[
        int | None, typer.Option(min=1, help="Epochs between evaluations. By default 20 evaluations per run.")
    ] = None
    save_every: Annotated[float, typer.Option(min=0, help="Seconds between checkpoints.")] = 60.0
    keep: Annotated[int, typer.Option(min=1, help="Checkpoints to keep, beside the best.")] = 2
    timeout: Annotated[
        float, typer.Option(min=1, help="Seconds after which a silent rank ends the run; more than a test function takes.")
    ] = 60.0
    device: Device = "auto"
    tensorboard: Annotated[bool, typer.Option(help="Also write for TensorBoard.")] = False
    config: Config = None

    def recipe_changes(self) -> dict[str, Any]:
        """Return the entries of the recipe that were given."""
        given = {name: getattr(self, name) for name in ("epochs", "batch", "lr", "seed", "precision")}
        return {**settings(self.set_ or [], _types()), **{key: value for key, value in given.items() if value is not None}}


@verb(TrainOptions)
def train(options: TrainOptions) -> None:
    """Learn an operator. Under torchrun every rank takes its share: torchrun --nproc-per-node 8 -m gkn -- train ..."""
    device = device_named(options.device)
    if options.model not in MODELS:
        raise ValueError(f"no model {options.model!r}; there are {', '.join(MODELS)}")
    parts, test = _data(options)
    with training_bar(options.out) as report:
        operator = fit(
            parts,
            options.model,
            _rules(options, parts),
            options.recipe,
            settings=literals(options.network or [], "--network"),
            smoothing={} if options.smooth is not None else None,
            test=test,
            how=None if options.test_m is None else Sampled(options.test_m),
            test_every=options.test_every,
            out=options.out,
            weighted=options.weighted,
            units=_units(options.unit or []),
            about={"command": shlex.join(["gkn", *sys.argv[1:]]), "device": _described(device)},
            device=device,
            save_every=options.save_every,
            keep=options.keep,
            timeout=options.timeout,
            report=report,
            warn=warn,
            tensorboard=options.tensorboard,
            **options.recipe_changes(),
        )
    metrics = operator.about["metrics"]
    tested = ", no test (hold out samples with --test)"
    if metrics["test"] is not None:
        tested = f", test error {metrics['test']:.4f}"
    console.print(
        f"{plain(options.out)}: {metrics['epoch']} epochs, loss {metrics['loss']:.4g}{tested}, {metrics['seconds']:.0f} s; "
        f"the operator is in {plain(options.out / OPERATOR)}",
        soft_wrap=True,
    )


def _data(options: TrainOptions) -> tuple[list[Dataset], Dataset | None]:
    """Return the datasets to learn from, and the test set."""
    whole = Dataset.open(options.data).using(options.inputs, options.outputs)
    if options.smooth:
        whole = whole.smoothed(options.smooth, "a")
    first = len(whole) - options.test if options.train is None else options.train
    if first + options.test > len(whole) or first < 1:
        raise ValueError(f"{options.data}: {first} samples to learn from and {options.test} to test on; it has {len(whole)}")
    strides = options.every or [1]
    learn, held = whole.take(first), whole.take(range(len(whole) - options.test, len(whole)))
    parts = [learn.every(k) for k in strides]
    if options.mixed is not None:
        if options.m is not None or min(strides) == 1:
            raise ValueError(
                "--mixed: needed a coarser grid beside the drawn points, --every K; for drawn points alone use --m"
            )
        parts.append(learn)
    return parts, held.every(strides[0]) if options.test else None


def _rules(options: TrainOptions, parts: list[Dataset]) -> list[Rule] | None:
    """Return the rules that were chosen, or None for the model's own."""
    if options.l != 1 and options.m is None:
        raise ValueError(f"--l {options.l}: graphs per sample need nodes that are drawn, --m")
    if options.r is None and options.m is None and options.mixed is None:
        return None
    usual = rule_from(MODELS[options.model].defaults(parts[0], options.recipe).rule)
    rule = usual.whole(options.r) if options.m is None else usual.sampled(options.m, options.l, options.r)
    if options.mixed is None:
        return [rule] * len(parts)
    return [*[rule] * (len(parts) - 1), usual.sampled(options.mixed, 1, options.r)]


def _described(device: str) -> str:
    return torch.cuda.get_device_name(device) if device.startswith("cuda") else f"cpu, {torch.get_num_threads()} threads"


def _types() -> dict[str, type]:
    """Return the types of the entries of a recipe; `float | None` counts as float."""
    hints = get_type_hints(Recipe)
    return {
        each.name: get_args(hints[each.name])[0] if isinstance(hints[each.name], types.UnionType) else hints[each.name]
        for each in fields(Recipe)
    }


def _units(given: list[str]) -> dict[str, str]:
    pairs = [each.partition("=") for each in given]
    wrong = [given[i] for i, (_, equals, _) in enumerate(pairs) if not equals]
    if wrong:
        raise typer.BadParameter(f"{wrong[0]!r}: needed FIELD=UNIT, e.g. u=Pa", param_hint="--unit")
    return {name: value for name, _, value in pairs}


@contextmanager
def training_bar(out: Path) -> Iterator[Report]:
    """Show a bar with the loss, the test error, edges per second and the time left."""
    words = "{task.description}"
    with Progress(TextColumn(literal(out.name)), BarColumn(), TextColumn(words), console=errors) as bar:
        task = bar.add_task("reading the data", total=None)

        def report(now: Status) -> None:
            test = "" if now.test is None else f", test {now.test:.4f}"
            minutes, seconds = divmod(round(now.seconds_left), 60)
            text = (
                f"epoch {min(now.epoch + 1, now.epochs)}/{now.epochs}, loss {now.loss:.4g}{test}, "
                f"{now.edges_per_second:.2g} edges/s, {minutes}:{seconds:02d} left"
            )
            bar.update(task, completed=now.step, total=now.steps, description=text)

        yield report
