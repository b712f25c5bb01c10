"""What all Triton kernels here share: products, launches, and how large tiles are."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def dot(a, b, acc, PRECISION: tl.constexpr):
    """acc + a b. The interpreter is numpy, which has no products of bf16: there they are done in float32, which holds them."""
    if PRECISION == "emulate":
        return tl.dot(a.to(tl.float32), b.to(tl.float32), acc, input_precision="ieee")
    return tl.dot(a, b, acc, input_precision=PRECISION)


@lru_cache
def power(n: int, least: int, most: int) -> int:
    return min(max(1 << (max(n, 1) - 1).bit_length(), least), most)


_known: dict[Any, Any] = {}


def launch(
    kernel: Any,
    programs: int,
    tensors: tuple[Tensor, ...],
    numbers: tuple[int, ...],
    constants: tuple[Any, ...],
    num_warps: int = 4,
    num_stages: int = 3,
) -> None:
    """kernel[(programs,)](*tensors, *numbers, *constants). Triton works out at every call which of its compiled kernels is
    meant, in more time than a small batch takes to compute; all that this depends on is in `key`."""
    if tensors[0].device.type == "cpu":  # interpreted
        kernel[(programs,)](*tensors, *numbers, *constants)
        return
    kinds = [(tensor.dtype, tensor.data_ptr() % 16 == 0) for tensor in tensors]
    key = kernel.__name__, torch.cuda.current_device(), numbers, constants, num_warps, num_stages, *kinds
    known = _known.get(key)
    if known is None:
        _known[key] = kernel[(programs,)](*tensors, *numbers, *constants, num_warps=num_warps, num_stages=num_stages)
    else:
        known[(programs, 1, 1)](*tensors, *numbers, *constants)


def precision(x: Tensor) -> str:
    """Where float32 products may be done in tf32, these are done in three of them: Triton cuts numbers off where cuBLAS rounds
    them, and here memory is the limit, not arithmetic."""
    if x.device.type == "cpu":
        return "ieee" if x.dtype == torch.float32 else "emulate"
    if x.dtype != torch.float32:
        return "ieee"
    return "tf32x3" if torch.backends.cuda.matmul.allow_tf32 else "ieee"


def parts_of(total: int, block: int) -> list[slice] | list[None]:
    """Blocks of targets; None is all of them, which spares the slicing: launches must keep up with a fast GPU."""
    return [None] if 0 < total <= block else [slice(i, min(i + block, total)) for i in range(0, total, block)]
