"""Is a dataset what it says it is? Hashes, finite values, ranges, boundary values, the PDE itself, no sample twice."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from gkn.dataset import Dataset
from gkn.domain import Cloud, Domain
from gkn.durable import CorruptFile
from gkn.pde import darcy_residual
from gkn.storage import Manifest, Reader

Pde = Literal["darcy", "poisson"]
_CHUNK = 16  # samples looked at together
# Relative residuals that rounding explains, for solutions stored in each type.
_RESIDUAL = {torch.float64: 1e-8, torch.float32: 1e-3}


@dataclass(frozen=True)
class Finding:
    """One line of the report. `ok` is None where there was nothing to check, with the reason as its text."""

    what: str
    ok: bool | None
    text: str


def check_dataset(
    path: str | os.PathLike[str],
    *,
    pde: Pde | None = None,
    device: str = "cpu",
    progress: Callable[[int, int], None] | None = None,
) -> list[Finding]:
    """Check everything that can be checked; `pde` says which equation imported data should satisfy (with f = 1 for darcy)."""
    folder = Path(path)
    manifest = Manifest.read(folder)
    reader = Reader(folder, partial=True)
    complete = Finding("complete", manifest.complete, f"{reader.n} of {manifest.n} samples")
    broken = []
    for shard in manifest.shards:
        try:
            reader.verify(shard)
        except CorruptFile as error:
            broken.append(str(error))
    hashes = Finding("hashes", not broken, "; ".join(broken) or f"{len(manifest.shards)} shards are as they were written")
    if broken or not reader.n:
        return [complete, hashes]
    dataset = Dataset.open(folder, partial=True)
    named = {"darcy": "darcy", "darcy-mesh": "darcy"} | {
        f"poisson-{where}": "poisson" for where in ("interval", "square", "disk")
    }
    equation = pde or named.get(manifest.recipe.get("name", ""))
    return [complete, hashes, *_contents(dataset, manifest, equation, device, progress)]


def _contents(
    dataset: Dataset, manifest: Manifest, pde: str | None, device: str, progress: Callable[[int, int], None] | None
) -> list[Finding]:
    low, high = manifest.recipe.get("low"), manifest.recipe.get("high")
    not_finite: list[str] = []
    extremes = {name: [torch.inf, -torch.inf] for name in dataset.names}
    edge, largest = 0.0, 0.0
    seen: dict[bytes, int] = {}
    twice: list[tuple[int, int]] = []
    residuals: list[Tensor] = []
    precision = dataset.value("u", 0).dtype if "u" in dataset.names else torch.float64
    for start in range(0, len(dataset), _CHUNK):
        part = range(start, min(start + _CHUNK, len(dataset)))
        batches = [part] if dataset.one_domain else [range(i, i + 1) for i in part]
        for batch in batches:
            domain = dataset.domain if dataset.one_domain else dataset[batch[0]].domain
            values = _read(dataset, batch)
            for name, rows in values.items():
                not_finite += [f"{name} of sample {batch[k]}" for k in (~torch.isfinite(rows)).any(1).nonzero()[:, 0].tolist()]
                extremes[name] = [min(extremes[name][0], float(rows.min())), max(extremes[name][1], float(rows.max()))]
            for k, i in enumerate(batch):
                key = hashlib.sha256(b"".join(values[name][k].numpy().tobytes() for name in dataset.inputs)).digest()
                if key in seen:
                    twice.append((seen[key], i))
                seen.setdefault(key, i)
            if "u" in values:
                u = values["u"]
                largest = max(largest, float(u.abs().max()))
                if domain.boundary.any():
                    edge = max(edge, float(u[:, domain.boundary].abs().max()))
                if pde and not not_finite and not isinstance(domain, Cloud):
                    residuals.append(_residual(domain, values, pde, manifest.recipe.get("f", 1.0), device))
        if progress:
            progress(part.stop, len(dataset))

    finite = Finding("finite", not not_finite, _some(not_finite) or f"every value of {', '.join(dataset.names)}")
    findings = [finite]
    if "a" in extremes:
        smallest, most = extremes["a"]
        bounds = (float(low), float(high)) if low is not None and high is not None else None
        inside = smallest > 0 and (bounds is None or (bounds[0] <= smallest and most <= bounds[1]))
        wanted = "> 0" if bounds is None else f"in [{bounds[0]:g}, {bounds[1]:g}]"
        findings.append(Finding("range", inside, f"a is in [{smallest:g}, {most:g}], needed {wanted}"))
    if not pde:
        findings.append(Finding("boundary", None, "imported data; name the equation with --pde to check it"))
        findings.append(Finding("residual", None, "imported data; name the equation with --pde to check it"))
    else:
        findings.append(Finding("boundary", edge == 0, f"largest |u| on the boundary {edge:g}, inside {largest:g}"))
        findings.append(_judge(residuals, precision))
    text = _some([f"samples {i} and {j}" for i, j in twice])
    findings.append(Finding("distinct", not twice, text or f"{len(dataset)} samples, no two with the same input"))
    return findings


def _read(dataset: Dataset, batch: range) -> dict[str, Tensor]:
    if dataset.one_domain:
        part = dataset.take([*batch])
        return {name: part.field(name) for name in dataset.names}
    return {name: dataset.value(name, batch[0])[None] for name in dataset.names}


def _residual(domain: Domain, values: dict[str, Tensor], pde: str, f: float, device: str) -> Tensor:
    u = values["u"].double().to(device)
    if pde == "poisson":
        return darcy_residual(domain, 1.0, u, values["f"].double().to(device)).cpu()
    return darcy_residual(domain, values["a"].double().to(device), u, f).cpu()


def _judge(residuals: list[Tensor], precision: torch.dtype) -> Finding:
    if not residuals:
        return Finding("residual", None, "not computed: it needs finite values on a grid or a mesh")
    each = torch.cat([residual.reshape(-1) for residual in residuals])
    worst, limit = int(each.argmax()), _RESIDUAL.get(precision, 1e-3)
    text = (
        f"relative residual at most {float(each.max()):.1e} (sample {worst}), median {float(each.median()):.1e}, "
        f"needed {limit:.0e}"
    )
    return Finding("residual", bool(each.max() <= limit), text)


def _some(items: list[str], most: int = 5) -> str:
    return ", ".join(items[:most]) + (f" and {len(items) - most} more" if len(items) > most else "")
