"""Values on the boundary, extended to all points: exact where that is known, an input that operators compute by themselves."""

import pickle

import pytest
import torch

from gkn import Cloud, Dataset, Grid, Mesh, NearFar, Radius, Stepping, fit, load
from gkn.data.problems import problem_named
from gkn.data.source import Extended
from gkn.geometry import extension as module
from gkn.geometry.extension import extension
from gkn.models.suggest import boundary_fields

TINY = {"width": 8, "blocks": 1, "slices": 2, "head": 4, "kernel": (4, 2)}


def known_on(domain, u):
    return torch.where(domain.boundary, u, 0.0)


def made(count, **more):
    problem = problem_named("poisson", size=7, modes=8, **more)
    fields, domains = problem.make(0, range(count), "cpu")
    return Dataset(problem.domain() or domains, outputs=("u",), **fields)


def test_on_an_interval_it_is_the_straight_line():
    domain = Mesh.interval(0.1)
    u = 3 * domain.points[:, 0] + 1
    torch.testing.assert_close(extension(domain)(known_on(domain, u)), u)


@pytest.mark.parametrize(("domain", "tolerance"), [(Mesh.disk(0.1), 0.01), (Mesh.disk(0.05), 0.0025), (Mesh.ball(0.2), 0.01)])
def test_in_a_ball_it_solves_laplaces_equation(domain, tolerance):
    x, y = domain.points.T[:2]
    u = x**2 - y**2 + x
    found = extension(domain)(known_on(domain, u))
    assert float((found - u).norm() / u.norm()) < tolerance


@pytest.mark.parametrize("domain", [Mesh.square(0.2), Grid(6, 2), Mesh.cube(0.4), Mesh.holes(0.15)])
def test_values_inside_do_not_count_and_constants_stay(domain, rng):
    g = torch.rand(3, len(domain), generator=rng, dtype=torch.float64)
    extend = extension(domain)
    found = extend(g)
    assert torch.equal(found[:, domain.boundary], g[:, domain.boundary])
    torch.testing.assert_close(extend(known_on(domain, g)), found, rtol=0, atol=0)
    assert bool((found <= g[:, domain.boundary].amax(1, keepdim=True) + 1e-12).all())
    torch.testing.assert_close(extend(torch.full((len(domain),), 2.5)), torch.full((len(domain),), 2.5, dtype=torch.float64))


def test_lengths_do_not_count(rng):
    """The same in units of 1, 2^10 and 2^-10, to the bit."""
    domain = Mesh.l_shape(0.2)
    g = torch.rand(len(domain), generator=rng, dtype=torch.float64)
    for unit in (2.0**10, 2.0**-10):
        other = Mesh(domain.points * unit, domain.blocks)
        assert torch.equal(extension(other)(g), extension(domain)(g))


def test_distances_wrap_where_the_domain_is_periodic():
    """A strip that is periodic along x: what is shifted along x is extended to what is shifted."""
    domain = Grid((8, 5), periodic=(True, False))
    g = known_on(domain, torch.rand(len(domain), dtype=torch.float64, generator=torch.Generator().manual_seed(0)))
    found = extension(domain)(g).reshape(8, 5)
    shifted = extension(domain)(g.reshape(8, 5).roll(3, 0).flatten()).reshape(8, 5)
    torch.testing.assert_close(shifted, found.roll(3, 0))


def test_blocks_give_the_same(monkeypatch, rng):
    domain = Mesh.square(0.1)
    g = torch.rand(2, len(domain), generator=rng, dtype=torch.float64)
    whole = extension(domain)(g)
    monkeypatch.setattr(module, "_KEPT", 0)
    monkeypatch.setattr(module, "_BLOCK", 5 * int(domain.boundary.sum()))
    torch.testing.assert_close(extension(domain)(g), whole)


def test_without_a_boundary_it_is_refused(rng):
    cloud = Cloud(torch.rand(20, 2, generator=rng, dtype=torch.float64))
    with pytest.raises(ValueError, match="has no boundary to extend values from"):
        extension(cloud)
    with pytest.raises(ValueError, match=r"a function of shape \(5,\) on a domain of 36 points"):
        extension(Grid(6, 2))(torch.zeros(5))


@pytest.mark.parametrize("vary", [False, True])
def test_the_field_is_found_and_computed_when_read(vary):
    data = made(4, vary=vary)
    assert boundary_fields(data) == ["g"]
    assert NearFar.defaults(data).extended == ["g"]
    view = data.extended("g")
    assert view.inputs == ("f", "g", "g_inside")
    assert view.given == ("f", "g")
    assert view.extensions == ["g"]
    for i in range(4):
        expected = extension(data.domain_of(i))(data.value("g", i))
        torch.testing.assert_close(view.value("g_inside", i), expected)
        torch.testing.assert_close(view.take([i])[0].a[:, 2], expected)
    again = pickle.loads(pickle.dumps(view))
    assert torch.equal(again.value("g_inside", 2), view.value("g_inside", 2))
    assert boundary_fields(view) == []
    assert view.identity() != data.identity()
    if not vary:
        assert torch.equal(view.kept()[3].a, view[3].a)


