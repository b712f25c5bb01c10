"""kernel_integral: the integral of the kernel network, without approximation, in three implementations.

`reference` is the formula, `factored` the same sums in plain PyTorch without a matrix per edge, `fused` the same in Triton.
README.md beside this file has the derivation, the counts and the measurements.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import Literal

import torch
from torch import Tensor

from gkn.graph.graph import Graph
from gkn.ops import library
from gkn.ops.edges import Measure

Backend = Literal["reference", "factored", "fused", "compiled"]
BACKENDS: tuple[Backend, ...] = ("reference", "factored", "fused")


def kernel_integral(
    h: Tensor,
    W: Tensor,
    B: Tensor,
    v: Tensor,
    graph: Graph,
    *,
    weights: Tensor | None = None,
    rho: Tensor | None = None,
    mean: bool = True,
    backend: Backend | None = None,
) -> Tensor:
    """Return the integral of kappa(x, y) v(y) over N(x), where kappa(x, y) = sum_k h(x, y)_k W_k + B.

        out(x) = sum_y w(y) rho(x, y) v(y) kappa(x, y) / sum_y w(y)

    A target without neighbours gets 0. All tensors have one floating type (the result has it too) and one device; under
    autocast float32 is cast to autocast's type.

        h        (edges, k)         last hidden features of the kernel network, in the order of the graph's edges
        W, B     (k, n, m), (n, m)  its last, linear layer: v(y) is a row, so out = v kappa
        v        (sources, n)       the function that is integrated
        weights  (sources,)         quadrature weights w >= 0; without them every y counts the same: the mean over N(x)
        rho      (edges,)           a density in the measure
        mean     False: do not divide by the sum of the weights: a plain quadrature sum
        ->       (targets, m)
    """
    h, W, B, v = autocast(h, W, B, v)
    check(h, W, B, v, graph, rho)
    chosen = pick(backend, v.device, v.dtype, W.shape[1])
    weights = quadrature(weights, graph, mean)
    scale = scales(graph, weights, mean, v.dtype)
    if weights is not None:
        v = v * weights.to(v.dtype)[:, None]
    rho = None if rho is None else rho.to(v.dtype).contiguous()
    if chosen != "factored" or graph.is_sorted:
        return library.kernel_sum(h, W, B, v, Measure(graph, rho, scale, chosen))
    tidy, order = graph.by_degree
    edge = graph.edges_by_degree
    rho = None if rho is None else rho.index_select(0, edge)
    out = library.kernel_sum(h.index_select(0, edge), W, B, v, Measure(tidy, rho, scale[order], chosen))
    return out.index_select(0, torch.argsort(order))


def edge_relu(
    p: Tensor, q: Tensor, graph: Graph, *, dtype: torch.dtype | None = None, backend: Backend | None = None
) -> Tensor:
    """Return relu(p(x) + q(y)) for every edge (x, y): (targets, c), (sources, c) -> (edges, c).

    This is the first layer of the kernel network. It is linear in (features of x, features of y), so p and q are computed once
    per node and not once per edge.

    p and q nearly cancel where kappa depends on x - y, so they are added as they are and rounded to `dtype` afterwards.
    """
    dtype = dtype or autocast(q)[0].dtype
    if p.shape != (graph.num_targets, q.shape[-1]) or q.shape != (graph.num_sources, q.shape[-1]) or p.dtype != q.dtype:
        raise ValueError(f"edge_relu: p {tuple(p.shape)} {p.dtype}, q {tuple(q.shape)} {q.dtype} do not match {graph}")
    return library.edge_relu(p, q, graph, dtype, pick(backend, q.device, q.dtype, 1))


def pick(backend: str | None, device: torch.device, dtype: torch.dtype, n: int) -> Backend:
    """Return the implementation asked for, or the best one. Raise an error if the one asked for cannot be used."""
    if backend is None:
        return choose(device, dtype, n)[0]
    for known in BACKENDS:
        if backend == known:
            if known == "fused" and (device.type == "cuda" or os.environ.get("TRITON_INTERPRET") != "1"):
                possible, reason = choose(device, dtype, n)
                if possible != "fused":
                    raise ValueError(f"backend='fused' cannot be used here: {reason}")
            elif known == "fused" and (dtype == torch.float64 or n > 256):  # interpreted, on the CPU
                raise ValueError(f"backend='fused' cannot be used here: {choose('cuda', dtype, n)[1]}")
            return known
    if backend == "compiled":
        raise ValueError("backend='compiled' cannot be used here: only balls of NearFar and Multigrid have loops in C++")
    raise ValueError(f"backend={backend!r}: use one of {', '.join(BACKENDS)}; for NearFar and Multigrid also compiled")


def choose(device: torch.device | str, dtype: torch.dtype, n: int) -> tuple[Backend, str]:
    """Return the implementation that is used, and the reason."""
    device = torch.device(device)
    if device.type != "cuda":
        return "factored", f"{device.type}: plain PyTorch; Triton needs an NVIDIA GPU"
    if find_spec("triton") is None:
        return "factored", "Triton is not installed: pip install 'gkn[gpu]'"
    if dtype not in (torch.float32, torch.bfloat16, torch.float16):
        return "factored", f"Triton has no matrix products in {str(dtype).removeprefix('torch.')}"
    if n > 256:
        return "factored", f"width {n}: one row of v must fit in a program's registers, up to 256"
    return "fused", "CUDA and Triton"


def autocast(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Cast tensors as autocast would: float32 to its type, others not at all."""
    kind = tensors[0].device.type
    if not torch.is_autocast_enabled(kind):
        return tensors
    to = torch.get_autocast_dtype(kind)
    return tuple(t.to(to) if t.is_floating_point() and t.dtype != torch.float64 else t for t in tensors)


