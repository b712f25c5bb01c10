"""quality.md, "Any problem": units, domains, periodic axes, geometry alone, parameters, several fields."""

import numpy as np
import pytest
import torch

import gkn
from gkn import Cloud, Dataset, Grid, Mesh, Normalizer, Radius, Sample
from gkn.data.readers import read_sample
from gkn.data.writers import save
from gkn.operator.trivial import trivial_errors
from tests import meshes

SMALL = {"width": 8, "blocks": 1, "slices": 4, "head": 4, "kernel": (8, 4)}


def function(points):
    return torch.sin(3 * points[:, 0]) * (1 + points[:, -1])


# --- lengths have no unit


def two_phase_mesh(scale, shift=0.0, n=5):
    """Samples with a coefficient of two phases, which is smoothed by default, and u = 0 on the boundary, on one mesh."""
    mesh = meshes.box("triangle", 6)
    x, rng = mesh.points, torch.Generator().manual_seed(1)
    phase = torch.rand(n, 1, dtype=torch.float64, generator=rng)
    a = torch.where(x[:, 0] < 0.2 + 0.6 * phase, 3.0, 12.0)
    u = (x * (1 - x)).prod(1) * (1 + phase)
    return Dataset(Mesh(x * scale + shift, mesh.cells), a=a, u=torch.where(mesh.boundary, 0.0, u))


def trained(data, **options):
    return gkn.fit(data, settings=SMALL, epochs=3, batch=2, device="cpu", **options)


@pytest.mark.filterwarnings("ignore:5 training samples")
@pytest.mark.parametrize("options", [{}, {"rule": 0.4, "smoothing": 0.1}], ids=["defaults", "lengths given"])
def test_lengths_have_no_unit(options):
    at = torch.tensor([[0.3, 0.4], [0.71, 0.22]], dtype=torch.float64)

    def learned(scale):
        data = two_phase_mesh(scale)
        given = {}
        if options:
            given = {"rule": Radius(options["rule"] * scale), "smoothing": {"a": options["smoothing"] * scale}}
        operator = trained(data, **given)
        sample = data[0]
        return operator, [operator(sample), operator(sample, at=at * scale), operator.evaluate(data).each]

    reference, wanted = learned(1.0)
    assert reference.outputs.zero.kind == "box"
    assert "a_smooth" in reference.features.inputs
    for scale in (2.0**10, 2.0**-10):
        operator, found = learned(scale)
        for name, x in operator.model.state_dict().items():
            assert torch.equal(x, reference.model.state_dict()[name]), name
        assert all(torch.equal(mine, other) for mine, other in zip(found, wanted, strict=True))
    for scale in (1e3, 1e-3):
        for mine, other in zip(learned(scale)[1], wanted, strict=True):
            torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-4)


@pytest.mark.filterwarnings("ignore:5 training samples")
def test_map_coordinates_make_no_difference():
    at = two_phase_mesh(1.0)
    far = two_phase_mesh(1.0, 5e5)
    near, moved = trained(at), trained(far)
    torch.testing.assert_close(moved(far[0]), near(at[0]), rtol=1e-3, atol=1e-3)
    assert moved.features.frame.shift == (5e5, 5e5)


def test_a_saved_operator_keeps_its_frame(tmp_path):
    data = two_phase_mesh(1000.0, -7.0)
    with pytest.warns(UserWarning, match="5 training samples are very few"):
        operator = trained(data)
    operator.save(tmp_path / "operator")
    again = gkn.load(tmp_path / "operator")
    assert again.frame == operator.frame
    assert torch.equal(again(data[1]), operator(data[1]))
    edge = data.domain.boundary
    assert again(data[1])[edge].abs().max() == 0


def test_another_radius_is_in_the_users_unit():
    data = two_phase_mesh(1000.0)
    torch.manual_seed(0)
    model = gkn.GKN(2, 1, 1, width=4, kernel=(4,), steps=1)
    operator = gkn.fit(data, model, Radius(300.0), epochs=1, device="cpu", warn=print)
    assert operator.rule.r == pytest.approx(0.3)
    sample = data[0]
    assert torch.equal(operator(sample, r=300.0), operator(sample))
    assert not torch.equal(operator(sample, r=500.0), operator(sample))
    coarse = operator.evaluate(data, r=500.0).each[0]
    assert float(coarse) == pytest.approx(float(operator.evaluate(data.take(1), gkn.Support(len(data.domain)), r=500.0).mean))


