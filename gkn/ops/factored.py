"""The sums of reference.py in another order, in plain PyTorch, for any device: no edge ever has a matrix.

    sum_y kappa(x, y) v(y) = W : A(x) + B s(x),   A(x) = sum_y h(x, y) (x) v(y),   s(x) = sum_y v(y)

Adjacent targets of one degree are one batched product, without padding. A is computed for a block of targets at a time, and
again in the backward pass.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from gkn.ops.dense import mm_into
from gkn.ops.edges import Edges, Into
from gkn.ops.last import Found, Last, product

Runs = list[tuple[int, int, int, int]]  # first target, last + 1, first edge, degree


def forward(h: Tensor, last: Last, v: Tensor, edges: Edges, relu: bool = False) -> Tensor:
    """Return the sums over neighbours of v kappa, and in a step of a network the step's own product added."""
    scale = edges.scale
    out = v.new_empty(len(scale), last.W.shape[2])
    if len(last.W) < v.shape[1] // 2 and last.step is None and v.dtype.itemsize >= 4:
        _forward_few(out, h, last, v, edges)
        return out.relu_() if relu else out
    memory = v.new_empty(min(edges.block, len(scale)), *last.W.shape[:2])  # once: fresh pages cost as much as filling them
    for start, stop, runs in _blocks(edges):
        V = _values(v, edges.src, edges.rho, runs)
        A, s = _outer(h, V, edges, start, stop, runs, memory)
        base = s @ last.B
        if last.step is not None and last.bias is not None:
            base.addmm_(v[start:stop], last.step).add_(last.bias)
        product(A.flatten(1), last.W.flatten(0, 1), out[start:stop]).add_(base)
    return out.relu_() if relu else out


def _forward_few(out: Tensor, h: Tensor, last: Last, v: Tensor, edges: Edges) -> None:
    """Compute the sums where h has fewer columns than v: density and scale are multiplied with h, and s is the sum with one
    more column, which is 1."""
    k, n, _ = last.W.shape
    memory = v.new_empty(min(edges.block, len(edges.scale)), k + 1, n)
    for start, stop, runs in _blocks(edges):
        V = _values(v, edges.src, None, runs)
        some = slice(runs[0][2], runs[0][2] + len(V)) if runs else slice(0, 0)
        by = edges.scale[start:stop].repeat_interleave(edges.ptr[start : stop + 1].diff(), output_size=len(V))
        by = (by if edges.rho is None else by * edges.rho[some])[:, None].to(v.dtype)
        H, A = torch.cat([h[some] * by, by], 1), memory[: stop - start].zero_()
        for first, end, edge, degree in runs:
            few = (edge - runs[0][2], end - first, degree)
            torch.bmm(_batch(H, *few).transpose(1, 2), _batch(V, *few), out=A[first - start : end - start])
        product(A.flatten(1), last.rows, out[start:stop])


def backward(d: Tensor, h: Tensor, found: Found, v: Tensor, edges: Edges, into: Into) -> Tensor:
    """Return dv; write dh as `into` says; add the gradients of the last layer to `found`."""
    last, scale, dh = found.last, edges.scale, into.dh
    k, n, _ = last.W.shape
    dm, memory = v.new_empty(len(edges.src), n), v.new_empty(min(edges.block, len(scale)), k, n)
    for start, stop, runs in _blocks(edges):
        some, V = d[start:stop], _values(v, edges.src, edges.rho, runs)
        A, s = _outer(h, V, edges, start, stop, runs, memory)
        found.add(0, A.flatten(1), some)
        found.add(k * n, s, some)
        some = (some * scale[start:stop, None]).to(v.dtype)
        dA, ds = mm_into(A.flatten(1), some, last.W.flatten(0, 1).T).view(-1, k, n), some @ last.B.T
        for first, stop_run, edge, degree in runs:
            count, here = stop_run - first, slice(first - start, stop_run - start)
            D, here_dh = dA[here], _batch(dh, edge, count, degree)
            torch.baddbmm(ds[here, None], _batch(h, edge, count, degree), D, out=_batch(dm, edge, count, degree))
            values = _batch(V, edge - runs[0][2], count, degree)
            if into.add:
                here_dh.baddbmm_(values, D.transpose(1, 2))
            else:
                torch.bmm(values, D.transpose(1, 2), out=here_dh)
        if into.close and runs:
            block = slice(runs[0][2], runs[0][2] + len(V))
            close_where(dh[block], h[block])
    if edges.rho is not None:
        dm = dm.mul_(edges.rho[:, None])
    dv = segment_sum(dm, *edges.by_source)
    if last.step is not None:
        found.add(k * n + n, v, d)
        found.add(k * n + 2 * n, torch.ones_like(d[:, :1]), d)
        dv.addmm_(d, last.step.T)
    return dv if into.door is None else close_where(dv, into.door)


