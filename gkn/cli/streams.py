"""Standard streams that a program can print to, whether or not anybody is there to read."""

from __future__ import annotations

import errno
import os
import sys
from typing import Any


class Unfailing:
    """A text stream whose writes never raise. If the stream is closed or its disk is full, what is printed is lost.

    failed   the reason, if something was lost
    """

    def __init__(self, stream: Any) -> None:
        self.stream, self.failed = stream, ""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        self._try("write", text)
        return len(text)

    def flush(self) -> None:
        self._try("flush")

    def isatty(self) -> bool:
        return bool(self._try("isatty"))

    def _try(self, method: str, *given: Any) -> Any:
        if self.stream is None:  # closed when the program was started
            return None
        try:
            return getattr(self.stream, method)(*given)
        except (OSError, ValueError) as error:  # ValueError: closed since
            if getattr(error, "errno", None) != errno.EPIPE:  # the reader has ended, such as head
                self.failed = getattr(error, "strerror", None) or str(error)
            self._discard()
            return None

    def _discard(self) -> None:
        """Send what is left, and what follows, to nowhere: Python would complain about it at the end."""
        try:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.stream.fileno())
            os.close(nowhere)
        except (OSError, ValueError, AttributeError):
            self.stream = None


def guard_streams() -> Unfailing:
    """Let prints to the standard streams never raise; return the standard output, which knows whether something was lost."""
    out = Unfailing(sys.stdout)
    sys.stdout, sys.stderr = out, Unfailing(sys.stderr)
    return out
