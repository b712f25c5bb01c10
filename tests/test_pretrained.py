import pytest
import torch

from gkn import Darcy, make_dataset, pretrained, relative_l2
from gkn.pretrained import FOLDER, names


def test_it_is_as_good_as_its_card_says():
    """On functions nobody has seen, at a resolution it was not trained at."""
    operator = pretrained("darcy")
    data = make_dataset(Darcy(size=241), 4, seed=77).every(8)
    assert float(relative_l2(operator, data)) < 1.5 * operator.about["tests"]["31 x 31, Exact()"] < 0.03
    assert operator.features.given == ("a",)
    assert operator.about["script"] == "benchmarks/training.py"


def test_names_and_sizes():
    assert names() == ["darcy"]
    assert sum(path.stat().st_size for path in (FOLDER / "darcy").iterdir()) < 6e6
    assert pretrained("darcy", dtype=torch.float64).model.W.weight.dtype == torch.float64
    with pytest.raises(ValueError, match="no pretrained operator 'stokes'; there are darcy"):
        pretrained("stokes")
