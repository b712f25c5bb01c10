"""gkn data: make, import, inspect and check datasets."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from gkn.cli.options import verb
from gkn.cli.shell import Config, DatasetPath, Force, console, plain, print_rows, progress_bar, settings
from gkn.data.check import Finding, Pde, check_dataset
from gkn.data.dataset import Dataset, described
from gkn.data.generate import make_dataset
from gkn.data.problems import PROBLEMS, problem_named
from gkn.data.readers import READERS, ReadOptions, describe, read_files, to_dataset
from gkn.data.storage import Manifest
from gkn.data.stored import Stored

app = typer.Typer(no_args_is_help=True, help="Make, import, inspect and check datasets.")


@dataclass(frozen=True)
class MakeOptions:
    """Options of `gkn data make`."""

    problem: Annotated[str, typer.Argument(help=f"Problem to solve: {', '.join(PROBLEMS)}.")]
    out: Annotated[Path, typer.Option(help="The dataset folder to make, or to resume.")]
    n: Annotated[int, typer.Option(min=1, help="Number of samples.")] = 100
    size: Annotated[int | None, typer.Option(min=2, help="Points per side (of meshes: about).")] = None
    seed: Annotated[int, typer.Option(min=0, help="One seed is one dataset.")] = 0
    workers: Annotated[int, typer.Option(min=1, help="Processes; the bits do not depend on it.")] = os.cpu_count() or 1
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu"
    set_: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Another parameter of the problem.")] = (
        None
    )
    force: Force = False
    config: Config = None


@app.command("make")
@verb(MakeOptions)
def data_make(options: MakeOptions) -> None:
    """Make a dataset. After an interruption, the same command resumes."""
    problem = problem_named(options.problem, **_parameters(options.problem, options.size, options.set_ or []))
    start = time.perf_counter()
    how: dict[str, Any] = {"workers": options.workers, "device": options.device, "force": options.force}
    with progress_bar(f"{options.problem}, seed {options.seed}") as progress:
        made = make_dataset(problem, options.n, options.seed, options.out, progress=progress, **how)
    console.print(f"{plain(options.out)}: {plain(repr(made))}, {time.perf_counter() - start:.1f} s", soft_wrap=True)


def _parameters(problem: str, size: int | None, given: list[str]) -> dict[str, Any]:
    known = fields(PROBLEMS[problem]) if problem in PROBLEMS else ()
    parameters = {} if size is None else {"size": size}
    return parameters | settings(given, {each.name: type(each.default) for each in known})


@dataclass(frozen=True)
class ImportOptions:
    """Options of `gkn data import`."""

    files: Annotated[list[str], typer.Argument(help=f"Files that end in {', '.join(READERS)}; folders; or patterns in quotes.")]
    out: Annotated[Path, typer.Option(help="The dataset folder to make.")]
    output: Annotated[list[str] | None, typer.Option(help="A field to be learned; may be repeated. By default u.")] = None
    input_: Annotated[
        list[str] | None,
        typer.Option(
            "--input", help="A field or parameter to learn from; may be repeated. By default those of the file format."
        ),
    ] = None
    parameters: Annotated[
        Path | None,
        typer.Option(help="A .csv file with numbers of each file, e.g. with the columns file,load. They are inputs."),
    ] = None
    nodes: Annotated[
        str | None, typer.Option(help="Where values of arrays without coordinates lie: vertices, centres or left.")
    ] = None
    box: Annotated[
        str | None,
        typer.Option(metavar="LOW:HIGH,...", help="Sides of the box of such arrays, e.g. 0:2,0:1. By default the unit box."),
    ] = None
    periodic: Annotated[bool, typer.Option(help="Such arrays are periodic along all axes.")] = False
    low: Annotated[float, typer.Option(help="Meaning of False in a boolean coefficient.")] = 3.0
    high: Annotated[float, typer.Option(help="Meaning of True in a boolean coefficient.")] = 12.0
    repair: Annotated[bool, typer.Option(help="Drop flat cells and points that belong to no cell.")] = False
    as_samples: Annotated[
        bool, typer.Option(help="Take each state of a series over time as a sample of its own, with the parameter time.")
    ] = False
    force: Force = False


@app.command("import")
@verb(ImportOptions)
def data_import(options: ImportOptions) -> None:
    """Make a dataset of files you have, and say what was understood, moved, dropped and not used."""
    if options.nodes not in (None, "vertices", "centres", "left"):
        raise typer.BadParameter(f"{options.nodes!r}: use vertices, centres or left", param_hint="--nodes")
    nodes: Any = options.nodes
    arrays = (nodes, options.low, options.high, options.repair, _box(options.box), options.periodic)
    reading = ReadOptions(*arrays, options.as_samples)
    content = read_files(options.files, reading, options.parameters)

    def report(line: str) -> None:
        console.print(plain(line), soft_wrap=True)

    for line in describe(content):
        report(line)
    dataset = to_dataset(content, options.output or ["u"], options.input_, report)
    names = [Path(file).name for file in options.files]
    dataset.save(options.out, origin={"name": "import", "files": names, **reading.json()}, force=options.force)
    console.print(f"{plain(options.out)}: {plain(repr(dataset))}", soft_wrap=True)


def _box(text: str | None) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    """Return the corners of the box that LOW:HIGH,LOW:HIGH describes."""
    if text is None:
        return None
    try:
        sides = [tuple(map(float, side.split(":"))) for side in text.split(",")]
        low, high = zip(*((a, b) for a, b in sides), strict=True)
    except ValueError:
        raise typer.BadParameter(f"{text!r}: needed LOW:HIGH for every axis, e.g. 0:2,0:1", param_hint="--box") from None
    return low, high


@app.command("info")
def data_info(path: DatasetPath) -> None:
    """Show where a dataset came from, what is in it and how large it is."""
    manifest, stored = Manifest.read(path), Stored(path, partial=True)
    parameters = "".join(f", {key} = {value}" for key, value in manifest.origin.items() if key != "name")
    rows = {
        "origin": manifest.origin.get("name", "?") + parameters,
        "seed": "none" if manifest.seed is None else str(manifest.seed),
        "samples": str(manifest.n) if manifest.complete else f"{stored.n} of {manifest.n}: unfinished",
        "domain": described(stored.common_domain),
        "fields": f"{', '.join(manifest.inputs)} -> {', '.join(manifest.outputs)}"
        + (" over time" if manifest.evolving else ""),
        "on disk": f"{sum(shard.bytes for shard in manifest.shards) / 1e6:.1f} MB in {len(manifest.shards)} shards",
        "made with": ", ".join(f"{name} {number}" for name, number in sorted(manifest.versions.items())),
        "hash": manifest.hash,
    }
    print_rows(rows)


@app.command("check")
def data_check(
    path: DatasetPath,
    pde: Annotated[
        str | None, typer.Option(help="The equation imported data should satisfy: darcy (f = 1) or poisson.")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
) -> None:
    """Check hashes, values, boundary, the PDE residual of every sample, and that no sample occurs twice."""
    if pde not in (None, "darcy", "poisson"):
        raise typer.BadParameter(f"{pde!r}: use darcy or poisson", param_hint="--pde")
    equation: Pde | None = None if pde is None else "darcy" if pde == "darcy" else "poisson"
    with progress_bar("check") as progress:
        findings = check_dataset(path, pde=equation, device=device, progress=progress)
    _print_findings(findings)
    if any(finding.ok is False for finding in findings):
        raise typer.Exit(1)


def _print_findings(findings: list[Finding]) -> None:
    signs = {True: "[green]ok[/]", False: "[bold red]BAD[/]", None: "[yellow]--[/]"}
    table = Table(show_header=False, box=None, pad_edge=False)
    for finding in findings:
        table.add_row(signs[finding.ok], f"[bold]{finding.what}[/]", plain(finding.text))
    console.print(table)


@app.command("show")
def data_show(
    path: DatasetPath,
    out: Annotated[Path, typer.Option(help="The picture: .png, .pdf or .svg.")],
    samples: Annotated[int, typer.Option(min=1, max=12, help="Number of samples.")] = 4,
) -> None:
    """Draw the first samples."""
    from gkn.data.plot import show_dataset

    if not out.suffix:
        raise ValueError(f"{out}: needed a file name that ends in .png, .pdf or .svg")
    dataset = Dataset.open(path, partial=True)
    if not len(dataset):
        raise ValueError(f"{path}: no sample is finished yet; run the command that makes it again")
    show_dataset(dataset, out, samples)
    console.print(plain(out), soft_wrap=True)
