"""The baseline of Bhattacharya, Hosseini, Kovachki and Stuart (2020): PCA of a and of u, a network between the coefficients."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from gkn.data.dataset import Dataset
from gkn.data.normalizer import Normalizer
from gkn.graph.graph import Graph
from gkn.models.model import Defaults, Model, check_sizes
from gkn.models.rivals.dense import check_points
from gkn.models.rivals.pointwise import feed_forward


def principal(values: Tensor, weights: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the mean (K,) of functions (n, K), `count` principal functions (K, count), and the deviations of coefficients.

    The principal functions are orthonormal in L2 with quadrature weights (K,). They are computed in float64, through the n x n
    matrix of products: K may be large.
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
    # A point without weight does not count in L2: its value follows from those of the samples.
    functions = (values.double() - mean).T @ (vectors / energies.sqrt())
    basis = torch.where(weights[:, None] > 0, basis / weights.double().clamp_min(1e-300).sqrt()[:, None], functions)
    return mean, basis, (energies / len(values)).sqrt()


class PCANet(Model):
    """a -> its first coefficients -> network -> coefficients of u -> u, on the points it was fitted on and no others.

    The bases are computed from the training data; the network between them is trained like any other.

        points    K
        inputs    coefficients of a
        outputs   coefficients of u
        hidden    sizes of the hidden layers
    """

    settings = ("points", "inputs", "outputs", "hidden")
    weights: Tensor
    a_mean: Tensor
    a_basis: Tensor
    a_std: Tensor
    u_mean: Tensor
    u_basis: Tensor
    u_std: Tensor

    def __init__(
        self,
        dim: int,
        in_channels: int = 1,
        out_channels: int = 1,
        points: int = 1,
        inputs: int = 100,
        outputs: int = 100,
        hidden: Sequence[int] = (512, 512, 512),
    ) -> None:
        super().__init__(dim, in_channels, out_channels)
        if in_channels != 1 or out_channels != 1:
            raise ValueError(f"PCANet maps one field to one field; given {in_channels} and {out_channels}: use Dataset.using")
        check_sizes("PCANet", points=points, inputs=inputs, outputs=outputs)
        self.points, self.inputs, self.outputs, self.hidden = points, inputs, outputs, tuple(hidden)
        for name, count in (("a", inputs), ("u", outputs)):
            self.register_buffer(f"{name}_mean", torch.zeros(points))
            self.register_buffer(f"{name}_basis", torch.zeros(points, count))
            self.register_buffer(f"{name}_std", torch.ones(count))
        self.register_buffer("weights", torch.zeros(points))
        self.layers = feed_forward([inputs, *hidden, outputs], nn.SELU)

    @classmethod
    def defaults(cls, dataset: Dataset, recipe: str | None = None) -> Defaults:
        count = max(1, min(100, len(dataset) - 1))
        settings = {"points": len(dataset.domain), "inputs": count, "outputs": count}
        changes = {"epochs": 250, "batch": 64, "lr": 1e-3, "warm": 0.2, "clip": None}
        return Defaults(settings, {"kind": "Points"}, "ours", changes)

    def prepare(self, datasets: Sequence[Dataset], inputs: Normalizer, outputs: Normalizer) -> None:
        """Compute the bases of normalised a and u."""
        (dataset,) = one_dataset(self, datasets)
        self.weights.copy_(dataset.domain.weights)
        for name, field, normalizer, count in (
            ("a", dataset.inputs[0], inputs, self.inputs),
            ("u", dataset.outputs[0], outputs, self.outputs),
        ):
            values = normalizer.encode(dataset.field(field)[..., None]).squeeze(-1)
            mean, basis, std = principal(values, dataset.domain.weights, count)
            getattr(self, f"{name}_mean").copy_(mean)
            getattr(self, f"{name}_basis").zero_()[:, : len(std)].copy_(basis)
            getattr(self, f"{name}_std").fill_(1.0)[: len(std)].copy_(std)

    def forward(self, graph: Graph, x: Tensor, a: Tensor, weights: Tensor | None = None) -> Tensor:
        _, a = self._ready(graph, x, a)
        check_points(self, graph, self.points)
        return self.decode(self.layers(self.encode(a.reshape(-1, self.points)))).reshape(-1, 1)

    def encode(self, a: Tensor) -> Tensor:
        """Return coefficients (n, inputs) of functions (n, K), scaled so that the first has standard deviation 1."""
        return ((a - self.a_mean) * self.weights) @ self.a_basis / self.a_std[0]

    def decode(self, coefficients: Tensor) -> Tensor:
        """Return functions (n, K), given coefficients (n, outputs)."""
        return self.u_mean + (coefficients * self.u_std) @ self.u_basis.T


def one_dataset(model: Model, datasets: Sequence[Dataset]) -> Sequence[Dataset]:
    """Raise an error unless there is one dataset with all samples on one domain."""
    if len(datasets) != 1 or not datasets[0].one_domain:
        raise ValueError(f"{type(model).__name__} needs all samples on one domain; here every sample has its own")
    return datasets
