"""gkn: learn the solution operator of a PDE on any mesh or point cloud, and ask it anywhere."""

from gkn.data.check import check_dataset
from gkn.data.dataset import Dataset, Sample
from gkn.data.generate import make_dataset
from gkn.data.normalizer import Normalizer
from gkn.data.problems import Darcy, DarcyMesh, PoissonDisk, PoissonInterval, PoissonSquare
from gkn.data.readers import import_files as import_files
from gkn.geometry.cloud import Cloud
from gkn.geometry.fields import GaussianField, two_phase
from gkn.geometry.grid import Grid
from gkn.geometry.mesh import Mesh
from gkn.geometry.smoothing import smooth
from gkn.graph.graph import Graph
from gkn.graph.neighbors import radius_graph
from gkn.graph.rules import Nystrom, Radius
from gkn.models import GKN, GreenNet, Multigrid, NearFar
from gkn.operator.evaluate import Errors, Sampled, relative_l2
from gkn.operator.operator import Exact, Operator, Partition, Support
from gkn.operator.pretrained import pretrained
from gkn.operator.saved import load
from gkn.ops import kernel_integral
from gkn.pde import NotConverged, darcy_residual, solve_darcy
from gkn.pde.greens_functions import green_disk, green_interval
from gkn.train.fit import fit
from gkn.train.recipe import Recipe

__version__ = "0.1.0"

__all__ = [
    "GKN",
    "Cloud",
    "Darcy",
    "DarcyMesh",
    "Dataset",
    "Errors",
    "Exact",
    "GaussianField",
    "Graph",
    "GreenNet",
    "Grid",
    "Mesh",
    "Multigrid",
    "NearFar",
    "Normalizer",
    "NotConverged",
    "Nystrom",
    "Operator",
    "Partition",
    "PoissonDisk",
    "PoissonInterval",
    "PoissonSquare",
    "Radius",
    "Recipe",
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
    "pretrained",
    "radius_graph",
    "relative_l2",
    "smooth",
    "solve_darcy",
    "two_phase",
]
