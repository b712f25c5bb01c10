"""Walls: functions that are 0 on the boundary of a domain, so that outputs multiplied by them are exactly 0 there."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gkn.geometry.domain import Domain

WALLS = ("box", "ball", "distance")


@dataclass(frozen=True)
class Wall:
    """A function that is 0 on a boundary, grows like the distance to it, and is at most 1.

        box        of a box: 0 outside of it too. In one dimension 4 x (1 - x)
        ball       of a ball: 1 - |x|^2, or 0 outside
        distance   of any domain: t (2 - t) with t = distance to the boundary / depth, at most 1. On an interval and in a ball
                   these are the functions above

    size     box: its lowest and its highest corner; ball: its centre and its radius; distance: the depth, the largest distance
             in the training data. Empty: the unit box, the unit ball around 0, depth 1
    fields   True for each output field that is 0 on the boundary; empty: all are
    """

    kind: str
    size: tuple[float, ...] = ()
    fields: tuple[bool, ...] = ()

    def __post_init__(self) -> None:
        if self.kind not in WALLS:
            raise ValueError(f"zero={self.kind!r}: use one of {', '.join(WALLS)}")

    @staticmethod
    def around(kind: str, domains: Iterable[Domain]) -> Wall:
        """Return the wall of this kind around all of these domains."""
        Wall(kind)  # raises now if there is none
        seen = [*domains]
        if kind == "distance":
            depth = max(_largest_distance(domain) for domain in seen)
            if not depth > 0:
                raise ValueError("zero='distance': all nodes lie on the boundary; outputs would be 0 everywhere")
            return Wall(kind, (depth,))
        low, high = (torch.stack(ends) for ends in zip(*(domain.box for domain in seen), strict=True))
        low, high = low.amin(0), high.amax(0)
        if kind == "box":
            unit = not low.any() and bool((high == 1).all())
            return Wall(kind, () if unit else (*low.tolist(), *high.tolist()))
        middle, radius = (low + high) / 2, float((high - low).max()) / 2
        return Wall(kind, () if not middle.any() and radius == 1 else (*middle.tolist(), radius))

    def __call__(self, points: Tensor, domain: Domain | None) -> Tensor:
        """Return the function at points (P, d) of a domain: (P,)."""
        size = torch.tensor(self.size, dtype=points.dtype, device=points.device)
        if self.kind == "box":
            if self.size:
                low, high = size.chunk(2)
                points = (points - low) / (high - low)
            inside = (points * (1 - points)).clamp_min(0).abs()  # and no -0.0, whose inverse is -inf
            return 4 * points.shape[1] / (1 / inside).sum(1)
        if self.kind == "ball":
            if self.size:
                points = (points - size[:-1]) / size[-1]
            return (1 - points.square().sum(1)).clamp_min(0)
        if domain is None:
            raise ValueError("zero='distance': the distance to the boundary is known on a domain only")
        own = points.shape == domain.points.shape and torch.equal(points, domain.points)
        found = domain.distance(None if own else points)
        if found is None:
            raise ValueError(f"zero='distance': {domain.describe()} has no boundary")
        depth = self.size[0] if self.size else 1.0
        share = (found[0] / depth).clamp(0, 1)
        return share * (2 - share)

    def of_fields(self, count: int) -> Tensor:
        """Return True for each of `count` fields that is 0 on the boundary."""
        return torch.tensor(self.fields or (True,) * count)

    def json(self) -> str | dict[str, Any]:
        if not self.size and not self.fields:
            return self.kind
        return {"kind": self.kind, "size": [*self.size], "fields": [*self.fields]}

    @staticmethod
    def from_json(said: Any) -> Wall | None:
        if said is None or isinstance(said, str):
            return None if said is None else Wall(said)
        return Wall(said["kind"], tuple(map(float, said["size"])), tuple(map(bool, said["fields"])))


def _largest_distance(domain: Domain) -> float:
    found = domain.distance()
    if found is None:
        raise ValueError(f"zero='distance': {domain.describe()} has no boundary")
    return float(found[0].max())
