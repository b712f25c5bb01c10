"""Mesh files: all cells, data at points and cells, sets and regions, pieces, and lists of files."""

import base64
import lzma
import struct
import zlib

import meshlane
import numpy as np
import pytest
import torch

from gkn.data.readers import ReadOptions, UnreadableFile, read_file, read_files, read_sample

SQUARE = np.array([[0, 0, 0], [1, 0, 0], [1, 1, 0], [0, 1, 0.0]])
TWO = np.array([[0, 1, 2], [0, 2, 3]])


def read(path, **options):
    return read_file(path, ReadOptions(**options))


def write(path, points=SQUARE, cells=(("triangle", TWO),), **more):
    meshlane.write(path, meshlane.Mesh(points, [*cells], **more))


@pytest.mark.parametrize("suffix", ["vtu", "vtk"])
def test_vectors_and_tensors(suffix, tmp_path):
    rng = np.random.default_rng(0)
    flat, full, stress = rng.random((4, 3)), rng.random((4, 3)), rng.random((4, 9))
    flat[:, 2] = 0
    write(tmp_path / f"x.{suffix}", point_data={"T": full[:, 0], "flat": flat, "full": full, "stress": stress})
    content = read(tmp_path / f"x.{suffix}")
    assert {name: tuple(rows.shape) for name, rows in content.fields.items()} == {
        "T": (1, 4),
        "flat": (1, 4, 2),
        "full": (1, 4, 3),
        "stress": (1, 4, 9),
    }
    assert np.array_equal(content.fields["flat"][0].numpy(), flat[:, :2])
    assert content.notes == ("coordinates dropped, because they are the same at all points: z = 0",)


def test_dropped_axis_is_the_constant_one(tmp_path):
    upright = SQUARE[:, [0, 2, 1]] + [0, 5, 0]
    across, along = np.zeros((4, 3)), np.zeros((4, 3))
    across[:, [0, 2]] = SQUARE[:, :2] + 1
    along[:] = SQUARE + 1
    write(tmp_path / "x.vtu", upright, point_data={"across": across, "along": along})
    content = read(tmp_path / "x.vtu")
    assert np.array_equal(content.domain.points.numpy(), SQUARE[:, :2])
    assert content.fields["across"].shape == (1, 4, 2)
    assert content.fields["along"].shape == (1, 4, 3)
    assert "y = 5" in content.notes[0]


def test_surfaces_keep_three_coordinates(tmp_path):
    roof = SQUARE + np.array([[0, 0, 0], [0, 0, 1], [0, 0, 1], [0, 0, 0]])
    write(tmp_path / "x.vtu", roof, point_data={"u": roof[:, 0]})
    content = read(tmp_path / "x.vtu")
    assert content.domain.dim == 3
    assert content.domain.measure == pytest.approx(2**0.5)


@pytest.mark.parametrize("suffix", ["vtu", "vtk"])
def test_cell_data_move_to_points(suffix, tmp_path):
    """The cells have areas 1 and 2, so that a point of both has one third and two thirds of their values."""
    points = np.array([[0, 0, 0], [2, 0, 0], [2, 1, 0], [0, 2, 0.0]])
    data = {"k": [np.array([3.0, 6.0])], "u": [np.array([1.0, 1.0])]}
    write(tmp_path / f"x.{suffix}", points, point_data={"u": points[:, 0]}, cell_data=data)
    content = read(tmp_path / f"x.{suffix}")
    assert content.fields["k"][0].tolist() == pytest.approx([5, 3, 5, 6])
    assert torch.equal(content.fields["u"][0], torch.tensor(points[:, 0]))
    assert "cell data moved to points, as means weighted by the size of the cells: k" in content.notes
    assert "cell data left out, because point data have the same name: u" in content.notes
    assert {name: [a.tolist() for a in arrays] for name, arrays in content.cell_data.items()} == {"k": [[3, 6]], "u": [[1, 1]]}


