"""Python, commands and links of README.md work, and gkn is imported without modules that only Linux has."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from gkn.cli import command_of

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("code", re.findall(r"```python\n(.*?)```", README, re.S), ids=["pretrained", "train"])
def test_python(code, tmp_path):
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("code", re.findall(r"```python\n(.*?)```", (ROOT / "docs/time.md").read_text(), re.S))
def test_python_of_the_page_on_time(code, tmp_path):
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_commands_have_options_that_exist():
    lines = re.findall(r"^    (gkn [^#\n]*)", README, re.M) + re.findall(r"`(gkn [a-z]+ [^`]*--[^`]*)`", README)
    assert len(lines) >= 6
    for line in lines:
        words = shlex.split(line)[1:]
        command = command_of(words.pop(0))
        while hasattr(command, "commands"):
            command = command.commands[words.pop(0)]
        known = {name for parameter in command.params for name in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= known, line


def test_links():
    for file in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", file.read_text()):
            assert (file.parent / target).exists(), f"{file.name}: {target}"


def test_import_without_what_linux_has_alone():
    code = """
import builtins, sys
for name in ("fcntl", "resource"):
    sys.modules[name] = None
real = open
def without_proc(file, *args, **kwargs):
    if str(file).startswith("/proc"):
        raise FileNotFoundError(file)
    return real(file, *args, **kwargs)
builtins.open = without_proc
import gkn, gkn.cli, tempfile
data = gkn.Darcy(size=5).generate(3, out=tempfile.mkdtemp() + "/data")
gkn.fit(data, "GKN", gkn.Radius(0.5), settings={"width": 4, "kernel": (4, 4), "steps": 1}, epochs=1)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
