import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp
from scipy.special import ive

import gkn
from gkn import Burgers, GaussianField, Grid, NavierStokes, NotConverged, stream
from gkn.data.problems import problem_named
from gkn.pde import spectral
from gkn.pde.spectral import solve_burgers, solve_navier_stokes


def slope(steps, errors):
    return float(np.polyfit(np.log(steps), np.log(errors), 1)[0])


def line(n):
    return torch.arange(n, dtype=torch.float64) / n


def square(n):
    return torch.meshgrid(line(n), line(n), indexing="ij")


def waves(n, rng, batch=(), low=4, size=1.0):
    """Random functions of a few long waves on n x n nodes, of mean 0."""
    angle = 2 * math.pi * torch.arange(-low, low + 1)[:, None] * line(n)
    phase = torch.exp(1j * angle)
    c = torch.complex(*(torch.randn(*batch, *(2 * low + 1,) * 2, generator=rng, dtype=torch.float64) for _ in range(2)))
    c[..., low, low] = 0
    return size * torch.einsum("...kl,kx,ly->...xy", c, phase, phase).real


def cole_hopf(x, t, nu, amplitude=1.0):
    """The solution of Burgers' equation that starts as amplitude * sin(2 pi x), by the heat equation it comes from."""
    k = 2 * math.pi * np.arange(400)
    series = ive(np.arange(400), amplitude / (4 * math.pi * nu)) * np.exp(-nu * k**2 * t)
    series[1:] *= 2
    phi, slope = np.cos(np.outer(x, k)) @ series, -np.sin(np.outer(x, k)) @ (k * series)
    return torch.from_numpy(-2 * nu * slope / phi)


def velocity_energy(w):
    """Kinetic energy and enstrophy, by all Fourier coefficients of w."""
    c = torch.fft.fft2(w, norm="forward").abs() ** 2
    k = torch.fft.fftfreq(w.shape[-1], 1 / w.shape[-1], dtype=torch.float64) * 2 * math.pi
    squares = k[:, None] ** 2 + k**2
    squares[0, 0] = math.inf
    return (c / squares).sum((-1, -2)) / 2, c.sum((-1, -2)) / 2


# --- Burgers


def burgers_errors(n, nu, t, courants):
    found = [solve_burgers(torch.sin(2 * math.pi * line(n)), nu, [t], courant=c)[0] for c in courants]
    return [float((u - cole_hopf(line(n), t, nu)).abs().max()) for u in found]


@pytest.mark.parametrize("nu", [0.05, 0.03, 0.02])
def test_burgers_is_of_fourth_order_in_time(nu):
    """Against the exact solution of Cole and Hopf, before and after the front has formed."""
    courants = (0.25, 0.125, 0.0625)
    for t in (0.1, 0.3):
        errors = burgers_errors(256, nu, t, courants)
        assert 3.9 <= slope(courants, errors) <= 4.3
        assert errors[-1] < 3e-11


def test_burgers_is_spectrally_accurate_in_space():
    """Each further node gains the same factor; a scheme of any order would gain less and less."""
    errors = [burgers_errors(n, 0.02, 0.25, [0.1])[0] for n in (48, 96, 192)]
    assert errors[0] / errors[1] > 30
    assert errors[1] / errors[2] > 30**2
    assert errors[2] < 1e-9


def test_slow_functions_are_not_crossed_in_one_step():
    """A step that ends before the fastest point has crossed half a cell would last as long as the diffusion."""
    n, nu, size = 16, 0.1, 0.01
    u = solve_burgers(size * torch.sin(2 * math.pi * line(n)), nu, [0.5, 1.0])
    for i, t in enumerate((0.5, 1.0)):
        exact = cole_hopf(line(n), t, nu, size)
        assert float((u[i] - exact).norm() / exact.norm()) < 1e-8


