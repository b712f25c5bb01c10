"""Shapes in signatures are checked under pytest only: by jaxtyping and beartype, on every call of every function."""

import sys
import types
from pathlib import Path

import jaxtyping

try:
    import beartype
except ImportError:  # the machine with the GPU has none; it runs tests/test_cuda.py only
    beartype = None

checker = types.ModuleType("gkn_type_checker")
if beartype is not None:
    checker.check = beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))  # an int is a float
sys.modules[checker.__name__] = checker
# All but the command line: typer hands its callbacks a context of another class than the one it documents.
package = Path(__file__).parent.parent / "gkn"
rooms = [path.stem for path in package.iterdir() if path.is_dir() or path.suffix == ".py"]
if beartype is not None:
    jaxtyping.install_import_hook([f"gkn.{room}" for room in rooms if room != "cli"], "gkn_type_checker.check")

import pytest  # noqa: E402
import torch  # noqa: E402


@pytest.fixture
def rng():
    return torch.Generator().manual_seed(0)


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)  # pytest-xdist has taken both cores already
