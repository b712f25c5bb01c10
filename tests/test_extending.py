"""Every page of docs/extending.md adds something in one short file and trains with it or reads it."""

import re
from pathlib import Path

import pytest
import torch

import gkn
from gkn.data.problems import PROBLEMS
from gkn.data.readers import READERS
from gkn.data.writers import WRITERS
from gkn.geometry.domain import DOMAINS
from gkn.graph.rules import RULES
from gkn.models import MODELS
from gkn.system.files import CorruptFile

TEXT = (Path(__file__).parent.parent / "docs/extending.md").read_text()
PAGES = {page.splitlines()[0]: page for page in TEXT.split("\n## ")[1:]}
INTERFACES = ["A model", "A problem", "A domain", "A file format", "A rule"]


@pytest.fixture
def registries():
    """Forget what a page registers."""
    kept = [(each, dict(each)) for each in (MODELS, PROBLEMS, DOMAINS, RULES, READERS, WRITERS)]
    yield
    for registry, before in kept:
        registry.clear()
        registry.update(before)


def program(name):
    (code,) = re.findall(r"```python\n(.*?)```", PAGES[name], re.S)
    return code


def test_there_is_a_page_for_every_interface():
    assert [*PAGES] == INTERFACES


@pytest.mark.parametrize("name", INTERFACES)
def test_pages_are_short_and_learn(name, tmp_path, monkeypatch, registries):
    code = program(name)
    assert len(code.splitlines()) <= 40
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "page"}
    exec(compile(code, name, "exec"), names)
    data, operator, error = names["data"], names["operator"], names["error"]
    train, test = data.split(0.8)
    assert error < 0.6 * mean_error(train, test)
    operator.save("trained")
    assert gkn.load("trained").evaluate(test).mean == pytest.approx(error, rel=1e-5)


def mean_error(train, test):
    """The error of a prediction that ignores its input: the mean of the training outputs."""
    mean = torch.stack([sample.u for sample in train]).mean(0)
    return torch.stack([(mean - sample.u).norm() / sample.u.norm() for sample in test]).mean()


def test_a_domain_that_was_not_imported_is_named(tmp_path, monkeypatch):
    gkn.Darcy(size=5).generate(2, out=tmp_path / "data")
    monkeypatch.delitem(DOMAINS, "grid")
    with pytest.raises(CorruptFile, match=r"a domain of kind 'grid'; there are .*: import the module that defines it first"):
        gkn.open(tmp_path / "data")
