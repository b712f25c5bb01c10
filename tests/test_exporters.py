"""What is saved is read again bit by bit, by our readers and by meshlane."""

import meshlane
import numpy as np
import pytest
import torch

from gkn import Cloud, Grid, Mesh
from gkn.data.readers import read_points, read_sample
from gkn.data.readers.vtu import TYPES
from gkn.data.writers import save

CUBE = [[x, y, z] for z in (0, 1) for x, y in ((0, 0), (1, 0), (1, 1), (0, 1))]
CORNERS = {  # corners of one cell of each shape, and its edges in the order of meshio
    "line": ([[0.0], [1.0]], [(0, 1)]),
    "triangle": ([[0, 0], [1, 0], [0, 1]], [(0, 1), (1, 2), (2, 0)]),
    "quad": ([[0, 0], [1, 0], [1, 1], [0, 1]], [(0, 1), (1, 2), (2, 3), (3, 0)]),
    "tetra": ([[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]], [(0, 1), (1, 2), (2, 0), (0, 3), (1, 3), (2, 3)]),
    "pyramid": (
        [[0, 0, 0], [1, 0, 0], [1, 1, 0], [0, 1, 0], [0.5, 0.5, 1]],
        [(0, 1), (1, 2), (2, 3), (3, 0), (0, 4), (1, 4), (2, 4), (3, 4)],
    ),
    "wedge": (
        [[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 0, 1], [0, 1, 1]],
        [(0, 1), (1, 2), (2, 0), (3, 4), (4, 5), (5, 3), (0, 3), (1, 4), (2, 5)],
    ),
    "hexahedron": (
        CUBE,
        [(0, 1), (1, 2), (2, 3), (3, 0), (4, 5), (5, 6), (6, 7), (7, 4), (0, 4), (1, 5), (2, 6), (3, 7)],
    ),
}
FACES = [(0, 4, 7, 3), (1, 2, 6, 5), (0, 1, 5, 4), (3, 7, 6, 2), (0, 3, 2, 1), (4, 5, 6, 7)]
MIDDLES = {"triangle7": [(0, 1, 2)], "quad9": [(0, 1, 2, 3)], "hexahedron27": [*FACES, tuple(range(8))]}


def one_cell(name):
    """Return a mesh of one cell of a type, at points with no round numbers."""
    shape = name.rstrip("0123456789")
    corners, edges = CORNERS[shape]
    x = torch.tensor(corners, dtype=torch.float64)
    groups = [] if name == shape else [*edges, *MIDDLES.get(name, [])]
    x = torch.cat([x, *(x[list(group)].mean(0)[None] for group in groups)])
    x = x / 3 + torch.arange(1, x.shape[1] + 1) / 7
    return Mesh(x, {name: torch.arange(len(x))[None]})


def mixed():
    x = torch.tensor([[0, 0], [1, 0], [1, 1], [0, 1], [2, 0.1]], dtype=torch.float64) / 3
    return Mesh(x, {"quad": torch.tensor([[0, 1, 2, 3]]), "triangle": torch.tensor([[1, 4, 2]])})


def sphere():
    """A closed surface in space."""
    x = torch.tensor([[1, 0, 0], [0, 1, 0], [0, 0, 1], [-1, -1, -1]], dtype=torch.float64) / 3
    return Mesh(x, torch.tensor([[0, 1, 2], [0, 3, 1], [1, 3, 2], [0, 2, 3]]))


DOMAINS = {name: lambda name=name: one_cell(name) for name in TYPES.values() if name not in ("vertex", "pixel", "voxel")}
DOMAINS |= {
    "mixed": mixed,
    "surface": sphere,
    "grid": lambda: Grid(5),
    "line grid": lambda: Grid(4, 1),
    "cube": lambda: Grid(3, 3),
    "box": lambda: Grid((3, 4), low=(0, 1), high=(0.3, 1.7)),
    "periodic": lambda: Grid((4, 3), periodic=True),
    "centres": lambda: Grid(4, nodes="centres"),
    "triangles": lambda: Mesh.square(0.3),
}