GMSH = """$MeshFormat
2.2 0 8
$EndMeshFormat
$PhysicalNames
3
1 1 "inlet"
2 5 "steel"
2 6 "air"
$EndPhysicalNames
$Nodes
4
1 0 0 0
2 1 0 0
3 1 1 0
4 0 1 0
$EndNodes
$Elements
3
1 1 2 1 1 1 2
2 2 2 5 1 1 2 3
3 2 2 6 2 1 3 4
$EndElements
$NodeData
1
"u"
1
0.0
3
0
1
4
1 1.0
2 2.0
3 3.0
4 4.0
$EndNodeData
"""


def test_groups_of_gmsh(tmp_path):
    (tmp_path / "x.msh").write_text(GMSH)
    content = read(tmp_path / "x.msh")
    assert {name: rows[0].tolist() for name, rows in content.fields.items()} == {
        "u": [1, 2, 3, 4],
        "set:inlet": [1, 1, 0, 0],
        "region:steel": [1, 1, 1, 0],
        "region:air": [1, 0, 1, 1],
    }
    assert [(name, len(corners)) for name, corners in content.domain.cell_blocks()] == [("triangle", 2)]
    (tmp_path / "y.msh").write_text(GMSH.replace("3 2 2 6 2", "3 2 2 5 2"))
    assert [*read(tmp_path / "y.msh").fields] == ["u", "set:inlet"]  # one material is none


DATA = """$NodeData
1
"u"
1
0.0
3
0
1
4
1 1.0
2 2.0
3 3.0
4 4.0
$EndNodeData
"""


def test_data_of_gmsh_in_another_order_are_refused(tmp_path):
    """meshlane gives the values to the nodes in the order of the file, whatever their tags."""
    turned = GMSH.replace("1 0 0 0\n2 1 0 0\n", "2 1 0 0\n1 0 0 0\n")
    assert turned != GMSH
    for name, text in (("x", turned), ("y", GMSH.replace("4\n1 1.0\n", "3\n"))):
        (tmp_path / f"{name}.msh").write_text(text)
        with pytest.raises(UnreadableFile, match=rf"{name}\.msh: .*\$NodeData does not list all of \$Nodes in their order"):
            read(tmp_path / f"{name}.msh")
    (tmp_path / "z.msh").write_text(GMSH_41 + DATA)
    assert read(tmp_path / "z.msh").fields["u"][0].tolist() == [1, 2, 3, 4]
    (tmp_path / "z.msh").write_text(GMSH_41 + DATA.replace("1 1.0\n2 2.0", "2 2.0\n1 1.0"))
    with pytest.raises(UnreadableFile, match="in their order"):
        read(tmp_path / "z.msh")
    (tmp_path / "b.msh").write_text(GMSH.replace("2.2 0 8", "2.2 1 8"))
    with pytest.raises(UnreadableFile, match=r"b\.msh: binary, with data whose order cannot be checked"):
        read(tmp_path / "b.msh")


GMSH_41 = """$MeshFormat
4.1 0 8
$EndMeshFormat
$PhysicalNames
3
1 1 "inlet"
2 5 "steel"
2 6 "air"
$EndPhysicalNames
$Entities
0 1 2 0
1 0 0 0 1 0 0 1 1 0
1 0 0 0 1 1 0 1 5 1 1
2 0 0 0 1 1 0 1 6 0
$EndEntities
$Nodes
1 4 1 4
2 1 0 4
1
2
3
4
0 0 0
1 0 0
1 1 0
0 1 0
$EndNodes
$Elements
3 3 1 3
1 1 1 1
1 1 2
2 1 2 1
2 1 2 3
2 2 2 1
3 1 3 4
$EndElements
"""

SU2 = """NDIME= 2
NELEM= 2
5 0 1 2 0
5 0 2 3 1
NPOIN= 4
0 0 0
1 0 1
1 1 2
0 1 3
NMARK= 2
MARKER_TAG= lower
MARKER_ELEMS= 1
3 0 1
MARKER_TAG= upper
MARKER_ELEMS= 1
3 2 3
"""


