"""What the verbs share: consoles, progress, configuration files."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

console = Console(highlight=False)
errors = Console(stderr=True, highlight=False, soft_wrap=True)


def plain(text: object) -> str:
    """As it is: no markup, and no control characters that somebody's file may carry."""
    return escape("".join(character if character.isprintable() else "?" for character in str(text)))


def literal(text: object) -> str:
    """The same for a column of a progress bar, which would fill in what is in braces."""
    return plain(text).replace("{", "{{").replace("}", "}}")


def fill(context: typer.Context, path: Path | None) -> Path | None:
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
    typer.Option(callback=fill, is_eager=True, exists=True, dir_okay=False, help="A TOML file that fills flags; flags win."),
]
DatasetPath = Annotated[Path, typer.Argument(help="A dataset folder.")]
Force = Annotated[bool, typer.Option(help="Overwrite a dataset that is there already.")]


@contextmanager
def progress_bar(what: str) -> Iterator[Callable[[int, int], None]]:
    columns = (TextColumn(literal(what)), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=errors) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def settings(given: list[str], types: dict[str, type]) -> dict[str, Any]:
    """KEY=VALUE, each of the type its key has."""
    found: dict[str, Any] = {}
    for setting in given:
        key, equals, value = setting.partition("=")
        if not equals:
            raise ValueError(f"--set {setting}: needed KEY=VALUE, e.g. --set {next(iter(types), 'key')}=5")
        kind = types.get(key, str)
        if value.lower() == "none" and kind is float:
            found[key] = None  # refused by what does not allow it
            continue
        try:
            found[key] = {"true": True, "false": False}[value.lower()] if kind is bool else kind(value)
        except (ValueError, KeyError):
            needed = "true or false" if kind is bool else f"a number of type {kind.__name__}"
            raise ValueError(f"--set {setting}: {key} is {needed}, {value!r} is not") from None
    return found


def print_rows(rows: dict[str, str]) -> None:
    table = Table(show_header=False, box=None, pad_edge=False)
    for key, value in rows.items():
        table.add_row(f"[bold]{plain(key)}[/]", plain(value))
    console.print(table)
