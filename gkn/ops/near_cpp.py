"""The loops of near.py over edges, in C++ (near.cpp)."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from gkn.graph.graph import Graph
from gkn.ops.edges import Measure
from gkn.ops.near import Near, Network
from gkn.system import native

SOURCE = Path(__file__).with_name("near.cpp")
GROUPS = 64
"""Groups of targets, at most, that add up gradients each on their own."""


@cache
def why_not() -> str | None:
    """Return why the loops cannot be had on this machine, or None if they can."""
    try:
        native.library(SOURCE)
    except native.NotCompiled as error:
        return str(error)
    return None


def fits(sizes: tuple[int, ...], dtype: torch.dtype) -> bool:
    """True if a kernel network is small enough: two hidden layers, a tile of whose features stays in the first cache."""
    few = len(sizes) == 2 and sizes[0] <= 64 and sizes[1] <= 32
    return few and dtype in (torch.float32, torch.bfloat16, torch.float16)


class CompiledNear(Near):
    """The loops on a processor. rho(x, y) = scale(x) w(y) window(x, y) is computed once, and is all that is kept of an edge.

    windows   windows of all edges, if they are not (1 - |x - y|^2)^2
    """

    block_bytes = 2**22

    def __init__(
        self, graph: Graph, of_x: Tensor, of_y: Tensor, dim: int, weights: Tensor | None, windows: Tensor | None = None
    ) -> None:
        super().__init__(graph, of_x, of_y, dim, None)
        self.rho = of_x.new_empty(len(graph.src)) if windows is None else windows.contiguous()
        given = weights, graph.ptr, graph.src, self.rho
        _call("measure", self.x, self.y, *given, graph.num_targets, dim, int(windows is not None))
        self._turned: Tensor | None = None

    def measure(self, dtype: torch.dtype) -> Measure:
        return Measure(self.graph, self.rho.to(dtype), self.rho.new_ones(self.graph.num_targets), "factored")

    def summed(self, net: Network, v: Tensor, target_v: Tensor | None, part: slice | None, turned: bool = False) -> Tensor:
        p, q, weight, bias = (x.float() for x in net)
        graph, rho, (k, c), n = self.graph, self.rho, weight.shape, v.shape[1]
        if turned:
            if self._turned is None:
                self._turned = self.rho.index_select(0, graph.by_source[1])
            p, q, graph, rho = q, p, graph.reverse, self._turned
        some = slice(0, len(p)) if part is None else part
        values = v.float(), None if target_v is None else target_v[some].float()
        sums = p.new_empty(some.stop - some.start, k * n + n)
        ptr = graph.ptr[some.start : some.stop + 1]
        _call("sums", p[some], q, weight, bias, *values, rho, ptr, graph.src, sums, len(sums), c, k, n)
        return sums.to(v.dtype)

    def slopes(
        self,
        dA: Tensor,
        net: Network,
        values: tuple[Tensor, Tensor | None],
        some: slice,
        into: tuple[Tensor, Tensor | None, Tensor],
    ) -> list[Tensor]:
        (p, q, weight, bias), (dp, down, means), dA = (x.float() for x in net), into, dA.float()
        v, target_v = (None if x is None else x.float() for x in values)
        (k, c), n, f, graph = weight.shape, values[0].shape[1], self.of_x.shape[1], self.graph
        group = -(-len(dA) // GROUPS)
        assert dp.is_contiguous()
        parts = [p.new_zeros(-(-len(dA) // max(1, group)), *size) for size in ((k, c), (k,), (c, f))]
        held = p.new_empty(len(dA), k)
        given = dA, p[some], q, self.of_x[some], self.of_y, weight, bias, v, None if target_v is None else target_v[some]
        measure = self.rho, graph.ptr[some.start : some.stop + 1], graph.src
        _call("slopes", *given, *measure, dp[some], held, *parts, len(dA), group, c, k, n, f)
        if down is not None:
            means[some] = held
            down[some] = -torch.bmm(held[:, None], dA.view(-1, k, n))[:, 0]
        return parts


def _call(name: str, *given: Tensor | int | None) -> None:
    """Call a function of near.cpp with tensors, numbers, and the number of threads. Tensors it writes to must be contiguous."""
    function = getattr(native.library(SOURCE), f"gkn_near_{name}")
    some = (x.contiguous() if isinstance(x, Tensor) else x for x in given)
    kept = [*some]
    function(*(_argument(x) for x in kept), ctypes.c_int64(torch.get_num_threads()))


def _argument(x: Tensor | int | None) -> ctypes.c_void_p | ctypes.c_int64:
    if isinstance(x, int):
        return ctypes.c_int64(x)
    return ctypes.c_void_p(0 if x is None else x.data_ptr())