def test_what_cannot_be_extended_is_refused():
    data = made(2)
    with pytest.raises(KeyError, match="no input 'u' to extend"):
        data.extended("u")
    with pytest.raises(ValueError, match="there is a field 'g_inside' already"):
        data.extended("g").extended("g")
    with pytest.raises(ValueError, match="extend first, keep afterwards"):
        data.kept().extended("g")
    smooth = data.smoothed(0.2, "f")
    with pytest.raises(ValueError, match="needed an input that is given"):
        smooth.extended("f_smooth")


def test_states_are_not_extended():
    """A state that is 0 inside, as long as nothing has come in, is no boundary value."""
    domain = Grid(5, 2)
    u = torch.rand(3, 4, 25, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    data = Dataset(domain, outputs=("u",), times=torch.arange(4.0), u=u, g=known_on(domain, u[:, 1]))
    empty = Dataset(domain, outputs=("u",), times=torch.arange(4.0), u=known_on(domain, u), g=data.field("g"))
    pairs = empty.pairs(Stepping(clock=False))
    assert boundary_fields(pairs) == ["g"]
    with pytest.raises(ValueError, match="neither a number nor a state"):
        pairs.extended("u")
    operator = fit(data, "NearFar", settings=TINY, epochs=1, stepping=Stepping(clock=False), device="cpu")
    assert operator.features.extended == ("g",)
    assert len([*operator.rollout(data.trajectory(0), data.times(0)[1:])]) == 3


def test_an_operator_extends_by_itself(tmp_path):
    data = made(6)
    operator = fit(data, "NearFar", settings=TINY, epochs=2, device="cpu")
    assert operator.features.given == ("f", "g")
    assert operator.features.inputs == ("f", "g", "g_inside")
    operator.save(tmp_path / "operator")
    again = load(tmp_path / "operator")
    assert again.features == operator.features
    errors = operator.evaluate(data)
    assert torch.equal(errors.each, again.evaluate(data).each)
    assert torch.equal(errors.each, operator.evaluate(data.extended("g")).each)
    values = {name: data.value(name, 0) for name in ("f", "g")}
    sample = again.sample(data.domain, **values)
    assert torch.equal(again(sample), operator(operator.ready(data)[0]))
    without = fit(data, "NearFar", settings=TINY, epochs=2, device="cpu", extended=[])
    assert without.features.inputs == ("f", "g")
    assert without.features.json().get("extended") is None
    with pytest.raises(ValueError, match="settings, size, smoothing, extended and geometry are those of the operator"):
        fit(data, operator, extended=["g"], epochs=1)


def test_gradients_go_through_it():
    data = made(4)
    operator = fit(data, "NearFar", settings=TINY, epochs=1, device="cpu")
    f, g = (data.value(name, 0).double() for name in ("f", "g"))
    g.requires_grad_()
    sample = operator.features.sample(data.domain, {"f": f, "g": g})
    (slope,) = torch.autograd.grad(sample.a[:, 2].sum(), g)
    inside = ~data.domain.boundary
    assert not slope[inside].any()
    assert bool((slope[data.domain.boundary] > 0).all())


def test_leads_and_frames_keep_it():
    data = made(3)
    source = data.extended("g")._source
    assert isinstance(source, Extended)
    assert isinstance(source.over(data._source), Extended)
    far = Dataset(Mesh(data.domain.points * 50 + 7, data.domain.blocks), outputs=("u",), **{n: data.field(n) for n in "fgu"})
    operator = fit(far, "NearFar", settings=TINY, epochs=1, device="cpu")
    torch.testing.assert_close(operator.ready(far)[1].a[:, 2], data.extended("g")[1].a[:, 2])


def with_vector(count=3, seed=0):
    """Functions on the unit square with a vector on the boundary; u is anything."""
    domain, rng = Mesh.square(0.2), torch.Generator().manual_seed(seed)
    g = torch.where(domain.boundary[:, None], torch.randn(count, len(domain), 2, generator=rng, dtype=torch.float64), 0.0)
    return Dataset(domain, outputs=("u",), g=g, u=torch.randn(count, len(domain), generator=rng, dtype=torch.float64))


def test_the_extension_of_a_vector_is_a_vector():
    """Symmetries turn it with the rest: the mean over all of them answers the mirrored problem by the mirrored answer."""
    data = with_vector()
    assert boundary_fields(data) == ["g_x", "g_y"]
    operator = fit(data, "NearFar", settings=TINY, epochs=1, symmetries=True, device="cpu", warn=lambda text: None)
    assert operator.features.inputs == ("g_x", "g_y", "g_inside_x", "g_inside_y")
    domain, g = data.domain, data.value("g", 0)
    mirrored = Mesh(domain.points * torch.tensor([-1.0, 1.0]) + torch.tensor([1.0, 0.0]), domain.blocks)
    chosen = operator.symmetric()
    one = chosen(chosen.sample(domain, g=g), check=False)
    other = chosen(chosen.sample(mirrored, g=g * torch.tensor([-1.0, 1.0])), check=False)
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_kept_datasets_are_answered():
    data = made(5)
    operator = fit(data, "NearFar", settings=TINY, epochs=1, device="cpu", warn=lambda text: None)
    errors = operator.evaluate(data).each
    assert torch.equal(operator.evaluate(data.extended("g").kept()).each, errors)
    with pytest.raises(ValueError, match="extend first, keep afterwards"):
        operator.evaluate(data.kept())


def on_a_cloud(data, boundary=None):
    """The same functions on points without cells, and without a boundary unless it is given."""
    cloud = Cloud(data.domain.points, data.domain.weights, boundary)
    return Dataset(cloud, outputs=("u",), **{name: data.field(name) for name in data.names})


def test_without_a_boundary_nothing_is_suggested_and_operators_say_what_they_need():
    data = made(5)
    cloud = on_a_cloud(data)
    quiet = {"settings": TINY, "epochs": 1, "device": "cpu", "warn": lambda text: None}
    assert boundary_fields(cloud) == []
    for given in ({"dataset": [data, cloud]}, {"dataset": data, "validation": cloud}):
        said = []
        assert fit(**given, model="NearFar", **{**quiet, "warn": said.append}, rule=Radius(0.3)).features.extended == ()
        assert any(each.startswith("known on the boundary only, and not extended") and each.endswith(": g") for each in said)
    operator = fit(data, "NearFar", **quiet)
    with pytest.raises(
        ValueError, match=r"trained with g extended from the boundary, which a cloud of .* does not have; give it"
    ):
        operator.evaluate(cloud)
    marked = on_a_cloud(data, data.domain.boundary)
    torch.testing.assert_close(marked.extended("g").value("g_inside", 1), data.extended("g").value("g_inside", 1))
    assert operator.evaluate(marked).mean < 100
    with pytest.raises(ValueError, match="no boundary to extend g from"):
        cloud.extended("g")


def test_weights_that_are_zero_on_the_boundary():
    """All of them, or those of the closest points."""
    data = made(2)
    domain, g = data.domain, data.value("g", 0)
    none = torch.where(domain.boundary, 0.0, domain.weights)
    some = domain.weights.clone()
    some[domain.boundary.nonzero()[::2, 0]] = 0.0
    for weights in (none, some):
        found = extension(Cloud(domain.points, weights, domain.boundary))(g)
        assert bool(torch.isfinite(found).all())
        assert torch.equal(found[domain.boundary], g[domain.boundary])
        away = (found - extension(domain)(g)).norm() / g.norm()
        assert float(away) < 0.5


def test_marks_of_the_boundary_are_no_boundary_values():
    data = made(3)
    fields = {name: data.field(name) for name in data.names}
    wall = data.domain.boundary.double().expand(3, -1)
    assert boundary_fields(Dataset(data.domain, outputs=("u",), **fields, wall=wall)) == ["g"]


def test_what_is_chosen_is_a_list():
    data = made(3)
    with pytest.raises(ValueError, match=r"fit\(extended='g'\): needed a list of fields: \['g'\]"):
        fit(data, "NearFar", settings=TINY, epochs=1, extended="g")
    operator = fit(data.extended("g"), "NearFar", settings=TINY, epochs=1, extended=["g"], warn=lambda text: None)
    assert operator.features.inputs == ("f", "g", "g_inside")


@pytest.mark.parametrize("vary", [False, True])
def test_each_function_is_extended_once(vary, monkeypatch):
    """However often it is read, and with the weights of a domain computed once for pairs of states on it."""
    calls = []
    monkeypatch.setattr("gkn.data.source.extension", lambda domain: calls.append(domain) or extension(domain))
    view = made(3, vary=vary).extended("g")
    first = [view.value("g_inside", i) for i in range(3)]
    assert all(torch.equal(view.value("g_inside", i), first[i]) for i in range(3))
    assert len(calls) == (3 if vary else 1)
    vector = with_vector().extended("g_x").extended("g_y")
    calls.clear()
    assert not torch.equal(vector.value("g_inside_x", 0), vector.value("g_inside_y", 0))
    assert len(calls) == 1  # both components by the same weights
