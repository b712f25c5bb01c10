"""MATLAB files, v5 and v7.3: those of the GKN and FNO authors, those of greenlearning, or plain arrays."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from gkn.data.foreign.process import parsed_arrays
from gkn.data.foreign.raw import Array, UnreadableFile
from gkn.data.readers.arrays import on_grid, plain
from gkn.data.readers.cells import grid_or_cloud, numbers
from gkn.data.readers.format import Content, ReadOptions, reader

FIELDS = {"coeff": "a", "Kcoeff": "a_smooth", "Kcoeff_x": "a_smooth_x", "Kcoeff_y": "a_smooth_y", "sol": "u"}
GREEN = ("X", "Y", "F", "U")


@reader(".mat")
def read_mat(path: Path, options: ReadOptions) -> Content:
    arrays, skipped = parsed_arrays("mat", path)
    notes = (f"left out, because they are no arrays of numbers: {', '.join(skipped)}",) if skipped else ()
    if "coeff" in arrays:
        found = {ours: numbers(path, theirs, arrays[theirs]) for theirs, ours in FIELDS.items() if theirs in arrays}
        found = {name: array[None] if array.ndim == 2 else array for name, array in found.items()}
        return on_grid(path, found, options, inputs=tuple(name for name in found if name != "u"), notes=notes)
    if all(name in arrays for name in GREEN):
        return _green(path, arrays, notes)
    if not arrays:
        raise UnreadableFile(f"{path}: no arrays of numbers in it")
    content = plain(path, {name: array.reshape(()) if array.size == 1 else array for name, array in arrays.items()}, options)
    return Content(**{**vars(content), "notes": (*content.notes, *notes)})


def _green(path: Path, arrays: dict[str, Array], notes: tuple[str, ...]) -> Content:
    """Return forcings F on points Y and solutions U on points X; a column is a function."""
    given = {name: numbers(path, name, arrays[name]) for name in (*GREEN, "U_hom") if name in arrays}
    X, Y, F, U = (np.atleast_2d(given[name]) for name in GREEN)
    if len(F) != len(Y) or len(U) != len(X) or F.shape[1:] != U.shape[1:] or F.ndim != 2:
        shapes = ", ".join(f"{name} {given[name].shape}" for name in GREEN)
        raise UnreadableFile(f"{path}: {shapes}; needed X (K, d), U (K, n), Y (M, d), F (M, n)")
    fields = {"u": torch.from_numpy(np.ascontiguousarray(U.T))}
    if "U_hom" in given:
        if given["U_hom"].size != len(X):
            raise UnreadableFile(f"{path}: U_hom of shape {given['U_hom'].shape} for {len(X)} points")
        fields["u_hom"] = torch.from_numpy(given["U_hom"].reshape(1, -1).repeat(U.shape[1], 0))
        notes = (*notes, "u_hom is the solution without forcing; u contains it")
    rest = [name for name in arrays if name not in given]
    if rest:
        notes = (*notes, f"arrays left out: {', '.join(rest)}")
    domain, inputs = (grid_or_cloud(torch.from_numpy(each.astype(np.float64)), {}) for each in (X, Y))
    forcing = {"f": torch.from_numpy(np.ascontiguousarray(F.T))}
    return Content(domain, {**fields}, inputs=("f",), input_domain=inputs, input_fields=forcing, notes=notes)
