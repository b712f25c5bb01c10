import numpy as np
import pytest
import torch

from gkn import Cloud, Grid, Mesh
from gkn.data.readers import read_points, read_sample
from gkn.data.writers import save


@pytest.mark.parametrize("kind", ["npz", "vtu"])
@pytest.mark.parametrize("domain", [Grid(5), Mesh.square(0.3), Grid(4, 1)], ids=["grid", "mesh", "line"])
def test_what_is_written_is_read_again(domain, kind, tmp_path):
    path, rng = tmp_path / f"new/x.{kind}", torch.Generator().manual_seed(0)
    fields = {"a": torch.rand(len(domain), generator=rng, dtype=torch.float64), "u": torch.randn(len(domain), generator=rng)}
    save(path, domain, fields)
    if domain.dim == 1 and kind == "vtu":
        assert 'NumberOfCells="3"' in path.read_text()
        return
    found, values = read_sample(path)
    assert torch.equal(found.points, domain.points)
    assert torch.equal(values["a"], fields["a"])  # every digit
    assert torch.allclose(values["u"].double(), fields["u"].double(), atol=0)
    if isinstance(domain, Mesh):
        assert torch.equal(found.cells, domain.cells)


def test_points_alone(tmp_path):
    cloud = Cloud(torch.rand(6, 2, dtype=torch.float64), torch.rand(6, dtype=torch.float64), torch.arange(6) > 3)
    save(tmp_path / "x.vtu", cloud, {"u & <v>": torch.arange(6)})
    text = (tmp_path / "x.vtu").read_text()
    assert 'NumberOfPoints="6" NumberOfCells="6"' in text
    assert "u &amp; &lt;v>" in text
    save(tmp_path / "x.npz", cloud, {"file": torch.arange(6.0), "allow_pickle": torch.arange(6)})  # flags of numpy's savez
    with np.load(tmp_path / "x.npz") as file:
        assert {*file.files} == {"points", "weights", "boundary", "file", "allow_pickle"}
    found, values = read_sample(tmp_path / "x.npz")
    assert all(torch.equal(getattr(found, name), getattr(cloud, name)) for name in ("points", "weights", "boundary"))
    assert torch.equal(values["file"], torch.arange(6.0))
    save(tmp_path / "y.vtu", Grid(3), {"u": torch.arange(9).to(torch.uint16) * 1000})
    assert read_sample(tmp_path / "y.vtu")[1]["u"].max() == 8000


def test_bad_files(tmp_path):
    with pytest.raises(ValueError, match=r"say what kind of file by its ending: \.npz or \.vtu"):
        save(tmp_path / "x.txt", Grid(3), {"u": torch.zeros(9)})
    with pytest.raises(ValueError, match=r"field 'u' of shape \(8,\) on 9 points"):
        save(tmp_path / "x.npz", Grid(3), {"u": torch.zeros(8)})
    with pytest.raises(ValueError, match="not finite everywhere"):
        save(tmp_path / "x.vtu", Grid(3), {"u": torch.full((9,), float("nan"))})
    for name in ("points", "cells", "a\x01", "", "a/b"):
        with pytest.raises(ValueError, match="a field cannot be called"):
            save(tmp_path / "x.npz", Grid(3), {name: torch.zeros(9)})
    with pytest.raises(ValueError, match="has type complex64; needed real numbers"):
        save(tmp_path / "x.vtu", Grid(3), {"u": torch.zeros(9, dtype=torch.complex64)})
    assert not [*tmp_path.iterdir()]
    save(tmp_path / "x.npz", Grid(3), {"u": torch.zeros(9)})
    with pytest.raises(ValueError, match="no sample 1 in it, it has 1"):
        read_sample(tmp_path / "x.npz", 1)
    save(tmp_path / "bad.npz", Grid(3), {"u": torch.full((9,), float("nan"))})
    with pytest.raises(ValueError, match="field u of sample 0 is not finite everywhere"):
        read_sample(tmp_path / "bad.npz")


def test_points_from_files(tmp_path):
    np.save(tmp_path / "p.npy", np.array([[0, 1], [1, 0]]))
    assert torch.equal(read_points(tmp_path / "p.npy"), torch.tensor([[0.0, 1.0], [1.0, 0.0]], dtype=torch.float64))
    np.save(tmp_path / "o.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    np.save(tmp_path / "v.npy", np.zeros(3))
    (tmp_path / "t.npy").write_bytes(b"not an array")
    huge = np.lib.format.header_data_from_array_1_0(np.zeros((1, 2))) | {"shape": (10**12, 2)}
    with open(tmp_path / "h.npy", "wb") as file:
        np.lib.format.write_array_header_1_0(file, huge)
    for name, said in (
        ("o", "cannot be read"),
        ("v", r"shape \(3,\)"),
        ("t", "cannot be read"),
        ("h", "claims"),
        ("no", "no such file"),
    ):
        with pytest.raises((ValueError, FileNotFoundError), match=said):
            read_points(tmp_path / f"{name}.npy")
