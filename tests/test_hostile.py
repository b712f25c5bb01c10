"""Wrong answers without a word: inputs outside of the training range, lost pieces, complex numbers, special files."""

import os
import shutil
import threading
import warnings

import numpy as np
import pytest
import torch

import gkn
from gkn import GKN, Cloud, Dataset, Grid, Mesh, Normalizer, Nystrom, Operator, Radius, fit, import_files, load, smooth
from gkn.cli.shell import fill
from gkn.data.features import Features
from gkn.data.ranges import outside
from gkn.data.readers import UnreadableFile, read_file, read_points
from gkn.data.readers.format import ReadOptions
from gkn.operator.saved import checkpoints_of
from gkn.system.checks import as_real
from gkn.system.files import CorruptFile, read_regular, read_sealed_json
from tests import tiny
from tests.test_cli import run

# --- 2: pieces


def piece(points, cells, values):
    def array(name, kind, data, components=1):
        text = " ".join(map(str, np.ravel(data)))
        return f'<DataArray type="{kind}" Name="{name}" NumberOfComponents="{components}" format="ascii">{text}</DataArray>'

    ends = 3 * np.arange(1, len(cells) + 1)
    return (
        f'<Piece NumberOfPoints="{len(points)}" NumberOfCells="{len(cells)}">'
        f"<Points>{array('Points', 'Float64', np.c_[points, np.zeros(len(points))], 3)}</Points>"
        f"<Cells>{array('connectivity', 'Int64', cells)}{array('offsets', 'Int64', ends)}"
        f"{array('types', 'UInt8', [5] * len(cells))}</Cells>"
        f"<PointData>{array('u', 'Float64', values)}</PointData></Piece>"
    )


@pytest.mark.parametrize("repair", [False, True])
def test_all_pieces_of_a_file_are_read(repair, tmp_path):
    """Points of other pieces belong to cells of their own, whether or not the file is repaired."""
    square = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    cells = np.array([[0, 1, 2], [1, 3, 2]])
    pieces = "".join(piece(square + np.array([i, 0]), cells, np.arange(4) + 10 * i) for i in (0, 5, 9))
    path = tmp_path / "x.vtu"
    write_vtu(path, pieces)
    data = import_files([path], repair=repair)
    assert data[0].u[:, 0].tolist() == [*range(4), *range(50, 54), *range(90, 94)]
    assert float(data[0].weights.sum()) == pytest.approx(3)


def vtu_of(folder, *pieces):
    write_vtu(folder / "x.vtu", "".join(pieces))
    return folder / "x.vtu"


def write_vtu(path, pieces):
    grid = f"<UnstructuredGrid>{pieces}</UnstructuredGrid>"
    path.write_text(f'<VTKFile type="UnstructuredGrid" byte_order="LittleEndian">{grid}</VTKFile>')


def lines(points, values):
    """Return a piece of lines along the points."""
    ends = np.arange(len(points) - 1)
    text = piece(points, np.zeros((0, 3), int), values)
    for name, kind, data in (
        ("connectivity", "Int64", np.stack([ends, ends + 1], 1)),
        ("offsets", "Int64", 2 * (ends + 1)),
        ("types", "UInt8", [3] * len(ends)),
    ):
        empty = f'<DataArray type="{kind}" Name="{name}" NumberOfComponents="1" format="ascii"></DataArray>'
        assert empty in text
        text = text.replace(empty, empty.replace("></", f">{' '.join(map(str, np.ravel(data)))}</"))
    return text.replace('NumberOfCells="0"', f'NumberOfCells="{len(ends)}"')