def test_burgers_keeps_the_mean_and_loses_energy(rng):
    u0 = 0.3 + GaussianField(5.0, 2.0, "periodic", dim=1, scale=25.0).sample(Grid(256, 1, periodic=True), 4, rng)
    u = solve_burgers(u0, 0.01, torch.linspace(0, 1, 11))
    torch.testing.assert_close(u.mean(-1), u0.mean(-1, keepdim=True).expand(4, 11), atol=1e-14, rtol=0)
    assert ((u**2).mean(-1).diff(dim=1) < 0).all()
    assert (u.abs().amax(-1) <= u0.abs().amax(-1, keepdim=True) + 1e-6).all()  # and the maximum principle


def test_burgers_in_a_moving_frame(rng):
    """u0 + c gives u(x - ct) + c: the whole picture moves by eight cells."""
    u0 = GaussianField(5.0, 2.0, "periodic", dim=1, scale=25.0, modes=40).sample(Grid(128, 1, periodic=True), 2, rng)
    still, moving = solve_burgers(u0, 0.05, [0.25]), solve_burgers(u0 + 0.25, 0.05, [0.25], courant=0.1)
    torch.testing.assert_close(moving, still.roll(8, -1) + 0.25, atol=1e-7, rtol=0)


# --- Navier-Stokes


@pytest.mark.parametrize("wave", [(1, 1), (3, 4), (0, 5), "all"])
def test_decaying_vortices(wave):
    """Taylor and Green: waves of one length do not move each other, so their sum decays as a whole."""
    x, y = (2 * math.pi * each for each in square(24))
    all_waves = [(3, 4), (4, 3), (0, 5), (5, 0)]
    chosen = all_waves if wave == "all" else [wave]
    w0 = 20 * sum((i + 1) * torch.sin(k * x + 0.3 * i) * torch.cos(l * y - i) for i, (k, l) in enumerate(chosen))
    nu, times = 0.01, torch.tensor([0.0, 0.01, 0.1, 0.5], dtype=torch.float64)
    decay = nu * (2 * math.pi) ** 2 * sum(k**2 for k in chosen[0])
    w = solve_navier_stokes(w0, nu, times)
    torch.testing.assert_close(w, torch.exp(-decay * times)[:, None, None] * w0, atol=1e-11, rtol=0)


def test_the_wind_blows_the_right_way():
    """w0 = sin 2 pi x + cos 4 pi y, by hand: v = (-sin(4 pi y)/(4 pi), -cos(2 pi x)/(2 pi)), -v . grad w = -3/2 cos sin."""
    x, y = (2 * math.pi * each for each in square(16))
    w0 = torch.sin(x) + torch.cos(2 * y)
    w = solve_navier_stokes(w0, 1e-9, [1e-5])[0]
    torch.testing.assert_close((w - w0) / 1e-5, -1.5 * torch.cos(x) * torch.sin(2 * y), atol=1e-4, rtol=0)


def stationary(n):
    """A stream function written down, with its vorticity and the force that holds it, all by differentiation in space."""
    x = torch.stack(square(n), -1).reshape(-1, 2).requires_grad_()

    def gradient(values):
        return torch.autograd.grad(values.sum(), x, create_graph=True)[0].unbind(-1)

    angle = 2 * math.pi * x
    psi = 0.02 * torch.exp(torch.sin(angle[:, 0]) + 0.5 * torch.cos(angle[:, 1] + angle[:, 0])) * torch.cos(angle[:, 1])
    psi_x, psi_y = gradient(psi)
    w = -gradient(psi_x)[0] - gradient(psi_y)[1]
    w_x, w_y = gradient(w)
    laplacian = gradient(w_x)[0] + gradient(w_y)[1]
    f = psi_y * w_x - psi_x * w_y - 0.01 * laplacian
    return [each.detach().reshape(n, n) for each in (w, f)]


def test_a_force_holds_a_flow_with_spectral_accuracy():
    errors = []
    for n in (16, 24, 32):
        w, f = stationary(n)
        errors.append(float((solve_navier_stokes(w, 0.01, [0.5], forcing=f, courant=0.1)[0] - w).abs().max() / w.abs().max()))
    assert errors[0] / errors[1] > 20
    assert errors[1] / errors[2] > 20
    assert errors[2] < 1e-6


