"""Symmetric: the mean of a network's answers over the symmetries of the unit box, which is more accurate than each of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gkn.data.normalizer import Normalizer
from gkn.graph.graph import Graph
from gkn.graph.moments import turned as turned_moments
from gkn.models.model import Model, Progress, model_from

Turn = tuple[Tensor, Tensor]
"""A symmetry x_i -> x_j or 1 - x_j for each of K points: j (K, d), and where an axis is reversed (K, d)."""


class Symmetric(Model):
    """The mean of a network's answers in all positions of the unit box, 2, 8 or 48 in dimension 1, 2 or 3:

        u(x) = mean over symmetries S of inner(S x, a),     (S x)_i = x_j or 1 - x_j

    Fields move with their points; the components of gradients among them are turned too. If the law has these symmetries, the
    errors of the answers differ and partly cancel. An answer takes as many times as long, and one at many points as many times
    as much memory.

        inner     the network, or its configuration
        vectors   ranges (first, last + 1) of inputs that are the components of a gradient
    """

    settings = ("inner", "vectors")

    def __init__(
        self,
        dim: int,
        in_channels: int,
        out_channels: int,
        inner: Model | Mapping[str, Any],
        vectors: Sequence[Sequence[int]] = (),
    ) -> None:
        super().__init__(dim, in_channels, out_channels)
        built = inner if isinstance(inner, Model) else model_from(inner)
        if (built.dim, built.in_channels, built.out_channels) != (dim, in_channels, out_channels) or built.periodic:
            raise ValueError(
                f"Symmetric: a {type(built).__name__} of sizes {built.dim}, {built.in_channels}, {built.out_channels}, "
                f"periodic along {built.periodic}; needed {dim}, {in_channels}, {out_channels}, and no periodic axis"
            )
        self.inner, self.vectors = built, tuple((int(first), int(last)) for first, last in vectors)
        if any(last - first != dim or not 0 <= first <= last <= in_channels for first, last in self.vectors):
            raise ValueError(f"Symmetric(vectors={self.vectors}): needed ranges of {dim} of the {in_channels} fields")
        self.radius, self.at_queries, self.moments = built.radius, built.at_queries, built.moments
        self.mean: Tensor
        self.std: Tensor
        for name, value in (("mean", 0.0), ("std", 1.0)):
            self.register_buffer(name, torch.full((in_channels,), value))

    def config(self) -> dict[str, Any]:
        sizes = {"dim": self.dim, "in_channels": self.in_channels, "out_channels": self.out_channels}
        vectors = [[*each] for each in self.vectors]
        return {"kind": "Symmetric", **sizes, "inner": self.inner.config(), "vectors": vectors}

    @classmethod
    def around(cls, model: Model, names: Sequence[str], inputs: Normalizer) -> Symmetric:
        """Return the mean of a network's answers, given the names of its inputs and how they are normalised."""
        sizes = model.dim, model.in_channels, model.out_channels
        whole = cls(*sizes, model, vectors_among(names, model.dim))
        whole.mean.copy_(inputs.mean.reshape(-1))
        whole.std.copy_(inputs.std.reshape(-1))
        made: Symmetric = whole.to(model.like.device)
        return made

    def forward(self, graph: Graph, x: Tensor, a: Tensor, weights: Tensor | None = None) -> Tensor:
        x, a = self._ready(graph, x, a)
        found = [self.inner(self._graph(graph, turn), *self._turned(turn, x, a), weights) for turn in self._turns(x)]
        return torch.stack(found).mean(0)

    def states(
        self, graph: Graph, x: Tensor, a: Tensor, weights: Tensor | None = None, progress: Progress | None = None
    ) -> Sequence[Any]:
        x, a = self._ready(graph, x, a)
        return [
            self.inner.states(self._graph(graph, turn), *self._turned(turn, x, a), weights, progress) for turn in self._turns(x)
        ]

    def finish(self, states: Sequence[Any]) -> Tensor:
        return torch.stack([self.inner.finish(each) for each in states]).mean(0)

    def at(
        self,
        states: Sequence[Any],
        graph: Graph,
        queries: tuple[Tensor, Tensor],
        nodes: tuple[Tensor, Tensor],
        weights: Tensor | None = None,
    ) -> Tensor:
        queries, nodes = self._ready(None, *queries), self._ready(graph, *nodes)
        found = []
        for each, of_queries, of_nodes in zip(states, self._turns(queries[0]), self._turns(nodes[0]), strict=True):
            turned = self._turned(of_queries, *queries), self._turned(of_nodes, *nodes)
            found.append(self.inner.at(each, self._graph(graph, of_queries), *turned, weights))
        return torch.stack(found).mean(0)

    def _turns(self, x: Tensor) -> Iterator[Turn]:
        """Iterate over the symmetries of points (K, dim)."""
        for axes in itertools.permutations(range(self.dim)):
            for reversed in itertools.product((False, True), repeat=self.dim):
                both = (torch.tensor(each, device=x.device).expand(len(x), -1) for each in (axes, reversed))
                yield next(both), next(both)

    def _turned(self, turn: Turn, x: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
        return turned_points(x, turn), turned_fields(a, self.vectors, (self.mean, self.std), turn)

    def _graph(self, graph: Graph, turn: Turn) -> Graph:
        """Return the graph of turned points: edges stay, moments of balls are turned."""
        return graph if graph.moments is None else graph.with_moments(turned_moments(graph.moments, *turn))


def turned_points(x: Tensor, turn: Turn) -> Tensor:
    """Return points (K, d) of the unit box after a symmetry of it."""
    axes, reversed = turn
    moved = x.gather(1, axes)
    return torch.where(reversed, 1 - moved, moved)


def turned_fields(a: Tensor, vectors: Sequence[tuple[int, int]], scale: tuple[Tensor, Tensor], turn: Turn) -> Tensor:
    """Return normalised fields (K, c) after a symmetry: the components of vectors change places and signs.

    vectors   ranges (first, last + 1) of the fields
    scale     mean and standard deviation (c,) that the fields are normalised by
    """
    axes, reversed = turn
    mean, std = scale
    parts, done = [], 0
    for first, last in vectors:
        vector = (a[:, first:last] * std[first:last] + mean[first:last]).gather(1, axes)
        vector = torch.where(reversed, -vector, vector)
        parts += [a[:, done:first], (vector - mean[first:last]) / std[first:last]]
        done = last
    return torch.cat([*parts, a[:, done:]], 1)


def vectors_among(names: Sequence[str], dim: int) -> tuple[tuple[int, int], ...]:
    """Return the ranges of fields that are the components of one vector, judging by their names: a_x, a_y, a_z."""
    vectors = []
    for stem in dict.fromkeys(filter(None, (vector_of(name) for name in names))):
        first = next(i for i, name in enumerate(names) if vector_of(name) == stem)
        wanted = [f"{stem}_{axis}" for axis in "xyz"[:dim]]
        if [*names[first : first + dim]] != wanted:
            raise ValueError(f"symmetries: needed all of {', '.join(wanted)}, side by side, among {', '.join(names)}")
        vectors.append((first, first + dim))
    return tuple(vectors)


def vector_of(name: str) -> str | None:
    """Return the vector a field is a component of, judging by its name; None if it is none."""
    stem, _, axis = name.rpartition("_")
    return stem if stem and axis in ("x", "y", "z") else None
