"""Benchmarks are run by hand, on machines CI does not have; that they still find what they import is seen here."""

import importlib
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent / "benchmarks"


@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("*.py") if path.stem != "__init__"))
def test_it_can_be_imported(name):
    assert importlib.import_module(f"benchmarks.{name}").__doc__


def test_the_tables_of_the_readme_are_those_of_the_results():
    """Results are found by a hash of their settings. A new setting must not make older results unknown."""
    from benchmarks import RESULTS
    from gkn.study.beyond.pages import summary
    from gkn.study.beyond.tables import SCALES
    from gkn.study.work import Place

    text = (FOLDER.parent / "README.md").read_text()
    shown = text.split("<!-- beyond -->")[1].split("<!-- /beyond -->")[0].strip().splitlines()
    assert summary(Place(RESULTS / "beyond", RESULTS / "beyond"), SCALES["full"]) == shown
    assert len(shown) > 12
