"""The command line: one verb, one function."""

from __future__ import annotations

import errno
import os
import signal
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

import gkn
from gkn import generate as recipes
from gkn.check import Finding, Pde, check_dataset
from gkn.dataset import Dataset
from gkn.domain import Grid
from gkn.generate import WorkerLost
from gkn.importers import Nodes, load
from gkn.pde import NotConverged
from gkn.storage import ExistingDataset, Manifest, Reader

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=gkn.__doc__)
data = typer.Typer(no_args_is_help=True, help="Make, import, look at and check datasets.")
app.add_typer(data, name="data")
console = Console(highlight=False)
errors = Console(stderr=True, highlight=False, soft_wrap=True)


def main() -> None:
    """Expected failures are one sentence on stderr and an exit code; anything else is a bug and shows where."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _stop)
    try:
        app()
    except _Stopped as stopped:
        what = "interrupted" if stopped.number == signal.SIGINT else "terminated"
        _fail(f"{what}; what was finished is kept, run the same command again to go on", 128 + stopped.number)
    except OSError as error:
        text = f"{error.strerror or error}: {error.filename}" if error.filename else str(error)
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        _fail(f"{text}; what was finished is kept: make room and run the same command again" if full else text, 1)
    except KeyError as error:
        _fail(str(error.args[0]), 1)
    except (ValueError, ImportError, ArithmeticError, MemoryError, NotConverged, WorkerLost) as error:
        _fail(str(error) or "out of memory", 1)
    except RuntimeError as error:  # torch has no class of its own for this on the CPU
        if "memory" not in str(error):
            raise
        _fail(f"out of memory: {str(error).splitlines()[0]}", 1)


class _Stopped(BaseException):
    """By a signal. No KeyboardInterrupt, which typer would take for its own."""

    def __init__(self, number: int) -> None:
        self.number = number


def _stop(number: int, frame: object) -> None:
    raise _Stopped(number)


def _fail(text: str, code: int) -> None:
    errors.print(f"[bold red]error:[/] {_plain(text)}")
    sys.exit(code)


def _plain(text: object) -> str:
    """As it is: no markup, and no control characters that somebody's file may carry."""
    return escape("".join(character if character.isprintable() else "?" for character in str(text)))


def _config(context: typer.Context, path: Path | None) -> Path | None:
    """`--config file.toml` fills the flags that are not given."""
    if path is not None:
        try:
            given = tomllib.loads(path.read_text())
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise typer.BadParameter(f"{path}: not TOML: {error}") from error
        options = {
            option.lstrip("-"): parameter.name
            for parameter in context.command.params
            for option in parameter.opts
            if option.startswith("-")
        }
        unknown = [key for key in given if key not in options]
        if unknown:
            raise typer.BadParameter(f"{path}: no such option {unknown[0]!r}; there are {', '.join(options)}")
        filled = {options[key]: value for key, value in given.items()}
        context.default_map = {**(context.default_map or {}), **filled}
    return path


Config = Annotated[
    Path | None,
    typer.Option(callback=_config, is_eager=True, exists=True, dir_okay=False, help="A TOML file that fills flags; flags win."),
]
DatasetPath = Annotated[Path, typer.Argument(help="A dataset folder.")]
Force = Annotated[bool, typer.Option(help="Overwrite a dataset that is there already.")]


