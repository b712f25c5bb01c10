"""The loops of near.py over edges, in Triton."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from gkn.graph.graph import Graph, window
from gkn.ops import inverse
from gkn.ops.edges import Measure
from gkn.ops.near import Near, Network
from gkn.ops.tiles import dot, launch, power, precision

# Edges at a time, warps, and stages, by the bytes of a number: as much as fits without spilling registers.
SUMS = {2: (16, 2, 3), 4: (16, 4, 1)}
SLOPES = {2: (16, 1, 1), 4: (16, 4, 1)}
PROGRAMS = 8448  # of `_slopes`, at most


@triton.jit
def _window(at, of, x, y, there, D: tl.constexpr):
    """Return (1 - |x - y|^2)^2 for some edges of a target; 0 where there is none."""
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
    p, q, at, of, weight, bias, v, target_v, weights, scale, ptr, src, sums, c, k, n, stride,
    TURNED: tl.constexpr, DIFFERENCES: tl.constexpr, WEIGHTS: tl.constexpr, D: tl.constexpr,
    BE: tl.constexpr, BC: tl.constexpr, BK: tl.constexpr, BN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A(x)[k, j] = scale(x) sum_y w(y) window h(x, y)_k v(y)_j, and behind it s(x)_j = scale(x) sum_y w(y) window v(y)_j, as if
    one more h were 1. DIFFERENCES: with v(y) - t(x) instead of v(y), except for that 1. TURNED, for the reversed graph:
    scale(y) is under the sum and w(x) before it."""
    x = tl.program_id(0).to(tl.int64)
    ks, cs, ns, es = tl.arange(0, BK), tl.arange(0, BC), tl.arange(0, BN), tl.arange(0, BE)
    begin, end = tl.load(ptr + x), tl.load(ptr + x + 1)
    kind = v.dtype.element_ty
    P = tl.load(p + x * c + cs, mask=cs < c, other=0.0)
    M = tl.load(weight + ks[:, None] * c + cs[None, :], mask=(ks < k)[:, None] & (cs < c)[None, :], other=0.0)
    b = tl.load(bias + ks, mask=ks < k, other=0.0).to(tl.float32)
    acc = tl.zeros((BK, BN), tl.float32)
    held = tl.zeros((BK, BE), tl.float32)
    for first in range(begin, end, BE):
        e = first + es
        there = e < end
        y = tl.load(src + e, mask=there, other=0).to(tl.int64)
        rho = _window(at, of, x, y, there, D)
        if TURNED:
            rho = rho * tl.load(scale + y, mask=there, other=0.0)
        elif WEIGHTS:
            rho = rho * tl.load(weights + y, mask=there, other=0.0)
        Q = tl.load(q + y[None, :] * c + cs[:, None], mask=there[None, :] & (cs < c)[:, None], other=0.0)
        V = tl.load(v + y[:, None] * n + ns[None, :], mask=there[:, None] & (ns < n)[None, :], other=0.0)
        z = P[:, None] + Q
        H = dot(M, (z * tl.sigmoid(z)).to(kind), tl.zeros((BK, BE), tl.float32), PRECISION) + b[:, None]
        H = (tl.where((ks == k)[:, None], 1.0, H * tl.sigmoid(H)) * rho[None, :]).to(kind)
        acc = dot(H, V, acc, PRECISION)
        if DIFFERENCES:
            held += H.to(tl.float32)  # as rounded: differences of a constant vanish exactly
    if DIFFERENCES:
        T = tl.load(target_v + x * n + ns, mask=ns < n, other=0.0).to(tl.float32)
        acc -= tl.where(ks < k, tl.sum(held, 1), 0.0)[:, None] * T[None, :]
    if not TURNED:
        acc = acc * tl.load(scale + x)
    elif WEIGHTS:
        acc = acc * tl.load(weights + x)
    place = sums + x * stride + ks[:, None] * n + ns[None, :]
    tl.store(place, acc.to(kind), mask=(ks <= k)[:, None] & (ns < n)[None, :])


