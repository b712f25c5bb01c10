"""Integrals over balls with a small kernel network, in Triton: nothing of an edge is ever in memory, in neither pass.

    out(x) = scale(x) sum_y window(x, y) v(y) kappa(x, y),   kappa = sum_k h_k W_k + B,
    h = relu(weight relu(p(x) + q(y)) + bias),   window = (1 - |x - y|^2)^2 in the unit ball

What v gets of the gradient is the same integral over the graph turned round, of d with kappa transposed: one kernel does both.
What W and B get are products of its sums with v, and what the network gets is added up by programs that have many targets each.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from gkn.graph import Graph
from gkn.ops import inverse
from gkn.ops.last import plus_product
from gkn.ops.tiles import dot, launch, parts_of, power, precision

# How many edges at a time, by how many warps, in how many stages: of sums, and of slopes, whose programs are at most so many.
SUMS = {2: (16, 2, 2), 4: (16, 4, 1)}  # by the bytes of a number: as much as goes without registers that spill
SLOPES = {2: (16, 2, 1), 4: (16, 4, 1)}
PROGRAMS = 8448
BLOCK_BYTES = 2**29  # of sums at a time


@triton.jit
def _window(at, of, x, y, there, D: tl.constexpr):
    """(1 - |x - y|^2)^2 for some edges of a target; 0 where there is none."""
    left = tl.where(there, 1.0, 0.0)
    for i in tl.static_range(D):
        step = tl.load(at + x * D + i) - tl.load(of + y * D + i, mask=there, other=0.0)
        left -= step * step
    left = tl.where(there & (left > 0), left, 0.0)
    return left * left


@triton.jit
def _mass(at, of, weights, ptr, src, out, WEIGHTS: tl.constexpr, D: tl.constexpr, BE: tl.constexpr):
    """The integral of the window, for one target."""
    x = tl.program_id(0).to(tl.int64)
    begin, end = tl.load(ptr + x), tl.load(ptr + x + 1)
    acc = tl.zeros((BE,), tl.float32)
    for first in range(begin, end, BE):
        e = first + tl.arange(0, BE)
        there = e < end
        y = tl.load(src + e, mask=there, other=0).to(tl.int64)
        some = _window(at, of, x, y, there, D)
        if WEIGHTS:
            some = some * tl.load(weights + y, mask=there, other=0.0)
        acc += some
    tl.store(out + x, tl.sum(acc, 0))


@triton.jit
def _sums(
    p, q, at, of, weight, bias, v, scale, ptr, src, sums, c, k, n, stride,
    TURNED: tl.constexpr, D: tl.constexpr,
    BE: tl.constexpr, BC: tl.constexpr, BK: tl.constexpr, BN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A(x)[k, j] = scale(x) sum_y window h(x, y)_k v(y)_j, and behind it s(x)_j = scale(x) sum_y window v(y)_j, like
    one more h, which is 1. TURNED round: scale(y) under the sum."""
    x = tl.program_id(0).to(tl.int64)
    ks, cs, ns, es = tl.arange(0, BK), tl.arange(0, BC), tl.arange(0, BN), tl.arange(0, BE)
    begin, end = tl.load(ptr + x), tl.load(ptr + x + 1)
    kind = v.dtype.element_ty
    P = tl.load(p + x * c + cs, mask=cs < c, other=0.0)
    M = tl.load(weight + ks[:, None] * c + cs[None, :], mask=(ks < k)[:, None] & (cs < c)[None, :], other=0.0)
    b = tl.load(bias + ks, mask=ks < k, other=0.0).to(tl.float32)
    acc = tl.zeros((BK, BN), tl.float32)
    for first in range(begin, end, BE):
        e = first + es
        there = e < end
        y = tl.load(src + e, mask=there, other=0).to(tl.int64)
        rho = _window(at, of, x, y, there, D)
        if TURNED:
            rho = rho * tl.load(scale + y, mask=there, other=0.0)
        Q = tl.load(q + y[None, :] * c + cs[:, None], mask=there[None, :] & (cs < c)[:, None], other=0.0)
        V = tl.load(v + y[:, None] * n + ns[None, :], mask=there[:, None] & (ns < n)[None, :], other=0.0)
        z = P[:, None] + Q
        z = tl.where(z <= 0, 0.0, z).to(kind)  # not maximum, which would turn NaN into 0
        H = dot(M, z, tl.zeros((BK, BE), tl.float32), PRECISION) + b[:, None]
        H = tl.where((ks == k)[:, None], 1.0, tl.where(H <= 0, 0.0, H))
        acc = dot((H * rho[None, :]).to(kind), V, acc, PRECISION)
    if not TURNED:
        acc = acc * tl.load(scale + x)
    place = sums + x * stride + ks[:, None] * n + ns[None, :]
    tl.store(place, acc.to(kind), mask=(ks <= k)[:, None] & (ns < n)[None, :])


