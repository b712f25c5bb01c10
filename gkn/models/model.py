"""Model, the interface of every network that `fit` trains and an `Operator` evaluates."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from types import MappingProxyType
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from gkn.data.dataset import Dataset
from gkn.data.normalizer import Normalizer
from gkn.graph.graph import Graph

MODELS: dict[str, type[Model]] = {}
"""Every model by the name of its class. A subclass of `Model` registers itself unless it declares abstract methods."""

Progress = Callable[[int, int], None]
"""Called with (steps done, of how many)."""
CALLS = 100
"""Calls of torch that building a model may take for each of its tensors; ours take about 5."""

LATER: Mapping[str, Any] = MappingProxyType({"periodic": [], "waves": 0, "moments": 0})
"""Settings that came later, with their values in older operators. With those values they are left out of a configuration."""


@dataclass(frozen=True)
class Defaults:
    """Suggested settings for training a model on a dataset, as plain names and numbers.

    settings    arguments of the constructor beside dim and channels
    rule        name and numbers of the rule, as `Rule.config` gives them
    recipe      name of a recipe
    changes     entries of the recipe that differ
    weighted    neighbours and the loss count with quadrature weights
    smoothing   width of the Gaussian for each input that is also given smoothed, with its gradient
    extended    inputs that are known on the boundary, which are also given extended to all points
    """

    settings: Mapping[str, Any] = field(default_factory=dict)
    rule: Mapping[str, Any] = field(default_factory=lambda: {"kind": "Radius", "r": 0.25})
    recipe: str = "ours"
    changes: Mapping[str, Any] = field(default_factory=dict)
    weighted: bool = False
    smoothing: Mapping[str, float] = field(default_factory=dict)
    extended: Sequence[str] = ()


class AtMost(TorchFunctionMode):
    """Raises a ValueError as soon as a model that is built in it needs far more than a number of tensors.

    A description of a model may ask for a million layers. They are not built if the file has tensors for three. Calls of torch
    are counted, in this thread only: hooks for new parameters would be those of all threads.
    """

    def __init__(self, tensors: int) -> None:
        super().__init__()
        self.tensors, self.left = tensors, 1000 + CALLS * tensors

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.left -= 1
        if self.left < 0 and func is not torch._C._set_grad_enabled:  # no_grad must be able to end
            raise ValueError(f"the network it describes has more parameters than the {self.tensors} that are stored")
        return func(*args, **(kwargs or {}))


class Model(nn.Module, ABC):
    """A map from fields a on the nodes of a graph to fields u, normalised both.

    A new model names its constructor's arguments in `settings`, keeps them as attributes, and defines `forward`. A model that
    can also answer at points that are not nodes defines `states` and `at` and sets `at_queries`; for others the operator
    interpolates. Parameters must not depend on the number of points.

        dim            of the points
        in_channels    fields of a
        out_channels   fields of u
        radius         of the neighbourhoods the network was made for; None: any
    """

    settings: ClassVar[tuple[str, ...]] = ()
    """Names of the constructor's arguments beside dim, in_channels and out_channels, all plain names, numbers and lists."""
    form: ClassVar[int] = 1
    """Version of the formula. Parameters of another form have the same shapes and give another function; they are refused."""
    at_queries: bool = False
    sizes: ClassVar[Mapping[str, Mapping[str, Any]]] = MappingProxyType({})
    """Settings by size: small, medium and large, for `fit(size=...)` and `gkn train --size`. A model need not have any."""

    dim: int
    in_channels: int
    out_channels: int
    radius: float | None = None
    periodic: tuple[int, ...] = ()
    """Axes along which edges wrap around and only differences of coordinates count. A model that can lists it in `settings`."""
    moments: int = 0
    """Degree of the polynomials that sums over balls integrate exactly: its graphs need moments. 0: windows are as they are."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if not any(getattr(each, "__isabstractmethod__", False) for each in vars(cls).values()):
            MODELS[cls.__name__] = cls

    def __init__(self, dim: int, in_channels: int, out_channels: int) -> None:
        super().__init__()
        if type(dim) is not int or not 1 <= dim <= 3:
            raise ValueError(f"{type(self).__name__}(dim={dim}): needed 1, 2 or 3")
        check_sizes(type(self).__name__, in_channels=in_channels, out_channels=out_channels)
        self.dim, self.in_channels, self.out_channels = dim, in_channels, out_channels

    # --- evaluation

    @abstractmethod
    def forward(self, graph: Graph, x: Tensor, a: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return u on the nodes x: (K, dim), (K, in_channels) -> (K, out_channels), with quadrature weights (K,) or None."""

    def states(
        self, graph: Graph, x: Tensor, a: Tensor, weights: Tensor | None = None, progress: Progress | None = None
    ) -> Sequence[Any]:
        """Return what `finish` and `at` need of the nodes."""
        return [self(graph, x, a, weights)]

    def finish(self, states: Sequence[Any]) -> Tensor:
        """Return u on the nodes, given their states."""
        u: Tensor = states[-1]
        return u

    def at(
        self,
        states: Sequence[Any],
        graph: Graph,
        queries: tuple[Tensor, Tensor],
        nodes: tuple[Tensor, Tensor],
        weights: Tensor | None = None,
    ) -> Tensor:
        """Return u at query points (x, a), which receive from the nodes (x, a) and never send. `graph`: queries <- nodes."""
        raise NotImplementedError(f"{type(self).__name__} answers at its nodes only")

    def levels_of_rows(self, graph: Graph, x: Tensor, weights: Tensor | None) -> Sequence[Tensor]:
        """Return the nodes that the rows of arrays belong to, for layer norms of other rows than one for each node."""
        return []

    @property
    def like(self) -> Tensor:
        """A floating-point tensor with the type and the device the model computes with."""
        for x in chain(self.parameters(), self.buffers()):
            if x.is_floating_point():
                return x
        return torch.zeros(())

    def to(self, *args: Any, **kwargs: Any) -> Any:
        """Move to a device or type. Complex parameters become complex numbers of that precision, not real ones."""
        device, dtype, wait, _ = torch._C._nn._parse_to(*args, **kwargs)
        complex_ = {torch.float32: torch.complex64, torch.float64: torch.complex128}.get(dtype, dtype)

        def move(x: Tensor) -> Tensor:
            kind = complex_ if x.is_complex() else dtype if x.is_floating_point() else None
            return x.to(device, kind, non_blocking=wait)

        return self._apply(move)  # type: ignore[no-untyped-call]

    # --- training

    @classmethod
    def defaults(cls, dataset: Dataset, recipe: str | None = None) -> Defaults:
        """Return how the model is best trained on a dataset, or how with a recipe of that name."""
        return Defaults()

    def prepare(self, datasets: Sequence[Dataset], inputs: Normalizer, outputs: Normalizer) -> None:
        """See the training data once, before training. Models that are no networks are fitted here."""

    fills: bool = False
    """True if nodes that are not `present` in a graph change nothing for the others, given weights that are 0 for them."""

    def recordable(self, fixed: bool, dtype: torch.dtype | None) -> bool:
        """True if a training step may be recorded as a CUDA graph and replayed.

        fixed   all batches have the same graph
        dtype   type that products are rounded to, if any
        """
        return False

    @contextmanager
    def compiling(self) -> Iterator[None]:
        """Compile what is done at the points while this context is open, if the model can."""
        yield

    # --- storage

    def config(self) -> dict[str, Any]:
        """Return what it takes, beside the parameters, to build this model again: plain names and numbers."""
        entries = {name: _plain(getattr(self, name)) for name in ("dim", "in_channels", "out_channels", *self.settings)}
        for name, value in LATER.items():
            if entries.get(name) == value:
                del entries[name]
        form = {} if self.form == 1 else {"form": self.form}
        return {"kind": type(self).__name__, **form, **entries}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Model:
        """Build the model that `config` described, with fresh parameters."""
        names = {"kind", "dim", "in_channels", "out_channels", *cls.settings}
        config = {**{name: value for name, value in LATER.items() if name in names}, **config}
        if {*config} - {"form"} != names or config["kind"] != cls.__name__:
            raise TypeError(f"a network of {', '.join(config)}; needed {', '.join(sorted(names))}")
        if config.get("form", 1) != cls.form:
            raise TypeError(
                f"a {cls.__name__} of form {config.get('form', 1)}, made by another version of gkn; this one computes form "
                f"{cls.form}: train it again"
            )
        return cls(**{name: value for name, value in config.items() if name not in ("kind", "form")})

    # --- checks that every model makes in the same words

    def _ready(self, graph: Graph | None, x: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
        """Return points and fields in the type of the parameters; raise an error if they do not fit the model."""
        name, like = type(self).__name__, self.like
        if x.ndim != 2 or x.shape[1] != self.dim or a.shape != (len(x), self.in_channels):
            raise ValueError(
                f"{name}: points {tuple(x.shape)} and fields {tuple(a.shape)}; needed (K, {self.dim}) and "
                f"(K, {self.in_channels})"
            )
        if graph is not None and graph.num_nodes != len(x):
            raise ValueError(f"{name}: {graph} for {len(x)} points; needed a source for each")
        for what, given in (("points", x), ("fields", a)):
            if not given.is_floating_point():
                raise ValueError(f"{name}: the {what} are {given.dtype}; needed floating-point numbers")
            if given.device != like.device:
                raise ValueError(f"{name}: the {what} are on {given.device}, the network on {like.device}; needed one device")
        return x.to(like.dtype), a.to(like.dtype)

    def _located(self, x: Tensor) -> Tensor:
        """Return points (K, dim) as the network may see them by themselves: without coordinates along periodic axes."""
        if not self.periodic:
            return x
        columns = x.split(1, dim=1)
        return torch.cat([torch.zeros_like(x) if axis in self.periodic else x for axis, x in enumerate(columns)], 1)

    def check_same_radius(self, r: float | None) -> None:
        """Raise an error if the model has balls of one radius, and graphs have another."""
        if self.radius is not None and r != self.radius:
            raise ValueError(f"the balls of this {type(self).__name__} have radius {self.radius}, not {r}; needed the same")

    def _check_one_set(self, graph: Graph) -> None:
        if graph.num_targets != graph.num_nodes:
            raise ValueError(f"{type(self).__name__}: {graph}; needed as many targets as sources: one set of nodes")

    def _check_queries(self, states: Sequence[Any], needed: int, graph: Graph, queries: Tensor) -> None:
        name = type(self).__name__
        if len(states) < needed:
            raise ValueError(f"{name}.at: {len(states)} states; needed {needed}, those of {name}.states")
        if graph.num_targets != len(queries):
            raise ValueError(f"{name}.at: {graph} for {len(queries)} queries; needed a target for each")


def model_from(config: Mapping[str, Any]) -> Model:
    """Build the model that `Model.config` described, with fresh parameters."""
    kind = config.get("kind")
    if kind not in MODELS:
        raise TypeError(f"a network called {kind!r}; there are {', '.join(MODELS)}: import the module that defines it first")
    return MODELS[kind].from_config(config)


def check_sizes(name: str, **sizes: Any) -> None:
    """Raise an error unless all sizes are whole numbers: in_channels at least 0, the others at least 1."""
    for each, size in sizes.items():
        least = 0 if each == "in_channels" else 1
        if type(size) is not int or size < least:
            raise ValueError(f"{name}({each}={size}): needed a whole number, at least {least}")


def check_periodic(name: str, periodic: Sequence[int], dim: int) -> tuple[int, ...]:
    """Return the periodic axes; raise an error unless they are different axes."""
    axes = tuple(periodic)
    if any(type(axis) is not int or not 0 <= axis < dim for axis in axes) or len({*axes}) != len(axes):
        raise ValueError(f"{name}(periodic={axes}): needed different axes, 0 to {dim - 1}")
    return axes


def check_radius(name: str, radius: float) -> None:
    """Raise an error unless a radius is a positive length."""
    if type(radius) not in (int, float) or not 0 < radius < float("inf"):
        raise ValueError(f"{name}(radius={radius!r}): needed a length > 0")


def chosen_features(name: str, features: Sequence[int] | int | None, channels: int) -> tuple[int, ...]:
    """Return which input fields enter kernels: those given, or the first, if there is one."""
    if isinstance(features, int):
        raise ValueError(f"{name}(features={features}): needed a sequence of numbers of input fields, e.g. ({features},)")
    chosen = (0,) if features is None and channels else tuple(features or ())
    if any(not 0 <= each < channels for each in chosen) or len({*chosen}) != len(chosen):
        raise ValueError(f"{name}(features={chosen}): needed different numbers of input fields, 0 to {channels - 1}")
    return chosen


def _plain(value: Any) -> Any:
    return [*value] if isinstance(value, tuple) else value
