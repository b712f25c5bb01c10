"""The sums of factored.py in Triton: forward and backward, on NVIDIA GPUs, and in Triton's interpreter on the CPU.

One program sums over the neighbours of one target and gathers v(y) as it goes. Its result is one row of a matrix: A(x), s(x)
and, in a step of a network, v(x) and 1. The product of these rows with W, B, the step's own matrix and its bias is left to
cuBLAS, a block of targets at a time.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from gkn.ops.dense import parts_of
from gkn.ops.edges import Edges, Into
from gkn.ops.last import Found, Last, product
from gkn.ops.tiles import dot, launch, power, precision


@triton.jit
def _outer(
    h, v, v_x, rho, scale, ptr, src, sums, k, n, stride,
    RHO: tl.constexpr, STEP: tl.constexpr, BE: tl.constexpr, BK: tl.constexpr, BN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A(x)[k, j] = scale(x) sum_y rho h(x, y)_k v(y)_j for BK of the k's, then `_rest`."""
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
        acc = dot(tl.trans(H), V, acc, PRECISION)
        total += tl.sum(V.to(tl.float32), 0)
    by = tl.load(scale + x).to(tl.float32)
    place = sums + x * stride + ks[:, None] * n + ns[None, :]
    tl.store(place, (acc * by).to(sums.dtype.element_ty), mask=(ks < k)[:, None] & (ns < n)[None, :])
    if tile == 0:
        _rest(total * by, v_x + x * n, sums + x * stride + k * n, n, STEP, BN)


@triton.jit
def _rest(total, v_x, place, n, STEP: tl.constexpr, BN: tl.constexpr):
    """Write the columns behind A(x): s(x)_j = scale(x) sum_y rho v(y)_j and, with STEP, v(x), 1 and zeros."""
    ns, sixteen = tl.arange(0, BN), tl.arange(0, 16)
    tl.store(place + ns, total.to(place.dtype.element_ty), mask=ns < n)
    if STEP:
        tl.store(place + n + ns, tl.load(v_x + ns, mask=ns < n, other=0.0), mask=ns < n)
        tl.store(place + 2 * n + sixteen, tl.where(sixteen == 0, 1.0, 0.0).to(place.dtype.element_ty))


