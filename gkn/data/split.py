"""Split: which samples of a dataset are learned from, which choose the best network, and which judge it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from gkn.data.dataset import Dataset
from gkn.data.parts import drawn_parts


@dataclass(frozen=True)
class Split:
    """Numbers of the samples of each part, and the hash of the dataset they belong to."""

    train: tuple[int, ...]
    validation: tuple[int, ...]
    test: tuple[int, ...]
    hash: str | None = None

    @staticmethod
    def draw(dataset: Dataset, shares: tuple[float, float, float], by: str | None = None, seed: int = 0) -> Split:
        """Draw a split at random; with `by`, samples with the same value of that parameter stay together."""
        labels = [*range(len(dataset))] if by is None else [dataset.parameter(by, i) for i in range(len(dataset))]
        if min(shares) < 0 or not 0 < sum(shares) <= 1 + 1e-9:
            raise ValueError(f"a split of {shares}: needed three shares from 0 to 1 that add up to at most 1, e.g. 0.8,0.1,0.1")
        train, validation, test = drawn_parts(labels, shares, seed)
        return Split._of(dataset, train, validation, test)

    @staticmethod
    def counted(dataset: Dataset, train: int | None, validation: int, test: int, order: list[int]) -> Split:
        """Split by numbers of samples, in an order; what is learned from comes first, the test samples last."""
        first = len(dataset) - validation - test if train is None else train
        if first + validation + test > len(dataset) or first < 1:
            raise ValueError(
                f"{first} samples to learn from, {validation} to validate and {test} to test; the dataset has {len(dataset)}"
            )
        ends = [*accumulate((len(dataset) - validation - test, validation, test))]
        return Split._of(dataset, order[: min(first, ends[0])], order[ends[0] : ends[1]], order[ends[1] :])

    @staticmethod
    def _of(dataset: Dataset, train: list[int], validation: list[int], test: list[int]) -> Split:
        if not train:
            raise ValueError(f"a split of {len(dataset)} samples leaves none to learn from")
        known = dataset.manifest.hash if dataset.manifest else None
        return Split(tuple(train), tuple(validation), tuple(test), known)

    def json(self) -> dict[str, Any]:
        return {"train": [*self.train], "validation": [*self.validation], "test": [*self.test], "hash": self.hash}

    @staticmethod
    def from_json(said: Mapping[str, Any]) -> Split:
        train, validation, test = (tuple(int(i) for i in said[name]) for name in ("train", "validation", "test"))
        return Split(train, validation, test, said["hash"])
