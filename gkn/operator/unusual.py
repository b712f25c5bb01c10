"""Inputs, parameters and points outside of the ranges of the training data: sentences that warn of them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gkn.data.dataset import Dataset
from gkn.data.ranges import outside
from gkn.geometry.domain import Domain
from gkn.geometry.frame import Frame

if TYPE_CHECKING:
    from gkn.operator.operator import Operator

FAR = 20
"""Standard deviations that an input may be away from the training data before a warning, if their ranges are not known."""


def unusual(
    operator: Operator, domain: Domain, given: Mapping[str, Any], at: Tensor | None = None, frame: Frame | None = None
) -> list[str]:
    """Return the sentences for one sample, as `Operator.unusual` does."""
    known, ranges = operator.features, operator.about.get("ranges") or {}
    parts = given if known is None else known.components(given)
    tensors = {name: torch.as_tensor(values).detach() for name, values in parts.items()}
    found = outside(ranges, domain, tensors, at, frame)
    sizes = {int(parts[name].numel()) if name in parts else 0 for name in (() if known is None else known.inputs)}
    if not ranges and known is not None and sizes <= {1, len(domain)}:
        size = operator.inputs.encode(torch.stack([tensors[name].double().expand(len(domain)) for name in known.inputs], 1))
        if size.numel() and float(size.abs().max()) > FAR:
            found.append(f"the input is {float(size.abs().max()):.0f} standard deviations away from the training data")
    return found


def unusual_samples(operator: Operator, dataset: Dataset) -> list[str]:
    """Return the sentences for the samples of a dataset: the first of each kind."""
    found: dict[str, str] = {}
    known = operator.features
    names = () if known is None else known.given_fields
    if dataset.in_time:
        dataset = dataset.between()
        states = {f"{name}_start": name for name in (() if known is None else known.given)}
        static = [name for name in names if name in dataset.names]
        for i in range(len(dataset)):
            first = {states[name]: dataset.value(name, i) for name in dataset.inputs if name in states}
            given = {**first, **{name: dataset.value(name, i) for name in static}}
            for text in unusual(operator, dataset.domain_of(i), given, None, dataset.frame):
                found.setdefault(_kind(text), f"trajectory {dataset.label(i)}: {text}")
        return [*found.values()]
    for i in range(len(dataset)):
        given = {name: dataset.value(name, i) for name in names}
        for text in unusual(operator, dataset.domain_of(i), given, None, dataset.frame):
            found.setdefault(_kind(text), f"sample {dataset.label(i)}: {text}")
    return [*found.values()]


def _kind(text: str) -> str:
    """Return a sentence without its numbers."""
    return re.sub(r"[-+]?\d[\d.e+-]*", "", text)
