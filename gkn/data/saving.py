"""Saving: a dataset in memory, or a view, is written to a folder shard by shard."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gkn.data import storage
from gkn.data.dataset import Dataset
from gkn.system.files import digest
from gkn.system.machine import versions

SHARD_BYTES = 2**26
WAIT = 60.0  # seconds that a save waits for that of another process


def origin_of(dataset: Dataset) -> Mapping[str, Any]:
    """Return where the data came from, for the manifest of a saved copy. A view is not what its problem alone gives."""
    known, stride = dataset.manifest, dataset.identity()["every"]
    if known is None:
        return {"name": "unnamed"}
    if stride == 1 and dataset.names == (*known.inputs, *known.outputs):
        return known.origin
    smoothed: dict[str, Any] = {"smoothed": dataset.smoothing[-1][1]} if dataset.smoothing else {}
    smoothed |= {"extended": dataset.extensions} if dataset.extensions else {}
    return {"name": "view", "every": stride, **smoothed, "of": known.origin, "hash": known.hash}


def save_dataset(dataset: Dataset, folder: Path, origin: Mapping[str, Any], force: bool) -> None:
    """Write the samples of a dataset; see `Dataset.save`."""
    if not len(dataset):
        raise ValueError("Dataset.save: this dataset has no samples")
    if dataset.stepping is not None:
        raise ValueError("Dataset.save: these are pairs of states; save the trajectories, and make pairs of them when read")
    if dataset.is_read_from(folder):
        raise ValueError(f"Dataset.save({str(folder)!r}): this dataset is read from there; save it to another folder")
    for name in dataset.names:
        kind = str(dataset.value(name, 0).dtype).removeprefix("torch.")
        if kind not in storage.TYPES:
            raise ValueError(f"field {name!r} has type {kind}; a dataset on disk holds {', '.join(storage.TYPES)}")
    files = tuple(dataset.file(i) for i in range(len(dataset)))
    domain = dataset.domain if dataset.one_domain else None
    header = storage.Manifest(
        n=len(dataset),
        inputs=dataset.inputs,
        outputs=dataset.outputs,
        domain=None,
        origin={**origin, "saved": digest(dataset.identity())},
        seed=dataset.manifest.seed if dataset.manifest else None,
        versions=versions(),
        groups={name: parts for name, parts in dataset.groups.items() if {*parts} <= {*dataset.names}},
        parameters=dataset.parameters,
        files=files if any(files) else (),
        evolving=dataset.outputs if dataset.in_time else (),
    )
    with storage.writing(folder, header, domain, force, WAIT) as manifest:
        listed = {shard.start for shard in manifest.shards}
        count = max(1, SHARD_BYTES // sum(dataset.value(name, 0).nbytes for name in dataset.names))
        for number, start in enumerate(range(0, len(dataset), count)):
            if start not in listed:
                part = range(start, min(start + count, len(dataset)))
                manifest = storage.listing(folder, manifest, _shard(dataset, folder, number, part))


def _shard(dataset: Dataset, folder: Path, number: int, part: range) -> storage.Prepared:
    """Write the samples of one shard to a temporary file."""
    fields: dict[str, Tensor | list[Tensor]] = {
        name: torch.tensor([dataset.parameter(name, i) for i in part], dtype=torch.float64)
        if name in dataset.parameters
        else [dataset.value(name, i) for i in part]
        for name in dataset.names
    }
    domains = None if dataset.one_domain else [dataset.domain_of(i) for i in part]
    times = {name: [dataset.times(i) for i in part] for name in dataset.outputs} if dataset.in_time else None
    return storage.prepare_shard(folder, number, part.start, fields, domains, times)
