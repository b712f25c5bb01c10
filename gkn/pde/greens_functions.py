"""Green's functions in closed form: -Lap_y G(x, y) = delta_x in D, G(x, .) = 0 on the boundary. u(x) = int G(x,y) f(y) dy."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from gkn.system.checks import check_finite, check_inside


def green_interval(x: Float[Tensor, "*#batch"], y: Float[Tensor, "*#batch"]) -> Float[Tensor, "*batch"]:
    """Return G of [0, 1]: G(x, y) = (x + y - |y - x|)/2 - x y."""
    for name, z in (("x", x), ("y", y)):
        check_finite(z, f"green_interval: {name}")
        check_inside((z.reshape(-1) >= 0) & (z.reshape(-1) <= 1), z.reshape(-1, 1), f"green_interval: {name}", "[0, 1]")
    return (x + y - (y - x).abs()) / 2 - x * y


def green_disk(x: Float[Tensor, "*#batch _"], y: Float[Tensor, "*#batch _"]) -> Float[Tensor, "*batch"]:
    """Return G of the unit disk, for Cartesian points; +inf at x = y.

        G(x, y) = -1/(4 pi) ln( |x-y|^2 / (|x|^2 |y|^2 + 1 - 2 x.y) )

    This is the paper's formula with cos(theta~ - theta), whose parenthesis is misplaced in print, and with the sign
    that belongs to -Lap: the printed one is that of +Lap.
    """
    for name, z in (("x", x), ("y", y)):
        if z.shape[-1:] != (2,):
            raise ValueError(f"green_disk: {name} of shape {tuple(z.shape)}; needed points of the plane, (..., 2)")
        check_finite(z, f"green_disk: {name}")
        flat = z.reshape(-1, 2)
        check_inside(flat.norm(dim=-1) <= 1 + 1e-12, flat, f"green_disk: {name}", "the unit disk")
    squared = ((x - y) ** 2).sum(-1)
    # |x|^2 |y|^2 + 1 - 2 x.y = |x-y|^2 + (1-|x|^2)(1-|y|^2), a sum of positive terms: no cancellation near the boundary.
    image = squared + ((1 - (x**2).sum(-1)) * (1 - (y**2).sum(-1))).clamp_min(0)
    return torch.where(squared == 0, math.inf, -(squared / image).log() / (4 * math.pi))
