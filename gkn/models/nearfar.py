"""NearFar: a graph kernel in a small ball plus a global kernel of low rank.

The cost is linear in the number of points if balls have a fixed number of points.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn

from gkn.data.dataset import GEOMETRY, Dataset
from gkn.graph.graph import Graph
from gkn.graph.images import Images
from gkn.graph.moments import DEGREES
from gkn.models.model import Defaults, Model, Progress, check_periodic, check_radius, check_sizes, chosen_features
from gkn.models.suggest import (
    boundary_fields,
    epochs_for,
    periodic_axes,
    phases_of,
    radius_for,
    smoothing_for,
    wall_for,
    waves_for,
)
from gkn.models.wave_field import WaveField
from gkn.ops import Backend, autocast, full_precision, pick, rounded
from gkn.ops.balls import Balls, Neighbourhoods, ball_features, fits_chip, make_balls
from gkn.ops.dense import Linear
from gkn.ops.kernel import Kernel
from gkn.ops.points import EMPTY, by_function, compiled, gather, memberships_of, pointwise, shares_of, spread
from gkn.ops.split import Split
from gkn.ops.waves import Waves, wave_vectors

RMS_EPSILON = 1e-6
"""Epsilon of the RMS norm of attention queries and keys, which are normalised so that attention logits stay bounded."""


@dataclass(frozen=True, eq=False)
class State:
    """Values of the nodes that one block reads. The last state holds the final v, not normalised, and no far field.

    v       (K, width) norm(v) of the nodes, followed by that of points borrowed from other processes, or of images
    far     (functions, heads * slices, width) the slice outputs z_s of each function; None without a far field
    waves   (functions, 2 * waves, width) the coefficients of the periodic field; None without one
    """

    v: Tensor
    far: Tensor | None
    waves: Tensor | None = None


class NearFar(Model):
    """Blocks that add integrals and a point-wise network to the state v, with w = norm(v):

        v(x) <- v(x) + near(x) + far(x) + waves(x)
        v(x) <- v(x) + down(gelu(up(norm(v(x)))))

        near(x) = windowed mean over the ball |x - y| < radius of K(x, y) (w(y) - w(x)) + B w(y)
        far(x)  = sum over heads and slices s of p_s(x) z_s
        waves(x) = sum over wave vectors k of exp(2 pi i k x) R_k c_k

    Near field: the matrix kappa(x, y) = K(x, y) + B is a network of x, y and some of the fields a(x), a(y), with its own
    parameters in every block (`Kernel` in gkn/ops/kernel.py); B is the bias of its last layer. A windowed mean of f is
    integral of window f dy / integral of window dy, with window(x, y) = (1 - |x - y|^2 / radius^2)^2, or 0 if there is no node.

    Far field: p_s(x) is the membership of x in slice s. In every head, t_s is the mean of value(w) over the domain, weighted by
    p_s, and z_s is the result of attention among the t of that head (`FarField`). It is an integral operator of rank heads x
    slices at most, whose factors depend on v.

    Waves, on periodic axes only: c_k are the Fourier coefficients of w, and R_k are learned matrices (`WaveField`). It is a
    convolution with a smooth kernel, which may reach across the whole domain. On such axes the far field alone knows what there
    is, but not where, because networks see no coordinates there.

    Integrals and means are sums over nodes with quadrature weights, so a region counts by its area and not by its number of
    points. Without weights all nodes count the same. Query points contribute nothing to the sums. They read the states of the
    nodes, block by block (`at`).

        dim            dimension of the points
        in_channels    number of fields of a
        out_channels   number of fields of u
        width          number of components of v, which sets the size of the network
        blocks         number of blocks
        slices         number of slices of each head
        head           number of components of a head; there are width / head heads
        kernel         sizes of the hidden layers of kappa
        radius         radius of the balls, the r of the graph rule, in units of the longest side of the training domains
        features       indices of the fields of a that kappa sees; smooth fields work best; None: field 0 only
        near, far      use the near field, use the far field
        periodic       axes along which balls wrap around and kappa sees differences of coordinates only
        waves          length of the largest wave vector k, in waves per period; 0: no periodic field
        moments        degree of the polynomials, 0 to 2, that means over balls integrate exactly, whatever nodes there are:
                       more accurate on few or uneven points, and slower on a GPU (gkn/ops/corrected.py). 0: not corrected
        differences    K is applied to w(y) - w(x), which is exactly 0 for constant w; if False, to w(y), and near(x) is the
                       windowed mean of kappa(x, y) w(y)
        recompute      compute hidden features of edges again in the backward pass; None: if memory is short
        backend        implementation of the near field; None: the fastest one on this machine
    """

    settings = (
        *("width", "slices", "head", "radius", "near", "far", "differences", "kernel", "features", "blocks"),
        *("periodic", "waves", "moments"),
    )
    form = 3  # 2: SiLU in kappa, attention queries and keys normalised; 3: parameters renamed
    at_queries = True
    sizes: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "small": {"width": 32, "blocks": 3, "slices": 16, "head": 8, "kernel": (16, 8)},
        "medium": {"width": 64, "blocks": 5, "slices": 32, "head": 16, "kernel": (32, 8)},
        "large": {"width": 128, "blocks": 8, "slices": 64, "head": 16, "kernel": (32, 8)},
    }
    radius: float

    def __init__(
        self,
        dim: int,
        in_channels: int = 1,
        out_channels: int = 1,
        width: int = 128,
        *,
        blocks: int = 8,
        slices: int = 64,
        head: int = 16,
        kernel: Sequence[int] = (32, 8),
        radius: float = 0.05,
        features: Sequence[int] | None = None,
        near: bool = True,
        far: bool = True,
        periodic: Sequence[int] = (),
        waves: int = 0,
        moments: int = 0,
        differences: bool = True,
        recompute: bool | None = None,
        backend: Backend | None = None,
    ) -> None:
        super().__init__(dim, in_channels, out_channels)
        sizes = {"dim": dim, "out_channels": out_channels, "width": width, "blocks": blocks, "slices": slices, "head": head}
        check_sizes("NearFar", **sizes, in_channels=in_channels)
        if width % head:
            raise ValueError(f"NearFar(width={width}, head={head}): needed heads of equal size")
        check_radius("NearFar", radius)
        if not near and not far:
            raise ValueError("NearFar(near=False, far=False): needed at least one of the two")
        self.width, self.slices, self.head, self.kernel, self.radius = width, slices, head, tuple(kernel), float(radius)
        self.features = chosen_features("NearFar", features, in_channels)
        self.near, self.far, self.differences = near, far, differences
        self.periodic = check_periodic("NearFar", periodic, dim)
        if type(waves) is not int or waves < 0 or (waves and not self.periodic):
            raise ValueError(
                f"NearFar(waves={waves!r}, periodic={self.periodic}): needed an integer, 0 without a periodic axis"
            )
        if type(moments) is not int or moments not in DEGREES:
            raise ValueError(f"NearFar(moments={moments!r}): use 0, 1 or 2")
        self.waves, self.moments = waves, moments
        self.recompute, self.backend, self._compiled = recompute, backend, False
        self.vectors: Tensor  # small whole numbers, which every precision holds
        self.register_buffer("vectors", wave_vectors(dim, self.periodic, waves) if waves else None, persistent=False)
        self.P = Linear(dim + in_channels, 2 * width)
        self.lift = Linear(2 * width, width)
        self.layers = nn.ModuleList(Block(self) for _ in range(blocks))
        self.norm = nn.LayerNorm(width)
        self.Q = Linear(width, out_channels)

    @property
    def blocks(self) -> int:
        return len(self.layers)

    @classmethod
    def defaults(cls, dataset: Dataset, recipe: str | None = None) -> Defaults:
        """Suggest balls of about 80 points (20 on a line), smooth inputs of kappa, and Muon for a fixed number of steps.

        Inputs that are 0 but on the boundary get a copy that is extended to all points. Inputs with few distinct values, such
        as two-phase coefficients, get a smoothed copy as a further input. kappa sees the first such copy only, because sums
        over points resolve smooth functions only; and the distance to the boundary, if that is an input.
        """
        rough = phases_of(dataset)
        smoothing = {} if dataset.smoothing else {name: smoothing_for(dataset) for name in rough}
        names = [*dataset.inputs]
        for name in smoothing:
            names += [f"{name}_smooth", *(f"{name}_smooth_{axis}" for axis in "xyz"[: dataset.dim])]
        fields = [name for name in names if name not in dataset.parameters and not name.startswith(GEOMETRY)]
        smooth = [name for name in fields if name.endswith("_smooth")] or [name for name in fields if name not in rough]
        seen = [*(smooth or fields)[:1], *(name for name in names if name == f"{GEOMETRY}distance")]
        radius, nodes = radius_for(dataset)
        rule = {"kind": "Radius", "r": radius} if nodes is None else {"kind": "Nystrom", "r": radius, "m": nodes, "l": 1}
        settings: dict[str, Any] = {"radius": radius, "features": tuple(names.index(name) for name in seen)}
        if periodic_axes(dataset):
            settings |= {"periodic": periodic_axes(dataset), "waves": waves_for(dataset)}
        changes = {"epochs": epochs_for(dataset, 4), "zero": wall_for(dataset)}
        extended = [] if dataset.extensions else boundary_fields(dataset)
        return Defaults(settings, rule, "nearfar", changes, weighted=True, smoothing=smoothing, extended=extended)

    def forward(self, graph: Graph, x: Tensor, a: Tensor, weights: Tensor | None = None, split: Split | None = None) -> Tensor:
        """Return u on the nodes x: (K, dim), (K, in_channels) -> (K, out_channels), with quadrature weights (K,) or None.

        With a `split`, x are the local points of one function, and `graph` is that of the split.
        """
        for state in self._run_blocks(graph, x, a, weights, split):
            last = state  # earlier states are not kept
        return self.finish([last])

    def states(
        self, graph: Graph, x: Tensor, a: Tensor, weights: Tensor | None = None, progress: Progress | None = None
    ) -> list[State]:
        """Return the state of the nodes in every block, then a state with the final values."""
        states = []
        for done, state in enumerate(self._run_blocks(graph, x, a, weights, None)):
            states.append(state)
            if progress is not None and done:
                progress(done, self.blocks)
        return states

    def _run_blocks(self, graph: Graph, x: Tensor, a: Tensor, weights: Tensor | None, split: Split | None) -> Iterator[State]:
        x, a = self._ready(graph if split is None else None, x, a)
        images = graph.images
        borrowed = (0 if images is None else len(images)) if split is None else split.borrowed
        if graph.num_targets != len(x) or graph.num_sources != len(x) + borrowed:
            raise ValueError(f"NearFar: {graph} for {len(x)} points; needed as many targets as sources: one set of nodes")
        if weights is not None and weights.shape != (len(x),):
            raise ValueError(f"NearFar: weights of shape {tuple(weights.shape)} for {len(x)} points; needed ({len(x)},)")
        sources, source_weights = (x, a), weights
        if split is not None:
            source_weights = split.lend((x.new_ones(len(x)) if weights is None else weights)[:, None])[:, 0]
            sources = split.lend(x), split.lend(a)
        elif images is not None:
            sources, source_weights = (images.points(x), images.lend(a)), None if weights is None else images.lend(weights)
        balls = self._balls(graph, (x, a), sources, source_weights)
        share = shares_of(weights, x, graph.cuts, None if split is None else split.sum)
        waves = self._waves(graph, x)
        v, send = self._lifted(x, a), compiled(Block.send) if self._compiled else Block.send
        for block in self._blocks():
            state, p = send(block, v, share, graph.cuts, split, images)
            if block.waves is not None and waves is not None:
                state = replace(state, waves=block.waves(waves.coefficients(state.v[: len(v)], share, graph.cuts)))
            yield state
            v = block.receive(v, state.v[: len(v)], p, state, balls, waves, graph.cuts, self._compiled)
        yield State(v, None)

    def at(
        self,
        states: Sequence[State],
        graph: Graph,
        queries: tuple[Tensor, Tensor],
        nodes: tuple[Tensor, Tensor],
        weights: Tensor | None = None,
    ) -> Tensor:
        """Return u at query points (x, a) of one function, given the states of its nodes, which the queries do not change."""
        queries, nodes = self._ready(None, *queries), self._ready(graph, *nodes)
        self._check_queries(states, self.blocks + 1, graph, queries[0])
        if graph.images is not None:
            nodes = graph.images.points(nodes[0]), graph.images.lend(nodes[1])
            weights = None if weights is None else graph.images.lend(weights)
        balls, waves = self._balls(graph, queries, nodes, weights), self._waves(graph, queries[0])
        v = self._lifted(*queries)
        for block, state in zip(self._blocks(), states, strict=False):
            v = block.receive(v, block.norm(v), None, state, balls, waves, (0, len(v)))
        return self.project(v)

    def finish(self, states: Sequence[State]) -> Tensor:
        return self.project(states[-1].v)

    def project(self, v: Tensor) -> Tensor:
        """Return u = Q norm(v)."""
        with full_precision(v):
            u: Tensor = self.Q(self.norm(v))
        return u

    def _lifted(self, x: Tensor, a: Tensor) -> Tensor:
        """Return v = lift(gelu(P(x, a))) in full precision, because blocks add to it."""

        def lifted(x: Tensor, a: Tensor) -> Tensor:
            v: Tensor = self.lift(nn.functional.gelu(self.P(torch.cat([x, a], 1))))
            return v.to(x.dtype)

        return pointwise(lifted, self._located(x), a)

    def _balls(
        self, graph: Graph, targets: tuple[Tensor, Tensor], sources: tuple[Tensor, Tensor], weights: Tensor | None
    ) -> Balls | None:
        if not self.near:
            return None
        of_x, of_y = (ball_features(x, a, self.radius, self.features) for x, a in (targets, sources))
        where = Neighbourhoods(graph, of_x, of_y, self.dim, weights)
        return make_balls(where, self._kernel(), self.blocks, recompute=self.recompute, backend=self.backend)

    def _waves(self, graph: Graph, x: Tensor) -> Waves | None:
        if not self.waves:
            return None
        if graph.images is None:
            raise ValueError(f"NearFar(waves={self.waves}): {graph} has no periods; needed points of a periodic domain")
        periods = torch.where(torch.isfinite(graph.images.periods), graph.images.periods, 1.0)
        return Waves(x, 2 * math.pi * self.vectors.double() / periods)

    fills = True  # they have no share in means and are in no ball

    def recordable(self, fixed: bool, dtype: torch.dtype | None) -> bool:
        """True if a step can be replayed as a CUDA graph: no operation depends on the number of edges, or it never changes."""
        if self.moments or self.backend == "compiled":
            return False
        if fixed or not self.near:
            return True
        like, kernel = self.like, self._kernel()
        kind = dtype or like.dtype
        backend = pick(self.backend, like.device, kind, kernel.W.shape[1])
        features = like.new_empty(0, self.dim + len(self.features))
        return fits_chip(kernel, features, kind, backend)

    @contextmanager
    def compiling(self) -> Iterator[None]:
        """Compile the point-wise parts of blocks by torch.compile while this context is open."""
        self._compiled = True
        try:
            yield
        finally:
            self._compiled = False

    def _blocks(self) -> list[Block]:
        return cast(list[Block], [*self.layers])

    def _kernel(self) -> Kernel:
        near = self._blocks()[0].near
        assert near is not None
        return near.kappa


class Block(nn.Module):
    """One block: v <- v + near field + far field, then v <- network(v)."""

    def __init__(self, model: NearFar) -> None:
        super().__init__()
        width = model.width
        self.norm = nn.LayerNorm(width, elementwise_affine=False)  # the linear layers that follow absorb its affine part
        self.near = NearField(model) if model.near else None
        self.far = FarField(width, model.head, model.slices) if model.far else None
        vectors = len(wave_vectors(model.dim, model.periodic, model.waves)) if model.waves else 0
        self.waves = WaveField(width, model.head, vectors) if vectors else None
        self.network = Network(width)

    def send(
        self, v: Tensor, share: Tensor, cuts: Sequence[int], split: Split | None = None, images: Images | None = None
    ) -> tuple[State, Tensor | None]:
        """Return the state of nodes with values v, and their memberships p of slices, or None if p is too large to keep."""
        v = rounded(self.norm(v))
        lender = split or images
        lent = v if lender is None or self.near is None else lender.lend(v)
        if self.far is None:
            return State(lent, None), None
        z, p = self.far(v, share, cuts, split)
        return State(lent, z), p

    def receive(
        self,
        v: Tensor,
        normed: Tensor,
        p: Tensor | None,
        state: State,
        balls: Balls | None,
        waves: Waves | None,
        cuts: Sequence[int],
        compile: bool = False,
    ) -> Tensor:
        """Return the next values of points with values v, given the state of the nodes. `normed` is norm(v)."""
        near = None if balls is None or self.near is None else self.near(balls, state.v, normed)
        if waves is not None and state.waves is not None:
            far = waves.values(state.waves, cuts)
            near = far if near is None else near + far
        update = compiled(Block.update) if compile else Block.update
        return by_function(partial(update, self), v, near, state.far, p, cuts)

    def update(self, v: Tensor, near: Tensor | None, z: Tensor | None, p: Tensor | None, sizes: Sequence[int]) -> Tensor:
        """Return network(v + near field + sum_s p_s z_s). `sizes`: number of points of each function of the batch."""
        if z is not None and self.far is not None and p is None:
            p = self.far.memberships(rounded(self.norm(v)))
        if near is not None:
            v = v + near
        if z is not None and p is not None:
            v = v + spread(p, z, sizes)
        out: Tensor = self.network(v)
        return out


class NearField(nn.Module):
    """The windowed mean over a ball of K(x, y) (w(y) - w(x)) + B w(y), or without differences of kappa(x, y) w(y)."""

    def __init__(self, model: NearFar) -> None:
        super().__init__()
        self.differences = model.differences
        features, width = model.dim + len(model.features), model.width
        self.kappa = Kernel(features, model.kernel, width, width, smooth=True, relative=model.periodic)

    def forward(self, balls: Balls, sources: Tensor, targets: Tensor) -> Tensor:
        return balls(self.kappa, sources, targets if self.differences else None)


class FarField(nn.Module):
    """Means of value(w) over slices, followed by attention among the means. For each head:

        p_s(y) = softmax over s of slice(w(y))
        t_s    = sum_y share(y) p_s(y) value(w(y)) / sum_y share(y) p_s(y)
        z_s    = out(attention among the t of this head)

    share(y) is the quadrature weight of y over the measure of the domain. `value` and `out` are linear, so they are applied to
    the few slices and not at every point.
    """

    def __init__(self, width: int, head: int, slices: int) -> None:
        super().__init__()
        self.heads, self.head, self.slices = width // head, head, slices
        self.slice = Linear(width, self.heads * slices)
        self.value = Linear(width, width)
        self.query, self.key, self.answer = (Linear(head, head, bias=False) for _ in range(3))
        self.out = Linear(width, width)

    def forward(self, v: Tensor, share: Tensor, cuts: Sequence[int], split: Split | None) -> tuple[Tensor, Tensor | None]:
        """Return z (functions, heads * slices, width) and p (K, heads * slices), or None if p is too large to keep."""
        sums, mass, p = gather(self.memberships, v, share, cuts)
        return self.mixed(self.means(sums, mass, split)).to(v.dtype), p

    def memberships(self, v: Tensor) -> Tensor:
        """Return the memberships p (K, heads * slices). In every head those of a point add up to 1."""
        return memberships_of(self.slice(v), self.heads)

    def means(self, sums: Tensor, mass: Tensor, split: Split | None) -> Tensor:
        """Return t (functions, heads, slices, head), given sums of w (functions, heads * slices, width) and masses (..., 1)."""
        kind = torch.promote_types(mass.dtype, torch.float32)
        weight = self.value.weight.unflatten(0, (self.heads, self.head))  # (heads, head, width)
        sums, mass = (x.unflatten(1, (self.heads, self.slices)) for x in (sums, mass.to(kind)))
        values = torch.einsum("ghsw,hdw->ghsd", *autocast(sums, weight))
        if split is not None:
            both = split.sum(torch.cat([values.to(kind), mass], -1))
            values, mass = both[..., :-1], both[..., -1:]
        full = mass / (mass + EMPTY)  # 1, or 0 for empty slices
        t: Tensor = values / (mass + EMPTY) + full * self.value.bias.unflatten(0, (self.heads, 1, self.head))
        return t

    def mixed(self, t: Tensor) -> Tensor:
        """Return z (functions, heads * slices, width): the means after attention among the slices of each head."""
        query, key = (nn.functional.rms_norm(x, (self.head,), eps=RMS_EPSILON) for x in (self.query(t), self.key(t)))
        mixed = nn.functional.scaled_dot_product_attention(query, key, self.answer(t))
        weight = self.out.weight.unflatten(1, (self.heads, self.head))  # (width, heads, head)
        z = torch.einsum("ghsd,whd->ghsw", *autocast(mixed, weight)) + self.out.bias / self.heads  # memberships add up to 1
        return z.flatten(1, 2)


class Network(nn.Module):
    """The network v + down(gelu(up(norm(v)))) at every point."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.up, self.down = Linear(width, 2 * width), Linear(2 * width, width)

    def forward(self, v: Tensor) -> Tensor:
        out: Tensor = v + self.down(nn.functional.gelu(self.up(self.norm(v))))
        return out
