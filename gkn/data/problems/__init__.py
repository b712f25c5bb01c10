"""Problems: what can be generated. One module per equation; a new problem is a subclass of `Problem`."""

from gkn.data.problems.burgers import Burgers as Burgers
from gkn.data.problems.darcy import Darcy as Darcy
from gkn.data.problems.darcy_mesh import DarcyMesh as DarcyMesh
from gkn.data.problems.elliptic import DarcySource as DarcySource
from gkn.data.problems.elliptic import PoissonMesh as PoissonMesh
from gkn.data.problems.heat import Heat as Heat
from gkn.data.problems.layer_potential import LayerPotential as LayerPotential
from gkn.data.problems.navier_stokes import NavierStokes as NavierStokes
from gkn.data.problems.plate import Plate as Plate
from gkn.data.problems.poisson import PoissonDisk as PoissonDisk
from gkn.data.problems.poisson import PoissonInterval as PoissonInterval
from gkn.data.problems.poisson import PoissonSquare as PoissonSquare
from gkn.data.problems.problem import PROBLEMS as PROBLEMS
from gkn.data.problems.problem import Problem as Problem
from gkn.data.problems.problem import problem_named as problem_named
from gkn.data.problems.wave import Wave as Wave
