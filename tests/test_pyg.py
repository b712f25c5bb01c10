import pytest
import torch
from torch_geometric.nn import NNConv

from gkn.graph.neighbors import radius_graph
from gkn.models.pyg import EDGE, from_data, from_nnconv, to_data

PAPER = ("x", "y", "a(x)", "a(y)")


class Authors(torch.nn.Module):
    """A network of the authors' form."""

    def __init__(self, fields=3, features=1, width=5, kernel=(6, 7), steps=3, out=2, root=True):
        super().__init__()
        layers, size = [], 2 * (2 + features)
        for next_size in kernel:
            layers += [torch.nn.Linear(size, next_size), torch.nn.ReLU()]
            size = next_size
        network = torch.nn.Sequential(*layers, torch.nn.Linear(size, width**2))
        self.steps = steps
        self.fc1 = torch.nn.Linear(2 + fields, width)
        self.conv1 = NNConv(width, width, network, aggr="mean", root_weight=root, bias=root)
        self.fc2 = torch.nn.Linear(width, out)

    def forward(self, data):
        v = self.fc1(data.x)
        for _ in range(self.steps):
            v = torch.relu(self.conv1(v, data.edge_index, data.edge_attr))
        return self.fc2(v)


def nodes(rng, fields=3):
    x = torch.rand(25, 2, generator=rng, dtype=torch.float64)
    return radius_graph(x, r=0.3), x, torch.randn(25, fields, generator=rng, dtype=torch.float64)


@pytest.mark.parametrize("order", [EDGE, PAPER])
@pytest.mark.parametrize("kernel", [(6,), (6, 7), (4, 6, 5)])
@pytest.mark.parametrize("features", [(0,), (2, 0)])
def test_weights_of_nnconv_give_the_same_outputs(rng, kernel, features, order):
    torch.manual_seed(0)
    peer = Authors(features=len(features), kernel=kernel).double()
    graph, x, a = nodes(rng)
    data = to_data(graph, x, a, features, order)
    for weights in (peer, peer.state_dict()):
        ours = from_nnconv(weights, 2, 3, features, order)
        torch.testing.assert_close(ours(graph, x, a), peer(data), rtol=1e-12, atol=1e-12)


def test_gradients_are_the_same(rng):
    torch.manual_seed(0)
    peer = Authors().double()
    graph, x, a = nodes(rng)
    ours = from_nnconv(peer, 2, 3)
    peer(to_data(graph, x, a)).square().sum().backward()
    ours(graph, x, a).square().sum().backward()
    torch.testing.assert_close(ours.P.weight.grad, peer.fc1.weight.grad)
    torch.testing.assert_close(ours.kappa.W.grad, peer.conv1.nn[-1].weight.grad.T.reshape(7, 5, 5))
    torch.testing.assert_close(ours.W.weight.grad, peer.conv1.lin.weight.grad)


def test_without_root_weight_and_of_the_old_kind(rng):
    torch.manual_seed(0)
    graph, x, a = nodes(rng)
    bare = Authors(root=False).double()
    torch.testing.assert_close(from_nnconv(bare, 2, 3)(graph, x, a), bare(to_data(graph, x, a)))
    peer = Authors().double()
    old = {
        name.replace("lin.weight", "root"): value.T if "lin.weight" in name else value
        for name, value in peer.state_dict().items()
    }
    torch.testing.assert_close(from_nnconv(old, 2, 3)(graph, x, a), peer(to_data(graph, x, a)))


def test_there_and_back(rng):
    graph, x, a = nodes(rng)
    data = to_data(graph, x, a, y=a[:, :1])
    assert data.edge_attr.shape == (graph.num_edges, 6)
    assert torch.equal(data.y, a[:, :1])
    shuffled = torch.randperm(graph.num_edges, generator=rng)
    data.edge_index = data.edge_index[:, shuffled]
    back, points, fields = from_data(data)
    assert torch.equal(points, x)
    assert torch.equal(fields, a)
    assert torch.equal(back.ptr, graph.ptr)
    assert all(
        sorted(back.src[back.ptr[i] : back.ptr[i + 1]].tolist()) == graph.src[graph.ptr[i] : graph.ptr[i + 1]].tolist()
        for i in range(25)
    )
    data.x = a
    assert torch.equal(from_data(data)[2], a), "fields that do not begin with the points are kept whole"


def test_what_does_not_match_is_refused(rng):
    graph, x, a = nodes(rng)
    data = to_data(graph, x, a)
    data.pos = None
    with pytest.raises(ValueError, match="this Data has no pos; needed edge_index, pos and x"):
        from_data(data)
    with pytest.raises(ValueError, match=r"needed y, x, a\(y\), a\(x\) in some order"):
        to_data(graph, x, a, order=("x", "y"))
    with pytest.raises(ValueError, match=r"the edge network takes 6 and gives 25 numbers; .* need 8 and 25"):
        from_nnconv(Authors(), 2, 3, features=(0, 1))
    with pytest.raises(ValueError, match="found 0 linear layers with bias in 0 NNConv"):
        from_nnconv(torch.nn.Linear(2, 2), 2, 3)
    with pytest.raises(ValueError, match="found 0 linear layers beside the NNConv; needed a lift and a projection"):
        from_nnconv(Authors().conv1, 2, 3)
    with pytest.raises(ValueError, match="needed one set of nodes"):
        to_data(graph, x[1:], a[1:])


@pytest.mark.parametrize("aggr", ["add", "max"])
def test_other_aggregations_are_refused(aggr):
    peer = Authors()
    peer.conv1 = NNConv(5, 5, peer.conv1.nn, aggr=aggr)
    with pytest.raises(ValueError, match=rf"NNConv\(aggr='{aggr}'\); a GKN takes the mean"):
        from_nnconv(peer, 2, 3)


def test_other_networks_are_refused():
    peer = Authors()
    peer.conv1.nn[1] = torch.nn.Tanh()
    with pytest.raises(ValueError, match=r"Tanh\(\) in the edge network; a GKN has linear layers and ReLU there"):
        from_nnconv(peer, 2, 3)
    peer = Authors()
    peer.norm = torch.nn.LayerNorm(5)
    with pytest.raises(ValueError, match=r"'norm.weight' has no place in a GKN"):
        from_nnconv(peer, 2, 3)
    with pytest.raises(ValueError, match="'epoch' is no tensor"):
        from_nnconv({**Authors().state_dict(), "epoch": 3}, 2, 3)
    with pytest.raises(ValueError, match="the lift takes 5 numbers; needed 6 coordinates"):
        from_nnconv(Authors(), 6, 3)


def test_odd_data_are_refused(rng):
    graph, x, a = nodes(rng)
    data = to_data(graph, x, a)
    data.x = data.x[:5]
    with pytest.raises(ValueError, match=r"needed \(K, c\), \(K, d\), \(2, edges\)"):
        from_data(data)
    data = to_data(graph, x, x.new_zeros(25, 1))
    data.x = x
    assert from_data(data)[2].shape == (25, 2), "where nothing would be left, the points are the fields"
    with pytest.raises(ValueError, match="features"):
        to_data(graph, x, a, features=(7,))
