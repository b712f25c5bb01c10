"""The baseline of Bhattacharya, Hosseini, Kovachki and Stuart (2020): PCA of a and of u, a network between the coefficients."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from gkn.models.rivals.pointwise import feed_forward


def principal(values: Tensor, weights: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Functions (n, K) with quadrature weights (K,) -> their mean (K,), `count` principal functions (K, count), which are
    orthonormal in L2, and the standard deviation of the coefficients (count,). In float64, through the n x n products:
    K may be large.
    """
    if count < 1:
        raise ValueError(f"principal({count}): needed at least one function")
    count = min(count, len(values) - 1)
    if count < 1:
        raise ValueError(f"principal: {len(values)} functions; needed at least 2 to have directions in which they differ")
    mean = values.double().mean(0)
    centred = (values.double() - mean) * weights.double().sqrt()
    energies, vectors = torch.linalg.eigh(centred @ centred.T)
    energies, vectors = energies.flip(0)[:count].clamp_min(0), vectors.flip(1)[:, :count]
    if not float(energies[0]) > 1e-24 * float((values.double().square() * weights).sum()):
        raise ValueError("principal: all functions are the same; there are no directions in which they differ")
    used = energies > 1e-14 * energies[0]
    energies, vectors = energies[used], vectors[:, used]
    basis = centred.T @ (vectors / energies.sqrt())
    # A point without weight has no say in L2: its value follows from those of the samples.
    functions = (values.double() - mean).T @ (vectors / energies.sqrt())
    basis = torch.where(weights[:, None] > 0, basis / weights.double().clamp_min(1e-300).sqrt()[:, None], functions)
    return mean, basis, (energies / len(values)).sqrt()


class PCANet(nn.Module):
    """a -> its first coefficients -> network -> coefficients of u -> u. On the points it was fitted on and no others.

    a, u      (n, K): what to find the directions of
    weights   (K,) of the points
    inputs    coefficients of a
    outputs   coefficients of u
    """

    weights: Tensor
    a_mean: Tensor
    a_basis: Tensor
    a_std: Tensor
    u_mean: Tensor
    u_basis: Tensor
    u_std: Tensor

    def __init__(
        self,
        a: Tensor,
        u: Tensor,
        weights: Tensor,
        inputs: int = 100,
        outputs: int = 100,
        hidden: Sequence[int] = (512, 512, 512),
    ) -> None:
        super().__init__()
        for name, values, count in (("a", a, inputs), ("u", u, outputs)):
            mean, basis, std = principal(values, weights, count)
            for part, x in (("mean", mean), ("basis", basis), ("std", std)):
                self.register_buffer(f"{name}_{part}", x.float())
        self.register_buffer("weights", weights.float())
        self.layers = feed_forward([self.a_basis.shape[1], *hidden, self.u_basis.shape[1]], nn.SELU)

    def encode(self, a: Tensor) -> Tensor:
        """(n, K) -> (n, inputs): coefficients, the first of standard deviation 1; the others, which say less, are smaller."""
        return ((a - self.a_mean) * self.weights) @ self.a_basis / self.a_std[0]

    def decode(self, coefficients: Tensor) -> Tensor:
        """(n, outputs) -> (n, K)"""
        return self.u_mean + (coefficients * self.u_std) @ self.u_basis.T

    def forward(self, a: Tensor) -> Tensor:
        """(n, K) -> (n, K)"""
        return self.decode(self.layers(self.encode(a)))
