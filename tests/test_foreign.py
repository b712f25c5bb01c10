"""Files of other programs that are damaged or hostile: parsers that loop, crash, or believe what a file claims."""

import hashlib
import io
import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
import zipfile
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import h5py
import meshlane
import numpy as np
import pytest
import torch

from gkn import Dataset, Grid, Mesh, import_files, save
from gkn.data.foreign import process
from gkn.data.foreign.raw import RawMesh, UnreadableFile
from gkn.data.foreign.wire import receive, send
from gkn.data.readers import read_file, read_points
from gkn.data.readers.cells import content_of
from gkn.data.readers.format import Content, ReadOptions
from gkn.system.files import CorruptFile, write_sealed_json
from gkn.system.hdf5 import plain_array

MESH = Mesh.square(0.5)
POINTS = np.c_[MESH.points.numpy(), np.zeros(len(MESH))]


def write_mesh(path, fields=True):
    points = np.c_[MESH.points.numpy(), np.zeros(len(MESH))]
    data = {"u": np.arange(len(MESH), dtype=float)} if fields else {}
    meshlane.write(path, meshlane.Mesh(points, [("triangle", MESH.cells.numpy())], point_data=data))
    return path


def cut(path, share):
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    return path


@pytest.mark.parametrize(("ending", "share"), [("msh", 9 / 16), ("ply", 2 / 16), ("mdpa", 8 / 16), ("off", 2 / 16)])
def test_a_parser_that_loops_is_ended(ending, share, tmp_path, monkeypatch):
    """meshlane waits for ever for the end of a section that was cut off."""
    path = cut(write_mesh(tmp_path / f"x.{ending}", ending in ("msh", "ply")), share)
    monkeypatch.setattr(process, "SECONDS", 0.3)
    start = time.monotonic()
    with pytest.raises(UnreadableFile, match=rf"x\.{ending}: cannot be read: its parser did not end after 0 s"):
        import_files([path])
    assert time.monotonic() - start < 30
    assert len(import_files([write_mesh(tmp_path / "good.vtk")])) == 1  # the next file is read by a new process


def test_a_parser_that_waits_is_ended_by_the_clock(tmp_path, monkeypatch):
    path = write_mesh(tmp_path / "x.vtk")
    process._WORKER.stop()
    worker = process._WORKER._started()
    os.kill(worker.pid, signal.SIGSTOP)
    monkeypatch.setattr(process, "SECONDS", 0.05)
    with pytest.raises(UnreadableFile, match="its parser did not end after"):
        import_files([path])
    monkeypatch.undo()
    assert len(import_files([path])) == 1


def test_a_parser_that_crashes_is_an_error_of_the_file(tmp_path, monkeypatch):
    path = write_mesh(tmp_path / "x.vtk")
    started = process._WORKER._started

    def crashed():
        worker = started()
        worker.send_signal(signal.SIGSEGV)
        worker.wait()
        return worker

    monkeypatch.setattr(process._WORKER, "_started", crashed)
    with pytest.raises(UnreadableFile, match=r"x\.vtk: cannot be read: its parser crashed \(exit code -11\)"):
        import_files([path])
    monkeypatch.undo()
    assert len(import_files([path])) == 1


def test_limits_are_those_of_the_other_process(tmp_path, monkeypatch):
    """A limit of this process would hold for all of its threads, and stay if two of them read at the same time."""
    before = [resource.getrlimit(kind) for kind in (resource.RLIMIT_AS, resource.RLIMIT_CPU, resource.RLIMIT_CORE)]
    set_here = []
    monkeypatch.setattr(resource, "setrlimit", lambda *given: set_here.append(given))
    paths = [write_mesh(tmp_path / f"{i}.vtk") for i in range(4)]
    np.savez(tmp_path / "x.npz", points=Grid(3).points.numpy(), u=np.ones(9))
    with ThreadPoolExecutor(8) as pool:
        found = [*pool.map(lambda path: len(read_file(path, ReadOptions()).fields), [*paths, tmp_path / "x.npz"] * 8)]
    assert found == [1] * 40
    assert set_here == []
    assert before == [resource.getrlimit(kind) for kind in (resource.RLIMIT_AS, resource.RLIMIT_CPU, resource.RLIMIT_CORE)]


