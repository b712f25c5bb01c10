"""Models: networks that map fields on the nodes of a graph to fields. Nothing in them depends on the number of points."""

from gkn.models import rivals as rivals
from gkn.models.gkn import GKN as GKN
from gkn.models.greennet import GreenNet as GreenNet
from gkn.models.model import MODELS as MODELS
from gkn.models.model import Defaults as Defaults
from gkn.models.model import Model as Model
from gkn.models.model import model_from as model_from
from gkn.models.multigrid import Multigrid as Multigrid
from gkn.models.nearfar import NearFar as NearFar
from gkn.models.potential import Potential as Potential
from gkn.models.stepper import Stepper as Stepper
from gkn.models.symmetric import Symmetric as Symmetric
