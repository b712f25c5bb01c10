"""A progress bar for training, shown on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from gkn.train.progress import Report, Status


@contextmanager
def training_bar(name: str) -> Iterator[Report]:
    """Show a bar with the loss, the validation error, edges per second and the time left."""
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, Progress, TextColumn

    shown = escape("".join(character if character.isprintable() else "?" for character in name))
    columns = (TextColumn(shown.replace("{", "{{").replace("}", "}}")), BarColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=Console(stderr=True, highlight=False, soft_wrap=True)) as bar:
        task = bar.add_task("reading the data", total=None)

        def report(now: Status) -> None:
            error = "" if now.validation is None else f", validation {now.validation:.4f}"
            minutes, seconds = divmod(round(now.seconds_left), 60)
            text = (
                f"epoch {min(now.epoch + 1, now.epochs)}/{now.epochs}, loss {now.loss:.4g}{error}, "
                f"{now.edges_per_second:.2g} edges/s, {minutes}:{seconds:02d} left"
            )
            bar.update(task, completed=now.step, total=now.steps, description=text)

        yield report


@contextmanager
def default_report(report: Report | None) -> Iterator[Report | None]:
    """Yield the report that was given; without one, a bar if the errors go to a terminal or a notebook."""
    if report is not None or not _is_seen():
        yield report
        return
    with training_bar("fit") as bar:
        yield bar


def _is_seen() -> bool:
    """True if the errors stream is a terminal or a notebook. A program may have closed it, or have been started without."""
    from rich.console import Console

    try:
        return sys.stderr.isatty() or Console(stderr=True).is_jupyter
    except (AttributeError, ValueError, OSError):
        return False
