"""2000 damaged files of all formats: each is read, or refused with a sentence that names it, within a time limit."""

import random
import re
import time
from pathlib import Path

import h5py
import meshlane
import numpy as np
import pytest
import scipy.io
import torch

import gkn
from gkn import Grid, Mesh
from gkn.data.foreign import process
from gkn.data.readers import READERS, UnreadableFile, read_file, read_points
from gkn.data.readers.format import Content, ReadOptions
from gkn.system.files import CorruptFile
from tests.test_readers_cgns import elements, solution, zone_of

MESH = Mesh.square(0.4)
POINTS = np.c_[MESH.points.numpy(), np.zeros(len(MESH))]
FILES = 2000
SECONDS = 1.0
"""Time on a processor that the parser of a small file may take here."""
LIMIT = 15.0
"""Time by the clock that one file may take, on a machine that does other work as well."""


def meshlane_file(path):
    data = {"u": np.arange(len(MESH), dtype=float)}
    for fields in (data, {}):
        try:
            meshlane.write(path, meshlane.Mesh(POINTS, [("triangle", MESH.cells.numpy())], point_data=fields))
            return
        except (Exception, SystemExit):  # not all formats hold data
            continue


def su2(path):
    cells = "\n".join(f"5 {a} {b} {c}" for a, b, c in MESH.cells.tolist())
    points = "\n".join(f"{x} {y}" for x, y in MESH.points.tolist())
    path.write_text(f"NDIME= 2\nNELEM= {len(MESH.cells)}\n{cells}\nNPOIN= {len(MESH)}\n{points}\nNMARK= 0\n")


def arrays(path):
    gkn.save(path, Grid(7), {"a": np.arange(49.0), "u": np.ones((49, 2))}, parameters={"load": 2.0})


def points(path):
    np.save(path, Grid(7).points.numpy())


def hdf5(path):
    with h5py.File(path, "w") as file:
        file["points"] = Grid(24).points.numpy()
        file.create_dataset("u", data=np.ones((3, 576)), chunks=(1, 576), compression="gzip", shuffle=True)


def mat(path):
    scipy.io.savemat(
        path, {"coeff": np.ones((3, 5, 5)), "sol": np.random.default_rng(0).random((3, 5, 5))}, do_compression=True
    )


def mat73(path):
    with h5py.File(path, "w") as file:
        for name in ("coeff", "sol"):
            file.create_dataset(name, data=np.ones((5, 5, 3)), compression="gzip")


def pt(path):
    torch.save({"x": torch.ones(3, 5, 5) > 0, "y": torch.rand(3, 5, 5)}, path)


def vtu(path):
    gkn.save(path, MESH, {"u": np.arange(len(MESH), dtype=float)})


def text_vtu(path):
    mesh = meshlane.Mesh(POINTS, [("triangle", MESH.cells.numpy())], point_data={"u": POINTS[:, 0]})
    meshlane.write(path, mesh, binary=False)


def csv(path):
    gkn.save(path, MESH, {"u": np.arange(len(MESH), dtype=float)})


def pvd(path):
    vtu(path.with_name("a.vtu"))
    vtu(path.with_name("b.vtu"))
    entries = "".join(f'<DataSet timestep="{i}" file="{name}.vtu"/>' for i, name in enumerate("ab"))
    path.write_text(f'<VTKFile type="Collection"><Collection>{entries}</Collection></VTKFile>')


def cgns(path):
    with h5py.File(path, "w") as file:
        zone = zone_of(file, MESH.points.numpy())
        elements(zone, "Faces", 5, 1 + MESH.cells.numpy())
        solution(zone, "S", "Vertex", u=[*range(len(MESH))])


