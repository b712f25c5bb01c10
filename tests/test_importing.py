"""From files to a dataset: which files, which fields, which parameters, and what is said about them."""

import numpy as np
import pytest
import scipy.io
import torch

from gkn import Dataset, Grid, import_files
from gkn.data.readers import ReadOptions, UnreadableFile, describe, read_files, read_sample, to_dataset
from gkn.data.writers import save

X = np.random.default_rng(0).random((20, 2))


def run(path, i=0, points=X, **more):
    np.savez(path, points=points, u=X[:, 0] + i, k=X[:, 1] * i, **more)


@pytest.fixture
def runs(tmp_path):
    for i in (1, 2, 10):
        run(tmp_path / f"run{i}.npz", i, v=X + i, p=np.float64(i))
    return tmp_path


def lines_of(*arguments, **options):
    lines = []
    return import_files(*arguments, report=lines.append, **options), lines


def test_only_named_inputs_are_used(runs):
    dataset, lines = lines_of(runs, inputs=["k"])
    assert dataset.inputs == ("k",)
    assert "note: not used: v, p (name them with --input)" in lines
    assert dataset.field("u")[:, 0].tolist() == pytest.approx([X[0, 0] + i for i in (1, 2, 10)])  # run2 before run10
    dataset = import_files(runs / "run*.npz", inputs=["v_y", "p"], outputs=["v_x"])
    assert dataset.inputs == ("v_y", "p")
    assert torch.allclose(dataset.field("v_x")[0], torch.from_numpy(X[:, 0] + 1))
    assert dataset[2].a[:, 1].tolist() == [10] * 20


def test_samples_keep_the_names_of_their_files(runs, tmp_path):
    (runs / "more").mkdir()
    run(runs / "more/run2.npz", 5, v=X, p=np.float64(2))
    data = import_files([runs, runs / "more"], inputs=["k"])
    labels = ["0 (run1.npz)", "1 (run2.npz)", "2 (run10.npz)", "3 (more/run2.npz)"]
    assert [data.label(i) for i in range(4)] == labels
    data.save(tmp_path / "data")
    again = Dataset.open(tmp_path / "data").take([3, 1])
    assert [again.label(i) for i in range(2)] == [labels[3], labels[1]]
    assert again.kept().take([1]).label(0) == labels[1]
    again.save(tmp_path / "part")
    assert Dataset.open(tmp_path / "part").label(0) == "0 (more/run2.npz)"
    assert import_files(runs / "run1.npz").label(0) == "0"
    points = np.where(np.arange(20) == 4, np.nan, 1.0)
    np.savez(runs / "more/bad.npz", points=X, u=points, k=points)
    with pytest.raises(UnreadableFile, match=r"bad\.npz"):
        import_files([runs, runs / "more"])


def test_vectors_in_space_have_three_components(tmp_path):
    """A component that is missing is not 0. In the plane, 0 was dropped."""
    tetra = np.array([[0.0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]])
    np.savez(tmp_path / "a.npz", points=tetra, cells_tetra=[[0, 1, 2, 3]], u=tetra)
    np.savez(tmp_path / "b.npz", points=tetra, cells_tetra=[[0, 1, 2, 3]], u=tetra[:, :2])
    with pytest.raises(UnreadableFile, match=r"b\.npz: field u has 2 components; .*a\.npz has 3"):
        import_files(tmp_path)
    np.savez(tmp_path / "b.npz", points=tetra, cells_triangle=[[0, 1, 2], [0, 1, 3]], u=tetra)
    with pytest.raises(UnreadableFile, match=r"b\.npz: cells of dimension 2; .*a\.npz has cells of dimension 3"):
        import_files(tmp_path)


def test_folders_below_are_named(runs):
    (runs / "cases/a").mkdir(parents=True)
    run(runs / "cases/a/run7.npz", 7)
    with pytest.raises(FileNotFoundError, match=r"those of its folders are \".*cases/\*\*/\*\.npz\""):
        import_files(runs / "cases")
    assert len(import_files(f"{runs}/cases/**/*.npz")) == 1


def test_vectors_are_groups(runs):
    dataset = import_files(runs, inputs=["v"])
    assert dataset.inputs == ("v_x", "v_y")
    assert torch.equal(dataset[1].a, torch.from_numpy(X + 2))


def test_report(runs):
    run(runs / "run3.npz", 3, p=np.float64(3), v=X, extra=X[:, 0])
    (runs / "notes.txt").write_text("not a file of functions")
    lines = describe(read_files(runs))
    assert lines[0] == "samples: 4"
    assert lines[1] == "points: 20 in 2 dimensions, one domain for all (cloud)"
    assert lines[2].startswith("bounding box: x 0.0")
    assert "parameter p: 1 to 10" in lines
    assert any(line.startswith("field v: 2 components, ") for line in lines)
    assert lines[-1] == "note: left out, because some files lack them: extra"


