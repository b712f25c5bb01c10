"""Features: names of the fields of a network, and how they are computed from the fields a user gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from gkn.data.dataset import Dataset, Sample
from gkn.geometry.domain import Domain


@dataclass(frozen=True)
class Features:
    """Names of the fields of a network.

    given     the fields a user has to give
    inputs    the inputs of the network, in its order
    outputs   its outputs
    smoothed  (field, width): this field smoothed by a Gaussian of that width, and its gradient, are among the inputs
    units     units of the fields, for display only
    """

    given: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    smoothed: tuple[tuple[str, float], ...] = ()
    units: Mapping[str, str] = field(default_factory=dict)

    @staticmethod
    def of(dataset: Dataset, units: Mapping[str, str] | None = None) -> Features:
        """Return the features of a dataset."""
        unknown = [name for name in units or {} if name not in dataset.names]
        if unknown:
            raise KeyError(f"a unit for {unknown[0]!r}, which is no field of this dataset; it has {', '.join(dataset.names)}")
        sources = [name for name, _ in dataset.smoothing if name not in dataset.given]
        given = (*dataset.given, *sources)
        return Features(given, dataset.inputs, dataset.outputs, tuple(dataset.smoothing), dict(units or {}))

    def __call__(self, dataset: Dataset) -> Dataset:
        """Return the dataset with these fields and no others, in this order."""
        if not dataset.smoothing:
            dataset = dataset.using(self.given, self.outputs)
            for name, width in self.smoothed:
                dataset = dataset.smoothed(width, name)
        elif tuple(dataset.smoothing) != self.smoothed:
            raise ValueError(
                f"this dataset is smoothed by {dataset.smoothing}, the operator was trained with {[*self.smoothed] or 'none'}: "
                f"give it the dataset as it was made"
            )
        return dataset.using(self.inputs, self.outputs)

    def sample(self, domain: Domain, given: Mapping[str, Any]) -> Sample:
        """Return a sample with these fields, computed from fields (K,) on a domain. Its outputs are unknown: 0."""
        missing = [name for name in self.given if name not in given]
        if missing:
            have = ", ".join(given) or "none"
            raise KeyError(f"the operator needs the field {missing[0]!r}; given are: {have}")
        rows = {name: torch.as_tensor(given[name])[None] for name in self.given}
        unknown = {name: torch.zeros(1, len(domain), dtype=torch.float64) for name in self.outputs}
        return self(Dataset.of(domain, {**rows, **unknown}, self.outputs))[0]

    def json(self) -> dict[str, Any]:
        names = {name: [*getattr(self, name)] for name in ("given", "inputs", "outputs")}
        return {**names, "smoothed": [[*each] for each in self.smoothed], "units": dict(self.units)}

    @staticmethod
    def from_json(said: Mapping[str, Any]) -> Features:
        smoothed = tuple((str(name), float(width)) for name, width in said["smoothed"])
        given, inputs, outputs = (tuple(str(each) for each in said[name]) for name in ("given", "inputs", "outputs"))
        return Features(given, inputs, outputs, smoothed, dict(said["units"]))
