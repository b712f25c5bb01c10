"""Layer potentials of the Laplacian on smooth closed curves in the plane, to spectral accuracy.

    S f(x) = -1/(2 pi) int log|x - y| f(y) ds_y                    the single layer
    D f(x) = 1/(2 pi) int (x - y).n(y) / |x - y|^2 f(y) ds_y       the double layer, n outward

For x on the curves these are the weakly singular integral and the principal value. With these signs D 1 is -1 inside of a
curve, -1/2 on it and 0 outside, and a function u that is harmonic inside satisfies u/2 = S(du/dn) - D u on the curve.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from gkn.system.checks import check_finite, real

LEAST = 8
"""Least number of points of a curve."""


@dataclass(frozen=True, eq=False)
class ClosedCurve:
    """Smooth closed curve x(t), 0 <= t < 2 pi, given by its points at N equidistant t, counter-clockwise.

    Derivatives are those of the trigonometric interpolant, so they converge faster than any power of 1/N.

        points    (N, 2), float64; N is even
        speed     (N,) |x'(t)|
        normals   (N, 2) outward unit normals
        weights   (N,) quadrature weights of integrals along the curve
    """

    points: Tensor

    def __post_init__(self) -> None:
        points = real(self.points, "points")
        if points.ndim != 2 or points.shape[1] != 2 or len(points) < LEAST or len(points) % 2:
            raise ValueError(
                f"ClosedCurve: points of shape {tuple(points.shape)}; needed (N, 2) with an even N of at least {LEAST}"
            )
        check_finite(points, "ClosedCurve: points")
        object.__setattr__(self, "points", points)
        slow = self.speed <= 1e-12 * self.speed.max()
        if slow.any():
            raise ValueError(
                f"ClosedCurve: the curve stops or turns back at point {int(slow.nonzero()[0])}; needed a smooth one"
            )
        (x, y), (dx, dy) = points.T, self.velocity.T
        if float((x * dy - y * dx).sum()) <= 0:
            raise ValueError("ClosedCurve: the points are in clockwise order; give points.flip(0)")

    def __len__(self) -> int:
        return len(self.points)

    @cached_property
    def velocity(self) -> Float[Tensor, "N 2"]:
        """The derivative x'(t)."""
        return _derivative(self.points)

    @cached_property
    def speed(self) -> Float[Tensor, " N"]:
        return self.velocity.square().sum(1).sqrt()

    @cached_property
    def normals(self) -> Float[Tensor, "N 2"]:
        dx, dy = self.velocity.T
        return torch.stack([dy, -dx], 1) / self.speed[:, None]

    @cached_property
    def curvature(self) -> Float[Tensor, " N"]:
        """Curvature, positive where the curve turns left, as a circle does everywhere."""
        acceleration = _derivative(self.velocity)
        return -(acceleration * self.normals).sum(1) / self.speed**2

    @cached_property
    def weights(self) -> Float[Tensor, " N"]:
        return self.speed * (2 * math.pi / len(self))


Block = Callable[[ClosedCurve, ClosedCurve], Tensor]
"""(curve of the targets, curve of the sources) -> matrix (targets, sources)."""


def single_layer(curves: Sequence[ClosedCurve], f: Float[Tensor, "*batch K"]) -> Float[Tensor, "*batch K"]:
    """Return S f at the points of disjoint curves. The last axis of f and S f is the points of all curves in turn."""
    return _applied(_single_block, curves, f, "single_layer")


def double_layer(curves: Sequence[ClosedCurve], f: Float[Tensor, "*batch K"]) -> Float[Tensor, "*batch K"]:
    """Return D f at the points of disjoint curves. The last axis of f and D f is the points of all curves in turn."""
    return _applied(_double_block, curves, f, "double_layer")


def _applied(block: Block, curves: Sequence[ClosedCurve], f: Tensor, name: str) -> Tensor:
    sizes = [len(curve) for curve in curves]
    f = real(f, f"{name}: f")
    if not sizes or f.ndim < 1 or f.shape[-1] != sum(sizes):
        raise ValueError(f"{name}: f of shape {tuple(f.shape)} on curves of {sizes} points; needed (..., {sum(sizes)})")
    check_finite(f, f"{name}: f")
    parts = f.split(sizes, -1)
    sums = [[part @ block(at, source).T for source, part in zip(curves, parts, strict=True)] for at in curves]
    return torch.cat([torch.stack(terms).sum(0) for terms in sums], -1)


def _single_block(at: ClosedCurve, source: ClosedCurve) -> Tensor:
    squares = _differences(at, source).square().sum(-1)
    if at is not source:
        return squares.log() * (-source.weights / (4 * math.pi))
    # log|x - y|^2 = log(4 sin^2((t - s)/2)) + a smooth function, whose limit at s = t is log |x'(t)|^2.
    angle = torch.arange(len(at), dtype=torch.float64) * (2 * math.pi / len(at))
    sines = 4 * torch.sin((angle[:, None] - angle) / 2) ** 2
    smooth = (squares / sines.fill_diagonal_(1.0)).fill_diagonal_(1.0).log()
    smooth += torch.diag(2 * at.speed.log())
    return (_log_weights(len(at)) + smooth * (2 * math.pi / len(at))) * (-source.speed / (4 * math.pi))


def _double_block(at: ClosedCurve, source: ClosedCurve) -> Tensor:
    difference = _differences(at, source)
    along, squares = (difference * source.normals).sum(-1), difference.square().sum(-1)
    if at is source:  # the kernel is smooth; its limit at y = x is minus half the curvature
        along = along + torch.diag(-at.curvature / 2)
        squares = squares.fill_diagonal_(1.0)
    return along / squares * (source.weights / (2 * math.pi))


def _differences(at: ClosedCurve, source: ClosedCurve) -> Float[Tensor, "P N 2"]:
    return at.points[:, None] - source.points


def _log_weights(count: int) -> Float[Tensor, "N N"]:
    """Return weights of int_0^2pi log(4 sin^2((t - s)/2)) g(s) ds at equidistant t and s, exact for trigonometric polynomials.

    Fourier modes are eigenfunctions: exp(iks) is multiplied by -2 pi / |k|, and constants by 0.
    """
    k = torch.arange(count // 2 + 1, dtype=torch.float64)
    column: Tensor = torch.fft.irfft(torch.where(k > 0, -2 * math.pi / k.clamp_min(1), 0.0), count)
    i = torch.arange(count)
    return column[(i[:, None] - i) % count]


def _derivative(x: Float[Tensor, "N c"]) -> Float[Tensor, "N c"]:
    """Return the derivative with respect to t of periodic functions at equidistant t, where that of the highest mode is 0."""
    k = torch.arange(len(x) // 2 + 1, dtype=torch.float64)
    k[-1] = 0
    slope: Tensor = torch.fft.irfft(torch.fft.rfft(x, dim=0) * (1j * k)[:, None], len(x), dim=0)
    return slope
