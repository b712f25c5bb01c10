"""The factored sums in Triton: forward and backward, on NVIDIA GPUs, and in Triton's interpreter on the CPU.

One program has the neighbours of one target, and gathers v(y) as it goes. Products with W are left to cuBLAS, a block of
targets at a time.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from gkn.ops.factored import Sums


@triton.jit
def _dot(a, b, acc, PRECISION: tl.constexpr):
    """acc + a b. The interpreter is numpy, which has no products of bf16: there they are done in float32, which holds them."""
    if PRECISION == "emulate":
        return tl.dot(a.to(tl.float32), b.to(tl.float32), acc, input_precision="ieee")
    return tl.dot(a, b, acc, input_precision=PRECISION)


@triton.jit
def _outer(
    h, v, rho, scale, ptr, src, A, s, k, n,
    RHO: tl.constexpr, BE: tl.constexpr, BK: tl.constexpr, BN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A(x)[k, j] = scale(x) sum_y rho h(x, y)_k v(y)_j for BK of the k's, and s(x)_j = scale(x) sum_y rho v(y)_j."""
    tiles = tl.cdiv(k, BK)
    x = (tl.program_id(0) // tiles).to(tl.int64)
    tile = tl.program_id(0) % tiles
    ks, ns, es = tile * BK + tl.arange(0, BK), tl.arange(0, BN), tl.arange(0, BE)
    begin, end = tl.load(ptr + x), tl.load(ptr + x + 1)
    acc = tl.zeros((BK, BN), tl.float32)
    total = tl.zeros((BN,), tl.float32)
    for first in range(begin, end, BE):
        e = first + es
        there = e < end
        y = tl.load(src + e, mask=there, other=0).to(tl.int64)
        V = tl.load(v + y[:, None] * n + ns[None, :], mask=there[:, None] & (ns < n)[None, :], other=0.0)
        H = tl.load(h + e[:, None] * k + ks[None, :], mask=there[:, None] & (ks < k)[None, :], other=0.0)
        if RHO:
            V = (V.to(tl.float32) * tl.load(rho + e, mask=there, other=0.0).to(tl.float32)[:, None]).to(v.dtype.element_ty)
        acc = _dot(tl.trans(H), V, acc, PRECISION)
        total += tl.sum(V.to(tl.float32), 0)
    by = tl.load(scale + x).to(tl.float32)
    place = A + x * k * n + ks[:, None] * n + ns[None, :]
    tl.store(place, (acc * by).to(A.dtype.element_ty), mask=(ks < k)[:, None] & (ns < n)[None, :])
    tl.store(s + x * n + ns, (total * by).to(s.dtype.element_ty), mask=(ns < n) & (tile == 0))


@triton.jit
def _outer_short(
    h, v, rho, scale, ptr, src, A, s, k, n, splits,
    RHO: tl.constexpr, BE: tl.constexpr, BK: tl.constexpr, BN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The same where all neighbours fit into one tile: v(y) is gathered once, and the k's stream by."""
    x = (tl.program_id(0) // splits).to(tl.int64)
    part = tl.program_id(0) % splits
    ns, es = tl.arange(0, BN), tl.arange(0, BE)
    begin, end = tl.load(ptr + x), tl.load(ptr + x + 1)
    e = begin + es
    there = e < end
    y = tl.load(src + e, mask=there, other=0).to(tl.int64)
    V = tl.load(v + y[:, None] * n + ns[None, :], mask=there[:, None] & (ns < n)[None, :], other=0.0)
    if RHO:
        V = (V.to(tl.float32) * tl.load(rho + e, mask=there, other=0.0).to(tl.float32)[:, None]).to(v.dtype.element_ty)
    by = tl.load(scale + x).to(tl.float32)
    size = tl.cdiv(tl.cdiv(k, BK), splits) * BK
    for first in range(part * size, min(part * size + size, k), BK):
        ks = first + tl.arange(0, BK)
        H = tl.load(h + e[:, None] * k + ks[None, :], mask=there[:, None] & (ks < k)[None, :], other=0.0)
        acc = _dot(tl.trans(H), V, tl.zeros((BK, BN), tl.float32), PRECISION) * by
        place = A + x * k * n + ks[:, None] * n + ns[None, :]
        tl.store(place, acc.to(A.dtype.element_ty), mask=(ks < k)[:, None] & (ns < n)[None, :])
    total = tl.sum(V.to(tl.float32), 0) * by
    tl.store(s + x * n + ns, total.to(s.dtype.element_ty), mask=(ns < n) & (part == 0))


@triton.jit
def _spread(
    dA, ds, h, v, rho, ptr, src, dh, dm, k, n, chunks,
    RHO: tl.constexpr, ADD: tl.constexpr, BE: tl.constexpr, BK: tl.constexpr, BN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dh(x, y)_k = rho sum_j dA(x)[k, j] v(y)_j, and to y: dm(x, y)_j = rho (sum_k dA(x)[k, j] h(x, y)_k + ds(x)_j)."""
    x = (tl.program_id(0) // chunks).to(tl.int64)
    begin, end = tl.load(ptr + x), tl.load(ptr + x + 1)
    e = begin + (tl.program_id(0) % chunks) * BE + tl.arange(0, BE)
    there, ns = e < end, tl.arange(0, BN)
    if begin + (tl.program_id(0) % chunks) * BE < end:
        y = tl.load(src + e, mask=there, other=0).to(tl.int64)
        kind = v.dtype.element_ty
        V = tl.load(v + y[:, None] * n + ns[None, :], mask=there[:, None] & (ns < n)[None, :], other=0.0)
        if RHO:
            r = tl.load(rho + e, mask=there, other=0.0).to(tl.float32)
            V = (V.to(tl.float32) * r[:, None]).to(kind)
        m = tl.zeros((BE, BN), tl.float32) + tl.load(ds + x * n + ns, mask=ns < n, other=0.0).to(tl.float32)[None, :]
        for first in range(0, k, BK):
            ks = first + tl.arange(0, BK)
            tile, inside = dA + x * k * n + ks[:, None] * n + ns[None, :], (ks < k)[:, None] & (ns < n)[None, :]
            D = tl.load(tile, mask=inside, other=0.0)
            place, known = e[:, None] * k + ks[None, :], there[:, None] & (ks < k)[None, :]
            H = tl.load(h + place, mask=known, other=0.0)
            m = _dot(H, D, m, PRECISION)
            g = tl.zeros((BE, BK), tl.float32)
            if ADD:
                g += tl.load(dh + place, mask=known, other=0.0).to(tl.float32)
            g = _dot(V, tl.trans(D), g, PRECISION)
            tl.store(dh + place, g.to(dh.dtype.element_ty), mask=known)
        if RHO:
            m = m * r[:, None]
        tl.store(dm + e[:, None] * n + ns[None, :], m.to(dm.dtype.element_ty), mask=there[:, None] & (ns < n)[None, :])


@triton.jit
def _through(
    p, q, weight, bias, v, scale, ptr, src, A, s, c, k, n,
    BE: tl.constexpr, BC: tl.constexpr, BK: tl.constexpr, BN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A(x) and s(x) of h = relu(weight relu(p(x) + q(y)) + bias), which never leaves the chip: for BK of its k's."""
    tiles = tl.cdiv(k, BK)
    x = (tl.program_id(0) // tiles).to(tl.int64)
    tile = tl.program_id(0) % tiles
    ks, cs, ns, es = tile * BK + tl.arange(0, BK), tl.arange(0, BC), tl.arange(0, BN), tl.arange(0, BE)
    begin, end = tl.load(ptr + x), tl.load(ptr + x + 1)
    kind = v.dtype.element_ty
    P = tl.load(p + x * c + cs, mask=cs < c, other=0.0).to(tl.float32)
    M = tl.load(weight + ks[None, :] * c + cs[:, None], mask=(ks < k)[None, :] & (cs < c)[:, None], other=0.0)
    b = tl.load(bias + ks, mask=ks < k, other=0.0).to(tl.float32)
    acc = tl.zeros((BK, BN), tl.float32)
    total = tl.zeros((BN,), tl.float32)
    for first in range(begin, end, BE):
        e = first + es
        there = e < end
        y = tl.load(src + e, mask=there, other=0).to(tl.int64)
        Q = tl.load(q + y[:, None] * c + cs[None, :], mask=there[:, None] & (cs < c)[None, :], other=0.0).to(tl.float32)
        V = tl.load(v + y[:, None] * n + ns[None, :], mask=there[:, None] & (ns < n)[None, :], other=0.0)
        z = P[None, :] + Q
        H = _dot(tl.where(z <= 0, 0.0, z).to(kind), M, tl.zeros((BE, BK), tl.float32), PRECISION) + b[None, :]
        H = tl.where(H <= 0, 0.0, H).to(kind)
        acc = _dot(tl.trans(H), V, acc, PRECISION)
        total += tl.sum(V.to(tl.float32), 0)
    by = tl.load(scale + x).to(tl.float32)
    place = A + x * k * n + ks[:, None] * n + ns[None, :]
    tl.store(place, (acc * by).to(A.dtype.element_ty), mask=(ks < k)[:, None] & (ns < n)[None, :])
    tl.store(s + x * n + ns, (total * by).to(s.dtype.element_ty), mask=(ns < n) & (tile == 0))


@triton.jit
def _edge_relu(p, q, ptr, src, out, c, tiles, chunks, EDGES: tl.constexpr, BE: tl.constexpr, BC: tl.constexpr):
    """out(x, y) = relu(p(x) + q(y)), for EDGES of the neighbours of one target and BC of the columns."""
    x = (tl.program_id(0) // (tiles * chunks)).to(tl.int64)
    cs = (tl.program_id(0) % tiles) * BC + tl.arange(0, BC)
    begin = tl.load(ptr + x) + (tl.program_id(0) // tiles % chunks) * EDGES
    end = min(tl.load(ptr + x + 1), begin + EDGES)
    P = tl.load(p + x * c + cs, mask=cs < c, other=0.0).to(tl.float32)
    for first in range(begin, end, BE):
        e = first + tl.arange(0, BE)
        there = e < end
        y = tl.load(src + e, mask=there, other=0).to(tl.int64)
        known = there[:, None] & (cs < c)[None, :]
        Q = tl.load(q + y[:, None] * c + cs[None, :], mask=known, other=0.0).to(tl.float32)
        z = P[None, :] + Q
        z = tl.where(z <= 0, 0.0, z)  # not maximum, which would turn NaN into 0
        tl.store(out + e[:, None] * c + cs[None, :], z.to(out.dtype.element_ty), mask=known)


@triton.jit
def _segment_sum(values, gate, ptr, order, out, c, ORDER: tl.constexpr, GATE: tl.constexpr, BE: tl.constexpr, BC: tl.constexpr):
    """out[i] = sum of the rows ptr[i] to ptr[i+1] of values, in the given order, where gate > 0."""
    tiles = tl.cdiv(c, BC)
    i = (tl.program_id(0) // tiles).to(tl.int64)
    cs = (tl.program_id(0) % tiles) * BC + tl.arange(0, BC)
    begin, end = tl.load(ptr + i), tl.load(ptr + i + 1)
    acc = tl.zeros((BE, BC), tl.float32)
    for first in range(begin, end, BE):
        e = first + tl.arange(0, BE)
        there = e < end
        row = e
        if ORDER:
            row = tl.load(order + e, mask=there, other=0).to(tl.int64)
        known = there[:, None] & (cs < c)[None, :]
        place = row[:, None] * c + cs[None, :]
        term = tl.load(values + place, mask=known, other=0.0).to(tl.float32)
        if GATE:
            term = tl.where(tl.load(gate + place, mask=known, other=0.0).to(tl.float32) > 0, term, 0.0)
        acc += term
    tl.store(out + i * c + cs, tl.sum(acc, 0).to(out.dtype.element_ty), mask=cs < c)


THROUGH = 128, 4  # how many k at a time, and by how many warps


def _power(n: int, least: int, most: int) -> int:
    return min(max(1 << (max(n, 1) - 1).bit_length(), least), most)


def _precision(x: Tensor) -> str:
    """Where float32 products may be done in tf32, these are done in three of them: Triton cuts numbers off where cuBLAS rounds
    them, and here memory is the limit, not arithmetic."""
    if x.device.type == "cpu":
        return "ieee" if x.dtype == torch.float32 else "emulate"
    if x.dtype != torch.float32:
        return "ieee"
    return "tf32x3" if torch.backends.cuda.matmul.allow_tf32 else "ieee"


def kernel_sum(
    h: Tensor,
    W: Tensor,
    B: Tensor,
    v: Tensor,
    ptr: Tensor,
    src: Tensor,
    rho: Tensor | None,
    scale: Tensor,
    block: int,
    max_degree: int,
) -> Tensor:
    out = v.new_empty(len(scale), W.shape[2])
    for start in range(0, len(scale), block):
        stop = min(start + block, len(scale))
        A, s = _sums(h, v, ptr[start : stop + 1], src, rho, scale[start:stop], max_degree)
        torch.addmm(s @ B, A.flatten(1), W.flatten(0, 1), out=out[start:stop])
    return out


def _sums(
    h: Tensor, v: Tensor, ptr: Tensor, src: Tensor, rho: Tensor | None, scale: Tensor, max_degree: int
) -> tuple[Tensor, Tensor]:
    X, k, n = len(scale), h.shape[1], v.shape[1]
    A, s = v.new_empty(X, k, n), v.new_empty(X, n)
    BN = _power(n, 16, 256)
    inputs = h, v, v if rho is None else rho, scale, ptr, src, A, s, k, n
    options = {"RHO": rho is not None, "BN": BN, "PRECISION": _precision(v), "num_warps": 4}
    short = h.element_size() <= 2
    if max_degree <= (128 if short else 64) and BN <= 64:
        BE = _power(max_degree, 16, 128)
        BK = _power(k, 16, 128 if BE <= 64 and short else 64)
        splits = 1 if X >= 2048 else max(1, min(4, k // BK))
        _outer_short[(X * splits,)](*inputs, splits, BE=BE, BK=BK, **options, num_stages=3)
    else:
        BE, BK = 64 if short else 16, _power(k, 16, 128 if BN <= 64 else 64 if BN <= 128 else 16)
        _outer[(X * triton.cdiv(k, BK),)](*inputs, BE=BE, BK=BK, **options, num_stages=2)
    return A, s


def kernel_sum_backward(
    d: Tensor,
    h: Tensor,
    W: Tensor,
    B: Tensor,
    v: Tensor,
    ptr: Tensor,
    src: Tensor,
    by_source: tuple[Tensor, Tensor],
    rho: Tensor | None,
    scale: Tensor,
    dh: Tensor,
    block: int,
    add: bool,
    max_degree: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """dW, dB and dv; dh is written, or added to."""
    k, n, _ = W.shape
    sums, dm = Sums(W, B), v.new_empty(len(src), n)
    BN = _power(n, 16, 256)
    BK = _power(k, 16, 64 if BN <= 128 else 16)
    BE = 16 if max_degree <= 32 or BN > 128 else 64 if h.element_size() <= 2 else 32
    chunks = triton.cdiv(max(max_degree, 1), BE)
    for start in range(0, len(scale), block):
        stop = min(start + block, len(scale))
        offsets, some, by = ptr[start : stop + 1], d[start:stop], scale[start:stop]
        A, s = _sums(h, v, offsets, src, rho, by, max_degree)
        sums.add(A, s, some)
        scaled = (some * by[:, None]).to(v.dtype)
        torch.mm(scaled, W.flatten(0, 1).T, out=A.flatten(1))
        _spread[((stop - start) * chunks,)](
            A, scaled @ B.T, h, v, v if rho is None else rho, offsets, src, dh, dm, k, n, chunks,
            RHO=rho is not None, ADD=add, BE=BE, BK=BK, BN=BN, PRECISION=_precision(v), num_warps=4, num_stages=3,
        )  # fmt: skip
    return *sums.done(), segment_sum(dm, *by_source)


def fits_through(c: int, n: int) -> bool:
    """Whether a kernel network of two hidden layers, the first of size c, can stay on the chip."""
    return c <= 128 and n <= 64


def kernel_sum_through(
    p: Tensor,
    q: Tensor,
    weight: Tensor,
    bias: Tensor,
    W: Tensor,
    B: Tensor,
    v: Tensor,
    ptr: Tensor,
    src: Tensor,
    scale: Tensor,
    block: int,
) -> Tensor:
    """kernel_sum of h = relu(weight relu(p + q) + bias), without h. Forward only."""
    (k, c), n = weight.shape, v.shape[1]
    out = v.new_empty(len(scale), W.shape[2])
    BK, warps = (_power(k, 16, THROUGH[0]), THROUGH[1]) if v.element_size() <= 2 else (_power(k, 16, 128), 8)
    for start in range(0, len(scale), block):
        stop = min(start + block, len(scale))
        A, s = v.new_empty(stop - start, k, n), v.new_empty(stop - start, n)
        _through[((stop - start) * triton.cdiv(k, BK),)](
            p[start:stop], q, weight, bias, v, scale[start:stop], ptr[start : stop + 1], src,
            A, s, c, k, n, BE=64 if v.element_size() <= 2 else 32, BC=_power(c, 16, 128), BK=BK,
            BN=_power(n, 16, 64), PRECISION=_precision(v), num_warps=warps, num_stages=2,
        )  # fmt: skip
        torch.addmm(s @ B, A.flatten(1), W.flatten(0, 1), out=out[start:stop])
    return out


def edge_relu(p: Tensor, q: Tensor, ptr: Tensor, src: Tensor, dtype: torch.dtype, max_degree: int) -> Tensor:
    out = q.new_empty(len(src), q.shape[1], dtype=dtype)
    BC, edges = _power(q.shape[1], 16, 512), _power(max_degree // 1024, 128, 2**20)
    tiles, chunks = triton.cdiv(q.shape[1], BC), triton.cdiv(max_degree, edges)
    if len(src):
        _edge_relu[(len(p) * tiles * chunks,)](
            p, q, ptr, src, out, q.shape[1], tiles, chunks, EDGES=edges, BE=8, BC=BC, num_warps=4
        )  # fmt: skip
    return out


def edge_relu_backward(
    d: Tensor, out: Tensor, ptr: Tensor, by_source: tuple[Tensor, Tensor], dtype: torch.dtype, own: bool = False
) -> tuple[Tensor, Tensor]:
    return segment_sum(d, ptr, gate=out, dtype=dtype), segment_sum(d, *by_source, gate=out, dtype=dtype)


def segment_sum(
    values: Tensor,
    ptr: Tensor,
    order: Tensor | None = None,
    gate: Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    out = values.new_empty(len(ptr) - 1, values.shape[1], dtype=dtype or values.dtype)
    BC = _power(values.shape[1], 16, 128)
    if len(out):
        _segment_sum[(len(out) * triton.cdiv(values.shape[1], BC),)](
            values, values if gate is None else gate, ptr, ptr if order is None else order, out, values.shape[1],
            ORDER=order is not None, GATE=gate is not None, BE=16, BC=BC, num_warps=4,
        )  # fmt: skip
    return out
