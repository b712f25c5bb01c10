"""NumPy's .npz: the arrays of the domain, the fields and the parameters."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping

import numpy as np

from gkn.data.readers.arrays import cells_name, is_geometry
from gkn.data.writers.format import Array, writer
from gkn.geometry.domain import Domain


@writer(".npz", reserved=is_geometry)
def npz_image(
    domain: Domain, fields: Mapping[str, Array], cell_data: Mapping[str, list[Array]], parameters: Mapping[str, float]
) -> bytes:
    for name, values in fields.items():
        if values.dtype.kind not in "fiub":
            raise ValueError(f"field {name!r} has type {values.dtype}; needed real numbers")
    numbers = {name: np.asarray(float(value)) for name, value in parameters.items()}
    # As many components as points could be taken for samples: an axis in front makes the number of samples 1.
    fields = {name: array[None] if array.shape == (len(domain), len(domain)) else array for name, array in fields.items()}
    return npz_bytes({**npz_arrays(domain), **numbers, **fields})


def npz_arrays(domain: Domain) -> dict[str, Array]:
    """Return the arrays of a domain as they are in a file."""
    geometry: dict[str, Array] = {"points": domain.points.numpy()}
    if domain.kind == "mesh":
        blocks = domain.cell_blocks()
        return geometry | {cells_name(kind, domain.dim, len(blocks)): np.asarray(corners) for kind, corners in blocks}
    if domain.kind == "grid":
        return geometry | {f"grid_{name}": array.numpy() for name, array in domain.arrays().items()}
    return geometry | {name: array.numpy() for name, array in domain.arrays().items()}


def npz_bytes(arrays: Mapping[str, Array]) -> bytes:
    """Return the bytes of a file with these arrays."""
    file = io.BytesIO()
    # numpy's savez would take some field names for its own arguments
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w") as entry:
                np.lib.format.write_array(entry, array, allow_pickle=False)
    return file.getvalue()
