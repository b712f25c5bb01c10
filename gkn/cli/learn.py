"""gkn train, eval, predict, info."""

from __future__ import annotations

import shlex
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import torch
import typer
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table

from gkn.cli.data import data_info
from gkn.cli.shell import Config, DatasetPath, console, errors, literal, plain, print_rows, progress_bar, settings
from gkn.data import writers as exporters
from gkn.data.dataset import Dataset
from gkn.data.readers import read_points, read_sample
from gkn.data.storage import MANIFEST
from gkn.geometry.cloud import Cloud
from gkn.graph.rules import BALL, Nystrom, Radius, usual_radius
from gkn.models import MODELS
from gkn.operator.card import CARD, read_card
from gkn.operator.evaluate import Sampled, Test, relative_l2
from gkn.operator.operator import Exact, How, Operator, Partition, Support
from gkn.operator.pretrained import names, pretrained
from gkn.operator.saved import OPERATOR, RUN, STEPS, load
from gkn.system.checks import check_device
from gkn.system.files import CorruptFile, canonical, make_folder, read_sealed_json, write
from gkn.train.checkpoint import Checkpoints
from gkn.train.fit import fit
from gkn.train.loop import Report, Status
from gkn.train.recipe import NETWORKS, RECIPES, SMOOTHING, Recipe, changed, recipe_named

RunPath = Annotated[Path, typer.Argument(help="A run's folder, or that of a saved operator.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:1.")]
R = Annotated[float | None, typer.Option("--r", help="Another radius than in training.")]
M = Annotated[int | None, typer.Option("--m", min=1, help="Nodes of a sub-graph, for support, partition and sampled.")]
L = Annotated[int, typer.Option("--l", min=1, help="Draws of them that are averaged.")]


