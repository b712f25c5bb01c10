"""Parts shared by all Triton kernels here: products, launches and tile sizes."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def dot(a, b, acc, PRECISION: tl.constexpr):
    """Return acc + a b. The interpreter uses numpy, which has no bf16; there products are computed in float32."""
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
    """Launch kernel[(programs,)](*tensors, *numbers, *constants).

    Triton finds the compiled kernel anew in every call, which takes longer than a small batch. Here it is cached by `key`,
    which has everything the choice depends on.
    """
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
    """Return the precision of products. If tf32 is allowed, float32 products are computed as three tf32 products.

    Triton truncates to tf32 where cuBLAS rounds, and the kernels here are limited by memory, not arithmetic.
    """
    if x.device.type == "cpu":
        return "ieee" if x.dtype == torch.float32 else "emulate"
    if x.dtype != torch.float32:
        return "ieee"
    return "tf32x3" if torch.backends.cuda.matmul.allow_tf32 else "ieee"
