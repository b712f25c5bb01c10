"""Argument checks: types, real finite numbers, usable devices, points inside a domain."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor


def real(data: Any, name: str, *, differentiable: bool = False) -> Float[Tensor, "..."]:
    """Return numbers of any real type as a float64 tensor, detached unless `differentiable`."""
    if not isinstance(data, Tensor):
        data = np.asarray(data)
        data = torch.as_tensor(data.astype(complex if data.dtype.kind == "c" else np.float64))
    if data.is_complex():
        raise ValueError(f"{name} must be real, but came as {data.dtype}")
    numbers: Tensor = (data if differentiable else data.detach()).to(torch.float64)
    return numbers


def check_real(data: Any, name: str) -> None:
    """Raise an error if an array or tensor is complex or masked: imaginary parts and masks would be lost in a conversion."""
    if isinstance(data, np.ma.MaskedArray) and np.ma.is_masked(data):
        raise ValueError(f"{name} is a masked array, whose masked values would be taken as they are; fill or remove them")
    kind = getattr(data, "dtype", None)
    if (isinstance(kind, torch.dtype) and kind.is_complex) or getattr(kind, "kind", "") == "c":
        raise ValueError(f"{name} must be real, but came as {kind}")


def real_points(given: Any) -> Tensor:
    """Return points as a tensor of floating-point numbers; those that are one already keep their type."""
    check_real(given, "points")
    points = torch.as_tensor(given)
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
