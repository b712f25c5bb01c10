"""Series: the states of a trajectory as a `.pvd` list of `.vtu` files, as one `.npz`, or as an animated `.gif`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from xml.sax.saxutils import quoteattr

import numpy as np
import torch

from gkn.data.writers import check, save
from gkn.geometry.domain import Domain
from gkn.system.files import make_folder, write

ENDINGS = (".pvd", ".npz", ".gif")


def check_series(path: Path, names: Iterable[str]) -> None:
    """Raise an error if states with these fields cannot be written to `path`. Called before anything is computed."""
    if path.suffix.lower() not in ENDINGS:
        raise ValueError(f"{path}: say what kind of series by its ending: {', '.join(ENDINGS)}")
    check(path.with_suffix(".npz" if path.suffix.lower() == ".npz" else ".vtu"), names)


def save_series(
    path: Path,
    domain: Domain,
    states: Iterable[tuple[float, Mapping[str, Any]]],
    parameters: Mapping[str, float] | None = None,
) -> list[float]:
    """Write states, (time, fields (K,) or (K, c)), as they come; return their times. A `.pvd` keeps none of them in memory.

    Whatever number of states there is in the end, what was written is a complete series. Without any, nothing is written.
    """
    if path.suffix.lower() == ".pvd":
        return _write_pvd(path, domain, states, parameters or {})
    rows: list[tuple[float, dict[str, Any]]] = []
    try:
        for time, fields in states:
            rows.append((time, {name: np.asarray(values) for name, values in fields.items()}))
    finally:  # of a rollout that is interrupted, the states before are kept
        if rows:
            _write_whole(path, domain, rows, parameters or {})
    return [time for time, _ in rows]


def _write_whole(path: Path, domain: Domain, rows: list[tuple[float, dict[str, Any]]], parameters: Mapping[str, float]) -> None:
    """Write all states as an `.npz` or a `.gif`."""
    times = [time for time, _ in rows]
    arrays = {name: np.stack([fields[name] for _, fields in rows]) for name in rows[0][1]}
    if path.suffix.lower() == ".npz":
        _write_npz(path, domain, times, arrays, parameters)
        return
    from gkn.data.plot_states import animate

    shown = {name: x if x.ndim == 2 else np.linalg.norm(x, axis=2) for name, x in arrays.items()}
    names = {name if arrays[name].ndim == 2 else f"|{name}|": torch.from_numpy(x) for name, x in shown.items()}
    animate(path, domain, times, names)


def _write_pvd(
    path: Path, domain: Domain, states: Iterable[tuple[float, Mapping[str, Any]]], parameters: Mapping[str, float]
) -> list[float]:
    folder, times, entries = path.with_suffix(""), [], []
    make_folder(folder)
    for number, (time, fields) in enumerate(states):
        file = folder / f"{path.stem}_{number:05d}.vtu"
        save(file, domain, fields, None, parameters)
        times.append(time)
        entries.append(f'<DataSet timestep="{time!r}" part="0" file={quoteattr(f"{folder.name}/{file.name}")}/>')
        head = '<?xml version="1.0"?>\n<VTKFile type="Collection" version="0.1" byte_order="LittleEndian">\n<Collection>\n'
        write(path, (head + "\n".join(entries) + "\n</Collection>\n</VTKFile>\n").encode())
    numbered = re.compile(re.escape(path.stem) + r"_(\d{5})\.vtu")
    for file in [*folder.iterdir()] if times else []:  # of a longer series that was here before
        found = numbered.fullmatch(file.name)
        if found is not None and int(found[1]) >= len(times):
            file.unlink()
    return times


def _write_npz(
    path: Path, domain: Domain, times: list[float], arrays: Mapping[str, Any], parameters: Mapping[str, float]
) -> None:
    from gkn.data.writers.npz import npz_arrays, npz_bytes

    geometry = npz_arrays(domain)
    numbers = {name: np.asarray(float(value)) for name, value in parameters.items()}
    make_folder(path.parent)
    write(path, npz_bytes({**geometry, **numbers, "times": np.asarray(times), **arrays}))
