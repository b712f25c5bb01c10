"""kappa: the kernel network."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from gkn.graph.graph import Graph
from gkn.ops import Backend, autocast, edge_relu, edge_silu
from gkn.ops.hidden import edge_linear_relu, linear_relu


class Kernel(nn.Module):
    """kappa(x, y) in R^(n x m): a feed-forward network of (features of x, features of y).

    The last layer is linear. After the others comes ReLU, or SiLU if the kernel is `smooth`: without kinks, the sum over a few
    dozen points is an integral to one or two more digits.

    The first layer is linear in the features of x and those of y, so it is computed once per node. The last layer is W and B of
    `kernel_integral`, so no edge ever has a matrix.

        features   number of features of a point
        hidden     sizes of the hidden layers
        n, m       kappa maps R^n to R^m
        relative   numbers of features of which only the difference between x and y counts, as on periodic axes
    """

    def __init__(
        self, features: int, hidden: Sequence[int], n: int, m: int, smooth: bool = False, relative: Sequence[int] = ()
    ) -> None:
        super().__init__()
        if not hidden or any(not isinstance(size, int) or size < 1 for size in hidden):
            raise ValueError(f"kernel={tuple(hidden)}: needed the sizes of the hidden layers, at least one, e.g. (512, 1024)")
        self.features, self.smooth, self.relative = features, smooth, tuple(relative)
        self.tied: Tensor
        # A buffer: what is made from Python numbers within a step cannot be recorded on a GPU.
        tied = torch.tensor([i in self.relative for i in range(features)], device="cpu")
        self.register_buffer("tied", tied, persistent=False)
        self.first = nn.Linear(2 * features, hidden[0])
        self.hidden = nn.ModuleList(nn.Linear(*sizes) for sizes in pairwise(hidden))
        self.sizes = tuple(hidden)
        bound = 1 / math.sqrt(hidden[-1])
        self.W = nn.Parameter(torch.empty(hidden[-1], n, m).uniform_(-bound, bound))
        self.B = nn.Parameter(torch.empty(n, m).uniform_(-bound, bound))

    def parts(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return the first layer's share of targets and of sources. Autocast does not round them: their sum may cancel."""
        of_x, of_y = self.first_weight().split(self.features, dim=1)
        with torch.autocast(x.device.type, enabled=False):
            return nn.functional.linear(x, of_x, self.first.bias), nn.functional.linear(y, of_y)

    def first_weight(self) -> Tensor:
        """Return the weight of the first layer: (hidden, 2 * features), those of x first."""
        weight: Tensor = self.first.weight
        if not self.relative:
            return weight
        of_x, of_y = weight.split(self.features, dim=1)
        return torch.cat([of_x, torch.where(self.tied, -of_x, of_y)], 1)

    def edges(self, p: Tensor, q: Tensor, graph: Graph, backend: Backend, overwrite: bool = False) -> Tensor:
        """Return h(x, y), the last hidden features of every edge. `overwrite`: the gradient of h may be overwritten."""
        if self.smooth:
            h = edge_silu(p, q, graph, autocast(p)[0].dtype)
            for layer in self.hidden:
                h = nn.functional.silu(layer(h))
            return h
        if not self.hidden:
            return edge_relu(p, q, graph, backend=backend)
        first, *rest = self.layers()
        h = edge_linear_relu(p, q, first, graph, backend, overwrite or bool(rest))
        for weight, bias in rest:
            h = linear_relu(h, weight, bias)
        return h

    def layers(self) -> list[tuple[Tensor, Tensor]]:
        """Return weights and biases between the first and the last layer."""
        return [(layer.weight, layer.bias) for layer in self.hidden if isinstance(layer, nn.Linear)]

    def matrices(self, x: Tensor, y: Tensor, more: Tensor | None = None) -> Tensor:
        """Return kappa itself for pairs of features: (P, f), (P, f) -> (P, n, m). `more` (P, k) is added to the first layer."""
        p, q = self.parts(x, y)
        sigma = nn.functional.silu if self.smooth else torch.relu
        h = sigma(p + q if more is None else p + q + more)
        for layer in self.hidden:
            h = sigma(layer(h))
        return torch.einsum("ek,kji->eji", h, self.W) + self.B


def is_plain(layer: nn.Module) -> bool:
    """True for a linear layer that does nothing but what its weight and bias say."""
    hooks = (layer._forward_hooks, layer._forward_pre_hooks, layer._backward_hooks, layer._backward_pre_hooks)
    return type(layer) is nn.Linear and layer.bias is not None and not any(hooks)
