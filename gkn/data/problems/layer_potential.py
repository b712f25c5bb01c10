"""Layer potentials on random closed curves: linear operators whose kernel is known."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from gkn.data.problems.problem import Problem
from gkn.geometry.domain import Domain
from gkn.geometry.mesh import Mesh
from gkn.pde.layer_potentials import LEAST, ClosedCurve, double_layer, single_layer
from gkn.system.randomness import stream

KINDS: dict[str, Callable[[list[ClosedCurve], Tensor], Tensor]] = {"single": single_layer, "double": double_layer}
SPREAD = 0.5  # standard deviation of the coefficients of a curve
WAVES = 5  # highest frequency of a curve
SIDES = (0.3, 0.95)  # least and largest side of the bounding box of a curve
GAP = 0.08  # least distance between two curves
REFINED = 4  # potentials are computed on so many times as many points
MEASURED = 512  # points on which boxes and distances are measured, so that a sample is one function at every size
MOST = 10_000  # pairs of curves that are drawn until two are apart; about one in 25 is


@dataclass(frozen=True)
class LayerPotential(Problem):
    """The single- or double-layer potential u of a random density f on random closed curves in the unit square.

        kind          single: u(x) = -1/(2 pi) int log|x - y| f(y) ds_y
                      double: u(x) = 1/(2 pi) int (x - y).n(y) / |x - y|^2 f(y) ds_y, the principal value, with n outward
        size          number of points of a curve, at equidistant t; u is exact to 1e-8 from 50 points on, to 3 % with 8
        curves        1, or 2 disjoint curves in every sample
        frequencies   highest frequency of f

    A curve is r(t) = 1.5 + tanh(c + sum over k = 1..5 of (a_k sin kt + b_k cos kt) / sqrt k) around its centre, with a_k, b_k
    and c ~ N(0, 1/4), and of counter-clockwise t. It is scaled so that the longest side of its bounding box is uniform in
    [0.3, 0.95], and lies anywhere in the square. Two curves are two such draws under the condition that they are at least
    0.08 apart and none lies inside of the other. On each curve f(t) = c + sum over k of (a_k sin kt + b_k cos kt) / k, with
    standard normal coefficients. The double layer also has the components of n as inputs.
    """

    name = "layer-potential"
    kind: str = "single"
    size: int = 200
    curves: int = 1
    frequencies: int = 8

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"layer-potential(kind={self.kind!r}): use one of {', '.join(KINDS)}")
        if self.size < LEAST:
            raise ValueError(f"layer-potential(size={self.size}): needed at least {LEAST} points of a curve")
        if self.curves not in (1, 2):
            raise ValueError(f"layer-potential(curves={self.curves}): needed 1 or 2")
        if not 0 <= self.frequencies < self.size / 2:
            raise ValueError(
                f"layer-potential(frequencies={self.frequencies}): needed 0 or more, and fewer than size/2 = {self.size / 2:g}"
            )

    @property
    def inputs(self) -> tuple[str, ...]:  # type: ignore[override]
        return ("f",) if self.kind == "single" else ("f", "normal_x", "normal_y")

    def points(self) -> int:
        return self.curves * self.size

    def sample(self, seed: int, i: int) -> tuple[Domain, dict[str, Tensor]]:
        rng = stream(seed, i)
        fine = _drawn(self.curves, REFINED * self.size, rng)
        f = torch.cat([_Series.draw(self.frequencies, rng)(len(curve), 1.0) for curve in fine])
        u = KINDS[self.kind](fine, f)
        normals = torch.cat([curve.normals for curve in fine])
        fields = {"f": f, "normal_x": normals[:, 0], "normal_y": normals[:, 1], "u": u}
        points = torch.cat([curve.points for curve in fine])[::REFINED]
        return closed(points, self.curves), {name: fields[name][::REFINED].clone() for name in (*self.inputs, "u")}


def closed(points: Float[Tensor, "K 2"], curves: int) -> Mesh:
    """Return closed curves of equally many points as a mesh of lines, which has no boundary."""
    size = len(points) // curves
    first = torch.arange(len(points))
    after = first // size * size + (first + 1) % size
    return Mesh(points, torch.stack([first, after], 1))


def _drawn(count: int, size: int, rng: torch.Generator) -> list[ClosedCurve]:
    """Draw a curve, or two that are apart."""
    for _ in range(MOST):
        drawn = [_Placed.draw(rng) for _ in range(count)]
        if count == 1 or _apart(*(each.curve(MEASURED) for each in drawn)):
            return [each.curve(size) for each in drawn]
    raise RuntimeError(f"layer-potential: no two of {MOST} pairs of curves were apart")


@dataclass(frozen=True, eq=False)
class _Series:
    """Trigonometric series with coefficients (1 + 2 k,): c, a_1, b_1, a_2, ..."""

    coefficients: Tensor

    @staticmethod
    def draw(frequencies: int, rng: torch.Generator) -> _Series:
        """Draw standard normal coefficients."""
        return _Series(torch.randn(1 + 2 * frequencies, dtype=torch.float64, generator=rng))

    def __call__(self, size: int, decay: float) -> Float[Tensor, " size"]:
        """Return c + sum over k of (a_k sin kt + b_k cos kt) / k^decay at equidistant t."""
        c, a, b = self.coefficients[0], self.coefficients[1::2], self.coefficients[2::2]
        k = torch.arange(1, len(a) + 1, dtype=torch.float64)
        angle = _parameters(size)[:, None] * k
        return c + (torch.sin(angle) * (a / k**decay)).sum(1) + (torch.cos(angle) * (b / k**decay)).sum(1)


@dataclass(frozen=True, eq=False)
class _Placed:
    """Curve of a shape, scaled and then moved."""

    shape: _Series
    scale: Tensor
    shift: Tensor  # (2,)

    @staticmethod
    def draw(rng: torch.Generator) -> _Placed:
        """Draw the shape, then the side of the box around it, then its place."""
        shape = _Series.draw(WAVES, rng)
        side, *place = torch.rand(3, dtype=torch.float64, generator=rng)
        around = _polar(shape, MEASURED)
        low, extent = around.amin(0), around.amax(0) - around.amin(0)
        scale = (SIDES[0] + (SIDES[1] - SIDES[0]) * side) / extent.max()
        return _Placed(shape, scale, torch.stack(place) * (1 - extent * scale) - low * scale)

    def curve(self, size: int) -> ClosedCurve:
        return ClosedCurve(_polar(self.shape, size) * self.scale + self.shift)


def _polar(shape: _Series, size: int) -> Float[Tensor, "size 2"]:
    """Return the points r (cos t, sin t) of a curve before it is scaled and moved."""
    r, t = 1.5 + torch.tanh(SPREAD * shape(size, 0.5)), _parameters(size)
    return torch.stack([r * torch.cos(t), r * torch.sin(t)], 1)


def _parameters(size: int) -> Float[Tensor, " size"]:
    return torch.arange(size, dtype=torch.float64) * (2 * math.pi / size)


def _apart(one: ClosedCurve, other: ClosedCurve) -> bool:
    """True if two curves have a distance of at least GAP, and none lies inside of the other."""
    if float(torch.cdist(one.points, other.points).min()) < GAP:
        return False
    # The double layer of 1 at a point off the curve is -1 inside and 0 outside.
    return not (_encloses(one, other.points[0]) or _encloses(other, one.points[0]))


def _encloses(curve: ClosedCurve, x: Float[Tensor, "2"]) -> bool:
    difference = x - curve.points
    kernel = (difference * curve.normals).sum(1) / difference.square().sum(1)
    return float((kernel * curve.weights).sum()) / (2 * math.pi) < -0.5
