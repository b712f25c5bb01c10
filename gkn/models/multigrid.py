"""Multigrid: kernels within levels and between them, in V-cycles. The paper's own proposal for long-range interactions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from gkn.data.dataset import Dataset
from gkn.graph.graph import Graph
from gkn.graph.images import Images
from gkn.graph.levels import Level, graph_between, levels_of
from gkn.models.model import Defaults, Model, Progress, check_periodic, check_radius, check_sizes, chosen_features
from gkn.models.nearfar import NearFar
from gkn.ops import Backend, full_precision, quadrature
from gkn.ops.balls import Balls, Neighbourhoods, ball_features, make_balls
from gkn.ops.dense import Linear
from gkn.ops.kernel import Kernel


class Multigrid(Model):
    """V-cycles over levels of fewer and fewer points, with larger and larger balls. A ball always has about as many points, so
    the number of edges is proportional to the number of points.

        down   v_l <- v_l + integral over a ball of kappa_down(x, y) v_{l-1}(y) dy
        up     v_l <- v_l + integral of kappa(x, y) v_l(y) dy + integral of kappa_up(x, y) v_{l+1}(y) dy
               v_l <- v_l + network(v_l)

    Every cycle and level has its own kernels. Within a level, K of kappa = K + B is applied to v(y) - v(x), and B to v(y).
    Query points receive what points of the first level receive.

        dim, in_channels, out_channels, width, features, recompute, backend   as in `GKN`
        cycles    number of V-cycles
        levels    number of levels, the first with all points
        kernel    sizes of the hidden layers of the kernels
        radius    of the balls of the first level, the r of the graph rule, in units of the longest side of the training domains
        periodic  axes along which balls wrap around and kernels see differences of coordinates only
    """

    settings = ("width", "cycles", "levels", "radius", "kernel", "features", "periodic")
    form = 2  # SiLU and differences
    at_queries = True
    radius: float

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
        periodic: Sequence[int] = (),
        recompute: bool | None = None,
        backend: Backend | None = None,
    ) -> None:
        super().__init__(dim, in_channels, out_channels)
        sizes = {"dim": dim, "out_channels": out_channels, "width": width, "cycles": cycles, "levels": levels}
        check_sizes("Multigrid", **sizes, in_channels=in_channels)
        check_radius("Multigrid", radius)
        self.width, self.cycles, self.levels = width, cycles, levels
        self.kernel, self.radius = tuple(kernel), float(radius)
        self.features = chosen_features("Multigrid", features, in_channels)
        self.periodic = check_periodic("Multigrid", periodic, dim)
        self.recompute, self.backend = recompute, backend
        self.P = Linear(dim + in_channels, 2 * width)
        self.lift = Linear(2 * width, width)
        self.stages = nn.ModuleList(Stage(self, last=level == levels - 1) for _ in range(cycles) for level in range(levels))
        self.norm = nn.LayerNorm(width)
        self.Q = Linear(width, out_channels)

    @classmethod
    def defaults(cls, dataset: Dataset, recipe: str | None = None) -> Defaults:
        """Suggest what `NearFar` suggests, on all points of a sample: levels of drawn nodes would differ in every epoch."""
        suggested = NearFar.defaults(dataset)
        radius = suggested.settings["radius"] / 2
        settings = {**suggested.settings, "radius": radius}
        settings.pop("waves", None)
        rule = {"kind": "Radius", "r": radius}
        return replace(suggested, settings=settings, rule=rule)

    def forward(self, graph: Graph, x: Tensor, a: Tensor, weights: Tensor | None = None) -> Tensor:
        return self.finish(self.states(graph, x, a, weights))

    def states(
        self, graph: Graph, x: Tensor, a: Tensor, weights: Tensor | None = None, progress: Progress | None = None
    ) -> list[Any]:
        """Return the second level, what the first two levels send in every cycle, and the values of the first level."""
        points, x, a = x, *self._ready(graph, x, a)
        images = graph.images
        quadrature(
            weights if images is None or weights is None else images.lend(weights), graph, False
        )  # raises if they are wrong
        if not len(x):
            return [None] * (self.cycles + 1) + [self._lifted(x, a)]
        self._check_one_set(graph)
        levels = levels_of(graph, points, weights, self.radius, self.levels)
        balls = [self._balls(graph, levels, i, x, a) for i in range(self.levels)]
        v = [self._lifted(x[level.nodes], a[level.nodes]) for level in levels]
        states: list[Any] = [levels[1] if self.levels > 1 else None]
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
        points, queries, all_nodes = queries[0], self._ready(None, *queries), self._ready(graph, *nodes)
        self._check_queries(states, self.cycles + 2, graph, queries[0])
        second: Level | None = states[0]
        within, up = self._ball(graph, queries, all_nodes, self.radius, weights), None
        if second is not None:
            r, coarse = 2 * self.radius, (all_nodes[0][second.nodes], all_nodes[1][second.nodes])
            periods = None if graph.images is None else graph.images.periods
            between = graph_between(nodes[0][second.nodes], points, r, periods)
            up = self._ball(between, queries, coarse, r, second.weights)
        v = self._lifted(*queries)
        for cycle in range(self.cycles):
            sent, above = states[cycle + 1]
            v = self._stages(cycle)[0].up(v, sent, above, within, up)
        return self.project(v)

    def finish(self, states: Sequence[Any]) -> Tensor:
        return self.project(states[-1])

    def project(self, v: Tensor) -> Tensor:
        """u = Q norm(v)"""
        with full_precision(v):
            u: Tensor = self.Q(self.norm(v))
        return u

    def levels_of_rows(self, graph: Graph, x: Tensor, weights: Tensor | None) -> list[Tensor]:
        return [level.nodes for level in levels_of(graph, x, weights, self.radius, self.levels)]

    def recordable(self, fixed: bool, dtype: torch.dtype | None) -> bool:
        return fixed

    def _lifted(self, x: Tensor, a: Tensor) -> Tensor:
        """v = lift(gelu(P(x, a))), not rounded by autocast: the stages add to it."""
        v: Tensor = self.lift(nn.functional.gelu(self.P(torch.cat([self._located(x), a], 1))))
        return v.to(x.dtype)

    def _stages(self, cycle: int) -> list[Stage]:
        return cast(list[Stage], [*self.stages[cycle * self.levels : (cycle + 1) * self.levels]])

    def _balls(self, graph: Graph, levels: list[Level], i: int, x: Tensor, a: Tensor) -> dict[str, Lent]:
        """Return the integrals of level i: within it, down from the level before, and up to the level before."""
        level, r = levels[i], self.radius * 2**i
        here = x[level.nodes], a[level.nodes]
        balls = {"within": self._ball(level.within or graph, here, here, r, level.weights)}
        if level.down is not None and level.up is not None:
            before = levels[i - 1]
            there = x[before.nodes], a[before.nodes]
            balls["down"] = self._ball(level.down, here, there, r, before.weights)
            balls["up"] = self._ball(level.up, there, here, r, level.weights)
        return balls

    def _ball(
        self,
        graph: Graph,
        targets: tuple[Tensor, Tensor],
        sources: tuple[Tensor, Tensor],
        radius: float,
        weights: Tensor | None,
    ) -> Lent:
        images = graph.images
        if images is not None:
            sources = images.points(sources[0]), images.lend(sources[1])
            weights = None if weights is None else images.lend(weights)
        of_x, of_y = (ball_features(x, a, radius, self.features) for x, a in (targets, sources))
        where = Neighbourhoods(graph, of_x, of_y, self.dim, weights)
        kernel, uses = self._stages(0)[0].within, 3 * self.cycles
        return Lent(make_balls(where, kernel, uses, recompute=self.recompute, backend=self.backend), images)


class Lent:
    """Integrals over balls that reach across periodic faces: images of the sources have the values of the sources."""

    def __init__(self, balls: Balls, images: Images | None) -> None:
        self.balls, self.images = balls, images

    def __call__(self, kernel: Kernel, sources: Tensor, targets: Tensor | None = None) -> Tensor:
        found: Tensor = self.balls(kernel, sources if self.images is None else self.images.lend(sources), targets)
        return found


class Stage(nn.Module):
    """One level in one cycle. Values are normalised once, before they are sent."""

    def __init__(self, model: Multigrid, last: bool) -> None:
        super().__init__()
        size, width = model.dim + len(model.features), model.width
        self.norm, self.within = nn.LayerNorm(width), Kernel(size, model.kernel, width, width, True, model.periodic)
        if not last:
            self.norm_down, self.to_next = nn.LayerNorm(width), Kernel(size, model.kernel, width, width, True, model.periodic)
            self.norm_up, self.from_next = nn.LayerNorm(width), Kernel(size, model.kernel, width, width, True, model.periodic)
        self.norm_after = nn.LayerNorm(width)
        self.wide, self.narrow = Linear(width, 2 * width), Linear(2 * width, width)

    def sends(self, v: Tensor) -> Tensor:
        """Return what this level sends within itself."""
        sent: Tensor = self.norm(v)
        return sent

    def sends_up(self, v: Tensor) -> Tensor:
        """Return what the next level sends to this one."""
        sent: Tensor = self.norm_up(v)
        return sent

    def down(self, v: Tensor, before: Tensor, balls: Lent) -> Tensor:
        """Return the next level's values, given this one's."""
        return v + balls(self.to_next, self.norm_down(before)).to(v.dtype)

    def up(self, v: Tensor, sent: Tensor, above: Tensor | None, within: Lent, up: Lent | None) -> Tensor:
        """Return this level's values after the integrals within it and from the level above, and the network."""
        v = v + within(self.within, sent, self.sends(v)).to(v.dtype)
        if above is not None and up is not None:
            v = v + up(self.from_next, above).to(v.dtype)
        out: Tensor = v + self.narrow(nn.functional.gelu(self.wide(self.norm_after(v))))
        return out
