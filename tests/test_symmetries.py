"""Symmetries of the box, exact boundary values, differences in the loss, and means of weights."""

import dataclasses

import pytest
import torch

from gkn.data.dataset import Dataset
from gkn.data.generate import make_dataset
from gkn.data.normalizer import Normalizer
from gkn.data.problems import Darcy
from gkn.data.stepping import Stepping
from gkn.data.walls import Wall
from gkn.geometry.cloud import Cloud
from gkn.geometry.grid import Grid
from gkn.graph.batches import Batches
from gkn.graph.rules import Radius
from gkn.models import GKN
from gkn.operator.evaluate import relative_l2
from gkn.operator.operator import Operator
from gkn.train.fit import fit
from gkn.train.losses import differences
from gkn.train.recipe import Recipe
from gkn.train.symmetries import Symmetries


@pytest.fixture(scope="module")
def data():
    return make_dataset(Darcy(size=17), 12).smoothed(0.1)


def batch_of(data, samples, zero=None):
    inputs = Normalizer.fit(data, data.inputs)
    outputs = Normalizer.fit(data, data.outputs, zero=zero)
    return Batches(data, Radius(0.2), inputs, outputs, dtype=torch.float64, weighted=True).batch(samples), inputs


def test_a_turned_function_is_what_turning_the_data_gives(data):
    """Made of the turned coefficient from the start, solution, smoothed field, gradient and all, it is the same."""
    batch, inputs = batch_of(data, [0, 1, 2, 3, 4, 5])
    symmetries = Symmetries.of([data], inputs)
    assert symmetries.vectors == ((2, 4),)
    turned = symmetries(batch, torch.Generator().manual_seed(1), range(6))
    grid, kinds = data.domain, set()
    raw_a, raw_u = (data.field(name).reshape(-1, 17, 17) for name in ("a", "u"))
    for i in range(6):
        part = slice(i * 289, (i + 1) * 289)
        place = (turned.x[part] * 16).round().long()
        a, u = torch.zeros(17, 17).double(), torch.zeros(17, 17).double()
        a[place[:, 0], place[:, 1]], u[place[:, 0], place[:, 1]] = raw_a[i].flatten(), raw_u[i].flatten()
        kinds.add((bool((place[0] == place[16]).all(0)), tuple(place[0].tolist()), tuple(place[16].tolist())))
        other = Dataset(grid, a=a.reshape(1, -1), u=u.reshape(1, -1)).smoothed(0.1)[0]
        expected = inputs.encode(other.a).reshape(17, 17, -1)[place[:, 0], place[:, 1]]
        torch.testing.assert_close(turned.a[part], expected, rtol=1e-8, atol=1e-8)
        found = (turned.deviation[part, 0] + turned.counted[0, 0]) * Normalizer.fit(data, data.outputs).unit[0]
        torch.testing.assert_close(found, u[place[:, 0], place[:, 1]])
    assert len(kinds) > 2


def test_edges_stay_between_the_same_points_as_near_as_before(data):
    batch, inputs = batch_of(data, [0, 1])
    turned = Symmetries.of([data], inputs)(batch, torch.Generator().manual_seed(3), range(2))
    ends = batch.graph.targets.long(), batch.graph.src.long()
    lengths = [(x[ends[0]] - x[ends[1]]).norm(dim=1) for x in (batch.x, turned.x)]
    torch.testing.assert_close(*lengths)


def test_ranks_draw_what_one_would(data):
    batch, inputs = batch_of(data, [0, 1, 2, 3])
    symmetries = Symmetries.of([data], inputs)
    whole = symmetries(batch, torch.Generator().manual_seed(1), range(4))
    share, _ = batch_of(data, [1, 3])
    second = symmetries(share, torch.Generator().manual_seed(1), range(1, 4, 2))
    for i, part in ((1, second.x[:289]), (3, second.x[289:])):
        torch.testing.assert_close(part, whole.x[i * 289 : (i + 1) * 289])


def test_other_boxes_are_refused():
    x = torch.rand(20, 2).double() * 2
    data = Dataset(Cloud(x), a=torch.rand(2, 20).double(), u=torch.rand(2, 20).double())
    with pytest.raises(ValueError, match="those of the unit box"):
        Symmetries.of([data], Normalizer.fit(data, data.inputs))


@pytest.mark.parametrize("wall", ["box", "ball"])
def test_walls_are_0_there_and_1_in_the_middle(wall):
    t = torch.linspace(0, 1, 9, dtype=torch.float64)
    circle = torch.stack([(6.3 * t).cos(), (6.3 * t).sin()], 1)
    edge = torch.stack([t, torch.ones_like(t)], 1) if wall == "box" else circle
    assert Wall(wall)(edge, None).abs().max() < 1e-12
    middle = torch.full((1, 2), 0.5 if wall == "box" else 0.0, dtype=torch.float64)
    torch.testing.assert_close(Wall(wall)(middle, None), torch.ones(1, dtype=torch.float64))
    assert Wall(wall)(torch.zeros(1, 2, dtype=torch.float64) + 0.01, None).item() > 0


def test_an_operator_that_is_0_on_the_boundary_exactly(data, tmp_path):
    train, test = data.split(8, 4)
    torch.manual_seed(0)
    model = GKN(2, len(train.inputs), 1, width=8, kernel=(8,), steps=2)
    operator = fit(train, model, Radius(0.2), epochs=2, batch=4, zero="box")
    operator.save(tmp_path / "operator")
    again = Operator.load(tmp_path / "operator")
    sample = again.ready(test)[0]
    edge = ((sample.x == 0) | (sample.x == 1)).any(1)
    found = again(sample)
    assert found[edge].abs().max() == 0 < found[~edge].abs().min()
    at = torch.tensor([[0.3, 0.0], [1.0, 0.77], [0.4, 0.4]], dtype=torch.float64)
    assert (again(sample, at=at)[:, 0] == 0).tolist() == [True, True, False]
    assert torch.isfinite(torch.tensor(relative_l2(again, test).mean))


