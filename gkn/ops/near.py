"""Integrals over balls with a small kernel network: hidden features of edges are never stored, in neither pass.

    out(x) = scale(x) sum_y w(y) window(x, y) v(y) kappa(x, y),   kappa = sum_k h_k W_k + B,
    h = silu(weight silu(p(x) + q(y)) + bias),   window = (1 - |x - y|^2)^2 in the unit ball

or, given values t(x) of the targets, of differences: h_k W_k is applied to v(y) - t(x), and B to v(y).

The gradient of v is the same integral over the reversed graph, of d with kappa transposed: one loop over edges does both. The
gradients of W and B are products of its sums with v. The two loops over edges are in near_triton.py for GPUs and in near.cpp
for processors.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor

from gkn.graph.graph import Graph
from gkn.ops.dense import mm, mm_into, parts_of, plus_mm
from gkn.ops.edges import Measure


class Network(NamedTuple):
    """The hidden layers of a small kernel network: p and q of targets and sources, and the second layer."""

    p: Tensor
    q: Tensor
    weight: Tensor
    bias: Tensor


class Gradients(NamedTuple):
    """Gradients of the integral. All but those of v and target_v are in float32.

    p, moved       of p, and sum dz (x) (f(y) - f(x))
    weight, bias   of the second layer
    W, B           of the last layer
    v, target_v         of the values of sources and of targets
    """

    p: Tensor
    moved: Tensor
    weight: Tensor
    bias: Tensor
    W: Tensor
    B: Tensor
    v: Tensor
    target_v: Tensor | None


class Near(ABC):
    """The balls of one graph, and features of targets and sources. All float32.

    weights      (sources,) quadrature weights, or None
    block_bytes  of sums at a time
    """

    block_bytes: int

    def __init__(self, graph: Graph, of_x: Tensor, of_y: Tensor, dim: int, weights: Tensor | None) -> None:
        self.graph, self.of_x, self.of_y, self.weights = graph, of_x.contiguous(), of_y.contiguous(), weights
        self.x, self.y = of_x[:, :dim].contiguous(), of_y[:, :dim].contiguous()

    @abstractmethod
    def measure(self, dtype: torch.dtype) -> Measure:
        """Return what the sums over edges are weighted by, without w, for `factored`."""

    @abstractmethod
    def summed(self, net: Network, v: Tensor, target_v: Tensor | None, part: slice | None, turned: bool = False) -> Tensor:
        """Return A and s of some targets, or with `turned` of some sources: (targets, k n + n).

        A(x)_k = scale(x) sum_y w(y) window h(x, y)_k v(y), with v(y) - t(x) given t, and s is as if one more h were 1, of v(y).
        """

    @abstractmethod
    def slopes(
        self,
        dA: Tensor,
        net: Network,
        values: tuple[Tensor, Tensor | None],
        some: slice,
        into: tuple[Tensor, Tensor | None, Tensor],
    ) -> list[Tensor]:
        """Return the gradients of weight, bias and moved, in several parts each, given dA of some targets.

        values   v and target_v
        into     memory for the gradients of p and target_v, and for the means of h, by which target_v is multiplied
        """

    def forward(self, net: Network, W: Tensor, B: Tensor, v: Tensor, target_v: Tensor | None) -> Tensor:
        """Return the integral of v, or with `target_v` of differences."""
        rows = torch.cat([W.flatten(0, 1), B])
        out = v.new_empty(self.graph.num_targets, rows.shape[1])
        for part in parts_of(len(out), self._block(rows)):
            mm_into(out if part is None else out[part], self.summed(net, v, target_v, part), rows)
        return out

    def backward(self, d: Tensor, net: Network, W: Tensor, B: Tensor, v: Tensor, target_v: Tensor | None) -> Gradients:
        """Return the gradients, given that of the integral."""
        k, n, m = W.shape
        rows = torch.cat([W.transpose(1, 2).reshape(k * m, n), B.T])
        total, dv = torch.zeros(rows.shape, device=v.device), torch.empty_like(v)
        for part in parts_of(len(v), self._block(rows)):
            sums = self.summed(net, d, None, part, turned=True)
            mm_into(dv if part is None else dv[part], sums, rows)
            plus_mm(total, sums.T, v if part is None else v[part])
        dW, dB = total[: k * m].view(k, m, n).transpose(1, 2).contiguous(), total[k * m :].T
        dp, (dweight, dbias, moved), down, means = self._slopes(d, net, W, v, target_v)
        if target_v is not None:
            less = torch.zeros(k * n, m, device=v.device)
            for part in parts_of(len(d), self._block(rows)):
                some = slice(0, len(d)) if part is None else part
                held = (means[some].to(v.dtype)[:, :, None] * target_v[some, None, :]).flatten(1)
                plus_mm(less, held.T, d[some])
            dW -= less.view(k, n, m)
        return Gradients(dp, moved, dweight, dbias, dW, dB, dv, down)

    def _slopes(
        self, d: Tensor, net: Network, W: Tensor, v: Tensor, target_v: Tensor | None
    ) -> tuple[Tensor, list[Tensor], Tensor | None, Tensor]:
        """Return the gradients of p, of the hidden layers and of target_v, and the means of h over each ball."""
        (k, n, m), c, f = W.shape, net.weight.shape[1], self.of_x.shape[1]
        dp, found = torch.empty_like(net.p), [net.p.new_zeros(size) for size in ((k, c), (k,), (c, f))]
        down = None if target_v is None else torch.empty_like(target_v)
        means = net.p.new_empty(0 if target_v is None else len(d), k)
        transposed = W.reshape(k * n, m).T
        for part in parts_of(len(d), self._block(transposed.T)):
            some = slice(0, len(d)) if part is None else part
            dA = mm(d[some], transposed)
            parts = self.slopes(dA, net, (v, target_v), some, (dp, down, means))
            for whole, each in zip(found, parts, strict=True):
                whole += each.sum(0)
        return dp, found, down, means

    def _block(self, rows: Tensor) -> int:
        return max(1, self.block_bytes // (rows.shape[0] * rows.element_size()))
