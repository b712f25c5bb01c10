"""Each format on files written here; then damaged and hostile ones."""

import base64
import io
import os
import pickle
import re
import zipfile
import zlib

import h5py
import meshlane
import numpy as np
import pytest
import scipy.io
import torch

from gkn import Cloud, Dataset, Grid, Mesh, import_files
from gkn.data.readers import UnreadableFile

N, S = 3, 7


@pytest.fixture
def arrays():
    generator = np.random.default_rng(0)
    return {name: generator.random((N, S, S)) for name in ("coeff", "Kcoeff", "Kcoeff_x", "Kcoeff_y", "sol")}


def check_mat(dataset, arrays):
    assert dataset.domain == Grid(S)
    assert dataset.inputs == ("a", "a_smooth", "a_smooth_x", "a_smooth_y")
    for theirs, ours in {
        "coeff": "a",
        "Kcoeff": "a_smooth",
        "Kcoeff_x": "a_smooth_x",
        "Kcoeff_y": "a_smooth_y",
        "sol": "u",
    }.items():
        assert np.array_equal(dataset.field(ours).numpy(), arrays[theirs].reshape(N, -1))


@pytest.mark.parametrize("compressed", [False, True])
def test_mat_v5(arrays, compressed, tmp_path):
    scipy.io.savemat(tmp_path / "x.mat", arrays, do_compression=compressed)
    check_mat(import_files([tmp_path / "x.mat"]), arrays)


def write_mat_73(path, arrays):
    """Write a file like MATLAB: HDF5 behind 512 bytes, axes reversed."""
    with h5py.File(path, "w", userblock_size=512) as file:
        for name, array in arrays.items():
            file[name] = array.transpose(2, 1, 0)
    with open(path, "r+b") as file:
        file.write(b"MATLAB 7.3 MAT-file".ljust(512, b" "))


def test_mat_v73(arrays, tmp_path):
    write_mat_73(tmp_path / "x.mat", arrays)
    check_mat(import_files([tmp_path / "x.mat"]), arrays)


def test_several_files_are_one_dataset(arrays, tmp_path):
    scipy.io.savemat(tmp_path / "1.mat", arrays)
    write_mat_73(tmp_path / "2.mat", arrays)
    dataset = import_files([tmp_path / "1.mat", tmp_path / "2.mat"])
    assert len(dataset) == 2 * N
    assert torch.equal(dataset.field("u")[N:], dataset.field("u")[:N])


def test_mat_without_smoothed_features_and_without_sol(arrays, tmp_path):
    scipy.io.savemat(tmp_path / "x.mat", {"coeff": arrays["coeff"], "sol": arrays["sol"].astype(np.float32), "other": "text"})
    dataset = import_files([tmp_path / "x.mat"])
    assert dataset.inputs == ("a",)
    assert dataset.field("u").dtype == torch.float32  # kept as it came
    scipy.io.savemat(tmp_path / "y.mat", {"coeff": arrays["coeff"]})
    with pytest.raises(ValueError, match="no field 'u' to be the output; it has a: name one with outputs or --output"):
        import_files([tmp_path / "y.mat"])


def test_mat_of_one_sample(arrays, tmp_path):
    scipy.io.savemat(tmp_path / "x.mat", {"coeff": arrays["coeff"][0], "sol": arrays["sol"][0]})
    dataset = import_files([tmp_path / "x.mat"])
    assert (len(dataset), dataset.domain) == (1, Grid(S))


@pytest.mark.parametrize("write", [scipy.io.savemat, lambda path, arrays: write_mat_73(path, arrays)], ids=["v5", "v7.3"])
def test_what_does_not_fit_is_refused_before_it_is_read(write, arrays, tmp_path, monkeypatch):
    write(tmp_path / "x.mat", arrays)
    monkeypatch.setattr("gkn.data.foreign.process.available_memory", lambda: 2 * 8 * N * S * S - 1)
    with pytest.raises(UnreadableFile, match=r"claims .* GiB"):
        import_files([tmp_path / "x.mat"])


