"""Products of matrices. On AMD's processors from Zen 5 on, oneDNN is twice as fast as MKL, which torch uses for float32.

`mm` and `plus_mm` have no derivative; `product`, `linear` and the layer `Linear` do. Which library computes a product depends
on the machine and on the sizes alone, never on a measurement, so that runs can be repeated to the same bits.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

ZEN_5 = 26
"""Family of AMD's processors. On Zen 4 (25) oneDNN is a tenth faster for large products and slower for small ones."""
LEAST = 2**18
"""Multiplications below which finding the way to oneDNN costs more than it saves."""


@cache
def has_onednn() -> bool:
    """True where oneDNN is used: if torch has it, and on processors where it was measured to be faster."""
    try:
        about = Path("/proc/cpuinfo").read_text()
    except OSError:
        return False
    family = re.search(r"^cpu family\s*:\s*(\d+)", about, re.MULTILINE)
    faster = "AuthenticAMD" in about and family is not None and int(family[1]) >= ZEN_5
    return faster and torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def mm(a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return a b, plus a bias in every row."""
    if not _is_faster(a, b):
        return a @ b if bias is None else torch.addmm(bias, a, b)
    turned = a.stride(0) == 1 and a.stride(1) != 1
    if turned and bias is None and a.shape[0] > b.shape[1]:
        return _onednn(b.T, a, None).T
    return _onednn(a.contiguous(), b.T, bias)


def mm_into(out: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Write a b into `out`."""
    return out.copy_(mm(a, b)) if _is_faster(a, b) else torch.mm(a, b, out=out)


def plus_mm(total: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Add a b to `total`, in the type of `total`."""
    if _is_faster(a, b):
        return total.add_(mm(a, b))
    if total.dtype == a.dtype:
        return total.addmm_(a, b)
    if total.device.type == "cuda":
        return torch.addmm(total, a, b, out_dtype=total.dtype, out=total)
    return total.add_(a @ b)


def parts_of(total: int, block: int) -> list[slice] | list[None]:
    """Return blocks of rows. None stands for all of them, which saves the time of slicing."""
    return [None] if 0 < total <= block else [slice(i, min(i + block, total)) for i in range(0, total, block)]


def product(a: Tensor, b: Tensor) -> Tensor:
    """Return a b for matrices, or for batches of them of one size."""
    if a.ndim == 2 and _is_ours(a, b):
        return cast(Tensor, _Product.apply(a, b, None))  # type: ignore[no-untyped-call]
    if a.ndim == 3 and _is_ours(a[0], b[0]):
        return torch.stack([product(x, y) for x, y in zip(a, b, strict=True)])
    return a @ b


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x weight^T + bias."""
    if x.ndim == 2 and _is_ours(x, weight.T):
        return cast(Tensor, _Product.apply(x, weight.T, bias))  # type: ignore[no-untyped-call]
    return nn.functional.linear(x, weight, bias)


class Linear(nn.Linear):
    """A linear layer whose products are those of this module."""

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


def is_transformed() -> bool:
    """True inside forward-mode or functional transforms, which know torch's operations and not ours."""
    if torch.compiler.is_compiling():
        return False
    return forward_ad._current_level >= 0 or torch._C._functorch.peek_interpreter_stack() is not None


def _is_faster(a: Tensor, b: Tensor) -> bool:
    """True if a b is computed by oneDNN."""
    if a.device.type != "cpu" or a.dtype != torch.float32 or b.dtype != torch.float32:
        return False
    return a.shape[0] * a.shape[1] * b.shape[1] >= LEAST and has_onednn()


def _is_ours(a: Tensor, b: Tensor) -> bool:
    """True if a b is computed by oneDNN, and differentiated by us."""
    return _is_faster(a, b) and not (torch.compiler.is_compiling() or torch.is_autocast_enabled("cpu") or is_transformed())


def _onednn(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return x weight^T + bias."""
    return cast(Tensor, torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], ""))


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(a, b)
        return mm(a, b, bias)

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        a, b = ctx.saved_tensors
        of_a, of_b, of_bias = ctx.needs_input_grad
        times = torch.matmul if torch.is_grad_enabled() else mm  # if the derivative is differentiated again
        with torch.autocast("cpu", enabled=False):
            da, db = times(d, b.T) if of_a else None, times(a.T, d) if of_b else None
        return da, db, d.sum(0) if of_bias else None
