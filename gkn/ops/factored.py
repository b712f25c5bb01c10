"""The same sums in another order, in plain PyTorch: the matrix of an edge never exists. For any device.

    sum_y kappa(x, y) v(y) = W : A(x) + B s(x),   A(x) = sum_y h(x, y) (x) v(y),   s(x) = sum_y v(y)

Targets of one degree that lie side by side are one batched product, without padding. A is made for a block of targets at
a time, and made again in the backward pass.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from gkn.ops.last import Found, Last, product

Runs = list[tuple[int, int, int, int]]  # first target, last + 1, first edge, degree


def forward(
    h: Tensor,
    last: Last,
    v: Tensor,
    ptr: Tensor,
    src: Tensor,
    rho: Tensor | None,
    scale: Tensor,
    block: int,
    max_degree: int,
    relu: bool = False,
) -> Tensor:
    out = v.new_empty(len(scale), last.W.shape[2])
    if len(last.W) < v.shape[1] // 2 and last.own is None and v.dtype.itemsize >= 4:
        return _forward_few(out, h, last, v, ptr, src, rho, scale, block, relu)
    room = v.new_empty(min(block, len(scale)), *last.W.shape[:2])  # taken once: fresh pages cost as much as filling them
    for start, stop, runs in _blocks(ptr, block):
        V = _values(v, src, rho, runs)
        A, s = _outer(h, V, scale[start:stop], ptr[start : stop + 1], start, runs, room)
        base = s @ last.B
        if last.own is not None and last.bias is not None:
            base.addmm_(v[start:stop], last.own).add_(last.bias)
        product(A.flatten(1), last.W.flatten(0, 1), out[start:stop]).add_(base)
    return out.relu_() if relu else out


def _forward_few(
    out: Tensor,
    h: Tensor,
    last: Last,
    v: Tensor,
    ptr: Tensor,
    src: Tensor,
    rho: Tensor | None,
    scale: Tensor,
    block: int,
    relu: bool,
) -> Tensor:
    """Where h has fewer columns than v: densities and scales are multiplied with it, and s is the sum with one more, a 1."""
    k, n, _ = last.W.shape
    room = v.new_empty(min(block, len(scale)), k + 1, n)
    for start, stop, runs in _blocks(ptr, block):
        V = _values(v, src, None, runs)
        edges = slice(runs[0][2], runs[0][2] + len(V)) if runs else slice(0, 0)
        by = scale[start:stop].repeat_interleave(ptr[start : stop + 1].diff(), output_size=len(V))
        by = (by if rho is None else by * rho[edges])[:, None].to(v.dtype)
        H, A = torch.cat([h[edges] * by, by], 1), room[: stop - start].zero_()
        for first, end, edge, degree in runs:
            few = (edge - runs[0][2], end - first, degree)
            torch.bmm(_batch(H, *few).transpose(1, 2), _batch(V, *few), out=A[first - start : end - start])
        product(A.flatten(1), last.rows, out[start:stop])
    return out.relu_() if relu else out


def backward(
    d: Tensor,
    h: Tensor,
    last: Last,
    found: Found,
    v: Tensor,
    ptr: Tensor,
    src: Tensor,
    by_source: tuple[Tensor, Tensor],
    rho: Tensor | None,
    scale: Tensor,
    dh: Tensor,
    block: int,
    max_degree: int,
    add: bool,
    close: bool = False,
    door: Tensor | None = None,
) -> Tensor:
    """dv, closed where door <= 0; dh is written, or added to, and then closed where h <= 0; `found` takes what is of `last`."""
    k, n, _ = last.W.shape
    dm, room = v.new_empty(len(src), n), v.new_empty(min(block, len(scale)), k, n)
    for start, stop, runs in _blocks(ptr, block):
        some, V = d[start:stop], _values(v, src, rho, runs)
        A, s = _outer(h, V, scale[start:stop], ptr[start : stop + 1], start, runs, room)
        found.add(0, A.flatten(1), some)
        found.add(k * n, s, some)
        some = (some * scale[start:stop, None]).to(v.dtype)
        dA, ds = torch.mm(some, last.W.flatten(0, 1).T, out=A.flatten(1)).view(-1, k, n), some @ last.B.T
        for first, stop_run, edge, degree in runs:
            count, here = stop_run - first, slice(first - start, stop_run - start)
            D, into = dA[here], _batch(dh, edge, count, degree)
            torch.baddbmm(ds[here, None], _batch(h, edge, count, degree), D, out=_batch(dm, edge, count, degree))
            values = _batch(V, edge - runs[0][2], count, degree)
            if add:
                into.baddbmm_(values, D.transpose(1, 2))
            else:
                torch.bmm(values, D.transpose(1, 2), out=into)
        if close and runs:
            edges = slice(runs[0][2], runs[0][2] + len(V))
            close_where(dh[edges], h[edges])
    if rho is not None:
        dm = dm.mul_(rho[:, None])
    dv = segment_sum(dm, *by_source)
    if last.own is not None:
        found.add(k * n + n, v, d)
        found.add(k * n + 2 * n, torch.ones_like(d[:, :1]), d)
        dv.addmm_(d, last.own.T)
    return dv if door is None else close_where(dv, door)


def close_where(d: Tensor, out: Tensor) -> Tensor:
    """d, in place, 0 where out <= 0: the derivative of the ReLU that made `out`."""
    closed: Tensor = torch.ops.aten.threshold_backward.grad_input(d, out, 0, grad_input=d)
    return closed


def _blocks(ptr: Tensor, block: int) -> Iterator[tuple[int, int, Runs]]:
    """Blocks of targets, and the runs of one degree in each. Targets without edges are in no run."""
    degrees, counts = torch.unique_consecutive(ptr.diff().cpu(), return_counts=True)
    runs, total = [(d, c) for d, c in zip(degrees.tolist(), counts.tolist(), strict=True)], len(ptr) - 1
    block = -(-total // max(1, -(-total // block)))  # all of about one size
    start, edge, number, used = 0, 0, 0, 0
    while start < total:
        stop, here, at = min(start + block, total), [], start
        while at < stop:
            degree, count = runs[number]
            take = min(count - used, stop - at)
            if degree:
                here.append((at, at + take, edge, degree))
            at, edge, used = at + take, edge + take * degree, used + take
            if used == count:
                number, used = number + 1, 0
        yield start, stop, here
        start = stop


def _values(v: Tensor, src: Tensor, rho: Tensor | None, runs: Runs) -> Tensor:
    """rho(x, y) v(y) for the edges of some runs, which lie side by side."""
    if not runs:
        return v[:0]
    first, last, edge, degree = runs[-1]
    part = slice(runs[0][2], edge + (last - first) * degree)
    V = v.index_select(0, src[part])
    return V if rho is None else V.mul_(rho[part, None])


def _outer(h: Tensor, V: Tensor, scale: Tensor, ptr: Tensor, start: int, runs: Runs, room: Tensor) -> tuple[Tensor, Tensor]:
    """A, written into the room for it, and s of targets from `start` on."""
    X = len(scale)
    made = sum(stop - first for first, stop, _, _ in runs)
    A = room[:X] if made == X else room[:X].zero_()
    V = (V * scale.repeat_interleave(ptr.diff(), output_size=len(V))[:, None]).to(V.dtype)
    for first, stop, edge, degree in runs:
        H = _batch(h, edge, stop - first, degree)
        torch.bmm(H.transpose(1, 2), _batch(V, edge - runs[0][2], stop - first, degree), out=A[first - start : stop - start])
    return A, segment_sum(V, ptr - ptr[:1])


def _batch(x: Tensor, first: int, count: int, degree: int) -> Tensor:
    """Rows from `first` on as `count` matrices of `degree` rows."""
    columns = x.shape[1]
    return x.as_strided((count, degree, columns), (degree * columns, columns, 1), x.storage_offset() + first * columns)


def edge_relu(p: Tensor, q: Tensor, ptr: Tensor, src: Tensor, dtype: torch.dtype, max_degree: int) -> Tensor:
    target = torch.arange(len(p), device=src.device).repeat_interleave(ptr.diff(), output_size=len(src))
    return q.index_select(0, src).add_(p.index_select(0, target)).relu_().to(dtype)


def edge_relu_backward(
    d: Tensor, out: Tensor, ptr: Tensor, by_source: tuple[Tensor, Tensor], dtype: torch.dtype, own: bool = False
) -> tuple[Tensor, Tensor]:
    """`own`: d may be overwritten."""
    d = d.mul_(out > 0) if own else d * (out > 0)
    return segment_sum(d, ptr, dtype=dtype), segment_sum(d, *by_source, dtype=dtype)


def segment_sum(values: Tensor, ptr: Tensor, order: Tensor | None = None, dtype: torch.dtype | None = None) -> Tensor:
    """Sums of rows ptr[i] to ptr[i+1], taken in the given order: no atomics, so the same bits every time."""
    dtype = dtype or values.dtype
    if order is None:
        order = torch.arange(len(values), device=values.device, dtype=torch.int32 if len(values) < 2**31 else torch.int64)
    if not len(order):
        return values.new_zeros(len(ptr) - 1, values.shape[1], dtype=dtype)
    wide = values.to(torch.promote_types(values.dtype, torch.float32))
    kind = torch.int32 if len(order) < 2**31 and len(values) < 2**31 else torch.int64
    sums = torch.nn.functional.embedding_bag(order.to(kind), wide, ptr.to(kind), mode="sum", include_last_offset=True)
    return sums.to(dtype)
