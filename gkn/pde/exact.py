"""Problems that carry their exact solution. a and u are written down; the gradient of u and f follow by differentiation."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

Function = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class ExactSolution:
    """-div(a grad u) = f in D, u = its own values on the boundary. D is "cube" (any dimension) or "disk"."""

    name: str
    a: Function
    u: Function
    where: str = "cube"

    def grad_u(self, x: Float[Tensor, "K d"]) -> Float[Tensor, "K d"]:
        x = x.detach().clone().requires_grad_()
        return self._gradient(self.u(x), x).detach()

    def f(self, x: Float[Tensor, "K d"]) -> Float[Tensor, " K"]:
        x = x.detach().clone().requires_grad_()
        flux = self.a(x)[:, None] * self._gradient(self.u(x), x)
        divergence = torch.zeros_like(x[:, 0])
        for axis in range(x.shape[1]):
            divergence = divergence + self._gradient(flux[:, axis], x)[:, axis]
        return -divergence.detach()

    @staticmethod
    def _gradient(values: Tensor, x: Tensor) -> Tensor:
        if not values.requires_grad:
            return torch.zeros_like(x)
        (gradient,) = torch.autograd.grad(values.sum(), x, create_graph=True, allow_unused=True, materialize_grads=True)
        return gradient


def sine() -> ExactSolution:
    """u = prod sin(i pi x_i), in 2-D sin(pi x) sin(2 pi y), with a smooth, varying coefficient."""

    def u(x: Tensor) -> Tensor:
        k = torch.arange(1, x.shape[1] + 1).to(x)
        return torch.sin(math.pi * k * x).prod(-1)

    return ExactSolution("sine", lambda x: torch.exp(0.5 * torch.sin(3 * x + 1).sum(-1)), u)


def poisson_sine() -> ExactSolution:
    """a = 1, u = prod sin(pi x_i)."""
    return ExactSolution("poisson_sine", lambda x: torch.ones_like(x[:, 0]), lambda x: torch.sin(math.pi * x).prod(-1))


def patch() -> ExactSolution:
    """a = 2 and u linear: every scheme of first order or more has it exactly."""

    def u(x: Tensor) -> Tensor:
        return 1 + (x * torch.tensor([2.0, -3.0, 0.5]).to(x)[: x.shape[1]]).sum(-1)

    return ExactSolution("patch", lambda x: torch.full_like(x[:, 0], 2.0), u)


def layered(interface: float = 1 / math.e, low: float = 3.0, high: float = 12.0) -> ExactSolution:
    """Two phases: a = low left of the interface, high right of it; u depends on x_1 alone and f = 1.

    u and a u' are continuous, u' jumps: u = x (c - x/2)/a on the left, (1-x)((1+x)/2 - c)/a on the right.
    """
    p = interface
    # (a u')' = -1 gives a u' = c - x; u(0) = u(1) = 0 fixes c.
    c = (p**2 / low + (1 - p**2) / high) / (2 * (p / low + (1 - p) / high))

    def a(x: Tensor) -> Tensor:
        return torch.where(x[:, 0] < p, torch.full_like(x[:, 0], low), torch.full_like(x[:, 0], high))

    def u(x: Tensor) -> Tensor:
        x = x[:, 0]
        left = (c * x - x**2 / 2) / low
        right = ((x**2 - 1) / 2 - c * (x - 1)) / -high
        return torch.where(x < p, left, right)

    return ExactSolution("layered", a, u)


def disk_constant() -> ExactSolution:
    """The unit disk with a = 1 and f = 1: u = (1 - |x|^2)/4."""
    return ExactSolution("disk_constant", lambda x: torch.ones_like(x[:, 0]), lambda x: (1 - (x**2).sum(-1)) / 4, "disk")


def disk_smooth() -> ExactSolution:
    """The unit disk with a = 1 and a right-hand side without symmetry: u = (1 - |x|^2) exp(x_1) cos(x_2 + 1/2)."""

    def u(x: Tensor) -> Tensor:
        return (1 - (x**2).sum(-1)) * torch.exp(x[:, 0]) * torch.cos(x[:, 1] + 0.5)

    return ExactSolution("disk_smooth", lambda x: torch.ones_like(x[:, 0]), u, "disk")
