"""The last layer of kappa as one matrix, applied to sums over neighbours: its rows and their gradients."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from gkn.ops.dense import mm_into, plus_mm

NARROW, PIECE = 8, 128
SPARE = 16  # rows for the bias: one, and zeros, since matrix units like multiples of 16


@dataclass(frozen=True, eq=False)
class Last:
    """out(x) = W : A(x) + B s(x), and, in a step of a network, + v(x) step + bias."""

    W: Tensor  # (k, n, m)
    B: Tensor  # (n, m)
    step: Tensor | None = None  # (n, m)
    bias: Tensor | None = None  # (m,)

    @cached_property
    def rows(self) -> Tensor:
        """Return W, B, step and bias below each other: (k n + n, m), or (k n + 2 n + 16, m)."""
        flat = [self.W.flatten(0, 1), self.B]
        if self.step is not None and self.bias is not None:
            spare = self.B.new_zeros(SPARE, self.B.shape[1])
            spare[0] = self.bias
            flat += [self.step, spare]
        return torch.cat(flat)


class Found:
    """Gradients of those rows, added up over blocks of targets, in float32 at least: otherwise many small blocks would be
    lost to rounding."""

    def __init__(self, last: Last) -> None:
        self.last = last
        k, n, m = last.W.shape
        self.sizes = [k * n, n] if last.step is None else [k * n, n, n, SPARE]
        kind = torch.promote_types(last.W.dtype, torch.float32)
        self.total = torch.zeros(sum(self.sizes), m, dtype=kind, device=last.W.device)

    def add(self, first: int, rows: Tensor, d: Tensor) -> None:
        """Add rows^T d, from row `first` on."""
        part = self.total if rows.shape[1] == self.total.shape[0] else self.total[first : first + rows.shape[1]]
        plus_mm(part, rows.T, d)

    def done(self) -> list[Tensor]:
        """Return the gradients of W and B, and of step and bias if there are any."""
        W, B, *rest = self.total.split(self.sizes)
        small = [B] if not rest else [B, rest[0], rest[1][0]]
        return [W.view(self.last.W.shape), *(x.clone() for x in small)]  # a view would keep the whole array alive


def product(a: Tensor, b: Tensor, out: Tensor) -> Tensor:
    """Compute a b into `out`.

    For results with few rows or columns, some libraries add up long rows one number at a time, with an error that grows with
    their length. Such products are computed in pieces, whose sums are added up.
    """
    if a.device.type != "cpu" or a.dtype.itemsize < 4 or min(out.shape) > NARROW or a.shape[1] <= PIECE:
        return mm_into(out, a, b)
    pieces = [x @ y for x, y in zip(a.split(PIECE, 1), b.split(PIECE), strict=True)]
    return torch.sum(torch.stack(pieces), 0, out=out)