def test_report_of_meshes(tmp_path):
    for i, size in enumerate((3, 4)):
        points = Grid(size).points.numpy()
        cells = Grid(size).cell_blocks()[0][1]
        np.savez(tmp_path / f"{i}.npz", points=points, cells=cells, u=points[:, 0])
    lines = describe(read_files(tmp_path))
    assert "points: 9 to 16 in 2 dimensions, a domain per sample (mesh)" in lines
    assert "cells: 13 quad" in lines


def test_folders_and_patterns(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no file to read in this folder; needed \.cgns"):
        import_files(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"\*\.vtu: no such files"):
        import_files(str(tmp_path / "*.vtu"))
    run(tmp_path / "a[1].npz")
    assert len(read_files(tmp_path / "a[1].npz")) == 1  # a file whose name looks like a pattern
    (tmp_path / "x.pvd").write_text("")
    with pytest.raises(ValueError, match=r"has x\.pvd and the files it lists"):
        read_files(tmp_path)


def test_kinds_may_be_mixed(tmp_path):
    run(tmp_path / "1.npz", 1)
    table = "x,y,u,k\n" + "".join(f"{x!r},{y!r},{x + 2!r},{y * 2!r}\n" for x, y in X.tolist())
    (tmp_path / "2.csv").write_text(table)
    dataset = import_files(tmp_path, inputs=["k"])
    assert len(dataset) == 2
    assert dataset.one_domain
    assert torch.allclose(dataset.field("k")[1], torch.from_numpy(2 * X[:, 1]))


# --- what does not fit -------------------------------------------------------------------------------------------------


def test_missing_fields_name_their_file(tmp_path):
    run(tmp_path / "1.npz", v=X, Re=np.array(1.0))
    np.savez(tmp_path / "2.npz", points=X, u=X[:, 0], v_x=X[:, 0])
    for name in ("k", "v", "Re"):
        with pytest.raises(UnreadableFile, match=rf"2\.npz: no field or parameter '{name}', which other files have"):
            import_files(tmp_path, inputs=[name])
    with pytest.raises(ValueError, match="no field 'q' to be the input; it has u: name one with inputs or --input"):
        import_files(tmp_path, inputs=["q"])
    with pytest.raises(UnreadableFile, match=r"2\.npz: of the vector 'v' there is v_x only"):
        import_files(tmp_path / "2.npz", inputs=["v"])


def test_not_finite_names_file_field_and_point(tmp_path):
    run(tmp_path / "1.npz")
    bad = X.copy()
    bad[7, 1] = np.nan
    np.savez(tmp_path / "2.npz", points=X, u=X[:, 0], k=bad[:, 1], v=bad)
    assert import_files(tmp_path).inputs == ()  # only fields that are used must be finite
    with pytest.raises(UnreadableFile, match=r"2\.npz: field k is not finite everywhere: nan at point 7"):
        import_files(tmp_path, inputs=["k"])
    with pytest.raises(UnreadableFile, match=r"2\.npz: field v of sample 0 is not finite everywhere: \[.*nan\] at point 7"):
        read_sample(tmp_path / "2.npz", needed=["v"])
    assert read_sample(tmp_path / "2.npz", needed=["u"]).fields["k"].isnan().any()


def test_files_that_do_not_go_together(tmp_path):
    run(tmp_path / "1.npz", v=X)
    np.savez(tmp_path / "2.npz", points=np.random.default_rng(1).random((20, 3)), u=X[:, 0], k=X[:, 1])
    with pytest.raises(UnreadableFile, match=r"2\.npz: points in 3 dimensions; .*1\.npz has 2"):
        read_files(tmp_path)
    run(tmp_path / "2.npz", v=np.ones((20, 4)))
    with pytest.raises(UnreadableFile, match=r"2\.npz: field v has 4 components; .*1\.npz has 2"):
        read_files(tmp_path)
    run(tmp_path / "2.npz", v=np.ones((20, 3)))
    with pytest.raises(UnreadableFile, match=r"2\.npz: field v has 3 components; .*1\.npz has 2"):
        read_files(tmp_path)  # the first file never had a third component that was 0
    np.savez(tmp_path / "1.npz", u=np.ones((2, 4, 4)))
    np.savez(tmp_path / "2.npz", u=np.ones((2, 5, 5)))
    with pytest.raises(UnreadableFile, match=r"2\.npz: a grid of 5 x 5; .*1\.npz has a grid of 4 x 4: grids that differ"):
        read_files(tmp_path)


def test_wrong_choices(runs):
    with pytest.raises(ValueError, match="'u' is named both as an input and as an output"):
        import_files(runs, inputs=["u"])
    with pytest.raises(ValueError, match="'p' is a number per sample; an output must be a field"):
        import_files(runs, outputs=["p"], inputs=["k"])
    with pytest.raises(TypeError, match="needed lists of names"):
        import_files(runs, outputs="u")


# --- tables of parameters ----------------------------------------------------------------------------------------------


def test_parameters_by_name(runs):
    table = runs / "params.csv"
    table.write_text("File,Re,label\nrun10.npz,10,c\nrun1,1,a\nrun2.npz,2,b\n")
    dataset = import_files(runs, parameters=table)
    assert dataset.inputs == ("Re",)
    assert [float(sample.a[0, 0]) for sample in dataset] == [1, 2, 10]
    assert import_files(runs, inputs=["k"], parameters=table).inputs == ("k", "Re")
    table.write_text("sample,p\nrun1,5\nrun2,6\nrun10,7\n")
    content = read_files(runs, None, table)
    assert content.parameters["p"].tolist() == [5, 6, 7]
    assert f"parameters of the files replaced by those of {table}: p" in content.notes


def test_names_that_are_numbers(tmp_path):
    for i in (1, 2):
        run(tmp_path / f"00{i}.npz", i)
    (tmp_path / "params.csv").write_text("name,Re\n002,20\n001,10\n")
    assert read_files(tmp_path, None, tmp_path / "params.csv").parameters["Re"].tolist() == [10, 20]


def test_a_table_among_the_files(runs):
    (runs / "params.csv").write_text("file,Re\nrun1,1\n")
    content = read_files(runs)
    assert "not read: params.csv; a table of numbers per file is given with --parameters" in content.notes
    assert len(content) == len(read_files(runs / "run*.npz"))
    with pytest.raises(UnreadableFile, match=r"params\.csv: columns Re, file; needed .* is given with --parameters"):
        read_files(runs / "params.csv")


def test_parameters_by_order(runs):
    table = runs / "params.csv"
    table.write_text("Re,Ma\n1,0.1\n2,0.2\n3,0.3\n")
    dataset = import_files(runs / "run*.npz", parameters=table)
    assert dataset.inputs == ("Re", "Ma")
    assert [float(sample.a[0, 1]) for sample in dataset] == [0.1, 0.2, 0.3]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Re\n1\n2\n", "2 lines for 3 samples; needed one line each, or a column called file"),
        ("file,Re\nrun1,1\nrun2,2\n", r"no line for .*run10\.npz"),
        ("file,Re\nrun1,1\nrun1,2\n", "'run1' has two lines"),
        ("file,Re\nrun1,1\nrun2,\nrun10,3\n", r"no number in column Re for .*run2\.npz"),
        ("file,label\nrun1,a\nrun2,b\nrun10,c\n", "no column of numbers in it"),
        ("file,k\nrun1,1\nrun2,2\nrun10,3\n", "the column k has the name of a field; rename it"),
    ],
)
def test_wrong_tables_of_parameters(text, said, runs):
    (runs / "params.csv").write_text(text)
    with pytest.raises(UnreadableFile, match=rf"params\.csv: {said}"):
        read_files(runs, None, runs / "params.csv")


