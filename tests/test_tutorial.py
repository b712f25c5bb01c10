"""docs/tutorial.md, run as it is printed, in an empty folder."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import meshlane

ROOT = Path(__file__).parent.parent


def test_every_command_and_every_line_of_python(tmp_path):
    text = (ROOT / "docs/tutorial.md").read_text()
    blocks = re.findall(r"```(sh|python)\n(.*?)```", text, re.S)
    assert len(blocks) >= 8
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    tools = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    said = {}
    for kind, block in blocks:
        commands = [[sys.executable, "-c", block]] if kind == "python" else [shlex.split(line) for line in block.splitlines()]
        for words in commands:
            done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, env=environment)
            assert done.returncode == 0, (block, done.stdout, done.stderr)
            said[" ".join(words[:3] if words[1] == "data" else words[:2]) if kind == "sh" else block[:40]] = done.stdout
    assert "parameter traction" in said["gkn data import"]
    assert "on this machine" in said["gkn train"]
    assert "nearest training sample" in said["gkn train"]
    assert "relative error of displacement" in said["gkn predict"]
    assert (tmp_path / "runs/plates/report.html").read_text().count("data:image/png") == 4
    mesh = meshlane.read(tmp_path / "answer.vtu")
    assert mesh.point_data["displacement"].shape == (len(mesh.points), 3)  # a vector, for ParaView
    assert {"displacement_truth", "displacement_error", "von_mises", "von_mises_truth", "E"} <= {*mesh.point_data}
    assert len([*(tmp_path / "answers").glob("plate_000*.vtu")]) == 10
