"""Learn the solution operator of a PDE from examples, on any mesh or point cloud, and evaluate it at any point."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

# Threads that wait for work must not keep the cores busy for long: two runs on one machine would slow each other down tenfold.
# Threads that sleep at once make a run on a quiet machine slower by half. The variable is read when torch is imported.
if "torch" not in sys.modules and "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")

if TYPE_CHECKING:
    from gkn.data.check import check_dataset
    from gkn.data.dataset import Dataset
    from gkn.data.generate import make_dataset
    from gkn.data.normalizer import Normalizer
    from gkn.data.problems import Darcy, DarcyMesh, PoissonDisk, PoissonInterval, PoissonSquare, Problem
    from gkn.data.readers import import_files, reader
    from gkn.data.sample import Sample
    from gkn.data.writers import save, writer
    from gkn.geometry.cloud import Cloud
    from gkn.geometry.domain import Domain
    from gkn.geometry.fields import GaussianField, two_phase
    from gkn.geometry.grid import Grid
    from gkn.geometry.mesh import Mesh
    from gkn.geometry.smoothing import smooth
    from gkn.graph.graph import Graph
    from gkn.graph.neighbors import radius_graph
    from gkn.graph.rules import Nystrom, Points, Radius, Rule
    from gkn.models import GKN, Defaults, GreenNet, Model, Multigrid, NearFar, rivals
    from gkn.operator.evaluate import Errors, relative_l2
    from gkn.operator.operator import Operator
    from gkn.operator.pretrained import pretrained
    from gkn.operator.saved import load
    from gkn.operator.ways import Exact, Partition, Sampled, Spread, Support
    from gkn.ops import kernel_integral
    from gkn.pde import NotConverged, darcy_residual, solve_darcy
    from gkn.pde.greens_functions import green_disk, green_interval
    from gkn.system.randomness import stream
    from gkn.train.fit import fit
    from gkn.train.recipe import Recipe

    open = Dataset.open

__version__ = "0.1.0"

_MODULES = {
    "check_dataset": "gkn.data.check",
    "Cloud": "gkn.geometry.cloud",
    "Darcy": "gkn.data.problems",
    "darcy_residual": "gkn.pde",
    "DarcyMesh": "gkn.data.problems",
    "Dataset": "gkn.data.dataset",
    "Defaults": "gkn.models",
    "Domain": "gkn.geometry.domain",
    "Errors": "gkn.operator.evaluate",
    "Exact": "gkn.operator.ways",
    "fit": "gkn.train.fit",
    "GaussianField": "gkn.geometry.fields",
    "GKN": "gkn.models",
    "Graph": "gkn.graph.graph",
    "green_disk": "gkn.pde.greens_functions",
    "green_interval": "gkn.pde.greens_functions",
    "GreenNet": "gkn.models",
    "Grid": "gkn.geometry.grid",
    "import_files": "gkn.data.readers",
    "kernel_integral": "gkn.ops",
    "load": "gkn.operator.saved",
    "make_dataset": "gkn.data.generate",
    "Mesh": "gkn.geometry.mesh",
    "Model": "gkn.models",
    "Multigrid": "gkn.models",
    "NearFar": "gkn.models",
    "Normalizer": "gkn.data.normalizer",
    "NotConverged": "gkn.pde",
    "Nystrom": "gkn.graph.rules",
    "Operator": "gkn.operator.operator",
    "Partition": "gkn.operator.ways",
    "Points": "gkn.graph.rules",
    "PoissonDisk": "gkn.data.problems",
    "PoissonInterval": "gkn.data.problems",
    "PoissonSquare": "gkn.data.problems",
    "pretrained": "gkn.operator.pretrained",
    "Problem": "gkn.data.problems",
    "Radius": "gkn.graph.rules",
    "radius_graph": "gkn.graph.neighbors",
    "reader": "gkn.data.readers",
    "Recipe": "gkn.train.recipe",
    "relative_l2": "gkn.operator.evaluate",
    "rivals": "gkn.models",
    "Rule": "gkn.graph.rules",
    "Sample": "gkn.data.sample",
    "Sampled": "gkn.operator.ways",
    "save": "gkn.data.writers",
    "smooth": "gkn.geometry.smoothing",
    "solve_darcy": "gkn.pde",
    "stream": "gkn.system.randomness",
    "Spread": "gkn.operator.ways",
    "Support": "gkn.operator.ways",
    "two_phase": "gkn.geometry.fields",
    "writer": "gkn.data.writers",
}
"""The module of each public name. It is imported when the name is first used: `gkn --help` then needs no torch."""


def __getattr__(name: str) -> Any:
    if name == "open":
        value: Any = import_module("gkn.data.dataset").Dataset.open
    elif name in _MODULES:
        value = getattr(import_module(_MODULES[name]), name)
    else:
        raise AttributeError(f"module 'gkn' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])


__all__ = [
    "GKN",
    "Cloud",
    "Darcy",
    "DarcyMesh",
    "Dataset",
    "Defaults",
    "Domain",
    "Errors",
    "Exact",
    "GaussianField",
    "Graph",
    "GreenNet",
    "Grid",
    "Mesh",
    "Model",
    "Multigrid",
    "NearFar",
    "Normalizer",
    "NotConverged",
    "Nystrom",
    "Operator",
    "Partition",
    "Points",
    "PoissonDisk",
    "PoissonInterval",
    "PoissonSquare",
    "Problem",
    "Radius",
    "Recipe",
    "Rule",
    "Sample",
    "Sampled",
    "Spread",
    "Support",
    "check_dataset",
    "darcy_residual",
    "fit",
    "green_disk",
    "green_interval",
    "import_files",
    "kernel_integral",
    "load",
    "make_dataset",
    "open",
    "pretrained",
    "radius_graph",
    "reader",
    "relative_l2",
    "rivals",
    "save",
    "smooth",
    "solve_darcy",
    "stream",
    "two_phase",
    "writer",
]
