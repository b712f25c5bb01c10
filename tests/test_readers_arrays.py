"""Plain arrays in .npz, .h5 and .mat files, tables in .csv files, and the files of other projects."""

import h5py
import numpy as np
import pytest
import scipy.io
import torch

from gkn import Grid
from gkn.data.readers import ReadOptions, UnreadableFile, import_files, read_file

K, N = 20, 3
X = np.random.default_rng(0).random((K, 2))


def read(path, **options):
    return read_file(path, ReadOptions(**options))


def saved(path, **arrays):
    np.savez(path, **arrays)
    return path


def shapes(content):
    return {name: tuple(rows.shape) for name, rows in content.fields.items()}


def test_fields_and_parameters_by_their_shapes(tmp_path):
    rng = np.random.default_rng(0)
    many = {"s": rng.random((N, K)), "v": rng.random((N, K, 2)), "t": rng.random((N, K, 3, 3)), "one": rng.random((N, K, 1))}
    content = read(saved(tmp_path / "x.npz", points=X, Re=np.arange(3.0), column=np.ones((N, 1)), all=np.array(7), **many))
    assert shapes(content) == {"s": (N, K), "v": (N, K, 2), "t": (N, K, 9), "one": (N, K)}
    assert {name: rows.tolist() for name, rows in content.parameters.items()} == {
        "Re": [0, 1, 2],
        "column": [1, 1, 1],
        "all": [7, 7, 7],
    }
    single = {"s": rng.random(K), "v": rng.random((K, 2)), "t": rng.random((K, 3, 3)), "row": rng.random((1, K))}
    content = read(saved(tmp_path / "y.npz", points=X, Re=np.array([5.0]), **single))
    assert shapes(content) == {"s": (1, K), "v": (1, K, 2), "t": (1, K, 9), "row": (1, K)}
    assert content.parameters["Re"].tolist() == [5]


def test_points_per_sample(tmp_path):
    points = np.random.default_rng(0).random((N, K, 2))
    content = read(saved(tmp_path / "x.npz", points=points, u=points[..., 0], v=points))
    assert len(content) == N
    assert [np.array_equal(domain.points.numpy(), x) for domain, x in zip(content.domain, points, strict=True)] == [True] * N
    assert np.array_equal(content.fields["v"][1].numpy(), points[1])
    square = np.array([[0, 0], [1, 0], [1, 1], [0, 1.0]])
    moved = np.stack([square, 2 * square])
    content = read(saved(tmp_path / "m.npz", points=moved, cells=np.array([[0, 1, 2, 3]]), u=moved[..., 0]))
    assert [domain.measure for domain in content.domain] == pytest.approx([1, 4])


def test_interval_and_surface(tmp_path):
    line = np.linspace(0, 2, 6) ** 2
    content = read(saved(tmp_path / "x.npz", points=line, cells=np.stack([np.arange(5), np.arange(1, 6)], 1), u=line))
    assert (content.domain.dim, content.domain.measure) == (1, pytest.approx(4))
    flat = np.concatenate([X, np.full((K, 1), 3.0)], 1)
    import scipy.spatial

    cells = scipy.spatial.Delaunay(X).simplices
    v = np.concatenate([X, np.zeros((K, 1))], 1)
    content = read(saved(tmp_path / "y.npz", points=flat, cells=cells, v=v))
    assert content.domain.dim == 2
    assert shapes(content) == {"v": (1, K, 2)}
    assert "z = 3" in content.notes[0]


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        (
            {"u": np.ones((N, K + 1))},
            r"field u of shape \(3, 21\) for 20 points; needed \(20,\), \(n, 20\), \(20, c\) or \(n, 20, c\)",
        ),
        ({"u": np.ones((N, K)), "w": np.ones(K)}, "the fields have different numbers of samples: {'u': 3, 'w': 1}"),
        (
            {"u": np.ones((N, K)), "Re": np.ones(4)},
            r"Re of shape \(4,\) for 20 points and 3 samples; needed \(n, 20\) for a field",
        ),
        ({"u": np.ones((K, K)), "Re": np.ones(K)}, r"Re of shape \(20,\) may be a field or 20 parameters: write it as"),
        ({"u": np.ones((K, K, 2))}, "may be 20 samples or 20 components: write it as"),
        ({"u": np.array(["a"] * K)}, "u holds <U1, not real numbers"),
        (
            {"u": np.ones(K), "cells": np.ones((2, 5), dtype=int)},
            r"cells of shape \(2, 5\) on points in 2 dimensions .* cells_pyramid",
        ),
        ({"u": np.ones(K), "cells": np.ones((2, 3))}, "cells of type triangle with float64 of shape"),
        ({"u": np.ones(K), "weights": np.ones(3)}, r"weights of shape \(3,\) for 20 points"),
    ],
)
def test_wrong_arrays(arrays, said, tmp_path):
    with pytest.raises(UnreadableFile, match=rf"x\.npz: .*{said}"):
        read(saved(tmp_path / "x.npz", points=X, **arrays))


