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
    from gkn.data.problems import (
        Burgers,
        Darcy,
        DarcyMesh,
        DarcySource,
        Heat,
        LayerPotential,
        NavierStokes,
        Plate,
        PoissonDisk,
        PoissonInterval,
        PoissonMesh,
        PoissonSquare,
        Problem,
        Wave,
    )
    from gkn.data.readers import import_files, reader
    from gkn.data.sample import Sample, Trajectory
    from gkn.data.stepping import Stepping
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
    from gkn.models import GKN, Defaults, GreenNet, Model, Multigrid, NearFar, Potential, rivals
    from gkn.operator.evaluate import Errors, relative_l2
    from gkn.operator.operator import Operator
    from gkn.operator.pretrained import pretrained
    from gkn.operator.saved import load
    from gkn.operator.ways import Exact, Partition, Sampled, Spread, Support
    from gkn.ops import kernel_integral
    from gkn.pde import NotConverged, darcy_residual, solve_darcy, solve_heat, solve_wave
    from gkn.pde.greens_functions import green_disk, green_interval
    from gkn.system.randomness import stream
    from gkn.train.fit import fit
    from gkn.train.recipe import Recipe

    open = Dataset.open

__version__ = "0.1.0"

_MODULES = {
    "Burgers": "gkn.data.problems",
    "check_dataset": "gkn.data.check",
    "Cloud": "gkn.geometry.cloud",
    "Darcy": "gkn.data.problems",
    "darcy_residual": "gkn.pde",
    "DarcyMesh": "gkn.data.problems",
    "DarcySource": "gkn.data.problems",
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
    "Heat": "gkn.data.problems",
    "import_files": "gkn.data.readers",
    "kernel_integral": "gkn.ops",
    "LayerPotential": "gkn.data.problems",
    "load": "gkn.operator.saved",
    "make_dataset": "gkn.data.generate",
    "Mesh": "gkn.geometry.mesh",
    "Model": "gkn.models",
    "Multigrid": "gkn.models",
    "NavierStokes": "gkn.data.problems",
    "NearFar": "gkn.models",
    "Normalizer": "gkn.data.normalizer",
    "NotConverged": "gkn.pde",
    "Nystrom": "gkn.graph.rules",
    "Operator": "gkn.operator.operator",
    "Partition": "gkn.operator.ways",
    "Plate": "gkn.data.problems",
    "Points": "gkn.graph.rules",
    "PoissonDisk": "gkn.data.problems",
    "PoissonInterval": "gkn.data.problems",
    "PoissonMesh": "gkn.data.problems",
    "PoissonSquare": "gkn.data.problems",
    "Potential": "gkn.models",
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
    "solve_heat": "gkn.pde",
    "solve_wave": "gkn.pde",
    "Stepping": "gkn.data.stepping",
    "stream": "gkn.system.randomness",
    "Spread": "gkn.operator.ways",
    "Support": "gkn.operator.ways",
    "Trajectory": "gkn.data.sample",
    "two_phase": "gkn.geometry.fields",
    "Wave": "gkn.data.problems",
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
    "Burgers",
    "Cloud",
    "Darcy",
    "DarcyMesh",
    "DarcySource",
    "Dataset",
    "Defaults",
    "Domain",
    "Errors",
    "Exact",
    "GaussianField",
    "Graph",
    "GreenNet",
    "Grid",
    "Heat",
    "LayerPotential",
    "Mesh",
    "Model",
    "Multigrid",
    "NavierStokes",
    "NearFar",
    "Normalizer",
    "NotConverged",
    "Nystrom",
    "Operator",
    "Partition",
    "Plate",
    "Points",
    "PoissonDisk",
    "PoissonInterval",
    "PoissonMesh",
    "PoissonSquare",
    "Potential",
    "Problem",
    "Radius",
    "Recipe",
    "Rule",
    "Sample",
    "Sampled",
    "Spread",
    "Stepping",
    "Support",
    "Trajectory",
    "Wave",
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
    "solve_heat",
    "solve_wave",
    "stream",
    "two_phase",
    "writer",
]
