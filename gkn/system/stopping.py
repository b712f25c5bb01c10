"""Stopped: a signal ended the work."""

from __future__ import annotations

import signal


class Stopped(BaseException):
    """A signal stopped the run. It is saved, and the same call resumes it."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.number = number
