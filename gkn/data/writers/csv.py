"""Tables as text: coordinates x, y, z and one column per field or component. All digits are written."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping

import numpy as np

from gkn.data.groups import component_names
from gkn.data.writers.format import Array, writer
from gkn.geometry.domain import Domain


@writer(".csv", reserved=lambda name: name.lower() in ("x", "y", "z"))
def csv_image(
    domain: Domain, fields: Mapping[str, Array], cell_data: Mapping[str, list[Array]], parameters: Mapping[str, float]
) -> bytes:
    names, columns = [*"xyz"[: domain.dim]], [domain.points.numpy()]
    for name, values in fields.items():
        if values.dtype.kind not in "fiub":
            raise ValueError(f"field {name!r} has type {values.dtype}; needed real numbers")
        columns.append(values.reshape(len(domain), -1).astype(np.float64))
        names += component_names(name, columns[-1].shape[1])
    file = io.StringIO(newline="")
    csv.writer(file, lineterminator="\n").writerow(names)
    np.savetxt(file, np.concatenate(columns, 1), fmt="%.17g", delimiter=",")
    return file.getvalue().encode()
