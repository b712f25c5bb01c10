"""The paper's figures, and two it had no room for. Each is computed once; its numbers are a file, its picture PNG and PDF."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gkn.domain import Grid
from gkn.durable import canonical, digest, make_folder, write
from gkn.machine import commit, machine
from gkn.operator import Exact, Operator, Support
from gkn.paper import draw, green
from gkn.paper.scale import Scale, cells_of
from gkn.paper.spec import Run, Training, plain
from gkn.paper.tables import table_named
from gkn.paper.work import Place, fitted, make_data, samples_of
from gkn.pretrained import pretrained
from gkn.rules import draw_nodes
from gkn.storage import versions

Numbers = dict[str, Any]
Arrays = dict[str, Tensor]
Draw = Callable[[Numbers, Mapping[str, Any], Path], None]
SHOWN = 5  # test functions of figures 4 to 6


@dataclass(frozen=True)
class Figure:
    """settings: what its numbers depend on. compute: numbers, and arrays to draw. tables: those it is drawn from."""

    title: str
    settings: Callable[[Scale], Any]
    compute: Callable[[Scale, Place], tuple[Numbers, Arrays]]
    draw: Draw
    tables: tuple[str, ...] = ()


def make(name: str, scale: Scale, place: Place) -> Path:
    """Compute what is not there, and draw what is not drawn; the path of the numbers."""
    figure, folder = FIGURES[name], place.results / "figures"
    key = digest(plain(figure.settings(scale)))[:16]
    path, arrays = folder / f"{name}.json", place.work / "figures" / f"{name}-{key}.npz"
    known = numbers_of(place.results, name)
    if known is None or known["key"] != key or (not arrays.is_file() and not _drawn(folder, name)):
        numbers, values = figure.compute(scale, place)
        make_folder(folder)
        make_folder(arrays.parent)
        with open(arrays, "wb") as file:
            np.savez_compressed(file, **{each: x.numpy() for each, x in values.items()})  # type: ignore[arg-type]
        known = {
            "name": name,
            "scale": scale.name,
            "key": key,
            "settings": plain(figure.settings(scale)),
            "numbers": numbers,
            "device": place.device,
            "machine": machine(),
            "versions": versions(),
            "commit": commit(),
            "command": place.command,
        }
        write(path, canonical(known))
    if arrays.is_file():
        with np.load(arrays) as values:
            figure.draw(known["numbers"], values, folder / name)
    return path


def numbers_of(results: Path, name: str) -> dict[str, Any] | None:
    try:
        found = json.loads((results / "figures" / f"{name}.json").read_text())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and "numbers" in found and "key" in found else None


def pictures(results: Path, name: str) -> list[Path]:
    """Its PNG files; some figures have several."""
    return sorted((results / "figures").glob(f"{name}*.png"))


def _drawn(folder: Path, name: str) -> bool:
    return bool(sorted(folder.glob(f"{name}*.png")))


# --- figures of trained networks ---------------------------------------------------------------------------------------


def _training(table: str, s: int, scale: Scale) -> Training:
    """That of our recipe, of one row or column of a table."""
    found = table_named(table)
    finest = found.base.get("finest", 241)
    every = scale.stride(s, finest)
    return next(
        cell.run.training
        for cell in cells_of(found, "ours", scale, 0)
        if cell.run.training.method == "GKN" and cell.run.training.data.every == every
    )


def _generalise(scale: Scale, place: Place) -> tuple[Numbers, Arrays]:
    """Figure 1: trained on 16 x 16, asked on 241 x 241, all points."""
    training = _training("full-resolution", 16, scale)
    make_data({training.data}, place)
    operator, _ = fitted(training, place)
    assert isinstance(operator, Operator)
    tests = samples_of(training.data, 1, range(training.data.of, training.data.of + 1), place)
    sample = operator.ready(tests)[0]
    found = operator(sample, how=Exact()).cpu().double()
    error = float((found - sample.u).norm() / sample.u.norm())
    trained = (training.data.size - 1) // training.data.every + 1
    numbers = {"trained on": trained, "asked on": training.data.size, "relative l2 error of this function": error}
    return numbers, {"a": sample.a[:, 0], "truth": sample.u[:, 0], "found": found[:, 0]}


def _methods(scale: Scale, place: Place) -> tuple[Numbers, Arrays]:
    """Figures 4 to 6: the first test functions at three resolutions, by support and queries."""
    errors: dict[str, list[float]] = {}
    arrays: Arrays = {}
    for s in (141, 211, 421):
        training = _training("methods", s, scale)
        make_data({training.data}, place)
        operator, _ = fitted(training, place)
        assert isinstance(operator, Operator)
        first, count = training.data.of, min(SHOWN, training.data.tests)
        tests = operator.ready(samples_of(training.data, training.data.every, range(first, first + count), place))
        errors[str(s)] = []
        for i, sample in enumerate(tests):
            found = operator(sample, how=Support(scale.support), rng=torch.Generator().manual_seed(1)).cpu().double()
            errors[str(s)].append(float((found - sample.u).norm() / sample.u.norm()))
            for name, values in (("a", sample.a), ("truth", sample.u), ("found", found)):
                arrays[f"{s}-{name}-{i}"] = values[:, 0].float()
    return {"relative l2 errors": errors, "way": f"support of {scale.support} nodes"}, arrays


def _resolution(scale: Scale, place: Place) -> tuple[Numbers, Arrays]:
    """Error over resolution: what was trained on one grid and asked on others, and the methods of table 7, each on its own."""
    curves: dict[str, dict[str, list[float]]] = {}
    for name in ("full-resolution", "sampled-resolution", "methods"):
        table = table_named(name)
        rows: dict[str, list[float]] = {}
        for cell in cells_of(table, "ours", scale, 0):
            known = place.done(cell.run)
            if known is None or cell.way not in ("", "support"):
                continue
            label = f"{table.rows[0]}={table.rows[1][cell.row]}" if name != "methods" else str(table.rows[1][cell.row])
            side = table.columns[1][cell.column]
            rows.setdefault(label, []).extend([side, known["error"]["mean"]])
        curves[name] = rows
    return {"curves": curves}, {}


def _nystrom(scale: Scale, place: Place) -> tuple[Numbers, Arrays]:
    """Proposition 1: what is computed from m random nodes differs from what all nodes give as m^-1/2."""
    settings = _nystrom_settings(scale)
    operator = pretrained("darcy", device=place.device)
    domain = Grid(settings["size"])
    series = operator.sample(domain, a=_one_function(domain))
    whole = operator(series, how=Exact()).cpu().double()
    counts, errors = settings["nodes"], []
    for m in counts:
        each = []
        for draw_ in range(settings["draws"]):
            rng = torch.Generator().manual_seed(draw_)
            found = operator(series, how=Support(m), rng=rng).cpu().double()
            each.append(float((found - whole).norm() / whole.norm()))
        errors.append(float(np.mean(each)))
    half = len(counts) // 2
    slope = float(np.polyfit(np.log(counts[half:]), np.log(errors[half:]), 1)[0])
    numbers = {"nodes": counts, "differences": errors, "slope of the second half": slope, **_linear(settings)}
    return numbers, {}


def _linear(settings: dict[str, Any]) -> Numbers:
    """The proposition itself: one integral of one kernel over a ball, by m random points, against all points."""
    grid = Grid(settings["size"])
    x = grid.points
    near = torch.cdist(x, x) <= 0.25
    kernel = torch.exp(-torch.cdist(x, x)) * near
    v = torch.sin(3 * x[:, 0]) + x[:, 1]
    whole = (kernel * v).mean(1)
    errors = []
    for m in settings["nodes"]:
        each = []
        for draw_ in range(settings["draws"]):
            nodes = draw_nodes(len(x), m, torch.Generator().manual_seed(draw_))
            each.append(float(((kernel[:, nodes] * v[nodes]).mean(1) - whole).norm() / whole.norm()))
        errors.append(float(np.mean(each)))
    few = max(2, len(errors) // 2)  # later ones are drawn without replacement from not many more
    slope = float(np.polyfit(np.log(settings["nodes"][:few]), np.log(errors[:few]), 1)[0])
    return {"differences of one integral": errors, "slope of one integral, first half": slope}


def _one_function(domain: Grid) -> Tensor:
    from gkn.fields import GaussianField, stream, two_phase

    field = GaussianField(tau=3, alpha=2, boundary="neumann")
    return two_phase(field.sample(domain, 1, stream(11, 0)))[0]


def _nystrom_settings(scale: Scale) -> dict[str, Any]:
    small = {"size": 16, "nodes": [16, 32, 64], "draws": 1}
    return {
        "smoke": small,
        "small": {"size": 46, "nodes": [50, 100, 200, 400, 800], "draws": 4},
        "paper": {"size": 61, "nodes": [50, 100, 200, 400, 800, 1600], "draws": 10},
    }[scale.name]


def _of_runs(table: str) -> Callable[[Scale], Any]:
    """A figure of trained networks depends on how they are trained."""

    def settings(scale: Scale) -> Any:
        return [cell.run.training.hash for cell in cells_of(table_named(table), "ours", scale, 0)]

    return settings


def _of_cells(*tables: str) -> Callable[[Scale], Any]:
    def settings(scale: Scale) -> Any:
        runs: list[Run] = [cell.run for name in tables for cell in cells_of(table_named(name), "ours", scale, 0)]
        return [run.hash for run in runs]

    return settings


def _green(title: str, name: str, compute: Callable[[green.Setting, str], tuple[Numbers, Arrays]], draw: Draw) -> Figure:
    settings = green.SETTINGS[name]
    return Figure(
        title, lambda scale: settings[scale.name], lambda scale, place: compute(settings[scale.name], place.device), draw
    )


FIGURES: dict[str, Figure] = {
    "fig-generalise": Figure(
        "Figure 1: trained on 16 x 16, asked on 241 x 241", _of_runs("full-resolution"), _generalise, draw.generalise
    ),
    "fig-green-1d": _green("Figure 2: the Green's function of the interval", "fig-green-1d", green.interval, draw.interval),
    "fig-green-2d-samples": _green(
        "Figure 3: a kernel and a dense network, over training pairs", "fig-green-2d-samples", green.samples, draw.samples
    ),
    "fig-methods": Figure(
        "Figures 4 to 6: five test functions at s = 141, 211, 421", _of_runs("methods"), _methods, draw.methods
    ),
    "fig-green-disk": _green("Figure 7: the Green's function of the disk", "fig-green-disk", green.disk, draw.disk),
    "fig-resolution": Figure(
        "Error over resolution",
        _of_cells("full-resolution", "sampled-resolution", "methods"),
        _resolution,
        draw.resolution,
        ("full-resolution", "sampled-resolution", "methods"),
    ),
    "fig-nystrom": Figure("Proposition 1: the error falls as m^-1/2", _nystrom_settings, _nystrom, draw.nystrom),
}
