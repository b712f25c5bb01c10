"""OverTime: the part of a dataset that has to do with time: trajectories, and views of their states."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from gkn.data.pairs import Map, Pairs, steps_of
from gkn.data.sample import Trajectory
from gkn.data.source import Source, Window
from gkn.data.stepping import STEP, TIME, Stepping
from gkn.geometry.domain import Domain
from gkn.geometry.frame import Frame

if TYPE_CHECKING:
    from gkn.data.dataset import Dataset


class OverTime:
    """Trajectories, and views of them. `Dataset` is the only subclass and has everything that is declared here."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    _source: Source
    _index: Sequence[int]
    _nodes: Tensor | None
    if TYPE_CHECKING:

        @property
        def frame(self) -> Frame | None: ...
        def __len__(self) -> int: ...
        def _position(self, i: Any) -> int: ...
        def _view(self, **changes: Any) -> Dataset: ...
        def value(self, name: str, i: int) -> Tensor: ...
        def domain_of(self, i: int) -> Domain: ...

    @property
    def in_time(self) -> bool:
        """True if the samples are trajectories: their outputs are functions of time."""
        return bool({*self.outputs} & {*self._source.evolving})

    def times(self, i: int) -> Float[Tensor, " T"]:
        """Return the times of one trajectory."""
        return self._source.times(self._index[self._position(i)])

    @property
    def stepping(self) -> Stepping | None:
        """The stepping by which pairs of states were made of trajectories, if the samples are such pairs."""
        return self._source.stepping

    def reference(self, i: int) -> Float[Tensor, "K o"] | None:
        """Return what is added to the outputs before a relative error is taken of them; None: nothing."""
        found = self._source.reference(self._index[self._position(i)])
        if found is None:
            return None
        values = torch.stack([found[name] for name in self.outputs], -1)
        return values if self._nodes is None else values[self._nodes]

    def trajectory(self, i: int) -> Trajectory:
        """Return one trajectory: its domain, times, states, and static inputs."""
        if not self.in_time:
            raise ValueError(f"{self!r} has no times; trajectories are made with Dataset(..., times=...)")
        u = torch.stack([self.value(name, i) for name in self.outputs], -1)
        rows = [self.value(name, i) for name in self.inputs]
        a = torch.stack(rows, -1) if rows else u.new_zeros(u.shape[1], 0)
        return Trajectory(self.domain_of(i), a, self.times(i), u, self.frame)

    def pairs(self, stepping: Stepping | None = None) -> Dataset:
        """Return the pairs of states (t, t + tau) of the trajectories as samples, from which an operator learns to step."""
        self._needs_times("pairs")
        chosen = stepping or Stepping()
        steps = steps_of([self.times(i) for i in range(len(self))], chosen)
        source = Pairs(self._source, self.outputs, chosen, [(int(self._index[i]), j, k) for i, j, k in steps])
        inputs = (*source.inputs, *self.inputs, *([TIME] if chosen.clock else []), STEP)
        return self._view(source=source, index=range(source.n), inputs=inputs, outputs=tuple(source.targets))

    def between(self, first: int = 0, last: int = -1) -> Dataset:
        """Return samples whose input is the state at one recorded time, and whose output is that at another one.

        first, last   numbers of the times; negative ones count from the end. Fields are called u_start and u_end
        """
        self._needs_times("between")
        for i in range(len(self)):
            count = len(self.times(i))
            if not (-count <= first < count and -count <= last < count and first % count != last % count):
                raise ValueError(f"Dataset.between({first}, {last}): trajectory {i} has the times 0 to {count - 1}, or -1")
        source = Map(self._source, self.outputs, first, last)
        return self._view(source=source, inputs=(*source.starts, *self.inputs), outputs=tuple(source.ends))

    def window(self, first: int | None = None, last: int | None = None) -> Dataset:
        """Return the trajectories with the times number first to last - 1 only, as in times[first:last]."""
        self._needs_times("window")
        for i in range(len(self)):
            if len(self.times(i)[first:last]) < 2:
                raise ValueError(
                    f"Dataset.window({first}, {last}): of the {len(self.times(i))} times of trajectory {i} needed two"
                )
        return self._view(source=Window(self._source, first, last))

    def leads(self) -> Dataset:
        """Return the pairs that end where these pairs begin, sample by sample."""
        source = self._source.leads()
        if source is None:
            raise ValueError("Dataset.leads: these samples are no pairs of states; make them with dataset.pairs()")
        return self._view(source=source)

    def _needs_times(self, name: str) -> None:
        if not self.in_time or not len(self):
            what = "has no times; give Dataset(..., times=...)" if len(self) else "has no samples"
            raise ValueError(f"Dataset.{name}: this dataset {what}")