@triton.jit
def _slopes(
    dA, p, q, at, of, fx, fy, weight, bias, v, scale, ptr, src, dp, dweight, dbias, dmoved, targets, chunk, c, k, n, f,
    D: tl.constexpr,
    BE: tl.constexpr, BC: tl.constexpr, BK: tl.constexpr, BN: tl.constexpr, BF: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """What the network gets of dA, for `chunk` targets. With dz, the gradient of p(x) + q(y) on an edge: dp(x) = sum_y dz,
    and dmoved = sum dz (x) (f(y) - f(x)), which is small, where f(y) would have to be known to more digits."""
    first_target = tl.program_id(0).to(tl.int64) * chunk
    ks, cs, ns, fs, es = tl.arange(0, BK), tl.arange(0, BC), tl.arange(0, BN), tl.arange(0, BF), tl.arange(0, BE)
    kind = v.dtype.element_ty
    M = tl.load(weight + ks[:, None] * c + cs[None, :], mask=(ks < k)[:, None] & (cs < c)[None, :], other=0.0)
    b = tl.load(bias + ks, mask=ks < k, other=0.0).to(tl.float32)
    of_weight = tl.zeros((BK, BC), tl.float32)
    of_bias = tl.zeros((BK, BE), tl.float32)
    of_moved = tl.zeros((BC, BF), tl.float32)
    for x in range(first_target, min(first_target + chunk, targets)):
        begin, end = tl.load(ptr + x), tl.load(ptr + x + 1)
        by = tl.load(scale + x)
        P = tl.load(p + x * c + cs, mask=cs < c, other=0.0)
        F = tl.load(fx + x * f + fs, mask=fs < f, other=0.0)
        G = tl.load(dA + x * k * n + ks[:, None] * n + ns[None, :], mask=(ks < k)[:, None] & (ns < n)[None, :], other=0.0)
        own = tl.zeros((BC, BE), tl.float32)
        for first in range(begin, end, BE):
            e = first + es
            there = e < end
            y = tl.load(src + e, mask=there, other=0).to(tl.int64)
            rho = _window(at, of, x, y, there, D) * by
            Q = tl.load(q + y[None, :] * c + cs[:, None], mask=there[None, :] & (cs < c)[:, None], other=0.0)
            V = tl.load(v + y[None, :] * n + ns[:, None], mask=there[None, :] & (ns < n)[:, None], other=0.0)
            z = P[:, None] + Q
            Z = tl.where(z <= 0, 0.0, z).to(kind)
            H = dot(M, Z, tl.zeros((BK, BE), tl.float32), PRECISION) + b[:, None]
            g = dot(G, V, tl.zeros((BK, BE), tl.float32), PRECISION) * rho[None, :]
            g = tl.where(H <= 0, 0.0, g)
            of_bias += g
            g = g.to(kind)
            of_weight = dot(g, tl.trans(Z), of_weight, PRECISION)
            dz = dot(tl.trans(M), g, tl.zeros((BC, BE), tl.float32), PRECISION)
            dz = tl.where(z <= 0, 0.0, dz)
            own += dz
            moved = tl.load(fy + y[:, None] * f + fs[None, :], mask=there[:, None] & (fs < f)[None, :], other=0.0) - F[None, :]
            of_moved = dot(dz.to(kind), tl.where(there[:, None], moved, 0.0).to(kind), of_moved, PRECISION)
        tl.store(dp + x * c + cs, tl.sum(own, 1), mask=cs < c)
    i = tl.program_id(0).to(tl.int64)
    tl.store(dweight + i * k * c + ks[:, None] * c + cs[None, :], of_weight, mask=(ks < k)[:, None] & (cs < c)[None, :])
    tl.store(dbias + i * k + ks, tl.sum(of_bias, 1), mask=ks < k)
    tl.store(dmoved + i * c * f + cs[:, None] * f + fs[None, :], of_moved, mask=(cs < c)[:, None] & (fs < f)[None, :])


def fits(sizes: tuple[int, ...], features: int, width: int, dtype: torch.dtype) -> bool:
    """Whether a kernel network is small enough: two hidden layers, and every tile in a program's registers."""
    few = len(sizes) == 2 and sizes[0] <= 64 and sizes[1] <= 32 and features <= 16 and width <= 128
    return few and dtype in (torch.float32, torch.bfloat16, torch.float16)


def mass(at: Tensor, of: Tensor, weights: Tensor | None, graph: Graph) -> Tensor:
    """(targets,): sum_y w(y) window(x, y), of points over the radius."""
    out = at.new_empty(graph.num_targets)
    if graph.num_targets:
        tensors = at, of, of if weights is None else weights, graph.ptr, graph.src, out
        launch(_mass, graph.num_targets, tensors, (), (weights is not None, at.shape[1], 64), num_warps=1)
    return out


class Near:
    """One network on one graph: features, p and q of targets and of sources; all float32, but for what is summed."""

    def __init__(self, graph: Graph, of_x: Tensor, of_y: Tensor, dim: int, weights: Tensor | None) -> None:
        self.graph, self.of_x, self.of_y = graph, of_x.contiguous(), of_y.contiguous()
        self.x, self.y = of_x[:, :dim].contiguous(), of_y[:, :dim].contiguous()
        self.scale = inverse(mass(self.x, self.y, weights, graph))

    def forward(self, p: Tensor, q: Tensor, weight: Tensor, bias: Tensor, W: Tensor, B: Tensor, v: Tensor) -> Tensor:
        rows = torch.cat([W.flatten(0, 1), B])
        out = v.new_empty(self.graph.num_targets, rows.shape[1])
        for part in parts_of(len(out), _block(rows)):
            sums = _summed(self.graph, (p, q), (self.x, self.y), weight, bias, v, self.scale, part)
            torch.mm(sums, rows, out=out if part is None else out[part])
        return out

    def backward(
        self, d: Tensor, p: Tensor, q: Tensor, weight: Tensor, bias: Tensor, W: Tensor, B: Tensor, v: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Of p and of sum dz (x) (f(y) - f(x)), of weight and bias, of W and B, and of v; all but the last in float32."""
        k, n, m = W.shape
        rows = torch.cat([W.transpose(1, 2).reshape(k * m, n), B.T])
        total, dv = torch.zeros(rows.shape, device=v.device), torch.empty_like(v)
        for part in parts_of(len(v), _block(rows)):
            sums = _summed(self.graph.reverse, (q, p), (self.y, self.x), weight, bias, d, self.scale, part, turned=True)
            torch.mm(sums, rows, out=dv if part is None else dv[part])
            plus_product(total, sums.T, v if part is None else v[part])
        dW, dB = total[: k * m].view(k, m, n).transpose(1, 2), total[k * m :].T
        return *self._slopes(d, p, q, weight, bias, W, v), dW, dB, dv

    def _slopes(
        self, d: Tensor, p: Tensor, q: Tensor, weight: Tensor, bias: Tensor, W: Tensor, v: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        (k, n, m), c, f = W.shape, weight.shape[1], self.of_x.shape[1]
        dp, found = torch.empty_like(p), [p.new_zeros(size) for size in ((k, c), (k,), (c, f))]
        BE, warps, stages = SLOPES[v.element_size()]
        graph, transposed = self.graph, W.reshape(k * n, m).T
        for part in parts_of(len(d), _block(transposed.T)):
            some = slice(0, len(d)) if part is None else part
            dA = d[some] @ transposed
            chunk = triton.cdiv(len(dA), PROGRAMS)
            programs = triton.cdiv(len(dA), chunk)
            parts = [p.new_empty(programs, *x.shape) for x in found]
            own = p[some], q, self.x[some], self.y, self.of_x[some], self.of_y, weight, bias, v, self.scale[some]
            tensors = dA, *own, graph.ptr[some.start : some.stop + 1], graph.src, dp[some], *parts
            constants = self.x.shape[1], BE, power(c, 16, 64), power(k, 16, 32), power(n, 16, 128), power(f, 16, 16)
            numbers = len(dA), chunk, c, k, n, f
            launch(_slopes, programs, tensors, numbers, (*constants, precision(v)), num_warps=warps, num_stages=stages)
            for whole, each in zip(found, parts, strict=True):
                whole += each.sum(0)
        return dp, found[2], found[0], found[1]


def _block(rows: Tensor) -> int:
    return max(1, BLOCK_BYTES // (rows.shape[0] * rows.element_size()))


def _summed(
    graph: Graph,
    parts: tuple[Tensor, Tensor],
    points: tuple[Tensor, Tensor],
    weight: Tensor,
    bias: Tensor,
    v: Tensor,
    scale: Tensor,
    part: slice | None,
    turned: bool = False,
) -> Tensor:
    """A and s of some targets: (targets, k n + n)."""
    (p, q), (at, of), ptr, (k, c), n = parts, points, graph.ptr, weight.shape, v.shape[1]
    if part is not None:
        p, at, ptr = p[part], at[part], ptr[part.start : part.stop + 1]
        scale = scale if turned else scale[part]
    sums = v.new_empty(len(p), k * n + n)
    BE, warps, stages = SUMS[v.element_size()]
    tensors = p, q, at, of, weight, bias, v, scale, ptr, graph.src, sums
    constants = turned, at.shape[1], BE, power(c, 16, 64), power(k + 1, 16, 64), power(n, 16, 128), precision(v)
    if len(p):
        launch(_sums, len(p), tensors, (c, k, n, sums.shape[1]), constants, num_warps=warps, num_stages=stages)
    return sums
