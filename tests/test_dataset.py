import pickle

import joblib
import numpy as np
import pytest
import torch

from gkn import Cloud, Darcy, Dataset, Grid, Mesh, Normalizer, check_dataset, make_dataset, smooth
from gkn.data import storage


@pytest.fixture
def grid_dataset(rng):
    grid = Grid(13)
    a = torch.rand(10, len(grid), generator=rng, dtype=torch.float64) + 1
    return Dataset(grid, a=a, u=a**2)


@pytest.fixture
def mesh_dataset():
    meshes = [Mesh.square(h) for h in (0.3, 0.25, 0.2)]
    return Dataset(meshes, a=[m.points[:, 0] for m in meshes], u=[m.points[:, 1] for m in meshes])


def test_samples(grid_dataset):
    sample = grid_dataset[3]
    assert sample.x.shape == (169, 2)
    assert sample.a.shape == sample.u.shape == (169, 1)
    assert torch.equal(sample.u, sample.a**2)
    assert torch.equal(grid_dataset[-1].a, grid_dataset[9].a)
    assert len([*grid_dataset]) == 10
    assert float(sample.weights.sum()) == pytest.approx(1)
    with pytest.raises(IndexError):
        grid_dataset[10]


def test_split_take_every(grid_dataset):
    train, test = grid_dataset.split(7, 3)
    assert (len(train), len(test)) == (7, 3)
    assert torch.equal(test.field("a"), grid_dataset.field("a")[7:])
    assert torch.equal(grid_dataset.take([4, 2]).field("u"), grid_dataset.field("u")[[4, 2]])
    assert torch.equal(test.take(1).field("u"), grid_dataset.field("u")[7:8])
    coarse = test.every(2).every(3)
    assert coarse.domain == Grid(3)
    assert torch.equal(coarse.field("a"), test.field("a")[:, Grid(13).stride(6)])
    assert torch.equal(coarse[1].a, test[1].a[Grid(13).stride(6)])
    with pytest.raises(ValueError, match=r"the stride must divide size-1 = 6"):
        test.every(2).every(4)
    with pytest.raises(ValueError, match="11 samples asked for, this dataset has 10"):
        grid_dataset.split(8, 3)
    with pytest.raises(ValueError, match="has 10 samples"):
        grid_dataset.take(11)
    with pytest.raises(ValueError, match="not a mask"):
        grid_dataset.take([False, True])
    assert len(grid_dataset.take(np.int64(3))) == 3


def test_smoothed_features_are_those_of_the_finest_grid(grid_dataset):
    width = 0.1
    a, gradient = smooth(Grid(13), grid_dataset.field("a"), width)
    coarse = grid_dataset.smoothed(width).every(4)
    assert coarse.inputs == ("a", "a_smooth", "a_smooth_x", "a_smooth_y")
    nodes = Grid(13).stride(4)
    torch.testing.assert_close(coarse.field("a_smooth"), a[:, nodes])
    torch.testing.assert_close(coarse[2].a[:, 2:], gradient[2, nodes])
    assert coarse[2].u.shape == (16, 1)
    with pytest.raises(ValueError, match="there is a field 'a_smooth' already"):
        coarse.smoothed(0.2)


def test_a_domain_per_sample(mesh_dataset, tmp_path):
    assert not mesh_dataset.one_domain
    assert len(mesh_dataset[2].x) == len(mesh_dataset[2].a)
    with pytest.raises(ValueError, match="a domain of its own"):
        _ = mesh_dataset.domain
    with pytest.raises(ValueError, match="only a grid has strides"):
        mesh_dataset.every(2)
    mesh_dataset.save(tmp_path / "d")
    again = Dataset.open(tmp_path / "d")
    for i in (2, 0, 1):
        assert torch.equal(again[i].a, mesh_dataset[i].a)
        assert torch.equal(again[i].domain.cells, mesh_dataset[i].domain.cells)
    assert again.smoothed(0.2)[1].a.shape == (len(mesh_dataset[1].x), 4)