def close_where(d: Tensor, out: Tensor) -> Tensor:
    """Set d to 0 in place where out <= 0: the derivative of the ReLU that made `out`."""
    closed: Tensor = torch.ops.aten.threshold_backward.grad_input(d, out, 0, grad_input=d)
    return closed


def _blocks(edges: Edges) -> Iterator[tuple[int, int, Runs]]:
    """Yield blocks of targets, and the runs of one degree in each. Targets without edges are in no run."""
    ptr, block = edges.ptr, edges.block
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
    """Return rho(x, y) v(y) for the edges of some runs, which are adjacent."""
    if not runs:
        return v[:0]
    first, last, edge, degree = runs[-1]
    part = slice(runs[0][2], edge + (last - first) * degree)
    V = v.index_select(0, src[part])
    return V if rho is None else V.mul_(rho[part, None])


def _outer(h: Tensor, V: Tensor, edges: Edges, start: int, stop: int, runs: Runs, memory: Tensor) -> tuple[Tensor, Tensor]:
    """Return A, written into `memory`, and s of the targets of a block."""
    scale, ptr = edges.scale[start:stop], edges.ptr[start : stop + 1]
    X = len(scale)
    made = sum(end - first for first, end, _, _ in runs)
    A = memory[:X] if made == X else memory[:X].zero_()
    V = (V * scale.repeat_interleave(ptr.diff(), output_size=len(V))[:, None]).to(V.dtype)
    for first, end, edge, degree in runs:
        H = _batch(h, edge, end - first, degree)
        torch.bmm(H.transpose(1, 2), _batch(V, edge - runs[0][2], end - first, degree), out=A[first - start : end - start])
    return A, segment_sum(V, ptr - ptr[:1])


def _batch(x: Tensor, first: int, count: int, degree: int) -> Tensor:
    """Return the rows from `first` on as `count` matrices of `degree` rows."""
    columns = x.shape[1]
    return x.as_strided((count, degree, columns), (degree * columns, columns, 1), x.storage_offset() + first * columns)


def edge_relu(p: Tensor, q: Tensor, ptr: Tensor, src: Tensor, dtype: torch.dtype, max_degree: int) -> Tensor:
    """Return relu(p(x) + q(y)) on every edge."""
    target = torch.arange(len(p), device=src.device).repeat_interleave(ptr.diff(), output_size=len(src))
    return q.index_select(0, src).add_(p.index_select(0, target)).relu_().to(dtype)


def edge_relu_backward(
    d: Tensor, out: Tensor, ptr: Tensor, by_source: tuple[Tensor, Tensor], dtype: torch.dtype, overwrite: bool = False
) -> tuple[Tensor, Tensor]:
    """Return the gradients of p and q. `overwrite`: d may be overwritten."""
    d = d.mul_(out > 0) if overwrite else d * (out > 0)
    return segment_sum(d, ptr, dtype=dtype), segment_sum(d, *by_source, dtype=dtype)


def segment_sum(values: Tensor, ptr: Tensor, order: Tensor | None = None, dtype: torch.dtype | None = None) -> Tensor:
    """Sum the rows ptr[i] to ptr[i+1], taken in the given order. No atomics are used, so the bits are the same every time."""
    dtype = dtype or values.dtype
    if order is None:
        order = torch.arange(len(values), device=values.device, dtype=torch.int32 if len(values) < 2**31 else torch.int64)
    if not len(order):
        return values.new_zeros(len(ptr) - 1, values.shape[1], dtype=dtype)
    wide = values.to(torch.promote_types(values.dtype, torch.float32))
    kind = torch.int32 if len(order) < 2**31 and len(values) < 2**31 else torch.int64
    sums = torch.nn.functional.embedding_bag(order.to(kind), wide, ptr.to(kind), mode="sum", include_last_offset=True)
    return sums.to(dtype)
