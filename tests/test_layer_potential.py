import math

import pytest
import torch

import gkn
from gkn import LayerPotential, Mesh, make_dataset
from gkn.data.problems import layer_potential as problem
from gkn.pde.layer_potentials import ClosedCurve, double_layer, single_layer

BOTH = pytest.mark.parametrize("kind", ["single", "double"])


def parameters(n):
    return torch.arange(n, dtype=torch.float64) * (2 * math.pi / n)


def circle(n, radius=1.0, centre=(0.0, 0.0)):
    t = parameters(n)
    return ClosedCurve(radius * torch.stack([t.cos(), t.sin()], 1) + torch.tensor(centre))


def star(n, turn=0.0, scale=1.0, centre=(0.2, -0.1)):
    t = parameters(n)
    r = scale * (0.7 + 0.2 * torch.cos(3 * t) + 0.1 * torch.sin(2 * t))
    return ClosedCurve(torch.stack([r * (t + turn).cos(), r * (t + turn).sin()], 1) + torch.tensor(centre))


def ellipse(n, centre=(0.0, 0.0)):
    t = parameters(n)
    return ClosedCurve(torch.stack([1.3 * t.cos(), 0.6 * t.sin()], 1) + torch.tensor(centre))


def potential(kind, curves, f):
    return (single_layer if kind == "single" else double_layer)(curves, f)


def jump(curves):
    """u/2 - S(du/dn) + D u of a function that is harmonic everywhere: 0 on the curves."""
    x, y = torch.cat([curve.points for curve in curves]).T
    u = x**2 - y**2 + x + x.exp() * y.cos()
    slopes = torch.stack([2 * x + 1 + x.exp() * y.cos(), -2 * y - x.exp() * y.sin()], 1)
    du = (slopes * torch.cat([curve.normals for curve in curves])).sum(1)
    return u / 2 - single_layer(curves, du) + double_layer(curves, u)


@pytest.mark.parametrize("radius", [0.3, 1.0, 2.5])
def test_on_a_circle_modes_are_eigenfunctions(radius):
    """S cos(kt) = R/(2k) cos(kt), S 1 = -R log R; D 1 = -1/2, and D of all other modes is 0."""
    curve, t = circle(32, radius, (0.3, -1.0)), parameters(32)
    waves = torch.stack([torch.ones(32), *(torch.cos(k * t + 0.4) for k in range(1, 16))])
    factors = torch.tensor([-radius * math.log(radius), *(radius / (2 * k) for k in range(1, 16))], dtype=torch.float64)
    torch.testing.assert_close(single_layer([curve], waves), factors[:, None] * waves, atol=1e-13, rtol=0)
    halves = torch.tensor([-0.5] + [0.0] * 15, dtype=torch.float64)
    torch.testing.assert_close(double_layer([curve], waves), halves[:, None] * waves, atol=1e-13, rtol=0)


@pytest.mark.parametrize(("shape", "n"), [(star, 24), (ellipse, 10)])
def test_convergence_is_spectral(shape, n):
    """Twice the points square the error, until rounding is all that is left."""
    errors = [float(jump([shape(points)]).abs().max()) for points in (n, 2 * n, 128)]
    assert errors[0] > 1e-4
    assert errors[1] < min(5 * errors[0] ** 2, errors[0] / 500)
    assert errors[2] < 1e-12
    assert float((double_layer([shape(128)], torch.ones(128)) + 0.5).abs().max()) < 1e-12


@BOTH
def test_against_sums_over_many_points(kind):
    """At two points of a star, by the composite midpoint rule around the singularity, extrapolated."""
    curve, t = star(128), parameters(128)
    u = potential(kind, [curve], torch.cos(2 * t) + 0.3)
    for i in (5, 77):
        sums = []
        for n in (2**15, 2**16):
            many = star(2 * n)
            at = 2 * n // 128 * i
            others = (torch.arange(n) * 2 + 1 + at) % (2 * n)  # midpoints of n intervals, of which one ends at the point
            f = (torch.cos(2 * parameters(2 * n)) + 0.3)[others] * many.speed[others] * (2 * math.pi / n)
            d = many.points[at] - many.points[others]
            kernel = -d.norm(dim=1).log() if kind == "single" else (d * many.normals[others]).sum(1) / d.square().sum(1)
            sums.append(float((kernel * f).sum() / (2 * math.pi)))
        assert float(u[i]) == pytest.approx(2 * sums[1] - sums[0], abs=1e-8)  # the rule for log is of first order


