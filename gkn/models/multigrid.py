"""Multigrid: the paper's own proposal for its own weakness. Kernels within levels and between them, in V-cycles."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gkn.graph.graph import Graph
from gkn.graph.levels import Level, levels_of
from gkn.graph.neighbors import radius_graph
from gkn.models.inputs import check_radius, check_sizes, features_chosen, ready, settings_of
from gkn.ops import Backend, quadrature
from gkn.ops.balls import Balls
from gkn.ops.balls import features as features_of
from gkn.ops.kernel import Kernel

FORM = 2
"""Of what is computed: numbers of another form, in arrays of the same shapes, would be another function. 2: SiLU and
differences."""


class Multigrid(nn.Module):
    """A few V-cycles over levels of fewer and fewer points, with balls that are larger and larger; a ball always has about
    as many points, so that there are as many edges as points.

        down   v_l <- v_l + integral over a ball of kappa_down(x, y) v_{l-1}(y) dy
        up     v_l <- v_l + integral of kappa(x, y) v_l(y) dy + integral of kappa_up(x, y) v_{l+1}(y) dy
               v_l <- v_l + network(v_l)

    Every cycle and level has its own kernels. Within a level all of kappa but its constant meets v(y) - v(x). Points that ask
    receive what those of the first level do.

        dim, in_channels, out_channels, width, features, recompute, backend   as of `GKN`
        cycles    how many
        levels    how many, the first with all points
        kernel    sizes of the hidden layers of the kernels
        radius    of the first level's balls, a length: that of the rule the graphs are made by
    """

    def __init__(
        self,
        dim: int,
        in_channels: int = 1,
        out_channels: int = 1,
        width: int = 64,
        *,
        cycles: int = 4,
        levels: int = 4,
        kernel: Sequence[int] = (32, 16),
        radius: float = 0.05,
        features: Sequence[int] | None = None,
        recompute: bool | None = None,
        backend: Backend | None = None,
    ) -> None:
        super().__init__()
        sizes = {"dim": dim, "out_channels": out_channels, "width": width, "cycles": cycles, "levels": levels}
        check_sizes("Multigrid", sizes, in_channels)
        check_radius("Multigrid", radius)
        chosen = features_chosen("Multigrid", features, in_channels)
        self.dim, self.in_channels, self.out_channels, self.width = dim, in_channels, out_channels, width
        self.cycles, self.levels, self.kernel, self.radius, self.features = cycles, levels, tuple(kernel), float(radius), chosen
        self.recompute, self.backend = recompute, backend
        self.P = nn.Linear(dim + in_channels, 2 * width)
        self.lift = nn.Linear(2 * width, width)
        self.stages = nn.ModuleList(_Stage(self, last=level == levels - 1) for _ in range(cycles) for level in range(levels))
        self.norm = nn.LayerNorm(width)
        self.Q = nn.Linear(width, out_channels)

    def config(self) -> dict[str, Any]:
        """What, beside its parameters, it takes to make this network again: plain numbers and names."""
        if type(self) is not Multigrid:
            raise ValueError(f"Multigrid.config: a {type(self).__name__} is code of yours, which is not saved")
        names = ("dim", "in_channels", "out_channels", "width", "cycles", "levels", "radius")
        return {
            "kind": "Multigrid",
            "form": FORM,
            **{name: getattr(self, name) for name in names},
            "kernel": [*self.kernel],
            "features": [*self.features],
        }

    @staticmethod
    def of(config: dict[str, Any]) -> Multigrid:
        """The network that `config` describes, with the weights it is born with."""
        names = {"dim", "in_channels", "out_channels", "width", "cycles", "levels", "radius", "kernel", "features"}
        return Multigrid(**settings_of("Multigrid", FORM, config, names))

    def forward(self, graph: Graph, x: Tensor, a: Tensor, weights: Tensor | None = None) -> Tensor:
        """u on the points x: (K, d), (K, in_channels) -> (K, out_channels), with quadrature weights (K,) or all alike."""
        return self.finish(self.states(graph, x, a, weights))

    def states(
        self,
        graph: Graph,
        x: Tensor,
        a: Tensor,
        weights: Tensor | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> list[Any]:
        """What queries ask for: the points of the second level, and, of every cycle, what the first two levels send; at last
        the values of the first level."""
        points, x, a = x, *self._ready(graph, x, a)
        quadrature(weights, graph, False)  # says now if they make no sense
        if not len(x):
            return [None] * (self.cycles + 1) + [self._lifted(x, a)]
        if graph.num_targets != graph.num_sources:
            raise ValueError(f"Multigrid: {graph}; needed as many targets as sources: one set of nodes")
        levels = levels_of(graph, points, weights, self.radius, self.levels)
        balls = [self._balls(graph, levels, i, x, a) for i in range(self.levels)]
        v = [self._lifted(x[level.nodes], a[level.nodes]) for level in levels]
        second = levels[1] if self.levels > 1 else None
        states: list[Any] = [second]
        for cycle in range(self.cycles):
            stages = self._stages(cycle)
            for i in range(1, self.levels):
                v[i] = stages[i - 1].down(v[i], v[i - 1], balls[i]["down"])
            for i in reversed(range(self.levels)):
                sent = stages[i].sends(v[i])
                above = stages[i].sends_up(v[i + 1]) if i + 1 < self.levels else None
                if i == 0:
                    states.append((sent, above))
                v[i] = stages[i].up(v[i], sent, above, balls[i]["within"], balls[i + 1]["up"] if above is not None else None)
            if progress is not None:
                progress(cycle + 1, self.cycles)
        return [*states, v[0]]

    def at(
        self,
        states: Sequence[Any],
        graph: Graph,
        queries: tuple[Tensor, Tensor],
        nodes: tuple[Tensor, Tensor],
        weights: Tensor | None = None,
    ) -> Tensor:
        """u at queries (x, a), which receive from the nodes (x, a) of one function and never send; graph: queries <- nodes."""
        points, queries, all_nodes = queries[0], self._ready(None, *queries), self._ready(graph, *nodes)
        if len(states) != self.cycles + 2:
            raise ValueError(f"Multigrid.at: {len(states)} states for {self.cycles} cycles; needed those of Multigrid.states")
        if graph.num_targets != len(queries[0]):
            raise ValueError(f"Multigrid.at: {graph} for {len(queries[0])} queries; needed a target for each")
        second: Level | None = states[0]
        of_x, of_y = (features_of(x, a, self.radius, self.features) for x, a in (queries, all_nodes))
        within, up = self._ball(graph, of_x, of_y, weights), None
        if second is not None:
            r, coarse = 2 * self.radius, (all_nodes[0][second.nodes], all_nodes[1][second.nodes])
            of_x, of_y = (features_of(x, a, r, self.features) for x, a in (queries, coarse))
            up = self._ball(radius_graph(nodes[0][second.nodes], points, r), of_x, of_y, second.weights)
        v = self._lifted(*queries)
        for cycle in range(self.cycles):
            sent, above = states[cycle + 1]
            v = self._stages(cycle)[0].up(v, sent, above, within, up)
        return self.project(v)

    def finish(self, states: Sequence[Any]) -> Tensor:
        """u on the nodes, of all their states."""
        return self.project(states[-1])

    def project(self, v: Tensor) -> Tensor:
        with torch.autocast(v.device.type, enabled=False):
            out: Tensor = self.Q(self.norm(v))
        return out

    def _lifted(self, x: Tensor, a: Tensor) -> Tensor:
        out: Tensor = self.lift(nn.functional.gelu(self.P(torch.cat([x, a], 1))))
        return out.to(x.dtype)  # what blocks add to is not rounded by autocast

    def _stages(self, cycle: int) -> list[_Stage]:
        return [each for each in self.stages[cycle * self.levels : (cycle + 1) * self.levels] if isinstance(each, _Stage)]

    def _balls(self, graph: Graph, levels: list[Level], i: int, x: Tensor, a: Tensor) -> dict[str, Balls]:
        """The integrals of a level: within it, from the one before, and to the one before."""
        own, r = levels[i], self.radius * 2**i
        here = features_of(x[own.nodes], a[own.nodes], r, self.features)
        found = {"within": self._ball(own.within or graph, here, here, own.weights)}
        if own.down is not None and own.up is not None:
            before = levels[i - 1]
            there = features_of(x[before.nodes], a[before.nodes], r, self.features)
            found["down"] = self._ball(own.down, here, there, before.weights)
            found["up"] = self._ball(own.up, there, here, own.weights)
        return found

    def _ball(self, graph: Graph, of_x: Tensor, of_y: Tensor, weights: Tensor | None) -> Balls:
        like, many = self._stages(0)[0].within, 3 * self.cycles
        return Balls(graph, of_x, of_y, self.dim, weights, like, many, recompute=self.recompute, backend=self.backend)

    def _ready(self, graph: Graph | None, x: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
        return ready("Multigrid", self.P.weight, self.dim, self.in_channels, graph, x, a)


class _Stage(nn.Module):
    """What one level does in one cycle. What is sent is sent normalised, once, whoever asks for it."""

    def __init__(self, model: Multigrid, last: bool) -> None:
        super().__init__()
        size, width = model.dim + len(model.features), model.width
        self.norm, self.within = nn.LayerNorm(width), Kernel(size, model.kernel, width, width, smooth=True)
        if not last:
            self.norm_down, self.to_next = nn.LayerNorm(width), Kernel(size, model.kernel, width, width, smooth=True)
            self.norm_up, self.from_next = nn.LayerNorm(width), Kernel(size, model.kernel, width, width, smooth=True)
        self.norm_after = nn.LayerNorm(width)
        self.wide, self.narrow = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def sends(self, v: Tensor) -> Tensor:
        out: Tensor = self.norm(v)
        return out

    def sends_up(self, v: Tensor) -> Tensor:
        """Of the next level, to this one."""
        out: Tensor = self.norm_up(v)
        return out

    def down(self, v: Tensor, before: Tensor, balls: Balls) -> Tensor:
        """The next level's values, of this one's."""
        return v + balls(self.to_next, self.norm_down(before)).to(v.dtype)

    def up(self, v: Tensor, sent: Tensor, above: Tensor | None, within: Balls, up: Balls | None) -> Tensor:
        v = v + within(self.within, sent, self.sends(v)).to(v.dtype)
        if above is not None and up is not None:
            v = v + up(self.from_next, above).to(v.dtype)
        out: Tensor = v + self.narrow(nn.functional.gelu(self.wide(self.norm_after(v))))
        return out
