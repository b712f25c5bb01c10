"""The command line: one verb, one function."""

from __future__ import annotations

import errno
import signal
import sys
from typing import Annotated

import torch
import typer

import gkn
from gkn.cli import beyond, data, demo, evaluate, info, predict, reproduce, train
from gkn.cli.shell import console, errors, plain
from gkn.data.generate import WorkerLost
from gkn.pde import NotConverged
from gkn.system.memory import keep_freed
from gkn.train.ranks import Stopped

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=gkn.__doc__)
app.add_typer(data.app, name="data")
app.command("demo")(demo.demo)
app.command("train")(train.train)
app.command("eval")(evaluate.evaluate)
app.command("predict")(predict.predict)
app.command("info")(info.info)
app.command("reproduce")(reproduce.reproduce)
app.command("beyond")(beyond.beyond)


def main() -> None:
    """Run the command line. Expected failures print one sentence and exit with a code; anything else shows its traceback."""
    keep_freed()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _stop)
    try:
        try:
            app()
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):  # from here on a signal ends the process quietly
                signal.signal(number, signal.SIG_DFL)
    except Stopped as stopped:
        what = "interrupted" if stopped.number == signal.SIGINT else "terminated"
        _fail(f"{what}; what was finished is kept, run the same command again to go on", 128 + stopped.number)
    except OSError as error:
        text = f"{error.strerror or error}: {error.filename}" if error.filename else str(error)
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        _fail(f"{text}; what was finished is kept: free some space and run the same command again" if full else text, 1)
    except KeyError as error:
        _fail(str(error.args[0]), 1)
    except (ValueError, ImportError, ArithmeticError, MemoryError, NotConverged, WorkerLost) as error:
        _fail(str(error) or "out of memory", 1)
    except RuntimeError as error:  # torch has no classes of its own for these
        first = (str(error).splitlines() or [""])[0]
        if torch.distributed.is_initialized():
            _fail(f"another rank died, or did not answer in time ({first}); what was saved is kept, run it again to go on", 1)
        if "memory" not in str(error):
            raise
        _fail(f"out of memory: {first}", 1)


def _stop(number: int, frame: object) -> None:
    raise Stopped(number)  # not KeyboardInterrupt, which typer would handle itself


def _fail(text: str, code: int) -> None:
    errors.print(f"[bold red]error:[/] {plain(text)}")
    sys.exit(code)


@app.callback(invoke_without_command=True)
def version(show: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if show:
        console.print(f"gkn {gkn.__version__}")
        raise typer.Exit