def test_clouds_that_differ_in_weights_are_not_one(tmp_path):
    x = np.random.default_rng(0).random((20, 2))
    for i in (1, 2):
        np.savez(tmp_path / f"{i}.npz", points=x, weights=np.full(20, float(i)), a=x[:, 0], u=x[:, 1])
    dataset = import_files([tmp_path / "1.npz", tmp_path / "2.npz"], inputs=["a"])
    assert [float(sample.weights[0]) for sample in dataset] == [1, 2]


def test_neuraloperator_pt(tmp_path, rng):
    x = torch.rand(N, S, S, generator=rng) > 0.5
    y = torch.rand(N, S, S, generator=rng)
    torch.save({"x": x, "y": y}, tmp_path / "x.pt")
    dataset = import_files([tmp_path / "x.pt"])
    assert torch.equal(dataset.field("a"), torch.where(x, 12.0, 3.0).double().reshape(N, -1))
    assert torch.equal(dataset.field("u"), y.reshape(N, -1))
    assert dataset.inputs == ("a",)
    assert dataset.domain == Grid(S, nodes="left")
    assert import_files([tmp_path / "x.pt"], nodes="vertices").domain == Grid(S)
    other = import_files([tmp_path / "x.pt"], low=0.0, high=1.0, nodes="centres")
    assert torch.equal(other.field("a"), x.double().reshape(N, -1))
    assert torch.allclose(other.domain.points[1], torch.tensor([0.5 / S, 1.5 / S], dtype=torch.float64))


def test_pdebench(tmp_path, rng):
    nu, u = torch.rand(N, S, S, generator=rng).numpy(), torch.rand(N, 1, S, S, generator=rng).numpy()
    axis = (np.arange(S, dtype=np.float32) + 0.5) / S
    with h5py.File(tmp_path / "x.hdf5", "w") as file:
        file["nu"], file["tensor"], file["x-coordinate"], file["y-coordinate"] = nu, u, axis, axis
        file.attrs["beta"] = 1.0
    dataset = import_files([tmp_path / "x.hdf5"])
    assert dataset.domain == Grid(S, nodes="centres")
    assert np.array_equal(dataset.field("u").numpy(), u.reshape(N, -1))
    at = 2 * S + 5
    assert dataset.domain.points[at].tolist() == pytest.approx([2.5 / S, 5.5 / S])
    assert float(dataset.field("a")[1, at]) == nu[1, 2, 5]
    with h5py.File(tmp_path / "nodes.hdf5", "w") as file:
        axis = np.linspace(0, 1, S, dtype=np.float32)
        file["nu"], file["tensor"], file["x-coordinate"], file["y-coordinate"] = nu, u, axis, axis
    assert import_files([tmp_path / "nodes.hdf5"]).domain == Grid(S)


def write_h5(path, arrays):
    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            file[name] = array


