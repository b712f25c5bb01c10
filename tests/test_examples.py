"""Every example runs, is short, and gives the number it is there for."""

import os
import re
import subprocess
import sys
from pathlib import Path

import matplotlib.image
import pytest

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "examples"
NUMBERS = {
    "green_function": 0.0382,
    "train16_test241": 0.1355,
    "few_nodes": 0.1391,
    "mesh_to_vtu": 0.0309,
    "ask_anywhere": 0.0254,
    "inverse": 0.9771,
    "grid_mesh_cloud": 0.00499,
}


GENERATORS = ("plate", "poisson3d")  # programs that make files as another code would, without a figure
LONG = ("green_function", "few_nodes", "inverse", "grid_mesh_cloud")


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in LONG)) for name in NUMBERS])
def test_examples(name, tmp_path):
    """In a process of its own, as a reader runs it. To a twentieth: what is learned depends on the last bit of every sum."""
    script = f"from pathlib import Path; from examples.{name} import main; print(main(Path({str(tmp_path / 'x.png')!r})))"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = float(done.stdout.splitlines()[-1])
    assert found == pytest.approx(NUMBERS[name], rel=0.05 if name != "inverse" else 0.03)
    assert matplotlib.image.imread(tmp_path / "x.png").shape[1] > 500


def test_there_are_no_others_and_all_are_short():
    files = sorted(FOLDER.glob("*.py"))
    assert [path.stem for path in files] == sorted([*NUMBERS, *GENERATORS])
    assert all(20 <= len(path.read_text().splitlines()) <= 60 for path in files if path.stem in NUMBERS)
    for name in GENERATORS:
        assert len((FOLDER / f"{name}.py").read_text().splitlines()) <= 150
        assert (FOLDER.parent / f"tests/test_{name}.py").exists()
    for name in NUMBERS:
        assert re.search(rf"docs/examples/{name}\.png", (FOLDER / f"{name}.py").read_text())
        assert (FOLDER.parent / f"docs/examples/{name}.png").stat().st_size > 5000
