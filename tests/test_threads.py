"""Datasets and operators that several threads use at the same time."""

import pickle
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from gkn import GKN, Cloud, Dataset, Grid, Operator, Radius, pretrained
from gkn.data import stored
from gkn.data.source import Smoothed
from gkn.operator.nodes import evaluating

THREADS = 8


@pytest.fixture(autouse=True)
def switching_often():
    """Let threads interrupt each other every few microseconds, not every few milliseconds."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def all_at_once(work, count=THREADS):
    """Run work(thread) on several threads that begin together; raise what any of them raises."""
    begin = threading.Barrier(count)

    def one(number):
        begin.wait()
        return work(number)

    with ThreadPoolExecutor(count) as pool:
        return [each.result() for each in [pool.submit(one, number) for number in range(count)]]


def test_smoothed_fields_belong_to_their_sample():
    rng = torch.Generator().manual_seed(0)
    data = Dataset(Grid(9), a=torch.rand(6, 81, generator=rng, dtype=torch.float64), u=torch.zeros(6, 81))
    wanted = [sample.a for sample in data.smoothed(0.1)]
    shared = data.smoothed(0.1)

    def read(number):
        return [i for k in range(60) if not torch.equal(shared[i := (number + k) % 6].a, wanted[i])]

    assert all_at_once(read) == [[]] * THREADS


def test_smoothed_fields_that_another_thread_replaces_at_once():
    class Racing(Smoothed):
        """Behaves as if another thread read another sample right after every read."""

        @property
        def _last(self):
            return self.__dict__.get("kept")

        @_last.setter
        def _last(self, value):
            self.__dict__["kept"] = None if value is None else (99, torch.full_like(value[1], 99.0))

    memory = Dataset(Grid(5), a=torch.rand(2, 25, dtype=torch.float64), u=torch.zeros(2, 25))._source
    usual, racing = Smoothed(memory, "a", 0.1), Racing(memory, "a", 0.1)
    assert torch.equal(racing.read("a_smooth", 1), usual.read("a_smooth", 1))


@pytest.mark.parametrize("apart", [False, True])
def test_files_are_not_closed_while_they_are_read(apart, tmp_path, monkeypatch):
    """More shards than files may be open."""
    monkeypatch.setattr(stored, "_MOST_OPEN", 3)
    monkeypatch.setattr("gkn.data.saving.SHARD_BYTES", 1)  # a shard for each sample
    rng = torch.Generator().manual_seed(0)
    domain = [Cloud(torch.rand(20 + i, 2, generator=rng, dtype=torch.float64)) for i in range(12)] if apart else Grid(5)
    values = [torch.rand(len(domain[i]) if apart else 25, generator=rng, dtype=torch.float64) for i in range(12)]
    Dataset(domain, a=values, u=values, load=[*range(12)]).save(tmp_path / "data")
    assert len([*(tmp_path / "data").glob("shard-*.h5")]) == 12
    data = Dataset.open(tmp_path / "data")

    def read(number):
        for k in range(40):
            i = (5 * number + 7 * k) % 12
            assert torch.equal(data.value("u", i), values[i])
            assert data.parameter("load", i) == i
            assert len(data[i].domain) == len(values[i])

    all_at_once(read)
    assert pickle.loads(pickle.dumps(data)).parameter("load", 3) == 3


def test_evaluation_ends_with_the_last_thread():
    model = GKN(dim=2, width=4, kernel=(4,))
    with evaluating(model):
        with evaluating(model):
            assert not model.training
        assert not model.training
    assert model.training


def answers(operator, rounds):
    rng = torch.Generator().manual_seed(0)
    domains = [Grid(7), Cloud(torch.rand(50, 2, generator=rng, dtype=torch.float64)), Grid(9), Grid(8)]
    given = [3 + 9 * (torch.rand(len(domain), generator=rng, dtype=torch.float64) > 0.5) for domain in domains]
    wanted = [operator.answer(domain, a=a)["u"].tobytes() for domain, a in zip(domains, given, strict=True)]

    def ask(number):
        wrong = 0
        for k in range(rounds):
            i = (number + k) % len(domains)
            wrong += operator.answer(domains[i], a=given[i])["u"].tobytes() != wanted[i]
        return wrong

    return all_at_once(ask)


@pytest.mark.filterwarnings("ignore:.*do not trust the answer")
@pytest.mark.parametrize("name", ["darcy", "darcy-nearfar"])
def test_an_operator_gives_all_threads_the_same_bits(name):
    torch.set_num_threads(1)
    assert answers(pretrained(name), 2) == [0] * THREADS


def test_operators_are_loaded_and_models_built_at_once(tmp_path):
    """What limits the size of a stored network must not be seen by other threads."""
    Operator(GKN(dim=2, width=4, kernel=(4,)), Radius(0.4)).save(tmp_path / "op")

    def work(number):
        for _ in range(12):
            if number % 2:
                Operator.load(tmp_path / "op")
            else:
                GKN(dim=2, width=4, kernel=[4] * 60)  # larger than the stored one
        return True

    assert all_at_once(work) == [True] * THREADS


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*do not trust the answer")
def test_threads_for_longer(tmp_path):
    """8 threads: 800 reads of a dataset of 100 shards, and 240 answers of each pretrained operator."""
    values = torch.rand(100, 25, dtype=torch.float64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gkn.data.saving.SHARD_BYTES", 1)
        Dataset(Grid(5), a=values, u=values).save(tmp_path / "data")
    data = Dataset.open(tmp_path / "data").smoothed(0.2)
    wanted = [sample.a for sample in Dataset(Grid(5), a=values, u=values).smoothed(0.2)]
    found = all_at_once(
        lambda number: [i for k in range(100) if not torch.equal(data[i := (number + 13 * k) % 100].a, wanted[i])]
    )
    assert found == [[]] * THREADS
    torch.set_num_threads(1)
    for name in ("darcy", "darcy-nearfar"):
        assert answers(pretrained(name), 30) == [0] * THREADS


def test_a_trained_model_is_not_disturbed_by_answers():
    """Operator and training share the model: it is in training mode again after the answer."""
    operator = Operator(GKN(dim=2, width=4, kernel=(4,)).train(), Radius(0.4))
    from gkn import Sample

    grid = Grid(5)
    operator(Sample(grid, torch.zeros(25, 1), torch.zeros(25, 1)))
    assert operator.model.training