def test_clouds_and_meshes_on_disk(rng, tmp_path):
    x = torch.rand(30, 2, generator=rng, dtype=torch.float64)
    cloud = Cloud(x, torch.rand(30, generator=rng, dtype=torch.float64), x[:, 0] > 0.9)
    for name, domain in (("cloud", cloud), ("mesh", Mesh.disk(0.4)), ("grid", Grid(5, 3))):
        a = torch.rand(4, len(domain), generator=rng)
        Dataset(domain, a=a, u=-a).save(tmp_path / name)
        again = Dataset.open(tmp_path / name)
        assert again.field("a").dtype == torch.float32
        assert torch.equal(again.field("u"), -a)
        for part in ("points", "weights", "boundary"):
            assert torch.equal(getattr(again.domain, part), getattr(domain, part))
    Dataset([cloud, cloud], a=list(a[:2, :30]), u=list(a[:2, :30])).save(tmp_path / "clouds")
    assert torch.equal(Dataset.open(tmp_path / "clouds")[1].weights, cloud.weights)


def test_saved_in_shards_and_read_lazily(grid_dataset, tmp_path, monkeypatch):
    monkeypatch.setattr("gkn.data.saving.SHARD_BYTES", 4 * 2 * 169 * 8)  # four samples a shard
    grid_dataset.save(tmp_path / "d")
    again = Dataset.open(tmp_path / "d")
    assert [shard.count for shard in again.manifest.shards] == [4, 4, 2]
    (tmp_path / "d/shard-00002.h5").unlink()
    assert torch.equal(again[5].u, grid_dataset[5].u)  # what is not asked for is not read
    assert torch.equal(again.take(8).field("a"), grid_dataset.field("a")[:8])
    assert torch.equal(again.take([7, 1, 2, 3, 4]).field("a"), grid_dataset.field("a")[[7, 1, 2, 3, 4]])
    with pytest.raises(ValueError, match=r"shard-00002.h5: listed in dataset.json, but not there"):
        again.field("a")


def test_a_saved_view_does_not_pretend_to_be_its_recipe(tmp_path):
    made = make_dataset(Darcy(size=9, modes=8), 3, 0, tmp_path / "d")
    made.take(2).save(tmp_path / "two")
    assert Dataset.open(tmp_path / "two").manifest.origin["name"] == "darcy"
    made.every(2).save(tmp_path / "coarse")
    made.smoothed(0.1).save(tmp_path / "smooth")
    assert Dataset.open(tmp_path / "smooth").manifest.origin["smoothed"] == 0.1
    coarse = Dataset.open(tmp_path / "coarse").manifest.origin
    assert (coarse["name"], coarse["every"], coarse["hash"]) == ("view", 2, made.manifest.hash)
    assert all(finding.ok is not False for finding in check_dataset(tmp_path / "coarse"))


def test_another_dataset_is_not_taken_for_this_one(grid_dataset, tmp_path, monkeypatch):
    """A dataset of the same shape with other numbers is neither kept silently nor mixed with the first."""
    a = grid_dataset.field("a")
    other = Dataset(grid_dataset.domain, a=2 * a, u=a)
    grid_dataset.save(tmp_path / "d")
    grid_dataset.save(tmp_path / "d")  # the same: nothing to do
    for different in (other, grid_dataset.take([*range(9), 0])):
        with pytest.raises(ValueError, match=r"holds another dataset: recipe\.saved"):
            different.save(tmp_path / "d")
    one = Mesh.square(0.4)
    meshes = [[Mesh(one.points * size, one.cells)] for size in (1.0, 2.0)]
    Dataset(meshes[0], a=[one.weights], u=[one.weights]).save(tmp_path / "m")
    with pytest.raises(ValueError, match="holds another dataset"):
        Dataset(meshes[1], a=[one.weights], u=[one.weights]).save(tmp_path / "m")  # the same numbers elsewhere
    first, second = grid_dataset.split(5, 5)
    first.save(tmp_path / "half")
    with pytest.raises(ValueError, match="holds another dataset"):
        second.save(tmp_path / "half")
    other.save(tmp_path / "d", force=True)
    assert torch.equal(Dataset.open(tmp_path / "d").field("a"), 2 * a)


def test_an_interrupted_save_goes_on(grid_dataset, tmp_path, monkeypatch):
    monkeypatch.setattr("gkn.data.saving.SHARD_BYTES", 4 * 2 * 169 * 8)
    written = []

    def fails_at_the_second(folder, number, *rest):
        written.append(number)
        if written == [0, 1]:
            raise OSError(28, "No space left on device")
        return prepare_shard(folder, number, *rest)

    prepare_shard = storage.prepare_shard
    monkeypatch.setattr("gkn.data.storage.prepare_shard", fails_at_the_second)
    with pytest.raises(OSError, match="No space"):
        grid_dataset.save(tmp_path / "d")
    grid_dataset.save(tmp_path / "d")
    assert written == [0, 1, 1, 2]
    assert torch.equal(Dataset.open(tmp_path / "d").field("u"), grid_dataset.field("u"))


