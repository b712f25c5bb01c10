"""Numbers that models suggest for a dataset."""

import pytest
import torch

from gkn import Cloud, Dataset, NearFar
from gkn.models import suggest


def clouds(sizes):
    rng = torch.Generator().manual_seed(0)
    domains = [Cloud(torch.rand(size, 2, generator=rng, dtype=torch.float64)) for size in sizes]
    return Dataset.of(domains, {name: [torch.rand(len(each)) for each in domains] for name in "au"}, ("u",), ("a",))


@pytest.mark.parametrize(("sizes", "nodes"), [([90] * 20 + [50], None), ([110] * 20 + [50], 50), ([300] * 3, 64)])
def test_nodes_are_drawn_from_large_samples_and_all_have_so_many(sizes, nodes, monkeypatch):
    """Samples are large if they have more points than WHOLE on average. The smallest of all counts, not only of the first."""
    monkeypatch.setattr(suggest, "WHOLE", 100)
    monkeypatch.setattr(suggest, "DRAWN", 64)
    rule = NearFar.defaults(clouds(sizes)).rule
    assert rule.get("m") == nodes
    assert rule["kind"] == ("Radius" if nodes is None else "Nystrom")