def test_the_other_process_ends_with_this_one(tmp_path):
    """Killed in the middle of a file that loops for ever: the other process ends soon, and not when its time is up."""
    path = cut(write_mesh(tmp_path / "x.msh"), 9 / 16)
    script = (
        "import sys; from gkn.data.foreign import process; process.SECONDS = 600.0; process._WORKER._started();"
        "print(process._WORKER._process.pid, flush=True);"
        "from pathlib import Path; process.parsed_mesh('mesh', Path(sys.argv[1]))"
    )
    parent = subprocess.Popen([sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE, text=True)
    worker = int(parent.stdout.readline())
    time.sleep(0.3)
    parent.kill()
    parent.communicate()
    end = time.monotonic() + 20
    while Path(f"/proc/{worker}").exists() and "Z" not in Path(f"/proc/{worker}/stat").read_text().split()[2]:
        assert time.monotonic() < end
        time.sleep(0.1)


def test_what_goes_over_the_wire_is_what_was_sent():
    value = {
        "points": np.random.default_rng(0).random((4, 3)),
        "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "none": None,
        "sets": {(1, 2): "wall", (3, 1): "é"},
        "cells": [("triangle", np.zeros((0, 3), dtype=np.int64)), ("big", np.arange(3, dtype=">i4"))],
        "numbers": [1, 2.5, True, np.float64(3.0), np.int32(4)],
        "texts": np.array(["a", "bc"]),
        "one": np.array(7.0),
    }
    stream = io.BytesIO()
    send(value, stream.write)
    stream.seek(0)
    found = receive(lambda count: bytearray(stream.read(count)))
    assert found["sets"] == value["sets"]
    assert found["numbers"] == [1, 2.5, True, 3.0, 4]
    assert found["cells"][0][0] == "triangle"
    for mine, theirs in ((found[key], value[key]) for key in ("points", "fortran", "texts", "one")):
        assert mine.dtype == theirs.dtype
        assert np.array_equal(mine, theirs)
        assert mine.shape == theirs.shape
    assert found["cells"][0][1].shape == (0, 3)
    assert found["cells"][1][1].tolist() == [0, 1, 2]
    with pytest.raises(UnreadableFile, match="holds object"):
        send(np.array([{}]), stream.write)


def test_modules_of_the_current_folder_are_not_imported(tmp_path):
    """A folder with files of other people may hold a meshlane.py as well."""
    write_mesh(tmp_path / "x.vtk")
    for name in ("meshlane", "json", "numpy"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'marker')!r}, 'w').close()")
    command = "import os, sys; from gkn import import_files; os.chdir(sys.argv[1]); print(len(import_files(['x.vtk'])))"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
    words = [sys.executable, "-P", "-c", command, tmp_path]
    done = subprocess.run(words, capture_output=True, text=True, timeout=100, env=environment)
    assert done.stdout == "1\n", done.stderr
    assert not (tmp_path / "marker").exists()


def test_an_interrupt_while_the_process_starts(tmp_path, monkeypatch):
    """The reply that nobody waited for would be taken for that of the next file."""
    for name, value in (("a", 1.0), ("b", 2.0)):
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            file["points"], file["u"] = Grid(3).points.numpy(), np.full(9, value)
    process._WORKER.stop()

    def interrupted(read):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(process, "receive", interrupted)
        with pytest.raises(KeyboardInterrupt):
            import_files([tmp_path / "a.h5"])
    for name, value in (("a", 1.0), ("b", 2.0), ("a", 1.0)):
        assert float(import_files([tmp_path / f"{name}.h5"])[0].u[0]) == value