class Convolution:
    """The equation of the coefficients with |k| < n/3 as a sum over all pairs of waves: no transforms, no aliases."""

    def __init__(self, n, nu, f):
        most = (n - 1) // 3
        k = np.stack(np.meshgrid(*[np.arange(-most, most + 1)] * 2, indexing="ij"), -1).reshape(-1, 2)
        p, q = (each.reshape(-1) for each in np.meshgrid(np.arange(len(k)), np.arange(len(k)), indexing="ij"))
        total = k[p] + k[q]
        fits = (abs(total) <= most).all(1) & (k[p] != 0).any(1)
        self.p, self.q = p[fits], q[fits]
        self.sum = (total[fits] + most) @ [2 * most + 1, 1]
        a, b = 2 * math.pi * k[self.p], 2 * math.pi * k[self.q]
        # v = (psi_y, -psi_x), psi = w/|a|^2: -v . grad w = (a_y b_x - a_x b_y)/|a|^2 w_p w_q
        self.factor = (a[:, 1] * b[:, 0] - a[:, 0] * b[:, 1]) / (a**2).sum(1)
        self.decay = nu * (2 * math.pi) ** 2 * (k**2).sum(1)
        self.phase = np.exp(2j * math.pi * np.einsum("kd,dxy->kxy", k, np.stack([each.numpy() for each in square(n)])))
        self.f = self.coefficients(f)

    def coefficients(self, values):
        return (self.phase.conj() * np.asarray(values)).mean((1, 2))

    def __call__(self, t, c):
        out = self.f - self.decay * c
        products = self.factor * c[self.p] * c[self.q]
        return out + np.bincount(self.sum, products.real, len(c)) + 1j * np.bincount(self.sum, products.imag, len(c))

    def solve(self, w0, t):
        c = solve_ivp(self, (0, t), self.coefficients(w0), "DOP853", rtol=1e-12, atol=1e-13).y[:, -1]
        return torch.from_numpy(np.einsum("k,kxy->xy", c, self.phase).real)


def test_navier_stokes_is_of_fourth_order_in_time(rng):
    """Against an integrator of order 8 for the same coefficients, without transforms; the flow is advected and forced."""
    n, nu, t = 12, 2e-3, 0.5
    w0, f = waves(n, rng, low=2), waves(n, rng, low=2)
    exact = Convolution(n, nu, f).solve(w0, t)
    assert float((exact - w0).abs().max()) > 0.5 * float(w0.abs().max())  # it is another flow by then
    courants = (0.2, 0.1, 0.05)
    errors = [float((solve_navier_stokes(w0, nu, [t], forcing=f, courant=c)[0] - exact).abs().max()) for c in courants]
    assert 3.9 <= slope(courants, errors) <= 4.3
    assert errors[-1] < 1e-7


def test_a_force_sets_in_motion_what_is_at_rest():
    """One wave moves no other, so w = f (1 - exp(-decay t)) / decay."""
    x, _ = square(16)
    f, decay = torch.sin(4 * math.pi * x), 0.01 * (4 * math.pi) ** 2
    w = solve_navier_stokes(torch.zeros(16, 16), 0.01, [1.0], forcing=f, courant=0.1)[0]
    torch.testing.assert_close(w, f * (1 - math.exp(-decay)) / decay, atol=1e-8, rtol=0)
    # Two waves do, and the first step must not be so long that the flow has turned over at its end.
    two = 20 * (f + torch.cos(2 * math.pi * square(16)[1]))
    coarse, fine = (solve_navier_stokes(torch.zeros(16, 16), 0.001, [0.5], forcing=two, courant=c) for c in (0.5, 0.1))
    torch.testing.assert_close(coarse, fine, atol=1e-3, rtol=0)


