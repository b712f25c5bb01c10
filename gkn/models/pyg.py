"""To and from PyTorch Geometric: `Data` objects, and the weights of graph kernel networks built on its `NNConv`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gkn.graph.graph import Graph
from gkn.models import GKN

EDGE = ("y", "x", "a(y)", "a(x)")
"""The order in which the paper's authors put the features of an edge y -> x: both points, then both coefficients."""


def from_data(data: Any) -> tuple[Graph, Tensor, Tensor]:
    """Return the graph, points (K, d) and node fields (K, c) of a `torch_geometric.data.Data` with `edge_index`, `pos` and `x`.

    If the first d columns of x equal `pos`, as in graph kernel networks, they are removed from the fields.
    Edges may be in any order; those of a target keep theirs.
    """
    missing = [name for name in ("edge_index", "pos", "x") if getattr(data, name, None) is None]
    if missing:
        raise ValueError(f"from_data: this Data has no {missing[0]}; needed edge_index, pos and x")
    x, pos, edges = data.x, data.pos, data.edge_index
    if x.ndim != 2 or pos.ndim != 2 or len(x) != len(pos) or edges.ndim != 2 or len(edges) != 2:
        raise ValueError(
            f"from_data: x {tuple(x.shape)}, pos {tuple(pos.shape)}, edge_index {tuple(edges.shape)}; "
            f"needed (K, c), (K, d), (2, edges)"
        )
    if not pos.is_floating_point():
        raise ValueError(f"from_data: pos is {pos.dtype}; needed floating-point numbers")
    d, less = pos.shape[1], min((x.dtype, pos.dtype), key=lambda kind: kind.itemsize)
    begins = x.shape[1] > d and torch.equal(x[:, :d].to(less), pos.to(less))
    return Graph.of_edges(edges[0], edges[1], len(pos), len(pos)), pos, x[:, d:] if begins else x


def to_data(
    graph: Graph, x: Tensor, a: Tensor, features: Sequence[int] = (0,), order: Sequence[str] = EDGE, **more: Any
) -> Any:
    """Return a `Data` with the points in `pos`, (x, a) in `x`, `edge_index`, and edge features in `order` in `edge_attr`."""
    try:
        from torch_geometric.data import Data
    except ImportError as error:
        raise ImportError("PyTorch Geometric is needed here: pip install 'gkn[pyg]'") from error
    if graph.num_targets != graph.num_sources or graph.num_sources != len(x):
        raise ValueError(f"to_data: {graph} for {len(x)} points; needed one set of nodes")
    if a.ndim != 2 or len(a) != len(x) or any(not 0 <= i < a.shape[1] for i in features):
        raise ValueError(f"to_data: fields {tuple(a.shape)}, features {tuple(features)}; needed ({len(x)}, c), 0 to c - 1")
    sources, targets = graph.src.long(), graph.targets.long()
    some = a[:, list(features)]
    parts = {"x": x[targets], "y": x[sources], "a(x)": some[targets], "a(y)": some[sources]}
    _check_order(order)
    return Data(
        x=torch.cat([x, a], 1),
        pos=x,
        edge_index=torch.stack([sources, targets]),
        edge_attr=torch.cat([parts[name] for name in order], 1).to(a.dtype),
        **more,
    )


