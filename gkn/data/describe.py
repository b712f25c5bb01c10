"""A description of a dataset in a few lines, for people."""

from __future__ import annotations

from collections.abc import Callable

import torch

from gkn.data.dataset import Dataset
from gkn.data.groups import ranges_of
from gkn.geometry.frame import Frame

MOST = 1000  # samples whose values are looked at


def description(dataset: Dataset) -> str:
    """Return lines about samples, points, the box around them, and the range of every field and parameter."""
    count = min(len(dataset), MOST)
    if not count:
        return "no samples"
    domains = [domain for domain, _ in zip(dataset.domains(), range(MOST), strict=False)]
    sizes = [len(domain) for domain in domains]
    points = f"{sizes[0]}" if min(sizes) == max(sizes) else f"{min(sizes)} to {max(sizes)}"
    kind = "one domain for all" if dataset.one_domain else "a domain per sample"
    frame = Frame.of(domains)
    high = torch.stack([domain.box[1] for domain in domains]).amax(0)
    sides = ", ".join(f"{axis} {a:.4g} to {b:.4g}" for axis, a, b in zip("xyz", frame.shift, high.tolist(), strict=False))
    lines = [
        f"{'trajectories' if dataset.in_time else 'samples'}: {len(dataset)}"
        + ("" if count == len(dataset) else f" (ranges are those of the first {count})"),
        f"points: {points} in {domains[0].dim} dimensions, {kind} ({domains[0].kind})",
        f"box: {sides}",
    ]
    if dataset.in_time:
        times = [dataset.times(i) for i in range(count)]
        counts, ends = [len(each) for each in times], (min(float(t[0]) for t in times), max(float(t[-1]) for t in times))
        many = f"{counts[0]}" if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"
        lines.append(f"times: {many}, {ends[0]:.4g} to {ends[1]:.4g}")
    for role, names in (("input", dataset.inputs), ("output", dataset.outputs)):
        fields = ranges_of(names, dataset.groups)
        if not fields:
            lines.append(f"{role}: none, only the {'initial state and the ' * dataset.in_time}geometry")
        for name, (start, stop) in fields.items():
            word = "parameter" if name in dataset.parameters else role
            parts = f", {stop - start} components" if stop - start > 1 else ""
            least = min(_extreme(dataset, part, count, torch.amin) for part in names[start:stop])
            most = max(_extreme(dataset, part, count, torch.amax) for part in names[start:stop])
            lines.append(f"{word} {name}: {least:.4g} to {most:.4g}{parts}")
    return "\n".join(lines)


def _extreme(dataset: Dataset, name: str, count: int, which: Callable[[torch.Tensor], torch.Tensor]) -> float:
    return float(which(torch.stack([which(dataset.value(name, i).double()) for i in range(count)])))
