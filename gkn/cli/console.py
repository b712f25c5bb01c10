"""Consoles and plain text for them."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape

console = Console(highlight=False)
errors = Console(stderr=True, highlight=False, soft_wrap=True)


def plain(text: object) -> str:
    """Return text without markup, and without control characters that a file may carry."""
    return escape("".join(character if character.isprintable() else "?" for character in str(text)))


def literal(text: object) -> str:
    """Return plain text for a column of a progress bar, which would fill in what is in braces."""
    return plain(text).replace("{", "{{").replace("}", "}}")


def warn(text: str) -> None:
    """Print a warning."""
    errors.print(f"[yellow]warning:[/] {plain(text)}")
