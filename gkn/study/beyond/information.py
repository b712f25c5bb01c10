"""The error that no network can go below, because a coefficient on a coarse grid leaves open what lies between its nodes.

The coefficient is 12 where a Gaussian field z is positive and 3 elsewhere, so that its values at the nodes of a grid are the
signs of z there. Solutions of other fields with the same signs are drawn. The best prediction is their mean E[u | signs], whose
error is the distance of a solution from it.

Signs at nodes are linear inequalities for z. Under them z is drawn in two steps, both without an approximation:

    values at the nodes     by Hamiltonian Monte Carlo, whose trajectories are known in closed form: harmonic oscillations
                            between walls, on which they are reflected (Pakman and Paninski 2014)
    values between them     from the Gaussian field under the condition that it has these values at the nodes

The field that the coefficient was made of has these signs and is itself such a draw. A chain that starts there has its
stationary distribution from the beginning.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from gkn.data.problems import Darcy
from gkn.geometry.fields import GaussianField, Series, two_phase
from gkn.geometry.grid import Grid
from gkn.pde import solve_darcy
from gkn.study.beyond.tables import Scale
from gkn.study.work import Place, Progress, provenance
from gkn.system.files import canonical, make_folder, read_regular, write
from gkn.system.randomness import stream

Array = NDArray[np.float64]

FILE = "information.json"
SEED = 1
FUNCTIONS, DRAWS = 20, 20
LAGS = (1, 2, 4)
MOST = 10**7  # reflections of a trajectory


@dataclass(frozen=True, eq=False)
class Nodes:
    """A Gaussian field of cosines on [0,1]^2 at n x n nodes.

    At the nodes, frequency m of an axis has the same values as the frequencies 2 (n - 1) l + m and 2 (n - 1) l - m. These are
    one class, which is represented by the one from 0 to n - 1. Sums over classes are independent, so that

        z(x_ij) = sum over p, q < n of s_pq xi_pq cos(pi p i / (n - 1)) cos(pi q j / (n - 1)),   xi_pq ~ N(0, 1)

    Arrays over modes are (M, M), arrays over classes and nodes (n, n).
    """

    field: GaussianField
    size: int

    def __post_init__(self) -> None:
        field = self.field
        if (field.boundary, field.dim, field.lower, field.upper) != ("neumann", 2, 0.0, 1.0):
            raise ValueError(f"Nodes: {field}; needed a field of cosines on [0,1]^2")
        if self.size < 2:
            raise ValueError(f"Nodes(size={self.size}): needed at least 2 nodes a side")

    @cached_property
    def classes(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Class of each mode, by axis; the two broadcast to (M, M)."""
        rest = np.arange(self.field.modes) % (2 * (self.size - 1))
        of = np.minimum(rest, 2 * (self.size - 1) - rest)
        return of[:, None], of[None, :]

    @cached_property
    def norms(self) -> Array:
        """Largest value of each eigenfunction."""
        norm = np.where(np.arange(self.field.modes) > 0, math.sqrt(2), 1.0)
        return norm[:, None] * norm

    @cached_property
    def variances(self) -> Array:
        """Variance s_pq^2 of each class."""
        return self.summed((self.norms * self.field.deviations().numpy()) ** 2)

    @cached_property
    def deviations(self) -> Array:
        return np.sqrt(self.variances)

    @cached_property
    def shares(self) -> Array:
        """Share of each mode in the variance of its class; 0 if that is 0."""
        total = self.variances[self.classes]
        mode = (self.norms * self.field.deviations().numpy()) ** 2
        share: Array = np.divide(mode, total, out=np.zeros_like(mode), where=total > 0)
        return share

    @cached_property
    def cosines(self) -> Array:
        i = np.arange(self.size)
        return np.cos(math.pi * np.outer(i, i) / (self.size - 1))

    def summed(self, modes: Array) -> Array:
        """Return the sums over each class."""
        out = np.zeros((self.size, self.size))
        np.add.at(out, self.classes, modes)
        return out

    def values(self, xi: Array) -> Array:
        """Return z at the nodes."""
        return np.asarray(self.cosines @ (self.deviations * xi) @ self.cosines.T)

    def transposed(self, a: Array) -> Array:
        """Return the transpose of `values`, applied to an array over nodes."""
        return np.asarray(self.deviations * (self.cosines.T @ a @ self.cosines))

    def xi(self, coefficients: Array) -> Array:
        """Return xi of a function with these coefficients (M, M), as those of a `Series`; 0 for classes without variance."""
        sums = self.summed(coefficients * self.norms)
        xi: Array = np.divide(sums, self.deviations, out=np.zeros_like(sums), where=self.deviations > 0)
        return xi

    def function(self, xi: Array, rng: torch.Generator) -> Series:
        """Draw a function from the field under the condition that it has the values of xi at the nodes.

        To a draw without the condition, each class adds what it lacks, shared among its modes in proportion to their variances.
        """
        free = self.field.draw(1, rng).coefficients[0].numpy()
        lacking = (self.deviations * xi - self.summed(free * self.norms))[self.classes]
        return Series(self.field, torch.from_numpy(free + self.shares * lacking / self.norms)[None])

    @cached_property
    def _correlations(self) -> Array:
        """Sums of s_pq^2 cos(pi p k/(n - 1)) cos(pi q l/(n - 1)) for all k and l from -(n - 1) to 2 (n - 1)."""
        n = self.size
        angles = math.pi * np.outer(np.arange(1 - n, 2 * n - 1), np.arange(n)) / (n - 1)
        return np.asarray(np.cos(angles) @ self.variances @ np.cos(angles).T)

    def covariance(self, i: int, j: int) -> Array:
        """Return the covariance of z at node (i, j) with z at all nodes, by 2 cos a cos b = cos(a - b) + cos(a + b)."""
        n, table = self.size, self._correlations
        shifted = [table[r : r + n, c : c + n] for r in (n - 1 - i, n - 1 + i) for c in (n - 1 - j, n - 1 + j)]
        return np.asarray(sum(shifted) / 4)