def train(
    data: DatasetPath,
    out: Annotated[Path, typer.Option(help="The run's folder. Interrupted, the same command goes on with it.")],
    recipe: Annotated[
        str | None, typer.Option(help=f"How to train: {', '.join(RECIPES)}. By default ours; nearfar for the others than GKN.")
    ] = None,
    model: Annotated[str, typer.Option(help=f"What to train: {', '.join(MODELS)}.")] = "GKN",
    train: Annotated[
        int | None, typer.Option("--train", min=1, help="Samples to learn from. By default all but the test.")
    ] = None,
    test: Annotated[
        int | None, typer.Option(min=0, help="Samples to judge by, the last ones. By default a fifth, at most 100.")
    ] = None,
    every: Annotated[
        list[int] | None, typer.Option(min=1, help="Every k-th node of a grid; several: learned together.")
    ] = None,
    inputs: Annotated[
        list[str] | None, typer.Option("--input", help="A field to learn from. By default the dataset's.")
    ] = None,
    outputs: Annotated[
        list[str] | None, typer.Option("--output", help="A field to be learned. By default the dataset's.")
    ] = None,
    smooth: Annotated[
        float | None,
        typer.Option(min=0, help="Width of the Gaussian that smooths `a`, a length; 0: no. By default the recipe's."),
    ] = None,
    r: Annotated[
        float | None,
        typer.Option("--r", min=0, help=f"Neighbours within r. By default 0.25; for others than GKN balls of {BALL} points."),
    ] = None,
    m: Annotated[int | None, typer.Option("--m", min=1, help="Nodes of a sub-graph. By default all points.")] = None,
    l: Annotated[int, typer.Option("--l", min=1, help="Sub-graphs of a sample.")] = 1,
    mixed: Annotated[
        int | None,
        typer.Option(min=1, help="Beside the grids of --every: so many of all points, drawn at random, anew in every epoch."),
    ] = None,
    width: Annotated[int | None, typer.Option(min=1, help="Components of v. By default the recipe's.")] = None,
    kernel: Annotated[str | None, typer.Option(help="Hidden layers of kappa, e.g. 128,256. By default the recipe's.")] = None,
    steps: Annotated[
        int | None, typer.Option(min=1, help="T; blocks of a NearFar, cycles of a Multigrid. By default the recipe's.")
    ] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="By default the recipe's.")] = None,
    batch: Annotated[int | None, typer.Option(min=1, help="Graphs a step, on all ranks. By default the recipe's.")] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate. By default the recipe's.")] = None,
    precision: Annotated[
        str | None, typer.Option(help="fp64, fp32, tf32 or bf16. By default bf16 on a GPU, else fp32.")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Of everything that is drawn. By default 0.")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Anything else of the recipe.")] = None,
    weighted: Annotated[bool, typer.Option(help="Quadrature weights, for meshes of uneven density.")] = False,
    unit: Annotated[list[str] | None, typer.Option(metavar="FIELD=UNIT", help="For the record.")] = None,
    test_m: Annotated[
        int | None, typer.Option("--test-m", min=1, help="Judge on so many drawn nodes. By default m, or all.")
    ] = None,
    test_every: Annotated[int | None, typer.Option(min=1, help="Epochs between tests. By default 20 tests a run.")] = None,
    save_every: Annotated[float, typer.Option(min=0, help="Seconds between checkpoints.")] = 60.0,
    keep: Annotated[int, typer.Option(min=1, help="Checkpoints to keep, beside the best.")] = 2,
    timeout: Annotated[
        float, typer.Option(min=1, help="Seconds after which a silent rank ends the run; more than a test function takes.")
    ] = 60.0,
    device: Device = "auto",
    tensorboard: Annotated[bool, typer.Option(help="Write for TensorBoard, too.")] = False,
    config: Config = None,
) -> None:
    """Learn an operator. Under torchrun every rank takes its share: torchrun --nproc-per-node 8 -m gkn -- train ..."""
    device = device_named(device)
    if model not in MODELS:
        raise ValueError(f"no model {model!r}; there are {', '.join(MODELS)}")
    recipe = recipe or ("ours" if model == "GKN" else "nearfar")
    chosen = recipe_named(recipe, **settings(set_ or [], _types()))
    given = {"epochs": epochs, "batch": batch, "lr": lr, "seed": seed, "precision": precision}
    if precision is None and not any(each.startswith("precision=") for each in set_ or []):
        usual = ("tf32" if recipe == "paper" else "bf16") if device.startswith("cuda") else "fp32"
        begun = read_sealed_json(out / RUN)["recipe"] if (out / RUN).is_file() else {}  # perhaps on another kind of device
        given["precision"] = begun.get("precision", usual)
    chosen = changed(chosen, **{key: value for key, value in given.items() if value is not None})
    whole = Dataset.open(data).using(inputs, outputs)
    width_of_a = SMOOTHING[recipe] if smooth is None else smooth
    if width_of_a and ((smooth is not None) or ("a" in whole.inputs and "a_smooth" not in whole.inputs)):
        whole = whole.smoothed(width_of_a, "a")
    count = min(100, len(whole) // 5) if test is None else test
    first = len(whole) - count if train is None else train
    if first + count > len(whole) or first < 1:
        raise ValueError(f"{data}: {first} samples to learn from and {count} to judge by; it has {len(whole)}")
    learn, judge = whole.take(first), whole.take(range(len(whole) - count, len(whole)))
    parts = [learn.every(k) for k in every or [1]]
    if mixed is not None and (m is not None or min(every or [1]) == 1):
        raise ValueError("--mixed: needed a coarser grid beside the drawn points, --every K; for drawn points alone use --m")
    near = r if r is not None else 0.25 if model == "GKN" else _usual(parts, m, mixed)
    depth = {"GKN": "steps", "NearFar": "blocks", "Multigrid": "cycles"}[model]
    sizes = _given(**{"width": width, "kernel": _sizes(kernel), depth: steps})
    smooth_one = [whole.inputs.index("a_smooth")] if "a_smooth" in whole.inputs else None
    base: dict[str, Any] = NETWORKS[recipe] if model == "GKN" else {"radius": near, "features": smooth_one}
    torch.manual_seed(chosen.seed)
    dim = parts[0][0].domain.dim
    network = MODELS[model](dim=dim, in_channels=len(whole.inputs), out_channels=len(whole.outputs), **{**base, **sizes})
    rules: list[Radius | Nystrom] = [Radius(near) if m is None else Nystrom(near, m, l)] * len(parts)
    if mixed is not None:
        parts, rules = [*parts, learn], [*rules, Nystrom(near, mixed)]
    how: Test | None = None if test_m is None else Sampled(test_m)
    with training_bar(out) as report:
        operator = fit(
            network,
            parts,
            rules,
            chosen,
            test=judge.every((every or [1])[0]) if count else None,
            how=how,
            test_every=test_every,
            out=out,
            weighted=weighted or model != "GKN",
            units=_units(unit or []),
            about={"command": shlex.join(["gkn", *sys.argv[1:]]), "device": _named(device)},
            device=device,
            save_every=save_every,
            keep=keep,
            timeout=timeout,
            report=report,
            warn=lambda text: errors.print(f"[yellow]warning:[/] {plain(text)}"),
            tensorboard=tensorboard,
        )
    metrics = operator.about["metrics"]
    judged = "" if metrics["test"] is None else f", test error {metrics['test']:.4f}"
    console.print(
        f"{plain(out)}: {metrics['epoch']} epochs, loss {metrics['loss']:.4g}{judged}, {metrics['seconds']:.0f} s; "
        f"the operator is in {plain(out / OPERATOR)}",
        soft_wrap=True,
    )


def evaluate(
    run: RunPath,
    data: DatasetPath,
    how: Annotated[str, typer.Option(help="exact, support, partition, or sampled: judged on drawn nodes.")] = "exact",
    m: M = None,
    l: L = 1,
    r: R = None,
    every: Annotated[list[int] | None, typer.Option(min=1, help="Every k-th node of a grid; several: a row each.")] = None,
    last: Annotated[int | None, typer.Option(min=1, help="The last so many samples. By default all.")] = None,
    first: Annotated[int | None, typer.Option(min=1, help="Of those, the first so many. By default all.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the draws.")] = 0,
    best: Annotated[bool, typer.Option(help="The run at its least test error, not at its end.")] = False,
    out: Annotated[Path | None, typer.Option(help="The JSON file. By default eval.json in the run's folder.")] = None,
    device: Device = "auto",
) -> None:
    """Judge an operator: relative l2 errors, at any resolution."""
    chosen = _how(how, m, l)
    operator = load(run, best=best, device=device_named(device))
    whole = Dataset.open(data)
    if last is not None:
        whole = whole.take(range(max(0, len(whole) - last), len(whole)))
    if first is not None:
        whole = whole.take(min(first, len(whole)))
    where_to = out or run / "eval.json"
    make_folder(where_to.parent)
    table = Table("points", "mean", "spread", "worst", "of sample", box=None, pad_edge=False)
    rows = []
    for k in every or [1]:
        part = whole.every(k)
        with progress_bar(f"every {k}" if k > 1 else "eval") as progress:
            found = relative_l2(operator, part, chosen, r=r, seed=seed, progress=progress)
        error, sample = found.worst
        where = _points(part)
        table.add_row(where, f"{found.mean:.4f}", f"{found.spread:.4f}", f"{error:.4f}", str(part.number(sample)))
        rows.append({"points": where, "every": k, "how": repr(chosen), "r": r, **found.json()})
    console.print(table)
    hash_of = whole.manifest.hash if whole.manifest else None
    write(where_to, canonical({"run": str(run), "data": str(data), "hash": hash_of, "seed": seed, "errors": rows}))
    console.print(f"{plain(where_to)}", soft_wrap=True)


def predict(
    run: Annotated[Path | None, typer.Argument(help="A run's folder, or that of a saved operator.")] = None,
    input_: Annotated[Path, typer.Option("--input", help="The functions a: .npz, .vtu or another mesh, .mat, .h5.")] = ...,  # type: ignore[assignment]
    out: Annotated[Path, typer.Option(help="The answer: .npz or .vtu.")] = ...,  # type: ignore[assignment]
    at: Annotated[
        Path | None, typer.Option(help="Where: a .npy of (points, dimension). By default the input's points.")
    ] = None,
    pretrained_: Annotated[
        str | None, typer.Option("--pretrained", help=f"One that comes with gkn: {', '.join(names()) or 'none'}.")
    ] = None,
    how: Annotated[str, typer.Option(help="exact, support or partition.")] = "exact",
    m: M = None,
    l: L = 1,
    r: R = None,
    sample: Annotated[int, typer.Option(min=0, help="Which, if the file has several.")] = 0,
    repair: Annotated[bool, typer.Option(help="Turn clockwise mesh cells round and drop unused points.")] = False,
    best: Annotated[bool, typer.Option(help="The run at its least test error, not at its end.")] = False,
    device: Device = "auto",
) -> None:
    """Ask an operator: functions in, functions out, at any points."""
    if (run is None) == (pretrained_ is None):
        raise typer.BadParameter("say which operator: a run's folder, or --pretrained NAME", param_hint="RUN")
    if out.resolve() == input_.resolve():
        raise typer.BadParameter("the answer would overwrite the question; choose another file", param_hint="--out")
    exporters.check(out, [])
    chosen = _how(how, m, l)
    if isinstance(chosen, Sampled):
        raise typer.BadParameter("sampled judges; to predict use exact, support or partition", param_hint="--how")
    where = device_named(device)
    operator = load(run, best=best, device=where) if run is not None else pretrained(pretrained_ or "", device=where)
    outputs = operator.features.outputs if operator.features else ("u",)
    domain, given = read_sample(input_, sample, repair)
    exporters.check(out, [*given, *outputs])
    asked = operator.sample(domain, **given)
    _warn_if_strange(operator, asked.a, asked.x)
    points = None if at is None else read_points(at)
    with progress_bar("predict") as progress:
        found = operator(asked, points, how=chosen, r=r, progress=progress).cpu()
    answers = {name: found[:, i].double() for i, name in enumerate(outputs)}
    if points is None:
        known = {name: values.double() for name, values in given.items() if name not in outputs}
        exporters.save(out, domain, {**known, **answers})
    else:
        exporters.save(out, Cloud(points), answers)
    count = len(found)
    text = f"{plain(out)}: {', '.join(outputs)} at {count} points"
    if points is None and all(name in given for name in outputs):
        truth = torch.stack([given[name].double() for name in outputs], 1)
        error = float((found.double() - truth).norm() / truth.norm())
        text += f"; relative error against {', '.join(outputs)} of the input {error:.4f}"
    console.print(text, soft_wrap=True)


def info(
    path: Annotated[Path | None, typer.Argument(help="A run, a saved operator, or a dataset. By default this machine.")] = None,
) -> None:
    """What a run, an operator or a dataset is; or what this machine has and how it computes."""
    if path is None:
        _info_machine()
    elif (path / RUN).is_file() or (path / CARD).is_file():
        try:
            _info_run(path) if (path / RUN).is_file() else _info_operator(path)
        except (KeyError, TypeError, AttributeError, IndexError) as error:
            raise CorruptFile(f"{path}: its entries are not of the kinds that gkn writes ({error})") from error
    elif (path / MANIFEST).is_file():
        data_info(path)
    else:
        raise FileNotFoundError(f"{path}: no run, operator or dataset; needed a folder with {RUN}, {CARD} or {MANIFEST}")


def _info_run(path: Path) -> None:
    run = read_sealed_json(path / RUN)
    newest, wrong = Checkpoints(path / STEPS).newest()
    state = newest.state if newest else {"epoch": 0, "metrics": [], "best": None}
    last = state["metrics"][-1] if state["metrics"] else {}
    tests = [entry["test"] for entry in state["metrics"] if entry["test"] is not None]
    best = state["best"]
    rows = {
        "run": f"epoch {state['epoch']} of {run['recipe']['epochs']}" + ("" if (path / OPERATOR).is_dir() else ", unfinished"),
        "loss": f"{last['loss']:.4g}" if last else "none yet",
        "test error": f"{tests[-1]:.4f}, best {best['test']:.4f} at step {best['step']}" if tests and best else "none",
        "model": _words(run["model"]),
        "rule": _words(run["rule"]),
        "recipe": _words(run["recipe"]),
        "fields": _fields(run["features"]),
        "time": f"{last['seconds']:.0f} s, {last['edges_per_second']:.3g} edges/s" if last else "none",
        "begun with": _words(run["versions"]),
    }
    print_rows(rows)
    for text in wrong:
        errors.print(f"[yellow]warning:[/] {plain(text)}")


def _info_operator(path: Path) -> None:
    card, tensors = read_card(path)
    numbers = sum(x.numel() for name, x in tensors.items() if name.startswith("model/"))
    about = card["about"]
    rows = {
        "operator": f"{numbers} parameters, {card['tensors']['bytes'] / 1e6:.1f} MB, as it was written",
        "model": _words(card["model"]),
        "rule": _words(card["rule"]) + (", quadrature weights" if card["weighted"] else ""),
        "fields": "unnamed" if card["features"] is None else _fields(card["features"]),
        "normaliser": ", ".join(
            f"{key} {'point-wise' if 'domain' in said else 'scalar'}" for key, said in card["normalizers"].items()
        ),
    } | {key: _words(value) for key, value in about.items()}
    print_rows(rows)


def _info_machine() -> None:
    from gkn.ops import choose
    from gkn.system.machine import versions
    from gkn.system.memory import available_memory

    devices = ["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_row("[bold]gkn[/]", plain(", ".join(f"{name} {number}" for name, number in versions().items())))
    for device in devices:
        what = f"{torch.get_num_threads()} threads" if device == "cpu" else torch.cuda.get_device_name(device)
        table.add_row(f"[bold]{device}[/]", f"{plain(what)}, {available_memory(device) / 2**30:.1f} GiB free")
        for kind in (torch.float32, torch.bfloat16, torch.float64):
            name, reason = choose(device, kind, 64)
            table.add_row("", f"kernel integral in {str(kind).removeprefix('torch.')}: [bold]{name}[/] ({plain(reason)})")
    table.add_row("[bold]pretrained[/]", plain(", ".join(names()) or "none"))
    console.print(table)


def _usual(parts: list[Dataset], m: int | None, mixed: int | None) -> float:
    """The radius of balls that have enough points of the coarsest of what is learned from."""
    counts = [usual_radius(each[0].domain, m) for each in parts]
    return max(counts if mixed is None else [*counts, usual_radius(parts[0][0].domain, mixed)])


# --- what the words on the command line mean -----------------------------------------------------------------------------


def device_named(given: str) -> str:
    device = ("cuda" if torch.cuda.is_available() else "cpu") if given == "auto" else given
    check_device(device)
    return device


def _named(device: str) -> str:
    return torch.cuda.get_device_name(device) if device.startswith("cuda") else f"cpu, {torch.get_num_threads()} threads"


def _types() -> dict[str, type]:
    """Of the entries of a recipe; `float | None` is a float here."""
    hints = get_type_hints(Recipe)
    return {
        each.name: get_args(hints[each.name])[0] if isinstance(hints[each.name], types.UnionType) else hints[each.name]
        for each in fields(Recipe)
    }


def _given(**options: Any) -> dict[str, Any]:
    return {key: value for key, value in options.items() if value is not None}


def _sizes(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    try:
        return tuple(int(size) for size in text.split(","))
    except ValueError:
        raise typer.BadParameter(f"{text!r}: needed sizes of layers, e.g. 128,256", param_hint="--kernel") from None


def _units(given: list[str]) -> dict[str, str]:
    pairs = [each.partition("=") for each in given]
    wrong = [given[i] for i, (_, equals, _) in enumerate(pairs) if not equals]
    if wrong:
        raise typer.BadParameter(f"{wrong[0]!r}: needed FIELD=UNIT, e.g. u=Pa", param_hint="--unit")
    return {name: value for name, _, value in pairs}


def _how(name: str, m: int | None, l: int) -> How | Sampled:
    kinds: dict[str, Any] = {"exact": Exact, "support": Support, "partition": Partition, "sampled": Sampled}
    if name not in kinds:
        raise typer.BadParameter(f"{name!r}: use one of {', '.join(kinds)}", param_hint="--how")
    if (name == "exact") != (m is None):
        raise typer.BadParameter(f"{name} {'takes all points' if name == 'exact' else 'needs --m NODES'}", param_hint="--m")
    made: How | Sampled = Exact() if m is None else Partition(m) if name == "partition" else kinds[name](m, l)
    return made


def _points(dataset: Dataset) -> str:
    domain = dataset[0].domain
    text = repr(dataset).partition(", on ")[2].removesuffix(")")
    return text if dataset.one_domain else f"{len(domain)} points and others"


def _words(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_words(inner)}" for key, inner in value.items() if inner is not None)
    if isinstance(value, list):
        return ", ".join(map(_words, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _fields(said: dict[str, Any]) -> str:
    smoothed = "".join(f", {name} smoothed by {width:.4g}" for name, width in said["smoothed"])
    units = "".join(f"; {name} in {unit}" for name, unit in said["units"].items())
    return f"{', '.join(said['given'])}{smoothed} -> {', '.join(said['outputs'])}{units}"


def _warn_if_strange(operator: Operator, a: torch.Tensor, x: torch.Tensor) -> None:
    """Inputs unlike those of training get an answer, and a word about what it is worth."""
    size = operator.inputs.encode(a, x).abs().amax(0)
    if float(size.max()) > 20:
        errors.print(
            f"[yellow]warning:[/] the input is {float(size.max()):.0f} standard deviations away from what the operator was "
            f"trained on; do not trust its answer"
        )


@contextmanager
def training_bar(out: Path) -> Iterator[Report]:
    """A bar with the loss, the test error, edges per second and the time left."""
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