def test_a_dataset_is_not_saved_over_itself(tmp_path):
    made = make_dataset(Darcy(size=9, modes=8), 3, 0, tmp_path / "d")
    for view in (made, made.every(2), made.smoothed(0.1)):
        with pytest.raises(ValueError, match="read from there"):
            view.save(tmp_path / "x" / ".." / "d", force=True)
    assert torch.equal(Dataset.open(tmp_path / "d").field("u"), made.field("u"))


def test_many_shards_are_not_many_open_files(grid_dataset, tmp_path, monkeypatch):
    monkeypatch.setattr("gkn.data.saving.SHARD_BYTES", 1)
    monkeypatch.setattr("gkn.data.stored._MOST_OPEN", 3)
    grid_dataset.save(tmp_path / "d")
    again = Dataset.open(tmp_path / "d")
    for _ in range(2):
        assert torch.equal(again.field("a"), grid_dataset.field("a"))
    assert len(again._source._open) == 3


def test_views_travel_to_other_processes(grid_dataset, tmp_path):
    grid_dataset.save(tmp_path / "d")
    view = Dataset.open(tmp_path / "d").smoothed(0.1).split(3, 3)[1].every(4)
    view.field("a_smooth")  # opens a file here, and computes something
    assert torch.equal(pickle.loads(pickle.dumps(view)).field("a_smooth"), view.field("a_smooth"))
    there = joblib.Parallel(n_jobs=2)(joblib.delayed(view.value)("u", i) for i in range(3))
    assert torch.equal(torch.stack(there), view.field("u"))


def test_fields_and_roles(rng, tmp_path):
    grid = Grid(3)
    f, u, p = torch.rand(3, 2, 9, generator=rng)
    dataset = Dataset(grid, outputs=("u", "p"), f=f, u=u, p=p)
    assert dataset.inputs == ("f",)
    assert dataset[1].u.shape == (9, 2)
    with pytest.raises(KeyError, match="no field 'a' in this dataset; it has f, u, p"):
        dataset.field("a")
    for outputs in (("u",), (), ("a", "a")):
        with pytest.raises(ValueError, match="every output among the fields"):
            Dataset(grid, outputs=outputs, a=f)
    with pytest.raises(ValueError, match="different numbers of samples"):
        Dataset(grid, a=f, u=u[:1])
    with pytest.raises(ValueError, match=r"field 'u' of sample 0 has shape \(8,\), but its domain has 9 points"):
        Dataset(grid, a=f, u=u[:, :8])
    with pytest.raises(ValueError, match="1 domains for 2 samples"):
        Dataset([grid], a=f, u=u)
    Dataset(grid, a=f.half(), u=u).save(tmp_path / "half")
    assert Dataset.open(tmp_path / "half").value("a", 0).dtype == torch.float64
    for name in ("domain", "outputs", "self", "fields"):
        assert Dataset.of(grid, {name: f, "u": u}).inputs == (name,)
    for name in ("", "a/b", "."):
        with pytest.raises(ValueError, match="a field cannot be called"):
            Dataset.of(grid, {name: f, "u": u})
    with pytest.raises(ValueError, match=r"field 'a' of sample 1 has shape \(8,\)"):
        Dataset(grid, a=[f[0], f[1][:8]], u=u)
    with pytest.raises(ValueError, match="no samples"):
        Dataset(grid, a=f, u=u).take(0).save(tmp_path / "never")


def test_point_wise_normaliser(rng):
    """A mean and a std at every point, of the samples alone; where they all agree, nothing is divided by 0."""
    u = torch.rand(6, 25, generator=rng, dtype=torch.float64) + torch.arange(25.0)
    u[:, 0] = 0.0
    data = Dataset(Grid(5), a=u, u=u)
    normal = Normalizer.fit(data, ["u"], pointwise=True)
    assert torch.allclose(normal.mean[:, 0], u.mean(0), rtol=1e-14)
    std = u.std(0, correction=0)
    assert torch.allclose(normal.std[:, 0], std + 1e-3 * std.square().mean().sqrt(), rtol=1e-12)
    points = Grid(5).points
    assert torch.allclose(normal.decode(normal.encode(u[2][:, None], points), points), u[2][:, None], rtol=1e-13)
    assert float(normal.encode(u[2][:1, None], points[:1])) == 0.0
    half = (points[0] + points[1]) / 2
    mean, _ = normal.at(half[None])
    assert torch.allclose(mean[0], (normal.mean[0] + normal.mean[1]) / 2)
    some = points[[3, 17]]
    assert torch.allclose(normal.encode(u[1][[3, 17], None], some), normal.encode(u[1][:, None], points)[[3, 17]])
    with pytest.raises(ValueError, match="differs from point to point; say where the values are"):
        normal.encode(u[2][:, None])
    with pytest.raises(ValueError, match="needs samples on one domain; use a scalar normaliser"):
        Normalizer.fit([data, data], ["u"], pointwise=True)
    with pytest.raises(ValueError, match=r"mean of shape \(3,\), std of \(3,\); needed \(25, fields\) each"):
        Normalizer(torch.zeros(3), torch.ones(3), Grid(5))
    constant = Normalizer.fit(Dataset(Grid(5), a=u, u=0 * u + 3), ["u"], True)
    assert torch.equal(constant.std, torch.ones(25, 1, dtype=torch.float64))


