"""gkn train: learn an operator."""

from __future__ import annotations

import os
import shlex
import sys
import types
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import torch
import typer

from gkn.cli.judge import judge
from gkn.cli.options import verb
from gkn.cli.shell import Config, DatasetPath, Device, console, literals, plain, settings, warn
from gkn.data.dataset import Dataset
from gkn.data.readers import READING
from gkn.data.split import Split
from gkn.data.stepping import Stepping
from gkn.geometry.frame import Frame
from gkn.graph.rules import Rule, rule_from
from gkn.models import MODELS
from gkn.operator.runs import OPERATOR
from gkn.operator.saved import load
from gkn.operator.ways import Sampled
from gkn.system.checks import device_named
from gkn.train.bar import training_bar
from gkn.train.fit import fit
from gkn.train.recipe import RECIPES, Recipe


@dataclass(frozen=True)
class TrainOptions:
    """Options of `gkn train`. What is not given follows from the data, as in `gkn.fit`."""

    data: DatasetPath
    out: Annotated[Path, typer.Option(help="The run's folder. After an interruption, the same command resumes the run.")]
    model: Annotated[str, typer.Option(help=f"Model to train: {', '.join(MODELS)}.")] = "NearFar"
    recipe: Annotated[str | None, typer.Option(help=f"Recipe: {', '.join(RECIPES)}. By default the model's own.")] = None
    split: Annotated[
        str, typer.Option(help="Shares of the samples to learn from, to choose the best network by, and to test on.")
    ] = "0.8,0.1,0.1"
    by: Annotated[str | None, typer.Option(help="Keep samples with the same value of this parameter in one part.")] = None
    split_seed: Annotated[int, typer.Option(min=0, help="Seed of the split.")] = 0
    train: Annotated[
        int | None, typer.Option("--train", min=1, help="Number of samples to learn from, in place of --split.")
    ] = None
    validation: Annotated[int | None, typer.Option(min=0, help="Number of samples for validation, in place of --split.")] = None
    test: Annotated[int | None, typer.Option(min=0, help="Number of samples for the test, in place of --split.")] = None
    shuffle: Annotated[bool, typer.Option(help="With numbers of samples: draw them at random, or take them in order.")] = True
    start: Annotated[
        Path | None, typer.Option("--from", help="A run or saved operator whose network is trained further on this data.")
    ] = None
    size: Annotated[
        str | None, typer.Option(help="Size of the model: small, medium or large. By default small on a CPU, large on a GPU.")
    ] = None
    geometry: Annotated[
        bool | None, typer.Option(help="Give the network features of the geometry. By default if the domains differ.")
    ] = None
    every: Annotated[list[int] | None, typer.Option(min=1, help="Every k-th node of a grid; several: learned together.")] = None
    inputs: Annotated[
        list[str] | None, typer.Option("--input", help="A field to learn from. By default the dataset's inputs.")
    ] = None
    outputs: Annotated[
        list[str] | None, typer.Option("--output", help="A field to be learned. By default the dataset's outputs.")
    ] = None
    smooth: Annotated[
        list[str] | None,
        typer.Option(metavar="FIELD=WIDTH", help="Smooth an input by a Gaussian; 0: none. By default the model's choice."),
    ] = None
    extend: Annotated[
        list[str] | None,
        typer.Option(help="Extend an input known on the boundary; none: none. By default all that are 0 elsewhere."),
    ] = None
    r: Annotated[
        float | None, typer.Option("--r", min=0, help="Neighbours within r, in the data's unit. By default the model's.")
    ] = None
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
    steps: Annotated[
        str | None, typer.Option(help="Of trajectories: learn steps from each time to the next (one), or to all later (all).")
    ] = None
    target: Annotated[
        str | None, typer.Option(help="Of trajectories: what a step predicts: value, difference or quotient.")
    ] = None
    longest: Annotated[float | None, typer.Option(help="With --steps all: the longest step. By default half of all.")] = None
    history: Annotated[int | None, typer.Option(min=1, help="Of trajectories: number of states that a step sees.")] = None
    clock: Annotated[bool | None, typer.Option(help="Of trajectories: the time itself is an input. By default it is.")] = None
    frames: Annotated[
        str | None, typer.Option(metavar="FIRST:LAST", help="Of trajectories: use these times only, e.g. :40 for the first 40.")
    ] = None
    between: Annotated[
        str | None, typer.Option(metavar="FIRST,LAST", help="Of trajectories: learn the map between two times, e.g. 0,-1.")
    ] = None
    weighted: Annotated[bool | None, typer.Option(help="Count with quadrature weights. By default as the model needs.")] = None
    unit: Annotated[list[str] | None, typer.Option(metavar="FIELD=UNIT", help="Units of fields, for the record.")] = None
    patience: Annotated[
        int | None, typer.Option(min=1, help="Stop after so many evaluations without a smaller validation error.")
    ] = None
    evaluate_m: Annotated[
        int | None, typer.Option("--evaluate-m", min=1, help="Evaluate on this many drawn nodes. By default as in training.")
    ] = None
    evaluate_every: Annotated[
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

    def stepping(self) -> Stepping | None:
        """Return how to learn steps, if anything was said about it."""
        given: dict[str, Any] = {
            "pairs": self.steps,
            "target": self.target,
            "longest": self.longest,
            "history": self.history,
            "clock": self.clock,
        }
        known = {name: value for name, value in given.items() if value is not None}
        return Stepping(**known) if known else None

    def recipe_changes(self) -> dict[str, Any]:
        """Return the entries of the recipe that were given."""
        given = {name: getattr(self, name) for name in ("epochs", "batch", "lr", "seed", "precision", "patience")}
        return {**settings(self.set_ or [], _types()), **{key: value for key, value in given.items() if value is not None}}


@verb(TrainOptions)
def train(options: TrainOptions) -> None:
    """Learn an operator and write a report. After an interruption, the same command resumes; with more --epochs, it goes on.

    Under torchrun every rank takes its share: torchrun --nproc-per-node 8 -m gkn -- train ...
    """
    device = device_named(options.device)
    if options.model not in MODELS:
        raise ValueError(f"no model {options.model!r}; there are {', '.join(MODELS)}")
    whole = Dataset.open(options.data)
    split = _split(options, whole)  # by any parameter, also one that is no input
    whole = in_time(whole.using(options.inputs, options.outputs), options.frames, options.between)
    parts, validation = _data(options, whole, split)
    start = None if options.start is None else load(options.start, best=True)
    about = {"command": shlex.join(["gkn", *sys.argv[1:]]), "device": _described(device), "split": split.json()}
    origin = {} if whole.manifest is None else whole.manifest.origin
    about |= {"between": options.between} if options.between else {}
    about |= {"reading": {key: origin[key] for key in READING if key in origin}} if origin.get("name") == "import" else {}
    with training_bar(options.out.name) as report:
        operator = fit(
            parts,
            options.model if start is None else start,
            _rules(options, parts),
            options.recipe,
            size=options.size,
            settings=literals(options.network or [], "--network"),
            smoothing=_widths(options.smooth),
            extended=_extended(options.extend),
            geometry=options.geometry,
            validation=validation,
            how=None if options.evaluate_m is None else Sampled(options.evaluate_m),
            evaluate_every=options.evaluate_every,
            out=options.out,
            weighted=options.weighted,
            stepping=options.stepping(),
            units=_units(options.unit or []),
            about=about,
            device=device,
            save_every=options.save_every,
            keep=options.keep,
            timeout=options.timeout,
            report=report,
            announce=lambda text: console.print(plain(text), soft_wrap=True),
            warn=warn,
            tensorboard=options.tensorboard,
            **options.recipe_changes(),
        )
    metrics = operator.about["metrics"]
    error = metrics["validation"]
    known = ", no validation" if error is None else f", validation error {error:.4f}"
    console.print(
        f"{plain(options.out)}: {metrics['epoch']} epochs, loss {metrics['loss']:.4g}{known}, {metrics['seconds']:.0f} s; "
        f"the operator is in {plain(options.out / OPERATOR)}",
        soft_wrap=True,
    )
    judged = split.test or split.validation
    if judged and int(os.environ.get("RANK", "0")) == 0:
        every = (options.every or [1])[0]
        best = load(options.out, best=True, device=device)
        what = "test" if split.test else "validation"
        console.print("the best network, by the validation samples:" if split.validation else "the last network:")
        judge(best, whole.take(judged).every(every), whole.take(split.train).every(every), options.out, what)


def in_time(dataset: Dataset, frames: str | None, between: str | None) -> Dataset:
    """Return trajectories with some of their times, or samples between two of them; others as they are."""
    if (frames or between) and not dataset.in_time:
        raise ValueError("--frames and --between: needed trajectories; these samples have no time")
    if frames is not None:
        start, colon, stop = frames.partition(":")
        if not colon or not all(each.removeprefix("-").isdecimal() for each in (start, stop) if each):
            raise typer.BadParameter(f"{frames!r}: needed FIRST:LAST, e.g. :40", param_hint="--frames")
        dataset = dataset.window(int(start) if start else None, int(stop) if stop else None)
    if between is not None:
        try:
            first, last = map(int, between.split(","))
        except ValueError:
            raise typer.BadParameter(f"{between!r}: needed FIRST,LAST, e.g. 0,-1", param_hint="--between") from None
        dataset = dataset.between(first, last)
    return dataset


def _split(options: TrainOptions, whole: Dataset) -> Split:
    """Return the samples of each part: by shares, or by numbers if any is given."""
    numbers = (options.train, options.validation, options.test)
    if all(each is None for each in numbers):
        try:
            shares = tuple(float(share) for share in options.split.split(","))
        except ValueError:
            shares = ()
        if len(shares) != 3:
            raise typer.BadParameter(f"{options.split!r}: needed three shares, e.g. 0.8,0.1,0.1", param_hint="--split")
        return Split.draw(whole, shares, options.by, options.split_seed)
    if options.by is not None:
        raise typer.BadParameter("parts by a parameter need shares: --split", param_hint="--by")
    order = [*range(len(whole))]
    if options.shuffle:
        order = torch.randperm(len(whole), generator=torch.Generator().manual_seed(options.split_seed)).tolist()
    return Split.counted(whole, options.train, options.validation or 0, options.test or 0, order)


def _data(options: TrainOptions, whole: Dataset, split: Split) -> tuple[list[Dataset], Dataset | None]:
    """Return the datasets to learn from, and the validation set."""
    strides = options.every or [1]
    learn, held = whole.take(split.train), whole.take(split.validation)
    parts = [learn.every(k) for k in strides]
    if options.mixed is not None:
        if options.m is not None or min(strides) == 1:
            raise ValueError(
                "--mixed: needed a coarser grid beside the drawn points, --every K; for drawn points alone use --m"
            )
        parts.append(learn)
    return parts, held.every(strides[0]) if len(held) else None


def _widths(given: list[str] | None) -> dict[str, float] | None:
    """Return the widths of the Gaussians, or None for the model's own."""
    if given is None:
        return None
    widths = {}
    for each in given:
        name, equals, value = each.rpartition("=")
        try:
            widths[name if equals else "a"] = float(value)
        except ValueError:
            raise typer.BadParameter(f"{each!r}: needed FIELD=WIDTH, e.g. a=0.03", param_hint="--smooth") from None
    return {name: width for name, width in widths.items() if width}


def _extended(given: list[str] | None) -> list[str] | None:
    """Return the fields to extend from the boundary, or None for the model's own choice."""
    return given if given is None else [name for name in given if name != "none"]


def _rules(options: TrainOptions, parts: list[Dataset]) -> list[Rule] | None:
    """Return the rules that were chosen, or None for the model's own."""
    if options.l != 1 and options.m is None:
        raise ValueError(f"--l {options.l}: graphs per sample need nodes that are drawn, --m")
    if options.r is None and options.m is None and options.mixed is None:
        return None
    frame = Frame.of(domain for part in parts for domain in part.domains())
    samples = [part.pairs(options.stepping()) if part.in_time else part for part in parts]
    framed = [part.framed(frame) for part in samples]
    usual = rule_from(MODELS[options.model].defaults(framed[0], options.recipe).rule).scaled(frame.scale)
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
