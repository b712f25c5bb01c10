"""The graph kernel network of the paper."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gkn.data.dataset import Dataset
from gkn.graph.graph import Graph
from gkn.models.model import Defaults, Model, Progress, check_periodic, check_sizes, chosen_features
from gkn.models.suggest import DRAWN, WHOLE, periodic_axes
from gkn.ops import Backend
from gkn.ops.integral import Density, Plan, plan_integral
from gkn.ops.kernel import Kernel

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "gelu": nn.functional.gelu,
    "silu": nn.functional.silu,
    "tanh": torch.tanh,
}

NETWORKS: dict[str, dict[str, Any]] = {
    "paper": {"width": 64, "kernel": (512, 1024), "steps": 6, "last_sigma": False},
    "ours": {"width": 64, "kernel": (128, 256), "steps": 6, "last_sigma": False},
}
"""The network that goes with each recipe."""
SMOOTHING = {"paper": 0.05, "ours": 0.1}
"""Width of the Gaussian for a_eps, relative to the domain. The paper says "variance 5" without a unit; sqrt 5 spacings of its
finest grid would be 0.0093. Of the widths measured, 0.05 comes nearest to its numbers (`gkn reproduce causes`)."""


MOST_STEPS = 1000


class GKN(Model):
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
    features       numbers of the fields of a that enter kappa beside the points; None: the first, which is a itself
    sigma          the activation
    last_sigma     apply sigma also after the last step, as the paper prints it; its authors left it off in some tables
    periodic       axes along which edges wrap around and kappa sees differences of coordinates only
    rho            density rho(x, y) of the measure; None: the mean over N(x)
    recompute      hidden features of edges: True to compute them again, in memory that does not grow with the edges (in
                   training a group of graphs at a time; in prediction, or if one graph is too large, in every step, a block
                   of targets at a time); False to keep them; None to keep them if they fit
    backend        of `kernel_integral`; None: the fastest there is
    """

    settings = ("width", "steps", "last_sigma", "kernel", "features", "sigma", "periodic")
    at_queries = True

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
        periodic: Sequence[int] = (),
        rho: Density | None = None,
        recompute: bool | None = None,
        backend: Backend | None = None,
    ) -> None:
        super().__init__(dim, in_channels, out_channels)
        check_sizes("GKN", dim=dim, out_channels=out_channels, width=width, steps=steps, in_channels=in_channels)
        if steps > MOST_STEPS:  # no tensor of a stored network says how many there are
            raise ValueError(f"GKN(steps={steps}): needed at most {MOST_STEPS}")
        self.width, self.kernel, self.steps = width, tuple(kernel), steps
        self.features = chosen_features("GKN", features, in_channels)
        self.sigma, self.last_sigma, self.rho = sigma, last_sigma, rho
        self.recompute, self.backend = recompute, backend
        self.P = nn.Linear(dim + in_channels, width)
        self.periodic = check_periodic("GKN", periodic, dim)
        self.kappa = Kernel(dim + len(self.features), kernel, width, width, relative=self.periodic)
        self.W = nn.Linear(width, width)
        self.Q = nn.Linear(width, out_channels)

    @classmethod
    def defaults(cls, dataset: Dataset, recipe: str | None = None) -> Defaults:
        """Suggest a radius of a quarter of the domain, 256 drawn nodes of larger samples, and a widely smoothed `a`."""
        domain, name = dataset[0].domain, recipe if recipe in NETWORKS else "ours"
        r = 0.25 * domain.scale
        whole = len(domain) <= WHOLE // 8
        rule = {"kind": "Radius", "r": r} if whole else {"kind": "Nystrom", "r": r, "m": min(DRAWN // 8, len(domain)), "l": 1}
        raw = "a" in dataset.inputs and not dataset.smoothing and "a_smooth" not in dataset.inputs
        settings = {**NETWORKS[name], **({"periodic": periodic_axes(dataset)} if periodic_axes(dataset) else {})}
        return Defaults(settings, rule, name, smoothing={"a": SMOOTHING[name] * domain.scale} if raw else {})

    def config(self) -> dict[str, Any]:
        named = [name for name, function in ACTIVATIONS.items() if function is self.sigma]
        if not named or self.rho is not None:
            what = "rho" if self.rho is not None else "its sigma"
            raise ValueError(
                f"GKN.config: {what} is code of yours, which is not saved; use no rho, and sigma = one of "
                f"{', '.join(ACTIVATIONS)}, or keep model.state_dict() yourself"
            )
        return {**super().config(), "sigma": named[0]}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Model:
        sigma = ACTIVATIONS.get(str(config.get("sigma")), config.get("sigma"))
        return super().from_config({**config, **({"sigma": sigma} if "sigma" in config else {})})

    def forward(self, graph: Graph, x: Tensor, a: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return u on the points x: (K, d), (K, in_channels) -> (K, out_channels). With weights (K,), means are weighted."""
        if torch.is_grad_enabled() and self.sigma is torch.relu and type(self).states is GKN.states and graph.images is None:
            v, plan = self._start(graph, x, a, weights)
            last = plan.march(v, self.W, self.steps, self.last_sigma)
            return self.project(self._steps(v, plan.integral())[-1] if last is None else last)
        return self.project(self.states(graph, x, a, weights)[-1])

    def states(
        self, graph: Graph, x: Tensor, a: Tensor, weights: Tensor | None = None, progress: Progress | None = None
    ) -> list[Tensor]:
        """Return v_0, ..., v_T on the points x."""
        v, plan = self._start(graph, x, a, weights)
        return self._steps(v, _lending(plan.integral(), graph), progress)

    def _start(self, graph: Graph, x: Tensor, a: Tensor, weights: Tensor | None) -> tuple[Tensor, Plan]:
        x, a = self._ready(graph, x, a)
        self._check_one_set(graph)
        return self.lift(x, a), self._plan(graph, (x, a), *_with_images(graph, (x, a), weights))

    def _steps(self, v: Tensor, integral: Callable[[Tensor], Tensor], progress: Progress | None = None) -> list[Tensor]:
        states = [v]
        for t in range(self.steps):
            states.append(self._step(t, states[-1], integral(states[-1])))
            if progress is not None:
                progress(t + 1, self.steps)
        return states

    def _step(self, t: int, v: Tensor, integral: Tensor) -> Tensor:
        v = self.W(v) + integral
        return self.sigma(v) if t < self.steps - 1 or self.last_sigma else v

    def at(
        self,
        states: Sequence[Tensor],
        graph: Graph,
        queries: tuple[Tensor, Tensor],
        nodes: tuple[Tensor, Tensor],
        weights: Tensor | None = None,
    ) -> Tensor:
        queries, nodes = self._ready(None, *queries), self._ready(graph, *nodes)
        self._check_queries(states, self.steps, graph, queries[0])
        integral = _lending(self._plan(graph, queries, *_with_images(graph, nodes, weights)).integral(), graph)
        v = self.lift(*queries)
        for t in range(self.steps):
            v = self._step(t, v, integral(states[t]))
        return self.project(v)

    def finish(self, states: Sequence[Tensor]) -> Tensor:
        return self.project(states[-1])

    def lift(self, x: Tensor, a: Tensor) -> Tensor:
        """Return v_0 = P(x, a(x)) + p."""
        v: Tensor = self.P(torch.cat([self._located(x), a], 1))
        return v

    def project(self, v: Tensor) -> Tensor:
        """Return u = Q v_T + q."""
        u: Tensor = self.Q(v)
        return u

    def _plan(
        self, graph: Graph, targets: tuple[Tensor, Tensor], sources: tuple[Tensor, Tensor], weights: Tensor | None
    ) -> Plan:
        of_x, of_y = (torch.cat([x, *(a[:, i : i + 1] for i in self.features)], 1) for x, a in (targets, sources))
        options: dict[str, Any] = {"rho": self.rho, "recompute": self.recompute, "backend": self.backend}
        return plan_integral(self.kappa, graph, of_x, of_y, weights=weights, points=(targets[0], sources[0]), **options)


def _with_images(
    graph: Graph, nodes: tuple[Tensor, Tensor], weights: Tensor | None
) -> tuple[tuple[Tensor, Tensor], Tensor | None]:
    """Return points and fields of the nodes, and their weights, followed by those of their periodic images."""
    if graph.images is None:
        return nodes, weights
    images = graph.images
    return (images.points(nodes[0]), images.lend(nodes[1])), None if weights is None else images.lend(weights)


def _lending(integral: Callable[[Tensor], Tensor], graph: Graph) -> Callable[[Tensor], Tensor]:
    """Return the integral as a function of the values of the nodes, from which those of their images follow."""
    images = graph.images
    return integral if images is None else lambda v: integral(images.lend(v))
