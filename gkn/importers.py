"""Datasets from files people already have. Nothing here runs code that a file carries, or believes a size it claims.

.mat            the GKN/FNO files, v5 and v7.3: coeff, Kcoeff, Kcoeff_x, Kcoeff_y, sol
.pt             neuraloperator: {"x": bool or float (n, s, s), "y": float (n, s, s)}, tensors only
.h5, .hdf5      PDEBench Darcy (nu, tensor), or plain: points, cells?, weights?, boundary?, and named fields
.npz            plain, the same names
.vtu, ...       a mesh with point data, one sample a file: what meshlane reads
"""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, Literal

import h5py
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gkn.dataset import Dataset
from gkn.domain import Cloud, Domain, Grid, Mesh

Array = NDArray[Any]
Nodes = Literal["vertices", "centres"]
_MAT_FIELDS = {"coeff": "a", "Kcoeff": "a_smooth", "Kcoeff_x": "a_smooth_x", "Kcoeff_y": "a_smooth_y", "sol": "u"}
_GEOMETRY = ("points", "cells", "weights", "boundary")


class UnreadableFile(ValueError):
    """The file is damaged, hostile, or not of the kind its name says."""


def load(
    paths: Sequence[str | os.PathLike[str]],
    *,
    outputs: Sequence[str] = ("u",),
    nodes: Nodes = "vertices",
    low: float = 3.0,
    high: float = 12.0,
    repair: bool = False,
) -> Dataset:
    """Read files of one kind into one dataset, sample after sample.

    outputs: the fields to be learned; all others are inputs.
    nodes: where values on an s x s array without coordinates sit: at i/(s-1), or at the centres of cells, (i+1/2)/s.
    low, high: what False and True stand for where a coefficient comes as bool.
    repair: turn clockwise cells of meshes round and drop unused points, instead of refusing them.
    """
    if not paths:
        raise ValueError("no file to import was given")
    parts = [_load_one(Path(path), nodes, low, high, repair) for path in paths]
    (domains, fields) = parts[0] if len(parts) == 1 else _joined([Path(path) for path in paths], parts)
    if not fields:
        raise UnreadableFile(f"{paths[0]}: no fields in it, only points")
    missing = [name for name in outputs if name not in fields]
    if missing:
        raise ValueError(
            f"{paths[0]}: no field {missing[0]!r} to be the output; it has {', '.join(fields)}: name it with outputs"
        )
    return Dataset(domains, outputs=outputs, **fields)


_Part = tuple[Domain | Sequence[Domain], dict[str, Any]]


def _load_one(path: Path, nodes: Nodes, low: float, high: float, repair: bool) -> _Part:
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file")
    readers: dict[str, Callable[[], _Part]] = {
        ".mat": lambda: _mat(path, nodes),
        ".pt": lambda: _pt(path, nodes, low, high),
        ".npz": lambda: _plain(path, _npz(path), repair),
        ".h5": lambda: _hdf5(path, nodes, repair),
        ".hdf5": lambda: _hdf5(path, nodes, repair),
    }
    reader = readers.get(path.suffix.lower(), lambda: _mesh(path, repair))
    try:
        return reader()
    except (UnreadableFile, ImportError, MemoryError):
        raise
    except Exception as error:  # parsers of foreign formats raise anything at all on damaged bytes
        raise UnreadableFile(f"{path}: cannot be read: {type(error).__name__}: {error}") from error


def _joined(paths: list[Path], parts: list[_Part]) -> _Part:
    first = [*parts[0][1]]
    for path, (_, fields) in zip(paths, parts, strict=True):
        if [*fields] != first:
            raise UnreadableFile(f"{path}: has the fields {', '.join(fields)}; the first file has {', '.join(first)}")
    domains = [domain for domain, _ in parts]
    one = domains[0]
    if all(not isinstance(each, Sequence) and _same(one, each) for each in domains):  # type: ignore[arg-type]
        return one, {name: torch.cat([fields[name] for _, fields in parts]) for name in first}
    each_its_own: list[Domain] = []
    rows: dict[str, list[Tensor]] = {name: [] for name in first}
    for domain, fields in parts:
        count = len(fields[first[0]])
        each_its_own += domain if isinstance(domain, Sequence) else [domain] * count
        for name in first:
            rows[name] += [*fields[name]]
    if any(isinstance(domain, Grid) for domain in each_its_own):
        raise UnreadableFile(f"{paths[0]} and the others are on different grids; import them one by one")
    return each_its_own, rows