@triton.jit
def _outer_short(
    h, v, v_x, rho, scale, ptr, src, sums, k, n, stride, splits,
    RHO: tl.constexpr, STEP: tl.constexpr, BE: tl.constexpr, BK: tl.constexpr, BN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute A(x) where all neighbours fit into one tile: v(y) is gathered once, and the k's stream by."""
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
        acc = dot(tl.trans(H), V, tl.zeros((BK, BN), tl.float32), PRECISION) * by
        place = sums + x * stride + ks[:, None] * n + ns[None, :]
        tl.store(place, acc.to(sums.dtype.element_ty), mask=(ks < k)[:, None] & (ns < n)[None, :])
    if part == 0:
        _rest(tl.sum(V.to(tl.float32), 0) * by, v_x + x * n, sums + x * stride + k * n, n, STEP, BN)


@triton.jit
def _spread(
    dA, h, v, rho, scale, ptr, src, dh, dm, k, n, stride, chunks,
    RHO: tl.constexpr, ADD: tl.constexpr, GATE: tl.constexpr,
    BE: tl.constexpr, BK: tl.constexpr, BN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dh(x, y)_k = scale rho sum_j dA(x)[k, j] v(y)_j; to y: dm(x, y)_j = scale rho (sum_k dA(x)[k, j] h(x, y)_k + ds(x)_j).

    With GATE, dh is closed where h = 0: the derivative of the ReLU that made h.
    """
    x = (tl.program_id(0) // chunks).to(tl.int64)
    begin, end = tl.load(ptr + x), tl.load(ptr + x + 1)
    e = begin + (tl.program_id(0) % chunks) * BE + tl.arange(0, BE)
    there, ns = e < end, tl.arange(0, BN)
    if begin + (tl.program_id(0) % chunks) * BE < end:
        y = tl.load(src + e, mask=there, other=0).to(tl.int64)
        kind = v.dtype.element_ty
        by = tl.load(scale + x).to(tl.float32)
        V = tl.load(v + y[:, None] * n + ns[None, :], mask=there[:, None] & (ns < n)[None, :], other=0.0)
        if RHO:
            r = tl.load(rho + e, mask=there, other=0.0).to(tl.float32)
            V = (V.to(tl.float32) * r[:, None]).to(kind)
        ds = tl.load(dA + x * stride + k * n + ns, mask=ns < n, other=0.0).to(tl.float32)
        m = tl.zeros((BE, BN), tl.float32) + ds[None, :]
        for first in range(0, k, BK):
            ks = first + tl.arange(0, BK)
            tile, inside = dA + x * stride + ks[:, None] * n + ns[None, :], (ks < k)[:, None] & (ns < n)[None, :]
            D = tl.load(tile, mask=inside, other=0.0)
            place, known = e[:, None] * k + ks[None, :], there[:, None] & (ks < k)[None, :]
            H = tl.load(h + place, mask=known, other=0.0)
            m = dot(H, D, m, PRECISION)
            g = dot(V, tl.trans(D), tl.zeros((BE, BK), tl.float32), PRECISION) * by
            if ADD:
                g += tl.load(dh + place, mask=known, other=0.0).to(tl.float32)
            if GATE:
                g = tl.where(H <= 0, 0.0, g)
            tl.store(dh + place, g.to(dh.dtype.element_ty), mask=known)
        m = m * by
        if RHO:
            m = m * r[:, None]
        tl.store(dm + e[:, None] * n + ns[None, :], m.to(dm.dtype.element_ty), mask=there[:, None] & (ns < n)[None, :])


@triton.jit
def _through(
    p, q, weight, bias, v, scale, ptr, src, sums, c, k, n, stride,
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
        H = dot(tl.where(z <= 0, 0.0, z).to(kind), M, tl.zeros((BE, BK), tl.float32), PRECISION) + b[None, :]
        H = tl.where(H <= 0, 0.0, H).to(kind)
        acc = dot(tl.trans(H), V, acc, PRECISION)
        total += tl.sum(V.to(tl.float32), 0)
    by = tl.load(scale + x).to(tl.float32)
    place = sums + x * stride + ks[:, None] * n + ns[None, :]
    tl.store(place, (acc * by).to(sums.dtype.element_ty), mask=(ks < k)[:, None] & (ns < n)[None, :])
    if tile == 0:
        _rest(total * by, v, sums + x * stride + k * n, n, False, BN)


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
def _segment_sum(
    values, gate, plus, door, ptr, order, out, c, stride,
    ORDER: tl.constexpr, GATE: tl.constexpr, PLUS: tl.constexpr, DOOR: tl.constexpr, BE: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """out[i] = sum of the rows ptr[i] to ptr[i+1] of values, in that order, where gate > 0; + plus[i]; where door[i] > 0."""
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
    total = tl.sum(acc, 0)
    if PLUS:
        total += tl.load(plus + i * stride + cs, mask=cs < c, other=0.0).to(tl.float32)
    if DOOR:
        total = tl.where(tl.load(door + i * c + cs, mask=cs < c, other=0.0) <= 0, 0.0, total)
    tl.store(out + i * c + cs, total.to(out.dtype.element_ty), mask=cs < c)


THROUGH = 128, 4  # columns of h at a time, and warps


def forward(h: Tensor, last: Last, v: Tensor, edges: Edges, relu: bool = False) -> Tensor:
    """Return the sums over neighbours of v kappa, and in a step of a network the step's own product added."""
    out = v.new_empty(edges.scale.shape[0], last.rows.shape[1])
    for part in parts_of(edges.scale.shape[0], edges.block):
        product(_sums(h, last, v, edges, part), last.rows, out if part is None else out[part])
    return out.relu_() if relu else out


def _sums(h: Tensor, last: Last, v: Tensor, edges: Edges, part: slice | None) -> Tensor:
    """Return A(x) and the columns behind it for some targets: what the rows of `last` are multiplied with."""
    v_x, is_step = v, last.step is not None
    ptr, scale, rho, max_degree = edges.ptr, edges.scale, edges.rho, edges.max_degree
    if part is not None:
        ptr, scale, v_x = ptr[part.start : part.stop + 1], scale[part], v[part] if is_step else v
    X, k, n, rows = scale.shape[0], h.shape[1], v.shape[1], last.rows.shape[0]
    sums, BN = v.new_empty(X, rows), power(n, 16, 256)
    tensors = h, v, v_x, v if rho is None else rho, scale, ptr, edges.src, sums
    short = h.element_size() <= 2
    if max_degree <= (128 if short else 64) and BN <= 64:
        BE = power(max_degree, 16, 128)
        BK = power(k, 16, 128 if BE <= 64 and short else 64)
        splits = 1 if X >= 2048 else max(1, min(4, k // BK))
        constants = rho is not None, is_step, BE, BK, BN, precision(v)
        launch(_outer_short, X * splits, tensors, (k, n, rows, splits), constants)
    else:
        BE, BK = 64 if short else 16, power(k, 16, 128 if BN <= 64 else 64 if BN <= 128 else 16)
        constants = rho is not None, is_step, BE, BK, BN, precision(v)
        launch(_outer, X * triton.cdiv(k, BK), tensors, (k, n, rows), constants, num_stages=2)
    return sums


def backward(d: Tensor, h: Tensor, found: Found, v: Tensor, edges: Edges, into: Into) -> Tensor:
    """Return dv; write dh as `into` says; add the gradients of the last layer to `found`."""
    last, rho, max_degree = found.last, edges.rho, edges.max_degree
    (k, n, _), rows = last.W.shape, last.rows
    dm = v.new_empty(edges.src.shape[0], n)
    plus = None if last.step is None else v.new_empty(edges.scale.shape[0], n)
    BN = power(n, 16, 256)
    BK = power(k, 16, 64 if BN <= 128 else 16)
    BE = 16 if max_degree <= 32 or BN > 128 else 64 if h.element_size() <= 2 else 32
    chunks = triton.cdiv(max(max_degree, 1), BE)
    for part in parts_of(edges.scale.shape[0], edges.block):
        sums = _sums(h, last, v, edges, part)
        some, by, offsets = d, edges.scale, edges.ptr
        if part is not None:
            some, by, offsets = d[part], edges.scale[part], edges.ptr[part.start : part.stop + 1]
        found.add(0, sums, some)
        torch.mm(some, rows.T, out=sums)
        tensors = sums, h, v, v if rho is None else rho, by, offsets, edges.src, into.dh, dm
        constants = rho is not None, into.add, into.close, BE, BK, BN, precision(v)
        launch(_spread, sums.shape[0] * chunks, tensors, (k, n, rows.shape[0], chunks), constants)
        if plus is not None and part is None:
            plus = sums[:, k * n + n : k * n + 2 * n]
        elif plus is not None:
            plus[part] = sums[:, k * n + n : k * n + 2 * n]
    return segment_sum(dm, *edges.by_source, plus=plus, door=into.door)


def fits_through(c: int, n: int) -> bool:
    """True if a kernel network of two hidden layers, the first of size c, can stay on the chip."""
    return c <= 128 and n <= 64


def through(p: Tensor, q: Tensor, layer: tuple[Tensor, Tensor], last: Last, v: Tensor, edges: Edges) -> Tensor:
    """Return `forward` for h = relu(weight relu(p + q) + bias), without storing h."""
    (weight, bias), scale = layer, edges.scale
    (k, c), n = weight.shape, v.shape[1]
    out, rows = v.new_empty(len(scale), last.W.shape[2]), len(last.rows)
    BK, warps = (power(k, 16, THROUGH[0]), THROUGH[1]) if v.element_size() <= 2 else (power(k, 16, 128), 8)
    for start in range(0, len(scale), edges.block):
        stop = min(start + edges.block, len(scale))
        sums = v.new_empty(stop - start, rows)
        tensors = p[start:stop], q, weight, bias, v, scale[start:stop], edges.ptr[start : stop + 1], edges.src, sums
        constants = 64 if v.element_size() <= 2 else 32, power(c, 16, 128), BK, power(n, 16, 64), precision(v)
        programs = (stop - start) * triton.cdiv(k, BK)
        launch(_through, programs, tensors, (c, k, n, rows), constants, num_warps=warps, num_stages=2)
        product(sums, last.rows, out[start:stop])
    return out


def edge_relu(p: Tensor, q: Tensor, ptr: Tensor, src: Tensor, dtype: torch.dtype, max_degree: int) -> Tensor:
    """Return relu(p(x) + q(y)) on every edge."""
    out = q.new_empty(len(src), q.shape[1], dtype=dtype)
    BC, edges = power(q.shape[1], 16, 512), power(max_degree // 1024, 128, 2**20)
    tiles, chunks = triton.cdiv(q.shape[1], BC), triton.cdiv(max_degree, edges)
    if src.shape[0]:
        tensors, numbers = (p, q, ptr, src, out), (q.shape[1], tiles, chunks)
        launch(_edge_relu, p.shape[0] * tiles * chunks, tensors, numbers, (edges, 8, BC))
    return out


def edge_relu_backward(
    d: Tensor, out: Tensor, ptr: Tensor, by_source: tuple[Tensor, Tensor], dtype: torch.dtype, overwrite: bool = False
) -> tuple[Tensor, Tensor]:
    """Return the gradients of p and q."""
    return segment_sum(d, ptr, gate=out, dtype=dtype), segment_sum(d, *by_source, gate=out, dtype=dtype)


def segment_sum(
    values: Tensor,
    ptr: Tensor,
    order: Tensor | None = None,
    *,
    gate: Tensor | None = None,
    plus: Tensor | None = None,
    door: Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Sum the rows ptr[i] to ptr[i+1] of `values` where gate > 0, add plus[i], and keep the result where door[i] > 0."""
    rows, columns = ptr.shape[0] - 1, values.shape[1]
    out = values.new_empty(rows, columns, dtype=dtype or values.dtype)
    BC = power(columns, 16, 128)
    if rows:
        others = [values if given is None else given for given in (gate, plus, door)]
        tensors = values, *others, ptr, ptr if order is None else order, out
        constants = order is not None, gate is not None, plus is not None, door is not None, 16, BC
        launch(_segment_sum, rows * triton.cdiv(columns, BC), tensors, (columns, others[1].stride(0)), constants)
    return out
