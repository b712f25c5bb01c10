"""Graph: neighbourhoods N(x) of targets among sources."""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, wraps
from itertools import pairwise
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from gkn.graph.images import Images

P = ParamSpec("P")
T = TypeVar("T")


def _outside_inference(method: Callable[P, T]) -> Callable[P, T]:
    """Compute cached values outside of inference mode, because the graph may be used for training next."""

    @wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        if not torch.is_inference_mode_enabled():
            return method(*args, **kwargs)
        with torch.inference_mode(False):
            return method(*args, **kwargs)

    return call


@dataclass(frozen=True, eq=False)
class Graph:
    """Target i receives from the sources `src[ptr[i]:ptr[i+1]]`: a bipartite graph in compressed rows.

    One type for edges inside a level, between levels, and from nodes to query points. A target may have no neighbours, and
    the same edge may occur twice (it then counts twice).

        ptr           (targets + 1,), int64, rising from 0 to the number of edges
        src           (edges,), int32: half the bytes of int64, and 2^31 sources fit on no machine
        num_sources   sources are numbered from 0 to num_sources - 1
        cuts          0, ..., number of targets: no edge crosses a cut. Known from `batch`; there may be more
        made_of       the points and quadrature weights of the nodes, as the rule saw them
        images        on a periodic domain, copies of nodes that are the last sources
        moments       (targets, polynomials) moments of the balls of the targets, see gkn/graph/moments.py; None: not known
        present       (targets,) bool: False for nodes without edges and weight that only fill up a batch; None: there are none
    """

    ptr: Tensor
    src: Tensor
    num_sources: int
    cuts: tuple[int, ...] = ()
    made_of: tuple[Tensor, Tensor] | None = None
    images: Images | None = None
    moments: Tensor | None = None
    present: Tensor | None = None

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
        object.__setattr__(self, "cuts", self.cuts or (0, self.num_targets))

    @staticmethod
    def trusted(
        ptr: Tensor,
        src: Tensor,
        num_sources: int,
        cuts: tuple[int, ...] = (),
        made_of: tuple[Tensor, Tensor] | None = None,
        images: Images | None = None,
        moments: Tensor | None = None,
        **known: Any,
    ) -> Graph:
        """Make a graph of arrays that are right by construction, without checks. `known`: properties computed already."""
        graph = object.__new__(Graph)
        cuts = cuts or (0, len(ptr) - 1)
        of: dict[str, Any] = {"cuts": cuts, "made_of": made_of, "images": images, "moments": moments, **known}
        graph.__dict__.update(ptr=ptr, src=src, num_sources=num_sources, **of)
        return graph

    @staticmethod
    def of_edges(sources: Tensor, targets: Tensor, num_sources: int, num_targets: int) -> Graph:
        """Make a graph of pairs in any order. The neighbours of a target keep the order they have here."""
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

    @staticmethod
    def batch(graphs: Sequence[Graph]) -> Graph:
        """Put graphs side by side, without edges between them: their nodes are numbered one graph after the other."""
        if not graphs:
            raise ValueError("Graph.batch: no graphs; needed at least one")
        sources = sum(graph.num_sources for graph in graphs)
        if sources >= 2**31:
            raise ValueError(f"Graph.batch: {sources} sources together; needed less than 2^31")
        images = [graph.images for graph in graphs if graph.images is not None]
        total, moved = sum(graph.num_nodes for graph in graphs), 0
        ptr, src, cuts, edges, nodes = [graphs[0].ptr[:1]], [], [0], 0, 0
        for graph in graphs:
            ptr.append(graph.ptr[1:] + edges)
            if graph.images is None:
                src.append(graph.src + nodes)
            else:  # images come after the nodes of all graphs
                src.append(
                    torch.where(graph.src < graph.num_nodes, graph.src + nodes, graph.src + (total - graph.num_nodes + moved))
                )
                moved += len(graph.images)
            cuts += [nodes + cut for cut in graph.cuts[1:]]
            edges, nodes = edges + graph.num_edges, nodes + graph.num_nodes
        one_set = all(graph.num_nodes == graph.num_targets for graph in graphs)
        joined = Images.batch(images, [graph.num_nodes for graph in graphs]) if images else None
        each = [graph.moments for graph in graphs if graph.moments is not None]
        moments = torch.cat(each) if len(each) == len(graphs) else None
        present = None
        if any(graph.present is not None for graph in graphs):
            ones = [graph.ptr.new_ones(graph.num_targets, dtype=torch.bool) for graph in graphs]
            filled = [one if graph.present is None else graph.present for one, graph in zip(ones, graphs, strict=True)]
            present = torch.cat(filled)
        arrays = torch.cat(ptr), torch.cat(src), sources, tuple(cuts) if one_set else ()
        return Graph.trusted(*arrays, None, joined, moments, present=present)

    def __getstate__(self) -> dict[str, object]:
        """Pickle the graph without what was computed from it."""
        return {name: getattr(self, name) for name in ("ptr", "src", "num_sources", "cuts", "images", "moments", "present")}

    def __repr__(self) -> str:
        return f"Graph({self.num_targets} targets <- {self.num_sources} sources, {self.num_edges} edges)"

    def to(self, device: torch.device | str) -> Graph:
        """Return the graph on another device."""
        images = None if self.images is None else self.images.to(device)
        moments = None if self.moments is None else self.moments.to(device)
        present = None if self.present is None else self.present.to(device)
        arrays = self.ptr.to(device), self.src.to(device), self.num_sources, self.cuts
        return Graph.trusted(*arrays, None, images, moments, present=present)

    def with_points(self, points: Tensor, weights: Tensor) -> Graph:
        """Return the graph with the points and weights it was made of. Levels computed from them are cached with the graph."""
        arrays = self.ptr, self.src, self.num_sources, self.cuts
        return Graph.trusted(*arrays, (points, weights), self.images, self.moments, present=self.present)

    def with_moments(self, moments: Tensor | None) -> Graph:
        """Return the graph with the moments of the balls of its targets."""
        arrays = self.ptr, self.src, self.num_sources, self.cuts
        return Graph.trusted(*arrays, self.made_of, self.images, moments, present=self.present)

    def filled(self, size: int) -> Graph:
        """Return the graph of one function with further nodes up to a number of them, which have no edges and no weight."""
        more = size - self.num_targets
        present = torch.arange(size, device=self.device) < self.num_targets
        made_of = None
        if self.made_of is not None:
            points, weights = self.made_of
            made_of = filled_rows(points, size), torch.cat([weights, weights.new_zeros(more)])
        ptr = torch.cat([self.ptr, self.ptr[-1:].expand(more)])
        return Graph.trusted(ptr, self.src, self.num_sources + more, (0, size), made_of, present=present)

    def cached(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return `make()`, computed once for each key and kept with the graph."""
        if key not in self._cache:
            self._cache[key] = make()
        kept: T = self._cache[key]
        return kept

    @cached_property
    def _cache(self) -> dict[Hashable, Any]:
        return {}

    # --- sizes and edges

    @property
    def num_targets(self) -> int:
        return len(self.ptr) - 1

    @property
    def num_nodes(self) -> int:
        """Number of sources that are no images."""
        return self.num_sources - (0 if self.images is None else len(self.images))

    @property
    def sizes(self) -> list[int]:
        """Number of targets of each graph of a batch."""
        return sizes_of(self.cuts)

    @property
    def num_edges(self) -> int:
        return len(self.src)

    @property
    def device(self) -> torch.device:
        return self.src.device

    @cached_property
    @_outside_inference
    def degrees(self) -> Tensor:
        """Number of neighbours of each target: (targets,), int64."""
        return self.ptr.diff()

    @cached_property
    def max_degree(self) -> int:
        return int(self.degrees.max()) if self.num_targets else 0

    @cached_property
    def is_sorted(self) -> bool:
        """True if degrees never fall from one target to the next."""
        return not bool((self.degrees.diff() < 0).any())

    @cached_property
    @_outside_inference
    def targets(self) -> Tensor:
        """Target of each edge: (edges,), int32."""
        nodes = torch.arange(self.num_targets, dtype=torch.int32, device=self.device)
        return nodes.repeat_interleave(self.degrees, output_size=self.num_edges)

    @cached_property
    @_outside_inference
    def by_source(self) -> tuple[Tensor, Tensor]:
        """The edges of each source: (sources + 1,) offsets, and (edges,) numbers of edges in the order they have here."""
        order = torch.argsort(self.src, stable=True)
        return offsets(torch.bincount(self.src, minlength=self.num_sources)), order.int() if len(order) < 2**31 else order

    @cached_property
    @_outside_inference
    def _host_ptr(self) -> Tensor:
        return self.ptr.cpu()

    def edges_before(self, targets: Sequence[int]) -> list[int]:
        """Return the number of edges before those of each of these targets."""
        return [int(self._host_ptr[target]) for target in targets]

    # --- other graphs made of this one

    def transpose(self) -> tuple[Graph, Tensor]:
        """Return the graph in which sources receive from targets, and the number here of each edge there."""
        ptr, order = self.by_source
        return Graph.trusted(ptr, self.targets[order], self.num_targets), order

    @cached_property
    @_outside_inference
    def reverse(self) -> Graph:
        """The graph in which sources receive from targets."""
        return self.transpose()[0]

    @_outside_inference
    def between(self, start: int, stop: int) -> Graph:
        """Return the graph of the nodes between two cuts, numbered from 0. It is cached."""
        if (start, stop) == (0, self.num_targets):
            return self

        def make() -> Graph:
            part = self.part(start, stop)
            return Graph.trusted(part.ptr, part.src - start, stop - start, max_degree=part.max_degree)

        return self.cached(("between", start, stop), make)

    @_outside_inference
    def part(self, start: int, stop: int) -> Graph:
        """Return the graph of targets `start` to `stop` with all sources. It is cached, because every step uses it again."""
        if not 0 <= start <= stop <= self.num_targets:
            raise ValueError(f"Graph.part({start}, {stop}): needed 0 <= start <= stop <= {self.num_targets}")

        def make() -> Graph:
            host = self._host_ptr[start : stop + 1]
            first, last = int(host[0]), int(host[-1])
            degree = int(host.diff().max()) if stop > start else 0  # known here without a transfer from the GPU
            return Graph.trusted(self.ptr[start : stop + 1] - first, self.src[first:last], self.num_sources, max_degree=degree)

        return self.cached(("part", start, stop), make)

    def split(self, cuts: Sequence[int]) -> list[Graph]:
        """Return the graphs between the cuts 0, ..., targets, each with what this one has computed: nothing is sorted again."""
        ptr, host, (of_source, order) = self.ptr, self._host_ptr, self.by_source
        pieces = []
        for start, stop in pairwise(cuts):
            first, last = int(host[start]), int(host[stop])
            nodes = slice(start, stop + 1)
            inner = tuple(cut - start for cut in self.cuts if start <= cut <= stop)
            made_of = None if self.made_of is None else (self.made_of[0][start:stop], self.made_of[1][start:stop])
            known: dict[str, Any] = {
                "_host_ptr": host[nodes] - first,
                "degrees": self.degrees[start:stop],
                "max_degree": int(host[nodes].diff().max()) if stop > start else 0,
                # No source has an edge in another piece.
                "by_source": (of_source[nodes] - first, order[first:last] - first),
            }
            src = self.src[first:last] - start
            moments = None if self.moments is None else self.moments[start:stop]
            known["present"] = None if self.present is None else self.present[start:stop]
            pieces.append(Graph.trusted(ptr[nodes] - first, src, stop - start, inner, made_of, moments=moments, **known))
        return pieces

    @cached_property
    @_outside_inference
    def compact(self) -> tuple[Graph, Tensor]:
        """The graph without sources that have no edge, which matters for a part of a large graph; and the sources left."""
        left, src = torch.unique(self.src, return_inverse=True)
        return Graph.trusted(self.ptr, src.int(), len(left), max_degree=self.max_degree), left

    def blocks(self, edges: int, targets: int) -> Iterator[tuple[int, int]]:
        """Yield ranges of targets with at most that many edges (or a single target) and that many targets each."""
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
        """The graph with targets sorted by degree, so that equal degrees are adjacent; and the target at each place."""
        order = torch.argsort(self.degrees, stable=True)
        moments = None if self.moments is None else self.moments[order]
        src = self.src[self.edges_by_degree]
        return Graph.trusted(offsets(self.degrees[order]), src, self.num_sources, moments=moments), order

    @cached_property
    @_outside_inference
    def nodes_by_degree(self) -> tuple[Graph, Tensor]:
        """The graph with its nodes, which are targets and sources, renumbered by degree; and the node at each place."""
        graph, order = self.by_degree
        place = torch.empty_like(order).index_copy_(0, order, torch.arange(len(order), device=order.device))
        return Graph.trusted(graph.ptr, place.index_select(0, graph.src).int(), self.num_sources), order

    @property
    def edges_by_degree(self) -> Tensor:
        """The edge at each place of `by_degree`."""
        order = torch.argsort(self.degrees, stable=True)
        degrees = self.degrees[order]
        edge = torch.arange(self.num_edges, device=self.device)
        edge += (self.ptr[order] - offsets(degrees)[:-1]).repeat_interleave(degrees, output_size=self.num_edges)
        return edge

    # --- memory that is filled again, for recorded CUDA graphs

    def with_spare_memory(self, factor: float) -> Graph:
        """Return a copy with memory for `factor` times as many edges, which `refill` can overwrite.

        Unused edges run from node 0 to node 0 and lie in no target's range: sums over ranges never see them, and for sums
        over all edges they have no length.
        """
        spare = self.src.new_zeros(int(self.num_edges * (factor - 1)) + 1)
        back = Graph.trusted(self.reverse.ptr.clone(), torch.cat([self.reverse.src, spare]), self.reverse.num_sources)
        present = None if self.present is None else self.present.clone()
        known: dict[str, Any] = {"reverse": back, "targets": torch.cat([self.targets, spare]), "present": present}
        return Graph.trusted(self.ptr.clone(), torch.cat([self.src, spare]), self.num_sources, self.cuts, **known)

    def refill(self, other: Graph) -> None:
        """Overwrite the memory of a graph made by `with_spare_memory` with the edges of another graph of as many nodes."""
        for graph, new in ((self, other), (self.reverse, other.reverse)):
            graph.ptr.copy_(new.ptr)
            _overwrite(graph.src, new.src)
        _overwrite(self.targets, other.targets)
        if self.present is not None and other.present is not None:
            self.present.copy_(other.present)


def _overwrite(memory: Tensor, values: Tensor) -> None:
    memory[: len(values)].copy_(values)
    memory[len(values) :].zero_()


def filled_rows(x: Tensor, size: int) -> Tensor:
    """Return rows (size, ...): those of x, and the last one again and again."""
    return torch.cat([x, x[-1:].expand(size - len(x), *x.shape[1:])])


def window(x: Tensor, y: Tensor) -> Tensor:
    """Return the weight of each edge, (1 - |x - y|^2)^2 for points over the radius: smooth, so none jumps at the radius."""
    return (1 - (x - y).square().sum(1)).clamp_min(0).square()


def sizes_of(cuts: Sequence[int]) -> list[int]:
    """Return the number of points of each function of a batch, given the cuts between them."""
    return [stop - start for start, stop in pairwise(cuts)]


def offsets(counts: Tensor) -> Tensor:
    """Return 0, n_0, n_0 + n_1, ..."""
    return torch.cat([counts.new_zeros(1), counts.cumsum(0)])
