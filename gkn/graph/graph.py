"""Graph: who receives from whom, as neighbourhoods N(x) of targets among sources."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, wraps
from itertools import pairwise
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

P = ParamSpec("P")
T = TypeVar("T")


def _outside_inference(method: Callable[P, T]) -> Callable[P, T]:
    """What is kept must not be made of inference tensors: the graph may be used for training next."""

    @wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        if not torch.is_inference_mode_enabled():
            return method(*args, **kwargs)
        with torch.inference_mode(False):
            return method(*args, **kwargs)

    return call


@dataclass(frozen=True, eq=False)
class Graph:
    """Target i receives from the sources `src[ptr[i]:ptr[i+1]]`: bipartite, compressed by rows.

    One type for edges inside a level, between levels, and from nodes to queries. A target may have no neighbours, and the
    same edge may be there twice (it then counts twice). Sources are numbered from 0 to `num_sources` - 1.
    """

    ptr: Tensor  # (targets + 1,), int64, from 0 to the number of edges, never falling
    src: Tensor  # (edges,), int32: half the bytes, and 2^31 sources fit on no machine
    num_sources: int

    def __post_init__(self) -> None:
        for name, given in (("ptr", self.ptr), ("src", self.src)):
            if not isinstance(given, Tensor) or given.ndim != 1 or given.dtype not in (torch.int32, torch.int64):
                what = f"{given.dtype} of shape {tuple(given.shape)}" if isinstance(given, Tensor) else type(given).__name__
                raise ValueError(f"Graph: {name} is {what}; needed a vector of int32 or int64")
        if self.ptr.device != self.src.device:
            raise ValueError(f"Graph: ptr is on {self.ptr.device}, src on {self.src.device}; needed one device")
        object.__setattr__(self, "num_sources", operator.index(self.num_sources))
        if not 0 <= self.num_sources < 2**31:
            raise ValueError(f"Graph: {self.num_sources} sources; needed 0 to {2**31 - 1}")
        if not len(self.ptr) or int(self.ptr[0]) != 0 or int(self.ptr[-1]) != len(self.src) or (self.ptr.diff() < 0).any():
            raise ValueError(f"Graph: ptr must rise from 0 to the number of edges, {len(self.src)}, without ever falling")
        if len(self.src) and not (int(self.src.min()) >= 0 and int(self.src.max()) < self.num_sources):
            raise ValueError(
                f"Graph: src names sources {int(self.src.min())} to {int(self.src.max())}, "
                f"there are only 0 to {self.num_sources - 1}"
            )
        object.__setattr__(self, "ptr", self.ptr.long().contiguous())
        object.__setattr__(self, "src", self.src.int().contiguous())

    @staticmethod
    def trusted(ptr: Tensor, src: Tensor, num_sources: int) -> Graph:
        """Without the checks, for arrays that are right by construction."""
        graph = object.__new__(Graph)
        for name, value in (("ptr", ptr), ("src", src), ("num_sources", num_sources)):
            object.__setattr__(graph, name, value)
        return graph

    @staticmethod
    def of_edges(sources: Tensor, targets: Tensor, num_sources: int, num_targets: int) -> Graph:
        """From pairs in any order. Neighbours of a target keep the order they have here."""
        for name, given in (("sources", sources), ("targets", targets)):
            if given.is_floating_point() or given.is_complex() or given.dtype == torch.bool:
                raise ValueError(f"Graph.of_edges: {name} are {given.dtype}; needed integers")
        if sources.shape != targets.shape or sources.ndim != 1:
            raise ValueError(f"Graph.of_edges: {tuple(sources.shape)} sources, {tuple(targets.shape)} targets; needed pairs")
        if len(targets) and not (int(targets.min()) >= 0 and int(targets.max()) < num_targets):
            raise ValueError(
                f"Graph.of_edges: targets {int(targets.min())} to {int(targets.max())}, there are only 0 to {num_targets - 1}"
            )
        order = torch.argsort(targets, stable=True)
        return Graph(offsets(torch.bincount(targets.long(), minlength=num_targets)), sources[order], num_sources)

    def __getstate__(self) -> dict[str, object]:
        """What it is, without what it has worked out about itself."""
        return {name: getattr(self, name) for name in ("ptr", "src", "num_sources", "cuts")}

    def __repr__(self) -> str:
        return f"Graph({self.num_targets} targets <- {self.num_sources} sources, {self.num_edges} edges)"

    @property
    def num_targets(self) -> int:
        return len(self.ptr) - 1

    @property
    def num_edges(self) -> int:
        return len(self.src)

    @property
    def device(self) -> torch.device:
        return self.src.device

    @cached_property
    @_outside_inference
    def degrees(self) -> Tensor:
        """(targets,), int64."""
        return self.ptr.diff()

    @cached_property
    @_outside_inference
    def targets(self) -> Tensor:
        """(edges,), int32: the target of each edge."""
        nodes = torch.arange(self.num_targets, dtype=torch.int32, device=self.device)
        return nodes.repeat_interleave(self.degrees, output_size=self.num_edges)

    def to(self, device: torch.device | str) -> Graph:
        return Graph.trusted(self.ptr.to(device), self.src.to(device), self.num_sources).cut(self.cuts)

    @cached_property
    @_outside_inference
    def by_source(self) -> tuple[Tensor, Tensor]:
        """(sources + 1,) offsets and (edges,) numbers of edges: the edges of each source, in the order they have here."""
        order = torch.argsort(self.src, stable=True)
        return offsets(torch.bincount(self.src, minlength=self.num_sources)), order.int() if len(order) < 2**31 else order

    def transpose(self) -> tuple[Graph, Tensor]:
        """Sources receive from targets; also the number here of each edge there."""
        ptr, order = self.by_source
        return Graph.trusted(ptr, self.targets[order], self.num_targets), order

    @cached_property
    @_outside_inference
    def reverse(self) -> Graph:
        """Sources receive from targets."""
        return self.transpose()[0]

    @staticmethod
    def batch(graphs: Sequence[Graph]) -> Graph:
        """Side by side, without an edge between them: targets and sources are numbered on."""
        if not graphs:
            raise ValueError("Graph.batch: no graphs; needed at least one")
        sources = sum(graph.num_sources for graph in graphs)
        if sources >= 2**31:
            raise ValueError(f"Graph.batch: {sources} sources together; needed less than 2^31")
        ptr, src, cuts, edges, nodes = [graphs[0].ptr[:1]], [], [0], 0, 0
        for graph in graphs:
            ptr.append(graph.ptr[1:] + edges)
            src.append(graph.src + nodes)
            cuts += [nodes + cut for cut in graph.cuts[1:]]
            edges, nodes = edges + graph.num_edges, nodes + graph.num_sources
        whole = Graph.trusted(torch.cat(ptr), torch.cat(src), nodes)
        return whole.cut(tuple(cuts)) if all(graph.num_sources == graph.num_targets for graph in graphs) else whole

    @cached_property
    def cuts(self) -> tuple[int, ...]:
        """0, ..., number of targets: no edge crosses a cut. Those known from `batch`, not all there may be."""
        return 0, self.num_targets

    @cached_property
    def made_of(self) -> tuple[Tensor, Tensor] | None:
        """The points of its nodes and their weights, where somebody has said so: not as turned or rounded since."""
        return None

    def of(self, points: Tensor, weights: Tensor) -> Graph:
        """Say which points these are. Who has worked something out of them keeps it with the graph."""
        if self.made_of is None:
            self.__dict__["made_of"] = (points, weights)
        return self

    def cut(self, cuts: tuple[int, ...]) -> Graph:
        """Say that no edge crosses these cuts, which is not checked."""
        self.__dict__["cuts"] = cuts
        return self

    @_outside_inference
    def between(self, start: int, stop: int) -> Graph:
        """The graph of the nodes between two cuts, numbered from 0. Kept, with what it works out about itself."""
        if (start, stop) == (0, self.num_targets):
            return self
        if (start, stop) not in self._pieces:
            part = self.part(start, stop)
            piece = Graph.trusted(part.ptr, part.src - start, stop - start)
            piece.__dict__["max_degree"] = part.max_degree
            self._pieces[start, stop] = piece
        return self._pieces[start, stop]

    def split(self, cuts: Sequence[int]) -> list[Graph]:
        """The graphs between the cuts 0, ..., targets, each with what this one has worked out about itself: nothing is sorted,
        and no number asked for, again."""
        ptr, host, (of_source, order) = self.ptr, self._host_ptr, self.by_source
        found = []
        for start, stop in pairwise(cuts):
            first, last = int(host[start]), int(host[stop])
            nodes = slice(start, stop + 1)
            piece = Graph.trusted(ptr[nodes] - first, self.src[first:last] - start, stop - start)
            inner = tuple(cut - start for cut in self.cuts if start <= cut <= stop)
            kept = {
                "_host_ptr": host[nodes] - first,
                "degrees": self.degrees[start:stop],
                "max_degree": int(host[nodes].diff().max()) if stop > start else 0,
                # No source has an edge elsewhere: those of these sources are those of this piece.
                "by_source": (of_source[nodes] - first, order[first:last] - first),
            }
            piece.__dict__.update(kept)
            if self.made_of is not None:
                piece.of(*(each[start:stop] for each in self.made_of))
            found.append(piece.cut(inner))
        return found

    @cached_property
    def _pieces(self) -> dict[tuple[int, int], Graph]:
        return {}

    @_outside_inference
    def part(self, start: int, stop: int) -> Graph:
        """Targets `start` to `stop` only. Kept, with what it works out about itself: every step asks for it again."""
        if not 0 <= start <= stop <= self.num_targets:
            raise ValueError(f"Graph.part({start}, {stop}): needed 0 <= start <= stop <= {self.num_targets}")
        if (start, stop) in self._parts:
            return self._parts[start, stop]
        host = self._host_ptr[start : stop + 1]
        first, last = int(host[0]), int(host[-1])
        part = Graph.trusted(self.ptr[start : stop + 1] - first, self.src[first:last], self.num_sources)
        part.__dict__["max_degree"] = int(host.diff().max()) if stop > start else 0  # known here without asking the GPU
        self._parts[start, stop] = part
        return part

    @cached_property
    def _parts(self) -> dict[tuple[int, int], Graph]:
        return {}

    @cached_property
    @_outside_inference
    def compact(self) -> tuple[Graph, Tensor]:
        """Without the sources nobody asks, which matters for a part of a large graph; and which sources are left."""
        left, src = torch.unique(self.src, return_inverse=True)
        graph = Graph.trusted(self.ptr, src.int(), len(left))
        graph.__dict__["max_degree"] = self.max_degree
        return graph, left

    def edges_before(self, targets: Sequence[int]) -> list[int]:
        """How many edges come before those of each of these targets."""
        return [int(self._host_ptr[target]) for target in targets]

    @cached_property
    @_outside_inference
    def _host_ptr(self) -> Tensor:
        return self.ptr.cpu()

    def blocks(self, edges: int, targets: int) -> Iterator[tuple[int, int]]:
        """Ranges of targets with at most that many edges (or a single target) and that many targets each."""
        if edges < 1 or targets < 1:
            raise ValueError(f"Graph.blocks({edges}, {targets}): needed at least one of each")
        ptr, start = self._host_ptr, 0
        while start < self.num_targets:
            stop = int(torch.searchsorted(ptr, ptr[start] + edges, right=True)) - 1
            stop = min(max(stop, start + 1), start + targets, self.num_targets)
            yield start, stop
            start = stop

    @cached_property
    @_outside_inference
    def by_degree(self) -> tuple[Graph, Tensor]:
        """The same with targets sorted by degree, so that equal degrees lie side by side; and which target is where."""
        order = torch.argsort(self.degrees, stable=True)
        return Graph.trusted(offsets(self.degrees[order]), self.src[self.edges_by_degree], self.num_sources), order

    @cached_property
    @_outside_inference
    def nodes_by_degree(self) -> tuple[Graph, Tensor]:
        """The same where targets and sources are one set of nodes, which are renumbered; and which node is where."""
        graph, order = self.by_degree
        place = torch.empty_like(order).index_copy_(0, order, torch.arange(len(order), device=order.device))
        return Graph.trusted(graph.ptr, place.index_select(0, graph.src).int(), self.num_sources), order

    @property
    def edges_by_degree(self) -> Tensor:
        """Which edge is where in `by_degree`."""
        order = torch.argsort(self.degrees, stable=True)
        degrees = self.degrees[order]
        edge = torch.arange(self.num_edges, device=self.device)
        edge += (self.ptr[order] - offsets(degrees)[:-1]).repeat_interleave(degrees, output_size=self.num_edges)
        return edge

    @cached_property
    def is_sorted(self) -> bool:
        """Degrees never fall from one target to the next."""
        return not bool((self.degrees.diff() < 0).any())

    @cached_property
    def max_degree(self) -> int:
        return int(self.degrees.max()) if self.num_targets else 0


def offsets(counts: Tensor) -> Tensor:
    """0, n_0, n_0 + n_1, ..."""
    return torch.cat([counts.new_zeros(1), counts.cumsum(0)])