def test_groups_of_other_formats(tmp_path):
    (tmp_path / "x.msh").write_text(GMSH_41)
    fields = {name: rows[0].tolist() for name, rows in read(tmp_path / "x.msh").fields.items()}
    assert fields == {"set:inlet": [1, 1, 0, 0], "region:steel": [1, 1, 1, 0], "region:air": [1, 0, 1, 1]}
    (tmp_path / "x.su2").write_text(SU2)
    content = read(tmp_path / "x.su2")
    assert {name: rows[0].tolist() for name, rows in content.fields.items()} == {
        "set:lower": [1, 1, 0, 0],
        "set:upper": [0, 0, 1, 1],
    }
    assert not content.notes


def test_material_numbers_and_blocks_of_one_type(tmp_path):
    cells = [("triangle", TWO[:1]), ("quad", np.array([[1, 4, 5, 2]])), ("triangle", TWO[1:])]
    points = np.concatenate([SQUARE, [[2, 0, 0], [2, 1, 0]]])
    data = {
        "MaterialIds": [np.array([7]), np.array([8]), np.array([7])],
        "k": [np.array([1.0]), np.array([2.0]), np.array([3.0])],
    }
    write(tmp_path / "x.vtu", points, cells, cell_data=data)
    content = read(tmp_path / "x.vtu")
    assert [(name, len(corners)) for name, corners in content.domain.cell_blocks()] == [("triangle", 2), ("quad", 1)]
    assert [a.tolist() for a in content.cell_data["k"]] == [[1, 3], [2]]
    assert content.fields["region:7"][0].tolist() == [1, 1, 1, 1, 0, 0]
    assert content.fields["region:8"][0].tolist() == [0, 1, 1, 0, 1, 1]


def test_points_alone_are_a_cloud(tmp_path):
    points = np.random.default_rng(0).random((9, 3))
    write(tmp_path / "x.vtu", points, [("vertex", np.arange(9)[:, None])], point_data={"u": points[:, 0]})
    content = read(tmp_path / "x.vtu")
    assert content.domain.kind == "cloud"
    assert any("no cells: read as points" in note for note in content.notes)


LEGACY = """# vtk DataFile Version 3.0
x
ASCII
DATASET UNSTRUCTURED_GRID
FIELD FieldData 3
TimeValue 1 1 double
0.5
list 1 2 int
1 2
Re 1 1 int
100
POINTS 4 double
0 0 0 1 0 0 1 1 0 0 1 0
CELLS 3 11
3 0 1 2
3 0 2 3
2 0 1
CELL_TYPES 3
5
5
3
POINT_DATA 4
SCALARS u double 1
LOOKUP_TABLE default
1 2 3 4
"""


def test_field_data_of_legacy_files(tmp_path):
    (tmp_path / "x.vtk").write_text(LEGACY)
    content = read(tmp_path / "x.vtk")
    assert {name: values.tolist() for name, values in content.parameters.items()} == {"TimeValue": [0.5], "Re": [100]}
    assert "field data left out, because they are not one number: list" in content.notes
    assert content.fields["u"][0].tolist() == [1, 2, 3, 4]
    (tmp_path / "y.vtk").write_text(LEGACY.replace("list 1 2 int\n1 2", "list 1 2 quaternion\n1 2"))
    with pytest.raises(UnreadableFile, match=r"y\.vtk: "):
        read(tmp_path / "y.vtk")
    text = [b"# vtk DataFile Version 3.0\nx\nBINARY\nDATASET UNSTRUCTURED_GRID\nFIELD FieldData 1\nRe 1 1 double\n"]
    text += [np.array([7.0], ">f8").tobytes(), b"\nPOINTS 4 double\n", SQUARE.astype(">f8").tobytes(), b"\nCELLS 2 8\n"]
    text += [np.column_stack([[3, 3], TWO]).astype(">i4").tobytes(), b"\nCELL_TYPES 2\n", np.array([5, 5], ">i4").tobytes()]
    text += [b"\nPOINT_DATA 4\nSCALARS u double 1\nLOOKUP_TABLE default\n", SQUARE[:, 0].astype(">f8").tobytes(), b"\n"]
    (tmp_path / "z.vtk").write_bytes(b"".join(text))
    assert read(tmp_path / "z.vtk").parameters["Re"].tolist() == [7]


