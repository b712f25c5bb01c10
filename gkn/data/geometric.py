"""Geometric: features of the geometry as fields of every sample."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gkn.data.source import Derived, Source
from gkn.geometry.domain import Domain
from gkn.geometry.frame import Frame
from gkn.system.files import digest


class Geometric(Derived):
    """A source with features of the geometry beside the other fields, for domains that differ from sample to sample.

        geometry.boundary      1 on the boundary, else 0
        geometry.distance      distance to the boundary
        geometry.direction_x   unit vector to the nearest point of the boundary; on the boundary, the outward normal
        geometry.normal_x      unit normal of a surface in space

    Domains without a boundary have no boundary features, domains that are no surfaces no normals.
    """

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        first = source.domain(0)
        axes = "xyz"[: first.dim]
        direction, normal = (tuple(f"geometry.{what}_{axis}" for axis in axes) for what in ("direction", "normal"))
        bounded = ("geometry.boundary", "geometry.distance", *direction) if first.distance() is not None else ()
        self._bounded, self._normals = bool(bounded), first.normals() is not None
        self.added: tuple[str, ...] = (*bounded, *(normal if self._normals else ()))
        self.names = (*source.names, *self.added)
        made = {"geometry.direction": direction} if bounded else {}
        made |= {"geometry.normal": normal} if self._normals else {}
        self.groups = {**source.groups, **{name: parts for name, parts in made.items() if len(parts) > 1}}
        self._computed: dict[int, Tensor] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_computed": {}}

    def over(self, source: Source) -> Source:
        return Geometric(source)

    def framed(self, frame: Frame) -> Source:
        return self if frame.is_identity else Geometric(self.source.framed(frame))

    def read(self, name: str, i: int) -> Tensor:
        if name not in self.added:
            return self.source.read(name, i)
        key = 0 if self.common_domain is not None else i
        if key not in self._computed:
            self._computed[key] = geometry_features(self.domain(i), self._bounded, self._normals)
        return self._computed[key][self.added.index(name)]

    def read_all(self, name: str, indices: Sequence[int]) -> Tensor:
        return self.source.read_all(name, indices) if name not in self.added else super().read_all(name, indices)

    def identity(self) -> str:
        return digest([self.source.identity(), "geometry", *self.added])


def geometry_features(domain: Domain, bounded: bool, normals: bool) -> Tensor:
    """Return the features of `Geometric` (features, K) at the points of a domain."""
    rows = []
    if bounded:
        found = domain.distance()
        if found is None:
            raise ValueError(f"{domain.describe()} has no boundary, but the first sample has one; leave geometry features out")
        rows += [domain.boundary.double()[None], found[0][None], found[1].T]
    if normals:
        normal = domain.normals()
        if normal is None:
            raise ValueError(f"{domain.describe()} is no surface, but the first sample is; leave geometry features out")
        rows.append(normal.T)
    return torch.cat(rows)
