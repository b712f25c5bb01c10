"""The convolutional baseline: a dense encoder-decoder on images of a (after Zhu and Zabaras 2018)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from gkn.models.rivals.images import ImageModel


class FCN(ImageModel):
    """Down to a quarter of the resolution and up again; in dense blocks every layer sees all layers before it.

    It sees a window of a fixed number of pixels: on a finer grid, a smaller part of the domain.

        start    channels after the first convolution
        growth   channels each layer of a block adds
        blocks   layers of the three blocks: at half, a quarter, and half of the resolution
        places   see the coordinates x beside a
    """

    settings = ("start", "growth", "blocks", "places")

    def __init__(
        self,
        dim: int = 2,
        in_channels: int = 1,
        out_channels: int = 1,
        start: int = 48,
        growth: int = 16,
        blocks: Sequence[int] = (3, 6, 3),
        places: bool = True,
    ) -> None:
        super().__init__(dim, in_channels, out_channels)
        if dim != 2:
            raise ValueError(f"FCN sees images; these points are {dim}-dimensional")
        if len(blocks) != 3 or any(type(size) is not int or size < 1 for size in (*blocks, start, growth)):
            raise ValueError(f"FCN(start={start}, growth={growth}, blocks={tuple(blocks)}): needed whole numbers, three blocks")
        self.start, self.growth, self.blocks, self.places = start, growth, tuple(blocks), places
        first, middle, last = blocks
        self.into = nn.Conv2d(in_channels + (2 if places else 0), start, 7, stride=2, padding=3, bias=False)
        width = start + first * growth
        self.fine = _Block(start, growth, first)
        self.down = nn.Sequential(_layer(width, width // 2, 1), _layer(width // 2, width // 2, 3, stride=2))
        self.coarse = _Block(width // 2, growth, middle)
        width = width // 2 + middle * growth
        self.up = _layer(width, width // 2, 1)
        self.across = _layer(width // 2, width // 2, 3)
        self.again = _Block(width // 2, growth, last)
        width = width // 2 + last * growth
        self.last = _layer(width, width // 2, 1)
        self.out = nn.Sequential(_layer(width // 2, width // 4, 3), nn.Conv2d(width // 4, out_channels, 5, padding=2))

    def image(self, a: Tensor) -> Tensor:
        seen = a if self.places else a[:, self.dim :]
        half = self.fine(self.into(seen))
        quarter = self.coarse(self.down(half))
        half = self.again(self.across(_enlarged(self.up(quarter), half)))
        out: Tensor = self.out(_enlarged(self.last(half), seen))
        return out


class _Block(nn.Module):
    def __init__(self, channels: int, growth: int, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(_layer(channels + i * growth, growth, 3) for i in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.cat([x, layer(x)], 1)
        return x


def _layer(channels: int, out: int, size: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.BatchNorm2d(channels), nn.ReLU(), nn.Conv2d(channels, out, size, stride=stride, padding=size // 2, bias=False)
    )


def _enlarged(x: Tensor, like: Tensor) -> Tensor:
    return nn.functional.interpolate(x, size=like.shape[-2:], mode="nearest")
