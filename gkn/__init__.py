"""gkn: learn the solution operator of a PDE on any mesh or point cloud, and ask it anywhere."""

from gkn.check import check_dataset
from gkn.dataset import Dataset, Sample
from gkn.domain import Cloud, Grid, Mesh
from gkn.evaluate import Errors, Sampled, relative_l2
from gkn.fields import GaussianField, smooth, two_phase
from gkn.generate import Darcy, DarcyMesh, PoissonDisk, PoissonInterval, PoissonSquare, make_dataset
from gkn.graph import Graph
from gkn.importers import load as import_files
from gkn.models import GKN, GreenNet, Multigrid, NearFar
from gkn.neighbors import radius_graph
from gkn.normalizer import Normalizer
from gkn.operator import Exact, Operator, Partition, Support
from gkn.ops import kernel_integral
from gkn.pde import NotConverged, darcy_residual, solve_darcy
from gkn.pde.green import green_disk, green_interval
from gkn.pretrained import pretrained
from gkn.recipes import Recipe
from gkn.rules import Nystrom, Radius
from gkn.train import fit, load

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