def test_few_points_and_as_many_samples(tmp_path):
    with pytest.raises(UnreadableFile, match=r"field u of shape \(4, 4\) for 4 points may be 4 samples or 4 components"):
        read(saved(tmp_path / "x.npz", points=X[:4], u=np.ones((4, 4))))


@pytest.mark.parametrize("shape", [(9,), (4, 5), (3, 4, 5)], ids=str)
def test_arrays_without_points_are_grids(shape, tmp_path):
    a = np.random.default_rng(0).random((N, *shape))
    path = saved(tmp_path / "x.npz", a=a, Re=np.arange(3.0))
    content = read(path)
    assert content.domain == Grid(shape)
    assert np.array_equal(content.fields["a"].numpy(), a.reshape(N, -1))
    assert content.parameters["Re"].tolist() == [0, 1, 2]
    low, high = (0.0,) * len(shape), (2.0,) * len(shape)
    boxed = read(path, nodes="centres", box=(low, high))
    assert boxed.domain == Grid(shape, low=low, high=high, nodes="centres")
    assert read(path, periodic=True).domain == Grid(shape, periodic=True)
    with pytest.raises(UnreadableFile, match="in a box with corners"):
        read(path, box=((0.0,) * 4, (1.0,) * 4))


def test_arrays_without_points_that_are_no_grids(tmp_path):
    with pytest.raises(UnreadableFile, match=r"fields of shapes .*; needed \(n, s\), \(n, s, s\) or"):
        read(saved(tmp_path / "x.npz", a=np.ones((2, 4)), u=np.ones((2, 5))))
    with pytest.raises(UnreadableFile, match="no array 'points'; it has cells, u"):
        read(saved(tmp_path / "y.npz", cells=np.ones((2, 4)), u=np.ones((2, 4))))


# --- .csv --------------------------------------------------------------------------------------------------------------


def test_csv(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text(
        'x, y ,"u",v_x,v_y,w_x,name\n' + "".join(f"{a},{b},{a + b},{a},{b},{a},n{i}\n" for i, (a, b) in enumerate(X))
    )
    content = read(path)
    assert shapes(content) == {"u": (1, K), "v": (1, K, 2), "w_x": (1, K)}
    assert np.array_equal(content.domain.points.numpy(), X)
    assert np.array_equal(content.fields["v"][0].numpy(), X)
    assert "columns left out, because they hold words: name" in content.notes
    path.write_text("\ufeffPoints:0;Points:1;Points:2;v:0;v:1;v:2\n" + "".join(f"{a};{b};0;{a};{b};0\n" for a, b in X))
    content = read(path)
    assert content.domain.dim == 2
    assert shapes(content) == {"v": (1, K, 2)}
    path.write_text("x,u\n0,1\n1,2\n")
    assert read(path).domain == Grid(2, 1)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "needed a line of names and at least one line of values"),
        ("x,u\n", "needed a line of names"),
        ("a,u\n1,2\n", "columns a, u; needed coordinates called x, or x and y"),
        ("x,z,u\n1,2,3\n", "columns x, z, u; needed coordinates"),
        ("x,u,u\n1,2,3\n", "two columns are called 'u'"),
        ("x,u\n1,2\n3\n", "row 3 has 1 values for 2 columns"),
        ("x,u\n1,2\n3,four\n", "'four' in column u, row 3, is not a number"),
        ("x,u\n1,2\n,3\n", r"point 1 is \[nan\]; coordinates must be finite"),
    ],
)
def test_wrong_tables(text, said, tmp_path):
    (tmp_path / "x.csv").write_text(text)
    with pytest.raises(UnreadableFile, match=rf"x\.csv: {said}"):
        read(tmp_path / "x.csv")


