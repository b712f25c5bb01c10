"""Symmetries of the unit box: axes exchanged and reversed. If the data distribution is invariant, each pair yields one sample
per symmetry."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from gkn.data.dataset import Dataset
from gkn.data.normalizer import Normalizer
from gkn.data.stepping import SUFFIXES
from gkn.graph.batches import Batch
from gkn.graph.moments import turned as turned_moments
from gkn.models.symmetric import turned_fields, turned_points, vector_of, vectors_among

TENSOR = re.compile(".+_[xyz]{2}")
"""Name of a component of a tensor."""
CUBE = 0.98
"""Shortest side of a box that still counts as the unit box, which random points do not fill to its edges."""


@dataclass(frozen=True, eq=False)
class Symmetries:
    """x_i -> x_j or 1 - x_j, drawn for every function. Fields move with their points; vectors are turned too.

    vectors   ranges (first, last + 1) of inputs that are the components of a gradient
    """

    inputs: Normalizer
    vectors: tuple[tuple[int, int], ...]

    @staticmethod
    def of(datasets: Sequence[Dataset], inputs: Normalizer) -> Symmetries:
        fixed = [name for name in datasets[0].outputs if vector_of(_without_suffix(name))]
        fixed += [name for name in (*datasets[0].inputs, *datasets[0].outputs) if TENSOR.fullmatch(_without_suffix(name))]
        if fixed:
            raise ValueError(
                f"symmetries: {', '.join(fixed)} would not be turned: needed outputs that are scalars, and inputs that are "
                f"scalars or vectors"
            )
        vectors = vectors_among(datasets[0].inputs, datasets[0][0].domain.dim)
        boxes = [domain.box for each in datasets for domain in each.domains()]
        low, high = torch.stack([box[0] for box in boxes]).amin(0), torch.stack([box[1] for box in boxes]).amax(0)
        if float(low.min()) < 0 or float(high.max()) > 1 or float((high - low).min()) < CUBE:
            sides = " x ".join(f"{side:.3g}" for side in (high - low).tolist())
            raise ValueError(f"symmetries: these are those of the unit box, and the points fill a box of {sides}")
        return Symmetries(inputs, vectors)

    def __call__(self, batch: Batch, rng: torch.Generator, graphs: range) -> Batch:
        """Apply a random symmetry to each graph of a batch. `graphs`: their numbers among all graphs of the step."""
        dim, device = batch.x.shape[1], batch.x.device
        drawn = torch.rand(graphs.stop, 2, dim, generator=rng)[graphs.start :: graphs.step].to(device)
        sizes = torch.tensor(batch.sizes, device=device)
        each = torch.arange(len(sizes), device=device).repeat_interleave(sizes, output_size=len(batch.x))
        turn = drawn[:, 0].argsort(1)[each], (drawn[:, 1] < 0.5)[each]
        graph = batch.graph
        if graph.moments is not None:
            graph = graph.with_moments(turned_moments(graph.moments, *turn))
        scale = self.inputs.mean.to(batch.a), self.inputs.std.to(batch.a)
        a = turned_fields(batch.a, self.vectors, scale, turn)
        return replace(batch, graph=graph, x=turned_points(batch.x, turn), a=a)


def _without_suffix(name: str) -> str:
    """Return the name of a state, given that of what is learned about it: v_x of v_x_rate."""
    stem, _, last = name.rpartition("_")
    return stem if last in SUFFIXES.values() else name