def trajectory(nodes: Nodes, xi: Array, time: float, rng: torch.Generator) -> tuple[Array, int]:
    """Draw a velocity and follow the trajectory for a time. The signs at the nodes are kept. Also return the reflections.

    Between reflections xi(t) = xi cos t + velocity sin t. At a node k with z = 0 the part of the velocity along the gradient of
    z_k, the wall's normal, is reversed. Reflections are computed in the values at the nodes alone, and xi of the end is the
    free oscillation plus the kicks, each of which has oscillated since its own time.
    """
    velocity = torch.randn(xi.shape, dtype=torch.float64, generator=rng).numpy()
    start = nodes.values(xi)
    signs = np.where(start >= 0, 1.0, -1.0)
    z, speed = signs * start, signs * nodes.values(velocity)  # a node is at its wall where z is 0, and beyond where z < 0
    kicks, left, count = np.zeros_like(z), time, 0
    while (passed := _to_wall(z, speed))[0] < left:
        t, node = passed
        left, count = left - t, count + 1
        z, speed = z * math.cos(t) + speed * math.sin(t), speed * math.cos(t) - z * math.sin(t)
        column = nodes.covariance(*node)
        kick = -2 * speed[node] / column[node] * signs[node]
        speed += kick * signs * column
        kicks[node] += kick * math.sin(left)
        if count == MOST:
            raise RuntimeError(f"trajectory: more than {MOST} reflections; needed a shorter time than {time}")
    return xi * math.cos(time) + velocity * math.sin(time) + nodes.transposed(kicks), count


def _to_wall(z: Array, speed: Array) -> tuple[float, tuple[int, int]]:
    """Return the time until a node is at its wall, z cos t + speed sin t = 0 with t > 0, and the first such node.

    In the state after a reflection, rounding may leave z slightly negative; it counts as 0, so that outward speed passes on.
    """
    with np.errstate(over="ignore"):
        slope = speed / np.maximum(z, np.finfo(float).tiny)
    node = np.unravel_index(int(slope.argmin()), z.shape)
    return math.atan2(1.0, -float(slope[node])), (int(node[0]), int(node[1]))


def chain(nodes: Nodes, xi: Array, steps: tuple[float, ...], rng: torch.Generator) -> Iterator[tuple[Array, int]]:
    """Yield states and the number of reflections since the one before, without end. `steps`: times of the trajectories."""
    while True:
        count = 0
        for time in steps:
            xi, more = trajectory(nodes, xi, time, rng)
            count += more
        yield xi, count


# --- solutions -----------------------------------------------------------------------------------------------------------

CHAINS: dict[str, tuple[float, ...]] = {"one of pi/2": (math.pi / 2,), "four of 0.4": (0.4, 0.4, 0.4, 0.4)}
"""Trajectories between two draws. The results of both are to agree."""


@dataclass(frozen=True)
class Spread:
    """Relative distances of n solutions u that have the same coefficient at the known nodes.

    error         mean of |u - E u| / |u|, times sqrt(n / (n - 1)), because the mean E u is that of the same n
    apart         mean of |u - u'| / |u| of two of them
    truth         |u - E u| / |u| of the solution that the coefficient was taken from, times sqrt(n / (n + 1))
    correlation   of solutions that are 1, 2, 4 draws apart: sum of (u_i - E u).(u_j - E u) over that of |u_i - E u|^2
    reflections   mean number between two draws
    """

    error: float
    apart: float
    truth: float
    correlation: tuple[float, ...] = ()
    reflections: float = 0.0


