"""The graph kernel network of the paper."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gkn.graph.graph import Graph
from gkn.models.inputs import check_sizes, features_chosen, ready
from gkn.ops import Backend
from gkn.ops.kernel import Density, Integral, Kernel

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "gelu": nn.functional.gelu,
    "silu": nn.functional.silu,
    "tanh": torch.tanh,
}


class GKN(nn.Module):
    """Lift, T steps with one kernel, projection:

    v_0 = P(x, a(x)) + p
    v_{t+1}(x) = sigma(W v_t(x) + b + integral over N(x) of kappa(x, y, a(x), a(y)) v_t(y) dy)
    u = Q v_T + q

    dim            of the points
    in_channels    fields of a, all of which enter P
    out_channels   fields of u
    width          n, components of v
    kernel         sizes of the hidden layers of kappa
    steps          T
    features       which fields of a enter kappa beside the points; None: the first, a itself and not its smoothed versions
    sigma          the activation
    last_sigma     also after the last step, as the paper prints it; its authors left it off in some tables
    rho            a density rho(x, y) in the measure; none: the mean over N(x)
    recompute      hidden features of edges: True to compute them anew, in memory that does not grow with the edges (in training
                   a group of graphs at a time; in prediction, or where one graph is too large, in every step, a block of
                   targets at a time); False to keep them; None to keep them where they fit
    backend        of `kernel_integral`; None: the fastest there is
    """

    def __init__(
        self,
        dim: int,
        in_channels: int = 1,
        out_channels: int = 1,
        width: int = 64,
        kernel: Sequence[int] = (512, 1024),
        steps: int = 6,
        features: Sequence[int] | None = None,
        *,
        sigma: Callable[[Tensor], Tensor] = torch.relu,
        last_sigma: bool = True,
        rho: Density | None = None,
        recompute: bool | None = None,
        backend: Backend | None = None,
    ) -> None:
        super().__init__()
        sizes = {"dim": dim, "out_channels": out_channels, "width": width, "steps": steps}
        check_sizes("GKN", sizes, in_channels)
        chosen = features_chosen("GKN", features, in_channels)
        self.dim, self.in_channels, self.out_channels, self.steps, self.width = dim, in_channels, out_channels, steps, width
        self.features, self.sigma, self.last_sigma = chosen, sigma, last_sigma
        self.rho, self.recompute, self.backend = rho, recompute, backend
        self.P = nn.Linear(dim + in_channels, width)
        self.kappa = Kernel(dim + len(self.features), kernel, width, width)
        self.W = nn.Linear(width, width)
        self.Q = nn.Linear(width, out_channels)

    def config(self) -> dict[str, Any]:
        """What, beside its parameters, it takes to make this network again: plain numbers and names."""
        named = [name for name, function in ACTIVATIONS.items() if function is self.sigma]
        if not named or self.rho is not None or type(self) is not GKN:
            what = f"a {type(self).__name__}" if type(self) is not GKN else "rho" if self.rho is not None else "its sigma"
            raise ValueError(
                f"GKN.config: {what} is code of yours, which is not saved; use no rho, and sigma = one of "
                f"{', '.join(ACTIVATIONS)}, or keep model.state_dict() yourself"
            )
        sizes = {name: getattr(self, name) for name in ("dim", "in_channels", "out_channels", "width", "steps", "last_sigma")}
        return {"kind": "GKN", **sizes, "kernel": [*self.kappa.sizes], "features": [*self.features], "sigma": named[0]}

    @staticmethod
    def of(config: dict[str, Any]) -> GKN:
        """The network that `config` describes, with the weights it is born with."""
        names = ("dim", "in_channels", "out_channels", "width", "kernel", "steps", "features", "sigma", "last_sigma")
        if {*config} != {"kind", *names} or config["kind"] != "GKN":
            raise TypeError(f"a network of {', '.join(config)}; needed {', '.join(names)}")
        return GKN(**{**{name: config[name] for name in names}, "sigma": ACTIVATIONS[config["sigma"]]})

    def forward(self, graph: Graph, x: Tensor, a: Tensor, weights: Tensor | None = None) -> Tensor:
        """u on the points x: (K, d), (K, in_channels) -> (K, out_channels). With quadrature weights (K,), a weighted mean."""
        if torch.is_grad_enabled() and self.sigma is torch.relu and type(self).states is GKN.states:
            v, integral = self._start(graph, x, a, weights)
            last = integral.march(v, self.W, self.steps, self.last_sigma)
            return self.project(self._steps(v, integral)[-1] if last is None else last)
        return self.project(self.states(graph, x, a, weights)[-1])

    def states(
        self,
        graph: Graph,
        x: Tensor,
        a: Tensor,
        weights: Tensor | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> list[Tensor]:
        """v_0, ..., v_T on the points x. `progress` is called with (steps done, of how many)."""
        return self._steps(*self._start(graph, x, a, weights), progress)

    def _start(self, graph: Graph, x: Tensor, a: Tensor, weights: Tensor | None) -> tuple[Tensor, Integral]:
        x, a = self._ready(graph, x, a)
        if graph.num_targets != graph.num_sources:
            raise ValueError(f"GKN: {graph}; needed as many targets as sources: one set of nodes")
        return self.lift(x, a), self._integral(graph, (x, a), (x, a), weights)

    def _steps(self, v: Tensor, integral: Integral, progress: Callable[[int, int], None] | None = None) -> list[Tensor]:
        states = [v]
        for t in range(self.steps):
            states.append(self._step(t, states[-1], integral(states[-1])))
            if progress is not None:
                progress(t + 1, self.steps)
        return states

    def at(
        self,
        states: Sequence[Tensor],
        graph: Graph,
        queries: tuple[Tensor, Tensor],
        nodes: tuple[Tensor, Tensor],
        weights: Tensor | None = None,
    ) -> Tensor:
        """u at queries (x, a), which receive from the nodes (x, a) in every step and never send. `graph`: queries <- nodes."""
        queries, nodes = self._ready(None, *queries), self._ready(graph, *nodes)
        if len(states) < self.steps:
            raise ValueError(f"GKN.at: {len(states)} states for {self.steps} steps; needed those of GKN.states")
        if graph.num_targets != len(queries[0]):
            raise ValueError(f"GKN.at: {graph} for {len(queries[0])} queries; needed a target for each")
        integral = self._integral(graph, queries, nodes, weights)
        v = self.lift(*queries)
        for t in range(self.steps):
            v = self._step(t, v, integral(states[t]))
        return self.project(v)

    def finish(self, states: Sequence[Tensor]) -> Tensor:
        """u on the nodes, of all their states."""
        return self.project(states[-1])

    def lift(self, x: Tensor, a: Tensor) -> Tensor:
        out: Tensor = self.P(torch.cat([x, a], 1))
        return out

    def project(self, v: Tensor) -> Tensor:
        out: Tensor = self.Q(v)
        return out

    def _step(self, t: int, v: Tensor, integral: Tensor) -> Tensor:
        v = self.W(v) + integral
        return self.sigma(v) if t < self.steps - 1 or self.last_sigma else v

    def _integral(
        self, graph: Graph, targets: tuple[Tensor, Tensor], sources: tuple[Tensor, Tensor], weights: Tensor | None
    ) -> Integral:
        of_x, of_y = (torch.cat([x, *(a[:, i : i + 1] for i in self.features)], 1) for x, a in (targets, sources))
        options = {"rho": self.rho, "recompute": self.recompute, "backend": self.backend}
        return self.kappa.on(graph, of_x, of_y, weights=weights, points=(targets[0], sources[0]), **options)

    def _ready(self, graph: Graph | None, x: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
        return ready("GKN", self.P.weight, self.dim, self.in_channels, graph, x, a)
