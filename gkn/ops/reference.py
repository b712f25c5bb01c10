"""The formula, edge by edge. Read this first; it needs a matrix for every edge."""

from __future__ import annotations

import torch
from torch import Tensor

from gkn.ops.edges import Edges
from gkn.ops.last import Last


def forward(h: Tensor, last: Last, v: Tensor, edges: Edges) -> Tensor:
    """Return scale(x) * sum over y in N(x) of rho(x, y) v(y) kappa(x, y), where kappa(x, y) = sum_k h(x, y)_k W_k + B."""
    kappa = torch.einsum("ek,kji->eji", h, last.W) + last.B
    message = torch.einsum("ej,eji->ei", v.index_select(0, edges.src), kappa)
    if edges.rho is not None:
        message = message * edges.rho[:, None]
    target = torch.arange(len(edges.scale), device=edges.src.device).repeat_interleave(edges.ptr.diff())
    out = message.new_zeros(len(edges.scale), last.W.shape[2]).index_add(0, target, message)
    return out * edges.scale[:, None]


def edge_relu(p: Tensor, q: Tensor, ptr: Tensor, src: Tensor) -> Tensor:
    """Return relu(p(x) + q(y)) for every edge (x, y): the first layer of kappa, split into a part of x and a part of y."""
    target = torch.arange(len(p), device=src.device).repeat_interleave(ptr.diff())
    return torch.relu(p.index_select(0, target) + q.index_select(0, src))
