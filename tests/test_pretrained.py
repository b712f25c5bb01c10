import pytest
import torch

from gkn import Cloud, Darcy, make_dataset, pretrained, relative_l2
from gkn.operator.pretrained import FOLDER, names
from gkn.study.scattered import clouds


def test_it_is_as_good_as_its_card_says():
    """On functions nobody has seen, at a resolution it was not trained at."""
    operator = pretrained("darcy")
    data = make_dataset(Darcy(size=241), 4, seed=77).every(8)
    assert float(relative_l2(operator, data)) < 1.5 * operator.about["tests"]["31 x 31, Exact()"] < 0.03
    assert operator.features.given == ("a",)
    assert operator.about["script"] == "benchmarks/training.py"


def test_names_and_sizes():
    assert pretrained() == names() == ["darcy", "darcy-nearfar"]
    assert sum(path.stat().st_size for path in (FOLDER / "darcy").iterdir()) < 6e6
    assert pretrained("darcy", dtype=torch.float64).model.W.weight.dtype == torch.float64
    with pytest.raises(ValueError, match="no pretrained operator 'stokes'; there are darcy, darcy-nearfar"):
        pretrained("stokes")


def test_near_and_far():
    """Under 1 % on functions nobody has seen, on a grid coarser than those it was judged on; it remembers how it was made."""
    operator = pretrained("darcy-nearfar")
    data = make_dataset(Darcy(size=421), 2, seed=77).smoothed(0.03).every(14)
    assert float(relative_l2(operator, data)) < 0.01
    assert operator.about["tests"]["s = 85"] < 0.0044
    assert operator.about["command"].startswith("gkn beyond")
    assert sum(path.stat().st_size for path in (FOLDER / "darcy-nearfar").iterdir()) < 11e6


def test_near_and_far_at_points_somebody_has():
    """a at random points and nowhere else, which then need weights of their own: with equal ones it has 3 to 6 %."""
    operator = pretrained("darcy-nearfar")
    fine = make_dataset(Darcy(size=421), 2, seed=77)
    for i, sample in enumerate(clouds(fine, 1849)):
        asked = operator.sample(Cloud(sample.x), a=sample.a[:, 0])
        assert float((operator(asked) - sample.u).norm() / sample.u.norm()) < 0.02, i