@contextmanager
def _progress(what: str) -> Iterator[Callable[[int, int], None]]:
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=errors) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@app.callback(invoke_without_command=True)
def version(show: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if show:
        console.print(f"gkn {gkn.__version__}")
        raise typer.Exit


def _help_recipes() -> str:
    return "Which data: " + ", ".join(recipes.RECIPES) + "."


@data.command("make")
def data_make(
    recipe: Annotated[str, typer.Argument(help=_help_recipes())],
    out: Annotated[Path, typer.Option(help="The dataset folder to make, or to go on with.")],
    n: Annotated[int, typer.Option(min=1, help="How many samples.")] = 100,
    size: Annotated[int | None, typer.Option(min=2, help="Points a side (meshes: about).")] = None,
    seed: Annotated[int, typer.Option(min=0, help="One seed is one dataset.")] = 0,
    workers: Annotated[int, typer.Option(min=1, help="Processes; the bits do not depend on it.")] = os.cpu_count() or 1,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Another parameter of the recipe.")
    ] = None,
    force: Force = False,
    config: Config = None,
) -> None:
    """Make a dataset. Interrupted, it goes on when run again."""
    chosen = recipes.recipe(recipe, **_parameters(recipe, size, set_ or []))
    start = time.perf_counter()
    with _progress(f"{recipe}, seed {seed}") as progress:
        made = recipes.make_dataset(chosen, n, seed, out, workers=workers, device=device, force=force, progress=progress)
    console.print(f"{_plain(out)}: {_plain(repr(made))}, {time.perf_counter() - start:.1f} s", soft_wrap=True)


def _parameters(recipe: str, size: int | None, settings: list[str]) -> dict[str, Any]:
    parameters: dict[str, Any] = {} if size is None else {"size": size}
    types: dict[str, type] = (
        {field.name: type(field.default) for field in fields(recipes.RECIPES[recipe])} if recipe in recipes.RECIPES else {}
    )
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals:
            raise ValueError(f"--set {setting}: needed KEY=VALUE, e.g. --set tau=5")
        kind = types.get(key, str)
        try:
            parameters[key] = {"true": True, "false": False}[value.lower()] if kind is bool else kind(value)
        except (ValueError, KeyError):
            needed = "true or false" if kind is bool else f"a number of type {kind.__name__}"
            raise ValueError(f"--set {setting}: {key} is {needed}, {value!r} is not") from None
    return parameters


@data.command("import")
def data_import(
    files: Annotated[list[Path], typer.Argument(help=".mat, .pt, .h5, .npz, .vtu, .vtk, .msh and other meshes in one file.")],
    out: Annotated[Path, typer.Option(help="The dataset folder to make.")],
    output: Annotated[list[str] | None, typer.Option(help="A field to be learned; the others are inputs. [default: u]")] = None,
    nodes: Annotated[
        str, typer.Option(help="Where arrays without coordinates have their values: vertices or centres.")
    ] = "vertices",
    low: Annotated[float, typer.Option(help="What False means in a boolean coefficient.")] = 3.0,
    high: Annotated[float, typer.Option(help="What True means in a boolean coefficient.")] = 12.0,
    repair: Annotated[bool, typer.Option(help="Turn clockwise mesh cells round and drop unused points.")] = False,
    force: Force = False,
) -> None:
    """Make a dataset of files you have."""
    if nodes not in ("vertices", "centres"):
        raise typer.BadParameter(f"{nodes!r}: use vertices or centres", param_hint="--nodes")
    where: Nodes = "vertices" if nodes == "vertices" else "centres"
    dataset = load(files, outputs=output or ["u"], nodes=where, low=low, high=high, repair=repair)
    recipe = {"name": "import", "files": [file.name for file in files], "nodes": nodes, "low_is": low, "high_is": high}
    dataset.save(out, recipe=recipe, force=force)
    console.print(f"{_plain(out)}: {_plain(repr(dataset))}", soft_wrap=True)


@data.command("info")
def data_info(path: DatasetPath) -> None:
    """What a dataset is: where it came from, what is in it, how large."""
    manifest, reader = Manifest.read(path), Reader(path, partial=True)
    recipe = {key: value for key, value in manifest.recipe.items() if key != "name"}
    domain = reader.one_domain
    where = (
        "one domain per sample"
        if domain is None
        else repr(domain)
        if isinstance(domain, Grid)
        else f"{type(domain).__name__}, {len(domain)} points"
    )
    rows = {
        "recipe": manifest.recipe.get("name", "?") + "".join(f", {key} = {value}" for key, value in recipe.items()),
        "seed": "none" if manifest.seed is None else str(manifest.seed),
        "samples": str(manifest.n) if manifest.complete else f"{reader.n} of {manifest.n}: unfinished",
        "domain": where,
        "fields": f"{', '.join(manifest.inputs)} -> {', '.join(manifest.outputs)}",
        "on disk": f"{sum(shard.bytes for shard in manifest.shards) / 1e6:.1f} MB in {len(manifest.shards)} shards",
        "made with": ", ".join(f"{name} {number}" for name, number in sorted(manifest.versions.items())),
        "hash": manifest.hash,
    }
    table = Table(show_header=False, box=None, pad_edge=False)
    for key, value in rows.items():
        table.add_row(f"[bold]{key}[/]", _plain(value))
    console.print(table)


