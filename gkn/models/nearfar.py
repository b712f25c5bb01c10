"""NearFar: a graph kernel in a small ball, and a kernel of low rank for everything else. Time and memory as the points."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from gkn.graph.graph import Graph
from gkn.models.inputs import check_radius, check_sizes, features_chosen, ready, settings_of
from gkn.ops import Backend, autocast, pick
from gkn.ops.balls import Balls, on_chip
from gkn.ops.balls import features as features_of
from gkn.ops.kernel import Kernel
from gkn.ops.split import Split

CHUNK = 2**18
"""Points at a time where there are more: (K, heads * slices) numbers are many, and are then made again for the derivative."""
EMPTY = 1e-9
"""Of a slice that hardly any point belongs to: its mean is 0 then, and so is its derivative. Of all slices the sum is 1."""

FLAT = 1e-6
"""Mean square of a query or key that is nothing. Of all others it is made 1, so that no step of a training, however long, can
make slices deaf to all but one of the others."""
FORM = 2
"""Of what is computed: numbers of another form, in arrays of the same shapes, would be another function. 2: SiLU, and queries
and keys of one size."""


@dataclass(frozen=True, eq=False)
class State:
    """What the nodes have for whoever asks in a block: their values, and what the slices of each function have exchanged."""

    v: Tensor  # (K, width), and of borrowed ones
    far: Tensor | None  # (functions, heads * slices, width)


class NearFar(nn.Module):
    """Blocks of two integrals and a network at every point, each added to what was there:

        v <- v + integral over a ball of kappa(x, y) v(y) dy + sum_s p_s(x, v) z_s
        v <- v + network(v)

    The first is the paper's integral with a kernel of its own in every block and a window that is 0 at the radius, divided by
    the integral of the window. In the second, z_s = mean of values of v over the domain weighted by p_s(y, v), after the z
    have exchanged what they know among each other: a kernel of rank `slices` whose factors depend on the state. Sums over y
    are quadratures, so that denser points do not count more, and points that ask do not count at all.

        dim            of the points
        in_channels    fields of a
        out_channels   fields of u
        width          the dial for its size: components of v
        blocks         how many
        slices         s, of each head
        head           components of a head; width / head of them
        kernel         sizes of the hidden layers of kappa
        radius         of the balls, a length: that of the rule the graphs are made by
        features       which fields of a enter kappa: smooth ones, where there are; None: the first
        near, far      whether there is the one, and the other
        differences    all of kappa but its constant meets v(y) - v(x), and not v(y): of a v that does not change nothing has to
                       be cancelled, which points in disorder would do badly
        recompute, backend   as of `GKN`

    While `compiled` is set, what is done at points is done by kernels that torch.compile makes for their number.
    """

    compiled = False

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
        differences: bool = True,
        recompute: bool | None = None,
        backend: Backend | None = None,
    ) -> None:
        super().__init__()
        sizes = {"dim": dim, "out_channels": out_channels, "width": width, "blocks": blocks, "slices": slices, "head": head}
        check_sizes("NearFar", sizes, in_channels)
        if width % head:
            raise ValueError(f"NearFar(width={width}, head={head}): needed heads of equal size")
        check_radius("NearFar", radius)
        if not near and not far:
            raise ValueError("NearFar(near=False, far=False): needed at least one of the two")
        chosen = features_chosen("NearFar", features, in_channels)
        self.dim, self.in_channels, self.out_channels, self.width = dim, in_channels, out_channels, width
        self.slices, self.head, self.kernel, self.radius = slices, head, tuple(kernel), float(radius)
        self.features, self.near, self.far, self.differences = chosen, near, far, differences
        self.recompute, self.backend = recompute, backend
        self.P = nn.Linear(dim + in_channels, 2 * width)
        self.lift = nn.Linear(2 * width, width)
        self.blocks = nn.ModuleList(_Block(self) for _ in range(blocks))
        self.norm = nn.LayerNorm(width)
        self.Q = nn.Linear(width, out_channels)

    def config(self) -> dict[str, Any]:
        """What, beside its parameters, it takes to make this network again: plain numbers and names."""
        if type(self) is not NearFar:
            raise ValueError(f"NearFar.config: a {type(self).__name__} is code of yours, which is not saved")
        names = ("dim", "in_channels", "out_channels", "width", "slices", "head", "radius", "near", "far", "differences")
        lists = {"kernel": [*self.kernel], "features": [*self.features]}
        return {
            "kind": "NearFar",
            "form": FORM,
            **{name: getattr(self, name) for name in names},
            **lists,
            "blocks": len(self.blocks),
        }

    @staticmethod
    def of(config: dict[str, Any]) -> NearFar:
        """The network that `config` describes, with the weights it is born with."""
        names = {"dim", "in_channels", "out_channels", "width", "slices", "head", "radius", "near", "far", "differences"}
        return NearFar(**settings_of("NearFar", FORM, config, names | {"kernel", "features", "blocks"}))

    def forward(self, graph: Graph, x: Tensor, a: Tensor, weights: Tensor | None = None, split: Split | None = None) -> Tensor:
        """u on the points x: (K, d), (K, in_channels) -> (K, out_channels), with quadrature weights (K,) or all alike.

        With a `split`, x are this process's points of one function, and `graph` is the split's.
        """
        for state in self._march(graph, x, a, weights, split):
            last = state  # those before it are not kept
        return self.finish([last])

    def states(
        self,
        graph: Graph,
        x: Tensor,
        a: Tensor,
        weights: Tensor | None = None,
        progress: Callable[[int, int], None] | None = None,
        split: Split | None = None,
    ) -> list[State]:
        """Of every block, and what comes out in the end. The functions of a batch lie between the cuts of its graph."""
        found = []
        for done, state in enumerate(self._march(graph, x, a, weights, split)):
            found.append(state)
            if progress is not None and done:
                progress(done, len(self.blocks))
        return found

    def _march(self, graph: Graph, x: Tensor, a: Tensor, weights: Tensor | None, split: Split | None) -> Iterator[State]:
        x, a = self._ready(graph if split is None else None, x, a)
        borrowed = 0 if split is None else split.borrowed
        if graph.num_targets != len(x) or graph.num_sources != len(x) + borrowed:
            raise ValueError(f"NearFar: {graph} for {len(x)} points; needed as many targets as sources: one set of nodes")
        if weights is not None and weights.shape != (len(x),):
            raise ValueError(f"NearFar: weights of shape {tuple(weights.shape)} for {len(x)} points; needed ({len(x)},)")
        sources, of_sources = (x, a), weights
        if split is not None:
            of_sources = split.lend((x.new_ones(len(x)) if weights is None else weights)[:, None])[:, 0]
            sources = split.lend(x), split.lend(a)
        near, share = self._near(graph, (x, a), sources, of_sources), _shares(weights, x, graph.cuts, split)
        v, send = self._lifted(x, a), _compiled(_Block.send) if self.compiled else _Block.send
        for block in self.blocks:
            assert isinstance(block, _Block)
            state, p = send(block, v, share, graph.cuts, split)
            yield state
            v = block.receive(v, state.v[: len(v)], p, state, near, graph.cuts, self.compiled)
        yield State(v, None)

    def at(
        self,
        states: Sequence[State],
        graph: Graph,
        queries: tuple[Tensor, Tensor],
        nodes: tuple[Tensor, Tensor],
        weights: Tensor | None = None,
    ) -> Tensor:
        """u at queries (x, a), which receive from the nodes (x, a) and never send. `graph`: queries <- nodes."""
        queries, nodes = self._ready(None, *queries), self._ready(graph, *nodes)
        if len(states) <= len(self.blocks):
            raise ValueError(f"NearFar.at: {len(states)} states for {len(self.blocks)} blocks; needed those of NearFar.states")
        if graph.num_targets != len(queries[0]):
            raise ValueError(f"NearFar.at: {graph} for {len(queries[0])} queries; needed a target for each")
        near = self._near(graph, queries, nodes, weights)
        v = self._lifted(*queries)
        for block, state in zip(self.blocks, states, strict=False):
            assert isinstance(block, _Block)
            v = block.receive(v, block.norm(v), None, state, near, (0, len(v)))
        return self.project(v)

    def finish(self, states: Sequence[State]) -> Tensor:
        """u on the nodes, of all their states."""
        return self.project(states[-1].v)

    def project(self, v: Tensor) -> Tensor:
        with torch.autocast(v.device.type, enabled=False):
            out: Tensor = self.Q(self.norm(v))
        return out

    def on_chip(self, rounded: torch.dtype | None = None) -> bool:
        """Whether its passes, with numbers of its own type or rounded to another, never ask how many edges there are."""
        if not self.near:
            return True
        like, own = self.blocks[0].kappa, self.P.weight
        assert isinstance(like, Kernel)
        dtype = rounded or own.dtype
        backend = pick(self.backend, own.device, dtype, like.W.shape[1])
        return own.dtype == torch.float32 and on_chip(like, self.dim + len(self.features), dtype, backend)

    def _lifted(self, x: Tensor, a: Tensor) -> Tensor:
        def lifted(x: Tensor, a: Tensor) -> Tensor:
            out: Tensor = self.lift(nn.functional.gelu(self.P(torch.cat([x, a], 1))))
            return out.to(x.dtype)  # what blocks add to is not rounded by autocast

        if len(x) <= CHUNK:
            return lifted(x, a)
        return torch.cat([_again(lifted, x[i:j], a[i:j]) for i, j in _chunks(0, len(x))])

    def _near(
        self, graph: Graph, targets: tuple[Tensor, Tensor], sources: tuple[Tensor, Tensor], weights: Tensor | None
    ) -> Balls | None:
        if not self.near:
            return None
        of_x, of_y = (features_of(x, a, self.radius, self.features) for x, a in (targets, sources))
        like, many = self.blocks[0].kappa, len(self.blocks)
        assert isinstance(like, Kernel)
        return Balls(graph, of_x, of_y, self.dim, weights, like, many, recompute=self.recompute, backend=self.backend)

    def _ready(self, graph: Graph | None, x: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
        return ready("NearFar", self.P.weight, self.dim, self.in_channels, graph, x, a)


def _shares(weights: Tensor | None, x: Tensor, cuts: Sequence[int], split: Split | None) -> Tensor:
    """(K,): of each point in the measure of its function; they add up to 1."""
    kind = torch.promote_types(x.dtype, torch.float32)
    weights = torch.ones(len(x), dtype=kind, device=x.device) if weights is None else weights.to(kind)
    if split is not None:
        return weights / split.sum(weights.sum())
    tiny = torch.finfo(kind).tiny
    return torch.cat([part / part.sum().clamp_min(tiny) for part in weights.split([b - a for a, b in pairwise(cuts)])])


@cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Once for all blocks, which differ in nothing but their numbers."""
    return torch.compile(function, dynamic=False)


