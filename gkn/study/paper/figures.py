"""The paper's figures, and two more. Each is computed once; its numbers are a file, its pictures PNG and PDF."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch
from torch import Tensor

from gkn.geometry.fields import GaussianField, two_phase
from gkn.geometry.grid import Grid
from gkn.graph.rules import draw_nodes
from gkn.operator.card import CARD
from gkn.operator.pretrained import FOLDER, pretrained
from gkn.operator.ways import Exact, Support
from gkn.study.cells import Training, plain
from gkn.study.paper import draw
from gkn.study.paper import greens_functions as green
from gkn.study.paper.scale import Scale, entries_of
from gkn.study.paper.tables import table_named
from gkn.study.work import Place, make_data, provenance, samples_of, trained
from gkn.system.checks import has_types
from gkn.system.files import canonical, digest, make_folder, read_regular, sha256, write
from gkn.system.randomness import stream

Numbers = dict[str, Any]
Arrays = dict[str, Tensor]
Draw = Callable[[Numbers, Mapping[str, Any], Path], None]
SHOWN, SIDES = 5, (141, 211, 421)  # test functions, and grids, of figures 4 to 6


@dataclass(frozen=True)
class Figure:
    """A figure: its numbers and how they are drawn.

    settings    what its numbers depend on
    compute     returns numbers, and arrays to draw
    tables      it is drawn from
    trainings   whose networks it needs
    """

    title: str
    settings: Callable[[Scale, Place], Any]
    compute: Callable[[Scale, Place], tuple[Numbers, Arrays]]
    draw: Draw
    tables: tuple[str, ...] = ()
    trainings: Callable[[Scale], list[Training]] = lambda scale: []


def make(name: str, scale: Scale, place: Place) -> Path:
    """Compute and draw a figure, unless that was done; return the path of its numbers."""
    figure, folder = FIGURES[name], place.results / "figures"
    key = key_of(name, scale, place)
    path, arrays = folder / f"{name}.json", place.work / "figures" / f"{name}-{key}.npz"
    known = numbers_of(place.results, name)
    if known is not None and known["key"] == key and pictures(place.results, name):
        return path
    if known is None or known["key"] != key or not _readable(arrays):
        numbers, values = figure.compute(scale, place)
        make_folder(folder)
        make_folder(arrays.parent)
        file = io.BytesIO()
        np.savez_compressed(file, **{each: x.numpy() for each, x in values.items()})  # type: ignore[arg-type]
        write(arrays, file.getvalue())
        about = {"name": name, "scale": scale.name, "key": key, "settings": plain(figure.settings(scale, place))}
        known = {**about, "numbers": numbers, **provenance(place)}
        write(path, canonical(known))
    with np.load(arrays) as values:
        figure.draw(known["numbers"], values, folder / name)
    return path


def _readable(path: Path) -> bool:
    try:
        with np.load(path) as values:
            return all(values[name] is not None for name in values.files)
    except (OSError, ValueError, KeyError, EOFError, BadZipFile):
        return False


def key_of(name: str, scale: Scale, place: Place) -> str:
    """Return a hash of everything the numbers of a figure depend on."""
    return digest(plain(FIGURES[name].settings(scale, place)))[:16]


def numbers_of(results: Path, name: str) -> dict[str, Any] | None:
    try:
        found = json.loads(read_regular(results / "figures" / f"{name}.json"))
        texts = dict.fromkeys(("key", "scale", "machine", "device", "commit"), str)
        return dict(found) if has_types(found, {**texts, "numbers": dict}) and found["numbers"] else None
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None


def pictures(results: Path, name: str) -> list[Path]:
    """Return the PNG files of a figure, which may be several."""
    return sorted((results / "figures").glob(f"{name}*.png"))


# --- figures of trained networks ---------------------------------------------------------------------------------------


def _training(table: str, s: int, scale: Scale) -> Training:
    """Return the training with our recipe of one row or column of a table."""
    found = table_named(table)
    finest = found.base.get("finest", 241)
    every = scale.stride(s, finest)
    return next(
        entry.cell.training
        for entry in entries_of(found, "ours", scale, 0)
        if entry.cell.training.model == "GKN" and entry.cell.training.data.every == every
    )


def _of_16(scale: Scale) -> list[Training]:
    return [_training("full-resolution", 16, scale)]


def _of_methods(scale: Scale) -> list[Training]:
    return [_training("methods", s, scale) for s in SIDES]


def _generalise(scale: Scale, place: Place) -> tuple[Numbers, Arrays]:
    """Compute figure 1: trained on 16 x 16, evaluated on all points of 241 x 241."""
    (training,) = _of_16(scale)
    make_data({training.data}, place)
    operator = trained(training, place)
    tests = samples_of(training.data, 1, range(training.data.of, training.data.of + 1), place)
    sample = operator.ready(tests)[0]
    found = operator(sample, how=Exact()).cpu().double()
    error = float((found - sample.u).norm() / sample.u.norm())
    size = (training.data.size - 1) // training.data.every + 1
    numbers = {"trained on": size, "asked on": training.data.size, "relative l2 error of this function": error}
    return numbers, {"a": sample.a[:, 0], "truth": sample.u[:, 0], "found": found[:, 0]}


def _methods(scale: Scale, place: Place) -> tuple[Numbers, Arrays]:
    """Compute figures 4 to 6: the first test functions at three resolutions, with `Support`."""
    errors: dict[str, list[float]] = {}
    arrays: Arrays = {}
    for s, training in zip(SIDES, _of_methods(scale), strict=True):
        make_data({training.data}, place)
        operator = trained(training, place)
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
    """Collect errors over resolution: networks of one grid on others, and the methods of table 7 on their own grids."""
    curves: dict[str, dict[str, list[float]]] = {}
    for name in ("full-resolution", "sampled-resolution", "methods"):
        table = table_named(name)
        rows: dict[str, list[float]] = {}
        for entry in entries_of(table, "ours", scale, 0):
            known = place.result(entry.cell)
            if known is None or "error" not in known or entry.way not in ("", "support"):
                continue
            training = entry.cell.training
            size = (training.data.size - 1) // training.data.every + 1
            label = f"s = {size}" if name != "methods" else str(table.rows[1][entry.row])
            rows.setdefault(label, []).extend([(training.data.size - 1) // entry.cell.every + 1, known["error"]["mean"]])
        curves[name] = rows
    return {"curves": curves}, {}


def _nystrom(scale: Scale, place: Place) -> tuple[Numbers, Arrays]:
    """Compute Proposition 1: answers from m random nodes differ from those of all nodes by O(m^-1/2)."""
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
    return {"nodes": counts, "differences": errors, "slope": _slope(counts, errors), **_linear(settings)}, {}


def _slope(nodes: Sequence[float], errors: Sequence[float]) -> float:
    """Return the slope of the second half in logarithms: with few nodes, balls are nearly empty, which is another error."""
    few = max(2, len(nodes) // 2)
    return float(np.polyfit(np.log(nodes[-few:]), np.log(errors[-few:]), 1)[0])


def _linear(settings: dict[str, Any]) -> Numbers:
    """Compute the proposition itself: one integral over a ball by m random points, against all points."""
    grid = Grid(settings["size"])
    x = grid.points
    targets = x[torch.linspace(0, len(x) - 1, min(len(x), 500)).long()]
    distance = (targets[:, None] - x).norm(dim=-1)
    kernel = torch.exp(-distance) * (distance <= 0.25)
    v = torch.sin(3 * x[:, 0]) + x[:, 1]
    whole = (kernel * v).mean(1)
    errors = []
    for m in settings["nodes"]:
        each = []
        for draw_ in range(settings["draws"]):
            nodes = draw_nodes(len(x), m, torch.Generator().manual_seed(draw_))
            each.append(float(((kernel[:, nodes] * v[nodes]).mean(1) - whole).norm() / whole.norm()))
        errors.append(float(np.mean(each)))
    return {"differences of one integral": errors, "slope of one integral": _slope(settings["nodes"], errors)}


def _one_function(domain: Grid) -> Tensor:
    field = GaussianField(tau=3, alpha=2, boundary="neumann")
    return two_phase(field.sample(domain, 1, stream(11, 0)))[0]


def _nystrom_settings(scale: Scale) -> dict[str, Any]:
    small = {"size": 16, "nodes": [16, 32, 64], "draws": 1}
    return {
        "smoke": small,
        "small": {"size": 61, "nodes": [50, 100, 200, 400, 800], "draws": 4},
        "paper": {"size": 121, "nodes": [50, 100, 200, 400, 800, 1600], "draws": 10},
    }[scale.name]


def _green(title: str, name: str, compute: Callable[[green.Setting, str, Path], tuple[Numbers, Arrays]], draw: Draw) -> Figure:
    settings = green.SETTINGS[name]
    return Figure(
        title,
        lambda scale, place: settings[scale.name],
        lambda scale, place: compute(settings[scale.name], place.device, place.work / "data"),
        draw,
    )


FIGURES: dict[str, Figure] = {
    "fig-generalise": Figure(
        "Figure 1: trained on 16 x 16 with our recipe, evaluated on 241 x 241",
        lambda scale, place: [training.hash for training in _of_16(scale)],
        _generalise,
        draw.generalise,
        trainings=_of_16,
    ),
    "fig-green-1d": _green("Figure 2: the Green's function of the interval", "fig-green-1d", green.interval, draw.interval),
    "fig-green-2d-samples": _green(
        "Figure 3: a kernel and a dense network, over training pairs", "fig-green-2d-samples", green.samples, draw.samples
    ),
    "fig-methods": Figure(
        "Figures 4 to 6: five test functions at s = 141, 211, 421, with our recipe",
        lambda scale, place: [*(training.hash for training in _of_methods(scale)), scale.support, SHOWN],
        _methods,
        draw.methods,
        trainings=_of_methods,
    ),
    "fig-green-disk": _green("Figure 7: the Green's function of the disk", "fig-green-disk", green.disk, draw.disk),
    "fig-resolution": Figure(
        "Error over resolution, with our recipe",
        lambda scale, place: _resolution(scale, place)[0],  # what is known may grow
        _resolution,
        draw.resolution,
        tables=("full-resolution", "sampled-resolution", "methods"),
    ),
    "fig-nystrom": Figure(
        "Proposition 1: the error falls as m^-1/2",
        lambda scale, place: [_nystrom_settings(scale), sha256(FOLDER / "darcy" / CARD)],
        _nystrom,
        draw.nystrom,
    ),
}