def test_a_corner_is_0_whatever_its_sign():
    x = torch.tensor([[-0.0, 0.0], [1.0, -0.0], [0.0, 1.0]], dtype=torch.float64)
    assert Wall("box")(x, None).tolist() == [0, 0, 0]


def test_walls_that_are_elsewhere_are_refused(data):
    shifted = Dataset(Cloud(data.domain.points * 1.5), a=data.field("a"), u=data.field("u") + 1)
    with pytest.raises(ValueError, match="is not 0 on the box or beyond"):
        Normalizer.fit(shifted, ["u"], zero="box")
    with pytest.raises(ValueError, match="it only decodes"):
        Normalizer.fit(data, ["u"], zero="box").encode(data.field("u")[0][:, None], data.domain.points)


@pytest.mark.parametrize("target", ["value", "difference", "quotient"])
def test_states_that_are_vectors_are_refused(target):
    """Their components would have to be turned where they are given and where they are learned."""
    v = torch.rand(2, 3, 25)
    data = Dataset(Grid(5), outputs=("v_x", "v_y"), v_x=v, v_y=v, times=torch.arange(3).double())
    pairs = data.pairs(Stepping(target=target))
    with pytest.raises(ValueError, match=r"v_x_[a-z]*, v_y_[a-z]* would not be turned"):
        Symmetries.of([pairs], Normalizer.fit(pairs, pairs.inputs))


def test_tensors_are_refused():
    data = Dataset(Grid(5), s_xx=torch.rand(2, 25), s_xy=torch.rand(2, 25), u=torch.rand(2, 25))
    with pytest.raises(ValueError, match="s_xx, s_xy would not be turned: needed outputs that are scalars"):
        Symmetries.of([data], Normalizer.fit(data, data.inputs))


def test_vectors_are_found_by_name_and_in_order(data):
    inputs = Normalizer.fit(data, data.inputs)
    copied = Dataset(data.domain, **{name: data.field(name) for name in data.names}).using(data.inputs, data.outputs)
    assert Symmetries.of([copied], inputs).vectors == ((2, 4),)
    mixed = data.using(("a", "a_smooth", "a_smooth_y", "a_smooth_x"), ("u",))
    with pytest.raises(ValueError, match="needed all of a_smooth_x, a_smooth_y, side by side"):
        Symmetries.of([mixed], inputs)


def test_what_zero_is_normalised_by(data):
    outputs = Normalizer.fit(data, data.outputs, zero="box")
    wall = Wall("box")(data.domain.points, None)
    u = data.field("u")
    torch.testing.assert_close(float(outputs.std[0]), float((u.square().mean() / wall.square().mean()).sqrt()))
    mean, std = outputs.at(data.domain.points)
    torch.testing.assert_close(std[:, 0], wall * outputs.std[0])
    assert mean.abs().max() == 0
    for wrong in ({"zero": "cube"}, {"zero": "box", "pointwise": True}):
        with pytest.raises(ValueError, match="zero"):
            Normalizer.fit(data, data.outputs, **wrong)


def test_differences_are_those_along_edges(data):
    batch, _ = batch_of(data, [0, 1])
    found = torch.randn(len(batch.x), 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    error, u = found * batch.std - batch.deviation, batch.deviation
    sums = torch.zeros(2, 2, dtype=torch.float64)
    for i, j in zip(batch.graph.targets.tolist(), batch.graph.src.tolist(), strict=True):
        length = (batch.x[i] - batch.x[j]).norm()
        if length > 0:
            sums[0, i // 289] += ((error[i] - error[j]) / length).square().item()
            sums[1, i // 289] += ((u[i] - u[j]) / length).square().item()
    torch.testing.assert_close(differences(found, batch), (sums[0] / sums[1] + 1e-12).sqrt())


def test_graphs_without_differences_have_no_term(data):
    batch, _ = batch_of(data, [0, 1])
    same = dataclasses.replace(batch, deviation=torch.ones_like(batch.deviation))
    found = torch.zeros(len(batch.x), 1, dtype=torch.float64, requires_grad=True)
    value = differences(found, same)
    assert value.tolist() == [0, 0]
    assert torch.autograd.grad(value.sum(), found)[0].abs().max() == 0


@pytest.mark.parametrize("more", [{"symmetries": True}, {"gradient": 0.3}, {"zero": "box"}])
def test_each_of_them_trains(data, more):
    train, test = data.split(8, 4)
    torch.manual_seed(0)
    model = GKN(2, len(train.inputs), 1, width=16, kernel=(16,), steps=3)
    operator = fit(train, model, Radius(0.2), epochs=15, batch=4, lr=5e-3, **more)
    assert relative_l2(operator, test).mean < 0.6


def test_recipes_that_make_no_sense():
    for wrong, said in (
        ({"zero": "cube"}, "zero='cube'"),
        ({"zero": "box", "loss": "mse"}, "loss=relative"),
        ({"zero": "box", "pointwise": True}, "no pointwise"),
        ({"symmetries": True, "pointwise": True}, "no symmetries"),
        ({"gradient": -0.1}, "gradient=-0.1"),
    ):
        with pytest.raises(ValueError, match=said):
            Recipe(**wrong)
