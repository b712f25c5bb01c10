import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch

from gkn import Cloud, Grid, Mesh
from tests.meshes import ball, box, mixed, sphere


def drawn(domain, **style):
    figure, axis = plt.subplots()
    made = domain.draw(axis, domain.points[:, 0].numpy(), **{"vmin": -1, "vmax": 1, "cmap": "viridis"} | style)
    figure.colorbar(made, ax=axis)
    figure.canvas.draw()
    plt.close(figure)
    return axis, made


def test_a_slice_of_a_volume_has_its_values_and_is_empty_outside():
    _, made = drawn(ball())
    image = np.ma.filled(made.get_array().astype(float), np.nan)
    assert image.shape == (160, 160)
    x = (np.arange(160) + 0.5) / 80 - 1
    radius = np.hypot(x, x[:, None])
    assert np.isnan(image[radius > 1.01]).all()
    inner = radius < 0.9
    np.testing.assert_allclose(image[inner], np.broadcast_to(x, image.shape)[inner], atol=1e-9)


def test_only_the_front_of_a_closed_surface_is_drawn():
    closed = sphere(3)
    axis, made = drawn(closed)
    assert 0.4 < len(made.get_paths()) / len(closed.cells) < 0.6
    open_ = Mesh(closed.points, closed.cells[1:])
    assert len(drawn(open_)[1].get_paths()) == len(open_.cells)
    assert axis.get_aspect() == 1.0
    assert axis.get_xlim()[0] < -0.95
    assert axis.get_xlim()[1] > 0.95
    assert made.get_clim() == (-1, 1)


def test_grids_have_their_extent():
    _, made = drawn(Grid((4, 6), low=(-1.0, 2.0), high=(2.0, 2.5)))
    assert made.get_extent() == [-1.0, 2.0, 2.0, 2.5]
    _, made = drawn(Grid((4, 6, 5), high=(1.0, 0.5, 2.0)))  # cut across the shortest axis, the second
    assert made.get_extent() == [0, 1, 0, 2]
    assert made.get_array().shape == (5, 4)


@pytest.mark.parametrize("name", ["mixed", "quad9", "curve", "cloud", "cloud in space", "hexahedra"])
def test_everything_can_be_drawn(name, rng):
    x = torch.rand(500, 3, generator=rng, dtype=torch.float64)
    line = torch.stack([torch.arange(499), torch.arange(1, 500)], 1)
    domain = {
        "mixed": mixed,
        "quad9": lambda: box("quad9"),
        "curve": lambda: Mesh(x, line),
        "cloud": lambda: Cloud(x[:, :2]),
        "cloud in space": lambda: Cloud(x),
        "hexahedra": lambda: box("hexahedron"),
    }[name]()
    _, made = drawn(domain)
    assert made.get_array().size > 0