def from_nnconv(
    weights: nn.Module | Mapping[str, Tensor],
    dim: int,
    steps: int,
    features: Sequence[int] = (0,),
    order: Sequence[str] = EDGE,
    **options: Any,
) -> GKN:
    """Return a `GKN` with the weights, and so the outputs, of a network of the authors' form.

    That is a linear lift, one `NNConv(aggr="mean")` with ReLU between the layers of its edge network, and a linear projection.

        weights  the module or its state_dict
        order    how its edge features are ordered, where e runs from y to x; `EDGE` is how the authors have them

    A state_dict does not say how messages are aggregated or which activations are used; this is checked if a module is given.
    """
    if isinstance(weights, nn.Module):
        _check_form(weights)
        weights = weights.state_dict()
    state = dict(weights)
    _check_order(order)
    wrong = [name for name, value in state.items() if not isinstance(value, Tensor)]
    if wrong:
        raise ValueError(f"from_nnconv: {wrong[0]!r} is no tensor; needed a state_dict")
    network = {name: value for name, value in state.items() if re.search(r"(^|\.)nn\.", name)}
    layers = [(value, state.get(name.removesuffix("weight") + "bias")) for name, value in network.items() if value.ndim == 2]
    conv = {re.sub(r"\.?nn\..*$", "", name) for name in network}
    if len(layers) < 2 or len(conv) != 1 or any(bias is None for _, bias in layers):
        raise ValueError(
            f"from_nnconv: found {len(layers)} linear layers with bias in {len(conv)} NNConv; needed one NNConv whose edge "
            f"network has at least two"
        )
    prefix = f"{conv.pop()}." if any(not name.startswith("nn.") for name in network) else ""
    rest = {name: value for name, value in state.items() if name not in network and not name.startswith(prefix)}
    outer = [(value, state.get(name.removesuffix("weight") + "bias")) for name, value in rest.items() if value.ndim == 2]
    if len(outer) != 2 or any(bias is None for _, bias in outer):
        raise ValueError(f"from_nnconv: found {len(outer)} linear layers beside the NNConv; needed a lift and a projection")
    (lift, lift_bias), (project, project_bias) = outer
    n, out = lift.shape[0], project.shape[0]
    root = state.get(f"{prefix}lin.weight")
    old = state.get(f"{prefix}root")  # before PyG 2.0, and transposed
    hidden = [value.shape[0] for value, _ in layers[:-1]]
    if lift.shape[1] < dim:
        raise ValueError(f"from_nnconv: the lift takes {lift.shape[1]} numbers; needed {dim} coordinates and the fields")
    model = GKN(dim, lift.shape[1] - dim, out, n, hidden, steps, features, **options)
    last, last_bias = layers[-1]
    c = len(model.features)
    if layers[0][0].shape[1] != 2 * (dim + c) or last.shape[0] != n * n:
        raise ValueError(
            f"from_nnconv: the edge network takes {layers[0][0].shape[1]} and gives {last.shape[0]} numbers; points of "
            f"dimension {dim}, {c} of the fields and width {n} need {2 * (dim + c)} and {n * n}"
        )
    sizes = {"x": dim, "y": dim, "a(x)": c, "a(y)": c}
    columns = dict(zip(order, layers[0][0].split([sizes[name] for name in order], dim=1), strict=True))
    values = {
        "P.weight": lift,
        "P.bias": lift_bias,
        "Q.weight": project,
        "Q.bias": project_bias,
        "W.weight": root if root is not None else old.T if old is not None else torch.zeros(n, n),
        "W.bias": state.get(f"{prefix}bias", torch.zeros(n)),
        "kappa.first.weight": torch.cat([columns[name] for name in ("x", "a(x)", "y", "a(y)")], 1),
        "kappa.first.bias": layers[0][1],
        "kappa.W": last.T.reshape(-1, n, n),
        "kappa.B": last_bias.reshape(n, n) if last_bias is not None else torch.zeros(n, n),
    }
    used = {id(value) for value in (*(t for pair in (*layers, *outer) for t in pair), root, old, state.get(f"{prefix}bias"))}
    unused = [name for name, value in state.items() if id(value) not in used]
    if unused:
        raise ValueError(f"from_nnconv: {unused[0]!r} has no place in a GKN, which would then give other outputs")
    for i, (weight, bias) in enumerate(layers[1:-1]):
        values |= {f"kappa.hidden.{i}.weight": weight, f"kappa.hidden.{i}.bias": bias}
    model.to(lift.dtype).load_state_dict({name: value for name, value in values.items() if value is not None})
    moved: GKN = model.to(lift.device)
    return moved


def _check_form(module: nn.Module) -> None:
    """Raise an error unless messages are averaged and only ReLUs stand between the layers of the edge network.

    A state_dict does not say either.
    """
    for conv in module.modules():
        if type(conv).__name__ != "NNConv":
            continue
        if conv.aggr != "mean":
            raise ValueError(f"from_nnconv: NNConv(aggr={conv.aggr!r}); a GKN takes the mean")
        for part in conv.nn.modules() if isinstance(conv.nn, nn.Module) else ():
            if not list(part.children()) and not isinstance(part, nn.Linear | nn.ReLU):
                raise ValueError(f"from_nnconv: {part} in the edge network; a GKN has linear layers and ReLU there")


def _check_order(order: Sequence[str]) -> None:
    if sorted(order) != sorted(EDGE):
        raise ValueError(f"order={tuple(order)}: needed {', '.join(EDGE)} in some order")
