"""gkn info: what a run, an operator or a dataset is, and what this machine has."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.table import Table

from gkn.cli.data import data_info
from gkn.cli.shell import console, plain, print_rows, warn
from gkn.data.storage import MANIFEST
from gkn.operator.card import CARD, read_card, what_is_there
from gkn.operator.pretrained import names
from gkn.operator.runs import RUN, read_run
from gkn.operator.saved import checkpoints_of, is_finished
from gkn.ops import choose
from gkn.ops.dense import has_onednn
from gkn.ops.near_cpp import why_not
from gkn.system.files import CorruptFile
from gkn.system.machine import versions
from gkn.system.memory import available_memory


def info(
    path: Annotated[Path | None, typer.Argument(help="A run, a saved operator, or a dataset. By default this machine.")] = None,
) -> None:
    """Describe a run, an operator or a dataset; or this machine and how it computes."""
    if path is None:
        _machine()
    elif (path / RUN).exists() or (path / CARD).exists():
        try:
            _run(path) if (path / RUN).exists() else _operator(path)
        except (KeyError, TypeError, AttributeError, IndexError) as error:
            raise CorruptFile(f"{path}: its entries are not of the kinds that gkn writes ({error})") from error
    elif (path / MANIFEST).is_file():
        data_info(path)
    else:
        said = what_is_there(path)
        unknown = f"{path}: no run, operator or dataset; needed a folder with {RUN}, {CARD} or {MANIFEST}"
        raise FileNotFoundError(unknown if "no operator" in said else said)


def _run(path: Path) -> None:
    run = read_run(path)
    newest, wrong = checkpoints_of(path).newest()
    state = newest.state if newest else {"epoch": 0, "metrics": [], "best": None}
    last = state["metrics"][-1] if state["metrics"] else {}
    errors = [entry["validation"] for entry in state["metrics"] if entry["validation"] is not None]
    best = state["best"]
    rows = {
        "run": f"epoch {state['epoch']} of {run['recipe']['epochs']}" + ("" if is_finished(path) else ", unfinished"),
        "loss": f"{last['loss']:.4g}" if last else "none yet",
        "validation error": f"{errors[-1]:.4f}, best {best['validation']:.4f} at step {best['step']}" if errors else "none",
        "model": _words(run["model"]),
        "rule": "; ".join(_words(rule) for rule in run["rules"]),
        "recipe": _words(run["recipe"]),
        "fields": _fields(run["features"]),
        "time": f"{last['seconds']:.0f} s, {last['edges_per_second']:.3g} edges/s" if last else "none",
        "begun with": _words(run["versions"]),
    }
    print_rows(rows)
    for text in wrong:
        warn(text)


def _operator(path: Path) -> None:
    card, tensors = read_card(path)
    numbers = sum(x.numel() for name, x in tensors.items() if name.startswith("model/"))
    about = card["about"]
    rows = {
        "operator": f"{numbers} parameters, {card['tensors']['bytes'] / 1e6:.1f} MB, as it was written",
        "model": _words(card["model"]),
        "rule": _words(card["rule"]) + (", quadrature weights" if card["weighted"] else ""),
        "fields": "unnamed" if card["features"] is None else _fields(card["features"]),
        "normaliser": ", ".join(
            f"{key} {'point-wise' if 'domain' in said else 'scalar'}" for key, said in card["normalizers"].items()
        ),
    } | {key: _words(value) for key, value in about.items()}
    print_rows(rows)


def _machine() -> None:
    devices = ["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_row("[bold]gkn[/]", plain(", ".join(f"{name} {number}" for name, number in versions().items())))
    for device in devices:
        what = f"{torch.get_num_threads()} threads" if device == "cpu" else torch.cuda.get_device_name(device)
        table.add_row(f"[bold]{device}[/]", f"{plain(what)}, {available_memory(device) / 2**30:.1f} GiB free")
        for kind in (torch.float32, torch.bfloat16, torch.float64):
            name, reason = choose(device, kind, 64)
            table.add_row("", f"kernel integral in {str(kind).removeprefix('torch.')}: [bold]{name}[/] ({plain(reason)})")
    missing = why_not()
    near = "compiled" if missing is None else f"factored, several times slower ({missing})"
    products = "oneDNN" if has_onednn() else "torch's own"
    table.add_row("[bold]NearFar[/]", plain(f"on the CPU in float32: balls {near}, products {products}"))
    table.add_row("[bold]pretrained[/]", plain(", ".join(names()) or "none"))
    console.print(table)


def _words(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_words(inner)}" for key, inner in value.items() if inner is not None)
    if isinstance(value, list):
        return ", ".join(map(_words, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _fields(said: dict[str, Any]) -> str:
    scale = said.get("frame", {}).get("scale", 1.0)
    smoothed = "".join(f", {name} smoothed by {width * scale:.4g}" for name, width in said["smoothed"])
    smoothed += "".join(f", {name} extended from the boundary" for name in said.get("extended", ()))
    units = "".join(f"; {name} in {unit}" for name, unit in said["units"].items())
    geometry = ", the geometry" if said.get("geometry") else ""
    given = ", ".join(said["given"]) or "no field"
    return f"{given}{smoothed}{geometry} -> {', '.join(said['outputs'])}{units}"