def test_green_on_two_curves():
    """The potentials of a harmonic function on the one curve cancel each other on the other."""
    curves = [star(160), ellipse(128, (2.9, 0.5))]
    assert float(jump(curves).abs().max()) < 1e-12
    ones = torch.cat([torch.ones(160), torch.zeros(128)]).double()
    torch.testing.assert_close(double_layer(curves, ones), -ones / 2, atol=1e-12, rtol=0)


@BOTH
def test_one_of_two_curves_without_density(kind):
    """On its own curve a density has the potential it has there alone; on the other it is a smooth sum."""
    one, other = star(96), circle(64, 0.4, (1.8, 0.3))
    f = torch.cos(parameters(96)) + 0.5
    u = potential(kind, [one, other], torch.cat([f, torch.zeros(64)]))
    torch.testing.assert_close(u[:96], potential(kind, [one], f), atol=1e-15, rtol=0)
    d = other.points[:, None] - one.points
    kernel = -d.norm(dim=-1).log() if kind == "single" else (d * one.normals).sum(-1) / d.square().sum(-1)
    torch.testing.assert_close(u[96:], kernel @ (f * one.weights) / (2 * math.pi), atol=1e-14, rtol=0)


@BOTH
def test_linear_batched_and_free_of_coordinates(kind, rng):
    """Sums and batches; a turned and moved curve; and in another unit of length S f is l (S f - log(l)/(2 pi) int f)."""
    curve = star(64)
    f, g = torch.randn(2, 64, generator=rng, dtype=torch.float64)
    u, v = potential(kind, [curve], f), potential(kind, [curve], g)
    torch.testing.assert_close(potential(kind, [curve], 2 * f - 3 * g), 2 * u - 3 * v)
    both = potential(kind, [curve], torch.stack([f, g])[:, None])
    torch.testing.assert_close(both[:, 0], torch.stack([u, v]), atol=1e-14, rtol=0)
    torch.testing.assert_close(potential(kind, [star(64, 0.7, 1.0, (5.0, 1.0))], f), u, atol=1e-12, rtol=0)
    large = potential(kind, [star(64, 0.0, 3.0)], f)
    length = math.log(3.0) / (2 * math.pi) * float((curve.weights * f).sum())
    torch.testing.assert_close(large, 3 * (u - length) if kind == "single" else u, atol=1e-12, rtol=0)


def test_geometry_of_a_curve():
    curve = circle(32, 2.0, (1.0, 1.0))
    torch.testing.assert_close(curve.normals, (curve.points - 1) / 2, atol=1e-13, rtol=0)
    torch.testing.assert_close(curve.curvature, torch.full((32,), 0.5, dtype=torch.float64))
    assert float(curve.weights.sum()) == pytest.approx(4 * math.pi)


def test_curves_that_are_refused():
    points = circle(16).points
    with pytest.raises(ValueError, match="clockwise order; give points"):
        ClosedCurve(points.flip(0))
    with pytest.raises(ValueError, match=r"shape \(15, 2\); needed \(N, 2\) with an even N of at least 8"):
        ClosedCurve(points[:15])
    with pytest.raises(ValueError, match="even N"):
        ClosedCurve(points[:, :1])
    with pytest.raises(ValueError, match="must be finite"):
        ClosedCurve(points.log())
    with pytest.raises(ValueError, match="stops or turns back at point 0"):
        ClosedCurve(torch.zeros(16, 2))
    with pytest.raises(ValueError, match=r"single_layer: f of shape \(15,\) on curves of \[16\] points; needed \(..., 16\)"):
        single_layer([ClosedCurve(points)], torch.ones(15))
    with pytest.raises(ValueError, match="double_layer: f of shape"):
        double_layer([], torch.ones(0))
    with pytest.raises(ValueError, match="f must be finite"):
        double_layer([ClosedCurve(points)], torch.full((16,), math.nan))


# --- the problem