@pytest.mark.parametrize("write", [lambda path, a: np.savez_compressed(path, **a), write_h5], ids=["npz", "h5"])
def test_plain_points_and_fields(write, tmp_path):
    suffix = "h5" if write is write_h5 else "npz"
    x = np.random.default_rng(0).random((20, 2))
    fields = {"k": x[:, 0] + np.zeros((N, 1)), "p": x[:, 1] + np.zeros((N, 1))}
    write(tmp_path / f"cloud.{suffix}", {"points": x, "weights": np.full(20, 0.05), **fields})
    dataset = import_files([tmp_path / f"cloud.{suffix}"], outputs=["p"], inputs=["k"])
    assert isinstance(dataset.domain, Cloud)
    assert (dataset.inputs, dataset.outputs) == (("k",), ("p",))
    assert np.array_equal(dataset.field("k").numpy(), fields["k"])

    mesh = Mesh.l_shape(0.3)
    given = {"points": mesh.points.numpy(), "cells": mesh.cells.numpy(), "a": mesh.weights.numpy(), "u": mesh.weights.numpy()}
    write(tmp_path / f"mesh.{suffix}", given)
    dataset = import_files([tmp_path / f"mesh.{suffix}"], inputs=["a"])
    assert isinstance(dataset.domain, Mesh)
    assert len(dataset) == 1

    write(tmp_path / f"grid.{suffix}", {"points": Grid(4).points.numpy(), "a": np.ones((2, 16)), "u": np.ones((2, 16))})
    assert import_files([tmp_path / f"grid.{suffix}"], inputs=["a"]).domain == Grid(4)

    write(
        tmp_path / f"own.{suffix}",
        {"points": Grid(4).points.numpy(), "boundary": np.ones(16), "a": np.ones(16), "u": np.ones(16)},
    )
    assert import_files([tmp_path / f"own.{suffix}"], inputs=["a"]).domain.boundary.all()  # a boundary of one's own is kept
    write(tmp_path / f"other.{suffix}", {**given, "weights": np.ones(len(mesh))})
    with pytest.raises(UnreadableFile, match="not those of the cells"):
        import_files([tmp_path / f"other.{suffix}"])
    write(tmp_path / f"nan.{suffix}", {"points": x, "a": np.ones((2, 20)), "u": np.full((2, 20), np.nan)})
    with pytest.raises(UnreadableFile, match=r"nan\.\w+, sample 0: field u is not finite everywhere: nan at point 0"):
        import_files([tmp_path / f"nan.{suffix}"], inputs=["a"])
    write(tmp_path / f"names.{suffix}", {"points": x, "domain": np.ones(20), "outputs": np.ones(20), "u": np.ones(20)})
    names = ("domain", "outputs")
    assert import_files([tmp_path / f"names.{suffix}"], inputs=names).inputs == names

    with pytest.raises(ValueError, match="no field 'u' to be the output; it has k, p"):
        import_files([tmp_path / f"cloud.{suffix}"])
    write(tmp_path / f"bad.{suffix}", {"points": x, "a": np.ones((N, 19)), "u": np.ones((N, 20))})
    with pytest.raises(UnreadableFile, match=r"field a of shape \(3, 19\) for 20 points"):
        import_files([tmp_path / f"bad.{suffix}"])
    write(tmp_path / f"none.{suffix}", {"a": x[:, 0]})
    with pytest.raises(UnreadableFile, match="no array 'points'; it has a"):
        import_files([tmp_path / f"none.{suffix}"])


def write_mesh(path, mesh, cells=None, **point_data):
    points = np.column_stack([mesh.points.numpy(), np.zeros(len(mesh))])
    meshlane.write(path, meshlane.Mesh(points, cells or [("triangle", mesh.cells.numpy())], point_data=point_data))


@pytest.mark.parametrize("suffix", ["vtu", "vtk"])
def test_mesh_files(suffix, tmp_path):
    meshes = [Mesh.disk(h) for h in (0.5, 0.4)]
    for i, mesh in enumerate(meshes):
        x = mesh.points.numpy()
        write_mesh(tmp_path / f"{i}.{suffix}", mesh, a=x[:, 0] + 2, u=x[:, 1], v=x)
    dataset = import_files([tmp_path / f"{i}.{suffix}" for i in (0, 1)], inputs=["a", "v"])
    assert not dataset.one_domain
    assert dataset[0].a.shape == (len(meshes[0]), 3)
    for i, mesh in enumerate(meshes):
        assert torch.equal(dataset[i].domain.cells, mesh.cells)
        assert torch.allclose(dataset[i].a[:, 0], mesh.points[:, 0] + 2)
    same = import_files([tmp_path / f"0.{suffix}"] * 3, inputs=["a"])
    assert same.one_domain
    assert len(same) == 3


def test_files_without_fields(tmp_path):
    mesh = Mesh.square(0.5)
    x = mesh.points.numpy()
    np.savez(tmp_path / "1.npz", points=x)
    np.savez(tmp_path / "2.npz", points=2 * x)
    with pytest.raises(UnreadableFile, match="only points"):
        import_files([tmp_path / "1.npz", tmp_path / "2.npz"])