def _chunks(start: int, stop: int) -> list[tuple[int, int]]:
    return [(i, min(i + CHUNK, stop)) for i in range(start, stop, CHUNK)]


def _again(function: Callable[..., Any], *given: Any) -> Any:
    """What a function gives; what it takes for its derivative is not kept, but worked out again."""
    if not torch.is_grad_enabled():
        return function(*given)
    return checkpoint(function, *given, use_reentrant=False, preserve_rng_state=False)


def _gathered(p: Tensor, v: Tensor, sizes: list[int]) -> Tensor:
    """p^T v for every function of a batch: (K, a), (K, b) -> (functions, a, b). Together where they have as many points."""
    if len({*sizes}) == 1:
        return torch.bmm(p.unflatten(0, (len(sizes), -1)).mT, v.unflatten(0, (len(sizes), -1)))
    return torch.stack([some.T @ other for some, other in zip(p.split(sizes), v.split(sizes), strict=True)])


def _spread(p: Tensor, far: Tensor, sizes: list[int]) -> Tensor:
    """p far for every function of a batch: (K, a), (functions, a, b) -> (K, b)."""
    if len({*sizes}) == 1:
        return torch.bmm(p.unflatten(0, (len(sizes), -1)), far).flatten(0, 1)
    return torch.cat([some @ other for some, other in zip(p.split(sizes), far, strict=True)])