def _same(one: Domain, other: Domain) -> bool:
    if isinstance(one, Grid) or isinstance(other, Grid):
        return one == other
    if type(one) is not type(other) or not torch.equal(one.points, other.points):
        return False
    return not isinstance(one, Mesh) or torch.equal(one.cells, other.cells)  # type: ignore[union-attr]


# --- sizes -----------------------------------------------------------------------------------------------------------


def _check_claim(path: Path, name: str, shape: Sequence[int], itemsize: int) -> None:
    """Refuse an array that cannot fit, by what its header claims, before anything is allocated."""
    claimed = itemsize
    for extent in shape:
        claimed *= int(extent)
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if claimed > free // 2:
        raise UnreadableFile(
            f"{path}: {name} claims shape {tuple(int(n) for n in shape)}, {claimed / 2**30:.3g} GiB, "
            f"but {free / 2**30:.3g} GiB are free"
        )


def _on_square(path: Path, fields: Mapping[str, Array], nodes: Nodes) -> _Part:
    """Fields (n, s, s), or (n, s) in one dimension, on the unit square."""
    shapes = {name: array.shape for name, array in fields.items()}
    shape = next(iter(shapes.values()))
    if len({*shapes.values()}) != 1 or len(shape) not in (2, 3, 4) or len({*shape[1:]}) != 1 or shape[1] < 2:
        raise UnreadableFile(f"{path}: fields of shapes {shapes}; needed (n, s, s), the same for all")
    grid = Grid(shape[1], len(shape) - 1)
    flat = {name: torch.from_numpy(np.ascontiguousarray(array)).reshape(len(array), -1) for name, array in fields.items()}
    if nodes == "vertices":
        return grid, flat
    centres = (grid.points * (grid.size - 1) + 0.5) / grid.size
    return Cloud(centres), flat


def _numbers(path: Path, name: str, array: Array) -> Array:
    """Real numbers, in a type that a dataset holds."""
    if array.dtype.kind == "f":
        return (
            array.astype(array.dtype.newbyteorder("="), copy=False)
            if array.dtype.itemsize in (4, 8)
            else array.astype(np.float64)
        )
    if array.dtype.kind in "iub":
        return array.astype(np.float64)
    raise UnreadableFile(f"{path}: {name} holds {array.dtype}, not real numbers")


# --- formats ---------------------------------------------------------------------------------------------------------


def _mat(path: Path, nodes: Nodes) -> _Part:
    arrays: dict[str, Array] = {}
    if h5py.is_hdf5(path):  # v7.3
        with h5py.File(path, "r") as file:
            for name in _MAT_FIELDS:
                if name in file:
                    data = _h5_array(path, file, name)
                    arrays[name] = data.transpose(*reversed(range(data.ndim)))  # MATLAB counts the other way round
    else:
        from scipy.io import loadmat, whosmat

        present = {name: (shape, kind) for name, shape, kind in whosmat(path) if name in _MAT_FIELDS}
        for name, (shape, kind) in present.items():
            if kind not in ("double", "single", "logical", *(f"{u}int{b}" for u in ("", "u") for b in (8, 16, 32, 64))):
                raise UnreadableFile(f"{path}: {name} is a MATLAB {kind}, not an array of numbers")
            _check_claim(path, name, shape, 8)
        arrays = loadmat(path, variable_names=[*present]) if present else {}
    found = {ours: _numbers(path, theirs, arrays[theirs]) for theirs, ours in _MAT_FIELDS.items() if theirs in arrays}
    if not {"a", "u"} <= {*found}:
        raise UnreadableFile(f"{path}: no coeff and sol in it; a GKN/FNO file has {', '.join(_MAT_FIELDS)}")
    return _on_square(path, found, nodes)


