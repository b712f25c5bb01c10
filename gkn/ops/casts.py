"""Types under autocast: functions that round, and that prevent rounding."""

from __future__ import annotations

import torch
from torch import Tensor

from gkn.ops import autocast


def rounded(x: Tensor) -> Tensor:
    """Return x in the type that autocast computes with, or as it is without autocast."""
    return autocast(x)[0]


def full_precision(x: Tensor) -> torch.autocast:
    """Return a context in which autocast does nothing on the device of x."""
    return torch.autocast(x.device.type, enabled=False)
