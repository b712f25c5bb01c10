"""Stepping: choices for learning from trajectories, as pairs of states with the time between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

TARGETS = ("value", "difference", "quotient")
SUFFIXES = {"value": "next", "difference": "change", "quotient": "rate"}
"""End of the name of an output, by target: u_next, u_change or u_rate."""
PAIRS = ("one", "all")
TIME, STEP = "t", "tau"
"""Names of the parameters of a pair: the time of the first state, and the time to the second."""


@dataclass(frozen=True)
class Stepping:
    """Choices for learning steps from a state at time t to one at t + tau. Inputs are u(t), what does not change, t and tau.

    target     value: u(t + tau). difference: u(t + tau) - u(t). quotient: (u(t + tau) - u(t)) / tau. Whatever the target,
               the loss and the validation error are those of u(t + tau)
    pairs      one: from each recorded time to the next. all: to all later ones, up to `longest`
    longest    largest tau of all pairs, in the unit of the times; None: half of the longest trajectory
    history    number of states that are inputs: u(t), and those at the recorded times before
    clock      t is an input. Leave it out if the law does not depend on time: then rollouts may go on beyond the training data
    conditioned   normalisation layers of the network are scaled by functions of t and tau
    held       fields whose values at the boundary a rollout keeps; None: those that never change there in the training data
    """

    target: str = "quotient"
    pairs: str = "one"
    longest: float | None = None
    history: int = 1
    clock: bool = True
    conditioned: bool = True
    held: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        for name, choices in (("target", TARGETS), ("pairs", PAIRS)):
            if getattr(self, name) not in choices:
                raise ValueError(f"Stepping({name}={getattr(self, name)!r}): use one of {', '.join(choices)}")
        if self.longest is not None and not (isinstance(self.longest, int | float) and 0 < self.longest < float("inf")):
            raise ValueError(f"Stepping(longest={self.longest!r}): needed a time > 0, or None")
        if self.longest is not None and self.pairs != "all":
            raise ValueError(f"Stepping(longest={self.longest}): this is the limit of all pairs; needed pairs='all'")
        if type(self.history) is not int or self.history < 1:
            raise ValueError(f"Stepping(history={self.history!r}): needed a whole number, at least 1")
        for name in ("clock", "conditioned"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"Stepping({name}={getattr(self, name)!r}): needed True or False")

        if isinstance(self.held, str) or not all(isinstance(name, str) for name in self.held or ()):
            raise ValueError(f"Stepping(held={self.held!r}): needed names of fields, e.g. held=('u',), or None")

    @property
    def suffix(self) -> str:
        """End of the names of the outputs."""
        return SUFFIXES[self.target]

    def json(self) -> dict[str, Any]:
        return {**vars(self), "held": None if self.held is None else [*self.held]}

    @staticmethod
    def from_json(said: Mapping[str, Any]) -> Stepping:
        held = said.get("held")
        return Stepping(**{**said, "held": None if held is None else tuple(map(str, held))})


def earlier(name: str, states: int) -> str:
    """Return the name of the field that is `name` so many recorded times before t."""
    return f"{name}[-{states}]" if states else name
