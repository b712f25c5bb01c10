"""Problems: what can be generated. One module per equation; a new problem is a subclass of `Problem`."""

from gkn.data.problems.darcy import Darcy as Darcy
from gkn.data.problems.darcy_mesh import DarcyMesh as DarcyMesh
from gkn.data.problems.poisson import PoissonDisk as PoissonDisk
from gkn.data.problems.poisson import PoissonInterval as PoissonInterval
from gkn.data.problems.poisson import PoissonSquare as PoissonSquare
from gkn.data.problems.problem import PROBLEMS as PROBLEMS
from gkn.data.problems.problem import Problem as Problem
from gkn.data.problems.problem import problem_named as problem_named
