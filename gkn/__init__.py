"""Learn the solution operator of a PDE from examples, on any mesh or point cloud, and evaluate it at any point."""

from gkn.data.check import check_dataset
from gkn.data.dataset import Dataset, Sample
from gkn.data.generate import make_dataset
from gkn.data.normalizer import Normalizer
from gkn.data.problems import Darcy, DarcyMesh, PoissonDisk, PoissonInterval, PoissonSquare, Problem
from gkn.data.readers import import_files, reader
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
from gkn.operator.ways import Exact, Partition, Sampled, Support
from gkn.ops import kernel_integral
from gkn.pde import NotConverged, darcy_residual, solve_darcy
from gkn.pde.greens_functions import green_disk, green_interval
from gkn.system.randomness import stream
from gkn.train.fit import fit
from gkn.train.recipe import Recipe

__version__ = "0.1.0"

open = Dataset.open

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