@BOTH
@pytest.mark.parametrize("curves", [1, 2])
def test_samples_on_disk_and_in_memory(kind, curves, tmp_path):
    """Every sample has closed curves of its own, which have no boundary and are the same when they are read."""
    law = LayerPotential(kind, size=24, curves=curves)
    stored, made = make_dataset(law, 3, 5, tmp_path / "d", workers=2), make_dataset(law, 3, 5)
    assert stored.inputs == (("f",) if kind == "single" else ("f", "normal_x", "normal_y"))
    assert stored.outputs == ("u",)
    for one, other in zip(stored, made, strict=True):
        assert one.domain.same_as(other.domain)
        assert torch.equal(one.a, other.a)
        assert torch.equal(one.u, other.u)
        assert isinstance(one.domain, Mesh)
        assert len(one.domain) == 24 * curves == len(one.domain.cells)
        assert (one.domain.measure_dim, one.domain.distance(), bool(one.domain.boundary.any())) == (1, None, False)
    assert not made[0].domain.same_as(made[1].domain)
    assert all(finding.ok is not False for finding in gkn.check_dataset(tmp_path / "d"))
    alone = make_dataset(law, 1, 5)
    assert torch.equal(alone[0].u, made[0].u)


@BOTH
def test_a_sample_is_one_function_at_every_size(kind):
    """Curves, densities and potentials agree at common points, so that these are computed to many digits."""
    for i in (*range(3), 11):
        (few, values), (many, more) = (LayerPotential(kind, size=size, curves=2).sample(1, i) for size in (100, 200))
        torch.testing.assert_close(many.points[::2], few.points, atol=1e-14, rtol=0)
        for name in values:
            torch.testing.assert_close(more[name][::2], values[name], atol=1e-9, rtol=0)


def test_weights_of_the_mesh_are_arc_lengths_to_second_order():
    errors = []
    for size in (100, 200, 400):
        law = LayerPotential("double", size=size, curves=2)
        points = law.sample(0, 3)[0]
        curves = [ClosedCurve(part) for part in points.points.split(size)]
        g = torch.cos(7 * points.points[:, 0])
        exact = sum(float((curve.weights * part).sum()) for curve, part in zip(curves, g.split(size), strict=True))
        errors.append(abs(float((points.weights * g).sum()) - exact))
    assert math.log2(errors[0] / errors[1]) == pytest.approx(2, abs=0.15)
    assert math.log2(errors[1] / errors[2]) == pytest.approx(2, abs=0.15)


def test_the_law_of_curves():
    """In the unit square, of different sizes and places; two are apart, and none is inside of the other."""
    sides, centres = [], []
    for i in range(40):
        points = LayerPotential(size=100).sample(0, i)[0].points
        assert float(points.min()) > -1e-4
        assert float(points.max()) < 1 + 1e-4
        sides.append(float((points.amax(0) - points.amin(0)).max()))
        centres.append(points.mean(0))
    assert 0.29 < min(sides) < 0.4
    assert 0.85 < max(sides) < 0.951
    assert float(torch.stack(centres).std(0).min()) > 0.05
    for i in range(20):
        one, other = (ClosedCurve(part) for part in LayerPotential(size=100, curves=2).sample(0, i)[0].points.split(100))
        assert float(torch.cdist(one.points, other.points).min()) >= problem.GAP
        f = torch.cat([torch.ones(100), torch.zeros(100)]).double()
        assert float(double_layer([one, other], f)[100:].abs().max()) < 1e-2
        assert float(double_layer([one, other], 1 - f)[:100].abs().max()) < 1e-2


def test_a_curve_inside_of_another_is_not_apart():
    small, large = circle(64, 0.3), circle(64)
    assert not problem._apart(small, large)
    assert not problem._apart(large, small)
    assert not problem._apart(large, circle(64, 1.0, (2.05, 0.0)))
    assert problem._apart(large, circle(64, 1.0, (2.1, 0.0)))


def test_the_density_has_the_frequencies_that_are_asked_for():
    waves = torch.fft.rfft(LayerPotential(size=64, frequencies=5).sample(0, 0)[1]["f"])
    assert float(waves[6:].abs().max()) < 1e-12
    assert float(waves[:6].abs().min()) > 1e-3
    constant = LayerPotential(size=64, frequencies=0).sample(0, 0)[1]["f"]
    assert float(constant.std()) < 1e-14


def test_parameters_that_are_refused():
    with pytest.raises(ValueError, match=r"layer-potential\(kind='triple'\): use one of single, double"):
        LayerPotential("triple")
    with pytest.raises(ValueError, match=r"size=6\): needed at least 8"):
        LayerPotential(size=6)
    with pytest.raises(ValueError, match=r"curves=3\): needed 1 or 2"):
        LayerPotential(curves=3)
    with pytest.raises(ValueError, match=r"frequencies=8\): needed 0 or more, and fewer than size/2 = 8"):
        LayerPotential(size=16, frequencies=8)
