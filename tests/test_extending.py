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


class Shift(gkn.Model):
    """u = a + 1 at the nodes."""

    def __init__(self, dim, in_channels, out_channels):
        super().__init__(dim, in_channels, out_channels)
        self.one = torch.nn.Parameter(torch.ones(1))

    def forward(self, graph, x, a, weights=None):
        return a + self.one


class Half(gkn.Rule):
    """Half of the points, drawn at random, without edges."""

    r = None

    @property
    def drawn(self):
        return 8

    def graph(self, x, at=None, r=None):
        return gkn.Points().graph(x, at)


class Ring(gkn.Cloud):
    """A cloud whose domains are also described by a number."""

    kind = "ring"

    def numbers(self):
        return {"turns": 3}


@pytest.fixture(scope="module", autouse=True)
def unlisted():
    """Remove the classes above from the registries when this file is done."""
    yield
    for registry, name in ((MODELS, "Shift"), (RULES, "Half"), (DOMAINS, "ring")):
        registry.pop(name, None)


def test_a_model_that_predicts_at_nodes_only():
    """`Support` would leave all points but its nodes without a prediction; elsewhere predictions are interpolated."""
    operator = gkn.Operator(Shift(2, 1, 1), gkn.Radius(0.3))
    sample = gkn.Sample(gkn.Grid(5), torch.ones(25, 1), torch.zeros(25, 1))
    with pytest.raises(ValueError, match=r"Shift predicts at its nodes only; use Exact\(\) or Partition\(m\)"):
        operator(sample, how=gkn.Support(10))
    assert torch.allclose(operator(sample, torch.rand(7, 2), how=gkn.Partition(10)), torch.full((7, 1), 2.0))


def test_a_rule_that_draws_nodes_says_what_all_points_are():
    operator = gkn.Operator(Shift(2, 1, 1), Half())
    data = gkn.Dataset(gkn.Grid(4), a=torch.ones(2, 16), u=torch.ones(2, 16))
    with pytest.raises(NotImplementedError, match="Half draws nodes; it must define `whole`"):
        operator.evaluate(data)


def test_what_was_not_imported_is_named(tmp_path, monkeypatch):
    gkn.Operator(Shift(2, 1, 1), Half()).save(tmp_path)
    monkeypatch.delitem(RULES, "Half")
    with pytest.raises(CorruptFile, match=r"a rule called 'Half'; there are .*: import the module that defines it first"):
        gkn.load(tmp_path)
    monkeypatch.delitem(MODELS, "Shift")
    with pytest.raises(CorruptFile, match=r"a network called 'Shift'; there are .*: import the module that defines it first"):
        gkn.load(tmp_path)


def test_a_subclass_of_a_domain_does_not_replace_it(registries):
    class Finer(gkn.Grid):
        """No kind of its own."""

    assert Finer.kind == "grid"
    assert DOMAINS["grid"] is gkn.Grid


def test_domains_that_cannot_be_stored_per_sample_are_refused(tmp_path):
    rings = [Ring(torch.rand(5, 2)) for _ in range(2)]
    data = gkn.Dataset(rings, a=[torch.ones(5)] * 2, u=[torch.ones(5)] * 2)
    with pytest.raises(ValueError, match="must be of one kind, which is stored by arrays alone"):
        data.save(tmp_path / "data")


def test_only_problems_that_say_so_must_be_zero_on_the_boundary(tmp_path, registries):
    class One(gkn.Problem):
        """The constant 1."""

        name = "one"
        inputs = ("a",)
        outputs = ("b",)

        def domain(self):
            return gkn.Grid(4)

        def sample(self, seed, i):
            return gkn.Grid(4), {"a": torch.full((16,), i + 1.0), "b": torch.ones(16)}

    One().generate(2, out=tmp_path / "data")
    found = {each.what: each for each in gkn.check_dataset(tmp_path / "data")}
    assert found["boundary"].ok is None
    assert "one does not say what its outputs are there" in found["boundary"].text