def spread_of(u: Float[Tensor, "n K"], truth: Float[Tensor, " K"], reflections: float = 0.0) -> Spread:
    """Measure how far solutions lie apart."""
    n, mean, size = len(u), u.mean(0), u.norm(dim=1)
    off = u - mean
    error = (off.norm(dim=1) / size).mean() * math.sqrt(n / (n - 1))
    apart = (torch.cdist(u, u) / size).sum() / (n * (n - 1))
    far = (truth - mean).norm() / truth.norm() * math.sqrt(n / (n + 1))
    lags = [float((off[lag:] * off[:-lag]).sum(1).mean() / off.square().sum(1).mean()) for lag in LAGS if lag < n]
    return Spread(float(error), float(apart), float(far), tuple(lags), reflections)


def solved(functions: list[Series], problem: Darcy, stride: int) -> Float[Tensor, "n K"]:
    """Return the solutions of the problem for its coefficients of these fields, at the known nodes."""
    grid = Grid(problem.size)
    fields = torch.cat([function(grid) for function in functions])
    u = solve_darcy(grid, two_phase(fields, problem.low, problem.high), problem.f)
    return u[:, grid.stride(stride)]


def spreads(problem: Darcy, stride: int, sample: int, draws: int) -> dict[str, Spread]:
    """Measure the spread for one sample: by each chain, and if values of the field at the nodes are known instead of signs."""
    nodes = Nodes(problem.field(), (problem.size - 1) // stride + 1)
    own = problem.draw(SEED, range(sample, sample + 1), "cpu")
    start, truth = nodes.xi(own.coefficients[0].numpy()), solved([own], problem, stride)[0]
    out = {}
    for key, (name, steps) in enumerate(CHAINS.items()):
        rng = stream(SEED, sample, 1, key)
        states = chain(nodes, start, steps, rng)
        functions, counts = [], []
        for _ in range(draws):
            xi, count = next(states)
            functions.append(nodes.function(xi, rng))
            counts.append(count)
        out[name] = spread_of(solved(functions, problem, stride), truth, sum(counts) / draws)
    rng = stream(SEED, sample, 2)
    between = [nodes.function(start, rng) for _ in range(draws)]
    return {**out, "values at the nodes": spread_of(solved(between, problem, stride), truth)}


def measure(scale: Scale, place: Place, progress: Progress | None = None) -> None:
    """Measure what the coefficient at every fifth node leaves open, for functions of another seed, unless that was done."""
    if known(place.results, scale) is not None:
        return
    problem, stride, count = Darcy(size=scale.size), scale.strides[85], min(FUNCTIONS, scale.few)
    found: dict[str, list[Spread]] = {}
    for sample in range(count):
        for name, spread in spreads(problem, stride, sample, DRAWS).items():
            found.setdefault(name, []).append(spread)
        if progress is not None:
            latest = ", ".join(f"{name}: {rows[-1].error:.4f}" for name, rows in found.items())
            progress(sample + 1, count, f"what a on a coarse grid leaves open, function {sample}: {latest}")
    about = {"scale": scale.name, "size": problem.size, "known": (problem.size - 1) // stride + 1, "seed": SEED}
    rows = {name: _summary(each) for name, each in found.items()}
    make_folder(place.results)
    whole = {**about, "functions": count, "draws": DRAWS, "left open": rows, **provenance(place)}
    write(place.results / FILE, canonical(whole))


def _summary(spreads: list[Spread]) -> dict[str, Any]:
    """Return means over functions, the standard error and quantiles of `error`, and the rows of all functions."""
    errors = np.array([each.error for each in spreads])
    columns = {name: np.array([asdict(each)[name] for each in spreads]) for name in asdict(spreads[0])}
    means = {name: column.mean(0).tolist() for name, column in columns.items()}
    quantiles = {f"{share:g}": float(np.quantile(errors, share)) for share in (0.1, 0.5, 0.9)}
    deviation = float(errors.std(ddof=1) / math.sqrt(len(errors))) if len(errors) > 1 else None
    each = {name: columns[name].tolist() for name in ("error", "truth")}
    return {**means, "standard error": deviation, "quantiles": quantiles, "functions": each}


def known(folder: Path, scale: Scale) -> dict[str, Any] | None:
    """Return what was measured at a scale, or None."""
    path = folder / FILE
    if not path.exists():
        return None
    found: dict[str, Any] = json.loads(read_regular(path))
    return found if found["scale"] == scale.name else None