def test_normaliser_of_several_datasets(rng):
    a = torch.rand(4, 81, generator=rng, dtype=torch.float64)
    fine = Dataset(Grid(9), a=a, u=a)
    both = Normalizer.fit([fine, fine.every(2)], ["a"])
    values = torch.cat([a.flatten(), fine.every(2).field("a").flatten()])
    assert float(both.mean) == pytest.approx(float(values.mean()), rel=1e-13)
    assert float(both.std) == pytest.approx(float(values.std(correction=0)), rel=1e-12)


def test_using_some_of_the_fields(rng):
    a, b, u = (torch.rand(2, 9, generator=rng) for _ in range(3))
    data = Dataset(Grid(3), a=a, b=b, u=u)
    some = data.using(["b"])
    assert (some.inputs, some.outputs) == (("b",), ("u",))
    assert torch.equal(some[1].a[:, 0], b[1])
    other = data.using(["u"], ["a"])
    assert torch.equal(other[0].u[:, 0], a[0])
    assert data.identity() != some.identity()
    with pytest.raises(KeyError, match="no field 'c' in this dataset; it has a, b, u"):
        data.using(["c"])
    with pytest.raises(ValueError, match="needed an output, and no field twice"):
        data.using(["a", "u"])
    twice = data.smoothed(0.3).smoothed(0.2, "b")
    assert twice.smoothing == [("a", 0.3), ("b", 0.2)]
    assert twice.given == ("a", "b")
    assert data.smoothing == []


def test_kept_is_the_same_dataset(rng):
    data = make_dataset(Darcy(size=17), 6).smoothed(0.1).every(2).take([4, 1, 2])
    kept = data.kept()
    assert (kept.names, kept.smoothing, kept.given, len(kept)) == (data.names, data.smoothing, data.given, 3)
    assert [kept.number(i) for i in range(3)] == [4, 1, 2]
    for name in data.names:
        assert torch.equal(kept.field(name), data.field(name))
    assert torch.equal(kept.every(2)[1].a, data.every(2)[1].a)
    assert torch.equal(kept.take([2, 0]).field("a_smooth_x"), data.take([2, 0]).field("a_smooth_x"))
    assert kept.identity() == data.kept().identity() != data.take(2).kept().identity()


def test_what_cannot_be_kept():
    values = [torch.ones(9).double(), torch.ones(16).double()]
    with pytest.raises(ValueError, match="a domain per sample; needed samples on one domain"):
        Dataset([Grid(3), Grid(4)], a=values, u=values).kept()
    with pytest.raises(ValueError, match="this dataset has no samples"):
        make_dataset(Darcy(size=9), 2).take(0).kept()
    with pytest.raises(ValueError, match="smooth first, keep afterwards"):
        make_dataset(Darcy(size=9), 2).every(2).kept().smoothed(0.1)


def test_a_kept_dataset_does_not_overwrite_where_it_came_from(tmp_path):
    make_dataset(Darcy(size=9), 2, 0, tmp_path / "a")
    kept = Dataset.open(tmp_path / "a").every(2).kept()
    with pytest.raises(ValueError, match="read from there"):
        kept.save(tmp_path / "a", force=True)
    kept.save(tmp_path / "b")
    assert storage.Manifest.read(tmp_path / "b").origin["name"] == "unnamed"


def test_only_inputs_are_smoothed(grid_dataset):
    """An output that was smoothed into an input would tell the network the solution."""
    with pytest.raises(KeyError, match=r"no input 'u' to smooth in this dataset; it has a"):
        grid_dataset.smoothed(0.1, "u")