BY_MESHLANE = ("vtk", "msh", "mesh", "meshb", "off", "obj", "stl", "ply", "mdpa", "ugrid", "avs", "vol")
GOOD = {f"x.{ending}": meshlane_file for ending in BY_MESHLANE}
GOOD |= {"x.su2": su2, "x.npz": arrays, "x.npy": points, "x.h5": hdf5, "x.hdf5": hdf5, "x.mat": mat, "73.mat": mat73}
GOOD |= {"x.pt": pt, "x.vtu": vtu, "text.vtu": text_vtu, "x.csv": csv, "x.pvd": pvd, "x.cgns": cgns}


def damaged(data, rng):
    """Return the bytes with one of several kinds of damage."""
    kind = rng.randrange(7)
    data, at = bytearray(data), rng.randrange(len(data))
    if kind == 0:  # cut off
        return bytes(data[:at])
    if kind == 1:  # bits flipped
        for _ in range(rng.randrange(1, 9)):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    elif kind == 2:  # a part is missing
        del data[at : at + rng.randrange(1, 64)]
    elif kind == 3:  # a part is there twice
        data[at:at] = data[at : at + rng.randrange(1, 64)]
    elif kind == 4:  # other bytes
        data[at : at + 8] = rng.choice([b"\xff" * 8, bytes(8), b"\x7f" + b"\xff" * 7, b"\x00\x00\x00\x80\xff\xff\xff\xff"])
    elif kind == 5:  # another number
        numbers = [*re.finditer(rb"\d+", data)]
        if numbers:
            chosen = rng.choice(numbers)
            new = rng.choice([b"-1", b"0", b"4294967295", b"18446744073709551615", b"1e308", b"nan", b"99999999999999999999"])
            data[chosen.start() : chosen.end()] = new
    else:  # the beginning of one file, the end of another
        data = data[:at] + data[rng.randrange(len(data)) :]
    return bytes(data)


def test_every_format_is_fuzzed():
    assert {Path(name).suffix for name in GOOD} == {*READERS, ".npy"}


def fuzz(name, count, folder, seed):
    """Read damaged copies of a file; return how many were read, refused, and ended because they took too long."""
    folder.mkdir()
    path = folder / name
    GOOD[name](path)
    if not path.exists():
        pytest.skip(f"{name} cannot be written here")
    good, rng = path.read_bytes(), random.Random(seed)
    read_points(path) if path.suffix == ".npy" else read_file(path, ReadOptions())  # what is damaged is good before
    outcome = {"read": 0, "refused": 0, "ended": 0}
    slowest, nameless = 0.0, 0
    for _ in range(count):
        path.write_bytes(damaged(good, rng))
        start = time.monotonic()
        try:
            found = read_points(path) if path.suffix == ".npy" else read_file(path, ReadOptions(repair=rng.random() < 0.5))
            assert isinstance(found, Content | torch.Tensor)
            outcome["read"] += 1
        except (UnreadableFile, CorruptFile, FileNotFoundError) as error:
            nameless += not re.search(r"x\.|text\.|73\.|[ab]\.vtu", str(error))
            outcome["ended" if "did not end" in str(error) else "refused"] += 1
        slowest = max(slowest, time.monotonic() - start)
    assert slowest < LIMIT
    assert not nameless
    return outcome, slowest


@pytest.mark.parametrize("name", GOOD)
def test_some_damaged_files(name, tmp_path, monkeypatch):
    monkeypatch.setattr(process, "SECONDS", 0.3)
    outcome, _ = fuzz(name, 6, tmp_path / "fuzz", 1)
    assert sum(outcome.values()) == 6


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_2000_damaged_files(tmp_path, monkeypatch):
    monkeypatch.setattr(process, "SECONDS", SECONDS)
    names = [*GOOD]
    total = {"read": 0, "refused": 0, "ended": 0}
    for i, name in enumerate(names):
        outcome, slowest = fuzz(name, FILES // len(names) + (i < FILES % len(names)), tmp_path / name, i)
        print(f"{name:9} {outcome}, at most {slowest:.1f} s", flush=True)
        total = {key: total[key] + outcome[key] for key in total}
    print(total)
    assert sum(total.values()) == FILES