@pytest.mark.parametrize("kind", ["npz", "vtu"])
@pytest.mark.parametrize("name", DOMAINS)
def test_what_is_written_is_read_again(name, kind, tmp_path):
    domain, path, rng = DOMAINS[name](), tmp_path / f"new/x.{kind}", torch.Generator().manual_seed(0)
    K = len(domain)
    fields = {
        "a": torch.rand(K, generator=rng, dtype=torch.float64),
        "u": torch.randn(K, generator=rng),
        "v": torch.randn(K, 3, generator=rng, dtype=torch.float64),
        "stress": torch.randn(K, 9, generator=rng, dtype=torch.float64),
    }
    save(path, domain, fields, parameters={"Re": 0.1})
    sample = read_sample(path)
    assert sample.parameters == {"Re": 0.1}
    assert torch.equal(sample.domain.points, domain.points)
    for field, values in fields.items():
        assert torch.equal(sample.fields[field], values)  # every bit, float32 included
    for (ours, corners), (theirs, found) in zip(domain.cell_blocks(), sample.domain.cell_blocks(), strict=True):
        assert ours == theirs
        assert np.array_equal(corners, found)
    if kind == "npz":
        assert sample.domain.same_as(domain)
    elif name != "triangle7":  # which meshlane does not know
        other = meshlane.read(path)
        assert np.array_equal(other.points[:, : domain.dim], domain.points.numpy())
        assert [block.type for block in other.cells] == [each for each, _ in domain.cell_blocks()]
        for block, (_, corners) in zip(other.cells, domain.cell_blocks(), strict=True):
            assert np.array_equal(block.data, corners)
        assert np.array_equal(other.point_data["v"], fields["v"].numpy())
        assert other.field_data["Re"] == 0.1


def test_vectors_in_the_plane_have_three_components_in_vtk(tmp_path):
    v = torch.rand(9, 2, dtype=torch.float64)
    save(tmp_path / "x.vtu", Grid(3), {"v": v})
    other = meshlane.read(tmp_path / "x.vtu").point_data["v"]
    assert other.shape == (9, 3)
    assert not other[:, 2].any()
    assert torch.equal(read_sample(tmp_path / "x.vtu").fields["v"], v)


def test_cell_data_come_back(tmp_path):
    domain = mixed()
    cells = {
        "k": [np.array([0.1]), np.array([0.3])],
        "id": [np.array([3]), np.array([4])],
        "q": [np.ones((1, 2)), np.ones((1, 2))],
    }
    save(tmp_path / "x.vtu", domain, {"u": torch.zeros(5)}, cells)
    found = read_sample(tmp_path / "x.vtu").cell_data
    assert [each.tolist() for each in found["k"]] == [[0.1], [0.3]]
    assert [each.tolist() for each in found["id"]] == [[3], [4]]
    assert found["id"][0].dtype == np.int64
    with pytest.raises(ValueError, match=r"cell data 'k' for blocks of \[2\] cells; the domain has \[1, 1\]"):
        save(tmp_path / "y.vtu", domain, {"u": torch.zeros(5)}, {"k": [np.ones(2)]})


@pytest.mark.parametrize("dim", [1, 2, 3])
def test_tables(dim, tmp_path):
    x = torch.rand(8, dim, dtype=torch.float64)
    fields = {"u": torch.rand(8, dtype=torch.float64), "v": torch.rand(8, 2, dtype=torch.float64), "a, b": torch.rand(8)}
    save(tmp_path / "x.csv", Cloud(x), fields)
    sample = read_sample(tmp_path / "x.csv")
    assert torch.equal(sample.domain.points, x)
    assert all(torch.equal(sample.fields[name], values.double()) for name, values in fields.items())
    with pytest.raises(ValueError, match="a field cannot be called 'X'"):
        save(tmp_path / "y.csv", Cloud(x), {"X": torch.zeros(8)})
    with pytest.raises(ValueError, match="has type complex64; needed real numbers"):
        save(tmp_path / "y.csv", Cloud(x), {"u": torch.zeros(8, dtype=torch.complex64)})


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
    assert read_sample(tmp_path / "y.vtu").fields["u"].max() == 8000


def test_bad_files(tmp_path):
    with pytest.raises(ValueError, match=r"say what kind of file by its ending: \.csv or \.npz or \.vtu"):
        save(tmp_path / "x.txt", Grid(3), {"u": torch.zeros(9)})
    with pytest.raises(ValueError, match=r"field 'u' of shape \(8,\) on 9 points"):
        save(tmp_path / "x.npz", Grid(3), {"u": torch.zeros(8)})
    with pytest.raises(ValueError, match=r"field 'u' of shape \(9, 3, 3\) on 9 points"):
        save(tmp_path / "x.npz", Grid(3), {"u": torch.zeros(9, 3, 3)})
    with pytest.raises(ValueError, match="not finite everywhere"):
        save(tmp_path / "x.vtu", Grid(3), {"u": torch.full((9,), float("nan"))})
    for name in ("points", "cells", "cells_quad", "grid_low", "a\x01", "", "a/b"):
        with pytest.raises(ValueError, match="a field cannot be called"):
            save(tmp_path / "x.npz", Grid(3), {name: torch.zeros(9)})
    for kind in (torch.complex64, torch.float16):
        with pytest.raises(ValueError, match=r"has type (complex64|float16); needed real numbers of 4 or 8 bytes"):
            save(tmp_path / "x.vtu", Grid(3), {"u": torch.zeros(9, dtype=kind)})
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
