"""Benchmarks are run by hand, on machines CI does not have; that they still find what they import is seen here."""

import importlib
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent / "benchmarks"


@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("*.py") if path.stem != "__init__"))
def test_it_can_be_imported(name):
    assert importlib.import_module(f"benchmarks.{name}").__doc__
