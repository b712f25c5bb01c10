"""Inputs given on other points than the outputs: sensors become parameters, functions are interpolated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gkn.geometry.domain import Domain
from gkn.system.checks import real

SENSORS = 64
"""Inputs on at most so many points, the same in all samples, are read as sensors: each value is a number of the sample."""


def are_sensors(domain: Domain | Sequence[Domain]) -> bool:
    """True if inputs on these points become parameters, in which nothing is lost."""
    domains = [*domain] if isinstance(domain, Sequence) else [domain]
    return len(domains[0]) <= SENSORS and all(each is domains[0] or domains[0].same_as(each) for each in domains)


def transferred(
    fields: Mapping[str, Any], source: Domain | Sequence[Domain], target: Domain | Sequence[Domain]
) -> dict[str, Any]:
    """Return inputs (n, K) or (n, K, c) on the points of `source` as fields on the points of `target`.

    Sensors become parameters, (n,) numbers NAME_0, NAME_1 and so on. Other functions are interpolated as their domain does it.
    Numbers (n,) are parameters already.
    """
    sensors = are_sensors(source)
    found: dict[str, Any] = {}
    for name, given in fields.items():
        rows = [real(row, name) for row in given]
        if all(row.ndim == 0 for row in rows):
            found[name] = torch.stack(rows)
            continue
        for i, row in enumerate(rows):
            here = source[i] if isinstance(source, Sequence) else source
            if row.ndim not in (1, 2) or len(row) != len(here):
                shape = tuple(row.shape)
                raise ValueError(f"input {name!r} of sample {i} of shape {shape} for {len(here)} points of input_domain")
        if sensors:
            values = torch.stack([row.reshape(-1) for row in rows])
            found |= {f"{name}_{j}": column for j, column in enumerate(values.unbind(1))}
            continue
        out = []
        for i, row in enumerate(rows):
            here = source[i] if isinstance(source, Sequence) else source
            there = target[i] if isinstance(target, Sequence) else target
            out.append(interpolated(row, here, there))
        found[name] = out if isinstance(target, Sequence) else torch.stack(out)
    return found


def interpolated(row: Tensor, source: Domain, target: Domain) -> Tensor:
    """Return one function (K,), or (K, c) with components, of a domain at the points of another one."""
    return source.interpolate(row if row.ndim == 2 else row[:, None], target.points).reshape(len(target), *row.shape[1:])


def brought_together(
    fields: Mapping[str, Any], inputs: Sequence[str], source: Domain | Sequence[Domain], target: Domain | Sequence[Domain]
) -> tuple[dict[str, Any], dict[str, tuple[str, ...]]]:
    """Return all fields with the inputs moved from the points of `source` to those of `target`, and the groups of sensors."""
    moved = transferred({name: fields[name] for name in inputs}, source, target)
    groups: dict[str, tuple[str, ...]] = {}
    if are_sensors(source):
        parts = {name: tuple(each for each in moved if each.rpartition("_")[0] == name) for name in inputs}
        groups = {name: names for name, names in parts.items() if names}
    return {**{name: given for name, given in fields.items() if name not in inputs}, **moved}, groups
