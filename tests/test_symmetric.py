"""Answers that are means over the symmetries of the unit box."""

import pytest
import torch

from gkn import Darcy, NearFar, Nystrom, Operator, Partition, Radius, fit, load
from gkn.models import Symmetric

SETTINGS = {"width": 8, "blocks": 2, "slices": 4, "head": 4, "kernel": (8, 4), "radius": 0.2}


@pytest.fixture(scope="module")
def operator():
    data = Darcy(size=13, modes=12).generate(8)
    options = {"settings": SETTINGS, "smoothing": {"a": 0.1}, "symmetries": True, "epochs": 2, "zero": None}
    return fit(data, "NearFar", Radius(0.2), "nearfar", **options, weighted=True, device="cpu")


def turned(values, k, mirrored):
    """Turn values on a 13 x 13 grid by k right angles."""
    image = torch.rot90(values.reshape(13, 13), k, (0, 1))
    return (image.flip(0) if mirrored else image).flatten()


def back(values, k, mirrored):
    image = values.reshape(13, 13)
    return torch.rot90(image.flip(0) if mirrored else image, -k, (0, 1)).flatten()


def test_it_is_the_mean_of_the_answers_to_turned_functions(operator):
    sample = Darcy(size=13, modes=12).generate(1, seed=5)[0]
    a, ways = sample.a[:, 0], [(k, mirrored) for k in range(4) for mirrored in (False, True)]
    answers = [back(operator(operator.sample(sample.domain, a=turned(a, *way)))[:, 0], *way) for way in ways]
    expected = torch.stack(answers).mean(0)
    whole = operator.symmetric()
    found = whole(operator.sample(sample.domain, a=a))[:, 0]
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-7)
    assert (found - answers[0]).norm() > 1e-3 * found.norm()  # the network itself has no symmetry
    again = whole(operator.sample(sample.domain, a=turned(a, 1, True)))[:, 0]
    torch.testing.assert_close(back(again, 1, True), found, rtol=1e-5, atol=1e-7)


def test_queries_and_sub_graphs_are_turned_too(operator):
    sample = Darcy(size=13, modes=12).generate(1, seed=5)[0]
    whole, sample = operator.symmetric(), operator.sample(sample.domain, a=sample.a[:, 0])
    torch.testing.assert_close(whole(sample, at=sample.x, a=sample.a), whole(sample), rtol=1e-4, atol=1e-6)
    assert bool(torch.isfinite(whole(sample, how=Partition(60))).all())


def test_errors_of_the_network_alone_are_not_said_of_the_mean(operator):
    operator.about["metrics"] = {"validation": 0.1}
    whole = operator.symmetric()
    assert "metrics" not in whole.about
    assert whole.about["recipe"] == operator.about["recipe"]
    assert "0.1" not in repr(whole)


def test_it_is_saved_and_read_again(operator, tmp_path):
    sample = Darcy(size=13, modes=12).generate(1, seed=5)
    operator.symmetric().save(tmp_path / "whole")
    found, expected = (each.evaluate(sample).mean for each in (load(tmp_path / "whole"), operator.symmetric()))
    assert found == expected


def test_moments_of_balls_are_turned():
    data = Darcy(size=13, modes=12).generate(4)
    options = {"settings": {**SETTINGS, "moments": 2}, "smoothing": {"a": 0.1}, "symmetries": True, "epochs": 1, "zero": None}
    operator = fit(data, "NearFar", Nystrom(0.2, 80), "nearfar", **options, weighted=True, device="cpu")
    a = data[0].a[:, 0]
    whole = operator.symmetric()
    found, other = (whole(operator.sample(data.domain, a=each))[:, 0] for each in (a, turned(a, 1, False)))
    torch.testing.assert_close(back(other, 1, False), found, rtol=1e-4, atol=1e-6)


def test_wrong_ones_are_refused(operator):
    plain = Operator(operator.model, operator.rule, operator.inputs, operator.outputs, features=operator.features)
    with pytest.raises(ValueError, match="not trained with symmetries"):
        plain.symmetric()
    with pytest.raises(ValueError, match="means over the symmetries already"):
        operator.symmetric().symmetric()
    with pytest.raises(ValueError, match="needed ranges of 2 of the 4 fields"):
        Symmetric(2, 4, 1, operator.model, [(1, 2)])
    with pytest.raises(ValueError, match="no periodic axis"):
        Symmetric(2, 4, 1, NearFar(2, 4, **{**SETTINGS, "features": (0,)}, periodic=(0,)))
    with pytest.raises(ValueError, match="needed 2, 3, 1"):
        Symmetric(2, 3, 1, operator.model)
