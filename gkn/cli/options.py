"""Options of verbs as dataclasses: a field for each option, with its help text and default."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields
from functools import wraps
from typing import Any, TypeVar, get_type_hints

T = TypeVar("T")


def verb(options: type[T]) -> Callable[[Callable[[T], None]], Callable[..., None]]:
    """Turn a function of an options dataclass into a verb of the command line whose options are the fields."""
    hints = get_type_hints(options, include_extras=True)
    parameters = [
        inspect.Parameter(
            field.name,
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
            default=inspect.Parameter.empty if field.default is MISSING else field.default,
            annotation=hints[field.name],
        )
        for field in fields(options)  # type: ignore[arg-type]
    ]

    def wrap(function: Callable[[T], None]) -> Callable[..., None]:
        @wraps(function)
        def call(**given: Any) -> None:
            function(options(**given))

        call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return call

    return wrap
