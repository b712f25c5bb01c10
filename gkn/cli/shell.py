"""Helpers of all verbs: consoles, progress bars, configuration files, and conversion of words on the command line."""

from __future__ import annotations

import ast
import tomllib
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, get_args

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from gkn.cli.console import console, errors, literal, plain, warn
from gkn.operator.operator import Operator
from gkn.operator.runs import RUN
from gkn.operator.saved import is_finished, load
from gkn.operator.ways import Exact, How, Partition, Sampled, Spread, Support
from gkn.system.files import CorruptFile, read_regular

__all__ = ["console", "errors", "literal", "plain", "warn"]  # re-exported


def fill(context: typer.Context, path: Path | None) -> Path | None:
    """Fill the options that are not given from the TOML file of `--config`."""
    if path is not None:
        try:
            given = tomllib.loads(read_regular(path, MOST_CONFIG).decode())
        except CorruptFile as error:
            raise typer.BadParameter(str(error)) from error
        except RecursionError as error:
            raise typer.BadParameter(f"{path}: not TOML that gkn reads: nested too deeply") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise typer.BadParameter(f"{path}: not TOML: {error}") from error
        options = {
            option.lstrip("-"): parameter
            for parameter in context.command.params
            for option in parameter.opts
            if option.startswith("-")
        }
        unknown = [key for key in given if key not in options]
        if unknown:
            raise typer.BadParameter(f"{path}: no such option {unknown[0]!r}; there are {', '.join(options)}")
        for key, value in given.items():
            _check_type(path, key, value, options[key])
        filled = {options[key].name: value for key, value in given.items()}
        context.default_map = {**(context.default_map or {}), **filled}
    return path


_NEEDED: dict[str, tuple[Any, str]] = {
    "bool": (bool, "true or false"),
    "int": (int, "a whole number"),
    "float": ((int, float), "a number"),
}


def _kind(parameter: Any) -> str:
    """Return the name of the type of an option, or of the elements of its list."""
    described = getattr(parameter, "type_descriptor", None)
    if described is None:  # before typer 0.29
        names = {"boolean": "bool", "integer": "int", "integer range": "int", "float range": "float"}
        return names.get(parameter.type.name, str(parameter.type.name))
    inner = (*get_args(described.annotation), described.annotation)[0]
    return str(getattr(inner, "__name__", ""))


def _check_type(path: Path, key: str, value: Any, parameter: Any) -> None:
    """Refuse values of another type than the option has, which would be converted without a word: true to 1.0, 2.5 to 2."""
    many, shown = parameter.multiple, "true" if value is True else "false" if value is False else _shown(value)
    kind, words = _NEEDED.get(_kind(parameter), ((str, int, float), "a text or a number"))
    each = value if isinstance(value, list) else [value]
    right = all(isinstance(one, kind) and (kind is bool or not isinstance(one, bool)) for one in each)
    if not right or isinstance(value, list) != many:
        raise typer.BadParameter(f"{path}: {key} = {shown}: needed {words}{', in a list such as [1, 2]' if many else ''}")


def _shown(value: Any) -> str:
    try:
        text = repr(value)
    except RecursionError:
        return "a value that is nested deeply"
    return text if len(text) <= 80 else f"{text[:80]} ..."


MOST_CONFIG = 2**16
"""Bytes that a file of options may have."""
Config = Annotated[
    Path | None,
    typer.Option(
        callback=fill,
        is_eager=True,
        exists=True,
        dir_okay=False,
        help="A TOML file with options; the command line takes precedence.",
    ),
]
DatasetPath = Annotated[Path, typer.Argument(help="A dataset folder.")]
RunPath = Annotated[Path, typer.Argument(help="The folder of a run or of a saved operator.")]
Force = Annotated[bool, typer.Option(help="Remove another dataset that is in the folder first.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:1.")]
R = Annotated[float | None, typer.Option("--r", help="Another radius than in training.")]
M = Annotated[int | None, typer.Option("--m", min=1, help="Nodes that are used, for spread, support, partition and sampled.")]
L = Annotated[int, typer.Option("--l", min=1, help="Draws of nodes that are averaged.")]
Best = Annotated[
    bool | None,
    typer.Option("--best/--last", help="The network with the smallest validation error, or the last one. By default the best."),
]


def load_chosen(run: Path, best: bool | None, device: str) -> Operator:
    """Load the best or the last network of a run; of one that is unfinished only if the best is asked for."""
    finished = not (run / RUN).exists() or is_finished(run)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        operator = load(run, best=finished if best is None else best, device=device)
    for each in caught:
        warn(str(each.message))
    return operator


@contextmanager
def progress_bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """Show a bar; yield a function of (done, total) that moves it."""
    columns = (TextColumn(literal(what)), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=errors) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def settings(given: list[str], types: dict[str, type]) -> dict[str, Any]:
    """Read KEY=VALUE pairs, each value of the type its key has."""
    found: dict[str, Any] = {}
    for setting in given:
        key, equals, value = setting.partition("=")
        if not equals:
            raise ValueError(f"--set {setting}: needed KEY=VALUE, e.g. --set {next(iter(types), 'key')}=5")
        kind = types.get(key, str)
        if value.lower() == "none" and kind in (float, str):
            found[key] = None  # refused by what does not allow it
            continue
        try:
            found[key] = {"true": True, "false": False}[value.lower()] if kind is bool else kind(value)
        except (ValueError, KeyError):
            needed = "true or false" if kind is bool else f"a number of type {kind.__name__}"
            raise ValueError(f"--set {setting}: {key} is {needed}, {value!r} is not") from None
    return found


def literals(given: list[str], option: str) -> dict[str, Any]:
    """Read KEY=VALUE pairs whose values are numbers, true, false, or lists such as 128,256."""
    words = {"true": True, "false": False, "none": None}
    found: dict[str, Any] = {}
    for setting in given:
        key, equals, value = setting.partition("=")
        if not equals:
            raise typer.BadParameter(f"{setting!r}: needed KEY=VALUE, e.g. width=64", param_hint=option)
        try:
            found[key] = words[value.lower()] if value.lower() in words else ast.literal_eval(value)
        except (ValueError, SyntaxError, MemoryError, RecursionError):  # the last two if it is nested deeply
            raise typer.BadParameter(
                f"{setting!r}: needed a number or a list of numbers, e.g. 128,256", param_hint=option
            ) from None
    return found


def way_named(name: str, m: int | None, l: int) -> How | Sampled:
    """Return the way to predict that `--how`, `--m` and `--l` describe."""
    kinds: dict[str, Any] = {
        "exact": Exact,
        "spread": Spread,
        "support": Support,
        "partition": Partition,
        "sampled": Sampled,
    }
    if name not in kinds:
        raise typer.BadParameter(f"{name!r}: use one of {', '.join(kinds)}", param_hint="--how")
    if (name == "exact") != (m is None):
        raise typer.BadParameter(f"{name} {'takes all points' if name == 'exact' else 'needs --m NODES'}", param_hint="--m")
    if m is None:
        return Exact()
    made: How | Sampled = kinds[name](m) if name in ("spread", "partition") else kinds[name](m, l)
    return made


def print_rows(rows: Mapping[str, str]) -> None:
    """Print a table of names and values."""
    table = Table(show_header=False, box=None, pad_edge=False)
    for key, value in rows.items():
        table.add_row(f"[bold]{plain(key)}[/]", plain(value))
    console.print(table)
