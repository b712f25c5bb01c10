"""From arrays to domains and fields: values on a grid without coordinates, or named arrays with their points."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gkn.data.foreign.raw import SHAPES, Array, RawMesh, UnreadableFile
from gkn.data.readers.cells import agrees, content_of, grid_or_cloud, numbers, without_constant_axes
from gkn.data.readers.format import Content, Nodes, ReadOptions
from gkn.geometry.domain import Domain
from gkn.geometry.grid import Grid

# Types of cells by the dimension of the points and the number of nodes, where these leave no choice.
_KINDS = {
    (1, 2): "line",
    (1, 3): "line3",
    (2, 3): "triangle",
    (2, 4): "quad",
    (2, 6): "triangle6",
    (2, 7): "triangle7",
    (2, 8): "quad8",
    (2, 9): "quad9",
    (3, 3): "triangle",
    (3, 4): "tetra",
    (3, 5): "pyramid",
    (3, 8): "hexahedron",
    (3, 10): "tetra10",
    (3, 13): "pyramid13",
    (3, 15): "wedge15",
    (3, 20): "hexahedron20",
    (3, 27): "hexahedron27",
}

# A grid that is not the unit one, as `save` writes it.
_GRID = tuple(f"grid_{name}" for name in ("counts", "low", "high", "periodic", "nodes"))


def is_geometry(name: str) -> bool:
    """True for names of arrays that describe the domain."""
    return name in ("points", "cells", "weights", "boundary", *_GRID) or name.removeprefix("cells_") in SHAPES


def cells_name(kind: str, dim: int, blocks: int) -> str:
    """Return the name of an array of cells of a type, in a file with this many types."""
    plain_name = blocks == 1 and _KINDS.get((dim, SHAPES[kind][2])) == kind
    return "cells" if plain_name else f"cells_{kind}"


def grid_of(path: Path, counts: tuple[int, ...], options: ReadOptions, nodes: Nodes, periodic: bool = False) -> Grid:
    """Return the grid of arrays without coordinates, with `counts` values along each axis."""
    nodes, periodic, dim = options.nodes or nodes, periodic or options.periodic, len(counts)
    if nodes == "vertices" and not periodic and options.box is None and len({*counts}) == 1:
        return Grid(counts[0], dim)
    box: dict[str, Any] = {}
    if options.box is not None:
        box = {"low": tuple(options.box[0]), "high": tuple(options.box[1])}
        if any(len(corner) != dim for corner in box.values()):
            raise UnreadableFile(f"{path}: arrays of {dim} dimensions in a box with corners {options.box}")
    return Grid(counts, dim, periodic=periodic, nodes=nodes, **box)


def on_grid(path: Path, arrays: Mapping[str, Array], options: ReadOptions, nodes: Nodes = "vertices", **more: Any) -> Content:
    """Return arrays (n, s1, ..., sd) as fields on a grid; arrays (n,) and single numbers are parameters."""
    fields = {name: array for name, array in arrays.items() if array.ndim > 1}
    shapes = {name: array.shape for name, array in fields.items()}
    shape = next(iter(shapes.values()), ())
    if len({*shapes.values()}) != 1 or not 2 <= len(shape) <= 4 or min(shape[1:]) < 2 or not shape[0]:
        raise UnreadableFile(f"{path}: fields of shapes {shapes}; needed (n, s), (n, s, s) or (n, s, s, s), the same for all")
    flat = {name: torch.from_numpy(np.ascontiguousarray(array)).reshape(len(array), -1) for name, array in fields.items()}
    parameters = {name: _parameter(path, name, array, shape[0]) for name, array in arrays.items() if array.ndim <= 1}
    return Content(grid_of(path, shape[1:], options, nodes), flat, parameters, **more)


def _parameter(path: Path, name: str, array: Array, n: int) -> Tensor:
    values = torch.from_numpy(np.ascontiguousarray(array, dtype=np.float64)).reshape(-1)
    if len(values) == 1:
        return values.repeat(n)
    if len(values) != n:
        raise UnreadableFile(f"{path}: {name} has {len(values)} numbers for {n} samples; needed one per sample")
    return values


def plain(path: Path, arrays: Mapping[str, Array], options: ReadOptions) -> Content:
    """Read named arrays.

    points                   (K, d), or (n, K, d) for one set of points per sample
    cells, cells_quad, ...   (C, nodes) indices of points
    weights, boundary        (K,)
    all others               fields (K,), (n, K), (K, c) or (n, K, c); parameters () or (n,)

    Without points, arrays (n, s), (n, s, s) or (n, s, s, s) are fields on a grid.

    With an array `times`, (T,) or (n, T), fields may have an axis of times before that of the points: (T, K) or (n, T, K), with
    components (T, K, c) or (n, T, K, c), and (T, s, ...) or (n, T, s, ...) on a grid.
    """
    if "times" in arrays:
        return with_times(path, arrays, options)
    given = {name: array if is_geometry(name) else numbers(path, name, array) for name, array in arrays.items()}
    if "points" not in given:
        extra = [name for name in given if is_geometry(name)]
        if extra or not any(array.ndim > 1 for array in given.values()):
            raise UnreadableFile(f"{path}: no array 'points'; it has {', '.join(arrays) or 'nothing'}")
        return on_grid(path, given, options, notes=("arrays without points: read as values on a grid",))
    points = numbers(path, "points", given["points"]).astype(np.float64)
    points = points[:, None] if points.ndim == 1 else points
    if points.ndim not in (2, 3) or not points.size:
        raise UnreadableFile(f"{path}: points of shape {points.shape}; needed (K, d), or (n, K, d) for points per sample")
    K, several = points.shape[-2], len(points) if points.ndim == 3 else None
    fields, parameters, n = _told_apart(path, {k: v for k, v in given.items() if not is_geometry(k)}, K, several)
    notes: list[str] = []
    flat_axes: dict[int, float] = {}
    if any(name.startswith("cells") and is_geometry(name) for name in given):
        varying, flat_axes = without_constant_axes(path, points.reshape(-1, points.shape[-1]), 0, notes)
        points = varying.reshape(*points.shape[:-1], -1)
        if flat_axes:
            dropped = max(flat_axes)
            across = [name for name, v in fields.items() if v.ndim == 3 and v.shape[2] == 3 and not v[..., dropped].any()]
            fields |= {name: np.delete(fields[name], dropped, 2) for name in across}
    if several is None:
        domain, kept = _domain(path, points, given, options, notes)
        flat: dict[str, Any] = {name: torch.from_numpy(np.ascontiguousarray(v))[:, kept] for name, v in fields.items()}
        return Content(domain, flat, parameters, notes=tuple(notes), flat_axes=flat_axes)
    pairs = [_domain(path, each, given, options, notes) for each in points]
    rows = {name: [torch.from_numpy(np.ascontiguousarray(v[i]))[pairs[i][1]] for i in range(n)] for name, v in fields.items()}
    domains, said = [domain for domain, _ in pairs], tuple(dict.fromkeys(notes))
    return Content(domains, {**rows}, parameters, notes=said, flat_axes=flat_axes)


def _told_apart(
    path: Path, arrays: Mapping[str, Array], K: int, n: int | None
) -> tuple[dict[str, Array], dict[str, Tensor], int]:
    """Tell fields (n, K) or (n, K, c) from parameters (n,) by their shapes; also return n."""
    fields: dict[str, Array] = {}
    rest: dict[str, Array] = {}
    for name, array in arrays.items():
        shape = array.shape
        if array.size == 1 and K > 1:
            rest[name] = array.reshape(-1)
        elif array.ndim == 1 and shape[0] == K:
            fields[name] = array[None]
        elif array.ndim == 2 and shape[1] == K and not (shape[0] == K and K <= 9):
            fields[name] = array
        elif array.ndim >= 3 and shape[1] == K and shape[0] != K:
            fields[name] = array.reshape(shape[0], K, -1)
        elif array.ndim >= 2 and shape[0] == K and shape[1] != K:
            fields[name] = array.reshape(1, K, -1)
        elif array.ndim >= 2 and shape[:2] == (K, K):
            raise UnreadableFile(
                f"{path}: field {name} of shape {shape} for {K} points may be {K} samples or {K} components: "
                "write it as (n, K, c)"
            )
        elif array.ndim == 1 or (array.ndim == 2 and shape[1] == 1):
            rest[name] = array.reshape(-1)
        else:
            raise UnreadableFile(
                f"{path}: field {name} of shape {shape} for {K} points; needed ({K},), (n, {K}), ({K}, c) or (n, {K}, c)"
            )
    fields = {name: v[..., 0] if v.ndim == 3 and v.shape[2] == 1 else v for name, v in fields.items()}
    counts = {name: len(rows) for name, rows in fields.items()} | ({} if n is None else {"points": n})
    unclear = next((name for name, array in arrays.items() if array.shape == (K,)), None)
    if unclear is not None and K > 1 and K in counts.values():
        raise UnreadableFile(
            f"{path}: {unclear} of shape ({K},) may be a field or {K} parameters: write it as (1, {K}) or ({K}, 1)"
        )
    if len({*counts.values()}) > 1:
        raise UnreadableFile(f"{path}: the fields have different numbers of samples: {counts}")
    count = next(iter(counts.values()), max((len(v) for v in rest.values()), default=1))
    for name, array in rest.items():
        if len(array) not in (1, count):
            raise UnreadableFile(
                f"{path}: {name} of shape {arrays[name].shape} for {K} points and {count} samples; "
                f"needed (n, {K}) for a field, ({count},) for a parameter"
            )
    return fields, {name: _parameter(path, name, array, count) for name, array in rest.items()}, count


def _domain(
    path: Path, points: Array, arrays: Mapping[str, Array], options: ReadOptions, notes: list[str]
) -> tuple[Domain, Tensor]:
    """Return the domain, and the indices of the points that are in it."""
    count, dim = points.shape
    given = {name: torch.from_numpy(numbers(path, name, arrays[name])) for name in ("weights", "boundary") if name in arrays}
    for name, each in given.items():
        if each.shape != (count,):
            raise UnreadableFile(f"{path}: {name} of shape {tuple(each.shape)} for {count} points")
    blocks = [
        (_kind(path, name, array, dim), array)
        for name, array in arrays.items()
        if name.startswith("cells") and is_geometry(name)
    ]
    if "grid_counts" in arrays:
        stored = {name.removeprefix("grid_"): torch.from_numpy(np.asarray(arrays[name])) for name in _GRID}
        grid = Grid.from_arrays(stored, {})
        if len(grid) != count or not torch.equal(grid.points, torch.from_numpy(points)):
            raise UnreadableFile(f"{path}: points are not those of its grid; leave out the arrays {', '.join(_GRID)}")
        return grid, torch.arange(count)
    if not blocks:
        return grid_or_cloud(torch.from_numpy(np.ascontiguousarray(points)), given), torch.arange(count)
    number = {"number": np.arange(count)}
    content = content_of(path, RawMesh(points, blocks, number), options)
    notes += content.notes
    domain, kept = content.domain_of(0), content.fields["number"][0].long()
    if given and not agrees(domain, {name: values[kept] for name, values in given.items()}):
        raise UnreadableFile(f"{path}: weights or boundary are not those of the cells; leave them out, or leave the cells out")
    return domain, kept


def _kind(path: Path, name: str, array: Array, dim: int) -> str:
    """Return the type of cells, which is in the name or follows from the number of nodes."""
    if name != "cells":
        return name.removeprefix("cells_")
    nodes = array.shape[1] if array.ndim == 2 else 0
    if (dim, nodes) not in _KINDS:
        known = ", ".join(f"cells_{kind}" for kind, (_, _, count) in SHAPES.items() if count == nodes) or "cells_triangle"
        raise UnreadableFile(
            f"{path}: cells of shape {array.shape} on points in {dim} dimensions may be of several types or none: "
            f"name the array after its type, as in {known}"
        )
    return _KINDS[dim, nodes]


def finite_bounds(path: Path, options: ReadOptions) -> tuple[float, float]:
    """Return the values that False and True stand for."""
    if not (math.isfinite(options.low) and math.isfinite(options.high)):
        raise UnreadableFile(f"{path}: low = {options.low} and high = {options.high} must be finite")
    return options.low, options.high


def with_times(path: Path, arrays: Mapping[str, Array], options: ReadOptions) -> Content:
    """Read named arrays with times: every state becomes a sample with the parameter `time`, part of a trajectory."""
    times = numbers(path, "times", arrays["times"]).astype(np.float64)
    rest = {name: array for name, array in arrays.items() if name != "times"}
    if times.ndim == 2 and times.shape[1] == 1:
        times = times.reshape(-1)  # a column
    if times.ndim not in (1, 2) or times.shape[-1] < 2:
        raise UnreadableFile(f"{path}: times of shape {times.shape}; needed (T,) or (n, T), at least two")
    if not np.isfinite(times).all():
        raise UnreadableFile(f"{path}: times must be finite, but {int((~np.isfinite(times)).sum())} of {times.size} are not")
    if (np.diff(times) <= 0).any():
        raise UnreadableFile(f"{path}: the times do not increase; sort the frames, and remove those that are there twice")
    T = times.shape[-1]
    if rest.get("points", np.zeros(0)).ndim == 3:
        raise UnreadableFile(f"{path}: points per sample and times; write a file for each trajectory")
    K = len(rest["points"]) if "points" in rest else None
    fields = {name: array for name, array in rest.items() if not is_geometry(name)}
    several = times.ndim == 2
    moving = {name: _axis_of_times(path, name, array, T, K, several) for name, array in fields.items()}
    if 1 in moving.values():  # several trajectories, so what has no axis of times before the points does not change
        count = next(len(fields[name]) for name, axis in moving.items() if axis == 1)
        moving = {name: None if axis == 0 and len(fields[name]) == count else axis for name, axis in moving.items()}
    axes = {axis for axis in moving.values() if axis is not None}
    if not axes:
        raise UnreadableFile(f"{path}: {T} times, but no field of (T, points) or (n, T, points)")
    if len(axes) > 1:
        raise UnreadableFile(f"{path}: some fields have one trajectory, others several; write all as (n, T, points)")
    n = 1 if axes == {0} else next(len(fields[name]) for name, axis in moving.items() if axis == 1)
    if times.ndim == 2 and len(times) != n:
        raise UnreadableFile(f"{path}: times of {len(times)} trajectories, fields of {n}")
    flat = {name: array for name, array in rest.items() if is_geometry(name)}
    # The first axes of one state: the points, or all axes of a grid.
    space = (K,) if K is not None else next(fields[name].shape[axis + 1 :] for name, axis in moving.items() if axis is not None)
    for name, array in fields.items():
        if moving[name] is None:
            if n == 1 and array.shape[: len(space)] == space:
                array = array[None]
            flat[name] = np.repeat(array, T, 0) if array.ndim and len(array) == n and (n > 1 or array.ndim > 1) else array
        else:
            states = array if moving[name] == 1 else array[None]
            if states.shape[:2] != (n, T):
                raise UnreadableFile(f"{path}: field {name} of shape {array.shape}; needed {n} trajectories of {T} times")
            flat[name] = states.reshape(n * T, *states.shape[2:])
    if "time" in flat:
        raise UnreadableFile(f"{path}: arrays 'times' and 'time'; rename the second, whose name is that of the states' times")
    content = plain(path, flat, options)
    time = torch.from_numpy(np.broadcast_to(times, (n, T)).copy()).reshape(-1)
    series = tuple(i for i in range(n) for _ in range(T))
    return replace(content, parameters={**content.parameters, "time": time}, series=series)


def _axis_of_times(path: Path, name: str, array: Array, T: int, K: int | None, several: bool) -> int | None:
    """Return the number of the axis of times of an array, or None if it has none.

    K         number of points; None for values on a grid
    several   there are several trajectories for certain
    """
    found = [
        axis
        for axis in (1, 0)
        if array.shape[axis : axis + 1] == (T,) and array.ndim > axis + 1 and (K is None or array.shape[axis + 1] == K)
    ]
    if len(found) > 1 and not several:
        raise UnreadableFile(
            f"{path}: field {name} of shape {array.shape} with {T} times may be {T} trajectories or one: write one as "
            f"(1, {T}, ...), or give {T} trajectories times of shape ({T}, {T})"
        )
    return found[0] if found else None
