"""Potential: one integral with a singular kernel, linear in the fields f (layer potentials, Newton potentials)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn

from gkn.data.dataset import GEOMETRY, Dataset
from gkn.data.normalizer import Normalizer
from gkn.graph.graph import Graph
from gkn.models.model import Defaults, Model, Progress, check_sizes, chosen_features
from gkn.models.suggest import epochs_for
from gkn.ops import full_precision
from gkn.ops.points import recomputed

PAIRS = 2**18
"""Pairs of points whose kernel is computed at a time. In training it is computed again in the backward pass."""
SPACING = 1 / (2 * math.pi)
"""Distance of a point to itself, in units of the spacing: the trapezoid rule then integrates log|x - y| to third order."""
FITTED, CUT = 32, 1e-10
"""Samples of a dataset to which A and C are fitted, and relative singular value below which a direction is left out."""
FIELDS = (GEOMETRY, "normal", "set:")
"""Beginnings of the names of fields that the kernel sees. u is linear in the others."""


Points = tuple[Tensor, Tensor]
"""Points (K, dim), and their fields a (K, in_channels)."""


class Potential(Model):
    """u(x) = C f(x) + integral of K(x, y) f(y) + L(x, y) f(x) dy

    The integral is not divided by the measure of the domain, so that the answer on two curves is the sum of both integrals.
    K and L are one network of z = x - y, of fields g(x) and g(y), and of the fundamental solution s of the Laplace equation
    and its gradient, which most kernels of this kind consist of:

        (K, L) = A [(1, z, s(z), grad s(z)) (x) (1, g(x), g(y))] + network(z, s(z), z / |z|, g(x), g(y))

    where A is a matrix, (x) the outer product, and s = |z| in one dimension, log|z| in two and -1/|z| in three. Near y = x,
    |z|^2 is replaced by |z|^2 + (h / (2 pi))^2, where h is the spacing of the points. L f(x) corrects what the quadrature of
    K f misses there. The cost is that of all pairs of points.

        linear    indices of the fields f
        kernel    sizes of the hidden layers of the network
        measured  dimension of the domain: 1 for curves, 2 for surfaces and areas, 3 for volumes
    """

    f_mean: Tensor
    f_std: Tensor
    u_mean: Tensor
    u_std: Tensor
    settings = ("linear", "kernel", "measured")
    at_queries = True

    def __init__(
        self,
        dim: int,
        in_channels: int = 1,
        out_channels: int = 1,
        linear: Sequence[int] = (0,),
        *,
        kernel: Sequence[int] = (64, 64),
        measured: int = 1,
    ) -> None:
        super().__init__(dim, in_channels, out_channels)
        check_sizes("Potential", measured=measured, **{f"kernel[{i}]": size for i, size in enumerate(kernel)})
        self.linear = chosen_features("Potential", linear, in_channels)
        if not self.linear or not kernel or measured > dim:
            raise ValueError(
                f"Potential(linear={self.linear}, kernel={tuple(kernel)}, measured={measured}): needed a field that u is "
                f"linear in, a hidden layer, and a domain of dimension at most {dim}"
            )
        self.kernel, self.measured = tuple(kernel), measured
        self.others = tuple(i for i in range(in_channels) if i not in self.linear)
        fields, entries = 2 * len(self.others), 2 * len(self.linear) * out_channels
        self.A = nn.Linear((2 * dim + 2) * (1 + fields), entries, bias=False)
        layers: list[nn.Module] = []
        for before, after in pairwise([2 * dim + 1 + fields, *kernel]):
            layers += [nn.Linear(before, after), nn.SiLU()]
        last = nn.Linear(kernel[-1], entries, bias=False)
        self.network = nn.Sequential(*layers, last)
        for each in (self.A, last):
            nn.init.zeros_(each.weight)
        self.C = nn.Linear(len(self.linear), out_channels, bias=False)
        for name, count in (("f", len(self.linear)), ("u", out_channels)):
            self.register_buffer(f"{name}_mean", torch.zeros(count))
            self.register_buffer(f"{name}_std", torch.ones(count))

    @classmethod
    def defaults(cls, dataset: Dataset, recipe: str | None = None) -> Defaults:
        """Suggest all points of a sample; the kernel sees normals, marks and what else describes the geometry."""
        names = [*dataset.inputs]
        seen = [name for name in names if name.startswith(FIELDS) or name in dataset.parameters]
        linear = tuple(i for i, name in enumerate(names) if name not in seen)
        domain = dataset[0].domain
        rule = {"kind": "Radius", "r": domain.scale}  # edges are not used: every point sees all points
        changes = {"epochs": epochs_for(dataset, 4), "gradient": 0.0, "optimizer": "adamw", "lr": 1e-3}
        return Defaults({"linear": linear, "measured": domain.measure_dim}, rule, "nearfar", changes, weighted=True)

    def prepare(self, datasets: Sequence[Dataset], inputs: Normalizer, outputs: Normalizer) -> None:
        """Fit A and C to some training samples by least squares; the network is trained to add what is missing.

        Means and deviations of f and u are kept, because u is linear in f itself and not in f minus its mean.
        """
        for name, normalizer, columns in (("f", inputs, [*self.linear]), ("u", outputs, slice(None))):
            for part in ("mean", "std"):
                values = getattr(normalizer, part)
                if values.ndim != 1:
                    raise ValueError("Potential: needed normalisers that are the same at all points; leave out pointwise")
                getattr(self, f"{name}_{part}").copy_(values[columns])
        rows, wanted = [], []
        for dataset in datasets:
            for i in range(min(len(dataset), FITTED)):
                sample = dataset[i]
                some = slice(None, None, -(-(len(sample.x) ** 2) // PAIRS))  # as many targets as there are pairs at a time
                x, a, u = sample.x.double(), inputs.encode(sample.a, sample.x), sample.u.double()
                size = float(u.norm()) or 1.0
                rows.append(self._columns((x[some], a[some]), (x, a), sample.weights.double()) / size)
                wanted.append(u[some] / size)
        solution = torch.linalg.lstsq(torch.cat(rows), torch.cat(wanted), rcond=CUT, driver="gelsd").solution.T
        count, fields = self.A.in_features, len(self.linear)
        parts = solution[:, : 2 * fields * count].unflatten(1, (2, fields, count))  # (out_channels, K or L, f, column)
        with torch.no_grad():
            self.A.weight.copy_(parts.movedim(0, 2).flatten(0, 2))
            self.C.weight.copy_(solution[:, 2 * fields * count :])

    def forward(self, graph: Graph, x: Tensor, a: Tensor, weights: Tensor | None = None) -> Tensor:
        x, a = self._ready(graph, x, a)
        self._check_one_set(graph)
        sizes = graph.sizes
        mass = self._masses(x, weights)
        parts = zip(x.split(sizes), a.split(sizes), mass.split(sizes), strict=True)
        return torch.cat([self._integral((x, a), (x, a), mass) for x, a, mass in parts])

    def states(
        self, graph: Graph, x: Tensor, a: Tensor, weights: Tensor | None = None, progress: Progress | None = None
    ) -> list[Tensor]:
        return [self.forward(graph, x, a, weights)]

    def at(
        self,
        states: Sequence[Tensor],
        graph: Graph,
        queries: tuple[Tensor, Tensor],
        nodes: tuple[Tensor, Tensor],
        weights: Tensor | None = None,
    ) -> Tensor:
        nodes = self._ready(graph, *nodes)
        return self._integral(self._ready(None, *queries), nodes, self._masses(nodes[0], weights))

    def _masses(self, x: Tensor, weights: Tensor | None) -> Tensor:
        if weights is None:
            raise ValueError("Potential: the integral needs quadrature weights; train it with weighted=True")
        return weights.to(x.dtype)

    def _integral(self, targets: Points, nodes: Points, mass: Tensor) -> Tensor:
        """Return u (T, out_channels) at the targets of one function, given its nodes and their quadrature weights."""
        f_x, f_y = (self._linear(a) for _, a in (targets, nodes))
        step = max(1, PAIRS // max(1, len(mass)))

        def part(x: Tensor, a: Tensor, f: Tensor) -> Tensor:
            pairs = self._pairs((x, a), nodes, mass)
            both = self.A(pairs.outer()) + self.network(pairs.bounded(self.dim))
            K, L = both.unflatten(-1, (2, len(self.linear), self.out_channels)).movedim(2, 0)
            return torch.einsum("tsfo,sf->to", K, f_y * mass[:, None]) + torch.einsum("tsfo,s,tf->to", L, mass, f)

        found, (x, a_x) = [], targets
        with full_precision(x):
            for i in range(0, len(x), step):
                found.append(recomputed(part, x[i : i + step], a_x[i : i + step], f_x[i : i + step]))
            u: Tensor = torch.cat(found) + self.C(f_x)
        return (u - self.u_mean) / self.u_std

    def _columns(self, targets: Points, nodes: Points, mass: Tensor) -> Tensor:
        """Return what each entry of A and C is multiplied by at the targets: (T, entries), for one output."""
        f_x, f_y = (self._linear(a) for _, a in (targets, nodes))
        outer = self._pairs(targets, nodes, mass).outer()
        K = torch.einsum("tsc,sf->tfc", outer, f_y * mass[:, None])
        L = torch.einsum("tsc,s,tf->tfc", outer, mass, f_x)
        return torch.cat([K.flatten(1), L.flatten(1), f_x], 1)

    def _linear(self, a: Tensor) -> Tensor:
        """Return the fields f in their own unit, given all fields normalised."""
        return a[:, [*self.linear]] * self.f_std.to(a) + self.f_mean.to(a)

    def _pairs(self, targets: Points, nodes: Points, mass: Tensor) -> Pairs:
        (x, a_x), (y, a_y) = targets, nodes
        g_x, g_y = (a[:, [*self.others]] for a in (a_x, a_y))
        z = x[:, None] - y
        spacing = SPACING * mass ** (1 / self.measured)
        rho = (z.square().sum(-1) + spacing.square()).sqrt()[..., None]
        s = {1: rho, 2: rho.log(), 3: -1 / rho}[self.dim]
        g = torch.cat([g_x[:, None].expand(-1, len(y), -1), g_y[None].expand(len(x), -1, -1)], -1)
        return Pairs(z, rho, s, g)


class Pairs(NamedTuple):
    """Features of pairs of targets and nodes (T, S, c): the difference, its length, the fundamental solution, the fields g."""

    z: Tensor
    rho: Tensor
    s: Tensor
    g: Tensor

    def outer(self) -> Tensor:
        """Return (1, z, s, grad s) (x) (1, g)."""
        ones = torch.ones_like(self.rho)
        gradient = self.z / self.rho ** self.z.shape[-1]
        left, right = torch.cat([ones, self.z, self.s, gradient], -1), torch.cat([ones, self.g], -1)
        return (left[..., None] * right[..., None, :]).flatten(-2)

    def bounded(self, dim: int) -> Tensor:
        """Return what the network sees, which is of order 1."""
        return torch.cat([self.z, self.rho.log() if dim == 3 else self.s, self.z / self.rho, self.g], -1)
