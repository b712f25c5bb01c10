"""WaveField: the part of a block of NearFar that reaches across a periodic domain."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gkn.ops.dense import Linear


class WaveField(nn.Module):
    """The periodic field, a convolution: each Fourier coefficient is multiplied by a matrix of its own.

        c_k = sum_y share(y) exp(-2 pi i k y) w(y)
        c_k <- out(R_k value(c_k))

    R_k is a complex matrix for each head. `value` and `out` mix the heads. Coefficients are given by their real parts, followed
    by their negative imaginary parts: the factors of cosines and sines.
    """

    def __init__(self, width: int, head: int, vectors: int) -> None:
        super().__init__()
        self.heads = width // head
        self.value, self.out = Linear(width, width, bias=False), Linear(width, width, bias=False)
        self.real, self.imaginary = (nn.Parameter(torch.empty(vectors, self.heads, head, head)) for _ in range(2))
        for each in (self.real, self.imaginary):
            nn.init.uniform_(each, -(head**-0.5), head**-0.5)

    def forward(self, coefficients: Tensor) -> Tensor:
        """(functions, 2 * vectors, width) -> the same"""
        c = self.value(coefficients).unflatten(1, (2, -1)).unflatten(-1, (self.heads, -1))
        real, imaginary = (each.to(c.dtype) for each in (self.real, self.imaginary))

        def mixed(matrices: Tensor, c: Tensor) -> Tensor:
            return torch.einsum("gkhd,khed->gkhe", c, matrices)

        cos, sin = c[:, 0], c[:, 1]
        both = torch.stack([mixed(real, cos) + mixed(imaginary, sin), mixed(real, sin) - mixed(imaginary, cos)], 1)
        out: Tensor = self.out(both.flatten(-2).flatten(1, 2))
        return out