def _pt(path: Path, nodes: Nodes, low: float, high: float) -> _Part:
    size = path.stat().st_size
    with zipfile.ZipFile(path) as archive:  # torch stores tensors as they are: what is larger inside than outside is a trap
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in archive.infolist()):
            raise UnreadableFile(f"{path}: compressed entries; torch does not write such files")
    value = torch.load(path, map_location="cpu", weights_only=True)
    if not isinstance(value, dict) or not all(isinstance(value.get(key), Tensor) for key in "xy"):
        raise UnreadableFile(f'{path}: needed a dictionary with tensors "x" and "y"')
    x, y = value["x"], value["y"]
    for name, each in (("x", x), ("y", y)):
        if each.numel() * each.element_size() > size:
            raise UnreadableFile(f"{path}: {name} claims {tuple(each.shape)}, more than the file's {size} bytes hold")
        if each.layout != torch.strided or each.is_quantized:
            raise UnreadableFile(f"{path}: {name} is no plain tensor")
    x, y = (each.squeeze(1) if each.ndim == 4 else each for each in (x, y))
    a = torch.where(x, high, low).double() if x.dtype == torch.bool else x
    return _on_square(path, {"a": _numbers(path, "x", a.numpy()), "u": _numbers(path, "y", y.numpy())}, nodes)


def _hdf5(path: Path, nodes: Nodes, repair: bool) -> _Part:
    with h5py.File(path, "r") as file:
        if "nu" in file and "tensor" in file:
            return _pdebench(path, file)
        names = [name for name in file if isinstance(file.get(name, getlink=True), h5py.HardLink)]
        return _plain(path, {name: _h5_array(path, file, name) for name in names}, repair)


def _pdebench(path: Path, file: h5py.File) -> _Part:
    nu, tensor = (_numbers(path, name, _h5_array(path, file, name)) for name in ("nu", "tensor"))
    if tensor.ndim == 4 and tensor.shape[1] == 1:
        tensor = tensor[:, 0]
    fields = {"a": nu, "u": tensor}
    if "x-coordinate" not in file:
        return _on_square(path, fields, "centres")
    axes = [_numbers(path, name, _h5_array(path, file, name)).astype(np.float64) for name in ("x-coordinate", "y-coordinate")]
    domain, flat = _on_square(path, fields, "vertices")
    points = torch.from_numpy(np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, 2))
    if not isinstance(domain, Grid) or len(points) != len(domain):
        raise UnreadableFile(f"{path}: {len(axes[0])} x {len(axes[1])} coordinates for fields of shape {nu.shape}")
    on_nodes = torch.allclose(points, domain.points, atol=1e-6, rtol=0)
    return (domain if on_nodes else Cloud(points)), flat


def _h5_array(path: Path, file: h5py.File, name: str) -> Array:
    """An array of a foreign HDF5 file: its own bytes only (no links out, no plug-in filters), of a size that fits."""
    if not isinstance(file.get(name, getlink=True), h5py.HardLink):
        raise UnreadableFile(f"{path}: {name} is missing, or a link to somewhere else")
    data = file[name]
    if not isinstance(data, h5py.Dataset) or data.external is not None or data.is_virtual:
        raise UnreadableFile(f"{path}: {name} is not an array stored in this file")
    properties = data.id.get_create_plist()
    known = {h5py.h5z.FILTER_DEFLATE, h5py.h5z.FILTER_SHUFFLE, h5py.h5z.FILTER_FLETCHER32, h5py.h5z.FILTER_LZF}
    if any(properties.get_filter(i)[0] not in known for i in range(properties.get_nfilters())):
        raise UnreadableFile(f"{path}: {name} uses a filter that is not part of HDF5")
    if data.dtype.kind not in "fiub":
        raise UnreadableFile(f"{path}: {name} holds {data.dtype}, not numbers")
    _check_claim(path, name, data.shape, data.dtype.itemsize)
    return np.asarray(data[...])


def _npz(path: Path) -> dict[str, Array]:
    arrays = {}
    with zipfile.ZipFile(path) as archive:
        for entry in archive.infolist():
            name = entry.filename.removesuffix(".npy")
            with archive.open(entry) as stream:
                major, _ = np.lib.format.read_magic(stream)
                header = np.lib.format.read_array_header_1_0 if major == 1 else np.lib.format.read_array_header_2_0
                shape, _, dtype = header(stream)
            _check_claim(path, name, shape, dtype.itemsize)
    with np.load(path, allow_pickle=False) as file:
        for name in file.files:
            arrays[name] = file[name]
    return arrays


