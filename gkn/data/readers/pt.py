"""Files of neuraloperator: {"x": bool or float (n, s, s), "y": float (n, s, s)}. Anything but tensors is refused."""

from __future__ import annotations

import math
import pickletools
import re
import zipfile
from pathlib import Path

import torch
from torch import Tensor

from gkn.data.readers.arrays import numbers, on_square
from gkn.data.readers.format import Part, ReadOptions, UnreadableFile, reader

_ALLOWED = re.compile(r"torch\._utils _rebuild_tensor_v2|torch \w+Storage|torch\.storage \w+Storage|collections OrderedDict")


@reader(".pt")
def read_pt(path: Path, options: ReadOptions) -> Part:
    size = path.stat().st_size
    with zipfile.ZipFile(
        path
    ) as archive:  # torch stores tensors uncompressed: a file with larger contents than its size is hostile
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
    low, high = options.low, options.high
    if not (math.isfinite(low) and math.isfinite(high)):
        raise UnreadableFile(f"{path}: low = {low} and high = {high} must be finite")
    a = torch.tensor([low, high], dtype=torch.float64)[x.long()] if x.dtype == torch.bool else x
    return on_square(path, {"a": numbers(path, "x", a.numpy()), "u": numbers(path, "y", y.numpy())}, options.nodes)


def _check_pickle(path: Path, data: bytes) -> None:
    """Allow the four names that tensors need. weights_only allows more, such as bytearray(2**40)."""
    for opcode, argument, _ in pickletools.genops(data):
        named = opcode.name == "GLOBAL" and _ALLOWED.fullmatch(str(argument))
        if opcode.name in ("GLOBAL", "STACK_GLOBAL", "INST", "OBJ", "EXT1", "EXT2", "EXT4") and not named:
            raise UnreadableFile(f"{path}: holds more than tensors ({argument or opcode.name}), which is not loaded")