@triton.jit
def _slopes(
    dA, p, q, at, of, fx, fy, weight, bias, v, target_v, weights, scale, ptr, src,
    dp, down, means, dweight, dbias, dmoved, targets, chunk, c, k, n, f,
    DIFFERENCES: tl.constexpr, WEIGHTS: tl.constexpr, D: tl.constexpr,
    BE: tl.constexpr, BC: tl.constexpr, BK: tl.constexpr, BN: tl.constexpr, BF: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of the hidden layers for `chunk` targets, given dA. With dz the gradient of p(x) + q(y) on an edge,
    dp(x) = sum_y dz and dmoved = sum dz (x) (f(y) - f(x)); the difference is small, so fewer digits are lost than with f(y).
    DIFFERENCES: also the gradient `down` of t(x), and the means of h, by which t is multiplied."""
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
        of_x = tl.zeros((BC, BE), tl.float32)
        held = tl.zeros((BK, BE), tl.float32)
        if DIFFERENCES:
            T = tl.load(target_v + x * n + ns, mask=ns < n, other=0.0)
        for first in range(begin, end, BE):
            e = first + es
            there = e < end
            y = tl.load(src + e, mask=there, other=0).to(tl.int64)
            rho = _window(at, of, x, y, there, D) * by
            if WEIGHTS:
                rho = rho * tl.load(weights + y, mask=there, other=0.0)
            Q = tl.load(q + y[None, :] * c + cs[:, None], mask=there[None, :] & (cs < c)[:, None], other=0.0)
            V = tl.load(v + y[None, :] * n + ns[:, None], mask=there[None, :] & (ns < n)[:, None], other=0.0)
            z = P[:, None] + Q
            open_z = tl.sigmoid(z)
            Z = (z * open_z).to(kind)
            H = dot(M, Z, tl.zeros((BK, BE), tl.float32), PRECISION) + b[:, None]
            open_h = tl.sigmoid(H)
            if DIFFERENCES:
                V = (V.to(tl.float32) - T.to(tl.float32)[:, None]).to(kind)
                held += H * open_h * rho[None, :]
            g = dot(G, V, tl.zeros((BK, BE), tl.float32), PRECISION) * rho[None, :]
            g = g * open_h * (1 + H * (1 - open_h))
            of_bias += g
            g = g.to(kind)
            of_weight = dot(g, tl.trans(Z), of_weight, PRECISION)
            dz = dot(tl.trans(M), g, tl.zeros((BC, BE), tl.float32), PRECISION)
            dz = dz * open_z * (1 + z * (1 - open_z))
            of_x += dz
            moved = tl.load(fy + y[:, None] * f + fs[None, :], mask=there[:, None] & (fs < f)[None, :], other=0.0) - F[None, :]
            of_moved = dot(dz.to(kind), tl.where(there[:, None], moved, 0.0).to(kind), of_moved, PRECISION)
        tl.store(dp + x * c + cs, tl.sum(of_x, 1), mask=cs < c)
        if DIFFERENCES:
            mean = tl.sum(held, 1)
            tl.store(means + x * k + ks, mean, mask=ks < k)
            tl.store(down + x * n + ns, -tl.sum(mean[:, None] * G.to(tl.float32), 0), mask=ns < n)
    i = tl.program_id(0).to(tl.int64)
    tl.store(dweight + i * k * c + ks[:, None] * c + cs[None, :], of_weight, mask=(ks < k)[:, None] & (cs < c)[None, :])
    tl.store(dbias + i * k + ks, tl.sum(of_bias, 1), mask=ks < k)
    tl.store(dmoved + i * c * f + cs[:, None] * f + fs[None, :], of_moved, mask=(cs < c)[:, None] & (fs < f)[None, :])


def fits(sizes: tuple[int, ...], features: int, width: int, dtype: torch.dtype) -> bool:
    """True if a kernel network is small enough: two hidden layers, and every tile fits into a program's registers."""
    few = len(sizes) == 2 and sizes[0] <= 64 and sizes[1] <= 32 and features <= 16 and width <= 128
    return few and dtype in (torch.float32, torch.bfloat16, torch.float16)


def mass(at: Tensor, of: Tensor, weights: Tensor | None, graph: Graph) -> Tensor:
    """Return sum_y w(y) window(x, y) for every target; points are in units of the radius."""
    out = at.new_empty(graph.num_targets)
    if graph.num_targets:
        tensors = at, of, of if weights is None else weights, graph.ptr, graph.src, out
        launch(_mass, graph.num_targets, tensors, (), (weights is not None, at.shape[1], 64), num_warps=1)
    return out


class TritonNear(Near):
    """The loops on a GPU. The window is computed wherever it is needed; `scale` is 1 over its integral."""

    block_bytes = 2**29

    def __init__(self, graph: Graph, of_x: Tensor, of_y: Tensor, dim: int, weights: Tensor | None) -> None:
        super().__init__(graph, of_x, of_y, dim, weights)
        self.scale = inverse(mass(self.x, self.y, weights, graph))

    def measure(self, dtype: torch.dtype) -> Measure:
        rho = window(self.x.index_select(0, self.graph.targets), self.y.index_select(0, self.graph.src)).to(dtype)
        return Measure(self.graph, rho, self.scale, "factored")

    def slopes(
        self,
        dA: Tensor,
        net: Network,
        values: tuple[Tensor, Tensor | None],
        some: slice,
        into: tuple[Tensor, Tensor | None, Tensor],
    ) -> list[Tensor]:
        (p, q, weight, bias), (v, target_v), (dp, down, means) = net, values, into
        (k, c), n, f = weight.shape, v.shape[1], self.of_x.shape[1]
        BE, warps, stages = SLOPES[v.element_size()]
        graph, chunk = self.graph, triton.cdiv(len(dA), PROGRAMS)
        programs = triton.cdiv(len(dA), chunk)
        parts = [p.new_empty(programs, *size) for size in ((k, c), (k,), (c, f))]
        given = p[some], q, self.x[some], self.y, self.of_x[some], self.of_y, weight, bias, v
        measure = v if target_v is None else target_v[some], v if self.weights is None else self.weights, self.scale[some]
        results = dp[some], dp if down is None else down[some], dp if target_v is None else means[some], *parts
        tensors = dA, *given, *measure, graph.ptr[some.start : some.stop + 1], graph.src, *results
        sizes = BE, power(c, 16, 64), power(k, 16, 32), power(n, 16, 128), power(f, 16, 16)
        constants = target_v is not None, self.weights is not None, self.x.shape[1], *sizes, precision(v)
        launch(_slopes, programs, tensors, (len(dA), chunk, c, k, n, f), constants, num_warps=warps, num_stages=stages)
        return parts

    def summed(self, net: Network, v: Tensor, target_v: Tensor | None, part: slice | None, turned: bool = False) -> Tensor:
        (p, q, weight, bias), at, of, weights, scale = net, self.x, self.y, self.weights, self.scale
        graph, (k, c), n = self.graph, weight.shape, v.shape[1]
        if turned:
            p, q, at, of, graph = q, p, of, at, graph.reverse
        ptr = graph.ptr
        if part is not None:
            p, at, ptr = p[part], at[part], ptr[part.start : part.stop + 1]
            target_v = None if target_v is None else target_v[part]
            scale = scale if turned else scale[part]
            weights = weights[part] if turned and weights is not None else weights
        sums = v.new_empty(len(p), k * n + n)
        BE, warps, stages = SUMS[v.element_size()]
        values = v, v if target_v is None else target_v, v if weights is None else weights, scale
        tensors = p, q, at, of, weight, bias, *values, ptr, graph.src, sums
        sizes = BE, power(c, 16, 64), power(k + 1, 16, 64), power(n, 16, 128)
        constants = turned, target_v is not None, weights is not None, at.shape[1], *sizes, precision(v)
        if len(p):
            launch(_sums, len(p), tensors, (c, k, n, sums.shape[1]), constants, num_warps=warps, num_stages=stages)
        return sums
