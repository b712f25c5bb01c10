"""Tasks of the suite: problems with their numbers of samples, models with their sizes, and scales at which all is run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from gkn.data.stepping import Stepping

ONE = Stepping(clock=False)
"""The way to step where the law does not depend on time: better than all pairs of times in rollouts of validation samples."""

NOISE = 0.01
"""Noise of the states that waves begin with: without it their rollouts become unstable on fine meshes."""


@dataclass(frozen=True)
class Published:
    """An error that others published for the same law, on other samples of it."""

    model: str
    error: float
    protocol: str


@dataclass(frozen=True)
class Task:
    """A problem, and how samples of it are learned from and judged.

    name        of the row
    problem     name of the problem, and its parameters that differ from the defaults
    counts      numbers of samples to train on, to validate and to test on, in this order
    between     the map between two recorded times is learned, given by their numbers; else trajectories are stepped through
    stepping    how trajectories are learned, if there are any
    noise       of the states that their pairs begin with, as in `Recipe`
    elsewhere   parameters of the problem that differ for the test samples, which are then of the next seed
    grids       the samples are on a regular grid with equal sides, so that models of images take part
    kernels     all points of a sample can be neighbours in a graph, so that GKN takes part
    symmetries  the law has the symmetries of the unit box, which are drawn for each function in every step
    potential   u is one integral of an input with a kernel that moves with the points, so that Potential takes part
    published   errors of others
    """

    name: str
    problem: str
    parameters: Mapping[str, Any]
    counts: tuple[int, int, int]
    between: tuple[int, int] | None = None
    stepping: Stepping | None = None
    noise: float | None = None
    elsewhere: Mapping[str, Any] = field(default_factory=dict)
    grids: bool = False
    kernels: bool = False
    potential: bool = False
    symmetries: bool = False
    published: tuple[Published, ...] = ()


@dataclass(frozen=True)
class Scale:
    """Sizes of everything.

    seconds    of each training, on the machine it runs on
    sizes      settings of each model
    tasks      the rows
    ways       tasks of the table of ways to step, by name
    precision  of the trainings
    reach      radius of NearFar's balls, relative to the one it suggests
    """

    name: str
    seconds: float
    sizes: Mapping[str, Mapping[str, Any]]
    tasks: tuple[Task, ...]
    ways: tuple[str, ...]
    precision: str
    reach: float = 1.0


NS = (
    Published("FNO", 0.1556, "nu = 1e-5, 64 x 64, 10 steps in, 10 out, 1000 training trajectories (Li et al. 2021)"),
    Published("Transolver", 0.0957, "the same (Wu et al. 2024)"),
    Published("Transolver++", 0.0719, "the same (2025)"),
    Published("LaMO", 0.0460, "the same (2025)"),
)
BURGERS = (Published("FNO", 0.0139, "nu = 0.1, u(0) to u(1), 1000 training functions on 256 points (Li et al. 2021)"),)
DARCY = (
    Published("Transolver", 0.0059, "85 x 85 of 421 x 421, 1000 training functions (Wu et al. 2024)"),
    Published("LaMO", 0.0039, "the same (2025)"),
)
PUBLISHED: dict[str, tuple[Published, ...]] = {
    "darcy 2-D": DARCY,
    "burgers nu=0.1, u(0) to u(1)": BURGERS,
    "navier-stokes nu=1e-5": NS,
}

HISTORY = replace(ONE, history=10)
CUBES = {"shape": "cube", "vary": True, "alpha": 2.5}
DOUBLE, TWO = {"kind": "double"}, {"curves": 2}


def _tasks(counts: Mapping[str, tuple[int, int, int]], sizes: Mapping[str, Mapping[str, Any]]) -> tuple[Task, ...]:
    """Return the rows, given the counts and the parameters of each."""
    rows = [
        Task("darcy 2-D", "darcy", {}, (0, 0, 0), grids=True, kernels=True, symmetries=True),
        Task("darcy-fg, mesh", "darcy-fg", {}, (0, 0, 0), kernels=True, symmetries=True),
        Task("poisson, mesh", "poisson", {}, (0, 0, 0), kernels=True, symmetries=True),
        Task("poisson 3-D, tetrahedra", "poisson", CUBES, (0, 0, 0), kernels=True, symmetries=True),
        Task("darcy 3-D, tetrahedra", "darcy-mesh", CUBES, (0, 0, 0), kernels=True, symmetries=True),
        Task("plate", "plate", {}, (0, 0, 0)),
        Task("single layer, one curve to two", "layer-potential", {}, (0, 0, 0), elsewhere=TWO, kernels=True, potential=True),
        Task(
            "double layer, one curve to two", "layer-potential", DOUBLE, (0, 0, 0), elsewhere=TWO, kernels=True, potential=True
        ),
        Task("heat, disk", "heat", {"shape": "disk"}, (0, 0, 0), stepping=ONE, kernels=True),
        Task("heat, holes", "heat", {"shape": "holes", "vary": True}, (0, 0, 0), stepping=ONE, kernels=True),
        Task("wave, l-shape", "wave", {"shape": "l-shape"}, (0, 0, 0), stepping=ONE, noise=NOISE, kernels=True),
        Task("burgers nu=0.1, u(0) to u(1)", "burgers", {"nu": 0.1}, (0, 0, 0), (0, -1), grids=True, kernels=True),
        Task("burgers nu=0.01", "burgers", {"nu": 0.01}, (0, 0, 0), stepping=ONE, grids=True, kernels=True),
        Task("navier-stokes nu=1e-3", "navier-stokes", {"nu": 1e-3}, (0, 0, 0), stepping=HISTORY, grids=True),
        Task("navier-stokes nu=1e-4", "navier-stokes", {"nu": 1e-4}, (0, 0, 0), stepping=HISTORY, grids=True),
        Task("navier-stokes nu=1e-5", "navier-stokes", {"nu": 1e-5}, (0, 0, 0), stepping=HISTORY, grids=True),
    ]
    return tuple(
        replace(
            row,
            published=PUBLISHED.get(row.name, ()),
            counts=counts.get(row.name, counts[""]),
            parameters={**row.parameters, **sizes.get(row.name, {})},
        )
        for row in rows
        if row.name in sizes or "" in sizes
    )


_SMALL_NETWORKS: dict[str, dict[str, Any]] = {
    "NearFar": {"width": 32, "blocks": 3, "slices": 16, "head": 8, "kernel": (16, 8)},
    "Multigrid": {"width": 24, "cycles": 2, "levels": 3, "kernel": (16, 8)},
    "Transformer": {"width": 32, "blocks": 3, "head": 8},
    "SliceAttention": {"width": 32, "blocks": 3, "head": 8, "slices": 16},
    "FNO": {"width": 24, "modes": 12, "layers": 4},
    "GKN": {"width": 32, "kernel": (32, 64), "steps": 4},
    "Potential": {"kernel": (32, 32)},
}
_FULL_NETWORKS: dict[str, dict[str, Any]] = {
    "NearFar": {"width": 128, "blocks": 8, "slices": 64, "head": 16, "kernel": (32, 8)},
    "Multigrid": {"width": 64, "cycles": 4, "levels": 4, "kernel": (32, 16)},
    "Transformer": {"width": 128, "blocks": 8, "head": 16},
    "SliceAttention": {"width": 128, "blocks": 8, "head": 16, "slices": 64},
    "FNO": {"width": 64, "modes": 16, "layers": 4},
    "GKN": {"width": 64, "kernel": (128, 256), "steps": 6},
    "Potential": {"kernel": (64, 64)},
}
_MEDIUM_NETWORKS: dict[str, dict[str, Any]] = {
    "NearFar": {"width": 64, "blocks": 4, "slices": 32, "head": 16, "kernel": (16, 8)},
    "Multigrid": {"width": 48, "cycles": 3, "levels": 4, "kernel": (32, 16)},
    "Transformer": {"width": 64, "blocks": 4, "head": 16},
    "SliceAttention": {"width": 64, "blocks": 4, "head": 16, "slices": 32},
    "FNO": {"width": 48, "modes": 16, "layers": 4},
    "GKN": {"width": 48, "kernel": (64, 128), "steps": 4},
    "Potential": {"kernel": (64, 64)},
}
_TINY_NETWORKS: dict[str, dict[str, Any]] = {
    "NearFar": {"width": 8, "blocks": 1, "slices": 2, "head": 4, "kernel": (4, 2)},
    "Multigrid": {"width": 8, "cycles": 1, "levels": 2, "kernel": (4, 2)},
    "Transformer": {"width": 8, "blocks": 1, "head": 4},
    "SliceAttention": {"width": 8, "blocks": 1, "head": 4, "slices": 2},
    "FNO": {"width": 4, "modes": 4, "layers": 1},
    "GKN": {"width": 8, "kernel": (8,), "steps": 2},
    "Potential": {"kernel": (4,)},
}
_SMOKE_SIZES: dict[str, dict[str, Any]] = {
    "darcy 2-D": {"size": 9, "modes": 8},
    "poisson, mesh": {"size": 7, "modes": 8},
    "plate": {"size": 25.0},
    "single layer, one curve to two": {"size": 24},
    "heat, disk": {"size": 7, "frames": 4, "modes": 8},
    "wave, l-shape": {"size": 7, "frames": 4, "modes": 8},
    "burgers nu=0.1, u(0) to u(1)": {"size": 16, "frames": 2, "fine": 128},
    "navier-stokes nu=1e-3": {"size": 8, "fine": 16, "end": 13},
}
_SMALL_SIZES: dict[str, dict[str, Any]] = {
    "darcy 2-D": {"size": 25, "modes": 64},
    "darcy-fg, mesh": {"size": 17, "modes": 64},
    "poisson, mesh": {"size": 17, "modes": 64},
    "poisson 3-D, tetrahedra": {"size": 8, "modes": 24},
    "darcy 3-D, tetrahedra": {"size": 8, "modes": 24},
    "plate": {"size": 12.0},
    "single layer, one curve to two": {"size": 100},
    "double layer, one curve to two": {"size": 100},
    "heat, disk": {"size": 15, "frames": 10, "modes": 64},
    "wave, l-shape": {"size": 17, "frames": 10, "modes": 64},
    "burgers nu=0.1, u(0) to u(1)": {"size": 128, "frames": 2},
    "burgers nu=0.01": {"size": 128, "frames": 10},
    "navier-stokes nu=1e-3": {"size": 24, "fine": 48, "end": 20},
}
_FULL_SIZES: dict[str, dict[str, Any]] = {
    "darcy 2-D": {"size": 85},
    "darcy-fg, mesh": {"size": 41},
    "poisson, mesh": {"size": 41},
    "poisson 3-D, tetrahedra": {"size": 13},
    "darcy 3-D, tetrahedra": {"size": 13},
    "plate": {},
    "single layer, one curve to two": {},
    "double layer, one curve to two": {},
    "heat, disk": {},
    "heat, holes": {},
    "wave, l-shape": {},
    "burgers nu=0.1, u(0) to u(1)": {"size": 256, "frames": 2},
    "burgers nu=0.01": {"size": 256},
    "navier-stokes nu=1e-3": {},
    "navier-stokes nu=1e-4": {},
    "navier-stokes nu=1e-5": {},
}
_FULL_COUNTS = {
    "": (1000, 50, 200),
    "poisson 3-D, tetrahedra": (200, 20, 50),
    "darcy 3-D, tetrahedra": (200, 20, 50),
    "plate": (500, 20, 50),
    "single layer, one curve to two": (500, 50, 100),
    "double layer, one curve to two": (500, 50, 100),
    "heat, disk": (64, 8, 32),
    "heat, holes": (64, 8, 32),
    "wave, l-shape": (64, 8, 32),
}
_MEDIUM_COUNTS = {
    **_FULL_COUNTS,
    "navier-stokes nu=1e-3": (200, 20, 20),
    "navier-stokes nu=1e-4": (200, 20, 20),
    "navier-stokes nu=1e-5": (200, 20, 20),
}
_SMALL_COUNTS = {
    "": (64, 8, 32),
    "darcy 2-D": (200, 20, 40),
    "darcy-fg, mesh": (200, 20, 40),
    "poisson, mesh": (200, 20, 40),
    "single layer, one curve to two": (200, 20, 40),
    "double layer, one curve to two": (200, 20, 40),
    "burgers nu=0.1, u(0) to u(1)": (400, 40, 100),
    "navier-stokes nu=1e-3": (64, 8, 16),
}
SCALES = {
    "smoke": Scale("smoke", 0.5, _TINY_NETWORKS, _tasks({"": (4, 2, 2)}, _SMOKE_SIZES), ("heat, disk",), "fp32"),
    "small": Scale(
        "small", 40.0, _SMALL_NETWORKS, _tasks(_SMALL_COUNTS, _SMALL_SIZES), ("heat, disk", "burgers nu=0.01"), "fp32", 0.6
    ),
    "medium": Scale(
        "medium",
        30.0,
        _MEDIUM_NETWORKS,
        _tasks(_MEDIUM_COUNTS, _FULL_SIZES),
        ("heat, disk", "burgers nu=0.01", "navier-stokes nu=1e-3"),
        "bf16",
        0.6,
    ),
    "full": Scale(
        "full",
        300.0,
        _FULL_NETWORKS,
        _tasks(_FULL_COUNTS, _FULL_SIZES),
        ("heat, disk", "burgers nu=0.01", "navier-stokes nu=1e-3"),
        "bf16",
        0.6,
    ),
}


def models_for(task: Task, scale: Scale) -> list[str]:
    """Return the models that a task can be learned by."""
    others = {"FNO": task.grids, "GKN": task.kernels, "Potential": task.potential}
    return [name for name in scale.sizes if others.get(name, True)]


def ways(task: Task) -> dict[str, tuple[Stepping, float | None]]:
    """Return the ways to step of the table: the stepping, and the share of the steps that are unrolled at the end."""
    found = {}
    for target in ("value", "difference", "quotient"):
        for pairs in ("one", "all"):
            for unroll in (None, 0.1):
                stepping = Stepping(target, pairs, clock=False)
                last = "" if unroll is None else ", last tenth unrolled"
                found[f"{target}, {pairs} step{'s' * (pairs == 'all')}{last}"] = (stepping, unroll)
    return found
