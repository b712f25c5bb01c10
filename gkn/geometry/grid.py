"""Grid: the uniform grid of the unit cube."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

from gkn.geometry.domain import Domain
from gkn.system.checks import check_inside


@dataclass(frozen=True)
class Grid(Domain):
    """Uniform grid of [0,1]^dim with `size` nodes per side, boundary included: node i of an axis is i/(size-1).

    Functions on it are arrays whose last axis runs over the nodes in C order, the first coordinate slowest.
    """

    kind: ClassVar[str] = "grid"
    size: int
    dim: int = 2

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", operator.index(self.size))
        object.__setattr__(self, "dim", operator.index(self.dim))
        if self.dim not in (1, 2, 3):
            raise ValueError(f"Grid(size={self.size}, dim={self.dim}): dim must be 1, 2 or 3")
        if self.size**self.dim > 2**40:
            raise ValueError(
                f"Grid(size={self.size}, dim={self.dim}): {self.size**self.dim:.1e} nodes are too many for any machine"
            )
        if self.size < 2:
            raise ValueError(f"Grid(size={self.size}): a grid has its boundary, so at least 2 nodes a side")

    def __len__(self) -> int:
        return int(self.size**self.dim)

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.size,) * self.dim

    @property
    def spacing(self) -> float:
        return 1.0 / (self.size - 1)

    @property
    def measure(self) -> float:
        return 1.0

    @property
    def box(self) -> tuple[Tensor, Tensor]:
        return torch.zeros(self.dim, dtype=torch.float64), torch.ones(self.dim, dtype=torch.float64)

    @cached_property
    def axis(self) -> Float[Tensor, " s"]:
        """Coordinates of one axis."""
        # i/(s-1) and not linspace: shared nodes of two grids are then the same floating-point numbers.
        return torch.arange(self.size, dtype=torch.float64) / (self.size - 1)

    @cached_property
    def points(self) -> Float[Tensor, "K d"]:  # type: ignore[override]
        return torch.stack(torch.meshgrid([self.axis] * self.dim, indexing="ij"), -1).reshape(-1, self.dim)

    @cached_property
    def weights(self) -> Float[Tensor, " K"]:  # type: ignore[override]
        """Weights of the trapezoid rule."""
        one = torch.full((self.size,), self.spacing, dtype=torch.float64)
        one[[0, -1]] /= 2
        return reduce(torch.kron, [one] * self.dim)

    @cached_property
    def boundary(self) -> Bool[Tensor, " K"]:  # type: ignore[override]
        return ((self.points == 0) | (self.points == 1)).any(-1)

    def describe(self) -> str:
        return f"a grid of {' x '.join([str(self.size)] * self.dim)}"

    def arrays(self) -> dict[str, Tensor]:
        return {}

    def numbers(self) -> dict[str, int]:
        return {"size": self.size, "dim": self.dim}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Tensor], numbers: Mapping[str, int]) -> Grid:
        return Grid(numbers["size"], numbers["dim"])

    def contains(self, points: Float[Tensor, "P d"], tolerance: float = 1e-12) -> Bool[Tensor, " P"]:
        """Return True for each point inside the unit cube."""
        return ((points >= -tolerance) & (points <= 1 + tolerance)).all(-1)

    def every(self, k: int) -> Grid:
        """Return the grid of every k-th node of each axis, both ends kept: 241 -> 121, 61, 31, 16."""
        if k < 1 or (self.size - 1) % k:
            strides = [str(i) for i in range(1, self.size) if (self.size - 1) % i == 0]
            raise ValueError(
                f"Grid.every({k}): the stride must divide size-1 = {self.size - 1}; use one of {', '.join(strides)}"
            )
        return Grid((self.size - 1) // k + 1, self.dim)

    def stride(self, k: int) -> Int[Tensor, " kept"]:
        coarse = self.every(k)
        kept = torch.arange(coarse.size) * k
        index = torch.zeros(coarse.shape, dtype=torch.long)
        for axis in range(self.dim):
            index = index * self.size + kept.reshape([-1 if i == axis else 1 for i in range(self.dim)])
        return index.reshape(-1)

    def refined(self) -> Grid:
        """Return the grid with half the spacing, which keeps every node."""
        return Grid(2 * self.size - 1, self.dim)

    def parts(self, m: int, rng: torch.Generator) -> Iterator[Tensor]:
        """Yield strided sub-grids of at most m nodes: every t-th node of each axis, for each of the t^d shifts."""
        side = max(1, math.floor(m ** (1 / self.dim) + 1e-9))
        t = math.ceil(self.size / side)
        index = torch.arange(len(self)).reshape(self.shape)
        for shift in range(t**self.dim):
            part = index
            for axis in range(self.dim):
                start = shift // t**axis % t
                if start >= self.size:
                    break
                part = part[(slice(None),) * axis + (slice(start, None, t),)]
            else:
                yield part.reshape(-1)

    def _interpolate(self, values: Tensor, at: Tensor) -> Tensor:
        """Interpolate multilinearly."""
        check_inside(self.contains(at), at, "interpolate", "the domain")
        place = at.clamp(0, 1) * (self.size - 1)
        near = place.round()
        place = torch.where((place - near).abs() < 1e-9, near, place)  # a node is a node, however it was rounded
        low = place.floor().clamp(max=self.size - 2)
        share, low = place - low, low.long()
        out = values.new_zeros(len(at), values.shape[1])
        for corner in range(2**self.dim):
            weight, index = torch.ones(len(at), dtype=torch.float64), torch.zeros(len(at), dtype=torch.long)
            for axis in range(self.dim):
                up = corner >> axis & 1
                weight = weight * (share[:, axis] if up else 1 - share[:, axis])
                index = index * self.size + low[:, axis] + up
            out += weight[:, None] * values[index]
        return out

    def cell_blocks(self) -> list[tuple[str, NDArray[Any]]]:
        index = np.arange(len(self)).reshape(self.shape)
        if self.dim == 1:
            return [("line", np.stack([index[:-1], index[1:]], -1))]
        if self.dim == 3:
            return super().cell_blocks()
        corners = [index[:-1, :-1], index[1:, :-1], index[1:, 1:], index[:-1, 1:]]
        return [("quad", np.stack([corner.reshape(-1) for corner in corners], -1))]

    def draw(self, axis: Any, function: NDArray[Any], **style: Any) -> Any:
        image = function.reshape(self.shape)
        image = image if self.dim == 2 else image[..., self.size // 2]  # the middle slice of a cube
        axis.margins(0)
        return axis.imshow(image.T, origin="lower", extent=(0, 1, 0, 1), interpolation="nearest", **style)