def test_flows_in_a_mirror(rng):
    """x -> -x: the same steps, whatever the signs of the velocities."""

    def mirrored(values, axis):
        return -values.flip(axis).roll(1, axis)

    w0, u0 = waves(24, rng), 1 + torch.sin(2 * math.pi * line(64))
    w, u = solve_navier_stokes(w0, 1e-3, [0.1])[0], solve_burgers(u0, 0.05, [0.5])[0]
    torch.testing.assert_close(solve_navier_stokes(mirrored(w0, 0), 1e-3, [0.1])[0], mirrored(w, 0), atol=1e-11, rtol=0)
    torch.testing.assert_close(solve_navier_stokes(mirrored(w0, 1), 1e-3, [0.1])[0], mirrored(w, 1), atol=1e-11, rtol=0)
    torch.testing.assert_close(solve_burgers(mirrored(u0, 0), 0.05, [0.5])[0], mirrored(u, 0), atol=1e-12, rtol=0)


def test_energy_enstrophy_and_the_mean_are_kept(rng):
    w0 = 0.7 + waves(32, rng, low=3)
    w = solve_navier_stokes(w0, 1e-12, [0.0, 0.2, 0.4], courant=0.1)
    assert float((w[-1] - w0).abs().max()) > 1
    for kept in velocity_energy(w):
        torch.testing.assert_close(kept, kept[:1].expand(3), rtol=1e-6, atol=0)
    torch.testing.assert_close(w.mean((1, 2)), w0.mean().expand(3), atol=1e-13, rtol=0)


def test_navier_stokes_turned_and_shifted(rng):
    """Turned: x and y exchange their roles, and vortices their sense. Shifted: by 3 and 5 cells."""
    w0, f = waves(24, rng), waves(24, rng)
    w = solve_navier_stokes(w0, 1e-3, [0.1], forcing=f)
    turned = solve_navier_stokes(-w0.mT, 1e-3, [0.1], forcing=-f.mT)
    torch.testing.assert_close(turned, -w.mT, atol=1e-11, rtol=0)
    shifted = solve_navier_stokes(w0.roll((3, 5), (0, 1)), 1e-3, [0.1], forcing=f.roll((3, 5), (0, 1)))
    torch.testing.assert_close(shifted, w.roll((3, 5), (1, 2)), atol=1e-11, rtol=0)


# --- Both


def burgers(u0, times, **options):
    return solve_burgers(u0, 0.02, times, **options)


def vorticity(w0, times, **options):
    return solve_navier_stokes(w0, 1e-3, times, forcing=torch.ones(len(w0[0]), 1) * 0.1, **options)


@pytest.fixture(params=["burgers", "navier-stokes"])
def case(request, rng):
    """A solver with five initial states, whose speeds and so whose steps differ."""
    size = torch.tensor([1.0, 3.0, 0.1, 0.0, 2.0], dtype=torch.float64)
    if request.param == "burgers":
        field = GaussianField(5.0, 2.0, "periodic", dim=1, scale=25.0, modes=64)
        return burgers, size[:, None] * field.sample(Grid(96, 1, periodic=True), 5, rng)
    return vorticity, size[:, None, None] * waves(24, rng, (5,))


def test_a_shift_by_whole_cells(case):
    solve, start = case
    if start.ndim == 2:
        torch.testing.assert_close(solve(start.roll(7, -1), [0.3]), solve(start, [0.3]).roll(7, -1), atol=1e-12, rtol=0)
    else:
        torch.testing.assert_close(solve(start.roll(7, -1), [0.1]), solve(start, [0.1]).roll(7, -1), atol=1e-11, rtol=0)


def test_batch_is_loop_bit_for_bit(case, monkeypatch):
    solve, start = case
    times = [0.0, 0.1, 0.25]
    whole = solve(start, times)
    assert whole.shape == (5, 3, *start.shape[1:])
    assert all(torch.equal(solve(start[i : i + 1], times)[0], whole[i]) for i in range(5))
    monkeypatch.setitem(spectral._CHUNK, "cpu", 2 * start[0].numel())  # the batch in three chunks
    assert torch.equal(solve(start, times), whole)
    assert torch.equal(solve(start, times), whole)


def test_frames_do_not_depend_on_the_others(case):
    solve, start = case
    few, many = solve(start, [0.0, 0.1, 0.25]), solve(start, [0.0, 0.01, 0.1, 0.17, 0.25, 0.3])
    assert torch.equal(few, many[:, [0, 2, 4]])
    assert torch.equal(few[:, 0], start)
    assert torch.equal(solve(start, [0.1]), few[:, 1:2])
    strided = few[(slice(None), slice(None), *(slice(None, None, 3),) * (start.ndim - 1))]
    assert torch.equal(solve(start, [0.0, 0.1, 0.25], every=3), strided)


