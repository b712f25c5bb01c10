"""Datasets from files people already have. Nothing here runs code that a file carries, or believes a size it claims.

.mat            the GKN/FNO files, v5 and v7.3: coeff, Kcoeff, Kcoeff_x, Kcoeff_y, sol
.pt             neuraloperator: {"x": bool or float (n, s, s), "y": float (n, s, s)}, tensors only
.h5, .hdf5      PDEBench Darcy (nu, tensor), or plain: points, cells?, weights?, boundary?, and named fields
.npz            plain, the same names
.vtu, ...       a mesh with point data, one sample a file: what meshlane reads
"""

from __future__ import annotations

import io
import math
import os
import pickletools
import re
import resource
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, Literal

import h5py
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gkn.data.dataset import Dataset
from gkn.geometry.domain import Cloud, Domain, Grid, Mesh
from gkn.system.files import CorruptFile
from gkn.system.hdf5 import check_fits, plain_array
from gkn.system.memory import available_memory

Array = NDArray[Any]
Nodes = Literal["vertices", "centres"]
_MAT_FIELDS = {"coeff": "a", "Kcoeff": "a_smooth", "Kcoeff_x": "a_smooth_x", "Kcoeff_y": "a_smooth_y", "sol": "u"}
# Of what meshlane reads, the formats that cannot name other files to be read, as XDMF, Abaqus and HDF5-based ones can.
_MESHES = (".vtu", ".vtk", ".msh", ".mesh", ".meshb", ".su2", ".off", ".obj", ".stl", ".ply", ".mdpa", ".ugrid", ".avs", ".vol")
_PT_GLOBALS = re.compile(r"torch\._utils _rebuild_tensor_v2|torch \w+Storage|torch\.storage \w+Storage|collections OrderedDict")
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
    for name, values in fields.items():
        for i, row in enumerate(values):
            if not bool(torch.isfinite(row).all()):
                raise UnreadableFile(f"{paths[0]}: field {name} of sample {i} is not finite everywhere")
    return Dataset.of(domains, fields, outputs)


def read_sample(path: str | os.PathLike[str], sample: int = 0, repair: bool = False) -> tuple[Domain, dict[str, Tensor]]:
    """One sample of a file of functions: its domain, and whatever fields (K,) there are."""
    domain, fields = _load_one(Path(path), "vertices", 3.0, 12.0, repair)
    count = len(next(iter(fields.values()))) if fields else 0
    if not 0 <= sample < count:
        raise UnreadableFile(f"{path}: no sample {sample} in it, it has {count}")
    for name, rows in fields.items():
        if not bool(torch.isfinite(rows[sample]).all()):
            raise UnreadableFile(f"{path}: field {name} of sample {sample} is not finite everywhere")
    return domain[sample] if isinstance(domain, Sequence) else domain, {name: rows[sample] for name, rows in fields.items()}


def read_points(path: str | os.PathLike[str]) -> Tensor:
    """(P, d) numbers of a .npy file."""
    file = Path(path)
    if not file.is_file():
        raise FileNotFoundError(f"{file}: no such file")
    try:
        with open(file, "rb") as stream:
            major, _ = np.lib.format.read_magic(stream)
            header = np.lib.format.read_array_header_1_0 if major == 1 else np.lib.format.read_array_header_2_0
            shape, _, dtype = header(stream)
        check_fits(file, {"points": (shape, max(8, dtype.itemsize))})
        array = np.load(file, allow_pickle=False)
    except CorruptFile as error:
        raise UnreadableFile(str(error)) from error
    except Exception as error:  # a damaged header raises anything at all
        raise UnreadableFile(f"{file}: cannot be read as an array of points: {error}") from error
    if array.ndim != 2 or array.dtype.kind not in "fiu":
        raise UnreadableFile(f"{file}: {array.dtype} of shape {array.shape}; needed numbers, (points, dimension)")
    return torch.from_numpy(np.ascontiguousarray(array, dtype=np.float64))


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
    suffix = path.suffix.lower()
    if suffix not in readers and suffix not in _MESHES:
        known = ", ".join([*readers, *_MESHES])
        raise UnreadableFile(f"{path}: {suffix or 'such'} files are not read; there are {known} (convert meshes to .vtu)")
    reader = readers.get(suffix, lambda: _mesh(path, repair))
    try:
        with _bounded_memory():
            return reader()
    except (UnreadableFile, ImportError):
        raise
    except MemoryError as error:
        raise UnreadableFile(f"{path}: would take more memory than there is") from error
    except CorruptFile as error:
        raise UnreadableFile(str(error)) from error
    except Exception as error:  # parsers of foreign formats raise anything at all on damaged bytes
        raise UnreadableFile(f"{path}: cannot be read: {type(error).__name__}: {error}") from error


