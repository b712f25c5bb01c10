"""CGNS files written with h5py, node by node."""

import h5py
import numpy as np
import pytest
import torch

from gkn.data.readers import ReadOptions, UnreadableFile, read_file


def node(parent, name, label, data=None, kind="MT"):
    group = parent.create_group(name)
    group.attrs["label"], group.attrs["name"], group.attrs["type"] = np.bytes_(label), np.bytes_(name), np.bytes_(kind)
    if isinstance(data, str):
        data = np.frombuffer(data.encode(), dtype=np.int8)
    if data is not None:
        group[" data"] = np.asarray(data)
    return group


def zone_of(file, points, kind="Unstructured", shape=None, name="Zone"):
    """Add a base with a zone; coordinates are in the shape of h5py, which sees Fortran arrays with axes reversed."""
    base = file["Base"] if "Base" in file else node(file, "Base", "CGNSBase_t", [3, 3])
    zone = node(base, name, "Zone_t", [[len(points)], [1], [0]])
    node(zone, "ZoneType", "ZoneType_t", kind)
    grid = node(zone, "GridCoordinates", "GridCoordinates_t")
    for axis, values in zip("XYZ", points.T, strict=False):
        node(grid, f"Coordinate{axis}", "DataArray_t", values if shape is None else values.reshape(shape))
    return zone


def elements(zone, name, number, corners, first=1, last=None):
    section = node(zone, name, "Elements_t", [number, 0])
    node(section, "ElementRange", "IndexRange_t", [first, last or first + len(corners) - 1])
    node(section, "ElementConnectivity", "DataArray_t", np.concatenate([np.reshape(each, -1) for each in corners]))


def solution(zone, name, where, **fields):
    flow = node(zone, name, "FlowSolution_t")
    node(flow, "GridLocation", "GridLocation_t", where)
    for field, values in fields.items():
        node(flow, field, "DataArray_t", np.asarray(values))


def read(path):
    return read_file(path, ReadOptions())


SQUARE = np.array([[0, 0], [1, 0], [1, 1], [0, 1.0]])
CUBE = np.array([[x, y, z] for z in (0, 1) for x, y in ((0, 0), (1, 0), (1, 1), (0, 1))], dtype=float)


def test_triangles_vectors_and_boundary(tmp_path):
    with h5py.File(tmp_path / "x.cgns", "w") as file:
        zone = zone_of(file, SQUARE)
        elements(zone, "Faces", 5, [[1, 2, 3], [1, 3, 4]])
        elements(zone, "Edges", 3, [[1, 2], [3, 4]], first=3)
        solution(zone, "S", "Vertex", Pressure=[1.0, 2, 3, 4], VelocityX=[1.0, 0, 0, 0], VelocityY=[0.0, 1, 0, 0])
        solution(zone, "C", "CellCenter", k=[1.0, 3.0])
        conditions = node(zone, "ZoneBC", "ZoneBC_t")
        node(node(conditions, "inlet", "BC_t", "BCInflow"), "PointList", "IndexArray_t", [[2], [3]])
        node(node(conditions, "wall", "BC_t", "BCWall"), "PointRange", "IndexRange_t", [[1], [2]])
        top = node(conditions, "top", "BC_t", "BCWall")
        node(top, "PointList", "IndexArray_t", [[4]])
        node(top, "GridLocation", "GridLocation_t", "EdgeCenter")
    content = read(tmp_path / "x.cgns")
    fields = {name: rows[0].tolist() for name, rows in content.fields.items()}
    assert fields == {
        "Pressure": [1, 2, 3, 4],
        "Velocity": [[1, 0], [0, 1], [0, 0], [0, 0]],
        "k": [2, 1, 2, 3],
        "set:inlet": [0, 1, 1, 0],
        "set:wall": [1, 1, 0, 0],
        "set:top": [0, 0, 1, 1],
    }
    assert content.domain.measure == pytest.approx(1)
    assert [a.tolist() for a in content.cell_data["k"]] == [[1, 3]]


def test_mixed_elements_keep_the_order_of_cell_data(tmp_path):
    points = np.concatenate([SQUARE, [[2, 0], [2, 1], [3, 0.0]]])
    mixed = [[5, 1, 2, 3], [7, 2, 5, 6, 3], [5, 1, 3, 4], [5, 5, 7, 6]]
    with h5py.File(tmp_path / "x.cgns", "w") as file:
        zone = zone_of(file, points)
        elements(zone, "E", 20, mixed)
        solution(zone, "C", "CellCenter", k=[1.0, 2.0, 3.0, 4.0])
    content = read(tmp_path / "x.cgns")
    assert [(name, len(cells)) for name, cells in content.domain.cell_blocks()] == [("triangle", 3), ("quad", 1)]
    assert [a.tolist() for a in content.cell_data["k"]] == [[1, 3, 4], [2]]


def edges_of(points, pairs):
    return [points[list(pair)].mean(0) for pair in pairs]


