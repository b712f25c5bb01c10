"""Domain, the interface of all point sets with quadrature weights; and functions given on a domain."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, TypeAlias

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from gkn.system.checks import check_finite, real

Data: TypeAlias = float | Tensor | NDArray[Any] | Callable[[Tensor], Tensor]
"""Values of a function on a domain: a constant, an array whose last axis is the points, or a function of (K, d) points."""

DOMAINS: dict[str, type[Domain]] = {}
"""Every kind of domain by the name it has in files. A subclass of `Domain` with a `kind` registers itself."""


class Domain(ABC):
    """K points of a region D with quadrature weights.

    A new kind of domain sets `kind`, `points`, `weights` and `boundary`, and says how it is stored (`arrays`, `from_arrays`)
    and how functions on it are interpolated (`_interpolate`). Everything else has a default.

        points     (K, d), float64
        weights    (K,), float64: quadrature weights, summing to the measure of D
        boundary   (K,), bool: True for points on the boundary of D
        cells      (C, corners) indices of points, or None if the domain has no cells
        shape      points along each axis if the points are a regular grid in C order, else None
        periods    (d,) period of each axis, inf for an axis that is not periodic; None if no axis is
    """

    kind: ClassVar[str]
    points: Tensor
    weights: Tensor
    boundary: Tensor
    cells: Tensor | None = None
    periods: Tensor | None = None

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "kind" in cls.__dict__:
            DOMAINS[cls.kind] = cls

    def __len__(self) -> int:
        return len(self.points)

    @property
    def dim(self) -> int:
        return int(self.points.shape[1])

    @property
    def shape(self) -> tuple[int, ...] | None:
        return None

    @property
    def measure_dim(self) -> int:
        """Dimension of D itself: that of its points, but 2 for a surface and 1 for a curve."""
        return self.dim

    @property
    def measure(self) -> float:
        """Length, area or volume of D."""
        return float(self.weights.sum())

    @property
    def box(self) -> tuple[Tensor, Tensor]:
        """Lowest and highest corner (d,) of the bounding box."""
        return self.points.amin(0), self.points.amax(0)

    @property
    def scale(self) -> float:
        """Unit of length of the domain: the longest side of its bounding box."""
        low, high = self.box
        return float((high - low).max())

    @property
    def spacing(self) -> float:
        """Typical distance between neighbouring points."""
        return float((self.measure / len(self)) ** (1 / self.measure_dim))

    def describe(self) -> str:
        """Return a few words for messages, such as "a mesh of 961 points"."""
        return f"a {self.kind} of {len(self)} points"

    # --- storage

    @abstractmethod
    def arrays(self) -> dict[str, Tensor]:
        """Return the arrays that define the domain; empty if `numbers` are enough."""

    def numbers(self) -> dict[str, int]:
        """Return whole numbers that define the domain together with `arrays`."""
        return {}

    @classmethod
    @abstractmethod
    def from_arrays(cls, arrays: Mapping[str, Tensor], numbers: Mapping[str, int]) -> Domain:
        """Build the domain from what `arrays` and `numbers` returned."""

    def same_as(self, other: Domain) -> bool:
        """True if the other domain is defined by the same numbers and arrays."""
        ours, theirs = self.arrays(), other.arrays()
        if type(self) is not type(other) or self.numbers() != other.numbers() or ours.keys() != theirs.keys():
            return False
        return all(torch.equal(array, theirs[name]) for name, array in ours.items())

    # --- geometry

    def mapped(self, shift: Tensor, scale: float) -> Domain:
        """Return the same domain with points (x - shift) / scale, and weights to match."""
        from gkn.geometry.cloud import Cloud

        if is_identity(shift, scale):
            return self
        points, weights = map_points(self.points, shift, scale), self.weights / power(scale, self.measure_dim)
        arrays = self.arrays()
        if "points" not in arrays:
            return Cloud(points, weights, self.boundary)
        new = {**arrays, "points": points} | ({"weights": weights} if "weights" in arrays else {})
        return type(self).from_arrays(new, self.numbers())

    def distance(self, at: Tensor | None = None) -> tuple[Float[Tensor, " P"], Float[Tensor, "P d"]] | None:
        """Return the distance of points (P, d) to the boundary, and the unit direction to the nearest point of the boundary.

        The default points are those of the domain. On the boundary the distance is 0 and the direction is the outward normal.
        The result is None if the domain has no boundary. By default the boundary consists of the flagged points.
        """
        from gkn.geometry.boundary import distance_to_points

        if not self.boundary.any():
            return None
        return distance_to_points(self.points, self.boundary, self.query(at, "distance"))

    def normals(self) -> Float[Tensor, "K 3"] | None:
        """Return unit normals at the points of a surface; None for any other domain."""
        return None

    def query(self, at: Tensor | None, name: str) -> Float[Tensor, "P d"]:
        """Return points (P, d) as float64, the domain's own by default; raise an error if they do not fit it."""
        if at is None:
            return self.points
        at = real(at, "points")
        if at.ndim != 2 or at.shape[1] != self.dim:
            raise ValueError(f"{name}: points of shape {tuple(at.shape)}; needed (P, {self.dim})")
        check_finite(at, f"{name}: points")
        return at

    def fine_quadrature(self, length: float) -> tuple[Float[Tensor, "Q d"], Float[Tensor, " Q"]]:
        """Return points and weights of a quadrature on D for smooth functions that vary over a length.

        It is more accurate than the domain's own if there is such a one, which is the default.
        """
        return self.points, self.weights

    # --- functions on the domain

    def interpolate(self, values: Tensor, at: Tensor) -> Float[Tensor, "P c"]:
        """Return fields (K, c) at points (P, d) of the domain. At one of its own points this is the value there.

        Gradients with respect to the fields can be taken, but not with respect to the points.
        """
        values, at = real(values, "fields", differentiable=True), real(at, "points")
        if values.ndim != 2 or len(values) != len(self) or at.ndim != 2 or at.shape[1] != self.dim:
            raise ValueError(
                f"interpolate: fields {tuple(values.shape)} at points {tuple(at.shape)}; needed ({len(self)}, c) and "
                f"(P, {self.dim})"
            )
        check_finite(at, "interpolate: points")
        return self._interpolate(values, at)

    @abstractmethod
    def _interpolate(self, values: Tensor, at: Tensor) -> Tensor:
        """Interpolate without checking shapes."""

    def every(self, k: int) -> Domain:
        """Return the domain of every k-th point of each axis. Only grids have it."""
        raise ValueError(f"every({k}): only a grid has strides; this is {self.describe()}")

    def stride(self, k: int) -> Int[Tensor, " kept"]:
        """Return the indices of the points that `every(k)` keeps."""
        raise ValueError(f"stride({k}): only a grid has strides; this is {self.describe()}")

    def parts(self, m: int, rng: torch.Generator) -> Iterator[Tensor]:
        """Split the points into parts of at most m; yield the indices of each."""
        yield from torch.randperm(len(self), generator=rng).split(m)

    def general_arrays(self) -> dict[str, Tensor]:
        """Return arrays with the same names for all domains of this kind, so that different ones can be stored together."""
        return self.arrays()

    # --- export and plotting

    def cell_blocks(self) -> list[tuple[str, NDArray[Any]]]:
        """Return (type, corners) for each type of cell, by its meshio name. By default every point is a vertex."""
        return [("vertex", np.arange(len(self))[:, None])]

    def cell_counts(self) -> dict[str, int]:
        """Return the number of cells of each type."""
        return {name: len(corners) for name, corners in self.cell_blocks()}

    def draw(self, axis: Any, function: NDArray[Any], **style: Any) -> Any:
        """Draw a function (K,) into a matplotlib axis, for dimensions 2 and 3. By default one dot per point."""
        from gkn.geometry.draw import draw_points

        return draw_points(axis, self, function, **style)