def rounded(x: Tensor) -> Tensor:
    """Return x in the type that autocast computes with, or as it is without autocast."""
    return autocast(x)[0]


def full_precision(x: Tensor) -> torch.autocast:
    """Return a context in which autocast does nothing on the device of x."""
    return torch.autocast(x.device.type, enabled=False)


def edge_silu(p: Tensor, q: Tensor, graph: Graph, dtype: torch.dtype) -> Tensor:
    """Return silu(p(x) + q(y)) for every edge (x, y), by torch's own operations."""
    return torch.nn.functional.silu(p.index_select(0, graph.targets) + q.index_select(0, graph.src)).to(dtype)


def quadrature(weights: Tensor | None, graph: Graph, mean: bool) -> Tensor | None:
    """Return checked weights: finite and >= 0. For a mean the largest is scaled to 1, so that every type can hold them."""
    if weights is None:
        return None
    if weights.shape != (graph.num_sources,) or weights.device != graph.device or not weights.is_floating_point():
        raise ValueError(
            f"weights: {weights.dtype} of shape {tuple(weights.shape)} on {weights.device}; {graph} needs "
            f"({graph.num_sources},) floating-point numbers on {graph.device}"
        )
    if weights.requires_grad:
        raise ValueError("weights: a gradient is asked of quadrature weights, which are constants here; use weights.detach()")
    captured = (
        weights.device.type == "cuda" and torch.cuda.is_current_stream_capturing()
    )  # values cannot be read inside transforms
    if not captured and not torch.compiler.is_compiling() and not ((weights >= 0) & torch.isfinite(weights)).all():
        raise ValueError("weights: some are negative or not finite; quadrature weights are >= 0")
    weights = weights.double() if weights.dtype == torch.float64 else weights.float()
    return weights / weights.amax().clamp(min=torch.finfo(weights.dtype).tiny) if mean and len(weights) else weights


def scales(graph: Graph, weights: Tensor | None, mean: bool, dtype: torch.dtype) -> Tensor:
    """Return 1 / sum_y w(y), and 0 where the sum is 0."""
    kind = torch.float64 if dtype == torch.float64 else torch.float32
    if not mean:
        return torch.ones(graph.num_targets, dtype=kind, device=graph.device)
    if weights is None:
        total = graph.degrees.to(kind)
    else:
        total = library.segment_sum(weights.to(kind)[:, None], graph.ptr, graph.src)[:, 0]
    return inverse(total)


def inverse(mass: Tensor) -> Tensor:
    """Return 1 / mass, and 0 where the mass is 0."""
    tiny = torch.finfo(mass.dtype).tiny
    return torch.where(mass > tiny, 1 / mass.clamp_min(tiny), 0)


def check(h: Tensor | None, W: Tensor, B: Tensor, v: Tensor, graph: Graph, rho: Tensor | None = None) -> None:
    """Check shapes, types and devices. h may be None."""
    given = {"h": h, "W": W, "B": B, "v": v} if h is not None else {"W": W, "B": B, "v": v}
    for name, tensor in given.items():
        if not tensor.is_floating_point():
            raise ValueError(f"kernel_integral: {name} is {tensor.dtype}; needed floating-point numbers")
        if tensor.dtype != v.dtype or tensor.device != v.device:
            raise ValueError(
                f"kernel_integral: {name} is {tensor.dtype} on {tensor.device}, v is {v.dtype} on {v.device}; needed one type "
                f"and one device"
            )
    if graph.device != v.device:
        raise ValueError(f"kernel_integral: the graph is on {graph.device}, v on {v.device}; use graph.to({str(v.device)!r})")
    if W.ndim != 3 or not W.numel():
        raise ValueError(f"kernel_integral: W of shape {tuple(W.shape)}; needed (k, n, m) with at least 1 of each")
    k, n, m = W.shape
    needed: dict[str, tuple[int, ...]] = {"h": (graph.num_edges, k), "W": (k, n, m), "B": (n, m), "v": (graph.num_sources, n)}
    if rho is not None:
        given["rho"], needed["rho"] = rho, (graph.num_edges,)
        if rho.requires_grad and torch.is_grad_enabled():
            raise ValueError("kernel_integral: a gradient is asked of rho, which is a constant here; use rho.detach()")
        if rho.device != v.device:
            raise ValueError(f"kernel_integral: rho is on {rho.device}, v on {v.device}; needed one device")
    for name, tensor in given.items():
        if tuple(tensor.shape) != needed[name]:
            raise ValueError(
                f"kernel_integral: {name} of shape {tuple(tensor.shape)}; {graph} and W {(k, n, m)} need {needed[name]}"
            )