@pytest.mark.parametrize(
    ("r", "message"), [(1e-4, "no node of sample 0 has a neighbour"), (5.0, "are neighbours of each other")]
)
def test_rules_that_make_no_sense_are_warned_of(r, message):
    said = []
    data = Dataset(Grid(9), a=torch.rand(3, 81), u=torch.rand(3, 81))
    gkn.fit(data, rule=Radius(r), settings=SMALL, epochs=1, device="cpu", warn=said.append)
    assert any(message in text for text in said), said


# --- any domain

DOMAINS = {
    "1-D": lambda: meshes.box("line", 5),
    "quads": lambda: meshes.box("quad"),
    "tets": lambda: meshes.box("tetra", 2),
    "hexes": lambda: meshes.box("hexahedron", 2),
    "second order": lambda: meshes.box("triangle6"),
    "mixed": lambda: Mesh(
        [[0, 0], [1, 0], [1, 1], [0, 1], [2, 0], [2, 1.5]], {"quad": [[0, 3, 2, 1]], "triangle": [[1, 4, 2], [4, 2, 5]]}
    ),
    "surface": lambda: Mesh([[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1.0]], [[0, 2, 1], [0, 1, 3], [1, 2, 3], [0, 3, 2]]),
    "box": lambda: Grid((3, 4), low=(0, -1), high=(2, 5)),
    "periodic": lambda: Grid((4, 3), periodic=(True, False)),
    "centres": lambda: Grid((3, 5), nodes="centres"),
}


@pytest.mark.parametrize("name", [*DOMAINS])
def test_any_domain_survives_storage_and_files_bit_by_bit(name, tmp_path):
    domain = DOMAINS[name]()
    points = domain.points
    velocity = torch.stack([points[:, 0] ** 2, 1 / 3 + points[:, -1]], 1)
    fields = {"a": function(points)[None], "v": velocity[None]}
    Dataset.of(domain, {**fields, "load": [0.1]}, ["v"]).save(tmp_path / "data")
    again = Dataset.open(tmp_path / "data")
    assert again.domain.same_as(domain)
    assert torch.equal(again.domain.weights, domain.weights)
    assert torch.equal(again.domain.boundary, domain.boundary)
    assert torch.equal(again[0].u, velocity)
    assert again.output_fields == {"v": (0, 2)}
    assert (again.parameters, again.parameter("load", 0)) == (("load",), 0.1)
    save(tmp_path / "x.vtu", domain, {"a": function(points), "v": velocity}, parameters={"load": 0.1})
    read = read_sample(tmp_path / "x.vtu")
    assert torch.equal(read.domain.points, points)
    assert torch.equal(read.fields["a"], function(points))
    assert torch.equal(read.fields["v"][:, :2], velocity)
    assert read.parameters == {"load": 0.1}


def test_meshes_of_different_cells_are_stored_together(tmp_path):
    domains = [meshes.box("triangle"), DOMAINS["mixed"](), meshes.box("quad")]
    Dataset(domains, u=[function(domain.points) for domain in domains]).save(tmp_path / "data")
    again = Dataset.open(tmp_path / "data")
    assert again.inputs == ()
    for i, domain in enumerate(domains):
        assert torch.equal(again[i].domain.weights, domain.weights)
        assert torch.equal(again[i].u[:, 0], function(domain.points))


# --- periodic means periodic