def test_meshes_that_need_repair(tmp_path):
    mesh = Mesh.square(0.4)
    extra = Mesh.__new__(Mesh)  # a mesh that its constructor would refuse: clockwise, and one point too many
    object.__setattr__(extra, "points", torch.cat([mesh.points, torch.tensor([[5.0, 5.0]], dtype=torch.float64)]))
    object.__setattr__(extra, "cells", mesh.cells[:, [0, 2, 1]])
    x = extra.points.numpy()
    write_mesh(tmp_path / "x.vtu", extra, a=x[:, 0] + 1, u=x[:, 1])
    with pytest.raises(UnreadableFile, match=r"x\.vtu: .* 1 of \d+ points belong to no cell.*--repair"):
        import_files([tmp_path / "x.vtu"])
    dataset = import_files([tmp_path / "x.vtu"], inputs=["a"], repair=True)
    assert len(dataset.domain) == len(mesh)
    assert torch.allclose(dataset.field("u")[0], dataset.domain.points[:, 1])


def test_quads_and_other_cells(tmp_path):
    class Points:
        points = torch.tensor([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]], dtype=torch.float64)

        def __len__(self):
            return 4

    ones = np.ones(4)
    write_mesh(tmp_path / "q.vtu", Points(), [("quad", np.array([[0, 1, 2, 3]]))], a=ones, u=ones)
    assert import_files([tmp_path / "q.vtu"], inputs=["a"]).domain.measure == pytest.approx(1)
    write_mesh(tmp_path / "t.vtu", Points(), [("tetra", np.array([[0, 1, 2, 3]]))], a=ones, u=ones)
    with pytest.raises(UnreadableFile, match=r"t\.vtu: cells of dimension 3, but the points differ along xy only"):
        import_files([tmp_path / "t.vtu"])
    write_mesh(tmp_path / "n.vtu", Points(), [("quad", np.array([[0, 1, 2, 3]]))])
    with pytest.raises(UnreadableFile, match="no fields in it"):
        import_files([tmp_path / "n.vtu"])
    write_mesh(tmp_path / "p.vtk", Points(), [("wedge18", np.arange(18)[None] % 4)], u=ones)
    with pytest.raises(UnreadableFile, match=r"p\.vtk: cells of type wedge18; needed line, line3, triangle"):
        import_files([tmp_path / "p.vtk"])


def test_imported_and_saved(arrays, tmp_path):
    scipy.io.savemat(tmp_path / "x.mat", arrays)
    dataset = import_files([tmp_path / "x.mat"])
    dataset.save(tmp_path / "d", origin={"name": "import"})
    assert torch.equal(Dataset.open(tmp_path / "d").field("a_smooth_x"), dataset.field("a_smooth_x"))


# --- hostile ---------------------------------------------------------------------------------------------------------


class Bomb:
    def __init__(self, marker):
        self.marker = str(marker)

    def __reduce__(self):
        return os.mkdir, (self.marker,)


def pickled_pt(path, marker):
    torch.save({"x": Bomb(marker), "y": torch.zeros(2, 3, 3)}, path)


def old_pt(path, marker):
    path.write_bytes(pickle.dumps({"x": Bomb(marker)}))


def object_npz(path, marker):
    array = np.empty(1, dtype=object)
    array[0] = Bomb(marker)
    np.savez(path, points=array, u=np.zeros(1))


def object_npy_in_npz(path, marker):
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, np.array([Bomb(marker)], dtype=object), allow_pickle=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("points.npy", buffer.getvalue())


def object_h5(path, marker):
    with h5py.File(path, "w") as file:
        file["points"] = np.frombuffer(pickle.dumps(Bomb(marker)), dtype=np.uint8)


def link_h5(path, marker):
    secret = path.with_name("secret.h5")
    with h5py.File(secret, "w") as file:
        file["a"] = np.ones((1, 2))
    with h5py.File(path, "w") as file:
        file["points"] = np.zeros((2, 2))
        file["u"] = np.ones((1, 2))
        file["a"] = h5py.ExternalLink(str(secret), "a")


def raw_h5(path, marker):
    with h5py.File(path, "w") as file:
        file["points"], file["u"] = np.zeros((2, 2)), np.ones((1, 2))  # all else is as it should be
        file.create_dataset("a", (1, 2), "f8", external=[("/etc/passwd", 0, 16)])


def virtual_h5(path, marker):
    layout = h5py.VirtualLayout((1, 2), "f8")
    layout[:] = h5py.VirtualSource("/etc/passwd", "x", (1, 2))
    with h5py.File(path, "w") as file:
        file["points"], file["u"] = np.zeros((2, 2)), np.ones((1, 2))
        file.create_virtual_dataset("a", layout)