def test_tables_that_are_no_text(tmp_path):
    (tmp_path / "x.csv").write_bytes(b"x,u\n\xff\xfe,1\n")
    with pytest.raises(UnreadableFile, match=r"x\.csv: cannot be read: UnicodeDecodeError"):
        read(tmp_path / "x.csv")


# --- .mat and .pt ------------------------------------------------------------------------------------------------------


def green(path, **more):
    """Write a file as greenlearning does: a column is a function."""
    rng = np.random.default_rng(0)
    arrays = {"X": np.linspace(0, 1, 10)[:, None], "Y": np.linspace(0, 1, 19)[:, None], "XG": np.ones((5, 1))}
    arrays |= {"F": rng.random((19, 4)), "U": rng.random((10, 4)), "U_hom": np.ones((10, 1)), "ExactGreen": "x*y"}
    arrays |= more
    scipy.io.savemat(path, arrays)
    return arrays


def test_greenlearning(tmp_path):
    arrays = green(tmp_path / "x.mat")
    content = read(tmp_path / "x.mat")
    assert shapes(content) == {"u": (4, 10), "u_hom": (4, 10)}
    assert np.array_equal(content.fields["u"].numpy(), arrays["U"].T)
    assert np.array_equal(content.input_fields["f"].numpy(), arrays["F"].T)
    assert (len(content.domain), len(content.input_domain)) == (10, 19)
    assert content.inputs == ("f",)
    assert "arrays left out: XG" in content.notes
    green(tmp_path / "y.mat", F=np.ones((19, 5)))
    with pytest.raises(UnreadableFile, match=r"y\.mat: X \(10, 1\), .*; needed X \(K, d\), U \(K, n\)"):
        read(tmp_path / "y.mat")


def test_plain_mat(tmp_path):
    scipy.io.savemat(tmp_path / "x.mat", {"points": X, "u": X[:, 0], "v": X, "Re": 5.0, "words": "text"})
    content = read(tmp_path / "x.mat")
    assert shapes(content) == {"u": (1, K), "v": (1, K, 2)}
    assert content.parameters["Re"].tolist() == [5]
    assert "left out, because they are no arrays of numbers: words" in content.notes
    with h5py.File(tmp_path / "y.mat", "w") as file:
        file["points"], file["u"], file["Re"] = X.T, X[:, :1].T, np.array([[5.0]])
        file["#refs#"] = np.ones(3)
    content = read(tmp_path / "y.mat")
    assert shapes(content) == {"u": (1, K)}
    scipy.io.savemat(tmp_path / "z.mat", {"words": "text"})
    with pytest.raises(UnreadableFile, match="no arrays of numbers in it"):
        read(tmp_path / "z.mat")


def test_burgers(tmp_path):
    states = torch.rand(5, 3, 8, dtype=torch.float64)
    first = states[:, 0]
    torch.save({"input": first, "output": states, "visc": torch.full((1, 1), 0.01)}, tmp_path / "x.pt")
    content = read(tmp_path / "x.pt")
    assert content.domain == Grid(8, 1, periodic=True, nodes="left")
    assert torch.equal(content.fields["u"], states.flatten(0, 1))
    assert content.series == tuple(i for i in range(5) for _ in range(3))
    assert content.parameters["visc"].tolist() == pytest.approx([0.01] * 15)
    assert content.parameters["time"][:6].tolist() == [0, 0.5, 1, 0, 0.5, 1]
    assert content.notes == ("the 3 times of each trajectory are taken as 0 to 1; the file does not have them",)
    data = import_files(tmp_path / "x.pt", inputs=["visc"])
    assert torch.equal(data.field("u"), states)
    assert torch.equal(data.between(0, -1)[4].u[:, 0], states[4, -1])
    torch.save({"input": first + 1, "output": states}, tmp_path / "x.pt")
    with pytest.raises(UnreadableFile, match="needed the input as the first of at least two"):
        read(tmp_path / "x.pt")
    torch.save({"input": first, "output": first}, tmp_path / "y.pt")
    with pytest.raises(UnreadableFile, match=r"input \(5, 8\) and output \(5, 8\); needed \(n, s\) and \(n, times, s\)"):
        read(tmp_path / "y.pt")
    torch.save({"a": first}, tmp_path / "z.pt")
    with pytest.raises(UnreadableFile, match='needed a dictionary with tensors "x" and "y", or "input" and "output"'):
        read(tmp_path / "z.pt")