def is_identity(shift: Tensor, scale: float) -> bool:
    """True if mapping by this shift and scale changes nothing. Raise an error if the scale is no positive number."""
    if not (scale > 0 and math.isfinite(scale)):
        raise ValueError(f"mapped(scale={scale}): the scale must be a finite number > 0")
    return scale == 1 and not bool(torch.as_tensor(shift).any())


def map_points(points: Tensor, shift: Tensor, scale: float) -> Tensor:
    """Return (x - shift) / scale."""
    return (points - torch.as_tensor(shift, dtype=torch.float64)) / scale


def power(x: float, n: int) -> float:
    """Return x^n as a product, which is exact for powers of two."""
    return math.prod([x] * n)


def values(domain: Domain, data: Data, name: str) -> Float[Tensor, "*batch K"]:
    """Return `data` on the points of `domain` as float64; raise an error if it is not finite."""
    out = at_points(data, domain.points, name)
    check_finite(out, name)
    return out


def boundary_values(domain: Domain, g: Data) -> Float[Tensor, "*batch K"]:
    """Return g on the boundary points and 0 at all others. Off the boundary g is not evaluated."""
    edge = domain.boundary
    if callable(g):
        given = at_points(g, domain.points[edge], "g")
    else:
        given = at_points(g, domain.points, "g")
        given = given[..., edge.to(given.device)]
    check_finite(given, "g")
    out = given.new_zeros(*given.shape[:-1], len(domain))
    out[..., edge.to(given.device)] = given
    return out


def at_points(data: Data, points: Float[Tensor, "P d"], name: str) -> Float[Tensor, "*batch P"]:
    """Return a number, an array or a function as an array whose last axis is the points."""
    out = real(data(points) if callable(data) else data, name)
    if out.ndim == 0:
        out = out.expand(len(points))
    if out.shape[-1] != len(points):
        raise ValueError(
            f"{name} of shape {tuple(out.shape)} on a domain of {len(points)} points; the last axis must be the points"
        )
    return out


def flat_batch(*arrays: Tensor) -> tuple[tuple[int, ...], list[Tensor]]:
    """Broadcast all axes but the last against each other and flatten them: the batch shape, and (n, K_i) arrays."""
    batch = tuple(np.broadcast_shapes(*(array.shape[:-1] for array in arrays)))
    return batch, [array.expand(*batch, array.shape[-1]).reshape(-1, array.shape[-1]) for array in arrays]
