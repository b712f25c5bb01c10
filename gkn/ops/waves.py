"""Waves: Fourier coefficients of functions on any points of a periodic domain, and functions with given coefficients.

    coefficients   a_k = sum over y of share(y) cos(k y) v(y),  b_k = sum over y of share(y) sin(k y) v(y)
    values         sum over k of cos(k x) a_k + sin(k x) b_k

For points on a grid with equal shares, values(coefficients) is half of v's part in these waves, and the mean for k = 0.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor

from gkn.graph.graph import sizes_of
from gkn.ops.points import CHUNK, chunks, gathered, pointwise, recomputed, spread


def wave_vectors(dim: int, axes: Sequence[int], longest: int) -> Tensor:
    """Return whole vectors k (M, dim) with |k| <= longest along some axes, one of each pair k and -k."""
    ranges = [range(-longest, longest + 1) if axis in axes else range(1) for axis in range(dim)]
    zero = (0,) * dim
    kept = [k for k in itertools.product(*ranges) if k >= zero and sum(each * each for each in k) <= longest**2]
    return torch.tensor(kept, dtype=torch.float64, device="cpu")  # also where a network is built without memory


class Waves:
    """The waves of some points (K, dim), given their wave vectors (M, dim) in units of the points.

    Cosines and sines are kept for up to CHUNK points. Of more they are computed for a chunk at a time.
    """

    def __init__(self, x: Tensor, vectors: Tensor) -> None:
        self.x, self.vectors = x, vectors
        self._kept = self._waves(x) if len(x) <= CHUNK else None

    def _waves(self, x: Tensor) -> Tensor:
        """Return cosines, then sines: (K, 2 M). Phases are computed in double precision: k x may be large."""
        phase = x.double() @ self.vectors.T
        return torch.cat([phase.cos(), phase.sin()], 1).to(x.dtype)

    def coefficients(self, v: Tensor, share: Tensor, cuts: Sequence[int]) -> Tensor:
        """Return the coefficients of each function: (K, c), shares (K,) -> (functions, 2 M, c)."""
        if self._kept is not None:
            return gathered(self._kept.to(v.dtype), v * share.to(v.dtype)[:, None], sizes_of(cuts))

        def sums(x: Tensor, v: Tensor, share: Tensor) -> Tensor:
            kind = torch.promote_types(v.dtype, torch.float32)  # added up in float32 at least
            return (self._waves(x).to(v.dtype).T @ (v * share.to(v.dtype)[:, None])).to(kind)

        of = [
            torch.stack([recomputed(sums, self.x[i:j], v[i:j], share[i:j]) for i, j in chunks(*ends)]).sum(0)
            for ends in pairwise(cuts)
        ]
        return torch.stack(of)

    def values(self, coefficients: Tensor, cuts: Sequence[int]) -> Tensor:
        """Return the values at the points of each function: (functions, 2 M, c) -> (K, c)."""
        if self._kept is not None:
            return spread(self._kept, coefficients, sizes_of(cuts))

        def of(c: Tensor, x: Tensor) -> Tensor:
            return self._waves(x).to(c.dtype) @ c

        parts = zip(coefficients, self.x.split(sizes_of(cuts)), strict=True)
        return torch.cat([pointwise(partial(of, c), x) for c, x in parts])