# --- VTK's encodings ---------------------------------------------------------------------------------------------------


def vtu(arrays, fields="", how="ascii", header="UInt32", order="LittleEndian", compressor=None, pieces=1):
    """Write a .vtu file with one kind of encoding."""
    end = "<" if order == "LittleEndian" else ">"
    size = {"UInt32": "I", "UInt64": "Q"}[header]
    appended = b""

    def packed(data):
        if compressor is None:
            return [struct.pack(end + size, len(data)) + data]
        pack = {"vtkZLibDataCompressor": zlib.compress, "vtkLZMADataCompressor": lzma.compress}[compressor]
        blocks = [data[i : i + 64] for i in range(0, len(data), 64)]
        small = [pack(block) for block in blocks]
        last = len(blocks[-1]) % 64
        return [struct.pack(f"{end}{3 + len(blocks)}{size}", len(blocks), 64, last, *map(len, small)), b"".join(small)]

    def array(name, values, more=""):
        nonlocal appended
        kind = {"f8": "Float64", "f4": "Float32", "i8": "Int64", "u1": "UInt8"}[values.dtype.str[1:]]
        components = f' NumberOfComponents="{values.shape[1]}"' if values.ndim == 2 else ""
        data = values.astype(values.dtype.newbyteorder(end)).tobytes()
        head = f'<DataArray type="{kind}" Name="{name}"{components}{more} '
        if how == "ascii":
            return f'{head}format="ascii">{" ".join(map(repr, values.reshape(-1).tolist()))}</DataArray>'
        if how == "binary":
            return f'{head}format="binary">{"".join(base64.b64encode(each).decode() for each in packed(data))}</DataArray>'
        offset = len(appended)
        appended += b"".join(packed(data) if how == "raw" else map(base64.b64encode, packed(data)))
        return f'{head}format="appended" offset="{offset}"/>'

    points, cells, data = arrays
    piece = [
        f'<Piece NumberOfPoints="{len(points)}" NumberOfCells="{len(cells)}"><Points>{array("p", points)}</Points><Cells>',
        array("connectivity", cells.reshape(-1)),
        array("offsets", np.arange(1, len(cells) + 1) * cells.shape[1]),
        array("types", np.full(len(cells), 5, dtype=np.uint8)),
        "</Cells><PointData>",
        *(array(name, values) for name, values in data.items()),
        "</PointData></Piece>",
    ]
    numbers = "".join(array(name, np.array(values), ' NumberOfTuples="1"') for name, values in (fields or {}).items())
    more = f' compressor="{compressor}"' if compressor else ""
    head = f'<VTKFile type="UnstructuredGrid" version="1.0" byte_order="{order}" header_type="{header}"{more}>'
    text = f"{head}<UnstructuredGrid><FieldData>{numbers}</FieldData>{''.join(piece) * pieces}</UnstructuredGrid>"
    if not appended:
        return f"{text}</VTKFile>".encode()
    encoding = "raw" if how == "raw" else "base64"
    return text.encode() + f'<AppendedData encoding="{encoding}">\n _'.encode() + appended + b"\n</AppendedData></VTKFile>"


@pytest.mark.parametrize("compressor", [None, "vtkZLibDataCompressor", "vtkLZMADataCompressor"])
@pytest.mark.parametrize(("header", "order"), [("UInt32", "LittleEndian"), ("UInt64", "BigEndian")])
@pytest.mark.parametrize("how", ["ascii", "binary", "raw", "appended"])
def test_encodings(how, header, order, compressor, tmp_path):
    rng = np.random.default_rng(0)
    data = {"u": rng.random(4), "v": rng.random((4, 3)).astype(np.float32)}
    image = vtu((SQUARE, TWO, data), {"Re": [100.0], "list": [1.0, 2.0]}, how, header, order, compressor)
    (tmp_path / "x.vtu").write_bytes(image)
    content = read(tmp_path / "x.vtu")
    assert np.array_equal(content.domain.cells.numpy(), TWO)
    assert np.array_equal(content.fields["u"][0].numpy(), data["u"])
    assert np.array_equal(content.fields["v"][0].numpy(), data["v"])
    assert content.parameters["Re"].tolist() == [100]
    assert "field data left out, because they are not one number: list" in content.notes
    sample = read_sample(tmp_path / "x.vtu")
    assert sample.parameters == {"Re": 100}


