"""Parts of a list of samples: by numbers, in order, or by shares, at random."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from numbers import Integral
from typing import Any

import torch


def parts_of(sizes: Sequence[Any], labels: Sequence[Any] | None, count: int, seed: int) -> list[list[int]]:
    """Return the samples of each part. Whole numbers are counts of samples in order, all others are shares drawn at random.

    labels   one per sample: samples with equal labels are in one part; None: every sample by itself
    count    of the samples
    """
    sizes = [int(size) if isinstance(size, Integral) else float(size) for size in sizes]
    shares = [isinstance(size, float) for size in sizes]
    if not sizes or any(shares) != all(shares) or (labels is not None and not all(shares)):
        raise ValueError(f"Dataset.split{tuple(sizes)}: needed shares only, such as 0.8, or numbers of samples only")
    if not all(shares):
        if sum(sizes) > count or min(sizes) < 0:
            raise ValueError(f"Dataset.split{tuple(sizes)}: {sum(sizes)} samples asked for, this dataset has {count}")
        return [[*range(int(start), int(stop))] for start, stop in pairwise([0, *accumulate(sizes)])]
    if len(sizes) == 1:
        sizes = (*sizes, 1 - sizes[0])
    if min(sizes) < 0 or sum(sizes) > 1 + 1e-9:
        raise ValueError(f"Dataset.split{tuple(sizes)}: needed shares from 0 to 1 that add up to at most 1")
    return drawn_parts(range(count) if labels is None else labels, sizes, seed)


def drawn_parts(labels: Sequence[Any], shares: Sequence[float], seed: int) -> list[list[int]]:
    """Return the samples of each part, in ascending order. Samples with equal labels are in one part."""
    kinds = [*dict.fromkeys(labels)]
    order = torch.randperm(len(kinds), generator=torch.Generator().manual_seed(seed)).tolist()
    ends = [0, *(round(end * len(kinds)) for end in accumulate(shares))]
    place = {kinds[k]: rank for rank, k in enumerate(order)}
    return [[i for i, label in enumerate(labels) if start <= place[label] < stop] for start, stop in pairwise(ends)]
