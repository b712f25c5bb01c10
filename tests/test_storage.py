"""A dataset on disk: damage is noticed, foreign folders are left alone, unfinished ones go on."""

import random
import shutil

import h5py
import numpy as np
import pytest
import torch

from gkn import Darcy, Dataset, Mesh, make_dataset
from gkn.durable import sha256, write_sealed_json
from gkn.storage import ExistingDataset, Manifest, writing


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Three shards on a mesh of its own, so that every kind of file is there."""
    folder = tmp_path_factory.mktemp("data") / "d"
    mesh = Mesh.square(0.25)
    a = torch.rand(6, len(mesh), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gkn.dataset.SHARD_BYTES", 2 * 2 * len(mesh) * 8)
        Dataset(mesh, a=a, u=a + 1).save(folder)
    return folder


def read_everything(folder):
    dataset = Dataset.open(folder)
    return {name: dataset.field(name) for name in dataset.names}


@pytest.fixture
def copy(made, tmp_path):
    shutil.copytree(made, tmp_path / "d")
    return tmp_path / "d"


def test_files(made):
    shards = [f"shard-0000{i}.h5" for i in range(3)]
    assert sorted(path.name for path in made.iterdir()) == ["dataset.json", "domain.h5", *shards]


def test_every_flipped_bit_is_noticed_and_its_file_named(copy):
    """200 single-bit flips: each file gets its share, first and last byte included."""
    random.seed(0)
    files = sorted(copy.iterdir())
    for trial in range(200):
        path = files[trial % len(files)]
        good = path.read_bytes()
        at = [0, len(good) - 1][trial // len(files)] if trial < 2 * len(files) else random.randrange(len(good))
        bad = bytearray(good)
        bad[at] ^= 1 << random.randrange(8)
        path.write_bytes(bad)
        with pytest.raises(ValueError, match=path.name):
            read_everything(copy)
        path.write_bytes(good)
    read_everything(copy)


def test_every_truncation_is_noticed_and_its_file_named(copy):
    random.seed(1)
    files = sorted(copy.iterdir())
    for trial in range(60):
        path = files[trial % len(files)]
        good = path.read_bytes()
        path.write_bytes(good[: random.choice([0, 1, len(good) // 2, len(good) - 1, random.randrange(len(good))])])
        with pytest.raises(ValueError, match=path.name):
            read_everything(copy)
        path.write_bytes(good)
    read_everything(copy)


def test_swapped_shards_are_noticed(copy):
    one, two = copy / "shard-00000.h5", copy / "shard-00001.h5"
    one.rename(copy / "x")
    two.rename(one)
    (copy / "x").rename(two)
    with pytest.raises(ValueError, match=r"shard-00000\.h5"):
        read_everything(copy)


def test_a_newer_schema_is_refused(copy):
    write_sealed_json(copy / "dataset.json", {**Manifest.read(copy).json(), "schema": 99})
    with pytest.raises(ValueError, match="schema 99, but this version of gkn reads schema 1"):
        Dataset.open(copy)


@pytest.mark.parametrize("change", [{"shards": [{"file": "x"}]}, {"color": 1}, {"n": None, "inputs": None}])
def test_a_manifest_with_other_fields_is_refused(copy, change):
    write_sealed_json(copy / "dataset.json", {**Manifest.read(copy).json(), **change})
    with pytest.raises(ValueError, match=r"dataset\.json"):
        Dataset.open(copy)


def test_a_shard_may_not_point_out_of_its_folder(copy):
    value = Manifest.read(copy).json()
    value["shards"][0]["file"] = "../secret.h5"
    write_sealed_json(copy / "dataset.json", value)
    with pytest.raises(ValueError, match="makes no sense"):
        Dataset.open(copy)


def external(file):
    file["fields/a"] = h5py.ExternalLink("/etc/hostname", "/x")


def elsewhere(file):
    file.create_dataset("fields/a", (2, 8), "f8", external=[("/etc/passwd", 0, 128)])


def huge(file):
    file.create_dataset("fields/a", (10**7, 10**7), "f8", chunks=(1, 1000))


def objects(file):
    file.create_dataset("fields/a", (2,), h5py.string_dtype())


@pytest.mark.parametrize("write", [external, elsewhere, huge, objects], ids=lambda f: f.__name__)
def test_hostile_shards(copy, write):
    """A hostile author can hash what they like: swap in a shard of their own and list its hash."""
    path = copy / "shard-00000.h5"
    path.unlink()
    with h5py.File(path, "w") as file:
        write(file)
    value = Manifest.read(copy).json()
    value["shards"][0]["sha256"] = sha256(path)
    write_sealed_json(copy / "dataset.json", value)
    with pytest.raises(ValueError, match=r"shard-00000\.h5"):
        Dataset.open(copy).field("a")
    with pytest.raises(ValueError, match=r"shard-00000\.h5"):
        Dataset.open(copy).value("a", 0)


def test_another_dataset_is_never_overwritten_unless_forced(tmp_path):
    folder = tmp_path / "d"
    small = Darcy(size=9, modes=8)
    make_dataset(small, 3, 0, folder)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(ExistingDataset, match=r"d holds another dataset: .*size = 9 there, 11 here.*--force"):
        make_dataset(Darcy(size=11, modes=8), 3, 0, folder)
    with pytest.raises(ExistingDataset, match="seed = 0 there, 1 here"):
        make_dataset(small, 3, 1, folder)
    with pytest.raises(ExistingDataset, match="n = 3 there, 4 here"):
        make_dataset(small, 4, 0, folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    make_dataset(small, 4, 1, folder, force=True)
    assert len(Dataset.open(folder)) == 4


def test_a_folder_with_other_things_in_it_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("words")
    small = Darcy(size=9, modes=8)
    with pytest.raises(ExistingDataset, match=r"holds no dataset \(thesis.tex\)"):
        make_dataset(small, 1, 0, tmp_path)
    make_dataset(small, 1, 0, tmp_path, force=True)
    make_dataset(small, 2, 0, tmp_path, force=True)
    assert (tmp_path / "thesis.tex").read_text() == "words"


def test_two_writers_do_not_meet(tmp_path):
    manifest = Manifest(1, ("a",), ("u",), None, {"name": "x"}, 0, {})
    second = writing(tmp_path, manifest, None)
    with writing(tmp_path, manifest, None), pytest.raises(ExistingDataset, match="another process is writing"):
        second.__enter__()


def test_unfinished_is_said_and_can_be_opened(copy):
    value = Manifest.read(copy).json()
    del value["shards"][1]
    write_sealed_json(copy / "dataset.json", value)
    with pytest.raises(ValueError, match="unfinished, 4 of 6 samples"):
        Dataset.open(copy)
    part = Dataset.open(copy, partial=True)
    assert len(part) == 4
    assert part.field("a").shape[0] == 4


def test_what_shrinks_is_compressed_and_nothing_is_lost(tmp_path):
    dataset = make_dataset(Darcy(size=61, modes=32), 2, 0, tmp_path / "d")
    with h5py.File(tmp_path / "d/shard-00000.h5") as file:
        assert file["fields/a"].compression == "gzip"
        assert file["fields/u"].compression is None
        assert np.array_equal(file["fields/a"][...], dataset.field("a").numpy())
    assert torch.equal(make_dataset(Darcy(size=61, modes=32), 2, 0).field("a"), dataset.field("a"))
