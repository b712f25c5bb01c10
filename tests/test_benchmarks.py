"""Benchmarks are run by hand, on machines CI does not have; that they still find what they import is seen here."""

import importlib
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent / "benchmarks"


@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("*.py") if path.stem != "__init__"))
def test_it_can_be_imported(name):
    assert importlib.import_module(f"benchmarks.{name}").__doc__


def test_the_tables_of_the_readme_are_those_of_the_results():
    """Results are found by a hash of their settings. A new setting must not make older results unknown."""
    from benchmarks import RESULTS
    from gkn.study.beyond.pages import summary
    from gkn.study.beyond.tables import SCALES
    from gkn.study.work import Place

    text = (FOLDER.parent / "README.md").read_text()
    shown = text.split("<!-- beyond -->")[1].split("<!-- /beyond -->")[0].strip().splitlines()
    assert summary(Place(RESULTS / "beyond", RESULTS / "beyond"), SCALES["full"]) == shown
    assert len(shown) > 12


def test_the_linear_model_of_the_flow_repeats_a_linear_flow():
    """States of two modes, one that turns and grows: a map of rank 2 continues them to rounding."""
    import torch

    from benchmarks.third_party import linear_model
    from gkn.data.sample import Trajectory
    from gkn.geometry.grid import Grid

    domain = Grid((30,))
    x, t = domain.points.double(), torch.arange(12.0, dtype=torch.float64)
    waves = [1.1 ** t[:, None] * torch.cos(t[:, None] + k * x[:, 0]) for k in (3.0, 3.0)]
    states = torch.stack([waves[0], 100 * waves[1].roll(5, 1)], -1)
    forecast = linear_model(states[:7], domain.weights, 2)
    start = Trajectory(domain, states.new_zeros(30, 0), t[6:], states[6:], None)
    assert torch.allclose(forecast(start), states[7:], rtol=0, atol=1e-9)
