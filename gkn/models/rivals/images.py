"""Models on images: networks that need all points of a regular grid."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from gkn.data.dataset import Dataset
from gkn.graph.graph import Graph
from gkn.models.model import Defaults, Model


class ImageModel(Model):
    """A model that sees every function as an image (channels, s, ..., s).

    Points are sorted into the image by their coordinates, so their order does not matter, and a turned or mirrored function is
    a turned or mirrored image. Points that do not fill a regular grid with equal sides are refused.
    """

    @classmethod
    def defaults(cls, dataset: Dataset, recipe: str | None = None) -> Defaults:
        """Suggest whole grids and Adam with one cycle."""
        return Defaults({}, {"kind": "Points"}, "ours", {"epochs": 40, "batch": 8, "warm": 0.2, "clip": None})

    @abstractmethod
    def image(self, a: Tensor) -> Tensor:
        """Map images (n, dim + in_channels, s, ...), coordinates first, to images (n, out_channels, s, ...)."""

    def forward(self, graph: Graph, x: Tensor, a: Tensor, weights: Tensor | None = None) -> Tensor:
        x, a = self._ready(graph, x, a)
        n = len(graph.cuts) - 1
        side = round((len(x) / n) ** (1 / self.dim))
        if side**self.dim * n != len(x) or len({*torch.tensor(graph.cuts).diff().tolist()}) != 1:
            raise ValueError(f"{type(self).__name__} needs a regular grid; given {len(x)} points in {n} functions. Use NearFar")
        place = self._places(x, n, side)
        channels = torch.cat([2 * x - 1, a], 1)
        image = torch.zeros_like(channels).index_copy(0, place, channels)
        image = image.reshape(n, *[side] * self.dim, -1).movedim(-1, 1)
        out = self.image(image.contiguous(memory_format=torch.channels_last) if self.dim == 2 else image.contiguous())
        return out.movedim(1, -1).reshape(len(x), -1).index_select(0, place)

    def _places(self, x: Tensor, n: int, side: int) -> Tensor:
        """Return the place of every point in the flattened images."""
        low, high = x.amin(0), x.amax(0)
        steps = ((x - low) / (high - low) * (side - 1)).round().long()
        place = torch.arange(n, device=x.device).repeat_interleave(len(x) // n)
        for axis in range(self.dim):
            place = place * side + steps[:, axis]
        if x.device.type == "cpu" and len(torch.unique(place)) != len(place):  # a GPU would have to be waited for
            raise ValueError(f"{type(self).__name__} needs a regular grid; these points do not fill one. Use NearFar")
        return place
