"""The `gkn` command. Signals and closed streams are taken care of before anything that takes time is imported."""

from __future__ import annotations

import os
import signal

for _stream in (0, 1, 2):  # a file that is opened later must not take the number of a closed stream, and what is printed there
    try:
        os.fstat(_stream)
    except OSError:
        os.open(os.devnull, os.O_RDWR)


def end_at_once(number: int, frame: object) -> None:
    """End the process: nothing has begun that could be saved."""
    try:
        os.write(2, b"error: interrupted before anything had begun\n")
    finally:
        os._exit(128 + number)


def main() -> None:
    """Run the command line."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end_at_once)
    from gkn.cli import main as run

    run()


if __name__ == "__main__":
    main()
