"""The Fourier neural operator of neuraloperator, as a model."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gkn.models.rivals.images import ImageModel
from gkn.ops import full_precision


class FNO(ImageModel):
    """neuraloperator's FNO. Its sums over frequencies are computed in float32, since there are no transforms in bf16.

    width    hidden channels
    modes    frequencies per axis
    layers   number of Fourier layers
    """

    settings = ("width", "modes", "layers")

    def __init__(
        self, dim: int, in_channels: int = 1, out_channels: int = 1, width: int = 64, modes: int = 16, layers: int = 4
    ) -> None:
        super().__init__(dim, in_channels, out_channels)
        try:
            from neuralop.models import FNO as Network  # type: ignore[import-not-found,import-untyped,unused-ignore]
        except ImportError as error:
            raise ImportError("FNO is neuraloperator's: pip install 'gkn[rivals]'", name=error.name) from error
        self.width, self.modes, self.layers = width, modes, layers
        # Coordinates are among the channels already, so the network adds none.
        self.network: torch.nn.Module = Network(
            (modes,) * dim, in_channels + dim, out_channels, hidden_channels=width, n_layers=layers, positional_embedding=None
        )

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:  # type: ignore[override]
        """Return the parameters. neuraloperator adds an entry that is no tensor, which is left out."""
        found: dict[str, Any] = super().state_dict(*args, **kwargs)
        for name in [name for name, x in found.items() if not isinstance(x, Tensor)]:
            del found[name]  # from the dictionary itself, which may be that of a model around this one
        return found

    def recordable(self, fixed: bool, dtype: torch.dtype | None) -> bool:
        return True  # nothing depends on the number of edges

    def image(self, a: Tensor) -> Tensor:
        with full_precision(a):
            out: Tensor = self.network(a.contiguous())
        return out
