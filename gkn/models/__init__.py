"""Networks: plain modules that know nothing of datasets, and nothing in them depends on the number of points."""

from gkn.models.gkn import GKN as GKN
from gkn.models.green import GreenNet as GreenNet
