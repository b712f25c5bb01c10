"""Seeded random generators that depend on nothing but their key."""

from __future__ import annotations

import numpy as np
import torch


def stream(seed: int, *key: int) -> torch.Generator:
    """Return a generator for a seed and a key, statistically independent of those of all other keys."""
    state = np.random.SeedSequence(seed, spawn_key=key).generate_state(1, np.uint64)[0]
    return torch.Generator().manual_seed(int(state))
