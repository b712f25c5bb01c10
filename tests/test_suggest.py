"""Numbers that models suggest for a dataset."""

import pytest
import torch

from gkn import Cloud, Dataset, NearFar
from gkn.models import suggest


def clouds(sizes):
    rng = torch.Generator().manual_seed(0)
    domains = [Cloud(torch.rand(size, 2, generator=rng, dtype=torch.float64)) for size in sizes]
    return Dataset.of(domains, {name: [torch.rand(len(each)) for each in domains] for name in "au"}, ("u",), ("a",))


@pytest.mark.parametrize(
    ("sizes", "nodes"), [([90] * 20 + [50], None), ([110] * 20 + [50], 50), ([300] * 3, 64), ([90] * 50 + [500], 64)]
)
def test_nodes_are_drawn_from_large_samples_and_all_have_so_many(sizes, nodes, monkeypatch):
    """Samples are large with more points than WHOLE on average, or LARGEST at most. The smallest of all decides how many."""
    monkeypatch.setattr(suggest, "WHOLE", 100)
    monkeypatch.setattr(suggest, "LARGEST", 400)
    monkeypatch.setattr(suggest, "DRAWN", 64)
    rule = NearFar.defaults(clouds(sizes)).rule
    assert rule.get("m") == nodes
    assert rule["kind"] == ("Radius" if nodes is None else "Nystrom")


def test_a_small_sample_that_decides_for_all_is_named(monkeypatch):
    monkeypatch.setattr(suggest, "WHOLE", 100)
    monkeypatch.setattr(suggest, "DRAWN", 64)
    with pytest.warns(UserWarning, match="15 nodes are drawn from every sample.*largest has 300: leave small samples out"):
        assert NearFar.defaults(clouds([300] * 3 + [15])).rule["m"] == 15
