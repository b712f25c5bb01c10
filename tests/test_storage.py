"""A dataset on disk: damage is noticed, foreign folders are left alone, unfinished ones go on."""

import random
import shutil

import h5py
import numpy as np
import pytest
import torch

from gkn import Cloud, Darcy, DarcyMesh, Dataset, Grid, Mesh, make_dataset
from gkn.data.storage import ExistingDataset, Manifest, prepare_shard, writing
from gkn.system.files import CorruptFile, sha256, write_sealed_json


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Three shards on a mesh of its own, so that every kind of file is there."""
    mesh = Mesh.square(0.25)
    a = torch.rand(6, len(mesh), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return saved_in_three(Dataset(mesh, a=a, u=a + 1), tmp_path_factory.mktemp("data") / "d")


@pytest.fixture(scope="module")
def meshes(tmp_path_factory):
    """Three shards whose samples each have a mesh of their own."""
    return saved_in_three(make_dataset(DarcyMesh(size=5, modes=4, vary=True), 6), tmp_path_factory.mktemp("data") / "d")


def saved_in_three(dataset, folder):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gkn.data.saving.SHARD_BYTES", 2 * sum(dataset.value(name, 0).nbytes for name in dataset.names))
        dataset.save(folder)
    assert len(Dataset.open(folder).manifest.shards) == 3
    return folder


def read_everything(folder):
    return [(sample.x, sample.a, sample.u) for sample in Dataset.open(folder)]


@pytest.fixture
def copy(made, tmp_path):
    return shutil.copytree(made, tmp_path / "d")


@pytest.fixture(params=["made", "meshes"])
def either(request, tmp_path):
    return shutil.copytree(request.getfixturevalue(request.param), tmp_path / "d")


def files(folder):
    return sorted(path for path in folder.iterdir() if path.name != ".lock")


def test_a_prepared_shard_has_a_temporary_name(tmp_path):
    """Until the process with the lock has listed it. A worker that outlives its run cannot change what is made next."""
    prepared = prepare_shard(tmp_path, 0, 0, {"u": torch.ones(2, 5)})
    assert [path.name for path in tmp_path.iterdir()] == [prepared.temporary.name]
    assert ".tmp-" in prepared.temporary.name


def test_files(made):
    shards = [f"shard-0000{i}.h5" for i in range(3)]
    assert sorted(path.name for path in made.iterdir()) == [".lock", "dataset.json", "domain.h5", *shards]


def assert_noticed(folder, path, bad):
    """With `bad` in place of the file's bytes, reading fails and names the file; then put the good ones back."""
    good = path.read_bytes()
    path.write_bytes(bad)
    with pytest.raises(ValueError, match=path.name):
        read_everything(folder)
    path.write_bytes(good)


