"""Stepper: any network, with normalisation layers that depend on the time and on the length of a step."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from gkn.data.dataset import Dataset
from gkn.data.normalizer import Normalizer
from gkn.graph.graph import Graph
from gkn.models.model import Model, Progress, model_from

EMBEDDING = 32
"""Features of (t, tau) that all layers share."""


class Stepper(Model):
    """A network whose layer norms are scaled and shifted by learned functions of some inputs, the time t and the step tau:

        norm(v) <- (1 + scale(t, tau)) norm(v) + shift(t, tau)

    Both functions are 0 at first, so that training begins with the network as it is. A network without layer norms sees t and
    tau among its inputs only.

        inner        the network, or its configuration
        conditions   indices of the fields of a that are t and tau; they must be constant on every function
    """

    settings = ("inner", "conditions")

    def __init__(
        self, dim: int, in_channels: int, out_channels: int, inner: Model | Mapping[str, Any], conditions: Sequence[int]
    ) -> None:
        super().__init__(dim, in_channels, out_channels)
        built = inner if isinstance(inner, Model) else model_from(inner)
        sizes = (built.dim, built.in_channels, built.out_channels)
        if isinstance(built, Stepper) or sizes != (dim, in_channels, out_channels):
            raise ValueError(f"Stepper: a {type(built).__name__} of sizes {sizes}; needed a network of sizes {self._sizes}")
        chosen = tuple(conditions)
        if not chosen or any(type(each) is not int or not 0 <= each < in_channels for each in chosen):
            raise ValueError(f"Stepper(conditions={chosen}): needed numbers of input fields, 0 to {in_channels - 1}")
        self.inner, self.conditions = built, chosen
        self.columns: Tensor
        self.register_buffer("columns", torch.tensor(chosen, device="cpu"), persistent=False)
        self.radius, self.periodic, self.at_queries = built.radius, built.periodic, built.at_queries
        self.moments, self.fills = built.moments, built.fills
        self.embedding = nn.Sequential(nn.Linear(len(chosen), EMBEDDING), nn.SiLU())
        self._now = Condition()
        for module in [*built.modules()]:
            for name, norm in [*module.named_children()]:
                if isinstance(norm, nn.LayerNorm):
                    setattr(module, name, StepNorm(norm, self._now))

    @property
    def _sizes(self) -> tuple[int, int, int]:
        return self.dim, self.in_channels, self.out_channels

    def config(self) -> dict[str, Any]:
        sizes = dict(zip(("dim", "in_channels", "out_channels"), self._sizes, strict=True))
        return {"kind": "Stepper", **sizes, "inner": self.inner.config(), "conditions": [*self.conditions]}

    def forward(self, graph: Graph, x: Tensor, a: Tensor, weights: Tensor | None = None) -> Tensor:
        with self._conditioned(graph, x, a, weights):
            u: Tensor = self.inner(graph, x, a, weights)
        return u

    def states(
        self, graph: Graph, x: Tensor, a: Tensor, weights: Tensor | None = None, progress: Progress | None = None
    ) -> Sequence[Any]:
        with self._conditioned(graph, x, a, weights):
            values = self.inner.states(graph, x, a, weights, progress)
            return [self.inner.finish(values), self._embedded(graph, a), *values]

    def finish(self, states: Sequence[Any]) -> Tensor:
        u: Tensor = states[0]
        return u

    def at(
        self,
        states: Sequence[Any],
        graph: Graph,
        queries: tuple[Tensor, Tensor],
        nodes: tuple[Tensor, Tensor],
        weights: Tensor | None = None,
    ) -> Tensor:
        with self._now.set(states[1], {}):  # queries are those of one function
            return self.inner.at(states[2:], graph, queries, nodes, weights)

    @contextmanager
    def _conditioned(self, graph: Graph, x: Tensor, a: Tensor, weights: Tensor | None) -> Iterator[None]:
        """Let the norms see t and tau of the functions of a batch."""
        embedded, sizes = self._embedded(graph, a), graph.sizes
        rows: dict[int, Tensor] = {}
        if len(sizes) > 1:
            parts = [torch.full((size,), i, device=a.device) for i, size in enumerate(sizes)]
            function = torch.cat(parts)
            rows = {len(nodes): function[nodes] for nodes in self.inner.levels_of_rows(graph, x, weights)}
            rows[len(a)] = function
        with self._now.set(embedded, rows):
            yield

    def _embedded(self, graph: Graph, a: Tensor) -> Tensor:
        """Return features of the conditions (G, EMBEDDING) of each function, read at its first node."""
        columns = self.columns
        found = [
            a[start].index_select(0, columns) if stop > start else a.new_zeros(len(columns)) for start, stop in _ends(graph)
        ]
        embedded: Tensor = self.embedding(torch.stack(found).to(self.like.dtype))
        return embedded

    def prepare(self, datasets: Sequence[Dataset], inputs: Normalizer, outputs: Normalizer) -> None:
        self.inner.prepare(datasets, inputs, outputs)

    def recordable(self, fixed: bool, dtype: torch.dtype | None) -> bool:
        return self.inner.recordable(fixed, dtype)


def _ends(graph: Graph) -> list[tuple[int, int]]:
    return [*pairwise(graph.cuts)]


class Condition:
    """The features of (t, tau) in the pass that a thread computes. Copies begin without any.

    A derivative may compute layers again, in a thread of torch; it then sees those of the last pass.
    """

    def __init__(self) -> None:
        self._of_thread: dict[int, tuple[Tensor, dict[int, Tensor]]] = {}
        self._last: tuple[Tensor, dict[int, Tensor]] | None = None

    def __deepcopy__(self, memo: Any) -> Condition:
        return Condition()

    def __reduce__(self) -> Any:
        return Condition, ()

    @contextmanager
    def set(self, features: Tensor, rows: dict[int, Tensor]) -> Iterator[None]:
        """Set the features (G, EMBEDDING) of each function, and the function of each row of arrays with so many rows."""
        self._last = self._of_thread[threading.get_ident()] = (features, rows)
        try:
            yield
        finally:
            del self._of_thread[threading.get_ident()]

    def features(self, count: int) -> tuple[Tensor, Tensor | None]:
        """Return the features of the functions, and the function of each of `count` rows; None if there is only one."""
        found = self._of_thread.get(threading.get_ident(), self._last)
        if found is None:
            raise RuntimeError("a conditioned norm was called by itself; call the Stepper it belongs to")
        features, rows = found
        if len(features) == 1:
            return features, None
        if count not in rows:
            raise RuntimeError(f"a layer norm of {count} rows: the model must name these rows in `levels_of_rows`")
        return features, rows[count]


class StepNorm(nn.Module):
    """A layer norm that is scaled and shifted by functions of the conditions, which are 0 at first."""

    def __init__(self, norm: nn.LayerNorm, condition: Condition) -> None:
        super().__init__()
        self.norm, self._condition = norm, condition
        self.scales = nn.Linear(EMBEDDING, 2 * norm.normalized_shape[0])
        nn.init.zeros_(self.scales.weight)
        nn.init.zeros_(self.scales.bias)

    def forward(self, v: Tensor) -> Tensor:
        features, function = self._condition.features(len(v))
        scales = self.scales(features.to(self.scales.weight.dtype))  # which autocast, if it is on, makes its own
        scale, shift = (scales if function is None else scales.index_select(0, function)).chunk(2, -1)
        normed: Tensor = self.norm(v)
        out: Tensor = normed * (1 + scale.to(normed.dtype)) + shift.to(normed.dtype)
        return out
