"""Features: names of the fields of a network, and how they are computed from the fields a user gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from gkn.data.dataset import GEOMETRY, Dataset
from gkn.data.groups import ranges_of
from gkn.data.sample import Sample
from gkn.data.source import inside
from gkn.data.stepping import Stepping
from gkn.data.transfer import transferred
from gkn.geometry.domain import Domain
from gkn.geometry.frame import Frame
from gkn.system.checks import as_real, check_finite

CONSTANT = 1e-9
"""Share of its size by which a field may vary that is given for a number: interpolation changes the last digits."""


@dataclass(frozen=True)
class Features:
    """Names of the fields of a network, and the frame in which it sees points.

    given        the fields a user has to give
    inputs       the inputs of the network, in its order
    outputs      its outputs
    smoothed     (field, width): this field smoothed by a Gaussian of that width, and its gradient, are among the inputs
    extended     fields whose values on the boundary, extended to all points, are among the inputs
    units        units of the fields, for display only
    geometry     features of the geometry are among the inputs
    groups       vectors and tensors, with the names of their components
    parameters   fields that are one number per sample
    frame        the frame, in which smoothing widths are given too; None: the identity
    stepping     the operator steps from a state to a later one; None: it does not
    """

    given: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    smoothed: tuple[tuple[str, float], ...] = ()
    units: Mapping[str, str] = field(default_factory=dict)
    geometry: bool = False
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    parameters: tuple[str, ...] = ()
    frame: Frame | None = None
    stepping: Stepping | None = None
    extended: tuple[str, ...] = ()

    @staticmethod
    def of(dataset: Dataset, units: Mapping[str, str] | None = None) -> Features:
        """Return the features of a dataset."""
        groups = {name: tuple(parts) for name, parts in dataset.groups.items() if {*parts} <= {*dataset.names}}
        unknown = [name for name in units or {} if name not in (*dataset.names, *groups)]
        if unknown:
            raise KeyError(f"a unit for {unknown[0]!r}, which is no field of this dataset; it has {', '.join(dataset.names)}")
        extended = tuple(name for name in dataset.extensions if inside(name) in dataset.inputs)
        sources = [name for name in (*(name for name, _ in dataset.smoothing), *extended) if name not in dataset.given]
        given = (*dataset.given, *dict.fromkeys(sources))
        more: dict[str, Any] = {"geometry": dataset.has_geometry, "groups": groups, "parameters": dataset.parameters}
        names = (given, dataset.inputs, dataset.outputs, tuple(dataset.smoothing), dict(units or {}))
        return Features(*names, **more, frame=dataset.frame, stepping=dataset.stepping, extended=extended)

    @property
    def output_fields(self) -> dict[str, tuple[int, int]]:
        """Output fields, vectors as a whole, with their columns (first, last + 1) among the outputs."""
        return ranges_of(self.outputs, self.groups)

    @property
    def given_fields(self) -> tuple[str, ...]:
        """Fields a user has to give, vectors as a whole."""
        return tuple(ranges_of(self.given, self.groups))

    def __call__(self, dataset: Dataset) -> Dataset:
        """Return the dataset with these fields and no others, in this order, with its points in the frame."""
        if dataset.in_time:
            raise ValueError(
                "these samples are trajectories: operator.evaluate(dataset) and operator.rollout(dataset.trajectory(0)) take "
                "them as they are, for single steps use dataset.pairs(operator.features.stepping)"
            )
        if self.frame is not None:
            dataset = dataset.framed(self.frame)
        if not dataset.smoothing:
            dataset = dataset.using(self.given, self.outputs)
            for name, width in self.smoothed:
                dataset = dataset.smoothed(width, name)
        elif tuple(dataset.smoothing) != self.smoothed:
            raise ValueError(
                f"this dataset is smoothed by {dataset.smoothing}, the operator was trained with {[*self.smoothed] or 'none'}: "
                f"give it the dataset as it was made"
            )
        for name in self.extended:
            if inside(name) not in dataset.names:
                dataset = self._extended(dataset, name)
        if self.geometry and not dataset.has_geometry:
            dataset = dataset.with_geometry()
        unknown = [name for name in self.inputs if name not in dataset.names and name.startswith(GEOMETRY)]
        if unknown:
            what = " and ".join(name.removeprefix(GEOMETRY) for name in unknown)
            raise ValueError(
                f"the operator was trained with the {what} of every point, which {dataset.domain_of(0).describe()} does not "
                f"have; give it a mesh, or a cloud with its boundary"
            )
        return dataset.using(self.inputs, self.outputs)

    def _extended(self, dataset: Dataset, name: str) -> Dataset:
        first = dataset.domain_of(0)
        if not first.boundary.any():
            raise ValueError(
                f"the operator was trained with {name} extended from the boundary, which {first.describe()} does not have; "
                "give it a mesh, or a cloud with its boundary"
            )
        return dataset.extended(name)

    def sample(self, domain: Domain, given: Mapping[str, Any], input_domain: Domain | None = None) -> Sample:
        """Return a sample with these fields, computed from fields (K,) or (K, c) and numbers. Its outputs are unknown: 0.

        input_domain   the points that the given fields are on, if they are not those of the domain
        """
        if input_domain is not None:
            moved = transferred({name: [values] for name, values in given.items()}, input_domain, domain)
            given = {name: values[0] for name, values in moved.items()}
        parts = self.components(given)
        missing = [name for name in self.given if name not in parts]
        if missing:
            have = ", ".join(given) or "none"
            wanted = next((key for key, names in self.groups.items() if missing[0] in names), missing[0])
            raise KeyError(f"the operator needs the field {wanted!r}; given are: {have}")
        rows = {name: parts[name][None] for name in self.given}
        for name, values in rows.items():
            if name in self.parameters and values.ndim > 1:  # given as a constant field
                low, high = (float(x) for x in values.detach().aminmax())
                if high - low > CONSTANT * max(abs(low), abs(high)):
                    raise ValueError(f"{name} is one number per sample, but the given field varies: {low:.10g} to {high:.10g}")
                rows[name] = values[:, 0]
        unknown = {name: torch.zeros(1, len(domain), dtype=torch.float64) for name in self.outputs}
        return self(Dataset.of(domain, {**rows, **unknown}, self.outputs, keep_gradients=True))[0]

    def given_of(self, a: Tensor) -> dict[str, Tensor]:
        """Return the columns of a (K, c) that a user gives, by name; none if it has other fields than the operator takes."""
        names = next((names for names in (self.inputs, self.given) if len(names) == a.shape[-1]), ())
        return {name: values for name, values in zip(names, a.T, strict=False) if name in self.given}

    def components(self, given: Mapping[str, Any]) -> dict[str, Tensor]:
        """Return the given fields with vectors (K, c) taken apart."""
        parts: dict[str, Tensor] = {}
        for name, values in given.items():
            array = as_real(values, name)
            if name in (*self.given_fields, *self.given):
                check_finite(array, name)
            if name not in self.groups:
                parts[name] = array
                continue
            names = self.groups[name]
            if array.ndim == 2 and array.numel() == len(names):
                array = array.reshape(-1)  # vectors at a few sensors, whose components are numbers
            if array.ndim < 1 or array.shape[-1] < len(names):
                raise ValueError(f"{name} of shape {tuple(array.shape)}; needed its {len(names)} components on the last axis")
            if bool(array[..., len(names) :].any()):
                raise ValueError(f"{name} of shape {tuple(array.shape)}; needed {len(names)} components, and the others 0")
            parts |= {part: array[..., j] for j, part in enumerate(names)}
        return parts

    def json(self) -> dict[str, Any]:
        names = {name: [*getattr(self, name)] for name in ("given", "inputs", "outputs")}
        entries: dict[str, Any] = {**names, "smoothed": [[*each] for each in self.smoothed], "units": dict(self.units)}
        if self.extended:
            entries["extended"] = [*self.extended]
        if self.geometry:
            entries["geometry"] = True
        if self.groups:
            entries["groups"] = {name: [*parts] for name, parts in self.groups.items()}
        if self.parameters:
            entries["parameters"] = [*self.parameters]
        if self.frame is not None:
            entries["frame"] = self.frame.json()
        if self.stepping is not None:
            entries["stepping"] = self.stepping.json()
        return entries

    @staticmethod
    def from_json(said: Mapping[str, Any]) -> Features:
        smoothed = tuple((str(name), float(width)) for name, width in said["smoothed"])
        given, inputs, outputs = (tuple(str(each) for each in said[name]) for name in ("given", "inputs", "outputs"))
        groups = {str(name): tuple(map(str, parts)) for name, parts in said.get("groups", {}).items()}
        frame = Frame.from_json(said["frame"]) if "frame" in said else None
        parameters = tuple(map(str, said.get("parameters", ())))
        geometry = bool(said.get("geometry", False))
        stepping = Stepping.from_json(said["stepping"]) if "stepping" in said else None
        extended = tuple(map(str, said.get("extended", ())))
        more: dict[str, Any] = {"groups": groups, "parameters": parameters, "frame": frame, "stepping": stepping}
        more["extended"] = extended
        return Features(given, inputs, outputs, smoothed, dict(said["units"]), geometry, **more)
