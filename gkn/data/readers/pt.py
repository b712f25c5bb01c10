"""Files of neuraloperator: Darcy flow {"x", "y"} and Burgers' equation {"input", "output"}. Only tensors are read."""

from __future__ import annotations

import io
import pickletools
import re
import zipfile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from gkn.data.foreign.raw import UnreadableFile
from gkn.data.readers.arrays import finite_bounds, grid_of, on_grid
from gkn.data.readers.cells import numbers
from gkn.data.readers.format import Content, ReadOptions, reader
from gkn.system.hdf5 import check_fits

_ALLOWED = re.compile(r"torch\._utils _rebuild_tensor_v2|torch \w+Storage|torch\.storage \w+Storage|collections OrderedDict")


@reader(".pt")
def read_pt(path: Path, options: ReadOptions) -> Content:
    size = path.stat().st_size
    check_fits(path, {"file": ((size,), 3)})
    value = torch.load(_checked_copy(path, size), map_location="cpu", weights_only=True)
    tensors = value if isinstance(value, dict) and all(isinstance(each, Tensor) for each in value.values()) else {}
    for name, each in tensors.items():
        if each.numel() * each.element_size() > size:
            raise UnreadableFile(f"{path}: {name} claims {tuple(each.shape)}, more than the file's {size} bytes hold")
        if each.layout != torch.strided or each.is_quantized:
            raise UnreadableFile(f"{path}: {name} is no plain tensor")
    tensors = {name: _plain(each) for name, each in tensors.items()}
    if {"x", "y"} <= {*tensors}:
        return _darcy(path, tensors, options)
    if {"input", "output"} <= {*tensors}:
        return _burgers(path, tensors, options)
    raise UnreadableFile(f'{path}: needed a dictionary with tensors "x" and "y", or "input" and "output"')


def _plain(x: Tensor) -> Tensor:
    """Return a tensor that numpy takes."""
    plain = x.detach().resolve_conj().resolve_neg()
    return plain.float() if plain.dtype == torch.bfloat16 else plain


def _darcy(path: Path, tensors: dict[str, Tensor], options: ReadOptions) -> Content:
    """Return a and u at i/s: the 16 x 16 files are every second node of the 32 x 32 ones, without the far edge."""
    x, y = (each.squeeze(1) if each.ndim == 4 else each for each in (tensors["x"], tensors["y"]))
    low, high = finite_bounds(path, options)
    notes = []
    if x.dtype == torch.bool:
        x = torch.tensor([low, high], dtype=torch.float64)[x.long()]
        notes.append(f"the coefficient is stored as False and True: read as {low:g} and {high:g}")
    if options.nodes is None:
        notes.append("values at i/s, as neuraloperator's files have them: the option nodes changes this")
    fields = {"a": numbers(path, "x", x.numpy()), "u": numbers(path, "y", y.numpy())}
    return on_grid(path, fields, options, "left", inputs=("a",), notes=tuple(notes))


def _burgers(path: Path, tensors: dict[str, Tensor], options: ReadOptions) -> Content:
    """Return the states of periodic functions on an interval. The file does not have their times: they are 0 to 1."""
    given, found = (numbers(path, name, tensors[name].numpy()) for name in ("input", "output"))
    if given.ndim != 2 or found.ndim != 3 or found.shape[::2] != given.shape or not found.shape[1]:
        raise UnreadableFile(f"{path}: input {given.shape} and output {found.shape}; needed (n, s) and (n, times, s)")
    n, s = given.shape
    parameters = {
        name: each.reshape(-1).double().expand(n).clone() if each.numel() == 1 else each.double().reshape(-1)
        for name, each in tensors.items()
        if name not in ("input", "output") and each.numel() in (1, n) and each.dtype.is_floating_point
    }
    times = found.shape[1]
    states = torch.from_numpy(found).reshape(n * times, s)
    if times == 1 or not np.array_equal(found[:, 0], given):
        raise UnreadableFile(f"{path}: output of {times} times; needed the input as the first of at least two")
    parameters = {name: values.repeat_interleave(times) for name, values in parameters.items()}
    parameters["time"] = torch.linspace(0, 1, times, dtype=torch.float64).repeat(n)
    return Content(
        grid_of(path, (s,), options, "left", periodic=True),
        {"u": states},
        parameters,
        notes=(f"the {times} times of each trajectory are taken as 0 to 1; the file does not have them",),
        series=tuple(i for i in range(n) for _ in range(times)),
    )


def _checked_copy(path: Path, size: int) -> io.BytesIO:
    """Return an archive made of the checked entries of a file.

    torch looks entries up without regard to case, and reads archives by rules of its own: of a copy that is made here, it
    cannot see anything that was not checked.
    """
    copy = io.BytesIO()
    with zipfile.ZipFile(path) as archive, zipfile.ZipFile(copy, "w", zipfile.ZIP_STORED) as checked:
        entries = archive.infolist()
        # torch stores tensors uncompressed: a file with larger contents than its size is hostile
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries) or sum(e.file_size for e in entries) > size:
            raise UnreadableFile(f"{path}: compressed entries; torch does not write such files")
        names = [entry.filename for entry in entries]
        if len({name.lower() for name in names}) != len(names):
            raise UnreadableFile(f"{path}: two entries have the same name; torch does not write such files")
        for entry in entries:
            data = archive.read(entry)
            if entry.filename.lower().endswith(".pkl"):
                _check_pickle(path, data)
            checked.writestr(zipfile.ZipInfo(entry.filename), data)
    copy.seek(0)
    return copy


def _check_pickle(path: Path, data: bytes) -> None:
    """Allow the four names that tensors need. weights_only allows more, such as bytearray(2**40)."""
    for opcode, argument, _ in pickletools.genops(data):
        named = opcode.name == "GLOBAL" and _ALLOWED.fullmatch(str(argument))
        if opcode.name in ("GLOBAL", "STACK_GLOBAL", "INST", "OBJ", "EXT1", "EXT2", "EXT4") and not named:
            raise UnreadableFile(f"{path}: holds more than tensors ({argument or opcode.name}), which is not loaded")
