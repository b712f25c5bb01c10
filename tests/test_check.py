import pytest
import torch

from gkn import Darcy, DarcyMesh, Dataset, Grid, Mesh, check_dataset, make_dataset, solve_darcy

RECIPE = {"name": "darcy", "low": 3.0, "high": 12.0, "f": 1.0}


def verdicts(folder, **options):
    return {finding.what: finding.ok for finding in check_dataset(folder, **options)}


@pytest.fixture
def good():
    return make_dataset(Darcy(size=17, modes=16), 20)


def saved(tmp_path, a, u, recipe=RECIPE):
    Dataset(Grid(17), a=a, u=u).save(tmp_path / "d", origin=recipe)
    return tmp_path / "d"


ALL_GOOD = dict.fromkeys(["complete", "hashes", "finite", "range", "boundary", "residual", "distinct"], True)


def test_good_data_pass(good, tmp_path):
    assert verdicts(saved(tmp_path, good.field("a"), good.field("u"))) == ALL_GOOD


def test_float32_data_pass(good, tmp_path):
    assert verdicts(saved(tmp_path, good.field("a").float(), good.field("u").float())) == ALL_GOOD


@pytest.mark.parametrize(
    ("what", "spoil"),
    [
        ("residual", lambda a, u: (a, u.index_copy(0, torch.tensor([7]), u[6:7]))),  # another sample's solution
        ("residual", lambda a, u: (a, u.roll(1, 1).where(~Grid(17).boundary, 0))),
        ("residual", lambda a, u: (a, u * (1 + 1e-6))),
        ("boundary", lambda a, u: (a, u + 1e-9)),
        ("range", lambda a, u: (a * 1.5, u / 1.5)),
        ("range", lambda a, u: (-a, -u)),
        ("finite", lambda a, u: (a, u.index_fill(0, torch.tensor([3]), torch.nan))),
        ("distinct", lambda a, u: (a[[*range(19), 4]], u[[*range(19), 4]])),
    ],
)
def test_bad_data_are_noticed(good, what, spoil, tmp_path):
    assert verdicts(saved(tmp_path, *spoil(good.field("a"), good.field("u"))))[what] is False


def test_the_sample_is_named(good, tmp_path):
    u = good.field("u").clone()
    u[13, 100] *= 2
    u[5, 40] = torch.nan
    a = good.field("a").clone()
    a[19] = a[2]
    texts = {finding.what: finding.text for finding in check_dataset(saved(tmp_path, a, u))}
    assert texts["finite"] == "u of sample 5"
    assert texts["distinct"] == "samples 2 and 19"
    u[5] = good.field("u")[5]
    texts = {finding.what: finding.text for finding in check_dataset(saved(tmp_path / "2", a[:19], u[:19]))}
    assert "(sample 13)" in texts["residual"]


def test_damage_and_unfinished(good, tmp_path):
    folder = saved(tmp_path, good.field("a"), good.field("u"))
    path = folder / "shard-00000.h5"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    findings = {finding.what: finding for finding in check_dataset(folder)}
    assert findings["hashes"].ok is False
    assert "shard-00000.h5" in findings["hashes"].text


def test_imported_data(good, tmp_path):
    folder = saved(tmp_path, good.field("a"), good.field("u"), {"name": "import"})
    assert verdicts(folder)["residual"] is None
    assert verdicts(folder, pde="darcy") == ALL_GOOD
    f = torch.rand(2, 17**2, dtype=torch.float64)
    Dataset(Grid(17), f=f, u=solve_darcy(Grid(17), 1.0, f)).save(tmp_path / "p", origin={"name": "import"})
    assert verdicts(tmp_path / "p", pde="poisson")["residual"] is True
    assert "range" not in verdicts(tmp_path / "p")


def test_the_same_coefficient_on_another_mesh_is_another_sample(tmp_path):
    one = Mesh.square(0.3)
    meshes = [Mesh(one.points * size, one.cells) for size in (1.0, 2.0)]
    ones = torch.ones(len(meshes[0]), dtype=torch.float64)
    Dataset(meshes, a=[ones, ones], u=[ones, ones]).save(tmp_path / "d")
    assert verdicts(tmp_path / "d")["distinct"] is True
    Dataset([meshes[0]] * 2, a=[ones, ones], u=[ones, ones]).save(tmp_path / "e")
    assert verdicts(tmp_path / "e")["distinct"] is False


def test_as_many_points_as_cells(tmp_path):
    """In a dataset the values of a are those of the points, even if there are as many cells."""
    dataset = make_dataset(DarcyMesh(size=4, shape="l-shape", modes=8), 2, 0, tmp_path / "d")
    assert len(dataset.domain) == len(dataset.domain.cells)
    assert verdicts(tmp_path / "d") == ALL_GOOD


def test_a_device_that_is_not_there(good, tmp_path, monkeypatch):
    folder = saved(tmp_path, good.field("a"), good.field("u"))
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(ValueError, match="no usable CUDA device"):
        check_dataset(folder, device="cuda")


def test_a_recipe_with_words_for_numbers(good, tmp_path):
    folder = saved(tmp_path, good.field("a"), good.field("u"), {**RECIPE, "low": "three"})
    with pytest.raises(ValueError, match="low = 'three', which is no number"):
        check_dataset(folder)