@pytest.mark.parametrize("repair", [False, True])
@pytest.mark.parametrize("kind", ["no cells", "lines"])
def test_a_piece_that_would_be_lost_is_refused(kind, repair, tmp_path):
    """Its points belong to no triangle: with --repair they were dropped, and that was the last word about them."""
    corners = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    other = (
        piece(corners + 5, np.zeros((0, 3), int), [4.0, 5.0, 6.0])
        if kind == "no cells"
        else lines(corners + 5, [4.0, 5.0, 6.0])
    )
    path = vtu_of(tmp_path, piece(corners, [[0, 1, 2]], [1.0, 2.0, 3.0]), other)
    with pytest.raises(UnreadableFile, match="piece 2 has points, but no cells that are areas, as other pieces have") as raised:
        read_file(path, ReadOptions(repair=repair))
    assert "--repair" not in str(raised.value)
    shared = vtu_of(tmp_path, piece(corners, [[0, 1, 2]], [1.0, 2.0, 3.0]), lines(corners[:2], [1.0, 2.0]))
    assert len(read_file(shared, ReadOptions(repair=repair)).domain) == 3  # nothing is lost: they are the edge of a triangle


def test_pieces_are_joined_up_to_rounding(tmp_path):
    """Neither the last digit of a coordinate, nor that of the truth, nor the number of a part cracks a mesh."""
    corners = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    values = np.array([1.0, 2.0, 3.0])
    rounded = corners[1:] * (1 + 1e-15) + 1e-14
    second = np.r_[rounded, [[1.0, 1.0]]]
    same = vtu_of(tmp_path, piece(corners, [[0, 1, 2]], values), piece(second, [[0, 1, 2]], [2 + 1e-15, 3.0, 4.0]))
    content = read_file(same, ReadOptions())
    assert len(content.domain) == 4
    assert sorted(content.fields["u"][0].tolist()) == [1.0, 2.0, 3.0, 4.0]
    other = vtu_of(tmp_path, piece(corners, [[0, 1, 2]], values), piece(second, [[0, 1, 2]], [2.5, 3.0, 4.0]))
    content = read_file(other, ReadOptions())
    assert len(content.domain) == 5
    assert any(
        "points kept apart, because their data differ from those of another point there: 1" in each for each in content.notes
    )
    parts = [
        part.replace('type="Float64" Name="u"', 'type="Int32" Name="u"')
        for part in (piece(corners, [[0, 1, 2]], [0, 0, 0]), piece(second, [[0, 1, 2]], [1, 1, 1]))
    ]
    content = read_file(vtu_of(tmp_path, *parts), ReadOptions())
    assert len(content.domain) == 4


def test_the_parts_of_one_time_are_not_samples(tmp_path):
    gkn.save(tmp_path / "a.vtu", Mesh.square(0.5), {"u": np.ones(len(Mesh.square(0.5)))})
    shutil.copy(tmp_path / "a.vtu", tmp_path / "b.vtu")

    def listed(*entries):
        path = tmp_path / "x.pvd"
        text = "".join(f"<DataSet {entry}/>" for entry in entries)
        path.write_text(f'<VTKFile type="Collection"><Collection>{text}</Collection></VTKFile>')
        return path

    for entries, said in (
        (('timestep="0" part="0" file="a.vtu"', 'timestep="0" part="1" file="b.vtu"'), "lists 2 files for time 0;"),
        (('part="0" file="a.vtu"', 'part="1" file="b.vtu"'), "lists 2 files for time 0;"),
        (('timestep="0" file="a.vtu"', 'timestep="1" file="a.vtu"'), "lists a.vtu 2 times"),
    ):
        with pytest.raises(UnreadableFile, match=said):
            read_file(listed(*entries), ReadOptions())
    assert len(read_file(listed('file="a.vtu"', 'file="b.vtu"'), ReadOptions())) == 2


def test_pieces_with_nan_in_common_points_stay_together(tmp_path):
    left = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    cells = np.array([[0, 1, 2], [1, 3, 2]])
    path = tmp_path / "x.vtu"

    def written(first, second):
        pieces = piece(left, cells, first) + piece(left + np.array([1, 0]), cells, second)
        write_vtu(path, pieces)
        return read_file(path, ReadOptions())

    nan = float("nan")
    assert len(written([1, nan, 3, nan], [nan, 5, nan, 7]).domain) == 6
    apart = written([1, 2, 3, 4], [2.5, 5, 4, 7])
    assert len(apart.domain) == 7
    assert "points kept apart, because their data differ from those of another point there: 1" in apart.notes