@data.command("check")
def data_check(
    path: DatasetPath,
    pde: Annotated[
        str | None, typer.Option(help="Which equation imported data should satisfy: darcy (f = 1) or poisson.")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
) -> None:
    """Check hashes, values, boundary, the PDE residual of every sample, and that no sample is there twice."""
    if pde not in (None, "darcy", "poisson"):
        raise typer.BadParameter(f"{pde!r}: use darcy or poisson", param_hint="--pde")
    equation: Pde | None = None if pde is None else "darcy" if pde == "darcy" else "poisson"
    with _progress("check") as progress:
        findings = check_dataset(path, pde=equation, device=device, progress=progress)
    _print_findings(findings)
    if any(finding.ok is False for finding in findings):
        raise typer.Exit(1)


def _print_findings(findings: list[Finding]) -> None:
    signs = {True: "[green]ok[/]", False: "[bold red]BAD[/]", None: "[yellow]--[/]"}
    table = Table(show_header=False, box=None, pad_edge=False)
    for finding in findings:
        table.add_row(signs[finding.ok], f"[bold]{finding.what}[/]", _plain(finding.text))
    console.print(table)


@data.command("show")
def data_show(
    path: DatasetPath,
    out: Annotated[Path, typer.Option(help="The picture: .png, .pdf or .svg.")],
    samples: Annotated[int, typer.Option(min=1, max=12, help="How many samples.")] = 4,
) -> None:
    """Draw the first samples."""
    from gkn.plot import show_dataset

    if not out.suffix:
        raise ValueError(f"{out}: say what kind of picture by its ending: .png, .pdf or .svg")
    dataset = Dataset.open(path, partial=True)
    if not len(dataset):
        raise ValueError(f"{path}: no sample is finished yet; run the command that makes it again")
    show_dataset(dataset, out, samples)
    console.print(_plain(out), soft_wrap=True)


@app.command("info")
def info() -> None:
    """What this machine has, and how the kernel integral is computed on it."""
    import torch

    from gkn.memory import available_memory
    from gkn.ops import choose
    from gkn.storage import versions

    devices = ["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_row("[bold]gkn[/]", _plain(", ".join(f"{name} {number}" for name, number in versions().items())))
    for device in devices:
        what = f"{torch.get_num_threads()} threads" if device == "cpu" else torch.cuda.get_device_name(device)
        table.add_row(f"[bold]{device}[/]", f"{_plain(what)}, {available_memory(device) / 2**30:.1f} GiB free")
        for kind in (torch.float32, torch.bfloat16, torch.float64):
            name, reason = choose(device, kind, 64)
            table.add_row("", f"kernel integral in {str(kind).removeprefix('torch.')}: [bold]{name}[/] ({_plain(reason)})")
    console.print(table)


@app.command("demo")
def demo(
    out: Annotated[Path, typer.Option(help="Where to put everything.")] = Path("runs/demo"),
    n: Annotated[int, typer.Option(min=1, help="How many Darcy problems.")] = 64,
    size: Annotated[int, typer.Option(min=3, help="Grid points a side.")] = 121,
) -> None:
    """Make a small Darcy dataset, check it, draw it. Interrupted, it goes on when run again."""
    folder = out / f"darcy{size}-{n}"
    try:
        data_make("darcy", folder, n=n, size=size, workers=os.cpu_count() or 1)
    except ExistingDataset:  # by another version of gkn or torch; the demo's own data can be made again
        data_make("darcy", folder, n=n, size=size, workers=os.cpu_count() or 1, force=True)
    data_check(folder)
    data_show(folder, out / "darcy.png")
