"""Networks: plain modules that know nothing of datasets, and nothing in them depends on the number of points."""

from __future__ import annotations

from typing import Any, TypeAlias

from gkn.models.gkn import GKN as GKN
from gkn.models.greennet import GreenNet as GreenNet
from gkn.models.multigrid import Multigrid as Multigrid
from gkn.models.nearfar import NearFar as NearFar

Model: TypeAlias = GKN | NearFar | Multigrid
"""A network that `fit` trains and an `Operator` asks: lift P, states of nodes on a graph, answers at nodes and at queries."""
MODELS: dict[str, type[Model]] = {"GKN": GKN, "NearFar": NearFar, "Multigrid": Multigrid}


def model_of(config: dict[str, Any]) -> Model:
    """The network that `config()` of one described, with the weights it is born with."""
    kind = config.get("kind")
    if kind not in MODELS:
        raise TypeError(f"a network called {kind!r}; there are {', '.join(MODELS)}")
    return MODELS[kind].of(config)