# --- 3: outside of the training range


@pytest.fixture(scope="module")
def operator():
    """Trained on [0, 2] x [0, 2], so in a frame, with a between 0 and 1."""
    grid = Grid(9, low=(0.0, 0.0), high=(2.0, 2.0))
    values = torch.rand(12, 81, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return fit(Dataset(grid, a=values, u=1 + values), tiny.network(), Nystrom(0.6, 60), epochs=1)


@pytest.mark.parametrize("name", ["trained", "darcy", "darcy-nearfar"])
def test_answers_outside_of_the_training_range_are_warned_of(name, operator):
    """However the operator is asked, with the ranges."""
    asked, side, a = (operator, 2.0, 0.5) if name == "trained" else (gkn.pretrained(name), 1.0, 3.0)
    good = Grid(9, low=(0.0, 0.0), high=(side, side)) if side != 1 else Grid(9)
    far = Cloud(good.points + 3 * side, good.weights, good.boundary)
    constant = torch.full((81,), a, dtype=torch.float64)

    def said(call):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            call()
        return [str(each.message) for each in caught]

    def as_sample(domain, values):
        return gkn.Sample(domain, values[:, None], torch.zeros(81, 1))

    for ask in (
        lambda domain, values: asked.answer(domain, a=values),
        lambda domain, values: asked(asked.sample(domain, a=values)),
        lambda domain, values: asked(as_sample(domain, values)),
    ):
        assert said(lambda ask=ask: ask(good, constant)) == []
        (text,) = said(lambda ask=ask: ask(far, constant))
        assert f"the points fill the box [{3 * side:g}, {4 * side:g}]" in text
        assert f"in training [0, {side:g}] x [0, {side:g}]" in text
        (text,) = said(lambda ask=ask: ask(good, 9 * constant))
        assert f"a is {9 * a:g}, in training it was between" in text
    points = torch.tensor([[0.5, 0.5], [7.0, 7.0]], dtype=torch.float64)
    with pytest.raises(ValueError, match="lie outside"):
        asked.answer(good, a=constant, at=points)
    assert said(lambda: asked(as_sample(good, 9 * constant), check=False)) == []
    for make in (as_sample, lambda domain, values: asked.sample(domain, a=values)):  # the second one may be in a frame
        cloud = make(Cloud(good.points, good.weights, good.boundary), constant)
        (text,) = said(lambda cloud=cloud: asked(cloud, points))
        assert text.startswith("1 of 2 query points lie outside of the training data, as (7, 7)")
        (text,) = said(lambda cloud=cloud: asked(cloud, points[:1], a=torch.full((1, asked.model.in_channels), 99.0)))
        assert "a is 99, in training it was between" in text
        (text,) = said(lambda make=make: asked(make(good, (9 * constant).requires_grad_()), differentiable=True))
        assert f"a is {9 * a:g}, in training" in text
    data = Dataset(good, a=torch.stack([constant, 9 * constant]), u=torch.ones(2, 81))
    (text,) = [each for each in said(lambda: asked.evaluate(data)) if "in training" in each]
    assert text.startswith(f"sample 1: a is {9 * a:g}, in training it was between")


def test_a_shift_of_a_periodic_domain_is_not_warned_of():
    """An axis that goes on for ever has no outside; the other axis has."""
    ranges = {"low": [0.0, 0.0], "high": [1.0, 1.0]}
    shifted = Grid((8, 9), low=(5.0, 0.0), high=(6.0, 1.0), periodic=(True, False))
    at = torch.tensor([[7.5, 0.5], [0.5, 7.5]], dtype=torch.float64)
    assert outside(ranges, shifted, {}) == []
    assert outside(ranges, shifted, {}, at[:1]) == []
    assert outside(ranges, shifted, {}, at) == ["1 of 2 query points lie outside of the training data, as (0.5, 7.5)"]


def test_ranges_are_shown_with_digits_that_differ():
    """The sentence was that T is between 1e+06 and 1e+06, and was so in training."""
    (said,) = outside({"inputs": {"T": [1e6, 1e6 + 1]}}, Grid(3), {"T": torch.tensor([1e6, 1e6 + 2])})
    assert said == "T is between 1000000 and 1000002, in training it was between 1000000 and 1000001"
    (said,) = outside({"inputs": {"T": [0.25, 0.5]}}, Grid(3), {"T": torch.tensor([9.0])})
    assert said == "T is 9, in training it was between 0.25 and 0.5"


def test_the_command_line_warns_of_them(operator, tmp_path):
    operator.save(tmp_path / "op")
    shifted = Grid(9, low=(100.0, 0.0), high=(102.0, 2.0))
    gkn.save(tmp_path / "in.npz", shifted, {"a": torch.full((81,), 7.0)})
    said = run("predict", tmp_path / "op", "--input", tmp_path / "in.npz", "--out", tmp_path / "out.npz")
    assert "a is 7, in training it was between" in said
    assert "the points fill the box [100, 102] x [0, 2], in training [0, 2] x [0, 2]" in said


def test_a_number_per_sample_that_varies_is_refused():
    """The answer was that for its first value. So was that for two components of three."""
    grid, rng = Grid(5), torch.Generator().manual_seed(0)
    w = torch.rand(6, 25, 2, generator=rng, dtype=torch.float64)
    data = Dataset(grid, w=w, load=[1.0, 2, 3, 4, 5, 6], u=w[..., 0])
    operator = fit(data, GKN(dim=2, in_channels=3, width=4, kernel=(4,)), Nystrom(0.6, 20), epochs=1, warn=lambda text: None)
    good = operator.answer(grid, w=w[0], load=2.0)["u"]
    assert np.array_equal(operator.answer(grid, w=w[0], load=np.full(25, 2.0))["u"], good)
    padded = torch.cat([w[0], torch.zeros(25, 1)], 1)
    assert np.array_equal(operator.answer(grid, w=padded, load=2.0)["u"], good)
    finer = Grid(12)
    assert operator.answer(grid, input_domain=finer, w=np.ones((144, 2)), load=np.full(144, 0.1))["u"].shape == (25,)
    with pytest.raises(ValueError, match="load is one number per sample, but the given field varies: 0 to 1"):
        operator.answer(grid, w=w[0], load=torch.linspace(0, 1, 25))
    with pytest.raises(ValueError, match="needed 2 components, and the others 0"):
        operator.answer(grid, w=padded + 1, load=2.0)
    w[0, 7, 1] = torch.nan
    with pytest.raises(ValueError, match=r"w must be finite, but 1 of 50 are not; the first is nan at \(7, 1\)"):
        operator.answer(grid, w=w[0], load=2.0)


# --- 8: complex numbers, inclined surfaces


def test_complex_numbers_are_refused(operator, tmp_path):
    grid, values = Grid(3), torch.ones(2, 9, dtype=torch.complex64)
    said = "must be real, but came as"
    for given in (values, values.numpy(), [*values], [*values.numpy()], values.tolist()):
        with pytest.raises(ValueError, match=f"field 'u' {said}"):
            Dataset(grid, u=given)
    with pytest.raises(ValueError, match=said):
        smooth(grid, values[0], 0.1)
    with pytest.raises(ValueError, match=said):
        Normalizer(torch.ones(1, dtype=torch.complex64), torch.ones(1))
    with pytest.raises(ValueError, match=said):
        operator.sample(grid, a=values[0])
    with pytest.raises(ValueError, match=f"points {said}"):
        operator(operator.sample(grid, a=np.ones(9) / 2), at=values[:, :2])
    for ending in ("npz", "vtu", "csv"):
        with pytest.raises(ValueError, match="field 'u' has type complex64; needed real numbers"):
            gkn.save(tmp_path / f"x.{ending}", grid, {"u": values[0]})
    np.savez(tmp_path / "x.npz", points=grid.points.numpy(), u=values[0].numpy())
    with pytest.raises(UnreadableFile, match="u holds complex64, not real numbers"):
        import_files([tmp_path / "x.npz"])


@pytest.mark.parametrize("size", [1.0, 1e-9, 1e9])
@pytest.mark.parametrize("slope", [1.0, 1e-9])
def test_inclined_surfaces_stay_inclined(size, slope, tmp_path):
    mesh = Mesh.square(0.5)
    points = size * np.c_[mesh.points.numpy(), slope * mesh.points.numpy()[:, 0]]
    np.savez(tmp_path / "x.npz", points=points, cells=mesh.cells.numpy(), u=np.ones(len(mesh)))
    domain = import_files([tmp_path / "x.npz"]).domain
    assert np.array_equal(domain.points.numpy(), points)
    assert float(domain.weights.sum()) == pytest.approx(size**2 * np.hypot(1, slope))
    rounded = size * np.c_[mesh.points.numpy(), 1e-15 * mesh.points.numpy()[:, 0]]
    np.savez(tmp_path / "flat.npz", points=rounded, cells=mesh.cells.numpy(), u=np.ones(len(mesh)))
    content = read_file(tmp_path / "flat.npz", ReadOptions())
    assert content.domain.dim == 2
    assert "the same up to 1e-12 of the size at all points: z" in content.notes[0]


def test_masked_values_are_not_taken_for_data(operator):
    masked = np.ma.masked_values(np.r_[-9999.0, np.ones(8)], -9999.0)
    with pytest.raises(ValueError, match="field 'u' is a masked array"):
        Dataset(Grid(3), u=[masked])
    with pytest.raises(ValueError, match="a is a masked array"):
        operator.sample(Grid(3), a=masked)
    assert len(Dataset(Grid(3), u=[np.ma.array(np.ones(9))])) == 1


def test_true_is_no_number_anywhere():
    grid = Grid(3)
    for call in (
        lambda: gkn.Radius(True),
        lambda: Nystrom(0.2, True),
        lambda: gkn.Spread(True),
        lambda: gkn.Support(10, True),
        lambda: smooth(grid, torch.ones(9), True),
        lambda: gkn.make_dataset(gkn.Darcy(size=5), True),
        lambda: gkn.Recipe(lr=True),
    ):
        with pytest.raises(ValueError, match=r"needed|must be|length"):
            call()
    assert gkn.Recipe(lr=np.float64(1e-3)).lr == 1e-3


def test_a_network_has_one_two_or_three_dimensions():
    for kind in (gkn.rivals.RBM, gkn.rivals.Dense, gkn.GKN):
        with pytest.raises(ValueError, match=r"dim=1000000000\): needed 1, 2 or 3"):
            kind(dim=10**9)


def test_inputs_at_query_points_are_compared_with_the_training_range(operator):
    grid = Grid(9, low=(0.0, 0.0), high=(2.0, 2.0))
    sample = gkn.Sample(grid, torch.full((81, 1), 0.5, dtype=torch.float64), torch.zeros(81, 1))
    at = torch.tensor([[1.0, 1.0]], dtype=torch.float64)
    with pytest.warns(UserWarning, match=r"a is 1e\+06, in training"):
        operator(sample, at, a=torch.tensor([[1e6]], dtype=torch.float64))


def test_what_info_says_of_folders(tmp_path, operator):
    operator.save(tmp_path / "op")
    (tmp_path / "op/operator.json").unlink()
    assert "the operator is incomplete: saving it was interrupted" in run("info", tmp_path / "op", code=1)
    (tmp_path / "empty").mkdir()
    assert "empty: no operator, it has no operator.json" in run("eval", tmp_path / "empty", tmp_path, code=1)
    assert "no run, operator or dataset" in run("info", tmp_path / "empty", code=1)
    assert "nothing: no such folder" in run("info", tmp_path / "nothing", code=1)


# --- 11: special files


def special(path, kind):
    """Put a pipe, a device, a folder or a link to nowhere in place of a file."""
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to(path)
    return path


KINDS = ("pipe", "device", "folder", "loop")


@pytest.fixture
def within_seconds():
    """End the test process if a read waits for ever: a blocked read cannot be interrupted from inside."""
    timer = threading.Timer(60, lambda: os._exit(99))
    timer.start()
    yield
    timer.cancel()


@pytest.mark.parametrize("kind", KINDS)
def test_only_regular_files_are_opened(kind, tmp_path, within_seconds):
    for read in (read_regular, read_sealed_json, read_points, lambda path: read_file(path, ReadOptions())):
        path = special(tmp_path / f"x{len([*tmp_path.iterdir()])}.vtu", kind)
        with pytest.raises((CorruptFile, FileNotFoundError), match=r"a pipe or device|a folder|cannot be opened|no such file"):
            read(path)
    with pytest.raises((CorruptFile, FileNotFoundError)):
        run_config(special(tmp_path / "x.toml", kind), tmp_path)


def run_config(path, folder):
    import typer

    try:
        fill(typer.Context(typer.main.get_command(typer.Typer(callback=lambda: None))), path)
    except typer.BadParameter as error:
        raise CorruptFile(str(error)) from error


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_with_special_files(kind, tmp_path, within_seconds):
    """run.json is refused; a special checkpoint is skipped, and the run goes on from the one before."""
    tiny.run(tmp_path / "run", epochs=4)
    shutil.rmtree(tmp_path / "run/operator")
    steps = checkpoints_of(tmp_path / "run").steps()
    special(tmp_path / f"run/checkpoints/step-{steps[-1]:08d}.json", kind)
    said = []
    if kind == "folder":  # which is not ours to remove
        with pytest.raises(IsADirectoryError, match=f"step-{steps[-1]:08d}"):
            tiny.run(tmp_path / "run", epochs=4, warn=said.append)
    else:
        tiny.run(tmp_path / "run", epochs=4, warn=said.append)
        assert load(tmp_path / "run").about["metrics"]["epoch"] == 4
        shutil.rmtree(tmp_path / "run/operator")
    assert any("going on from the checkpoint before" in text for text in said)
    special(tmp_path / "run/run.json", kind)
    with pytest.raises((CorruptFile, FileNotFoundError)):
        load(tmp_path / "run")
    with pytest.raises((ValueError, OSError)):
        tiny.run(tmp_path / "run", epochs=4)


@pytest.mark.parametrize("kind", KINDS)
def test_tables_beside_the_files_of_a_folder(kind, tmp_path, within_seconds):
    np.savez(tmp_path / "x.npz", points=Grid(3).points.numpy(), u=np.ones(9))
    special(tmp_path / "table.csv", kind)
    assert len(import_files([tmp_path / "x.npz"])) == 1


# --- 14: what a dataset is made of

NUMBERS = np.linspace(0.0, 1.0, 25)
TENSOR = torch.from_numpy(NUMBERS)
FROZEN = NUMBERS.copy()
FROZEN.flags.writeable = False
TAKEN = {
    "backwards": NUMBERS[::-1][::-1],
    "big-endian": NUMBERS.astype(">f8"),
    "long double": NUMBERS.astype(np.longdouble),
    "read-only": FROZEN,
    "list": NUMBERS.tolist(),
    "list of tensors": [torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in NUMBERS.tolist()],
    "with a gradient": TENSOR.clone().requires_grad_(),
    "negative bit": torch.complex(TENSOR, -TENSOR).conj().imag,
}
REFUSED = {
    "sparse": (TENSOR.to_sparse(), "is no dense tensor"),
    "meta": (TENSOR.to("meta"), "is no dense tensor"),
    "objects": (NUMBERS.astype(object), "holds object; needed real numbers"),
    "words": (NUMBERS.astype(str), "needed real numbers"),
    "ragged": ([[1.0], [1.0, 2.0]], "is no array"),
}


def of_one_field():
    return Operator(GKN(dim=2, width=4, kernel=(4,)), Radius(0.4), features=Features(("a",), ("a",), ("u",)))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", TAKEN)
def test_numbers_of_any_kind_are_taken_everywhere(name, tmp_path):
    values, operator = (
        TAKEN[name],
        Operator(GKN(dim=2, width=4, kernel=(4,)), Radius(0.4), features=Features(("a",), ("a",), ("u",))),
    )
    assert np.array_equal(operator.answer(Grid(5), a=values)["u"], operator.answer(Grid(5), a=NUMBERS)["u"])
    assert torch.equal(smooth(Grid(5), values, 0.1)[0].detach(), smooth(Grid(5), NUMBERS, 0.1)[0])
    data = Dataset(Grid(5), a=[values, values], u=torch.zeros(2, 25))
    data.save(tmp_path / "data")
    for each in (data, Dataset.open(tmp_path / "data")):
        assert torch.equal(each.field("a"), TENSOR.repeat(2, 1))


def test_a_later_change_of_an_array_changes_no_domain():
    """Arrays are copied: a loop that moves its points would change all domains made before."""
    points, weights, cells = np.random.default_rng(0).random((5, 2)), np.ones(5), Mesh.square(0.5).cells.numpy()
    corners = Mesh.square(0.5).points.numpy().copy()
    cloud, mesh = Cloud(points, weights, np.zeros(5, bool)), Mesh(corners, cells)
    before = [x.clone() for x in (cloud.points, cloud.weights, mesh.points)]
    points += 1
    weights += 1
    corners += 1
    assert all(torch.equal(x, y) for x, y in zip(before, (cloud.points, cloud.weights, mesh.points), strict=True))


def test_a_file_in_memory_is_not_copied(tmp_path):
    np.save(tmp_path / "x.npy", np.random.default_rng(0).random((3, 25)))
    values = np.load(tmp_path / "x.npy", mmap_mode="r")
    assert as_real(values, "x").data_ptr() == values.ctypes.data


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_numbers_is_refused_in_words(name):
    (values, said), operator = REFUSED[name], of_one_field()
    for use in (
        lambda: operator.answer(Grid(5), a=values),
        lambda: smooth(Grid(5), values, 0.1),
        lambda: Dataset(Grid(5), a=[values, values], u=torch.zeros(2, 25)),
    ):
        with pytest.raises(ValueError, match=said):
            use()


def test_numbers_of_half_precision_and_truth_values_can_be_saved(tmp_path):
    for i, values in enumerate((TENSOR.half(), TENSOR.bfloat16(), torch.ones(25, dtype=torch.uint8), TENSOR > 0.5)):
        Dataset(Grid(5), a=values[None], u=torch.zeros(1, 25), on=[np.bool_(True)]).save(tmp_path / str(i))
        assert torch.equal(Dataset.open(tmp_path / str(i)).value("a", 0).double(), values.double())


def test_a_dataset_of_lists_and_of_tensors_with_gradients(tmp_path):
    grid, values = Grid(3), torch.rand(2, 9, dtype=torch.float64, requires_grad=True)
    plain = values.detach()
    for given in (values, [*values], [*values.detach().numpy()], plain.tolist(), tuple(plain.numpy()), plain.numpy()):
        data = Dataset(grid, u=given)
        assert torch.equal(data.field("u"), plain)
        assert not data[0].u.requires_grad
        data.save(tmp_path / "data", force=True)
        assert torch.equal(Dataset.open(tmp_path / "data").field("u"), plain)
    fit(Dataset(grid, a=values, u=1 + values), tiny.network(), Nystrom(0.6, 9), epochs=1, warn=lambda text: None)
    vectors = Dataset(grid, u=torch.rand(2, 9, 2, requires_grad=True).tolist())
    assert vectors.outputs == ("u_x", "u_y")


# --- 15: messages


def mesh_file(path, points, cells, **fields):
    np.savez(path, points=points, cells=cells, **fields)
    return path


SQUARE = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
TWO = np.array([[0, 1, 2], [1, 3, 2]])


def test_repair_is_advised_where_it_helps_only(tmp_path):
    """Advised for points without cells and flat cells, not for NaN, wrong indices, cells that overlap or are too large."""
    advice = "--repair"
    tetrahedron = np.array([[0.0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1], [0.5, 0.5, 0]])
    helped = {
        "loose": (np.r_[SQUARE, [[5.0, 5.0]]], TWO),
        "flat": (np.r_[SQUARE, [[2.0, 0.0]]], np.r_[TWO, [[0, 1, 4]]]),
        "flat tetrahedron": (tetrahedron, np.array([[0, 1, 2, 3], [0, 1, 2, 4]])),
    }
    for name, (points, cells) in helped.items():
        path = mesh_file(tmp_path / "x.npz", points, cells, u=np.ones(len(points)))
        with pytest.raises(UnreadableFile, match=advice):
            import_files([path])
        assert len(import_files([path], repair=True)) == 1, name
    not_helped = {
        "nan": (np.r_[SQUARE[:3], [[np.nan, 0.0]]], TWO),
        "index": (SQUARE, np.array([[0, 1, 7]])),
        "overlap": (np.r_[SQUARE, [[9.0, 9.0]]], np.array([[0, 1, 2], [0, 1, 3]])),
        "too large": (1e200 * SQUARE, TWO),
        "all flat": (np.array([[0.0, 0.0], [1.0, 1.0], [2.0, 2.0], [0.0, 1.0]]), np.array([[0, 1, 2]])),
    }
    for name, (points, cells) in not_helped.items():
        path = mesh_file(tmp_path / "x.npz", points, cells, u=np.ones(len(points)))
        with pytest.raises(UnreadableFile) as raised:
            import_files([path])
        assert advice not in str(raised.value), (name, str(raised.value))


def test_a_nan_is_blamed_on_its_own_file(tmp_path):
    for i in range(4):
        u = np.ones(9)
        u[5] = np.nan if i == 2 else 1.0
        np.savez(tmp_path / f"run{i}.npz", points=Grid(3).points.numpy(), u=u)
    with pytest.raises(UnreadableFile, match=r"run2\.npz: field u is not finite everywhere: nan at point 5"):
        import_files([tmp_path])
    points = Grid(3).points.numpy().copy()
    points[3, 1] = np.inf
    np.savez(tmp_path / "run2.npz", points=points, u=np.ones(9), cells=np.array([[0, 1, 3]]))
    with pytest.raises(UnreadableFile, match=r"run2\.npz: point 3 is"):
        import_files([tmp_path])


def test_a_folder_is_not_called_missing(tmp_path):
    (tmp_path / "x.npy").mkdir()
    with pytest.raises(CorruptFile, match=r"x\.npy: a folder; needed a file"):
        read_points(tmp_path / "x.npy")
    (tmp_path / "x.vtu").mkdir()
    with pytest.raises(CorruptFile, match=r"x\.vtu: a folder; needed a file"):
        read_file(tmp_path / "x.vtu", ReadOptions())
    np.savez(tmp_path / "y.npz", points=Grid(3).points.numpy(), u=np.ones(9))
    (tmp_path / "table.csv").mkdir()
    with pytest.raises(CorruptFile, match=r"table\.csv: a folder; needed a file"):
        import_files([tmp_path / "y.npz"], parameters=tmp_path / "table.csv")