def test_missing_table(runs):
    with pytest.raises(FileNotFoundError, match=r"no\.csv: no such file"):
        read_files(runs, ReadOptions(), runs / "no.csv")


# --- inputs on other points, and one sample ----------------------------------------------------------------------------


def test_inputs_on_other_points_are_interpolated(tmp_path):
    y = np.linspace(0, 1, 19)[:, None]
    arrays = {"X": np.linspace(0, 1, 10)[:, None] ** 2, "Y": y, "F": np.concatenate([y, 1 - y], 1), "U": np.ones((10, 2))}
    scipy.io.savemat(tmp_path / "x.mat", arrays)
    dataset, lines = lines_of(tmp_path / "x.mat")
    assert dataset.inputs == ("f",)
    assert torch.allclose(dataset.field("f")[0], dataset.domain.points[:, 0])
    assert "note: f is given on 19 other points: interpolated to the 10 points of the outputs" in lines
    sample = read_sample(tmp_path / "x.mat", 1)
    assert torch.allclose(sample.fields["f"], 1 - sample.domain.points[:, 0])


def test_one_sample(tmp_path):
    points = np.array([[0, 0], [1, 0], [1, 1], [0, 1.0]])
    np.savez(tmp_path / "x.npz", points=points, cells=np.array([[0, 1, 2, 3]]), u=points[:, 0], v=points, Re=np.array(3.0))
    first = read_sample(tmp_path / "x.npz")
    save(tmp_path / "x.vtu", first.domain, first.fields, {"k": [np.array([5.0])]}, first.parameters)
    sample = read_sample(tmp_path / "x.vtu")
    assert sample.parameters == {"Re": 3.0}
    assert sample.cell_data["k"][0].tolist() == [5]
    assert sample.fields["v"].shape == (4, 2)
    assert sample.fields["k"].tolist() == [5] * 4
    domain, fields = sample
    assert (domain, fields) == (sample.domain, sample.fields)


def test_content_chosen_later(runs):
    content = read_files([runs / "run1.npz", runs / "run2.npz"])
    assert to_dataset(content, ["u"], ["k"]).names == ("k", "u")
    assert content.sources == (str(runs / "run1.npz"), str(runs / "run2.npz"))
