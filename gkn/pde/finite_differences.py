"""Second-order finite differences on grids, d = 1, 2, 3: batched, matrix-free, in float64, on the CPU and on CUDA.

The flux between neighbours i and j is (a_i + a_j)/2 (u_j - u_i)/h. The system A u = b is solved by conjugate
gradients preconditioned by M, the same scheme with a = 1, which sine transforms invert. Because
min(a) M <= A <= max(a) M, the condition number is at most max(a)/min(a) on every grid.

Arrays cover the whole grid and are 0 on its boundary, as sine transforms need them.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from gkn.geometry.domain import Data, boundary_values, flat_batch, values
from gkn.geometry.grid import Grid
from gkn.system.checks import check_finite, device_of

# Working set of one chunk: about the L2 cache of a CPU; on a GPU enough to keep it busy.
_CHUNK = {"cpu": 2**17, "cuda": 2**25}
_MOST_STEPS = 10_000


class NotConverged(RuntimeError):
    """The solver did not reach the accuracy asked for."""


def solve(
    grid: Grid, a: Data, f: Data, g: Data, *, tol: float = 1e-10, max_steps: int | None = None
) -> Float[Tensor, "*batch K"]:
    if not 1e-13 <= tol < 1:
        raise ValueError(f"solve_darcy(tol={tol}): needed 1e-13 <= tol < 1; float64 has no more")
    device = device_of(a)
    given = [values(grid, data, name).to(device) for data, name in ((a, "a"), (f, "f"))]
    given.append(boundary_values(grid, g).to(device))
    check_positive(given[0])
    batch, given = flat_batch(*given)
    coefficient, source, edge = (x.reshape(-1, *grid.shape) for x in given)
    out = torch.empty_like(coefficient, memory_format=torch.contiguous_format)
    chunk = max(1, min(len(out), _CHUNK[device.type] // len(grid)))
    laplacian = Laplacian(grid, device, chunk)
    for i in range(0, len(out), chunk):
        part = slice(i, i + chunk)
        out[part] = _solve(laplacian, coefficient[part], source[part], edge[part], tol, max_steps, first=i)
    return out.reshape(*batch, len(grid))


def residual(grid: Grid, a: Data, u: Tensor, f: Data) -> Float[Tensor, "*batch"]:
    u = torch.as_tensor(u)
    device = u.device
    given = [values(grid, data, name).to(device) for data, name in ((a, "a"), (u, "u"), (f, "f"))]
    check_positive(given[0])
    batch, given = flat_batch(*given)
    a, u, f = (x.reshape(-1, *grid.shape) for x in given)
    out = torch.empty(len(u), dtype=torch.float64, device=device)
    chunk = max(1, min(len(out), _CHUNK[device.type] // len(grid)))
    laplacian = Laplacian(grid, device, chunk)
    for i in range(0, len(out), chunk):
        part = slice(i, i + chunk)
        diffusion = Diffusion(laplacian, a[part])
        inside = laplacian.zero_boundary(u[part].clone())
        right = laplacian.zero_boundary(f[part].clone()) - diffusion(u[part] - inside)
        r = right - diffusion(inside)
        size = right.abs().flatten(1).amax(1).clamp_min(torch.finfo(torch.float64).tiny).reshape(-1, *(1,) * grid.dim)
        out[part] = _norm(laplacian, r / size) / _norm(laplacian, right / size).clamp_min(torch.finfo(torch.float64).tiny)
    return out.reshape(batch)


def check_positive(a: Tensor) -> None:
    check_finite(a, "a")
    bad = a <= 0
    if bad.any():
        at = tuple(bad.nonzero()[0].tolist())
        raise ValueError(
            f"a must be > 0 everywhere, but {int(bad.sum())} values are not; the first is {float(a[at]):g} at {at}"
        )


class Laplacian:
    """The inverse of M: -Lap with u = 0 on the boundary, by sine transforms, in O(K log K)."""

    def __init__(self, grid: Grid, device: torch.device, batch: int) -> None:
        self.grid = grid
        k = torch.arange(grid.size, dtype=torch.float64, device=device)
        one = (2 * torch.sin(math.pi * k / (2 * (grid.size - 1))) / grid.spacing) ** 2
        eigenvalues = one
        for _ in range(grid.dim - 1):
            eigenvalues = eigenvalues.unsqueeze(-1) + one
        # Two sine transforms are (size-1)/2 times the identity, per axis.
        self.inverse = self.zero_boundary(((2 / (grid.size - 1)) ** grid.dim / eigenvalues).unsqueeze(0))
        # Allocated once: on the CPU, new pages for every transform cost as much as the transform.
        shape = (batch, *grid.shape[:-1], 2 * (grid.size - 1))
        self.padded = torch.zeros(shape, dtype=torch.float64, device=device)

    def invert(self, r: Tensor) -> Tensor:
        """Transform the last axis and make it the first, until all have had their turn twice.

        The imaginary part of a real FFT of zero-padded data is minus the sine transform (see gkn.geometry.transforms); the
        minus signs cancel. The order of axes does not matter for the eigenvalues, because the grid is a cube.
        """
        padded = self.padded[: len(r)]
        data = padded[..., : self.grid.size]
        for turn in range(2 * self.grid.dim):
            if turn == self.grid.dim:
                torch.mul(r, self.inverse, out=data)
            else:
                data.copy_(r)
            r = torch.fft.rfft(padded).imag.movedim(-1, 1)
        return self.zero_boundary(r.contiguous())  # sin(0) and sin(k pi), which cuFFT leaves at 1e-18

    def zero_boundary(self, x: Tensor) -> Tensor:
        """Set the boundary to 0, in place."""
        for axis in range(1, self.grid.dim + 1):
            x.select(axis, 0).zero_()
            x.select(axis, -1).zero_()
        return x


class Diffusion:
    """A: u -> -div(a grad u) at the interior nodes, 0 on the boundary."""

    def __init__(self, laplacian: Laplacian, a: Tensor) -> None:
        self.dim, size = laplacian.grid.dim, laplacian.grid.size
        h = laplacian.grid.spacing
        self.faces = []
        for axis in range(1, self.dim + 1):
            a_in = self._interior(a, but=axis)
            face = a_in.narrow(axis, 0, size - 1) + a_in.narrow(axis, 1, size - 1)
            self.faces.append(face.mul_(0.5 / h**2))

    def _interior(self, x: Tensor, but: int) -> Tensor:
        for axis in range(1, self.dim + 1):
            if axis != but:
                x = x.narrow(axis, 1, x.shape[axis] - 2)
        return x

    def __call__(self, u: Tensor) -> Tensor:
        out = torch.zeros_like(u)
        inner = self._interior(out, but=0)
        for axis, face in enumerate(self.faces, start=1):
            flux = self._interior(u, but=axis).diff(dim=axis).mul_(face)
            inner -= flux.diff(dim=axis)
        return out


def _dot(x: Tensor, y: Tensor) -> Tensor:
    dot: Tensor = torch.linalg.vecdot(x.flatten(1), y.flatten(1))
    return dot


def _norm(laplacian: Laplacian, r: Tensor) -> Tensor:
    return _dot(r, laplacian.invert(r)).clamp_min(0).sqrt()


def _solve(laplacian: Laplacian, a: Tensor, f: Tensor, g: Tensor, tol: float, max_steps: int | None, first: int) -> Tensor:
    shape = (-1, *(1,) * laplacian.grid.dim)
    largest = a.flatten(1).amax(1)
    contrast = largest / a.flatten(1).amin(1)
    diffusion = Diffusion(laplacian, a / largest.reshape(shape))
    lifted = _extended(laplacian, g)
    r = laplacian.zero_boundary(f / largest.reshape(shape)) - diffusion(lifted)
    size = r.abs().flatten(1).amax(1)  # of magnitude 1 from here on, so that squares neither overflow nor vanish
    r = r / torch.where(size > 0, size, 1.0).reshape(shape)

    # With e the error and w = u - lifted, |e|_A^2 <= (r, M^-1 r)/min(a) and |w|_A^2 >= (b, M^-1 b)/max(a): together a bound.
    z = laplacian.invert(r)
    rz = start = _dot(r, z)
    if not bool(torch.isfinite(rz + contrast).all()):
        raise NotConverged("solve_darcy: a, f or g are so large, or a so uneven, that float64 overflows; scale them")
    goal = start * (tol**2 / contrast)
    steps = _steps_needed(float(contrast.max()), tol) if max_steps is None else max_steps
    active = ~(rz <= goal)
    u, p = torch.zeros_like(r), z
    for _ in range(steps):
        if not active.any():
            break
        q = diffusion(p)
        # A sample that has converged is not updated any more, so its solution does not depend on its batch.
        step = torch.where(active, rz / _dot(p, q), 0.0).reshape(shape)
        u.addcmul_(step, p)
        r.addcmul_(step, q, value=-1)
        z = laplacian.invert(r)
        rz, old = _dot(r, z), rz
        p = z.addcmul_(p, torch.where(active, rz / old, 0.0).reshape(shape))
        active = active & ~(rz <= goal)
    if active.any():
        reached = (rz * contrast / start).sqrt()
        bad = int(active.nonzero()[0])
        raise NotConverged(
            f"solve_darcy: sample {first + bad} has a relative error of up to {float(reached[bad]):.1e} after {steps} steps, "
            f"tol = {tol:.0e} was asked for; its contrast max(a)/min(a) is {float(contrast[bad]):.3g}: raise max_steps or tol"
        )
    return u.mul_(size.reshape(shape)).add_(lifted)


def _extended(laplacian: Laplacian, g: Tensor) -> Tensor:
    """Return g on the boundary and, inside, the solution of Laplace's equation with those boundary values."""
    edge = g - laplacian.zero_boundary(g.clone())
    if not edge.any():
        return edge
    return edge - laplacian.invert(Diffusion(laplacian, torch.ones_like(edge[:1]))(edge))


def _steps_needed(contrast: float, tol: float) -> int:
    """Return a bound on the number of steps, each of which multiplies the error by (sqrt(c)-1)/(sqrt(c)+1) at most.

    Half as many more are added for rounding.
    """
    bound = 0.5 * math.sqrt(contrast) * math.log(2 * math.sqrt(contrast) / tol)
    return min(_MOST_STEPS, 10 + math.ceil(1.5 * bound))
