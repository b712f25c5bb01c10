"""Ranges of the training data, and warnings for inputs outside of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gkn.data.dataset import Dataset
from gkn.geometry.domain import Domain
from gkn.geometry.frame import Frame
from gkn.system.checks import has_types

SLACK = 0.05
"""Share of a range by which values may lie outside before a warning."""
COARSER = 1.5
"""Factor by which points may be farther apart than in training before a warning."""


def ranges_of_data(datasets: Sequence[Dataset]) -> dict[str, Any]:
    """Return the ranges of the training data, in the user's units.

    inputs      smallest and largest value of every given input
    low, high   corners of the box around all points
    measure     smallest and largest length, area or volume of a domain
    spacing     largest distance between neighbouring points
    nodes       largest number of points of a sample
    """
    first = datasets[0]
    inputs: dict[str, list[float]] = {}
    for name in first.given:
        ends = [values.aminmax() for each in datasets for _, [values] in each.blocks([name])]
        inputs[name] = [min(float(low) for low, _ in ends), max(float(high) for _, high in ends)]
    frame = first.frame or Frame.identity(first.dim)
    boxes = [domain.box for each in datasets for domain in each.domains()]
    low = torch.stack([low for low, _ in boxes]).amin(0)
    high = torch.stack([high for _, high in boxes]).amax(0)
    low, high = (frame.back(corner[None])[0] for corner in (low, high))
    domains = [domain for each in datasets for domain in each.domains()]
    measures = [domain.measure * frame.scale**domain.measure_dim for domain in domains]
    return {
        "inputs": inputs,
        "low": low.tolist(),
        "high": high.tolist(),
        "measure": [min(measures), max(measures)],
        "spacing": max(domain.spacing for domain in domains) * frame.scale,
        "nodes": max(len(domain) for domain in domains),
    }


def check_ranges(ranges: Any) -> None:
    """Raise a TypeError unless these are ranges as `ranges_of_data` returns them, or those of an older version, or None."""
    kinds = {"inputs": dict, "low": list, "high": list, "measure": list, "spacing": (int, float), "nodes": int}
    given = {} if ranges is None else ranges
    sound = type(given) is dict and has_types(given, {name: kind for name, kind in kinds.items() if name in given})
    if sound:
        pairs = [*given.get("inputs", {}).values(), given.get("measure", [0, 0])]
        corners = [given.get("low", []), given.get("high", [])]
        sound = all(type(each) is list and all(type(x) in (int, float) for x in each) for each in (*pairs, *corners))
        sound = sound and all(len(each) == 2 for each in pairs) and len(corners[0]) == len(corners[1])
    if not sound:
        raise TypeError("the ranges of the training data make no sense")


def outside(
    ranges: Mapping[str, Any],
    domain: Domain,
    given: Mapping[str, Tensor],
    at: Tensor | None = None,
    frame: Frame | None = None,
) -> list[str]:
    """Return a sentence for everything that lies outside of the ranges of the training data.

    domain   in the user's unit, or in a frame
    given    input fields and parameters by name
    at       query points (P, d), in the user's unit
    """
    found = []
    for name, (low, high) in ranges.get("inputs", {}).items():
        if name in given:
            least, most = (float(x) for x in torch.as_tensor(given[name]).detach().double().aminmax())
            slack = SLACK * max(high - low, 1e-9 * max(abs(low), abs(high)))
            if least < low - slack or most > high + slack:
                digits = next(n for n in range(4, 18) if _differ(least, low, n) or _differ(most, high, n) or n == 17)
                was = _between(low, high, digits)
                found.append(f"{name} is {_between(least, most, digits)}, in training it was {was}")
    if "low" in ranges and domain.dim == len(ranges["low"]):  # another dimension is refused elsewhere
        low_box, high_box = (torch.tensor(ranges[name], dtype=torch.float64) for name in ("low", "high"))
        here = domain.box if frame is None else (frame.back(domain.box[0][None])[0], frame.back(domain.box[1][None])[0])
        slack_box = torch.full_like(low_box, SLACK * float((high_box - low_box).max()))
        if domain.periods is not None:  # a periodic axis goes on for ever
            slack_box[torch.isfinite(domain.periods)] = torch.inf
        beyond = bool((here[0] < low_box - slack_box).any() or (here[1] > high_box + slack_box).any())
        size, usual = float((here[1] - here[0]).max()), float((high_box - low_box).max())
        if beyond or size < 0.2 * usual:
            found.append(
                f"the points fill the box {_box(here)}, in training {_box((low_box, high_box))}; is it the same unit of length?"
            )
        else:
            found += _other_geometry(ranges, domain, 1.0 if frame is None else frame.scale)
        if at is not None and len(at) and at.shape[1:] == low_box.shape:  # others are refused elsewhere
            lost = (at.double() < low_box - slack_box).any(1) | (at.double() > high_box + slack_box).any(1)
            if bool(lost.any()):
                point = ", ".join(f"{x:.4g}" for x in at[lost.nonzero()[0, 0]].tolist())
                found.append(f"{int(lost.sum())} of {len(at)} query points lie outside of the training data, as ({point})")
    return found


def _other_geometry(ranges: Mapping[str, Any], domain: Domain, scale: float) -> list[str]:
    """Return sentences about the size of a domain and the spacing of its points. Older operators do not know them."""
    found = []
    measure, spacing = domain.measure * scale**domain.measure_dim, domain.spacing * scale
    least, most = ranges.get("measure", (0.0, float("inf")))
    if not (1 - SLACK) * least <= measure <= (1 + SLACK) * most:
        what = ("length", "area", "volume")[domain.measure_dim - 1]
        found.append(f"the {what} of the domain is {measure:.4g}, in training it was {_between(least, most)}")
    coarsest = ranges.get("spacing", float("inf"))
    if spacing > COARSER * coarsest:
        found.append(f"the points are about {spacing:.4g} apart, in training at most {coarsest:.4g}; use a finer mesh")
    return found


def _between(low: float, high: float, digits: int = 4) -> str:
    one, other = f"{low:.{digits}g}", f"{high:.{digits}g}"
    return one if one == other else f"between {one} and {other}"


def _differ(one: float, other: float, digits: int) -> bool:
    return f"{one:.{digits}g}" != f"{other:.{digits}g}"


def _box(ends: tuple[Tensor, Tensor]) -> str:
    return " x ".join(f"[{low:.4g}, {high:.4g}]" for low, high in zip(ends[0].tolist(), ends[1].tolist(), strict=True))
