"""The peer: the paper's network on PyTorch Geometric's NNConv, in the form its authors gave it."""

import itertools

import torch
from torch_geometric.nn import NNConv

from gkn.geometry.fields import GaussianField, two_phase
from gkn.geometry.grid import Grid
from gkn.graph.graph import Graph
from gkn.graph.neighbors import radius_graph
from gkn.models.pyg import to_data


class NNConvGKN(torch.nn.Module):
    def __init__(self, fields=4, width=64, kernel=(512, 1024), steps=6):
        super().__init__()
        self.steps = steps
        self.fc1 = torch.nn.Linear(2 + fields, width)
        layers = []
        for given, made in itertools.pairwise([6, *kernel]):
            layers += [torch.nn.Linear(given, made), torch.nn.ReLU()]
        network = torch.nn.Sequential(*layers, torch.nn.Linear(kernel[-1], width**2))
        self.conv1 = NNConv(width, width, network, aggr="mean")
        self.fc2 = torch.nn.Linear(width, 1)

    def forward(self, data):
        v = self.fc1(data.x)
        for _ in range(self.steps):
            v = torch.relu(self.conv1(v, data.edge_index, data.edge_attr))
        return self.fc2(v)


def problem(graphs, m, r, device, dtype=torch.float32, seed=0):
    """A batch of Nystrom draws of Darcy coefficients: our graph, points and fields, and the same as PyG's Data."""
    rng = torch.Generator().manual_seed(seed)
    grid = Grid(121)
    field = GaussianField(tau=3, alpha=2, boundary="neumann")
    a = (two_phase(field.sample(grid, graphs, rng), low=3, high=12) - 7.5) / 4.5
    draws = [torch.randperm(len(grid), generator=rng)[:m] for _ in range(graphs)]
    points = [grid.points[draw] for draw in draws]
    graph = Graph.batch([radius_graph(x, r=r) for x in points]).to(device)
    fields = [torch.stack([a[i, draw]] * 4, 1) + 0.1 * torch.randn(m, 4, generator=rng) for i, draw in enumerate(draws)]
    x, a = torch.cat(points).to(device, dtype), torch.cat(fields).to(device, dtype)
    u = torch.randn(len(x), 1, generator=rng).to(device, dtype)
    return graph, x, a, u, to_data(graph, x, a)
