"""Stopped: a signal ended the work."""

from __future__ import annotations

import os
import signal
import threading
import time


class Stopped(BaseException):
    """A signal stopped the run. It is saved, and the same call resumes it."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.number = number


def end_with(parent: int) -> None:
    """Let this process end soon after its parent. If the parent is killed, nobody else would end it."""
    threading.Thread(target=_wait_for, args=(parent,), daemon=True).start()


def _wait_for(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)
