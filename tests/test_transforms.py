import math

import pytest
import torch

from gkn.geometry import transforms


@pytest.mark.parametrize("size", [2, 3, 8, 17])
@pytest.mark.parametrize("length", [1, 2, 5, 16, 17, 40, 101])
def test_sums_of_sines_and_cosines(size, length, rng):
    """Against the sums themselves, for fewer and for many more coefficients than nodes."""
    c = torch.randn(3, length, 2, dtype=torch.float64, generator=rng)
    x = torch.arange(size, dtype=torch.float64) / (size - 1)
    k = torch.arange(length, dtype=torch.float64)
    angle = math.pi * x[:, None] * k
    tolerance = {"atol": 1e-12 * length, "rtol": 0}
    torch.testing.assert_close(transforms.cosines(c, size, 1), torch.einsum("jk,nkb->njb", angle.cos(), c), **tolerance)
    torch.testing.assert_close(transforms.sines(c, size, 1), torch.einsum("jk,nkb->njb", angle.sin(), c), **tolerance)
    turn = 2 * math.pi * x[:, None] * ((k + 1) // 2)
    basis = torch.where(k % 2 == 0, turn.sin(), turn.cos())
    basis[:, 0] = 1
    torch.testing.assert_close(transforms.harmonics(c, size, 1), torch.einsum("jk,nkb->njb", basis, c), **tolerance)
