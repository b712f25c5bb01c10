"""Muon: steps along the nearest orthogonal matrix of the momentum, for parameters that are matrices; AdamW for the others.

The method is Jordan's (2024), with the Newton-Schulz iteration he fitted; that a step is as long as AdamW's, so that learning
rates and decay mean the same, is from Liu et al. (2025).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

LEAST = 8  # rows and columns of a matrix: smaller ones, as of first and last layers, are left to AdamW
MOMENTUM, LENGTH = 0.95, 0.2  # RMS of an update divided by the learning rate, as for AdamW
ITERATION, ITERATIONS = (3.4445, -4.7750, 2.0315), 5
TINY = 1e-7  # norms below this count as zero


class Muon(torch.optim.Optimizer):
    """One group of parameters. Those of equal shape are made orthogonal together, a stack (..., n, m) matrix by matrix."""

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float, weight_decay: float = 0.0, **kind: Any) -> None:
        every = [*parameters]
        super().__init__(every, {"lr": lr, "weight_decay": weight_decay})
        rest = [each for each in every if not is_matrix(each)]
        self.rest = torch.optim.AdamW(rest, lr=lr, weight_decay=weight_decay, **kind) if rest else None
        if self.rest is not None:
            self.rest.state = self.state  # one place for all of it
        self.shapes: dict[tuple[int, int], list[nn.Parameter]] = {}
        for each in filter(is_matrix, every):
            self.shapes.setdefault((each.shape[-2], each.shape[-1]), []).append(each)

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        lr, decay = self.param_groups[0]["lr"], self.param_groups[0]["weight_decay"]
        for shape, parameters in self.shapes.items():
            some: list[Tensor] = [each for each in parameters if each.grad is not None]
            if not some:
                continue
            gradients = [each.grad for each in some if each.grad is not None]
            momenta = [self._momentum(each) for each in some]
            torch._foreach_lerp_(momenta, gradients, 1 - MOMENTUM)
            ahead = torch._foreach_lerp(gradients, momenta, MOMENTUM)
            stack = orthogonal(torch.cat([each.reshape(-1, *shape) for each in ahead]))
            parts = stack.to(some[0].dtype).split([each.numel() // (shape[0] * shape[1]) for each in some])
            torch._foreach_mul_(some, 1 - lr * decay)
            steps = [part.reshape(each.shape) for part, each in zip(parts, some, strict=True)]
            torch._foreach_add_(some, steps, alpha=-lr * LENGTH * max(shape) ** 0.5)
        if self.rest is not None:
            self.rest.param_groups[0].update(lr=lr, weight_decay=decay)
            self.rest.step()

    def _momentum(self, parameter: Tensor) -> Tensor:
        state = self.state[parameter]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(parameter)
        momentum: Tensor = state["momentum"]
        return momentum


def is_matrix(parameter: Tensor) -> bool:
    return parameter.ndim >= 2 and min(parameter.shape[-2:]) >= LEAST


def orthogonal(x: Tensor) -> Tensor:
    """Return nearly U V^T for each U S V^T of a stack (count, n, m): singular values between 0.7 and 1.2. On a GPU in bf16."""
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / (torch.linalg.matrix_norm(x, keepdim=True) + TINY)
    x = x.bfloat16() if x.is_cuda else x
    first, third, fifth = ITERATION
    for _ in range(ITERATIONS):
        square = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=third, alpha=fifth), x, beta=first)
    return x.mT if tall else x
