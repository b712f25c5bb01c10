"""Argument checks: types, real finite numbers, usable devices, points inside a domain."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor


def real(data: Any, name: str, *, differentiable: bool = False) -> Float[Tensor, "..."]:
    """Return numbers of any real type as a float64 tensor, detached unless `differentiable`. Arrays are copied."""
    numbers = as_real(data, name).clone() if isinstance(data, np.ndarray) else as_real(data, name)
    return (numbers if differentiable else numbers.detach()).to(torch.float64)


def check_real(data: Any, name: str) -> None:
    """Raise an error if an array or tensor is complex or masked: imaginary parts and masks would be lost in a conversion."""
    if isinstance(data, np.ma.MaskedArray) and np.ma.is_masked(data):
        raise ValueError(f"{name} is a masked array, whose masked values would be taken as they are; fill or remove them")
    kind = getattr(data, "dtype", None)
    if (isinstance(kind, torch.dtype) and kind.is_complex) or getattr(kind, "kind", "") == "c":
        raise ValueError(f"{name} must be real, but came as {kind}")


def as_real(given: Any, name: str) -> Tensor:
    """Return real numbers, given as a tensor, an array or lists of numbers or tensors, as a dense tensor.

    A tensor of double or single precision, of 64-bit integers or of truth values keeps its type and its gradient, and so does
    an array of floating-point numbers; all others become float64. An array may share its memory with the tensor.
    """
    check_real(given, name)
    if isinstance(given, list | tuple) and any(isinstance(each, Tensor) for each in given):
        parts = [as_real(each, name) for each in given]
        if len({each.shape for each in parts}) > 1:
            raise ValueError(f"{name} is a list of tensors of different shapes: {[tuple(each.shape) for each in parts[:4]]}")
        return torch.stack(parts)
    if isinstance(given, Tensor):
        if given.layout != torch.strided or given.is_quantized or given.is_meta:
            raise ValueError(f"{name} is no dense tensor with values; give it as x.to_dense()")
        dense = given.resolve_conj().resolve_neg()
        return dense if dense.dtype in (torch.float64, torch.float32, torch.int64, torch.bool) else dense.double()
    try:
        array = np.asarray(given)
    except ValueError as error:  # lists of different lengths
        raise ValueError(f"{name} is no array: {error}") from error
    check_real(array, name)
    if array.dtype.kind not in "fiub":
        raise ValueError(f"{name} holds {array.dtype}; needed real numbers")
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    if array.dtype.kind in "iu" or array.dtype.itemsize not in (1, 4, 8):
        array = array.astype(np.float64)
    array = np.ascontiguousarray(array).reshape(array.shape)
    if array.flags.writeable:
        return torch.from_numpy(array)
    with warnings.catch_warnings():  # nothing here writes into it; a file that is mapped into memory is not copied
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array)


def real_points(given: Any) -> Tensor:
    """Return points as a tensor of floating-point numbers; those that are one already keep their type."""
    points = as_real(given, "points")
    return points if points.is_floating_point() else points.double()


def power_of_two(x: Tensor) -> Tensor:
    """Return the largest powers of 2 that are at most x; 1 where x is 0. Dividing by them changes no digit."""
    exponent = torch.frexp(torch.where(x > 0, x.double(), 1.0)).exponent - 1
    return torch.ldexp(torch.ones_like(x, dtype=torch.float64), exponent)


def has_types(entries: Any, kinds: Mapping[str, Any]) -> bool:
    """True if all these entries are there and have these types."""
    return isinstance(entries, Mapping) and all(isinstance(entries.get(name), kind) for name, kind in kinds.items())


def shape_or_type(x: Any) -> tuple[int, ...] | str:
    """Return the shape of a tensor, or the type of anything else, for messages."""
    return tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__


def device_of(x: Any) -> torch.device:
    """Return the device of a tensor; the CPU for anything else."""
    return x.device if isinstance(x, Tensor) else torch.device("cpu")


def check_finite(x: Tensor, name: str) -> None:
    """Raise an error that names the first value that is not finite."""
    bad = ~torch.isfinite(x)
    if bad.any():
        at = tuple(bad.nonzero()[0].tolist())
        raise ValueError(
            f"{name} must be finite, but {int(bad.sum())} of {x.numel()} are not; the first is {float(x[at])} at {at}"
        )


def device_named(given: str) -> str:
    """Return the device that a name stands for; `auto` is the first GPU, or else the CPU."""
    device = ("cuda" if torch.cuda.is_available() else "cpu") if given == "auto" else given
    check_device(device)
    return device


def check_device(device: str) -> str:
    """Return the kind of a device, cpu or cuda; raise an error if this machine does not have it."""
    kind = device.partition(":")[0]
    if kind not in ("cpu", "cuda"):
        raise ValueError(f"device {device!r}: use cpu or cuda")
    if kind == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device {device!r} was asked for, but this machine has no usable CUDA device; use cpu")
    return kind


class OutsideDomain(ValueError):
    """Some points lie outside of a domain."""

    def __init__(self, inside: Tensor, points: Tensor, name: str, where: str) -> None:
        self.inside, self.name, self.where = inside, name, where
        first = int((~inside).nonzero()[0])
        super().__init__(
            f"{name}: {int((~inside).sum())} of {len(points)} points lie outside {where}, the first is point {first} at "
            f"{tuple(float(f'{v:.6g}') for v in points[first].tolist())}"
        )

    def at(self, points: Tensor) -> OutsideDomain:
        """Return the same error for the same points in other coordinates."""
        return OutsideDomain(self.inside, points, self.name, self.where)


def check_inside(inside: Tensor, points: Tensor, name: str, where: str) -> None:
    """Raise an error that names the first point for which the mask `inside` is False."""
    if not inside.all():
        raise OutsideDomain(inside, points, name, where)
