"""Suggestions for `Model.defaults`: numbers that follow from a dataset."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from gkn.data.dataset import GEOMETRY, Dataset
from gkn.data.normalizer import Normalizer
from gkn.data.source import inside
from gkn.geometry.domain import Domain
from gkn.graph.rules import usual_radius

WHOLE = 4096  # points of a sample, on average, up to which all of them are nodes of its graph
LARGEST = 4 * WHOLE  # points of the largest sample for which that holds
DRAWN = 2048  # nodes drawn from larger samples
STEPS = 6000  # of a training
WAVES = {1: 32, 2: 12, 3: 5}  # per period, by the number of periodic axes
POINTS_PER_WAVE = 4  # at least
SOME = 16  # domains whose spacing is measured; nodes can be drawn from all domains
MARKS = (GEOMETRY, "set:")  # beginnings of names of fields that are marks
FEW = 8  # values of a field that counts as one of phases


def phases_of(dataset: Dataset) -> list[str]:
    """Return the inputs with few values, such as two-phase coefficients. Such fields are best given smoothed as well.

    Marks of the boundary and of named sets of nodes do not count.
    """
    given = [name for name in dataset.inputs if not name.startswith(MARKS)]
    return [name for name in given if 1 < len(torch.unique(dataset.value(name, 0))) <= FEW]


def boundary_fields(dataset: Dataset) -> list[str]:
    """Return the inputs that are 0 at all points inside the domain, and not on its boundary: they are known there only.

    Parameters, states, marks of the boundary and of named sets of nodes, and fields with one value on all boundaries do not
    count. There are none if some sample has no boundary.
    """
    if not has_boundary(dataset):
        return []
    states = [] if dataset.stepping is None else dataset.inputs[: len(dataset.outputs) * dataset.stepping.history]
    apart = (*dataset.parameters, *states)
    names = [name for name in dataset.given if name not in apart and not name.startswith(MARKS)]
    seen: dict[str, list[Tensor]] = {name: [] for name in names if inside(name) not in dataset.names}
    for i in range(min(SOME, len(dataset))):
        edge = dataset.domain_of(i).boundary
        fields = {name: dataset.value(name, i) for name in seen}
        seen = {name: [*seen[name], *x[edge].aminmax()] for name, x in fields.items() if not x[~edge].any()}
    return [name for name, ends in seen.items() if len(torch.stack(ends).unique()) > 1]


def has_boundary(dataset: Dataset) -> bool:
    """True if the boundary of every sample is known."""
    return all(bool(domain.boundary.any()) for domain in dataset.domains())


def smoothing_for(dataset: Dataset) -> float:
    """Return the width of the Gaussian: 0.03 of the domain, but at least one distance between points."""
    domain = dataset[0].domain
    return max(0.03 * domain.scale, domain.spacing)


def radius_for(dataset: Dataset) -> tuple[float, int | None]:
    """Return the radius of balls of about 80 nodes, or 20 on a line, and how many nodes to draw from each sample; None: all."""
    sizes: list[int] = []
    domains: list[Domain] = []
    for domain in dataset.domains():
        sizes.append(len(domain))
        domains += [domain] if len(domains) < SOME else []
    nodes = None if sum(sizes) <= WHOLE * len(sizes) and max(sizes) <= LARGEST else min(DRAWN, *sizes)
    if nodes is not None and nodes < DRAWN // 4:
        warnings.warn(
            f"{nodes} nodes are drawn from every sample, as the smallest has no more points; the largest has {max(sizes)}: "
            "leave small samples out, or give a rule",
            stacklevel=2,
        )
    return max(usual_radius(domain, nodes) for domain in domains), nodes


def epochs_for(dataset: Dataset, batch: int) -> int:
    """Return the number of epochs of a training of about 6000 steps: between 20 and 400, or at least 1 for pairs of states."""
    steps = -(-len(dataset) // batch)
    return min(400, max(20 if dataset.stepping is None else 1, round(STEPS / steps)))


def wall_for(dataset: Dataset) -> str | None:
    """Return the kind of wall on which some output is 0: "box", or else "distance"; None if there is none.

    An output counts if it is 0 on the boundary of every sample.
    """
    for kind in ("box", "distance"):
        try:
            Normalizer.fit(dataset, dataset.outputs, zero=kind)
        except ValueError:  # not 0 there, or no boundary
            continue
        if _fills_box(dataset) if kind == "box" else has_boundary(dataset):
            return kind
    return None


def _fills_box(dataset: Dataset) -> bool:
    """True if the boundary points of every sample lie on its bounding box, and some do."""
    for domain in dataset.domains():
        low, high = domain.box
        edge = ((domain.points == low) | (domain.points == high)).any(1)
        if not edge.any() or not torch.equal(edge | domain.boundary, edge):
            return False
    return True


def periodic_axes(dataset: Dataset) -> tuple[int, ...]:
    """Return the axes along which the domains of a dataset are periodic."""
    periods = dataset[0].domain.periods
    return () if periods is None else tuple(torch.isfinite(periods).nonzero()[:, 0].tolist())


def waves_for(dataset: Dataset) -> int:
    """Return the length of the largest wave vector of a periodic domain, which its points must resolve."""
    domain, axes = dataset[0].domain, periodic_axes(dataset)
    assert domain.periods is not None
    per_wave = min(float(domain.periods[axis]) for axis in axes) / domain.spacing
    return max(1, min(WAVES[len(axes)], int(per_wave / POINTS_PER_WAVE)))
