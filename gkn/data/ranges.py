"""Ranges of the training data, and warnings for inputs outside of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gkn.data.dataset import Dataset
from gkn.geometry.domain import Domain
from gkn.geometry.frame import Frame

SLACK = 0.05
"""Share of a range by which values may lie outside before a warning."""


def ranges_of_data(datasets: Sequence[Dataset]) -> dict[str, Any]:
    """Return the smallest and largest value of every given input, and the box around all points, in the user's units."""
    first = datasets[0]
    inputs: dict[str, list[float]] = {}
    for name in first.given:
        ends = [each.value(name, i).aminmax() for each in datasets for i in range(len(each))]
        inputs[name] = [min(float(low) for low, _ in ends), max(float(high) for _, high in ends)]
    frame = first.frame or Frame.identity(first.dim)
    boxes = [domain.box for each in datasets for domain in each.domains()]
    low = torch.stack([low for low, _ in boxes]).amin(0)
    high = torch.stack([high for _, high in boxes]).amax(0)
    low, high = (frame.back(corner[None])[0] for corner in (low, high))
    return {"inputs": inputs, "low": low.tolist(), "high": high.tolist()}


def outside(ranges: Mapping[str, Any], domain: Domain, given: Mapping[str, Tensor]) -> list[str]:
    """Return a sentence for everything that lies outside of the ranges of the training data.

    domain   in the user's unit
    given    input fields and parameters by name
    """
    found = []
    for name, (low, high) in ranges.get("inputs", {}).items():
        if name in given:
            least, most = (float(x) for x in torch.as_tensor(given[name]).double().aminmax())
            slack = SLACK * max(high - low, 1e-9 * max(abs(low), abs(high)))
            if least < low - slack or most > high + slack:
                found.append(
                    f"{name} is between {least:.4g} and {most:.4g}, in training it was between {low:.4g} and {high:.4g}"
                )
    if "low" in ranges:
        low_box, high_box = (torch.tensor(ranges[name], dtype=torch.float64) for name in ("low", "high"))
        here = domain.box
        slack_box = SLACK * float((high_box - low_box).max())
        beyond = bool((here[0] < low_box - slack_box).any() or (here[1] > high_box + slack_box).any())
        size, usual = float((here[1] - here[0]).max()), float((high_box - low_box).max())
        if beyond or size < 0.2 * usual:
            found.append(
                f"the points fill the box {_box(here)}, in training {_box((low_box, high_box))}; is it the same unit of length?"
            )
    return found


def _box(ends: tuple[Tensor, Tensor]) -> str:
    return " x ".join(f"[{low:.4g}, {high:.4g}]" for low, high in zip(ends[0].tolist(), ends[1].tolist(), strict=True))
