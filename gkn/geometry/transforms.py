"""Sums of cosines and sines at the nodes of a uniform grid, along one axis, by real FFTs.

With c of any length M and nodes x_j = j/(size-1), j = 0..size-1:

    cosines(c, size)_j   = sum_k c_k cos(pi k x_j)
    sines(c, size)_j     = sum_k c_k sin(pi k x_j)
    harmonics(c, size)_j = c_0 + sum_k c_{2k-1} cos(2 pi k x_j) + c_{2k} sin(2 pi k x_j)

Exact for any M: on a grid a frequency above the grid's own looks like a lower one, so the coefficients are first
summed over whole periods. Then one real FFT of zero-padded coefficients has the cosines in its real part and
the sines in its imaginary part; no odd or even extension is ever formed.
"""

from __future__ import annotations

import torch
from torch import Tensor


def cosines(c: Tensor, size: int, axis: int = -1) -> Tensor:
    return _rfft(c, 2 * (size - 1), axis).real


def sines(c: Tensor, size: int, axis: int = -1) -> Tensor:
    return -_rfft(c, 2 * (size - 1), axis).imag


def harmonics(c: Tensor, size: int, axis: int = -1) -> Tensor:
    c = c.movedim(axis, -1)
    cosine, sine = c[..., 1::2], c[..., 2::2]
    cosine = torch.cat([c[..., :1], cosine], -1)
    sine = torch.nn.functional.pad(sine, (1, 0))
    period = size - 1
    # Re and Im of the two transforms, at every node of the period; the last node is the first again.
    out = torch.fft.fft(_fold(cosine, period), period).real - torch.fft.fft(_fold(sine, period), period).imag
    return torch.cat([out, out[..., :1]], -1).movedim(-1, axis)


def _rfft(c: Tensor, period: int, axis: int) -> Tensor:
    if c.shape[axis] > period:
        c = _fold(c.movedim(axis, -1), period).movedim(-1, axis)
    transformed: Tensor = torch.fft.rfft(c, period, axis)
    return transformed


def _fold(c: Tensor, period: int) -> Tensor:
    """Sum over whole periods of the last axis: frequency k and k + period are the same on the grid."""
    length = c.shape[-1]
    if length <= period:
        return c
    periods = -(-length // period)
    padded = torch.nn.functional.pad(c, (0, periods * period - length))
    return padded.reshape(*c.shape[:-1], periods, period).sum(-2)
