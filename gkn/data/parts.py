"""Random parts of a list of samples."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import torch


def drawn_parts(labels: Sequence[Any], shares: Sequence[float], seed: int) -> list[list[int]]:
    """Return the samples of each part, in ascending order. Samples with equal labels are in one part."""
    kinds = [*dict.fromkeys(labels)]
    order = torch.randperm(len(kinds), generator=torch.Generator().manual_seed(seed)).tolist()
    ends = [0, *(round(end * len(kinds)) for end in accumulate(shares))]
    place = {kinds[k]: rank for rank, k in enumerate(order)}
    return [[i for i, label in enumerate(labels) if start <= place[label] < stop] for start, stop in pairwise(ends)]