class _Block(nn.Module):
    def __init__(self, model: NearFar) -> None:
        super().__init__()
        width, heads = model.width, model.width // model.head
        self.heads, self.slices, self.head, self.differences = heads, model.slices, model.head, model.differences
        self.norm = nn.LayerNorm(width, elementwise_affine=False)  # whatever follows is linear
        if model.near:
            self.kappa = Kernel(model.dim + len(model.features), model.kernel, width, width, smooth=True)
        if model.far:
            self.slice = nn.Linear(width, heads * model.slices)
            self.value = nn.Linear(width, width)
            self.query, self.key, self.answer = (nn.Linear(model.head, model.head, bias=False) for _ in range(3))
            self.out = nn.Linear(width, width)
        self.norm_after = nn.LayerNorm(width, elementwise_affine=False)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def send(self, v: Tensor, share: Tensor, cuts: Sequence[int], split: Split | None = None) -> tuple[State, Tensor | None]:
        """What nodes with these values have for others; and which slices they belong to, unless that is too much to keep."""
        (v,) = autocast(self.norm(v))
        lent = v if split is None or not hasattr(self, "kappa") else split.lend(v)
        if not hasattr(self, "slice"):
            return State(lent, None), None
        share, p = share.to(v.dtype)[:, None], None
        if len(v) <= CHUNK:
            sizes, p = [b - a for a, b in pairwise(cuts)], self.slices_of(v)
            sums, mass = _gathered(p, v * share, sizes), _gathered(p, share, sizes)
        else:
            parts = [[self._of(v[i:j], share[i:j]) for i, j in _chunks(*ends)] for ends in pairwise(cuts)]
            sums, mass = (torch.stack([torch.stack([part[i] for part in few]).sum(0) for few in parts]) for i in (0, 1))
        tokens = self._tokens(sums, mass, split)
        query, key = (nn.functional.rms_norm(x, (self.head,), eps=FLAT) for x in (self.query(tokens), self.key(tokens)))
        mixed = nn.functional.scaled_dot_product_attention(query, key, self.answer(tokens))
        to_width = self.out.weight.unflatten(1, (self.heads, self.head))  # (width, heads, head)
        far = torch.einsum("ghsd,whd->ghsw", *autocast(mixed, to_width)) + self.out.bias / self.heads  # slices add up to 1
        return State(lent, far.flatten(1, 2).to(v.dtype)), p

    def _of(self, v: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
        """What some points of a function add to the sums of its slices. Added up in float32 at least."""

        def gathered(v: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
            p, kind = self.slices_of(v), torch.promote_types(v.dtype, torch.float32)
            return (p.T @ (v * share)).to(kind), (p.T @ share).to(kind)

        found: tuple[Tensor, Tensor] = _again(gathered, v, share)
        return found

    def receive(
        self,
        v: Tensor,
        own: Tensor,
        p: Tensor | None,
        state: State,
        near: Balls | None,
        cuts: Sequence[int],
        compiled: bool = False,
    ) -> Tensor:
        """The next values, of what the nodes have, at points with the values v, `own` if normalised, in the slices p."""
        integral = None if near is None else near(self.kappa, state.v, own if self.differences else None)
        if len(v) <= CHUNK:
            found: Tensor = (_compiled(_Block._next) if compiled else _Block._next)(
                self, v, integral, state.far, p, [b - a for a, b in pairwise(cuts)]
            )
            return found
        parts = []
        for number, ends in enumerate(pairwise(cuts)):
            far = None if state.far is None else state.far[number : number + 1]
            for i, j in _chunks(*ends):
                parts.append(_again(self._next, v[i:j], None if integral is None else integral[i:j], far, None, [j - i]))
        return torch.cat(parts)

    def _next(self, v: Tensor, near: Tensor | None, far: Tensor | None, p: Tensor | None, sizes: list[int]) -> Tensor:
        if far is not None and p is None:
            p = self.slices_of(*autocast(self.norm(v)))
        if near is not None:
            v = v + near  # autocast's type and a wider one are the wider
        if far is not None and p is not None:
            v = v + _spread(p.to(far.dtype), far, sizes)
        found: Tensor = v + self.down(nn.functional.gelu(self.up(self.norm_after(v))))
        return found

    def slices_of(self, v: Tensor) -> Tensor:
        """(K, heads * slices): how much of each point belongs to each slice; in every head they add up to 1."""
        scores: Tensor = self.slice(v).unflatten(1, (self.heads, self.slices))
        with torch.autocast(v.device.type, enabled=False):  # which would have them in float32
            p: Tensor = scores.softmax(-1).flatten(1)
        return p

    def _tokens(self, sums: Tensor, mass: Tensor, split: Split | None) -> Tensor:
        """(functions, heads, slices, head): means of values over slices, of sums of v (functions, heads * slices, width).

        Values are linear in v, so that they are taken of the sums.
        """
        kind = torch.promote_types(mass.dtype, torch.float32)
        weight = self.value.weight.unflatten(0, (self.heads, self.head))  # (heads, head, width)
        sums, mass = (x.unflatten(1, (self.heads, self.slices)) for x in (sums, mass.to(kind)))
        values = torch.einsum("ghsw,hdw->ghsd", *autocast(sums, weight))
        if split is not None:
            both = split.sum(torch.cat([values.to(kind), mass], -1))
            values, mass = both[..., :-1], both[..., -1:]
        share = mass / (mass + EMPTY)  # 1, but for slices that are empty
        tokens: Tensor = values / (mass + EMPTY) + share * self.value.bias.unflatten(0, (self.heads, 1, self.head))
        return tokens
