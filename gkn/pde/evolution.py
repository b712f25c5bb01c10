"""The heat and the wave equation on meshes, u = 0 on the boundary: linear finite elements, second order in time.

All time steps of all samples on a mesh solve with one matrix, which is factorised once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from gkn.geometry.domain import Data, Domain, flat_batch, values
from gkn.geometry.mesh import Mesh
from gkn.pde.finite_elements import CELLS, Elements, factorised, is_meshed
from gkn.system.checks import device_of, real

Array = NDArray[Any]
_GAMMA = 1 - math.sqrt(0.5)  # SDIRK2 is L-stable and of second order with this number
_EQUAL = 1e-9  # relative difference of time steps that count as equal


def solve_heat(
    domain: Domain, u0: Data, times: Float[Tensor, " T"], *, kappa: float = 1.0, steps: int = 4
) -> Float[Tensor, "*batch T K"]:
    """Solve u_t = kappa Lap u, u = 0 on the boundary, u = u0 at time 0. Return u at the given times.

    With the step tau, c = 1 - 1/sqrt(2), the stiffness matrix A and the lumped mass matrix M, a step from u is SDIRK2:

        (M + c tau kappa A) v = M u,        (M + c tau kappa A) u_next = M (u + (1 + sqrt(2)) (v - u))

    It is of second order and L-stable: rough parts of u0 decay, whereas those of Crank-Nicolson oscillate. Values of u0 on the
    boundary are ignored.

    times   equally spaced; the first is 0
    steps   time steps from one of them to the next
    """
    from scipy.sparse import diags

    mesh = _checked(domain, "solve_heat", kappa=kappa)
    step = _step("solve_heat", times, steps)
    elements = Elements(mesh)
    inner = elements.inner
    mass = np.asarray(elements.mass().sum(1)).reshape(-1)[inner]
    solve = factorised(diags(mass) + _GAMMA * step * kappa * elements.inner_stiffness(), "solve_heat")

    def advance(state: Array) -> Array:
        (u,) = state
        first = solve(mass * u)
        return solve(mass * (u + (first - u) * (1 - _GAMMA) / _GAMMA))[None]

    (u,) = _marched(mesh, [u0], advance, (len(times), steps))
    return u


def solve_wave(
    domain: Domain, u0: Data, times: Float[Tensor, " T"], *, v0: Data = 0.0, c: float = 1.0, steps: int = 4
) -> tuple[Float[Tensor, "*batch T K"], Float[Tensor, "*batch T K"]]:
    """Solve u_tt = c^2 Lap u, u = 0 on the boundary, u = u0 and u_t = v0 at time 0. Return u and u_t at the given times.

    With the step tau, the mass matrix M and the stiffness matrix A, a step from u and v = u_t is Newmark's with average
    acceleration, written for the values in the middle of the step:

        (M + (tau c / 2)^2 A) u_mid = M (u + tau/2 v),        u_next = 2 u_mid - u,        v_next = 4/tau (u_mid - u) - v

    It is of second order and keeps the energy of `wave_energy`. Values of u0 and v0 on the boundary are ignored.

    times   equally spaced; the first is 0
    steps   time steps from one of them to the next
    """
    mesh = _checked(domain, "solve_wave", c=c)
    step = _step("solve_wave", times, steps)
    elements = Elements(mesh)
    inner = elements.inner
    mass = elements.mass()[inner][:, inner]
    solve = factorised(mass + (step * c / 2) ** 2 * elements.inner_stiffness(), "solve_wave")

    def advance(state: Array) -> Array:
        u, v = state
        middle = solve(mass @ (u + step / 2 * v))
        return np.stack([2 * middle - u, 4 / step * (middle - u) - v])

    u, v = _marched(mesh, [u0, v0], advance, (len(times), steps))
    return u, v


def smooth_start(domain: Domain, w: Data, length: float) -> Float[Tensor, "*batch K"]:
    """Return (1 - length^2 Lap)^-2 w with Dirichlet conditions: smooth on the scale `length`, and 0 on the boundary.

    Its Laplacian is 0 there too, as that of a solution of the heat or wave equation. A smooth function that is interpolated on
    an unstructured mesh has a rough discrete Laplacian, this function has not.
    """
    mesh = _checked(domain, "smooth_start", length=length)
    elements = Elements(mesh)
    inner, mass = elements.inner, elements.mass()
    batch, (w,) = flat_batch(values(mesh, w, "w").cpu())
    solve = factorised(mass[inner][:, inner] + length**2 * elements.inner_stiffness(), "smooth_start")
    out = np.zeros((len(w), len(mesh)))
    for row, data in zip(out, w.numpy(), strict=True):
        once = solve((mass @ data)[inner])
        row[inner] = solve(mass[inner][:, inner] @ once)
    return torch.from_numpy(out).reshape(*batch, len(mesh))


def wave_energy(
    domain: Domain, u: Float[Tensor, "*batch K"], v: Float[Tensor, "*batch K"], *, c: float = 1.0
) -> Float[Tensor, "*batch"]:
    """Return 1/2 int v^2 + c^2/2 int |grad u|^2, for the functions that are linear on the cells."""
    mesh = _checked(domain, "wave_energy", c=c)
    elements = Elements(mesh)
    ones = np.ones(len(mesh.cells))
    batch, (u, v) = flat_batch(values(mesh, u, "u").cpu(), values(mesh, v, "v").cpu())
    kinetic = (elements.mass() @ v.numpy().T * v.numpy().T).sum(0)
    potential = (elements.stiffness(ones) @ u.numpy().T * u.numpy().T).sum(0)
    return torch.from_numpy(kinetic + c**2 * potential).reshape(batch) / 2


def _marched(mesh: Mesh, initial: list[Data], advance: Callable[[Array], Array], count: tuple[int, int]) -> list[Tensor]:
    """Return functions (*batch, T, K) at T times, with `steps` time steps between them; count = (T, steps).

    advance   one time step of the values (fields, inner points) of one sample
    """
    frames, steps = count
    inner = (~mesh.boundary).numpy()
    batch, given = flat_batch(*(values(mesh, data, name).cpu() for data, name in zip(initial, ("u0", "v0"), strict=False)))
    fields = torch.stack(given, 1).numpy()  # (n, fields, K)
    out = np.zeros((len(fields), len(initial), frames, len(mesh)))
    for i, sample in enumerate(fields):
        state = sample[:, inner]
        out[i, :, 0, inner] = state.T
        for frame in range(1, frames):
            for _ in range(steps):
                state = advance(state)
            out[i, :, frame, inner] = state.T
    shape = (*batch, frames, len(mesh))
    return [torch.from_numpy(out[:, j].copy()).reshape(shape).to(device_of(initial[0])) for j in range(len(initial))]


def _step(name: str, times: Float[Tensor, " T"], steps: int) -> float:
    """Return the length of a time step; raise an error if the times are not equally spaced from 0."""
    times = real(times, "times")
    if steps < 1:
        raise ValueError(f"{name}(steps={steps}): needed at least 1 time step between two recorded times")
    gaps = times.diff() if times.ndim == 1 else times.new_empty(0)
    if not len(gaps) or times[0] != 0 or not gaps[0] > 0 or not ((gaps - gaps[0]).abs() <= _EQUAL * times[-1]).all():
        raise ValueError(
            f"{name}: times {times.tolist()}; needed equally spaced ones from 0 on, such as torch.linspace(0, 1, 11)"
        )
    return float(times[-1]) / (len(gaps) * steps)


def _checked(domain: Domain, name: str, **numbers: float) -> Mesh:
    """Return the mesh; raise an error if nothing can be solved on it, or if one of the numbers is not positive."""
    if not (isinstance(domain, Mesh) and is_meshed(domain)):
        raise ValueError(
            f"{name}: {domain.describe()}; needed a mesh of one kind of cells, {', '.join(CELLS)}, that are no surface or curve"
        )
    if domain.boundary.all():
        raise ValueError(f"{name}: all {len(domain)} points are on the boundary, where the solution is 0; give a finer mesh")
    for key, value in numbers.items():
        if not (value > 0 and math.isfinite(value)):
            raise ValueError(f"{name}({key}={value}): needed a finite number > 0")
    return domain
