import matplotlib.image
import pytest
import torch

from gkn import Cloud, Darcy, DarcyMesh, Dataset, PoissonInterval, make_dataset
from gkn.data.plot import show_dataset


@pytest.mark.parametrize(
    "recipe",
    [
        Darcy(size=9, modes=8),
        Darcy(size=5, dim=3, modes=4),
        PoissonInterval(size=9, modes=8),
        DarcyMesh(size=9, modes=8, vary=True),
    ],
)
def test_every_kind_of_domain_is_drawn(recipe, tmp_path):
    show_dataset(make_dataset(recipe, 3), tmp_path / "new/x.png")
    image = matplotlib.image.imread(tmp_path / "new/x.png")
    assert image.shape[0] > 300
    assert len({tuple(pixel) for pixel in image.reshape(-1, 4)[::37].tolist()}) > 5  # something is on it


def test_clouds_and_constants(tmp_path):
    cloud = Cloud(torch.rand(30, 2, dtype=torch.float64))
    show_dataset(Dataset(cloud, a=torch.ones(1, 30), u=torch.rand(1, 30)), tmp_path / "x.svg", title="a cloud")
    assert "<svg" in (tmp_path / "x.svg").read_text()