def object_mat(path, marker):
    scipy.io.savemat(path, {"coeff": np.array([{"a": 1}], dtype=object), "sol": np.ones((1, 3, 3))})


def claiming_npz(path, marker):
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (10**6, 10**7)})
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("points.npy", header.getvalue())


def claiming_h5(path, marker):
    with h5py.File(path, "w") as file:
        file.create_dataset("points", (10**7, 10**7), "f8", chunks=(100, 100))


def linked_mat73(path, marker):
    secret = path.with_name("secret.h5")
    with h5py.File(secret, "w") as file:
        file["coeff"] = np.ones((3, 3, 1))
    with h5py.File(path, "w") as file:
        file["coeff"] = h5py.ExternalLink(str(secret), "coeff")
        file["sol"] = np.ones((3, 3, 1))


def filtered_h5(path, marker):
    with h5py.File(path, "w") as file:
        file["points"], file["u"] = np.zeros((2, 2)), np.ones((1, 2))
        file.create_dataset("a", data=np.ones((1, 2)), scaleoffset=3)


def claiming_mat73(path, marker):
    with h5py.File(path, "w") as file:
        for name in ("coeff", "sol"):
            file.create_dataset(name, (10**5, 10**5, 100), "f8", chunks=(10, 10, 10))


def expanding_pt(path, marker):
    torch.save({"x": torch.zeros(1).expand(10**4, 10**4, 10**4), "y": torch.zeros(1).expand(10**4, 10**4, 10**4)}, path)


def squeezed_pt(path, marker):
    torch.save({"x": torch.zeros(8, 500, 500), "y": torch.zeros(8, 500, 500)}, path)
    with zipfile.ZipFile(path) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, value in entries.items():
            archive.writestr(name, value)


def list_pt(path, marker):
    torch.save([torch.zeros(3)], path)


def xml_bomb(path, marker):
    lines = ['<?xml version="1.0"?>', "<!DOCTYPE x [", '<!ENTITY a0 "aaaaaaaaaa">']
    lines += [f'<!ENTITY a{i} "{f"&a{i - 1};" * 10}">' for i in range(1, 12)]
    path.write_text("\n".join([*lines, "]>", "<VTKFile type='UnstructuredGrid'>&a11;</VTKFile>"]))


def reaching_xdmf(path, marker):
    """XDMF may name any file on the machine as the place of its numbers."""
    mesh = Mesh.square(0.5)
    write_mesh(path, mesh, a=np.ones(len(mesh)), u=np.ones(len(mesh)))


def growing_pt(path, marker):
    """The pickle asks for bytearray(2**38), which torch's own list of safe names allows."""
    torch.save({"x": torch.zeros(1, 3, 3), "y": torch.zeros(1, 3, 3)}, path)
    with zipfile.ZipFile(path) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, value in entries.items():
            archive.writestr(
                name, b"\x80\x02c__builtin__\nbytearray\n\x8a\x05\x00\x00\x00\x00\x40\x85R." if name.endswith(".pkl") else value
            )


def twice_mat(path, marker):
    scipy.io.savemat(path, {"coeff": np.ones((1, 3, 3)), "sol": np.ones((1, 3, 3))})
    good = path.read_bytes()
    path.write_bytes(good + good[128:])


def bomb_vtu(path, marker):
    """Unpacks to more than the memory the test allows."""
    mesh = Mesh.square(0.5)
    write_mesh(path, mesh, a=np.ones(len(mesh)), u=np.ones(len(mesh)))
    zeros = zlib.compress(bytes(2**30), 9)
    head = np.array([1, 2**30, 2**30, len(zeros)], dtype=np.uint32).tobytes()
    text = (base64.b64encode(head) + base64.b64encode(zeros)).decode()
    path.write_text(re.sub(r'(Name="a"[^>]*>)[^<]*', lambda match: match[1] + text, path.read_text()))