def test_second_order_hexahedron_has_its_middles_in_vtk_order(tmp_path):
    """CGNS lists the upright edges before the upper ones, and the faces in another order than VTK."""
    low, up = [(0, 1), (1, 2), (2, 3), (3, 0)], [(0, 4), (1, 5), (2, 6), (3, 7)]
    high = [(4, 5), (5, 6), (6, 7), (7, 4)]
    faces = [(0, 1, 2, 3), (0, 1, 5, 4), (1, 2, 6, 5), (2, 3, 7, 6), (0, 3, 7, 4), (4, 5, 6, 7)]
    points = np.array([*CUBE, *edges_of(CUBE, low + up + high + faces), CUBE.mean(0)])
    for number, nodes, name in ((18, 20, "hexahedron20"), (19, 27, "hexahedron27")):
        with h5py.File(tmp_path / f"{nodes}.cgns", "w") as file:
            zone = zone_of(file, points[:nodes])
            elements(zone, "E", number, [np.arange(1, nodes + 1)])
            solution(zone, "S", "Vertex", u=points[:nodes, 0])
        ((kind, cells),) = read(tmp_path / f"{nodes}.cgns").domain.cell_blocks()
        assert kind == name
        middle = [*low, *high, *up, (0, 4, 7, 3), (1, 2, 6, 5), (0, 1, 5, 4), (3, 7, 6, 2), (0, 3, 2, 1), (4, 5, 6, 7)]
        expected = np.array([*CUBE, *edges_of(CUBE, middle), CUBE.mean(0)])[:nodes]
        corners = points[cells[0]]
        assert np.array_equal(corners, expected)


def test_structured_zones(tmp_path):
    shape = (2, 3, 4)  # k, j, i
    k, j, i = np.meshgrid(*map(np.arange, shape), indexing="ij")
    points = np.stack([i, j, k], -1).reshape(-1, 3).astype(float)
    with h5py.File(tmp_path / "x.cgns", "w") as file:
        zone = zone_of(file, points, "Structured", shape)
        solution(zone, "S", "Vertex", u=points[:, 0].reshape(shape))
        solution(zone, "C", "CellCenter", c=np.arange(6.0).reshape(1, 2, 3))
        conditions = node(zone, "ZoneBC", "ZoneBC_t")
        node(node(conditions, "left", "BC_t", "BCWall"), "PointRange", "IndexRange_t", [[1, 1, 1], [1, 3, 2]])
    content = read(tmp_path / "x.cgns")
    assert content.domain.measure == pytest.approx(6)
    assert [(name, len(cells)) for name, cells in content.domain.cell_blocks()] == [("hexahedron", 6)]
    assert torch.equal(content.fields["set:left"][0] > 0, content.domain.points[:, 0] == 0)
    with h5py.File(tmp_path / "y.cgns", "w") as file:
        zone = zone_of(file, points[:12, :2], "Structured", (3, 4))
        solution(zone, "S", "Vertex", u=points[:12, 0].reshape(3, 4))
    assert read(tmp_path / "y.cgns").domain.measure == pytest.approx(6)


def two_zones(file):
    for name in ("rotor", "stator"):
        elements(zone_of(file, SQUARE, name=name), "E", 5, [[1, 2, 3], [1, 3, 4]])


def ngon(file):
    elements(zone_of(file, SQUARE), "E", 22, [[1, 2, 3, 4]])


def short(file):
    elements(zone_of(file, SQUARE), "E", 5, [[1, 2, 3], [1, 3]])


def short_mixed(file):
    elements(zone_of(file, SQUARE), "E", 20, [[5, 1, 2, 3], [5, 1]])


def outside(file):
    elements(zone_of(file, SQUARE), "E", 5, [[1, 2, 9]])


def long_field(file):
    zone = zone_of(file, SQUARE)
    elements(zone, "E", 5, [[1, 2, 3], [1, 3, 4]])
    solution(zone, "S", "Vertex", u=np.ones(5))


def long_cells(file):
    zone = zone_of(file, SQUARE)
    elements(zone, "E", 5, [[1, 2, 3], [1, 3, 4]])
    solution(zone, "S", "CellCenter", u=np.ones(5))


def soft_link(file):
    zone = zone_of(file, SQUARE)
    zone["E"] = h5py.SoftLink("/Base")


def external_link(file):
    zone = zone_of(file, SQUARE)
    zone["E"] = h5py.ExternalLink("/etc/passwd", "x")


def cgns_link(file):
    zone = zone_of(file, SQUARE)
    node(zone, "E", "Elements_t", kind="LK")


def loop(file):
    zone = zone_of(file, SQUARE)
    zone["E"] = zone


def claims(file):
    zone = zone_of(file, SQUARE)
    elements(zone, "E", 5, [[1, 2, 3], [1, 3, 4]])
    flow = node(zone, "S", "FlowSolution_t")
    node(flow, "u", "DataArray_t").create_dataset(" data", (10**7, 10**7), "f8", chunks=(100, 100))


