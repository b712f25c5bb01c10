"""The command line: one verb, one function. A verb's module is imported when the verb is run, so that `--help` is quick."""

from __future__ import annotations

import errno
import signal
import sys
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from gkn.cli.console import console, errors, plain
from gkn.cli.streams import guard_streams
from gkn.system.stopping import Stopped

LONGEST = 2000
"""Characters of an error message; files may hold names of any length."""
DESCRIPTION = "Learn the solution operator of a PDE from examples, on any mesh or point cloud, and evaluate it at any point."
VERBS = {
    "data": ("gkn.cli.data", "app", "Make, import, inspect and check datasets."),
    "demo": ("gkn.cli.demo", "demo", "Train NearFar and the paper's GKN on Darcy problems, and test both up to 241 x 241."),
    "train": ("gkn.cli.train", "train", "Learn an operator."),
    "eval": ("gkn.cli.evaluate", "evaluate", "Evaluate an operator on samples it was not trained on."),
    "predict": ("gkn.cli.predict", "predict", "Answer for functions in files, at their points or any others."),
    "info": ("gkn.cli.info", "info", "Describe a run, an operator or a dataset; or this machine and how it computes."),
    "reproduce": ("gkn.cli.reproduce", "reproduce", "Make the paper's tables and figures."),
    "beyond": ("gkn.cli.beyond", "beyond", "Train NearFar, Multigrid and rivals on the paper's benchmark."),
    "bench": ("gkn.cli.bench", "bench", "Measure how fast this machine is, in two minutes."),
    "suite": ("gkn.cli.suite", "suite", "Train all models on many problems, steady and in time, for the same seconds."),
}
"""Name of a verb -> its module, the name of its function or application there, and one line of help."""


class Verb(TyperCommand):
    """A verb that imports its module when it is run."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        return command_of(str(self.name)).make_context(info_name, args, parent, **extra)


class Verbs(TyperGroup):
    """All verbs, by their names and lines of help alone."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*VERBS]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in VERBS:
            return None
        return Verb(cmd_name, help=VERBS[cmd_name][2])


def command_of(name: str) -> Any:
    """Import the module of a verb and return its command."""
    module, function, _ = VERBS[name]
    found = getattr(import_module(module), function)
    from gkn.system.memory import keep_freed

    keep_freed()
    for number in (signal.SIGINT, signal.SIGTERM):  # not before: what raises during an import may leave half a module
        signal.signal(number, _stop)
    if not isinstance(found, typer.Typer):
        one = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        one.command(name)(found)
        found = one
    command = typer.main.get_command(found)
    command.name = name
    return command


app = typer.Typer(cls=Verbs, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=DESCRIPTION)


def main() -> None:
    """Run the command line. Expected failures print one sentence and exit with a code; anything else shows its traceback."""
    printed, hook = guard_streams(), sys.unraisablehook
    sys.unraisablehook = _stop_again
    try:
        try:
            app()
        finally:
            sys.unraisablehook = hook
            for number in (signal.SIGINT, signal.SIGTERM):  # from here on a signal ends the process quietly
                signal.signal(number, signal.SIG_DFL)
            printed.flush()
    except SystemExit as end:  # how typer ends, with or without an error
        if printed.failed and not end.code:
            _fail(f"standard output: {printed.failed}; what was printed there is lost, everything else was done", 1)
        raise
    except OSError as error:
        text = f"{error.strerror or error}: {error.filename}" if error.filename else str(error)
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        _fail(f"{text}; what was finished is kept: free some space and run the same command again" if full else text, 1)
    except KeyError as error:
        _fail(str(error.args[0]), 1)
    except (ValueError, ImportError, ArithmeticError, MemoryError) as error:
        _fail(str(error) or "out of memory", 1)
    except BaseException as error:  # a signal raises Stopped, which is no Exception
        _explain(error)
        raise


def _explain(error: BaseException) -> None:
    """End the process with a sentence if the error is one of gkn's own, or one of torch's that has a known reason."""
    if isinstance(error, Stopped):
        what = "interrupted" if error.number == signal.SIGINT else "terminated"
        kept = "what was finished is kept, run the same command again to go on"
        _fail(f"{what}; {'the answer is not complete' if 'predict' in sys.argv[1:2] else kept}", 128 + error.number)
    import torch

    from gkn.data.generate import WorkerLost
    from gkn.pde import NotConverged

    if isinstance(error, NotConverged | WorkerLost):
        _fail(str(error), 1)
    if isinstance(error, RuntimeError):  # torch has no classes of its own for these
        first = (str(error).splitlines() or [""])[0]
        if torch.distributed.is_initialized():
            _fail(f"another rank died, or did not answer in time ({first}); what was saved is kept, run it again to go on", 1)
        if "memory" in str(error):
            _fail(f"out of memory: {first}", 1)


def _stop(number: int, frame: object) -> None:
    raise Stopped(number)  # not KeyboardInterrupt, which typer would handle itself


def _stop_again(unraisable: Any) -> None:
    """Stop a moment later if the signal came while Python was cleaning up after an object, where nothing can be raised."""
    error = unraisable.exc_value
    if not isinstance(error, Stopped) or not hasattr(signal, "setitimer"):
        sys.__unraisablehook__(unraisable)
        return
    signal.signal(signal.SIGALRM, lambda *_: _stop(error.number, None))
    signal.setitimer(signal.ITIMER_REAL, 0.01)


def _fail(text: str, code: int) -> None:
    shown = text if len(text) <= LONGEST else f"{text[:LONGEST]} ... and {len(text) - LONGEST} more characters"
    errors.print(f"[bold red]error:[/] {plain(shown)}")
    sys.exit(code)


@app.callback(invoke_without_command=True)
def version(show: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if show:
        import gkn

        console.print(f"gkn {gkn.__version__}")
        raise typer.Exit