def test_shapes_and_types():
    u0 = torch.sin(2 * math.pi * line(16))
    u = solve_burgers(u0, 0.1, (0, 1))
    assert u.shape == (2, 16)
    assert solve_burgers(u0.expand(2, 3, 16), 0.1, torch.tensor([0.5])).shape == (2, 3, 1, 16)
    assert solve_burgers(u0.expand(0, 16), 0.1, [1.0]).shape == (0, 1, 16)
    assert solve_burgers(u0.float(), 0.1, [1.0], every=4).shape == (1, 4)
    assert solve_burgers(u0.float(), 0.1, [1.0]).dtype == torch.float64
    w = solve_navier_stokes(u0.expand(3, 16, 16), 0.1, [0, 1], forcing=torch.ones(3, 1, 16), every=2)
    assert w.shape == (3, 2, 8, 8)
    each = [solve_navier_stokes(u0.expand(16, 16), 0.1, [0, 1], forcing=u0[:, None] * i) for i in range(2)]
    both = solve_navier_stokes(u0.expand(2, 16, 16), 0.1, [0, 1], forcing=torch.stack([0 * u0, u0])[:, :, None])
    assert torch.equal(torch.stack(each), both)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"times": [0.0, 0.5, 0.5]}, r"times\[2\] = 0.5 after 0.5; needed times >= 0 that increase"),
        ({"times": [-0.1, 0.5]}, r"times\[0\] = -0.1; needed times >= 0 that increase"),
        ({"times": [0.0, math.inf]}, "times must be finite"),
        ({"times": []}, r"times of shape \(0,\); needed a list of at least one time"),
        ({"nu": 0.0}, r"\(nu=0.0\): needed a finite viscosity > 0"),
        ({"nu": math.nan}, "needed a finite viscosity > 0"),
        ({"courant": 1.1}, r"\(courant=1.1\): needed 0 < courant <= 1; from 1.35 on it is unstable"),
        ({"every": 3}, r"every=3\): the stride must divide N = 8; use one of 1, 2, 4, 8"),
        ({"every": 0}, "the stride must divide"),
    ],
)
@pytest.mark.parametrize(("solve", "dim"), [(solve_burgers, 1), (solve_navier_stokes, 2)])
def test_bad_arguments(solve, dim, change, message):
    good = {"nu": 0.1, "times": [0.0, 1.0]}
    start = torch.zeros((8,) * dim, dtype=torch.float64)
    solve(start, **good)
    with pytest.raises(ValueError, match=f"{solve.__name__}.*{message}"):
        solve(start, **{**good, **change})


def test_bad_initial_states():
    with pytest.raises(
        ValueError, match=r"solve_burgers: u0 must be finite, but 1 of 16 are not; the first is nan at \(1, 3\)"
    ):
        solve_burgers(torch.tensor([[1.0] * 8, [1.0] * 3 + [math.nan] + [1.0] * 4]), 0.1, [1.0])
    with pytest.raises(ValueError, match=r"u0 of shape \(2, 3\); needed \(..., N\) with N >= 4 nodes per axis"):
        solve_burgers(torch.zeros(2, 3), 0.1, [1.0])
    for shape in ((8,), (3, 8, 6), (3, 3)):
        with pytest.raises(ValueError, match=r"w0 of shape .* needed \(..., N, N\) with N >= 4 nodes per axis"):
            solve_navier_stokes(torch.zeros(shape), 0.1, [1.0])
    with pytest.raises(ValueError, match="w0 must be finite"):
        solve_navier_stokes(torch.full((8, 8), math.inf), 0.1, [1.0])
    with pytest.raises(ValueError, match=r"forcing of shape \(7,\); needed a number or values that broadcast to w0 \(8, 8\)"):
        solve_navier_stokes(torch.zeros(8, 8), 0.1, [1.0], forcing=torch.ones(7))
    with pytest.raises(ValueError, match="forcing must be finite"):
        solve_navier_stokes(torch.zeros(8, 8), 0.1, [1.0], forcing=math.nan)


