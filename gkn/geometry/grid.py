"""Grid: regular grids of boxes, with periodic axes where the domain is periodic."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

from gkn.geometry.boundary import distance_to_box
from gkn.geometry.domain import Domain, is_identity, map_points
from gkn.system.checks import check_inside

RESOLVED = 12  # cells in a length that a quadrature resolves
NODES = ("vertices", "centres", "left")

_SQUARE = ((0, 0), (1, 0), (1, 1), (0, 1))
_CELLS: dict[int, tuple[str, tuple[tuple[int, ...], ...]]] = {  # by dimension: the cell between nodes, and its corners
    1: ("line", ((0,), (1,))),
    2: ("quad", _SQUARE),
    3: ("hexahedron", tuple((*corner, up) for up in (0, 1) for corner in _SQUARE)),
}


@dataclass(frozen=True, init=False, repr=False)
class Grid(Domain):
    """Regular grid of the box [low, high], by default of the unit cube [0,1]^dim with `size` nodes per side.

    size        nodes per axis: one number for all `dim` axes, or one per axis
    low, high   corners of the box: one number for all axes, or one per axis
    periodic    True for axes whose two ends are the same point: one for all axes, or one per axis
    nodes       place of node i of n on an axis of length L: "vertices" low + L i/(n-1), both ends included;
                "centres" low + L (i + 1/2)/n; "left" low + L i/n, without the far end.
                On a periodic axis "vertices" is the same as "left"

    Functions on it are arrays whose last axis runs over the nodes in C order, the first coordinate slowest.
    """

    kind: ClassVar[str] = "grid"
    counts: tuple[int, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    periodic: tuple[bool, ...]
    nodes: str

    def __init__(
        self,
        size: int | Sequence[int] | NDArray[Any],
        dim: int = 2,
        *,
        low: float | Sequence[float] | NDArray[Any] = 0.0,
        high: float | Sequence[float] | NDArray[Any] = 1.0,
        periodic: bool | Sequence[bool] | NDArray[Any] = False,
        nodes: str = "vertices",
    ) -> None:
        if (operator.index(dim) if np.ndim(size) == 0 else len(size)) not in (1, 2, 3):  # type: ignore[arg-type]
            raise ValueError(f"Grid(size={size}, dim={dim}): dim must be 1, 2 or 3")
        counts: Any = [size] * dim if np.ndim(size) == 0 else size
        shape = tuple(operator.index(n) for n in counts)
        if math.prod(shape) > 2**40:
            raise ValueError(f"Grid(size={size}, dim={dim}): {math.prod(shape):.1e} nodes are too many for any machine")
        if min(shape) < 2:
            raise ValueError(f"Grid(size={size}): an axis has two ends, so at least 2 nodes a side")
        if nodes not in NODES:
            raise ValueError(f"Grid(nodes={nodes!r}): use one of {', '.join(map(repr, NODES))}")
        sides = {name: _per_axis(name, given, len(shape)) for name, given in (("low", low), ("high", high))}
        for name, value in (
            ("counts", shape),
            ("low", tuple(map(float, sides["low"]))),
            ("high", tuple(map(float, sides["high"]))),
            ("periodic", tuple(map(bool, _per_axis("periodic", periodic, len(shape))))),
            ("nodes", nodes),
        ):
            object.__setattr__(self, name, value)
        if not all(math.isfinite(b - a) and a < b for a, b in zip(self.low, self.high, strict=True)):
            raise ValueError(f"Grid(low={low}, high={high}): needed low < high on every axis, all finite")

    def __repr__(self) -> str:
        same = len(set(self.shape)) == 1
        out = f"size={self.shape[0]}, dim={self.dim}" if same else f"size={self.shape}"
        if not self.unit:
            out += f", low={self.low}, high={self.high}, periodic={self.periodic}, nodes={self.nodes!r}"
        return f"Grid({out})"

    def __len__(self) -> int:
        return math.prod(self.counts)

    @property
    def dim(self) -> int:
        return len(self.counts)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.counts

    @property
    def unit(self) -> bool:
        """True for `Grid(size, dim)` without further arguments: the vertices of the unit cube, equally many on each axis."""
        return self._plain_axes and len(set(self.shape)) == 1

    @property
    def _plain_axes(self) -> bool:
        return set(self.low) == {0.0} and set(self.high) == {1.0} and not any(self.periodic) and self.nodes == "vertices"

    @property
    def size(self) -> int:
        """Nodes per axis, if all axes have the same number."""
        if len(set(self.shape)) > 1:
            raise ValueError(f"Grid.size: the axes of {self.describe()} differ; use Grid.shape")
        return self.shape[0]

    @property
    def sides(self) -> tuple[float, ...]:
        """Lengths of the sides of the box."""
        return tuple(b - a for a, b in zip(self.low, self.high, strict=True))

    @property
    def steps(self) -> tuple[float, ...]:
        """Distance between neighbouring nodes of each axis."""
        return tuple(
            side / (n - 1 if self._ends(i) else n) for i, (side, n) in enumerate(zip(self.sides, self.shape, strict=True))
        )

    def _ends(self, axis: int) -> bool:
        """True if both ends of the axis are nodes."""
        return self.nodes == "vertices" and not self.periodic[axis]

    @property
    def spacing(self) -> float:
        return self.steps[0] if len(set(self.steps)) == 1 else float(math.prod(self.steps) ** (1 / self.dim))

    @property
    def measure(self) -> float:
        return math.prod(self.sides)

    @property
    def box(self) -> tuple[Tensor, Tensor]:
        return torch.tensor(self.low, dtype=torch.float64), torch.tensor(self.high, dtype=torch.float64)

    @cached_property
    def periods(self) -> Float[Tensor, " d"] | None:  # type: ignore[override]
        if not any(self.periodic):
            return None
        periods = [side if wraps else math.inf for side, wraps in zip(self.sides, self.periodic, strict=True)]
        return torch.tensor(periods, dtype=torch.float64)

    @cached_property
    def axes(self) -> list[Tensor]:
        """Coordinates of each axis."""
        out = []
        for i, (n, low, high, side) in enumerate(zip(self.shape, self.low, self.high, self.sides, strict=True)):
            # i/(n-1) and not linspace: shared nodes of two grids are then the same floating-point numbers.
            index = torch.arange(n, dtype=torch.float64)
            axis = low + side * ((index + 0.5 * (self.nodes == "centres")) / (n - 1 if self._ends(i) else n))
            if self._ends(i):
                axis[-1] = high
            out.append(axis)
        return out

    @property
    def axis(self) -> Float[Tensor, " s"]:
        """Coordinates of one axis, if all axes are the same."""
        if len({*self.shape}) > 1 or len({*self.low}) > 1 or len({*self.high}) > 1 or len({*self.periodic}) > 1:
            raise ValueError(f"Grid.axis: the axes of {self.describe()} differ; use Grid.axes")
        return self.axes[0]

    @cached_property
    def points(self) -> Float[Tensor, "K d"]:  # type: ignore[override]
        return torch.stack(torch.meshgrid(self.axes, indexing="ij"), -1).reshape(-1, self.dim)

    @cached_property
    def axis_weights(self) -> list[Tensor]:
        """Quadrature weights of each axis: the trapezoid rule for vertices, equal weights for centres and left ends."""
        out = []
        for i, (n, step) in enumerate(zip(self.shape, self.steps, strict=True)):
            one = torch.full((n,), step, dtype=torch.float64)
            if self._ends(i):
                one[[0, -1]] /= 2
            out.append(one)
        return out

    @cached_property
    def weights(self) -> Float[Tensor, " K"]:  # type: ignore[override]
        return reduce(torch.kron, self.axis_weights)

    @cached_property
    def boundary(self) -> Bool[Tensor, " K"]:  # type: ignore[override]
        masks = []
        for i, n in enumerate(self.shape):
            mask = torch.zeros(n, dtype=torch.bool)
            if not self.periodic[i] and self.nodes != "centres":
                mask[[0, -1] if self._ends(i) else [0]] = True
            masks.append(mask)
        return torch.stack(torch.meshgrid(masks, indexing="ij"), -1).any(-1).reshape(-1)

    def describe(self) -> str:
        return f"a grid of {' x '.join(map(str, self.shape))}"

    def fine_quadrature(self, length: float) -> tuple[Tensor, Tensor]:
        """Return the midpoint rule on cells that resolve the length, whatever the spacing of the grid is."""
        counts = [max(1, math.ceil(RESOLVED * side / length)) for side in self.sides]
        cells = Grid(counts, low=self.low, high=self.high, nodes="centres")
        return cells.points, cells.weights

    # --- storage

    def arrays(self) -> dict[str, Tensor]:
        if self.unit:
            return {}
        return {
            "counts": torch.tensor(self.shape, dtype=torch.long),
            "low": torch.tensor(self.low, dtype=torch.float64),
            "high": torch.tensor(self.high, dtype=torch.float64),
            "periodic": torch.tensor(self.periodic, dtype=torch.bool),
            "nodes": torch.tensor([NODES.index(self.nodes)], dtype=torch.long),
        }

    def numbers(self) -> dict[str, int]:
        return {"size": self.size, "dim": self.dim} if self.unit else {}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Tensor], numbers: Mapping[str, int]) -> Grid:
        if "size" in numbers:
            return Grid(numbers["size"], numbers["dim"])
        low, high, periodic = (arrays[name].tolist() for name in ("low", "high", "periodic"))
        nodes = NODES[int(arrays["nodes"][0])]
        return Grid(arrays["counts"].tolist(), low=low, high=high, periodic=periodic, nodes=nodes)

    # --- other grids

    def _with(self, shape: Sequence[int]) -> Grid:
        return Grid(tuple(shape), low=self.low, high=self.high, periodic=self.periodic, nodes=self.nodes)

    def mapped(self, shift: Tensor, scale: float) -> Grid:
        if is_identity(shift, scale):
            return self
        moved = torch.as_tensor(shift, dtype=torch.float64)
        corners = torch.tensor([self.low, self.high], dtype=torch.float64)
        low, high = map_points(corners, moved, scale).tolist()
        out = Grid(self.shape, low=low, high=high, periodic=self.periodic, nodes=self.nodes)
        # The nodes are the mapped nodes to the last bit, so that mapped points of this grid are points of the mapped one.
        out.__dict__["axes"] = [map_points(axis, by, scale) for axis, by in zip(self.axes, moved.expand(self.dim), strict=True)]
        return out

    def every(self, k: int) -> Grid:
        """Return the grid of every k-th node of each axis. With vertices both ends are kept: 241 -> 121, 61, 31, 16."""
        if k == 1:
            return self
        if self.nodes == "centres":
            raise ValueError(f"Grid.every({k}): centres of cells are no centres of larger cells; average the cells instead")
        for i, n in enumerate(self.shape):
            whole = n - 1 if self._ends(i) else n
            if k < 1 or whole % k or (whole == k and not self._ends(i)):
                most = whole if self._ends(i) else whole // 2
                strides = [str(j) for j in range(1, most + 1) if whole % j == 0]
                name = "size-1" if self._ends(i) else "size"
                raise ValueError(f"Grid.every({k}): the stride must divide {name} = {whole}; use one of {', '.join(strides)}")
        return self._with([(n - 1) // k + 1 for n in self.shape])

    def stride(self, k: int) -> Int[Tensor, " kept"]:
        coarse = self.every(k)
        index = torch.zeros(coarse.shape, dtype=torch.long)
        for axis, n in enumerate(self.shape):
            kept = torch.arange(coarse.shape[axis]) * k
            index = index * n + kept.reshape([-1 if i == axis else 1 for i in range(self.dim)])
        return index.reshape(-1)

    def refined(self) -> Grid:
        """Return the grid with half the spacing, which keeps every node."""
        if self.nodes == "centres":
            raise ValueError("Grid.refined: no finer grid of cell centres keeps the nodes; use nodes='vertices' or 'left'")
        return self._with([2 * n - 1 if self._ends(i) else 2 * n for i, n in enumerate(self.shape)])

    def parts(self, m: int, rng: torch.Generator) -> Iterator[Tensor]:
        """Yield strided sub-grids of at most m nodes: every t-th node of each axis, for each of the t^d shifts."""
        t = 1
        while math.prod(-(-n // t) for n in self.shape) > m and t < max(self.shape):
            t += 1
        index = torch.arange(len(self)).reshape(self.shape)
        for starts in itertools.product(*(range(min(t, n)) for n in reversed(self.shape))):  # the first axis fastest
            yield index[tuple(slice(start, None, t) for start in reversed(starts))].reshape(-1)

    # --- functions on the grid

    def contains(self, points: Float[Tensor, "P d"] | NDArray[Any], tolerance: float = 1e-12) -> Bool[Tensor, " P"]:
        """Return True for each point inside the box. A periodic axis contains all points."""
        low, sides = (torch.tensor(each, dtype=torch.float64) for each in (self.low, self.sides))
        place = (torch.as_tensor(points) - low) / sides
        return (((place >= -tolerance) & (place <= 1 + tolerance)) | torch.tensor(self.periodic)).all(-1)

    def distance(self, at: Tensor | None = None) -> tuple[Float[Tensor, " P"], Float[Tensor, "P d"]] | None:
        if all(self.periodic):
            return None
        low, high = (torch.tensor(corner, dtype=torch.float64) for corner in (self.low, self.high))
        return distance_to_box(low, high, ~torch.tensor(self.periodic), self.query(at, "distance"))

    def _interpolate(self, values: Tensor, at: Tensor) -> Tensor:
        """Interpolate multilinearly. The half cells beyond the outermost centres are extrapolated."""
        check_inside(self.contains(at), at, "interpolate", "the domain")
        places = [self._place(axis, at[:, axis]) for axis in range(self.dim)]
        out = values.new_zeros(len(at), values.shape[1])
        for corner in range(2**self.dim):
            weight, index = torch.ones(len(at), dtype=torch.float64), torch.zeros(len(at), dtype=torch.long)
            for axis, (low, high, share) in enumerate(places):
                up = corner >> axis & 1
                weight = weight * (share if up else 1 - share)
                index = index * self.shape[axis] + (high if up else low)
            out += weight[:, None] * values[index]
        return out

    def _place(self, axis: int, x: Float[Tensor, " P"]) -> tuple[Int[Tensor, " P"], Int[Tensor, " P"], Float[Tensor, " P"]]:
        """Return the two nodes of an axis next to each coordinate, and the share of the second."""
        n = self.shape[axis]
        place = (x - self.low[axis]) / self.sides[axis]
        place = place - place.floor() if self.periodic[axis] else place.clamp(0, 1)
        place = place * (n - 1 if self._ends(axis) else n) - 0.5 * (self.nodes == "centres")
        near = place.round()
        place = torch.where((place - near).abs() < 1e-9, near, place)  # a node is a node, however it was rounded
        low = place.floor() if self.periodic[axis] else place.floor().clamp(0, n - 2)
        share, low = place - low, low.long()
        return (low % n, (low + 1) % n, share) if self.periodic[axis] else (low, low + 1, share)

    # --- export and plotting

    def cell_blocks(self) -> list[tuple[str, NDArray[Any]]]:
        """Return lines, quads or hexahedra between the nodes. Cells across a periodic end are left out."""
        index = np.arange(len(self)).reshape(self.shape)
        name, corners = _CELLS[self.dim]
        parts = [index[tuple(slice(up, n - 1 + up) for up, n in zip(corner, self.shape, strict=True))] for corner in corners]
        return [(name, np.stack([part.reshape(-1) for part in parts], -1))]

    def cell_counts(self) -> dict[str, int]:
        return {_CELLS[self.dim][0]: math.prod(n - 1 for n in self.shape)}

    def draw(self, axis: Any, function: NDArray[Any], **style: Any) -> Any:
        from gkn.geometry.draw import draw_grid

        return draw_grid(axis, self, function, **style)


def _per_axis(name: str, given: Any, dim: int) -> tuple[Any, ...]:
    entries = (given,) * dim if np.ndim(given) == 0 else tuple(given)
    if len(entries) != dim:
        raise ValueError(f"Grid({name}={given}): {len(entries)} entries for {dim} axes")
    return entries