def polar(file):
    zone = zone_of(file, SQUARE)
    node(zone["GridCoordinates"], "CoordinateR", "DataArray_t", np.ones(4))


def bad_set(file):
    zone = zone_of(file, SQUARE)
    elements(zone, "E", 5, [[1, 2, 3], [1, 3, 4]])
    node(node(node(zone, "ZoneBC", "ZoneBC_t"), "in", "BC_t", "BCWall"), "PointList", "IndexArray_t", [[2], [30]])


WRONG = {
    two_zones: r"2 zones \(/Base/rotor, /Base/stator\); needed one",
    ngon: "elements of type NGON_n; needed vertex, line",
    short: "has 5 indices for 2 cells of 3 nodes",
    short_mixed: "ends before its last element",
    outside: "cells name points 0 to 8, there are only 0 to 3",
    long_field: "field u has 5 values for 4 points",
    long_cells: "field u has 5 values for 2 cells",
    soft_link: "a link to somewhere else",
    external_link: "a link to somewhere else",
    cgns_link: "a link to somewhere else",
    loop: "more nodes than any CGNS file needs",
    claims: "claims .* bytes, but the file holds 0",
    polar: "coordinates CoordinateR, CoordinateX, CoordinateY; needed",
    bad_set: "boundary condition in lists points that do not exist",
}


@pytest.mark.parametrize("write", WRONG, ids=lambda write: write.__name__)
def test_wrong_and_hostile_files(write, tmp_path):
    with h5py.File(tmp_path / "x.cgns", "w") as file:
        write(file)
    with pytest.raises(UnreadableFile, match=rf"x\.cgns: .*{WRONG[write]}"):
        read(tmp_path / "x.cgns")


def test_damaged_files(tmp_path):
    with h5py.File(tmp_path / "x.cgns", "w") as file:
        zone = zone_of(file, SQUARE)
        elements(zone, "E", 5, [[1, 2, 3], [1, 3, 4]])
        solution(zone, "S", "Vertex", u=np.ones(4))
    good = (tmp_path / "x.cgns").read_bytes()
    rng = np.random.default_rng(0)
    for trial in range(40):
        bad = bytearray(good)
        if trial % 2:
            bad = bad[: int(rng.integers(len(good)))]
        else:
            for at in rng.integers(len(good), size=8):
                bad[at] ^= int(rng.integers(1, 256))
        (tmp_path / "y.cgns").write_bytes(bad)
        try:
            content = read(tmp_path / "y.cgns")
        except UnreadableFile:
            continue
        assert len(content.domain) <= 4


def moving(file):
    zone = zone_of(file, SQUARE)
    node(zone, "GridCoordinates#1", "GridCoordinates_t")


def unknown_zone(file):
    zone_of(file, SQUARE, "UserDefined")


def no_coordinates(file):
    del zone_of(file, SQUARE)["GridCoordinates"]


def twice(file):
    zone = zone_of(file, SQUARE)
    elements(zone, "E", 5, [[1, 2, 3], [1, 3, 4]])
    for name in "ST":
        solution(zone, name, "Vertex", u=np.ones(4))


def wide_range(file):
    zone = zone_of(file, SQUARE)
    elements(zone, "E", 5, [[1, 2, 3], [1, 3, 4]])
    node(node(node(zone, "ZoneBC", "ZoneBC_t"), "in", "BC_t", "BCWall"), "PointRange", "IndexRange_t", [[1], [10**9]])


MORE = {
    moving: "has coordinates for 2 times; needed one time per file",
    unknown_zone: "zone of type 'UserDefined'; needed Structured or Unstructured",
    no_coordinates: "has no coordinates",
    twice: "two solutions have a field u at Vertex; needed one time per file",
    wide_range: "boundary condition in covers more points than there are",
}


@pytest.mark.parametrize("write", MORE, ids=lambda write: write.__name__)
def test_more_wrong_files(write, tmp_path):
    with h5py.File(tmp_path / "x.cgns", "w") as file:
        write(file)
    with pytest.raises(UnreadableFile, match=rf"x\.cgns: .*{MORE[write]}"):
        read(tmp_path / "x.cgns")


def test_what_is_left_out_is_noted(tmp_path):
    with h5py.File(tmp_path / "x.cgns", "w") as file:
        zone = zone_of(file, SQUARE)
        elements(zone, "E", 5, [[1, 2, 3], [1, 3, 4]])
        solution(zone, "S", "FaceCenter", u=np.ones(4))
        node(node(zone, "ZoneBC", "ZoneBC_t"), "family", "BC_t", "FamilySpecified")
    notes = read(tmp_path / "x.cgns").notes
    assert "solution left out, because its values are at FaceCenter: /Base/Zone/S" in notes
    assert "boundary condition left out, because it lists no points: family" in notes