HOSTILE = {
    "xdmf": [reaching_xdmf],
    "pt": [growing_pt, pickled_pt, old_pt, expanding_pt, squeezed_pt, list_pt],
    "npz": [object_npz, object_npy_in_npz, claiming_npz],
    "h5": [filtered_h5, object_h5, link_h5, raw_h5, virtual_h5, claiming_h5],
    "mat": [twice_mat, linked_mat73, object_mat, claiming_mat73],
    "vtu": [xml_bomb, bomb_vtu],
}


# Where several guards would refuse: which one should have.
SAID = {
    reaching_xdmf: "files are not read",
    growing_pt: "holds more than tensors",
    expanding_pt: "more than the file's",
    bomb_vtu: r"claims 1 GiB \(compressed arrays",
    twice_mat: "there twice",
    linked_mat73: "a link to somewhere else",
    filtered_h5: "not part of HDF5",
}


@pytest.mark.parametrize(("suffix", "write"), [(s, w) for s, writers in HOSTILE.items() for w in writers])
def test_hostile_files_are_refused_and_run_nothing(suffix, write, tmp_path, monkeypatch):
    path, marker = tmp_path / f"x.{suffix}", tmp_path / "marker"
    write(path, marker)
    monkeypatch.setattr("gkn.data.foreign.process.available_memory", lambda: 2**30)
    monkeypatch.setattr("gkn.system.hdf5.available_memory", lambda: 2**30)  # a small machine
    with pytest.raises(UnreadableFile, match=rf"x\.{suffix}.*{SAID.get(write, '')}"):
        import_files([path])
    assert not marker.exists()


def test_torch_itself_loads_no_code_either(tmp_path, monkeypatch):
    """Were our own look at the pickle to miss a name, torch's weights_only would still refuse it."""
    monkeypatch.setattr("gkn.data.readers.pt._check_pickle", lambda path, data: None)
    pickled_pt(tmp_path / "x.pt", tmp_path / "marker")
    with pytest.raises(UnreadableFile, match=r"x\.pt"):
        import_files([tmp_path / "x.pt"])
    assert not (tmp_path / "marker").exists()


@pytest.mark.parametrize("suffix", ["mat", "73.mat", "pt", "npz", "h5", "vtu"])
def test_damaged_files_are_refused_or_read_as_something(suffix, arrays, tmp_path):
    """Truncated anywhere, or with bytes changed: a clear error naming the file, or data of the right shape; no crash."""
    path = tmp_path / f"x.{suffix}"
    if suffix == "mat":
        scipy.io.savemat(path, arrays)
    elif suffix == "73.mat":
        write_mat_73(path, arrays)
    elif suffix == "pt":
        torch.save({"x": torch.ones(N, S, S) > 0, "y": torch.ones(N, S, S)}, path)
    elif suffix == "npz":
        np.savez(path, points=Grid(4).points.numpy(), a=np.ones((2, 16)), u=np.ones((2, 16)))
    elif suffix == "h5":
        write_h5(path, {"points": Grid(4).points.numpy(), "a": np.ones((2, 16)), "u": np.ones((2, 16))})
    else:
        mesh = Mesh.square(0.5)
        write_mesh(path, mesh, a=np.ones(len(mesh)), u=np.ones(len(mesh)))
    good = path.read_bytes()
    generator = np.random.default_rng(1)
    refused = 0
    for trial in range(40):
        bad = bytearray(good)
        if trial % 2:
            bad = bad[: int(generator.integers(len(good)))]
        else:
            for at in generator.integers(len(good), size=3):
                bad[at] ^= int(generator.integers(1, 256))
        path.write_bytes(bad)
        try:
            dataset = import_files([path], inputs=["a"])
        except ValueError:
            refused += 1
        else:
            assert dataset[0].u.shape[0] == len(dataset.domain)
    assert refused >= 15


def test_missing_and_unknown_files(tmp_path):
    with pytest.raises(FileNotFoundError, match="no such file"):
        import_files([tmp_path / "none.mat"])
    with pytest.raises(ValueError, match="no file"):
        import_files([])
    (tmp_path / "x.docx").write_text("words")
    with pytest.raises(UnreadableFile, match=r"x\.docx: \.docx files are not read; there are \.cgns, \.csv, \.h5"):
        import_files([tmp_path / "x.docx"])
