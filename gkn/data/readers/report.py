"""A report of what was read, for people."""

from __future__ import annotations

from collections import Counter

import torch

from gkn.data.readers.format import Content, Field


def describe(content: Content) -> list[str]:
    """Return lines about the samples, points, cells, fields and parameters, and about what was moved or dropped."""
    domains = content.domain if isinstance(content.domain, list) else [content.domain]
    counts = [len(domain) for domain in domains]
    points = f"{counts[0]}" if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"
    kind = "one domain for all" if len(domains) == 1 else "a domain per sample"
    count = (
        f"trajectories: {len({*content.series})}, with {len(content)} states" if content.series else f"samples: {len(content)}"
    )
    lines = [count, f"points: {points} in {domains[0].dim} dimensions, {kind} ({domains[0].kind})"]
    cells: Counter[str] = Counter()
    for domain in domains:
        cells.update({name: count for name, count in domain.cell_counts().items() if name != "vertex"})
    if cells:
        lines.append(f"cells: {', '.join(f'{count} {name}' for name, count in cells.items())}")
    low = torch.stack([domain.box[0] for domain in domains]).amin(0).tolist()
    high = torch.stack([domain.box[1] for domain in domains]).amax(0).tolist()
    box = ", ".join(f"{axis} {a:.4g} to {b:.4g}" for axis, a, b in zip("xyz", low, high, strict=False))
    lines.append(f"bounding box: {box}")
    lines += [f"field {name}: {_extent(values)}" for name, values in content.fields.items()]
    if content.input_domain is not None:
        where = f"at {len(content.input_domain)} other points"
        lines += [f"field {name}: {_extent(values)}, {where}" for name, values in content.input_fields.items()]
    lines += [f"parameter {name}: {_extent(values)}" for name, values in content.parameters.items()]
    lines += [f"note: {note}" for note in content.notes]
    if content.missing:
        lines.append(f"note: left out, because some files lack them: {', '.join(content.missing)}")
    return lines


def _extent(values: Field) -> str:
    """Return the range of a field, of the length of its vectors if it has components."""
    row = values[0]
    low = min(float(each.min()) for each in values)
    high = max(float(each.max()) for each in values)
    parts = f"{row.shape[-1]} components, " if row.ndim == 2 else ""
    return f"{parts}{low:.4g} to {high:.4g}" if low != high else f"{parts}{low:.4g} everywhere"
