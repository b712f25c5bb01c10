"""Problem, the interface of everything that can be generated; and problems that draw their input from a Gaussian field."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, TypeAlias

import torch
from torch import Tensor

from gkn.geometry.domain import Domain
from gkn.geometry.fields import GaussianField, Series
from gkn.system.randomness import stream

Fields: TypeAlias = Mapping[str, Tensor | Sequence[Tensor]]
PROBLEMS: dict[str, type[Problem]] = {}
"""Every problem by its name. A subclass of `Problem` with a `name` registers itself."""


@dataclass(frozen=True)
class Problem(ABC):
    """A PDE with a distribution of inputs, from which samples are made. Its parameters are written into dataset.json.

    A new problem sets `name`, `inputs` and `outputs` and defines `sample`. A sample must depend on its parameters, the
    seed and the number of the sample alone: then the data have the same bits on any number of workers, in any order.

        evolving          outputs that are functions of time: all of them, or none; then `times` says when they are recorded
        parameters        inputs that are one number per sample
        vectors           inputs and outputs with components, (K, c), and the number of these
        on_gpu            `make` can run on a GPU
        zero_boundary     all outputs are 0 on the boundary of the domain, which `gkn data check` then checks
    """

    name: ClassVar[str]
    inputs: ClassVar[tuple[str, ...]]
    outputs: ClassVar[tuple[str, ...]] = ("u",)
    evolving: ClassVar[tuple[str, ...]] = ()
    parameters: ClassVar[tuple[str, ...]] = ()
    vectors: ClassVar[Mapping[str, int]] = {}
    on_gpu: ClassVar[bool] = False
    zero_boundary: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "name" in cls.__dict__:
            PROBLEMS[cls.name] = cls

    @abstractmethod
    def sample(self, seed: int, i: int) -> tuple[Domain, dict[str, Tensor]]:
        """Make sample i of a seed: its domain and all its fields (K,), solution included; evolving ones (T, K)."""

    def times(self) -> Tensor | None:
        """Return the times (T,) at which evolving fields are recorded, the first of which is that of the initial state."""
        return None

    def domain(self) -> Domain | None:
        """Return the domain of all samples, or None if each has its own."""
        return None

    def make(self, seed: int, samples: range, device: str) -> tuple[Fields, list[Domain] | None]:
        """Make several samples; also return their domains if each has its own."""
        made = [self.sample(seed, i) for i in samples]
        values = {name: [each[name] for _, each in made] for name in (*self.inputs, *self.outputs)}
        alone = self.domain() is None
        fields = {name: rows if alone and name not in self.parameters else torch.stack(rows) for name, rows in values.items()}
        return fields, [domain for domain, _ in made] if alone else None

    def points(self) -> int:
        """Return about how many points a sample has."""
        domain = self.domain()
        return 4096 if domain is None else len(domain)

    def residual(self, domain: Domain, values: Mapping[str, Tensor]) -> Tensor | None:
        """Return the relative residual (n,) of fields (n, K) in the equation; None if there is no way to compute it.

        Fields that are functions of time are (n, T, K).
        """
        return None

    def admissible(self, values: Mapping[str, Tensor]) -> Tensor:
        """Return True for each sample whose fields (n, K) the equation allows."""
        return torch.stack([torch.isfinite(rows).flatten(1).all(1) for rows in values.values()]).all(0)

    def describe(self) -> dict[str, Any]:
        """Return the name and the parameters, as they go into dataset.json."""
        return {"name": self.name, **asdict(self)}

    def generate(self, n: int, seed: int = 0, out: str | os.PathLike[str] | None = None, **options: Any) -> Any:
        """Make a dataset of n samples, in memory or in the folder `out`. Options are those of `make_dataset`."""
        from gkn.data.generate import make_dataset

        return make_dataset(self, n, seed, out, **options)


@dataclass(frozen=True)
class RandomFieldProblem(Problem):
    """A problem whose input is a function of one draw of a Gaussian field. Samples are drawn one by one and solved together."""

    size: int
    on_gpu: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Refuse impossible parameters at once, before another dataset in the output folder is removed."""
        if self.size < 3:
            raise ValueError(f"{self.name}: size = {self.size}; needed at least 3 points a side, one of them inside")
        self.field()

    @abstractmethod
    def field(self) -> GaussianField:
        """Return the field the random functions are drawn from."""

    @abstractmethod
    def solved(self, domain: Domain, draws: Tensor) -> Fields:
        """Return all fields (n, K), given draws (n, K) of the random field on the domain."""

    def sample(self, seed: int, i: int) -> tuple[Domain, dict[str, Tensor]]:
        made, domains = self.make(seed, range(i, i + 1), "cpu")
        domain = self.domain() if domains is None else domains[0]
        assert domain is not None
        return domain, {name: rows[0] for name, rows in made.items()}

    def make(self, seed: int, samples: range, device: str) -> tuple[Fields, list[Domain] | None]:
        domain = self.domain()
        assert domain is not None
        return self.solved(domain, self.draw(seed, samples, device)(domain)), None

    def draw(self, seed: int, samples: range, device: str) -> Series:
        """Draw one random function per sample, each from its own generator, on the CPU for every device."""
        field = self.field()
        device = device if self.on_gpu else "cpu"
        with ThreadPoolExecutor(1 if device == "cpu" else os.cpu_count()) as pool:
            draws = pool.map(lambda i: field.draw(1, stream(seed, i)).coefficients, samples)
            return Series(field, torch.cat([*draws]).to(device))


def problem_named(name: str, **parameters: Any) -> Problem:
    """Return the problem with this name; parameters replace its defaults."""
    if name not in PROBLEMS:
        raise ValueError(f"no problem {name!r}; there are {', '.join(PROBLEMS)}")
    known = [field.name for field in fields(PROBLEMS[name])]
    unknown = [key for key in parameters if key not in known]
    if unknown:
        raise ValueError(f"problem {name} has no parameter {unknown[0]!r}; it has {', '.join(known)}")
    return PROBLEMS[name](**parameters)
