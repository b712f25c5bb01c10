"""Measures this machine: seconds of products, the search for neighbours, the solver, answers and training steps.

Every network has the sizes of the full scale of the suite, float32 (bf16 on a GPU), and random parameters: errors are not
looked at here. The same Darcy problems, smoothed copies and points are given to all; GKN has the radius and the nodes that it
suggests.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from gkn.data.dataset import Dataset
from gkn.data.problems import Darcy
from gkn.geometry.grid import Grid
from gkn.graph.neighbors import radius_graph
from gkn.models import MODELS, NearFar
from gkn.ops import dense
from gkn.pde import solve_darcy
from gkn.study.suite.run import RATES
from gkn.study.suite.tasks import SCALES
from gkn.study.timing import best_of, seconds_per_step
from gkn.system.machine import commit, machine, versions
from gkn.train.fit import fit

NETWORKS = ("NearFar", "Multigrid", "GKN", "Transformer", "FNO")
SIDE, BATCH = 85, 4
"""Points along a side of the grid of answers, and samples in a batch. Training is on every second point: 43 x 43."""
MATRIX, POINTS, SOLVED = 2048, 100_000, 421
"""Rows of the matrices, points among which neighbours are searched, and points along a side of the solver's grid."""
Say = Callable[[str], None]


def measure(device: str, say: Say = lambda text: None) -> dict[str, Any]:
    """Return all figures, with the machine and how it was set up. `say` is called with what is being measured."""
    start = time.perf_counter()
    rows = [*_basics(device, say), *_networks(device, say)]
    about = {"machine": machine(), "device": device, "threads": torch.get_num_threads(), "commit": commit()}
    return {**about, "versions": versions(), "seconds": time.perf_counter() - start, "rows": rows}


def _basics(device: str, say: Say) -> Iterator[dict[str, Any]]:
    say("products of matrices")
    a, b = (torch.randn(MATRIX, MATRIX, device=device) for _ in range(2))
    for name, product in (("torch", torch.mm), ("gkn", dense.mm)):
        seconds = best_of(partial(product, a, b), device)
        what = f"product of {MATRIX} x {MATRIX} numbers, float32, {name}"
        yield {"what": what, "seconds": seconds, "rate": 2 * MATRIX**3 / seconds}
    say("neighbours")
    points = torch.rand(POINTS, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(device)
    r = math.sqrt(80 / (math.pi * POINTS))  # balls of about 80 points
    edges = radius_graph(points, r=r).num_edges
    seconds = best_of(lambda: radius_graph(points, r=r), device)
    yield {"what": f"neighbours of {POINTS:,} random points, {edges:,} edges", "seconds": seconds}
    say("the solver")
    grid = Grid(SOLVED)
    coefficient = Darcy(size=SOLVED).generate(1).field("a")[0].to(device)
    seconds = best_of(lambda: solve_darcy(grid, coefficient), device)
    yield {"what": f"solution of a Darcy problem, {SOLVED} x {SOLVED}, float64", "seconds": seconds}


def _networks(device: str, say: Say) -> Iterator[dict[str, Any]]:
    fine = Darcy(size=SIDE).generate(2 * BATCH)
    coarse = fine.every(2)
    for name in NETWORKS:
        say(name)
        try:
            options = _options(name, coarse, device)
            operator = fit(coarse.take(BATCH), name, **options, epochs=1, device=device, warn=lambda text: None)
        except ImportError as error:
            yield {"what": name, "why not": str(error)}
            continue
        count = sum(x.numel() for x in operator.model.parameters())
        seconds = best_of(partial(operator, fine[0], check=False), device)
        yield {"what": f"{name}: answer at {SIDE} x {SIDE}", "seconds": seconds, "parameters": count}
        side = (SIDE + 1) // 2
        seconds = seconds_per_step(coarse.take(BATCH), name, device, **options)
        yield {"what": f"{name}: training step, {BATCH} x {side} x {side}", "seconds": seconds, "parameters": count}


def _options(name: str, data: Dataset, device: str) -> dict[str, Any]:
    """Return options of `fit`: smoothing and loss are NearFar's for all."""
    ours, theirs = NearFar.defaults(data), MODELS[name].defaults(data)
    settings = {**theirs.settings, **SCALES["full"].sizes[name]}
    recipe = {key: value for key, value in ours.changes.items() if key != "epochs"}
    if name in RATES:
        recipe |= {"optimizer": "adamw", "lr": RATES[name]}
    if name != "NearFar":
        settings.pop("features", None)
    precision = "bf16" if device.startswith("cuda") else "fp32"
    return {
        "settings": settings,
        "recipe": "nearfar",
        "smoothing": dict(ours.smoothing),
        "weighted": True,
        "batch": BATCH,
        "precision": precision,
        **recipe,
    }


def markdown(found: dict[str, Any]) -> str:
    """Return the figures as a table that can be pasted into an issue."""
    numbers = ", ".join(f"{name} {number}" for name, number in found["versions"].items())
    lines = [
        f"`gkn bench --device {found['device']}`, {found['threads']} threads, {found['machine']}, "
        f"commit {found['commit'][:10]}, {numbers}",
        "",
        "| | time | |",
        "|---|---|---|",
    ]
    for row in found["rows"]:
        if "why not" in row:
            lines.append(f"| {row['what']} | not measured | {row['why not']} |")
            continue
        more = f"{row['rate'] / 1e9:.0f} GFLOP/s" if "rate" in row else ""
        more = f"{row['parameters']} parameters" if "parameters" in row else more
        lines.append(f"| {row['what']} | {in_words(row['seconds'])} | {more} |")
    return "\n".join(lines)


def in_words(seconds: float) -> str:
    """Return a duration with three digits, in seconds or milliseconds."""
    number, unit = (seconds, "s") if seconds >= 0.9995 else (1000 * seconds, "ms")
    return f"{number:.0f} {unit}" if number >= 999.5 else f"{number:.3g} {unit}"
