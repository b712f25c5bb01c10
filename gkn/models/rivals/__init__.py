"""Networks and baselines of other people, to compare with. All are models: `fit` trains them with the same data and loss."""

from gkn.models.rivals.dense import Dense as Dense
from gkn.models.rivals.fcn import FCN as FCN
from gkn.models.rivals.fno import FNO as FNO
from gkn.models.rivals.pca import PCANet as PCANet
from gkn.models.rivals.pointwise import Pointwise as Pointwise
from gkn.models.rivals.rbm import RBM as RBM
from gkn.models.rivals.slice_attention import SliceAttention as SliceAttention
from gkn.models.rivals.transformer import Transformer as Transformer