@pytest.mark.filterwarnings("ignore:4 training samples")
@pytest.mark.parametrize("model", ["NearFar", "GKN"])
@pytest.mark.parametrize("shape", [(24,), (9, 8), (6, 5, 4)], ids=["1-D", "2-D", "3-D"])
def test_a_shifted_sample_gives_the_shifted_answer(model, shape):
    dim, axes = len(shape), tuple(range(len(shape)))
    grid = Grid(shape if dim > 1 else shape[0], dim, periodic=True)
    a = torch.randn(4, len(grid), dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    data = Dataset(grid, a=a, u=a.roll(1, 1))
    settings = SMALL if model == "NearFar" else {"width": 4, "kernel": (4, 4), "steps": 2}
    operator = gkn.fit(data, model, settings=settings, epochs=2, batch=2, precision="fp64", smoothing={}, device="cpu")
    assert operator.model.periodic == axes
    sample, steps = data[0], tuple(range(2, 2 + dim))
    moved = sample.a.reshape(grid.shape).roll(steps, axes).reshape(-1, 1)
    answer, wanted = operator(Sample(grid, moved, sample.u)), operator(sample).reshape(grid.shape).roll(steps, axes)
    assert float(wanted.std()) > 0
    torch.testing.assert_close(answer.reshape(grid.shape), wanted, rtol=1e-9, atol=1e-9)
    at = grid.points + torch.tensor([1.0, -2.0, 3.0][:dim])  # whole periods away
    torch.testing.assert_close(operator(sample, at=at), operator(sample), rtol=1e-9, atol=1e-9)


@pytest.mark.filterwarnings("ignore:4 training samples")
@pytest.mark.parametrize("shape", [(24,), (12, 12)], ids=["1-D", "2-D"])
def test_the_levels_of_multigrid_wrap_as_well(shape):
    """A shift by whole cells of the coarsest lattice, here half a period, gives the shifted answer."""
    dim, axes = len(shape), tuple(range(len(shape)))
    grid = Grid(shape if dim > 1 else shape[0], dim, periodic=True)
    a = torch.randn(4, len(grid), dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    data = Dataset(grid, a=a, u=a.roll(1, 1))
    settings = {"width": 8, "cycles": 2, "levels": 2, "kernel": (4, 2), "radius": 0.2}
    options = {"epochs": 2, "batch": 2, "precision": "fp64", "smoothing": {}, "device": "cpu"}
    operator = gkn.fit(data, "Multigrid", Radius(0.2), settings=settings, **options)
    assert operator.model.periodic == axes
    sample, steps = data[0], tuple(side // 2 for side in shape)
    moved = sample.a.reshape(grid.shape).roll(steps, axes).reshape(-1, 1)
    answer, wanted = operator(Sample(grid, moved, sample.u)), operator(sample).reshape(grid.shape).roll(steps, axes)
    assert float(wanted.std()) > 0
    torch.testing.assert_close(answer.reshape(grid.shape), wanted, rtol=1e-9, atol=1e-9)
    at = grid.points + torch.tensor([1.0, -2.0][:dim])
    torch.testing.assert_close(operator(sample, at=at), operator(sample), rtol=1e-9, atol=1e-9)


def test_edges_wrap_along_each_periodic_axis():
    grid = Grid((8, 8), periodic=(True, False))
    for rule, wanted in ((Radius(0.13), 3), (Radius(0.26), 5)):
        graph = rule.wrapped(grid.points, periods=grid.periods)
        along = [int(degree) for degree in graph.degrees.reshape(8, 8)[:, 0] - graph.degrees.reshape(8, 8)[4, 0]]
        assert along == [0] * 8  # every node has as many neighbours as one in the middle of the periodic axis
        assert int(graph.degrees.reshape(8, 8)[0, 4]) >= wanted
        x = torch.cat([grid.points, grid.points[graph.images.nodes] + graph.images.shift])
        difference = (grid.points[graph.targets.long()] - x[graph.src.long()]).abs()
        assert float(difference.norm(dim=1).max()) <= rule.r * (1 + 1e-9)


def test_an_operator_with_periodic_axes_refuses_other_domains():
    grid = Grid((6, 6), periodic=True)
    data = Dataset(grid, a=torch.rand(12, 36), u=torch.rand(12, 36))
    operator = gkn.fit(data, settings=SMALL, epochs=1, device="cpu")
    with pytest.raises(ValueError, match="are periodic, those of a grid of 6 x 6 are not"):
        operator(Sample(Grid(6), torch.rand(36, 1), torch.rand(36, 1)))
    said = []
    gkn.fit(data, "Transformer", settings={"width": 8, "blocks": 1, "head": 4}, epochs=1, device="cpu", warn=said.append)
    assert "Transformer does not wrap around the periodic axes of the domain" in said


# --- geometry is enough


def plates(n, seed=0, load=True):
    """Plates of different widths and holes with a parameter; u depends on both and on the geometry."""
    rng = np.random.default_rng(seed)
    domains, fields, loads = [], [], []
    for _ in range(n):
        width, factor = 100 + 60 * rng.random(), 1 + rng.random()
        mesh = meshes.box("triangle", 4, seed=int(rng.integers(99)))
        points = mesh.points * torch.tensor([width, 50.0], dtype=torch.float64)
        domains.append(Mesh(points, mesh.cells))
        fields.append(factor * torch.stack([points[:, 0] / 100, 1e-2 * points[:, 1] / 50], 1) + 0.01)
        loads.append(factor)
    given = {"load": loads} if load else {}
    stress = [1e3 * u[:, 0].square() + 1 for u in fields]
    return Dataset(domains, displacement=fields, stress=stress, outputs=["displacement", "stress"], **given)


def test_no_input_field_at_all():
    data = plates(12, load=False)
    assert data.inputs == ()
    operator = gkn.fit(data, settings=SMALL, epochs=2, device="cpu")
    assert operator.features.given == ()
    assert "geometry.distance" in operator.features.inputs
    assert "geometry.direction_x" in operator.features.inputs
    answer = operator.answer(data[0].domain)
    assert answer["displacement"].shape == (25, 2)
    assert answer["stress"].shape == (25,)
    assert np.array_equal(answer["stress"], operator(data[0])[:, 2].numpy())
    plain = gkn.fit(data, settings=SMALL, epochs=1, device="cpu", geometry=False)
    assert plain.model.in_channels == 0


def test_every_sample_has_its_own_parameter(tmp_path):
    data = plates(12)
    data.save(tmp_path / "data")
    stored = Dataset.open(tmp_path / "data")
    for whole in (data, stored, stored.take([5, 3, 9])):
        for i in range(len(whole)):
            number = whole.parameter("load", i)
            assert number == data.parameter("load", whole.number(i))
            assert torch.equal(whole[i].a[:, 0], torch.full((25,), number, dtype=torch.float64))
    operator = gkn.fit(stored, settings=SMALL, epochs=1, device="cpu")
    domain = data[0].domain
    first = operator.answer(domain, load=data.parameter("load", 0))["stress"]
    assert np.array_equal(first, operator(data[0])[:, 2].numpy())
    assert not np.array_equal(first, operator.answer(domain, load=5.0)["stress"])
    with pytest.raises(KeyError, match="the operator needs the field 'load'; given are: none"):
        operator.answer(domain)


def test_inputs_and_outputs_on_different_points():
    """A few sensors become numbers, in which nothing is lost; functions on many points are interpolated."""
    grid, rng = Grid(12, 1), torch.Generator().manual_seed(0)
    amplitude = torch.rand(12, 1, dtype=torch.float64, generator=rng)
    u = amplitude * torch.sin(3 * grid.points[:, 0])
    sensors = Cloud([[0.1], [0.5], [0.8]])
    data = Dataset(grid, f=amplitude * torch.tensor([1.0, 2.0, 3.0]), u=u, input_domain=sensors)
    assert data.parameters == ("f_0", "f_1", "f_2")
    assert data.parameter("f_2", 4) == pytest.approx(3 * float(amplitude[4]))
    operator = gkn.fit(data, settings=SMALL, epochs=1, device="cpu")
    wanted = operator(data[4])
    values = [float(amplitude[4]) * k for k in (1, 2, 3)]
    assert torch.allclose(operator(operator.sample(grid, input_domain=sensors, f=values)), wanted)
    assert torch.equal(operator(operator.sample(grid, f=torch.tensor(values, dtype=torch.float64))), wanted)
    many = Grid(201, 1)
    linear = Dataset(grid, f=amplitude * many.points[:, 0], u=u, input_domain=many)
    assert torch.allclose(linear.field("f"), amplitude * grid.points[:, 0])


@pytest.mark.parametrize("many", [False, True])
def test_inputs_on_different_points_beside_vectors_and_numbers(many):
    grid, there = Grid(12, 1), Grid(90 if many else 3, 1)
    load = torch.arange(12.0)
    v = torch.stack([1 + there.points[:, 0], 2 - there.points[:, 0]], 1) * (1 + load[:, None, None])
    data = Dataset(grid, v=v, load=load, u=(1 + load[:, None]) * grid.points[:, 0] + 1, input_domain=there)
    assert data.parameter("load", 7) == 7
    if many:
        assert torch.allclose(data.value("v", 4)[:, 1], 5 * (2 - grid.points[:, 0]))
    else:
        assert data.groups["v"] == tuple(f"v_{j}" for j in range(6))
        assert data.parameter("v_1", 4) == 10.0  # the first point, the second component: 5 (2 - 0)
        assert data.parameter("v_5", 4) == 5.0  # the third point, the second component: 5 (2 - 1)
    operator = gkn.fit(data, settings=SMALL, epochs=1, device="cpu")
    answer = operator.answer(grid, input_domain=there, v=v[4].numpy(), load=4.0)["u"]
    assert np.allclose(answer, operator(data[4])[:, 0], atol=1e-5)
    with pytest.raises(ValueError, match=r"input 'v' of sample 0 of shape \(5, 2\) for \d+ points of input_domain"):
        operator.answer(grid, input_domain=there, v=v[4, :1].expand(5, 2), load=4.0)


# --- several fields


def test_components_of_a_vector_share_one_scale():
    data = plates(12)
    outputs = Normalizer.fit(data, data.outputs)
    x, y, stress = outputs.std.tolist()
    assert x == y
    assert stress > 100 * x
    each = [torch.cat([sample.u[:, i] for sample in data]).std(correction=0) for i in range(2)]
    assert x == pytest.approx(float(torch.stack(each).square().mean().sqrt()))


def test_errors_are_those_of_each_field_and_of_a_vector_as_a_whole():
    data = plates(12)
    operator = gkn.fit(data, settings=SMALL, epochs=2, device="cpu")
    errors = operator.evaluate(data)
    assert [*errors.by_field] == ["displacement", "stress"]
    sample, w = data[3], data[3].weights[:, None]
    found = operator(sample).double()
    squares = [(w * (values**2)).sum(0) for values in (found - sample.u, sample.u)]
    vector = float((squares[0][:2].sum() / squares[1][:2].sum()).sqrt())
    scalar = float((squares[0][2] / squares[1][2]).sqrt())
    assert float(errors.by_field["displacement"][3]) == pytest.approx(vector, rel=1e-5)
    assert float(errors.by_field["stress"][3]) == pytest.approx(scalar, rel=1e-5)
    assert float(errors.each[3]) == pytest.approx((vector + scalar) / 2, rel=1e-5)


def test_the_loss_is_the_mean_over_fields_whatever_their_magnitude():
    from gkn.graph.batches import Batches
    from gkn.train.losses import loss_terms

    data = plates(3).framed(gkn.geometry.frame.Frame.of(plates(3).domains()))
    normalizers = Normalizer.fit(data, data.inputs), Normalizer.fit(data, data.outputs)
    batch = Batches(data, Radius(0.3), *normalizers, dtype=torch.float64, weighted=True).batch([0, 1, 2])
    wanted = batch.deviation / batch.std
    assert loss_terms("relative", 0.1, wanted, batch).abs().max() < 1e-5
    wrong = wanted.clone()
    wrong[:, :2] = ((1.5 * batch.deviation + 0.5 * batch.counted) / batch.std)[:, :2]  # the displacement is half too large
    torch.testing.assert_close(loss_terms("relative", 0.0, wrong, batch), torch.full((3,), 0.25, dtype=torch.float64))


def test_trivial_answers():
    data = plates(24)
    train, test = data.split(20, 4)
    operator = gkn.fit(train, settings=SMALL, epochs=1, device="cpu")
    trivial = trivial_errors(operator, train, test)
    assert [*trivial] == ["mean of the training samples", "nearest training sample"]
    known = trivial_errors(operator, train, train.take(3))["nearest training sample"]
    assert float(known.each.max()) < 1e-6  # the nearest of the training samples is the sample itself
    one = Dataset(Grid(5), a=torch.rand(12, 25), u=1 + torch.rand(12, 25))
    operator = gkn.fit(one, settings=SMALL, epochs=1, device="cpu", smoothing={})
    mean = trivial_errors(operator, one, one)["mean of the training samples"]
    average, w = one.field("u").double().mean(0), one.domain.weights
    u = one.field("u")[2].double()
    wanted = ((w * (average - u) ** 2).sum() / (w * u**2).sum()).sqrt()
    assert float(mean.each[2]) == pytest.approx(float(wanted))