def test_every_flipped_bit_is_noticed_and_its_file_named(either):
    """200 single-bit flips: each file gets its share, first and last byte included."""
    random.seed(0)
    every = files(either)
    for trial in range(200):
        path = every[trial % len(every)]
        bad = bytearray(path.read_bytes())
        at = [0, len(bad) - 1][trial // len(every)] if trial < 2 * len(every) else random.randrange(len(bad))
        bad[at] ^= 1 << random.randrange(8)
        assert_noticed(either, path, bad)
    read_everything(either)


def test_every_truncation_is_noticed_and_its_file_named(either):
    random.seed(1)
    every = files(either)
    for trial in range(60):
        path = every[trial % len(every)]
        good = path.read_bytes()
        assert_noticed(either, path, good[: random.choice([0, 1, len(good) // 2, len(good) - 1, random.randrange(len(good))])])
    read_everything(either)


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


def link(file, shape):
    file["fields/a"] = h5py.ExternalLink("/etc/hostname", "/x")


def link_on_the_way(file, shape):
    with h5py.File(file.filename + ".elsewhere", "w") as other:
        other["fields/a"], other["fields/u"] = np.ones(shape), np.ones(shape)
    del file["fields"]
    file["fields"] = h5py.ExternalLink(file.filename + ".elsewhere", "/fields")


def elsewhere(file, shape):
    file.create_dataset("fields/a", shape, "f8", external=[("/dev/zero", 0, 8 * shape[0] * shape[1])])


def virtual(file, shape):
    layout = h5py.VirtualLayout(shape, "f8")
    layout[:] = h5py.VirtualSource("/etc/passwd", "x", shape)
    file.create_virtual_dataset("fields/a", layout)


def filtered(file, shape):
    space, kind = h5py.h5s.create_simple(shape), h5py.h5t.NATIVE_DOUBLE
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_chunk(shape)
    properties.set_filter(h5py.h5z.FILTER_SCALEOFFSET, 0, (0, 3))
    h5py.h5d.create(file["fields"].id, b"a", kind, space, properties)


def huge(file, shape):
    file.create_dataset("fields/a", (10**7, 10**7), "f8", chunks=(1, 1000))


def other_shape(file, shape):
    file["fields/a"] = np.ones((shape[0], shape[1] + 1))


def objects(file, shape):
    file.create_dataset("fields/a", (2,), h5py.string_dtype())


def replace_shard(folder, write):
    """A hostile author can hash what they like: put a shard of their own in place of ours and list its hash."""
    path = folder / "shard-00000.h5"
    with h5py.File(path, "r+") as file:
        write(file)
    value = Manifest.read(folder).json()
    value["shards"][0]["sha256"] = sha256(path)
    write_sealed_json(folder / "dataset.json", value)


HOSTILE = [link, link_on_the_way, elsewhere, virtual, filtered, huge, other_shape, objects]


@pytest.mark.parametrize("write", HOSTILE, ids=lambda f: f.__name__)
def test_hostile_shards(copy, write):
    def spoil(file):
        shape = file["fields/a"].shape
        del file["fields/a"]
        write(file, shape)

    replace_shard(copy, spoil)
    with pytest.raises(ValueError, match=r"shard-00000\.h5"):
        Dataset.open(copy).field("a")
    with pytest.raises(ValueError, match=r"shard-00000\.h5"):
        Dataset.open(copy).value("a", 0)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("node_ptr", [0, 10**12, 2 * 10**12]),
        ("node_ptr", [0, 20, 10]),
        ("node_ptr", [0, 3]),
        ("cell_ptr", [5, 6, 7]),
        ("points", [1.0]),
    ],
)
def test_hostile_offsets(meshes, name, value, tmp_path):
    folder = shutil.copytree(meshes, tmp_path / "d")

    def spoil(file):
        del file[name]
        file[name] = np.array(value)

    replace_shard(folder, spoil)
    with pytest.raises(ValueError, match=r"shard-00000\.h5"):
        read_everything(folder)


@pytest.mark.parametrize(
    "change",
    [
        {"n": "many"},
        {"domain": {}},
        {"domain": {"kind": "grid"}},
        {"domain": {"kind": "mesh", "points": 3, "dim": 2}},
        {"recipe": 1},
    ],
)
def test_a_manifest_of_other_kinds_is_refused(copy, change):
    write_sealed_json(copy / "dataset.json", {**Manifest.read(copy).json(), **change})
    with pytest.raises(ValueError, match=r"dataset\.json"):
        Dataset.open(copy)


@pytest.mark.parametrize(
    ("key", "value"), [("start", "x"), ("count", 0), ("file", "../secret.h5"), ("file", 3), ("bytes", None)]
)
def test_a_shard_entry_that_makes_no_sense_is_refused(copy, key, value):
    given = Manifest.read(copy).json()
    given["shards"][0][key] = value
    write_sealed_json(copy / "dataset.json", given)
    with pytest.raises(ValueError, match=r"dataset\.json"):
        Dataset.open(copy)


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


@pytest.mark.parametrize("name", ["shard-precious.h5", "shard-00000.h5", "domain.h5", "notes.tmp-old", "x.tmp-1-0123abcd"])
def test_nothing_of_others_is_removed(name, tmp_path):
    (tmp_path / name).write_text("mine")
    for recipe in (Darcy(size=9, modes=8), DarcyMesh(size=5, modes=4)):
        with pytest.raises(ExistingDataset, match="is not empty and holds no dataset"):
            make_dataset(recipe, 1, 0, tmp_path)
    assert (tmp_path / name).read_text() == "mine"


def test_force_removes_nothing_before_the_new_recipe_is_known_to_work(tmp_path):
    make_dataset(Darcy(size=9, modes=8), 1, 0, tmp_path)
    for parameters in ({"low": -1}, {"f": float("nan")}, {"size": 2}, {"alpha": 0.5}, {"dim": 7}):
        with pytest.raises(ValueError, match=r"needed|needs|must|only for"):
            make_dataset(Darcy(**{"size": 9, "modes": 8, **parameters}), 1, 0, tmp_path, force=True)
    assert len(Dataset.open(tmp_path)) == 1


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


def test_damaged_and_missing_shards_are_written_again(tmp_path, monkeypatch):
    """The same call as before, as the message about a damaged shard advises."""
    monkeypatch.setattr("gkn.data.saving.SHARD_BYTES", 1)
    u = torch.rand(5, 25, dtype=torch.float64)
    data = Dataset(Cloud(Grid(5).points), a=u, u=u)
    data.save(tmp_path / "data")
    whole = Dataset.open(tmp_path / "data").manifest.hash
    (tmp_path / "data/shard-00001.h5").unlink()
    for name in ("shard-00003.h5", "domain.h5"):
        path = tmp_path / "data" / name
        path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(CorruptFile):
        Dataset.open(tmp_path / "data")
    data.save(tmp_path / "data")
    again = Dataset.open(tmp_path / "data")
    assert again.damaged() == []
    assert again.manifest.hash == whole
    assert torch.equal(again.field("u"), u)


def test_a_file_that_is_replaced_is_checked_again(tmp_path, monkeypatch):
    """More shards than files may be open: they are opened again, and may be those of another dataset by then."""
    monkeypatch.setattr("gkn.data.stored._MOST_OPEN", 2)
    monkeypatch.setattr("gkn.data.saving.SHARD_BYTES", 1)
    u = torch.rand(6, 25, dtype=torch.float64)
    Dataset(Grid(5), a=u, u=u).save(tmp_path / "data")
    data = Dataset.open(tmp_path / "data")
    assert torch.equal(data.field("u"), u)
    Dataset(Grid(5), a=u + 1, u=u + 1).save(tmp_path / "data", force=True)
    with pytest.raises(CorruptFile, match=r"shard-00000\.h5: not the bytes that were written"):
        data.value("u", 0)


def test_what_is_nested_too_deeply_is_not_written(tmp_path):
    """It could not be read again."""
    for kind in (list, tuple):
        nested = 5
        for _ in range(40):
            nested = kind([nested])
        with pytest.raises(ValueError, match="nested in more than 32 levels"):
            Dataset(Grid(5), a=torch.ones(1, 25), u=torch.ones(1, 25)).save(tmp_path / "data", origin={"x": nested})