def test_all_pieces_are_read(tmp_path):
    """Two squares side by side share an edge; the two copies of a piece are one mesh twice, which is refused."""
    one, two = ((SQUARE + np.array([i, 0, 0]), TWO, {"u": SQUARE[:, 0] + i}) for i in (0, 1))
    parts = [vtu(each).decode().split("<FieldData></FieldData>")[1].split("</UnstructuredGrid>")[0] for each in (one, two)]
    whole = vtu(one).decode()
    (tmp_path / "x.vtu").write_text(whole.replace(parts[0], "".join(parts)))
    content = read(tmp_path / "x.vtu")
    assert content.domain.measure == pytest.approx(2)
    assert len(content.domain) == 6
    assert torch.equal(content.fields["u"][0], content.domain.points[:, 0])
    assert any("2 pieces joined; points that pieces share: 2" in note for note in content.notes)
    (tmp_path / "y.vtu").write_text(whole.replace(parts[0], parts[0] + parts[1].replace('Name="u"', 'Name="w"')))
    with pytest.raises(UnreadableFile, match=r"y\.vtu: its pieces have different point data: u; w"):
        read(tmp_path / "y.vtu")
    (tmp_path / "z.vtu").write_bytes(vtu(one, pieces=2))
    with pytest.raises(UnreadableFile, match=r"z\.vtu: .*overlap"):
        read(tmp_path / "z.vtu")