def test_what_cannot_be_followed_names_sample_and_time(case, monkeypatch):
    solve, start = case
    for size, chunk in ((1e9, 2**20), (1e300, 1)):
        monkeypatch.setitem(spectral._CHUNK, "cpu", chunk)
        wild = start.clone()
        wild[4] *= size
        with pytest.raises(NotConverged, match=r"sample 4 has a speed of .* at t = 0 .* steps until t = 1; give smaller data"):
            solve(wild, [0.5, 1.0])


def test_a_flow_that_speeds_up_names_its_time(monkeypatch):
    monkeypatch.setattr(spectral, "_MOST_STEPS", 200)
    f = torch.sin(2 * math.pi * square(16)[0]).repeat(2, 1, 1)
    f[1] *= 50
    w0 = torch.zeros(2, 16, 16)
    with pytest.raises(NotConverged, match=r"solve_navier_stokes: sample 1 has a speed of .* more than 200 steps") as error:
        solve_navier_stokes(w0, 1e-3, [2.0], forcing=f)
    assert 0 < float(re.search(r"at t = ([\d.]+)", str(error.value))[1]) < 2


def test_a_frame_that_is_not_finite_is_named(monkeypatch):
    """Frames are reached by a step of their own, which could overflow by itself."""
    really = spectral._step

    def step(equation, u, rate, h):
        return really(equation, u, rate, h) + torch.where((u.real[:, 1:2] > 0.1) & (h > 0), math.nan, 0.0)

    monkeypatch.setattr(spectral, "_ahead", lambda frames, equation, u, t, first: (0 * u, torch.full_like(t, 10.0)))
    monkeypatch.setattr(spectral, "_step", step)
    monkeypatch.setitem(spectral._CHUNK, "cpu", 16)  # each sample by itself
    u0 = torch.cos(2 * math.pi * line(16)) * torch.tensor([[0.0], [0.0], [1.0]])
    with pytest.raises(NotConverged, match=r"solve_burgers: sample 2 is not finite at t = 0.5; give smaller data"):
        solve_burgers(u0, 0.1, [0.0, 0.5, 1.0])


def test_memory_does_not_grow_with_time(rng):
    def status(name):
        return 1024 * int(re.search(rf"{name}:\s+(\d+)", Path("/proc/self/status").read_text())[1])

    w0 = waves(64, rng, size=0.2)
    solve_navier_stokes(w0, 1e-3, [0.01])
    Path("/proc/self/clear_refs").write_text("5")  # forgets the peak
    before = status("VmRSS")
    solve_navier_stokes(w0, 1e-3, [1.0], courant=0.25)
    assert status("VmHWM") - before < 8 * 2**20  # 100 steps of one sample take 6 MiB


# --- The problems

SMALL = [Burgers(size=32, fine=128, frames=3, end=0.3), NavierStokes(size=16, fine=32, end=2)]


@pytest.mark.parametrize("problem", SMALL, ids=lambda problem: problem.name)
def test_problems_are_what_they_say(problem):
    assert problem_named(problem.name) == type(problem)()
    assert getattr(gkn, type(problem).__name__) is type(problem)
    times, domain = problem.times(), problem.domain()
    assert times[0] == 0
    assert times[-1] == problem.end
    made, domains = problem.make(3, range(2, 5), "cpu")
    (name,) = problem.evolving
    assert domains is None
    assert [*made] == [*problem.inputs, *problem.outputs] == [*problem.inputs, name]
    assert made[name].shape == (3, len(times), len(domain))
    alone = problem.sample(3, 4)
    assert alone[0] == domain
    assert torch.equal(alone[1][name], made[name][2])
    # The initial state is the random function itself, evaluated by the sum of its series.
    start = problem.field().draw(1, stream(3, 4))(domain.points)
    torch.testing.assert_close(made[name][2:, 0], start, atol=1e-12, rtol=0)