def test_a_parameter_of_a_dataset_that_is_compressed(tmp_path):
    """gkn stores numbers per sample as they are. HDF5 would unpack a chunk of any size for one of them."""
    Dataset(Grid(3), u=torch.ones(4, 9), load=[1.0, 2, 3, 4]).save(tmp_path / "data")
    shard = tmp_path / "data/shard-00000.h5"
    with h5py.File(shard, "r+") as file:
        del file["fields/load"]
        data = file.create_dataset("fields/load", (4,), "f8", chunks=(2**24,), maxshape=(None,), compression="gzip")
        data.id.write_direct_chunk((0,), zlib.compress(bytes(2**27), 9))
    reseal(tmp_path / "data")
    hostile = Dataset.open(tmp_path / "data")
    memory, said = peak_memory(lambda: hostile.parameter("load", 1))
    assert "is not laid out as gkn does it" in said
    assert memory < 2**25


def reseal(folder):
    """Give the first shard of a dataset the hash that it has now."""
    manifest = json.loads((folder / "dataset.json").read_text())
    data = (folder / manifest["shards"][0]["file"]).read_bytes()
    manifest["shards"][0] |= {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    write_sealed_json(folder / "dataset.json", {key: value for key, value in manifest.items() if key != "sha256"})


# --- claims that are checked before they are believed ---------------------------------------------------------------------


def peak_memory(call):
    """Return the bytes by which this process grew while a function ran, and what it raised."""

    def status(name):
        return 1024 * int(re.search(rf"{name}:\s+(\d+)", Path("/proc/self/status").read_text())[1])

    Path("/proc/self/clear_refs").write_text("5")
    before = status("VmRSS")
    with pytest.raises((UnreadableFile, CorruptFile)) as raised:
        call()
    return status("VmHWM") - before, str(raised.value)


def long_header(length):
    return b"\x93NUMPY\x02\x00" + length.to_bytes(4, "little")


@pytest.mark.parametrize("kind", ["npy", "npz"])
def test_the_length_of_a_header_is_not_believed(kind, tmp_path):
    """A header of 2^32 bytes took 8.7 GB, from a file of 4 KB. The zeros of the archive are there, well packed."""
    path = tmp_path / f"x.{kind}"
    data = long_header(2**32 - 1) + bytes(2**27)
    if kind == "npy":
        path.write_bytes(data[: 2**12])
        memory, said = peak_memory(lambda: read_points(path))
    else:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("points.npy", data)
        del data
        memory, said = peak_memory(lambda: read_file(path, ReadOptions()))
    assert "does not begin as an array of numpy does" in said
    assert memory < 2**25


def test_an_array_that_claims_other_bytes_than_there_are(tmp_path):
    good = io.BytesIO()
    np.save(good, np.ones((4, 2)))
    for name, data in {"short": good.getvalue()[:-8], "long": good.getvalue() + bytes(8)}.items():
        (tmp_path / f"{name}.npy").write_bytes(data)
        with pytest.raises(UnreadableFile, match=r"points claims 64 bytes, but there are (56|72)"):
            read_points(tmp_path / f"{name}.npy")


def test_a_second_pickle_in_other_letters_is_noticed(tmp_path):
    """torch finds entries without regard to case: it would load data.PKL, which our check did not look at."""
    path, marker = tmp_path / "x.pt", tmp_path / "marker"
    torch.save({"x": torch.zeros(1, 3, 3), "y": torch.zeros(1, 3, 3)}, path)
    with zipfile.ZipFile(path) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    hostile = f"cposix\nsystem\n(S'touch {marker}'\ntR.".encode()
    for names in (("data.PKL", "data.pkl"), ("data.pkl", "data.PKL"), ("data.PKL",)):
        with zipfile.ZipFile(path, "w") as archive:
            for name, data in entries.items():
                if not name.endswith("data.pkl"):
                    archive.writestr(name, data)
            folder = next(iter(entries)).split("/")[0]
            for name in names:
                archive.writestr(f"{folder}/{name}", hostile if name == "data.PKL" else entries[f"{folder}/data.pkl"])
        with pytest.raises(UnreadableFile, match="two entries have the same name" if len(names) > 1 else "more than tensors"):
            import_files([path])
    assert not marker.exists()


def test_torch_sees_nothing_but_checked_entries(tmp_path, monkeypatch):
    """What torch is given is an archive of our own, whatever else is in the file before, after or between its entries."""
    path = tmp_path / "x.pt"
    torch.save({"x": torch.zeros(1, 3, 3), "y": torch.ones(1, 3, 3)}, path)
    path.write_bytes(b"PK junk" + path.read_bytes())
    given, load = [], torch.load
    monkeypatch.setattr(torch, "load", lambda file, **options: (given.append(file), load(file, **options))[1])
    assert float(import_files([path])[0].u.sum()) == 9
    assert isinstance(given[0], io.BytesIO)
    assert b"junk" not in given[0].getvalue()


def packed_twice(path):
    with h5py.File(path, "w") as file:
        file["points"], file["u"] = np.zeros((2, 2)), np.ones((1, 2))
        properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        properties.set_chunk((1, 2))
        properties.set_deflate(9)
        properties.set_deflate(9)
        space = h5py.h5s.create_simple((1, 2))
        data = h5py.h5d.create(file.id, b"a", h5py.h5t.NATIVE_DOUBLE, space, properties)
        data.write(h5py.h5s.ALL, h5py.h5s.ALL, np.ones((1, 2)))


def test_arrays_that_are_packed_twice_are_refused(tmp_path):
    """Each of the two may unpack to a thousand times its size."""
    packed_twice(tmp_path / "x.h5")
    with pytest.raises(UnreadableFile, match=r"x\.h5: a is compressed twice"):
        import_files([tmp_path / "x.h5"])
    with h5py.File(tmp_path / "x.h5") as file, pytest.raises(CorruptFile, match="a is compressed twice"):
        plain_array(file, "a", tmp_path / "x.h5")


def test_a_foreign_chunk_that_unpacks_to_more_than_it_claims(tmp_path, monkeypatch):
    """Memory of the process that parses is limited, so that the chunk is not unpacked."""
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        file["points"] = np.zeros((512, 2))
        data = file.create_dataset("u", (1, 512), "f8", chunks=(1, 512), compression="gzip")
        data.id.write_direct_chunk((0, 0), zlib.compress(bytes(2**30), 9))
    monkeypatch.setattr(process, "available_memory", lambda: 2**28)
    with pytest.raises(UnreadableFile, match=r"x\.h5"):
        import_files([path])


def test_a_chunk_of_a_dataset_that_unpacks_to_more_than_its_row(tmp_path):
    """A folder with right hashes may come from anybody."""
    u = torch.zeros(2, 129 * 129, dtype=torch.float64)
    Dataset(Grid(129), a=u, u=u).save(tmp_path / "data")
    assert torch.equal(Dataset.open(tmp_path / "data").field("u"), u)
    shard = tmp_path / "data/shard-00000.h5"
    with h5py.File(shard, "r+") as file:
        assert file["fields/u"].compression == "gzip"
        file["fields/u"].id.write_direct_chunk((1, 0), zlib.compress(bytes(2**28), 9))
    reseal(tmp_path / "data")
    hostile = Dataset.open(tmp_path / "data")
    assert torch.equal(hostile.value("u", 0), u[0])
    memory, said = peak_memory(lambda: hostile.value("u", 1))
    assert memory < 2**25
    assert "row 1 of /fields/u does not have the 133128 bytes that it should have" in said


def test_rows_of_a_dataset_that_are_laid_out_otherwise(tmp_path):
    from gkn.system.hdf5 import stored_rows

    values = np.random.default_rng(0).integers(0, 3, (4, 600)).astype(float)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("good", data=values, chunks=(1, 600), compression="gzip", shuffle=True)
        file.create_dataset("plain", data=values)
        file.create_dataset("other", data=values, chunks=(2, 300), compression="gzip", shuffle=True)
        file.create_dataset("lzf", data=values, chunks=(1, 600), compression="lzf")
        file.create_dataset("empty", (4, 600), "f8", chunks=(1, 600), compression="gzip", shuffle=True)
        for name in ("good", "plain"):
            assert np.array_equal(stored_rows(file[name], 1, 3, tmp_path), values[1:3])
        for name in ("other", "lzf"):
            with pytest.raises(CorruptFile, match="is not laid out as gkn does it"):
                stored_rows(file[name], 0, 1, tmp_path)
        with pytest.raises(CorruptFile, match="row 0 of /empty does not have the 4800 bytes"):
            stored_rows(file["empty"], 0, 1, tmp_path)


def test_arrays_without_bytes_are_refused(tmp_path):
    """HDF5 fills what was never stored with zeros: 12 GB from a file of 1.7 KB."""
    for name, options in (("x.h5", {}), ("y.h5", {"chunks": (1, 1000), "compression": "gzip"})):
        with h5py.File(tmp_path / name, "w") as file:
            file["points"] = Grid(3).points.numpy()
            file.create_dataset("u", (100_000, 1000), "f8", **options)
        with pytest.raises(UnreadableFile, match=rf"{name}: u \(100000, 1000\) claims 800000000 bytes, but the file holds 0"):
            read_file(tmp_path / name, ReadOptions())


def test_a_report_builds_no_cells_of_a_grid(monkeypatch):
    """They took 40 times the memory of the data, to print their number."""
    from gkn.data.readers.report import describe

    for grid in (Grid(5), Grid((4, 6), nodes="centres"), Grid(7, 1, periodic=True), Grid(3, 3)):
        assert grid.cell_counts() == {name: len(corners) for name, corners in grid.cell_blocks()}
    content = Content(Grid(5), {"u": torch.ones(1, 25)}, {})
    monkeypatch.setattr(Grid, "cell_blocks", None)
    assert "cells: 16 quad" in describe(content)
    assert "bounding box: x 0 to 1, y 0 to 1" in describe(content)


def test_fields_that_share_one_block_are_refused(tmp_path):
    """8000 fields of 100,000 values in a file of 3.8 MB."""
    save(tmp_path / "good.vtu", MESH, {f"u{i}": np.full(len(MESH), float(i)) for i in range(40)})
    assert len(read_file(tmp_path / "good.vtu", ReadOptions()).fields) == 40
    values = np.arange(len(MESH), dtype=float).tobytes()
    block = np.uint32(len(values)).tobytes() + values
    fields = "".join(f'<DataArray type="Float64" Name="u{i}" format="appended" offset="0"/>' for i in range(40))
    points = " ".join(map(str, POINTS.ravel()))
    (tmp_path / "x.vtu").write_bytes(
        b'<VTKFile type="UnstructuredGrid" byte_order="LittleEndian"><UnstructuredGrid>'
        + f'<Piece NumberOfPoints="{len(MESH)}" NumberOfCells="0"><Points><DataArray type="Float64" Name="Points" '
        f'NumberOfComponents="3" format="ascii">{points}</DataArray></Points><PointData>{fields}</PointData></Piece>'.encode()
        + b'</UnstructuredGrid><AppendedData encoding="raw">_'
        + block
        + b"</AppendedData></VTKFile>"
    )
    with pytest.raises(UnreadableFile, match="its arrays overlap: together they have more bytes than the file"):
        read_file(tmp_path / "x.vtu", ReadOptions())


def test_thousands_of_named_sets_are_left_out(tmp_path):
    """Each of them would become a field."""
    raw = RawMesh(POINTS, [("triangle", MESH.cells.numpy())], point_sets={f"s{i}": np.array([0]) for i in range(300)})
    content = content_of(tmp_path / "x.cgns", raw, ReadOptions())
    assert not content.fields
    assert "named sets left out, because there are more than 256: 300" in content.notes


def test_tensors_with_gradients_are_read_from_a_file(tmp_path):
    x = torch.rand(3, 4, 4, dtype=torch.float64)
    for kind in (x.clone().requires_grad_(), x.bfloat16(), torch.complex(x, -x).conj().imag):
        torch.save({"x": kind, "y": kind}, tmp_path / "x.pt")
        found = read_file(tmp_path / "x.pt", ReadOptions())
        assert torch.equal(found.fields["u"].reshape(3, 4, 4).double(), kind.detach().double())
