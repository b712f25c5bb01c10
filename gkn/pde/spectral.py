"""Pseudo-spectral solvers on the periodic unit interval and square: Burgers' and the Navier-Stokes equation, batched.

Functions on N nodes per axis are followed by their Fourier coefficients with |k| < N/3; the others are dropped, so products
of two functions have no aliases among those that are kept (the 2/3 rule). In these coefficients an equation reads

    du/dt = -decay u + rate(flow(u)),   decay = nu |k|^2

Diffusion is exact by an integrating factor, the rest is stepped by the classical Runge-Kutta method of order 4.

Every sample has a time and a step of its own, so it does not depend on its batch. Its steps do not end at the recorded times:
those are reached by one shorter step aside, so frames do not depend on which others are recorded.
"""

from __future__ import annotations

import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Complex, Float
from torch import Tensor

from gkn.pde.finite_differences import NotConverged
from gkn.system.checks import check_finite, real

# Nodes of one chunk: about the L2 cache of a CPU; on a GPU enough to keep it busy.
_CHUNK = {"cpu": 2**15, "cuda": 2**24}
_MOST_STEPS = 10**6
# Longest step for courant = 1, as a part of the decay time of the longest wave: slow functions are not crossed in one step.
_LONGEST = 0.1


def solve_burgers(
    u0: Float[Tensor, "..."],
    nu: float,
    times: Float[Tensor, " T"] | Sequence[float],
    *,
    every: int = 1,
    courant: float = 0.5,
) -> Float[Tensor, "*batch T M"]:
    """Solve u_t + (u^2/2)_x = nu u_xx on the periodic unit interval.

    u0        values (..., N) at the nodes i/N
    times     increasing times >= 0 at which u is recorded
    every     record every `every`-th node only: M = N / every
    courant   cells that the fastest point crosses in one step, at most 1; the error is of order courant^4

    Fronts are about 8 nu / (their jump) wide, and N must be large enough to resolve them. The solution is float64.
    """
    start = _initial(u0, "solve_burgers: u0", 1)
    frames = _Frames("solve_burgers", _recorded(times, "solve_burgers"), every, courant)
    frames.check(nu, start.shape[-1])
    line = _Line(start.shape[-1], start.device)
    return _solve(frames, start, 1, lambda part: _Burgers(line, nu))


def solve_navier_stokes(
    w0: Float[Tensor, "..."],
    nu: float,
    times: Float[Tensor, " T"] | Sequence[float],
    *,
    forcing: float | Tensor = 0.0,
    every: int = 1,
    courant: float = 0.5,
) -> Float[Tensor, "*batch T M M"]:
    """Solve w_t + v . grad w = nu Lap w + f for the vorticity w on the periodic unit square.

    The velocity is v = (psi_y, -psi_x) with -Lap psi = w, so w = d(v_2)/dx - d(v_1)/dy. The mean of w moves nothing.

    w0        values (..., N, N) at the nodes (i/N, j/N): x runs along the last axis but one, y along the last
    times     increasing times >= 0 at which w is recorded
    forcing   f, constant in time: a number, or values that broadcast to the shape of w0
    every     record every `every`-th node of each axis only: M = N / every
    courant   cells that the fastest point crosses in one step, at most 1; the error is of order courant^4

    Memory does not grow with the number of steps. The solution is float64.
    """
    start = _initial(w0, "solve_navier_stokes: w0", 2)
    frames = _Frames("solve_navier_stokes", _recorded(times, "solve_navier_stokes"), every, courant)
    frames.check(nu, start.shape[-1])
    given = real(forcing, "solve_navier_stokes: forcing").to(start.device)
    check_finite(given, "solve_navier_stokes: forcing")
    try:
        force = given.expand(start.shape).reshape(-1, *start.shape[-2:])
    except RuntimeError as error:
        needed = f"a number or values that broadcast to w0 {tuple(start.shape)}"
        raise ValueError(f"solve_navier_stokes: forcing of shape {tuple(given.shape)}; needed {needed}") from error
    square = _Square(start.shape[-1], start.device)
    return _solve(frames, start, 2, lambda part: _Vorticity(square, nu, force[part]))


# --- Fourier coefficients


class _Line:
    """Fourier coefficients k = 0 .. K < N/3 of real functions on N nodes of the periodic unit interval."""

    def __init__(self, nodes: int, device: torch.device) -> None:
        self.nodes, self.kept = nodes, (nodes - 1) // 3 + 1
        self.k = 2 * math.pi * torch.arange(self.kept, dtype=torch.float64, device=device)
        self.squares = self.k**2

    def coefficients(self, values: Float[Tensor, "*n N"]) -> Complex[Tensor, "*n k"]:
        out: Tensor = torch.fft.rfft(values, norm="forward")[..., : self.kept]
        return out

    def values(self, coefficients: Complex[Tensor, "*n k"]) -> Float[Tensor, "*n N"]:
        out: Tensor = torch.fft.irfft(coefficients, self.nodes, norm="forward")
        return out


