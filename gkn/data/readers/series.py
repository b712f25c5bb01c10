"""Series: the states in a content are put together to trajectories."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gkn.data.dataset import Dataset
from gkn.data.foreign.raw import UnreadableFile
from gkn.data.readers.format import Content, Field
from gkn.data.readers.join import names_of
from gkn.geometry.domain import Domain

SAME = 1e-9
"""Relative change of an input over time that counts as rounding."""


def trajectories_of(content: Content, chosen: Mapping[str, Field], outputs: Sequence[str], inputs: Sequence[str]) -> Dataset:
    """Make a dataset of trajectories. Outputs are functions of time; inputs must not change within a trajectory."""
    members: dict[int, list[int]] = {}
    for sample, number in enumerate(content.series):
        members.setdefault(number, []).append(sample)
    time = content.parameters["time"]
    times: list[Tensor] = []
    domains: list[Domain] = []
    for samples in members.values():
        samples.sort(key=lambda i: float(time[i]))
        times.append(time[samples])
        domains.append(_domain_of(content, samples))
        if len(samples) < 2:
            raise UnreadableFile(f"{content.sources[samples[0]]}: one state alone is no trajectory")
    found: dict[str, Any] = {}
    for name, values in chosen.items():
        rows = [torch.stack([values[i] for i in samples]) for samples in members.values()]
        if name not in outputs:
            rows = [_constant(content, name, row, samples) for row, samples in zip(rows, members.values(), strict=True)]
        stackable = len({row.shape for row in rows}) == 1
        found[name] = torch.stack(rows) if stackable else rows
    one = domains[0]
    common = all(each is one for each in domains)
    files = names_of([content.sources[samples[0]] for samples in members.values()])
    return Dataset.of(one if common else domains, found, outputs, inputs, files=files, times=times)


def _domain_of(content: Content, samples: Sequence[int]) -> Domain:
    """Return the domain of the states of a trajectory, which must be the same."""
    first = content.domain_of(samples[0])
    for i in samples:
        domain = content.domain_of(i)
        if domain is not first and not first.same_as(domain):
            raise UnreadableFile(
                f"{content.sources[i]}: {domain.describe()} that differs from that of {content.sources[samples[0]]}: the mesh "
                "must not change within a trajectory; bring all states to one mesh, or import them with as_samples"
            )
    return first


def _constant(content: Content, name: str, rows: Tensor, samples: Sequence[int]) -> Tensor:
    """Return the value that an input has at all times of a trajectory."""
    change = (rows.double() - rows[:1].double()).abs().reshape(len(rows), -1).amax(1)
    wrong = (change > SAME * float(rows.double().abs().max())).nonzero()
    if len(wrong):
        where = content.sources[samples[int(wrong[0, 0])]]
        raise UnreadableFile(f"{where}: the input {name} changes with time; only outputs may, or import with as_samples")
    return rows[0]
