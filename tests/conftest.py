"""Shapes in signatures are checked under pytest only: by jaxtyping and beartype, on every call of every function."""

import importlib.util
import os
import subprocess
import sys
import types
from pathlib import Path

import jaxtyping
import torch

try:
    import beartype
except ImportError:  # the machine with the GPU has none; it runs tests/test_cuda.py only
    beartype = None

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported: its kernels then run on the CPU, as numpy

checker = types.ModuleType("gkn_type_checker")
if beartype is not None:
    checker.check = beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))  # an int is a float
sys.modules[checker.__name__] = checker
# All but the command line: typer hands its callbacks a context of another class than the one it documents.
package = Path(__file__).parent.parent / "gkn"
layers = [path.stem for path in package.iterdir() if path.is_dir() or path.suffix == ".py"]
if beartype is not None:
    layers = [layer for layer in layers if layer not in ("cli", "ops")] + [
        "ops.reference",
        "ops.factored",
    ]  # Triton reads the source
    jaxtyping.install_import_hook([f"gkn.{layer}" for layer in layers], "gkn_type_checker.check")

import pytest  # noqa: E402


@pytest.fixture
def rng():
    return torch.Generator().manual_seed(0)


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)  # pytest-xdist has taken both cores already


@pytest.fixture(scope="session")
def faults(tmp_path_factory):
    """The fault-injecting library, built with the C compiler that `make test` may count on."""
    library = tmp_path_factory.mktemp("faults") / "faults.so"
    source = Path(__file__).with_name("faults.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    return library


class OneLayer(torch.nn.Module):
    """Stands for neuraloperator's network where that is not installed: called alike, and as little as does anything."""

    def __init__(self, n_modes, in_channels, out_channels, hidden_channels, n_layers, positional_embedding):
        super().__init__()
        self.modes, self.up = n_modes, torch.nn.Conv2d(in_channels, hidden_channels, 1)
        self.weight = torch.nn.Parameter(torch.ones(hidden_channels, 1, 1, dtype=torch.complex64) * (1 + 0.5j))
        self.down = torch.nn.Conv2d(hidden_channels, out_channels, 1)

    def forward(self, a):
        v = torch.fft.rfft2(self.up(a))
        low = torch.zeros_like(v)
        v = v * self.weight
        low[..., : self.modes[0], : self.modes[1]] = v[..., : self.modes[0], : self.modes[1]]
        return self.down(torch.fft.irfft2(low, s=a.shape[-2:]))

    def state_dict(self, *args, **options):
        found = super().state_dict(*args, **options)
        found["_metadata"] = {}  # as neuraloperator does
        return found


@pytest.fixture(scope="module")
def neuraloperator():
    if importlib.util.find_spec("neuralop") is None:
        models = types.ModuleType("neuralop.models")
        models.FNO = OneLayer
        sys.modules.update({"neuralop": types.ModuleType("neuralop"), "neuralop.models": models})
        yield
        del sys.modules["neuralop"], sys.modules["neuralop.models"]
    else:
        yield