def test_force_is_an_input():
    """At its nodes, and the same for all samples: networks that see no coordinates can know where it is."""
    problem = NavierStokes(size=8, fine=16, end=1)
    made, domain = problem.make(0, range(2), "cpu")[0], problem.domain()
    angle = 2 * math.pi * domain.points.sum(1)
    for row in made["force"]:
        torch.testing.assert_close(row, 0.1 * (angle.sin() + angle.cos()))


@pytest.mark.parametrize("problem", SMALL, ids=lambda problem: problem.name)
def test_a_seed_is_one_function_for_every_size(problem):
    options = problem.describe()
    double = problem_named(**{**options, "size": 2 * problem.size})
    (name,) = problem.evolving
    (domain, coarse), (finer, fine) = problem.sample(0, 1), double.sample(0, 1)
    assert torch.equal(coarse[name], fine[name][:, finer.stride(2)])
    assert torch.equal(domain.points, finer.points[finer.stride(2)])


def test_the_law_of_the_initial_states():
    k = 2 * math.pi * torch.arange(1, 512, dtype=torch.float64)
    found = Burgers().field().deviations()
    torch.testing.assert_close(found[1:1023:2], 25 / (k**2 + 25))
    torch.testing.assert_close(found[2:1023:2], 25 / (k**2 + 25))
    assert found[0] == 0
    assert Burgers(constant=True).field().deviations()[0] == 1
    found = NavierStokes().field().deviations()
    expected = (7**3 * (k[:200, None] ** 2 + k[:200] ** 2 + 49) ** -2.5) ** 0.5
    torch.testing.assert_close(found[1:401:2, 2:402:2], expected)
    assert found[0, 0] == 0


def test_the_force_of_navier_stokes():
    """Its rate of change at rest is the force, and nothing else."""
    problem = NavierStokes(size=8, fine=8, end=1, nu=1e-6)
    fine = Grid(8, periodic=True)
    w = problem.solved(fine, torch.zeros(1, 64, dtype=torch.float64))["w"][0, 1]
    x, y = fine.points.unbind(1)
    angle = 2 * math.pi * (x + y)
    torch.testing.assert_close(w, 0.1 * (angle.sin() + angle.cos()), atol=1e-4, rtol=0)


def test_steep_fronts_are_resolved():
    """nu = 0.01 on the default grid: as on twice as many nodes."""
    coarse, fine = (Burgers(nu=0.01, frames=2, end=0.5, fine=n).sample(0, 1)[1]["u"] for n in (1024, 2048))
    assert float(((coarse - fine).norm(dim=1) / fine.norm(dim=1)).max()) < 1e-6
    assert float(coarse[1:].diff(dim=1).abs().max()) > 0.3


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Burgers(size=100), r"burgers\(size=100, fine=1024\): size must divide fine; use one of 4, 8, 16"),
        (lambda: Burgers(nu=0.001), r"burgers\(nu=0.001, fine=1024\): too few nodes for its fronts; use fine=8192"),
        (lambda: Burgers(nu=-1.0), r"burgers\(nu=-1.0, end=1.0, frames=20\): needed finite nu > 0"),
        (lambda: Burgers(frames=0), "frames >= 1"),
        (lambda: NavierStokes(size=60), r"navier-stokes\(size=60, fine=256\): size must divide fine"),
        (lambda: NavierStokes(size=512), "size must divide fine"),
        (lambda: NavierStokes(nu=0.0), r"navier-stokes\(nu=0.0, end=20\): needed a finite nu > 0"),
        (lambda: NavierStokes(end=0), "a whole number end >= 1"),
    ],
)
def test_impossible_parameters(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.gpu
@pytest.mark.parametrize("problem", SMALL, ids=lambda problem: problem.name)
def test_the_same_values_on_a_gpu(problem):
    (name,) = problem.evolving
    on_cpu, on_gpu = (problem.make(0, range(3), device)[0][name] for device in ("cpu", "cuda"))
    torch.testing.assert_close(on_gpu.cpu(), on_cpu, atol=1e-10, rtol=0)
