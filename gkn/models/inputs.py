"""What every network asks of points, fields and features, in the same words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from gkn.graph.graph import Graph


def ready(name: str, own: Tensor, dim: int, channels: int, graph: Graph | None, x: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
    """Points and fields in the type of the network's `own` numbers; an error where they are not what `name` was made for."""
    if x.ndim != 2 or x.shape[1] != dim or a.shape != (len(x), channels):
        raise ValueError(f"{name}: points {tuple(x.shape)} and fields {tuple(a.shape)}; needed (K, {dim}) and (K, {channels})")
    if graph is not None and graph.num_sources != len(x):
        raise ValueError(f"{name}: {graph} for {len(x)} points; needed a source for each")
    for what, given in (("points", x), ("fields", a)):
        if not given.is_floating_point():
            raise ValueError(f"{name}: the {what} are {given.dtype}; needed floating-point numbers")
        if given.device != own.device:
            raise ValueError(f"{name}: the {what} are on {given.device}, the network on {own.device}; needed one device")
    return x.to(own.dtype), a.to(own.dtype)


def check_sizes(name: str, sizes: Mapping[str, int], in_channels: int) -> None:
    """Of a network: whole numbers, at least 1; fields of a there may be none."""
    wrong = [f"{each}={size}" for each, size in sizes.items() if not isinstance(size, int) or size < 1]
    if wrong or in_channels < 0:
        said, least = (wrong[0], 1) if wrong else (f"in_channels={in_channels}", 0)
        raise ValueError(f"{name}({said}): needed a whole number, at least {least}")


def check_radius(name: str, radius: float) -> None:
    if not (isinstance(radius, int | float) and 0 < radius < float("inf")):
        raise ValueError(f"{name}(radius={radius!r}): needed a length > 0")


def features_chosen(name: str, features: Sequence[int] | int | None, channels: int) -> tuple[int, ...]:
    """Which input fields enter kernels: those given, or the first, if there is one."""
    if isinstance(features, int):
        raise ValueError(f"{name}(features={features}): needed a sequence of numbers of input fields, e.g. ({features},)")
    chosen = (0,) if features is None and channels else tuple(features or ())
    if any(not 0 <= each < channels for each in chosen) or len({*chosen}) != len(chosen):
        raise ValueError(f"{name}(features={chosen}): needed different numbers of input fields, 0 to {channels - 1}")
    return chosen


def settings_of(kind: str, form: int, config: dict[str, Any], names: set[str]) -> dict[str, Any]:
    """What a network of this kind and form is made with, of its config."""
    if {*config} - {"form"} != names | {"kind"} or config["kind"] != kind:
        raise TypeError(f"a network of {', '.join(config)}; needed {', '.join(sorted(names | {'kind', 'form'}))}")
    if config.get("form") != form:
        made = config.get("form", 1)
        raise TypeError(
            f"a {kind} of form {made}, made by another version of gkn; this one computes form {form}: train it again"
        )
    return {name: value for name, value in config.items() if name in names}