@contextmanager
def _bounded_memory() -> Iterator[None]:
    """A file that unpacks to more than half of the free memory gets a MemoryError, whatever its parser believes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    limit = used + available_memory() // 2
    resource.setrlimit(resource.RLIMIT_AS, (min([limit, *(x for x in (soft, hard) if x != resource.RLIM_INFINITY)]), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _joined(paths: list[Path], parts: list[_Part]) -> _Part:
    first = [*parts[0][1]]
    if not first:
        raise UnreadableFile(f"{paths[0]}: no fields in it, only points")
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
    names = ("points", "cells") if isinstance(one, Mesh) else ("points", "weights", "boundary")
    return type(one) is type(other) and all(torch.equal(getattr(one, name), getattr(other, name)) for name in names)


# --- arrays ----------------------------------------------------------------------------------------------------------


def _on_square(path: Path, fields: Mapping[str, Array], nodes: Nodes) -> _Part:
    """Fields (n, s, s), or (s, s) for one sample, on the unit square."""
    fields = {name: array[None] if array.ndim == 2 else array for name, array in fields.items()}
    shapes = {name: array.shape for name, array in fields.items()}
    shape = next(iter(shapes.values()))
    if len({*shapes.values()}) != 1 or len(shape) != 3 or len({*shape[1:]}) != 1 or shape[1] < 2:
        raise UnreadableFile(f"{path}: fields of shapes {shapes}; needed (n, s, s), the same for all")
    grid = Grid(shape[1])
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

        listed = [entry for entry in whosmat(path) if entry[0] in _MAT_FIELDS]
        present = {name: (shape, kind) for name, shape, kind in listed}
        if len(present) != len(listed):
            raise UnreadableFile(f"{path}: an array is there twice")
        for name, (_, kind) in present.items():
            if kind not in ("double", "single", "logical", *(f"{u}int{b}" for u in ("", "u") for b in (8, 16, 32, 64))):
                raise UnreadableFile(f"{path}: {name} is a MATLAB {kind}, not an array of numbers")
        check_fits(path, {name: (shape, 8) for name, (shape, _) in present.items()})
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
        for name in archive.namelist():
            if name.endswith(".pkl"):
                _check_pickle(path, archive.read(name))
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
    if not (math.isfinite(low) and math.isfinite(high)):
        raise UnreadableFile(f"{path}: low = {low} and high = {high} must be finite")
    a = torch.tensor([low, high], dtype=torch.float64)[x.long()] if x.dtype == torch.bool else x
    return _on_square(path, {"a": _numbers(path, "x", a.numpy()), "u": _numbers(path, "y", y.numpy())}, nodes)


def _check_pickle(path: Path, data: bytes) -> None:
    """Tensors need four names. weights_only allows more, such as bytearray(2**40)."""
    for opcode, argument, _ in pickletools.genops(data):
        named = opcode.name == "GLOBAL" and _PT_GLOBALS.fullmatch(str(argument))
        if opcode.name in ("GLOBAL", "STACK_GLOBAL", "INST", "OBJ", "EXT1", "EXT2", "EXT4") and not named:
            raise UnreadableFile(f"{path}: holds more than tensors ({argument or opcode.name}), which is not loaded")


def _hdf5(path: Path, nodes: Nodes, repair: bool) -> _Part:
    with h5py.File(path, "r") as file:
        if "nu" in file and "tensor" in file:
            return _pdebench(path, file)
        arrays = {name: plain_array(file, name, path) for name in file}
        check_fits(path, {name: (array.shape, 8) for name, array in arrays.items()})
        return _plain(path, {name: np.asarray(array[...]) for name, array in arrays.items()}, repair)


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
    return np.asarray(plain_array(file, name, path)[...])


def _npz(path: Path) -> dict[str, Array]:
    claims = {}
    with zipfile.ZipFile(path) as archive:
        for entry in archive.infolist():
            with archive.open(entry) as stream:
                major, _ = np.lib.format.read_magic(stream)
                header = np.lib.format.read_array_header_1_0 if major == 1 else np.lib.format.read_array_header_2_0
                shape, _, dtype = header(stream)
            claims[entry.filename.removesuffix(".npy")] = (shape, max(8, dtype.itemsize))
    check_fits(path, claims)
    with np.load(path, allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


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
    """The domain, and which of the points are in it."""
    everything = torch.arange(len(points))
    given = {name: torch.from_numpy(_numbers(path, name, arrays[name])) for name in ("weights", "boundary") if name in arrays}
    for name, each in given.items():
        if each.shape != (len(points),):
            raise UnreadableFile(f"{path}: {name} of shape {tuple(each.shape)} for {len(points)} points")
    if "cells" not in arrays:
        return _grid_or_cloud(torch.from_numpy(points), given), everything
    cells = np.ascontiguousarray(arrays["cells"])
    if cells.dtype.kind in "iu":
        cells = cells.astype(np.int64)
    try:
        mesh, kept = (
            Mesh.repaired(points, cells) if repair else (Mesh(torch.from_numpy(points), torch.from_numpy(cells)), everything)
        )
    except ValueError as error:
        raise UnreadableFile(f"{path}: {error}" + ("" if repair else " (gkn data import --repair does it)")) from error
    if not _agrees(mesh, {name: values[kept] for name, values in given.items()}):
        raise UnreadableFile(f"{path}: weights or boundary are not those of the cells; leave them out, or leave the cells out")
    return mesh, kept


def _grid_or_cloud(points: Tensor, given: dict[str, Tensor]) -> Domain:
    """Points that are just those of a grid, in its order and with its weights and boundary, are that grid."""
    if points.ndim == 2 and points.shape[1] in (1, 2, 3):
        size = round(len(points) ** (1 / points.shape[1]))
        if size >= 2 and size ** points.shape[1] == len(points):
            grid = Grid(size, points.shape[1])
            if torch.allclose(points, grid.points, atol=1e-9, rtol=0) and _agrees(grid, given):
                return grid
    return Cloud(points, **given)


def _agrees(domain: Domain, given: Mapping[str, Tensor]) -> bool:
    weights, boundary = given.get("weights", domain.weights), given.get("boundary", domain.boundary)
    return torch.allclose(weights.double(), domain.weights, rtol=1e-6) and torch.equal(boundary.bool(), domain.boundary)


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
        for key, column in zip(names, columns, strict=True):
            if key in fields or key in _GEOMETRY:
                raise UnreadableFile(f"{path}: two fields would be called {key!r}; rename one")
            fields[key] = column[None]
    return _plain(path, fields, repair)