def _plain(path: Path, arrays: Mapping[str, Array], repair: bool) -> _Part:
    """points (K, d), perhaps cells, weights, boundary; every other array is a field: (K,) or (n, K)."""
    if "points" not in arrays:
        raise UnreadableFile(f"{path}: no array 'points'; it has {', '.join(arrays) or 'nothing'}")
    points = _numbers(path, "points", arrays["points"]).astype(np.float64)
    domain, kept = _domain(path, points, arrays, repair)
    fields = {}
    for name, array in arrays.items():
        if name in _GEOMETRY:
            continue
        values = np.atleast_2d(_numbers(path, name, array))
        if values.ndim != 2 or values.shape[1] != len(points):
            raise UnreadableFile(
                f"{path}: field {name} of shape {array.shape} for {len(points)} points; needed (n, {len(points)})"
            )
        fields[name] = torch.from_numpy(np.ascontiguousarray(values))[:, kept]
    counts = {name: len(rows) for name, rows in fields.items()}
    if len({*counts.values()}) > 1:
        raise UnreadableFile(f"{path}: the fields have different numbers of samples: {counts}")
    return domain, fields


def _domain(path: Path, points: Array, arrays: Mapping[str, Array], repair: bool) -> tuple[Domain, Tensor]:
    everything = torch.arange(len(points))
    if "cells" not in arrays:
        given = {name: torch.from_numpy(np.asarray(arrays[name])) for name in ("weights", "boundary") if name in arrays}
        return _grid_or_cloud(torch.from_numpy(points), given), everything
    cells = torch.from_numpy(np.asarray(arrays["cells"]).astype(np.int64, casting="same_kind"))
    try:
        if repair:
            return Mesh.repaired(points, cells)
        return Mesh(torch.from_numpy(points), cells), everything
    except ValueError as error:
        raise UnreadableFile(
            f"{path}: {error} (gkn data import --repair does it)" if not repair else f"{path}: {error}"
        ) from error


def _grid_or_cloud(points: Tensor, given: dict[str, Tensor]) -> Domain:
    """Points that are just those of a grid, in its order, are that grid."""
    if points.ndim == 2 and points.shape[1] in (1, 2, 3) and "weights" not in given:
        size = round(len(points) ** (1 / points.shape[1]))
        if size >= 2 and size ** points.shape[1] == len(points):
            grid = Grid(size, points.shape[1])
            if torch.allclose(points, grid.points, atol=1e-9, rtol=0):
                return grid
    return Cloud(points, **given)


def _mesh(path: Path, repair: bool) -> _Part:
    try:
        import meshlane
    except ImportError as error:
        raise ImportError(f"{path}: mesh files need meshlane: pip install 'gkn[io]'") from error
    said = io.StringIO()
    try:
        with redirect_stdout(said), redirect_stderr(said):
            mesh = meshlane.read(path)
    except SystemExit:  # its way to say that it cannot
        raise UnreadableFile(f"{path}: cannot be read: {' '.join(said.getvalue().split())}") from None
    points = np.asarray(mesh.points, dtype=np.float64)
    if points.shape[1] == 3:
        if np.ptp(points[:, 2]) > 1e-9 * max(1.0, float(np.ptp(points[:, :2]))):
            raise UnreadableFile(f"{path}: a surface or volume in space; needed a mesh in the plane")
        points = points[:, :2]
    triangles = []
    for block in mesh.cells:
        corners = np.asarray(block.data)
        if block.type == "triangle":
            triangles.append(corners)
        elif block.type == "quad":
            triangles += [corners[:, [0, 1, 2]], corners[:, [0, 2, 3]]]
        elif block.type not in ("vertex", "line"):
            raise UnreadableFile(f"{path}: cells of type {block.type}; needed triangles or quadrilaterals")
    if not triangles:
        raise UnreadableFile(f"{path}: no triangles in it")
    fields: dict[str, Array] = {"points": points, "cells": np.concatenate(triangles)}
    for name, values in mesh.point_data.items():
        columns = np.asarray(values).reshape(len(points), -1).T
        if len(columns) == 3 and not columns[2].any():
            columns = columns[:2]  # VTK has no vectors in the plane
        names = [name] if len(columns) == 1 else [f"{name}_{axis}" for axis in range(len(columns))]
        fields |= {key: column[None] for key, column in zip(names, columns, strict=True) if key not in _GEOMETRY}
    return _plain(path, fields, repair)
