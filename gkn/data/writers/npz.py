"""NumPy's .npz: the arrays of the domain and the fields."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from typing import Any

import numpy as np

from gkn.data.writers.format import writer
from gkn.geometry.domain import Domain


@writer(".npz")
def npz_image(domain: Domain, arrays: Mapping[str, Any]) -> bytes:
    geometry = {"points": domain.points.numpy(), **{name: array.numpy() for name, array in domain.arrays().items()}}
    file = io.BytesIO()
    with zipfile.ZipFile(
        file, "w", zipfile.ZIP_DEFLATED
    ) as archive:  # numpy's savez would take some field names for its own arguments
        for name, array in {**geometry, **arrays}.items():
            with archive.open(f"{name}.npy", "w") as entry:
                np.lib.format.write_array(entry, array, allow_pickle=False)
    return file.getvalue()
