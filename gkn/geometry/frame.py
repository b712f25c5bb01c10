"""Frame: the coordinates in which networks see points, free of the user's unit of length."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gkn.geometry.domain import Domain


@dataclass(frozen=True)
class Frame:
    """x -> (x - shift) / scale, which maps the bounding box of the training domains into the unit box.

    The longest side of the box gets the length 1, so shapes are kept. Data on the unit box have the identity as frame.

        shift   (d,) the lowest corner of the box, in the user's unit
        scale   the longest side of the box, in the user's unit
    """

    shift: tuple[float, ...]
    scale: float

    @staticmethod
    def identity(dim: int) -> Frame:
        return Frame((0.0,) * dim, 1.0)

    @staticmethod
    def of(domains: Iterable[Domain]) -> Frame:
        """Return the frame of the box around all domains. A box without extent is only shifted."""
        low: Tensor | None = None
        high: Tensor | None = None
        for domain in domains:
            ends = domain.box
            low = ends[0] if low is None else torch.minimum(low, ends[0])
            high = ends[1] if high is None else torch.maximum(high, ends[1])
        if low is None or high is None:
            raise ValueError("Frame.of: no domain was given")
        scale = float((high - low).max())
        return Frame(tuple(low.tolist()), scale if scale > 0 else 1.0)

    @property
    def is_identity(self) -> bool:
        return self.scale == 1.0 and not any(self.shift)

    def points(self, x: Tensor) -> Tensor:
        """Return points (P, d) in the frame, in float64; unchanged if the frame is the identity."""
        if self.is_identity:
            return x
        if x.ndim != 2 or x.shape[1] != len(self.shift):
            raise ValueError(f"points of shape {tuple(x.shape)}; needed (P, {len(self.shift)})")
        shift = torch.tensor(self.shift, dtype=torch.float64, device=x.device)
        return (x.double() - shift) / self.scale

    def back(self, x: Tensor) -> Tensor:
        """Return points of the frame in the user's unit."""
        if self.is_identity:
            return x
        return x.double() * self.scale + torch.tensor(self.shift, dtype=torch.float64, device=x.device)

    def domain(self, domain: Domain) -> Domain:
        """Return a domain in the frame."""
        if self.is_identity:
            return domain
        if domain.dim != len(self.shift):
            raise ValueError(f"{domain.describe()} in {domain.dim} dimensions; the operator was trained in {len(self.shift)}")
        return domain.mapped(torch.tensor(self.shift, dtype=torch.float64), self.scale)

    def json(self) -> dict[str, Any]:
        return {"shift": [*self.shift], "scale": self.scale}

    @staticmethod
    def from_json(said: Mapping[str, Any]) -> Frame:
        return Frame(tuple(float(each) for each in said["shift"]), float(said["scale"]))