class _Square:
    """Fourier coefficients of real functions on N x N nodes of the periodic unit square, both |k| < N/3.

    They are stored as (k_y, k_x) with k_y = 0 .. K and k_x = 0 .. K, -K .. -1, so all transforms run along the last axis:
    they are faster there, and their bits do not depend on the number of functions.
    """

    def __init__(self, nodes: int, device: torch.device) -> None:
        self.nodes, self.kept = nodes, (nodes - 1) // 3 + 1
        up = torch.arange(self.kept, dtype=torch.float64, device=device)
        self.kx = 2 * math.pi * torch.cat([up, -up[1:].flip(0)])
        self.ky = 2 * math.pi * up[:, None]
        self.squares = self.kx**2 + self.ky**2

    def coefficients(self, values: Float[Tensor, "*n N N"]) -> Complex[Tensor, "*n ky kx"]:
        along_y = torch.fft.rfft(values, norm="forward")[..., : self.kept]
        both = torch.fft.fft(along_y.mT.contiguous(), norm="forward")
        return torch.cat([both[..., : self.kept], both[..., 1 - self.kept :]], -1)

    def values(self, coefficients: Complex[Tensor, "*n ky kx"]) -> Float[Tensor, "*n N N"]:
        padded = coefficients.new_zeros(*coefficients.shape[:-1], self.nodes)
        padded[..., : self.kept] = coefficients[..., : self.kept]
        padded[..., 1 - self.kept :] = coefficients[..., self.kept :]
        along_y = coefficients.new_zeros(*coefficients.shape[:-2], self.nodes, self.nodes // 2 + 1)
        along_y[..., : self.kept] = torch.fft.ifft(padded, norm="forward").mT
        out: Tensor = torch.fft.irfft(along_y, self.nodes, norm="forward")
        return out


# --- Equations


class _Equation(ABC):
    """du/dt = -decay u + rate(flow(u)), for the Fourier coefficients u (n, ...) of n functions."""

    space: _Line | _Square
    decay: Tensor
    push: Tensor | float = 0.0
    """Largest acceleration by a force, per sample."""

    def __init__(self, space: _Line | _Square, nu: float) -> None:
        self.space, self.decay = space, nu * space.squares
        self.lasting = 1 / (nu * (2 * math.pi) ** 2)
        """Time in which the longest wave decays to 1/e."""

    @abstractmethod
    def flow(self, u: Complex[Tensor, "n ..."]) -> Float[Tensor, "n ..."]:
        """Return the velocity at the nodes."""

    @abstractmethod
    def rate(self, flow: Float[Tensor, "n ..."]) -> Complex[Tensor, "n ..."]:
        """Return the rate of change without diffusion."""

    @abstractmethod
    def speed(self, flow: Float[Tensor, "n ..."]) -> Float[Tensor, " n"]:
        """Return the largest speed of each sample, summed over the axes."""


class _Burgers(_Equation):
    def __init__(self, line: _Line, nu: float) -> None:
        super().__init__(line, nu)
        self.derivative = -0.5j * line.k

    def flow(self, u: Tensor) -> Tensor:
        return self.space.values(u)

    def rate(self, flow: Tensor) -> Tensor:
        return self.derivative * self.space.coefficients(flow**2)

    def speed(self, flow: Tensor) -> Tensor:
        return flow.abs().amax(1)


class _Vorticity(_Equation):
    """w_t = (d_yy - d_xx)(v_1 v_2) + d_xy (v_1^2 - v_2^2) + nu Lap w + f: -v . grad w, in four transforms instead of five."""

    def __init__(self, square: _Square, nu: float, force: Float[Tensor, "n N N"]) -> None:
        super().__init__(square, nu)
        kx, ky = torch.broadcast_tensors(square.kx, square.ky)
        inverse = torch.where(square.squares > 0, 1 / square.squares, 0.0)
        self.curl = torch.stack([1j * ky * inverse, -1j * kx * inverse])
        self.stress = torch.stack([kx**2 - ky**2, -kx * ky])
        self.force = square.coefficients(force)
        self.push = self.speed(self.flow(self.force))

    def flow(self, u: Tensor) -> Tensor:
        return self.space.values(self.curl * u[:, None])

    def rate(self, flow: Tensor) -> Tensor:
        v1, v2 = flow.unbind(1)
        products = torch.stack([v1 * v2, (v1 - v2) * (v1 + v2)], 1)
        return (self.stress * self.space.coefficients(products)).sum(1) + self.force

    def speed(self, flow: Tensor) -> Tensor:
        return flow.abs().sum(1).flatten(1).amax(1)


# --- Time


@dataclass(frozen=True)
class _Frames:
    """Times and nodes at which a solver records, and its steps."""

    name: str
    times: list[float]
    every: int
    courant: float

    def check(self, nu: float, nodes: int) -> None:
        if not (math.isfinite(nu) and nu > 0):
            raise ValueError(f"{self.name}(nu={nu}): needed a finite viscosity > 0")
        if not 0 < self.courant <= 1:
            raise ValueError(f"{self.name}(courant={self.courant}): needed 0 < courant <= 1; from 1.35 on it is unstable")
        if operator.index(self.every) < 1 or nodes % self.every:
            strides = ", ".join(str(j) for j in range(1, nodes + 1) if nodes % j == 0)
            raise ValueError(f"{self.name}(every={self.every}): the stride must divide N = {nodes}; use one of {strides}")


def _initial(given: Tensor, name: str, dim: int) -> Tensor:
    start = real(given, name)
    if start.ndim < dim or min(start.shape[-dim:]) < 4 or len({*start.shape[-dim:]}) > 1:
        needed = "(..., N, N)" if dim == 2 else "(..., N)"
        raise ValueError(f"{name} of shape {tuple(start.shape)}; needed {needed} with N >= 4 nodes per axis")
    check_finite(start, name)
    return start


def _recorded(given: Tensor | Sequence[float], name: str) -> list[float]:
    times = real(given, f"{name}: times")
    if times.ndim != 1 or not len(times):
        raise ValueError(f"{name}: times of shape {tuple(times.shape)}; needed a list of at least one time")
    check_finite(times, f"{name}: times")
    out: list[float] = times.tolist()
    for i, (before, time) in enumerate(zip([-math.inf, *out], out, strict=False)):
        if time < 0 or time <= before:
            after = f" after {before:g}" if i else ""
            raise ValueError(f"{name}: times[{i}] = {time:g}{after}; needed times >= 0 that increase")
    return out


def _solve(frames: _Frames, start: Tensor, dim: int, equation: Callable[[slice], _Equation]) -> Tensor:
    batch, shape = start.shape[:-dim], start.shape[-dim:]
    flat = start.reshape(-1, *shape)
    recorded = [n // frames.every for n in shape]
    out = flat.new_empty(len(flat), len(frames.times), *recorded)
    chunk = max(1, _CHUNK[start.device.type] // math.prod(shape))
    for first in range(0, len(flat), chunk):
        part = slice(first, first + chunk)
        _evolve(frames, equation(part), flat[part], out[part], first)
    return out.reshape(*batch, len(frames.times), *recorded)


def _evolve(frames: _Frames, equation: _Equation, start: Tensor, out: Tensor, first: int) -> None:
    """Write the frames of one chunk, whose first sample has the number `first`, into `out`."""
    u = equation.space.coefficients(start)
    along = (-1, *(1,) * (u.ndim - 1))
    t = torch.zeros(len(u), dtype=torch.float64, device=u.device)
    rate, h = _ahead(frames, equation, u, t, first)
    strided = (slice(None), *(slice(None, None, frames.every),) * (start.ndim - 1))
    for number, time in enumerate(frames.times):
        while bool((active := t + h <= time).any()):
            # A step of length 0 changes nothing: samples that are ahead wait for the others.
            taken = torch.where(active, h, 0.0)
            u = _step(equation, u, rate, taken.reshape(along))
            t = t + taken
            rate, h = _ahead(frames, equation, u, t, first)
        aside = _step(equation, u, rate, (time - t).reshape(along))
        out[:, number] = (equation.space.values(aside) if time else start)[strided]
    bad = ~torch.isfinite(out).flatten(2).all(2)
    if bad.any():
        sample, number = bad.nonzero()[0].tolist()
        raise NotConverged(
            f"{frames.name}: sample {first + sample} is not finite at t = {frames.times[number]:g}; give smaller data"
        )


def _ahead(frames: _Frames, equation: _Equation, u: Tensor, t: Tensor, first: int) -> tuple[Tensor, Tensor]:
    """Return the rate of change and the length of the next step of each sample."""
    flow = equation.flow(u)
    speed = equation.speed(flow)
    reach = frames.courant / equation.space.nodes
    # The positive root of h (speed + push h) = reach: a force can set in motion what is at rest.
    h = 2 * reach / (speed + (speed**2 + 4 * reach * equation.push).sqrt())
    h = h.clamp_max(frames.courant * _LONGEST * equation.lasting)
    lost = ~(h * _MOST_STEPS >= frames.times[-1])
    if lost.any():
        i = int(lost.nonzero()[0])
        raise NotConverged(
            f"{frames.name}: sample {first + i} has a speed of {float(speed[i]):.3g} at t = {float(t[i]):g} and would take "
            f"more than {_MOST_STEPS:,} steps until t = {frames.times[-1]:g}; give smaller data or fewer nodes, or stop earlier"
        )
    return equation.rate(flow), h


def _step(equation: _Equation, u: Tensor, rate: Tensor, h: Tensor) -> Tensor:
    """Return u after a step of length h, with `rate` its rate of change at the start."""
    half = torch.exp(-0.5 * h * equation.decay)
    whole = half**2
    second = equation.rate(equation.flow(half * (u + 0.5 * h * rate)))
    third = equation.rate(equation.flow(half * u + 0.5 * h * second))
    fourth = equation.rate(equation.flow(whole * u + h * half * third))
    return whole * (u + h / 6 * rate) + h / 6 * (2 * half * (second + third) + fourth)