WRONG = {
    "ghosts": (lambda s: s.replace('Name="u"', 'Name="vtkGhostType"'), "has ghost cells or points"),
    "type": (lambda s: s.replace(">5 5<", ">6 6<"), r"cells of VTK's type 6; needed 1 \(vertex\)"),
    "nodes": (lambda s: s.replace(">3 6<", ">2 6<"), "cells of type triangle with other than 3 nodes"),
    "index": (lambda s: s.replace("0 1 2 0 2 3", "0 1 2 0 2 4"), "cells name points 0 to 4, there are only 0 to 3"),
    "count": (lambda s: s.replace('NumberOfPoints="4"', 'NumberOfPoints="5"'), "4 points in a piece of 5"),
    "offsets": (lambda s: s.replace(">3 6<", ">3<"), "1 offsets and 2 types in a piece of 2 cells"),
    "short": (lambda s: s.replace(">1.0 2.0 3.0 4.0<", ">1.0 2.0 3.0<"), "array 'u' has 3 values; needed 4"),
    "grid": (lambda s: s.replace("UnstructuredGrid", "ImageData"), "no UnstructuredGrid in it"),
    "nan": (lambda s: s.replace("0.0 0.0 0.0 1.0", "0.0 nan 0.0 1.0"), r"point 0 is .*coordinates must be finite"),
    "doctype": (lambda s: "<!DOCTYPE VTKFile>" + s, "has a document type"),
    "twice": (lambda s: s.replace("<PointData>", '<PointData><DataArray type="UInt8" Name="u"/>'), "two arrays of one name"),
    "empty": (lambda s: "", "cannot be read: ParseError"),
    "format": (
        lambda s: s.replace('Name="u" format="ascii"', 'Name="u" format="hex"'),
        "array 'u' has the unknown format 'hex'",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_files(name, tmp_path):
    change, said = WRONG[name]
    text = vtu((SQUARE, TWO, {"u": np.array([1.0, 2, 3, 4])})).decode()
    assert change(text) != text
    (tmp_path / "x.vtu").write_text(change(text))
    with pytest.raises(UnreadableFile, match=rf"x\.vtu: {said}"):
        read(tmp_path / "x.vtu")


def test_strings_are_left_out(tmp_path):
    text = vtu((SQUARE, TWO, {"u": SQUARE[:, 0]})).decode()
    words = '<DataArray type="String" Name="words" format="ascii">65 0</DataArray>'
    (tmp_path / "x.vtu").write_text(
        text.replace("<PointData>", f"<PointData>{words}").replace("<FieldData>", f"<FieldData>{words}")
    )
    content = read(tmp_path / "x.vtu")
    assert [*content.fields] == ["u"]
    assert "array left out, because it does not hold numbers: words" in content.notes


# --- .pvd --------------------------------------------------------------------------------------------------------------


def pvd(path, entries):
    lines = "".join(f'<DataSet timestep="{time}" part="0" file="{file}"/>' for time, file in entries)
    path.write_text(f'<?xml version="1.0"?><VTKFile type="Collection"><Collection>{lines}</Collection></VTKFile>')


def test_pvd(tmp_path):
    (tmp_path / "steps").mkdir()
    for i in range(3):
        write(tmp_path / f"steps/{i}.vtu", point_data={"u": SQUARE[:, 0] + i})
    pvd(tmp_path / "x.pvd", [(0.5 * i, f"steps/{i}.vtu") for i in range(3)])
    content = read_files(tmp_path / "x.pvd")
    assert content.parameters["time"].tolist() == [0, 0.5, 1]
    assert content.fields["u"].shape == (3, 4)
    assert content.sources[2] == f"{tmp_path / 'x.pvd'}, time 1"
    assert content.series == (0, 0, 0)
    apart = read_files(tmp_path / "x.pvd", ReadOptions(as_samples=True))
    assert (apart.series, apart.sources[2]) == ((), str(tmp_path / "steps/2.vtu"))
    pvd(tmp_path / "same.pvd", [(0, "steps/0.vtu")])
    assert not read_files(tmp_path / "same.pvd").parameters
    pvd(tmp_path / "parts.pvd", [(0, "steps/0.vtu"), (0, "steps/1.vtu"), (1, "steps/2.vtu")])
    with pytest.raises(UnreadableFile, match=r"parts\.pvd: lists 2 files for time 0"):
        read_files(tmp_path / "parts.pvd")
    for name in ("../x.vtu", "/etc/x.vtu", "", "steps/../../x.vtu"):
        pvd(tmp_path / "out.pvd", [(0, name)])
        with pytest.raises(UnreadableFile, match=r"out\.pvd: lists .* which is not in the folder of the list"):
            read_files(tmp_path / "out.pvd")
    (tmp_path / "steps/link.vtu").symlink_to("/etc/passwd")
    pvd(tmp_path / "out.pvd", [(0, "steps/link.vtu")])
    with pytest.raises(UnreadableFile, match="not in the folder of the list"):
        read_files(tmp_path / "out.pvd")
    pvd(tmp_path / "nested.pvd", [(0, "x.pvd")])
    with pytest.raises(UnreadableFile, match=r"nested\.pvd: lists 'x\.pvd'; needed \.vtu or \.vtk"):
        read_files(tmp_path / "nested.pvd")
    pvd(tmp_path / "none.pvd", [(0, "no.vtu")])
    with pytest.raises(UnreadableFile, match=r"none\.pvd: .*lists 'no.vtu'.*, which is missing"):
        read_files(tmp_path / "none.pvd")
    pvd(tmp_path / "empty.pvd", [])
    with pytest.raises(UnreadableFile, match="no DataSet in its Collection"):
        read_files(tmp_path / "empty.pvd")


# --- repair, and other cells of VTK ------------------------------------------------------------------------------------


def test_repair_drops_flat_cells_and_their_data(tmp_path):
    points = np.concatenate([SQUARE, [[2, 0, 0], [9, 9, 0]]])
    cells = [("triangle", np.array([[0, 1, 2], [0, 1, 4], [0, 2, 3]])), ("quad", np.array([[0, 1, 4, 1]]))]
    data = {"k": [np.array([1.0, 2.0, 3.0]), np.array([4.0])], "MaterialIds": [np.array([1, 1, 2]), np.array([1])]}
    write(tmp_path / "x.vtu", points, cells, point_data={"u": points[:, 0]}, cell_data=data)
    with pytest.raises(UnreadableFile, match=r"x\.vtu: Mesh: .*--repair"):
        read(tmp_path / "x.vtu")
    content = read(tmp_path / "x.vtu", repair=True)
    assert content.fields["u"][0].tolist() == [0, 1, 1, 0]
    assert [each.tolist() for each in content.cell_data["k"]] == [[1, 3]]
    assert content.fields["k"][0].tolist() == [2, 1, 2, 3]
    assert content.fields["region:2"][0].tolist() == [1, 0, 1, 1]
    assert "cells dropped, because their size is 0: 2" in content.notes
    assert "points dropped, because they belong to no cell: 2" in content.notes


@pytest.mark.parametrize(("number", "name", "order"), [(8, "quad", [0, 1, 3, 2]), (11, "hexahedron", [0, 1, 3, 2, 4, 5, 7, 6])])
def test_pixels_and_voxels(number, name, order, tmp_path):
    corners = np.array([[x, y, z] for z in (0, 1) for y in (0, 1) for x in (0, 1)], dtype=float)[: len(order)]
    text = vtu((corners, np.arange(len(order))[None], {"u": corners[:, 0]})).decode()
    (tmp_path / "x.vtu").write_text(text.replace(">5<", f">{number}<"))
    content = read(tmp_path / "x.vtu")
    assert [(kind, cells.tolist()) for kind, cells in content.domain.cell_blocks()] == [(name, [order])]
    assert content.domain.measure == pytest.approx(1)


def test_polygons_of_three_and_four_corners(tmp_path):
    text = vtu((SQUARE, np.array([[0, 1, 2, 3]]), {})).decode()
    (tmp_path / "x.vtu").write_text(text.replace(">5<", ">7<"))
    assert [kind for kind, _ in read(tmp_path / "x.vtu").domain.cell_blocks()] == ["quad"]
    (tmp_path / "x.vtk").write_text(LEGACY.replace("\n5\n5\n3\n", "\n7\n7\n3\n"))
    assert [kind for kind, _ in read(tmp_path / "x.vtk").domain.cell_blocks()] == ["triangle"]


def test_cells_that_meshlane_would_drop(tmp_path):
    (tmp_path / "x.vtk").write_text(LEGACY.replace("\n5\n5\n3\n", "\n5\n6\n3\n"))
    with pytest.raises(UnreadableFile, match=r"x\.vtk: .*cannot handle"):
        read(tmp_path / "x.vtk")


def test_cell_data_of_some_blocks_only(tmp_path):
    (tmp_path / "x.msh").write_text(GMSH_41)
    from gkn.data.readers.cells import RawMesh, content_of

    cells = [("triangle", TWO[:1]), ("triangle", TWO[1:])]
    content = content_of(tmp_path, RawMesh(SQUARE, cells, cell_data={"k": [np.ones(1), None]}), ReadOptions())
    assert "cell data left out, because some cells have none: k" in content.notes
    assert not content.cell_data


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda s: s.replace('compressor="vtkZLibDataCompressor"', 'compressor="vtkLZ4DataCompressor"'),
            "compressed by vtkLZ4DataComp",
        ),
        (lambda s: s.replace('NumberOfComponents="3"', 'NumberOfComponents="5"'), "12 values for 5 components|has 24 values"),
        (lambda s: s.replace('type="Float64" Name="p"', 'type="Bit" Name="p"'), "array 'p' holds Bit, not numbers"),
    ],
)
def test_wrong_binary_files(change, said, tmp_path):
    text = vtu((SQUARE, TWO, {}), how="binary", compressor="vtkZLibDataCompressor").decode()
    assert change(text) != text
    (tmp_path / "x.vtu").write_text(change(text))
    with pytest.raises(UnreadableFile, match=rf"x\.vtu: .*({said})"):
        read(tmp_path / "x.vtu")
