"""From files to a dataset: lists of files, the choice of inputs and outputs, and tables of parameters."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from gkn.data.dataset import Dataset
from gkn.data.foreign.raw import Array, UnreadableFile
from gkn.data.groups import component_names
from gkn.data.readers.csv import read_table
from gkn.data.readers.format import READERS, Content, Field, Nodes, ReadOptions, file_of, read_file
from gkn.data.readers.join import in_space, joined, names_of
from gkn.data.readers.report import describe
from gkn.data.readers.series import trajectories_of
from gkn.geometry.cloud import Cloud
from gkn.geometry.domain import Domain
from gkn.geometry.mesh import Mesh
from gkn.system.files import check_regular

Paths: TypeAlias = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
SETS = ("set:", "region:")
"""How the names of fields begin that mark named sets of nodes and regions. They describe the geometry."""
_NAME_COLUMNS = ("file", "name", "sample")


def import_files(
    paths: Paths,
    *,
    outputs: Sequence[str] = ("u",),
    inputs: Sequence[str] | None = None,
    parameters: str | os.PathLike[str] | None = None,
    nodes: Nodes | None = None,
    low: float = 3.0,
    high: float = 12.0,
    repair: bool = False,
    box: tuple[Sequence[float], Sequence[float]] | None = None,
    periodic: bool = False,
    as_samples: bool = False,
    report: Callable[[str], object] | None = None,
) -> Dataset:
    """Read files into one dataset, sample after sample, or trajectory after trajectory if the files have times.

    paths       files, folders, or a pattern such as "run*.vtu"
    outputs     the fields to be learned; a component may be named, too: "stress_xx"
    inputs      fields and parameters to learn from; by default those that the format itself defines
    parameters  a .csv file with numbers of each file or sample, all of which are inputs as well
    report      called with every line of a report on what was read, moved, dropped and not used
    others      see `ReadOptions`
    """
    content = read_files(paths, ReadOptions(nodes, low, high, repair, box, periodic, as_samples), parameters)
    if report is not None:
        for line in describe(content):
            report(line)
    return to_dataset(content, outputs, inputs, report)


def read_files(paths: Paths, options: ReadOptions | None = None, parameters: str | os.PathLike[str] | None = None) -> Content:
    """Read files, folders or patterns into one content.

    parameters   a .csv file with a line per file or sample. A column called file, name or sample holds names of files, with
                 or without their endings; without such a column, lines are in the order of the samples. The columns of
                 numbers become parameters and inputs.
    """
    files = [*listed_files(paths, None if parameters is None else Path(parameters))]
    if not files:
        raise ValueError("no file to import was given")
    content = joined([read_file(path, options or ReadOptions()) for path in files])
    left = [each.name for each in _tables_beside(files) if parameters is None or each.resolve() != Path(parameters).resolve()]
    if left:
        note = f"not read: {', '.join(left)}; a table of numbers per file is given with --parameters"
        content = replace(content, notes=(*content.notes, note))
    if parameters is None:
        return content
    columns, ignored = _table(Path(parameters), content)
    twice = [name for name in columns if name in content.fields]
    if twice:
        raise UnreadableFile(f"{parameters}: the column {twice[0]} has the name of a field; rename it")
    replaced = [name for name in columns if name in content.parameters]
    notes: tuple[str, ...] = (
        (f"parameters of the files replaced by those of {parameters}: {', '.join(replaced)}",) if replaced else ()
    )
    notes += (f"columns of words in {parameters}, not used: {', '.join(ignored)}",) if ignored else ()
    inputs = (*content.inputs, *(name for name in columns if name not in content.inputs))
    return replace(
        content,
        parameters={**content.parameters, **columns},
        inputs=inputs,
        notes=(*content.notes, *notes),
        table_inputs=tuple(columns),
    )


def to_dataset(
    content: Content,
    outputs: Sequence[str] = ("u",),
    inputs: Sequence[str] | None = None,
    report: Callable[[str], object] | None = None,
) -> Dataset:
    """Make a dataset of some fields and parameters of a content.

    inputs   by default those that the format defines. Parameters of an explicit table are inputs in any case.
    """
    if isinstance(outputs, str) or isinstance(inputs, str):
        raise TypeError(f"outputs={outputs!r}, inputs={inputs!r}: needed lists of names")
    wanted = [*content.inputs] if inputs is None else [*inputs, *(n for n in content.table_inputs if n not in inputs)]
    wanted = [name for name in wanted if name not in outputs] if inputs is None else wanted
    notes: list[str] = []
    if isinstance(content.domain, list):
        sets = [name for name in content.fields if name.startswith(SETS) and name not in (*wanted, *outputs)]
        wanted += sets
        if sets:
            notes.append(f"inputs by default, because the domains differ: {', '.join(sets)}")
    both = [name for name in wanted if name in outputs]
    if both:
        raise ValueError(f"{both[0]!r} is named both as an input and as an output")
    if not content.fields and not content.input_fields:
        raise UnreadableFile(f"{_first_file(content)}: no fields in it, only points")
    if content.series and "time" in (inputs or ()):
        raise ValueError("the states have times already, which are those of steps; leave the input time out, or use as_samples")
    wanted = [name for name in wanted if name != "time" or not content.series]
    chosen: dict[str, Any] = {}
    for name in (*wanted, *outputs):
        chosen[name] = _found(content, name, "output" if name in outputs else "input", notes)
    numbers = [name for name in outputs if name in content.parameters and name not in content.fields]
    if numbers:
        raise ValueError(f"{numbers[0]!r} is a number per sample; an output must be a field")
    for name, values in chosen.items():
        _check_finite(content, name, values)
    parts = {name.rpartition("_")[0] for name in chosen if name not in content.fields}
    known = {*chosen, *parts, *(("time",) if content.series else ())}
    unused = [name for name in (*content.fields, *content.input_fields, *content.parameters) if name not in known]
    if unused:
        notes.append(f"not used: {', '.join(unused)} (name them with --input)")
    if report is not None:
        for note in notes:
            report(f"note: {note}")
    if content.series:
        return trajectories_of(content, chosen, outputs, wanted)
    return Dataset.of(content.domain, chosen, outputs, wanted, files=names_of(content.sources))


def _found(content: Content, name: str, role: str, notes: list[str]) -> Field:
    """Return a field, a parameter, or a component of a field."""
    for given in (content.fields, content.parameters):
        if name in given:
            return given[name]
    if name in content.input_fields:
        return _moved(content, name, notes)
    for group, values in content.fields.items():
        row = values[0]
        names = component_names(group, row.shape[1]) if row.ndim == 2 else ()
        if name in names:
            i = names.index(name)
            return values[..., i] if isinstance(values, Tensor) else [each[:, i] for each in values]
    if name in content.missing:
        raise UnreadableFile(f"{content.missing[name]}: no field or parameter {name!r}, which other files have")
    lone = [each for each in content.fields if each.startswith(f"{name}_") and each[len(name) + 1 :] in ("x", "y", "z")]
    if lone:
        raise UnreadableFile(f"{_first_file(content)}: of the vector {name!r} there is {', '.join(lone)} only")
    known = ", ".join([*content.fields, *content.input_fields, *content.parameters])
    raise ValueError(
        f"{_first_file(content)}: no field {name!r} to be the {role}; it has {known}: name one with {role}s or --{role}"
    )


def _moved(content: Content, name: str, notes: list[str]) -> Tensor:
    """Interpolate an input that is given on other points to the points of the outputs."""
    source, values = content.input_domain, content.input_fields[name]
    if source is None or isinstance(content.domain, list):
        raise UnreadableFile(f"{_first_file(content)}: the points of the input {name!r} are not known")
    at = content.domain.points
    notes.append(f"{name} is given on {len(source)} other points: interpolated to the {len(at)} points of the outputs")
    if source.dim == 1:
        order = source.points[:, 0].argsort().numpy()
        x, y = source.points[:, 0].numpy()[order], values.numpy()[:, order]
        return torch.from_numpy(np.stack([np.interp(at[:, 0].numpy(), x, row) for row in y]))
    return source.interpolate(values.T, at).T


def _check_finite(content: Content, name: str, values: Field) -> None:
    for i, row in enumerate(values):
        bad = ~torch.isfinite(row)
        if bool(bad.any()):
            source = content.sources[i]
            if row.ndim == 0:
                raise UnreadableFile(f"{source}: the parameter {name} is {float(row)}, not finite")
            point = int(bad.reshape(len(row), -1).any(1).nonzero()[0])
            raise UnreadableFile(f"{source}: field {name} is not finite everywhere: {_text(row[point])} at point {point}")


def _text(value: Tensor) -> str:
    return str(value.tolist())


def _first_file(content: Content) -> str:
    return file_of(content.sources[0]) if content.sources else "the files"


# --- lists of files


def natural(name: str) -> list[tuple[int, int, str]]:
    """Return a key that sorts run2 before run10."""
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in re.split(r"(\d+)", name) if part]


def listed_files(paths: Paths, table: Path | None = None) -> Iterator[Path]:
    """Return the files that paths, folders and patterns stand for. A folder's table of parameters is not one of them."""
    for given in [paths] if isinstance(paths, str | os.PathLike) else paths:
        path = Path(given)
        if path.is_dir():
            found = [each for each in path.iterdir() if each.is_file() and each.suffix.lower() in READERS]
            found = [each for each in found if table is None or each.resolve() != table.resolve()]
            tables = [each for each in found if _is_table(each)]
            if len(tables) < len(found):
                found = [each for each in found if each not in tables]
            # A .pvd lists other files of the folder, which are not to be read twice.
            lists = [each for each in found if each.suffix.lower() == ".pvd"]
            if lists and len(found) > len(lists):
                names = ", ".join(each.name for each in lists)
                raise ValueError(f"{path}: has {names} and the files it lists; name the .pvd, or a pattern such as *.vtu")
            if not found:
                below = next((each for each in path.rglob("*") if each.suffix.lower() in READERS and each.is_file()), None)
                hint = "" if below is None else f'; those of its folders are "{path}/**/*{below.suffix}"'
                raise FileNotFoundError(f"{path}: no file to read in this folder; needed {', '.join(READERS)}{hint}")
            yield from sorted(found, key=lambda each: natural(each.name))
        elif not path.exists() and any(character in str(given) for character in "*?["):
            matches = [Path(each) for each in glob.glob(str(given), recursive=True)]
            matches = [each for each in matches if table is None or each.resolve() != table.resolve()]
            if not matches:
                raise FileNotFoundError(f"{given}: no such files")
            yield from sorted(matches, key=lambda each: natural(str(each)))
        else:
            yield path


def _is_table(path: Path) -> bool:
    """True for a .csv file without a column x: numbers per file, and no points."""
    if path.suffix.lower() != ".csv":
        return False
    with open(path, errors="replace") as file:
        return "x" not in re.split(r"[\s,;\"]+", file.readline(10_000).lower().lstrip("\ufeff"))


def _tables_beside(files: Sequence[Path]) -> list[Path]:
    """Return the tables in the folders of some files that are not among them."""
    folders = {path.parent for path in files}
    beside = [each for folder in folders for each in folder.glob("*.csv") if each not in files and each.is_file()]
    return sorted(each for each in beside if _is_table(each))


# --- tables of parameters


def parameters_of(table: Path, file: Path) -> dict[str, float]:
    """Return the numbers of one file in a table of parameters."""
    content = Content(Cloud([[0.0]]), {}, sources=(str(file),))
    return {name: float(values[0]) for name, values in _table(table, content)[0].items()}


def _table(path: Path, content: Content) -> tuple[dict[str, Tensor], list[str]]:
    """Return the columns of numbers of a table, in the order of the samples, and the names of the columns of words."""
    check_regular(path)
    try:
        columns, words = read_table(path, _NAME_COLUMNS)
    except UnreadableFile:
        raise
    except Exception as error:  # such as bytes that are no text
        raise UnreadableFile(f"{path}: cannot be read: {type(error).__name__}: {error}") from error
    lower = {name.lower(): name for name in words}
    key = next((lower[name] for name in _NAME_COLUMNS if name in lower), None)
    n = len(content)
    if key is None:
        count = len(next(iter(columns.values()))) if columns else n
        if count != n:
            raise UnreadableFile(f"{path}: {count} lines for {n} samples; needed one line each, or a column called file")
        order: Array = np.arange(n)
    else:
        order = _matched(path, words[key], content.sources)
    if not columns:
        raise UnreadableFile(f"{path}: no column of numbers in it")
    for name, values in columns.items():
        bad = [i for i in range(n) if not np.isfinite(values[order[i]])]
        if bad:
            raise UnreadableFile(f"{path}: no number in column {name} for {content.sources[bad[0]]}")
    found = {name: torch.from_numpy(np.ascontiguousarray(values[order])) for name, values in columns.items()}
    return found, [name for name in words if name != key]


def _matched(path: Path, names: list[str], sources: Sequence[str]) -> Array:
    """Return the line of each sample."""
    lines: dict[str, int] = {}
    for i, name in enumerate(names):
        if name in lines:
            raise UnreadableFile(f"{path}: {name!r} has two lines")
        lines[name] = i
    order = []
    stems = [Path(source).name for source in sources]
    for source in sources:
        file = Path(source)
        if stems.count(file.name) > 1 and source not in lines and ", time " not in source:
            raise UnreadableFile(f"{path}: several files are called {file.name}; name them with their folders, as {source}")
        whole = Path(file_of(source))  # a line may be that of all times of a trajectory
        known = (source, file.name, file.stem, str(whole), whole.name, whole.stem)
        line = next((lines[each] for each in known if each in lines), None)
        if line is None:
            raise UnreadableFile(f"{path}: no line for {source}")
        order.append(line)
    return np.asarray(order)


# --- one sample


@dataclass(frozen=True, eq=False)
class FileSample:
    """One sample of a file: fields (K,) or (K, c), numbers, and values at cells, in the order of `Domain.cell_blocks`.

    count       number of samples in the file
    flat_axes   axes that were dropped because all points have the same coordinate there, with it
    """

    domain: Domain
    fields: dict[str, Tensor]
    parameters: dict[str, float] = field(default_factory=dict)
    cell_data: dict[str, list[Array]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    count: int = 1
    flat_axes: Mapping[int, float] = field(default_factory=dict)

    def in_space(self, fields: Mapping[str, Tensor]) -> tuple[Domain, dict[str, Tensor]]:
        """Return the domain where it lies in the file, and fields on it with vectors in the directions of the file.

        Only needed if coordinates were dropped that a file in the plane would not have: z = 5, or y = 0.
        """
        flat = self.flat_axes
        if all(axis >= self.domain.dim and at == 0 for axis, at in flat.items()):
            return self.domain, dict(fields)
        points = torch.zeros(len(self.domain), self.domain.dim + len(flat), dtype=torch.float64)
        points[:, [i for i in range(points.shape[1]) if i not in flat]] = self.domain.points
        points[:, [*flat]] = torch.tensor([*flat.values()], dtype=torch.float64)
        blocks = {kind: torch.as_tensor(corners) for kind, corners in self.domain.cell_blocks() if kind != "vertex"}
        moved = {
            name: in_space(values, flat) if points.shape[1] == 3 and values.shape[1:] == (2,) else values
            for name, values in fields.items()
        }
        return (Mesh(points, blocks) if blocks else Cloud(points)), moved

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the domain and the fields, for `domain, fields = read_sample(path)`."""
        return iter((self.domain, self.fields))


def read_sample(
    path: str | os.PathLike[str],
    sample: int = 0,
    repair: bool = False,
    needed: Sequence[str] | None = None,
    options: ReadOptions | None = None,
) -> FileSample:
    """Read one sample of a file. Its fields must be finite: those in `needed`, by default all.

    Inputs that the file gives on other points are interpolated to the points of the other fields. `options` say how arrays
    without coordinates are to be understood.
    """
    content = read_file(Path(path), replace(options or ReadOptions(), repair=repair))
    count = len(content)
    if not 0 <= sample < count:
        raise UnreadableFile(f"{path}: no sample {sample} in it, it has {count}")
    notes: list[str] = []
    one = replace(content, input_fields={name: values[[sample]] for name, values in content.input_fields.items()})
    fields = {name: rows[sample] for name, rows in content.fields.items()}
    fields |= {name: _moved(one, name, notes)[0] for name in one.input_fields}
    for name, row in fields.items():
        if (needed is None or name in needed) and not bool(torch.isfinite(row).all()):
            point = int((~torch.isfinite(row)).reshape(len(row), -1).any(1).nonzero()[0])
            raise UnreadableFile(
                f"{path}: field {name} of sample {sample} is not finite everywhere: {_text(row[point])} at point {point}"
            )
    numbers = {name: float(values[sample]) for name, values in content.parameters.items()}
    cell_data = content.cell_data if count == 1 else {}
    said = (*content.notes, *notes)
    flat = content.flat_axes if count == 1 else {}  # other samples of the file may lie elsewhere
    return FileSample(content.domain_of(sample), fields, numbers, cell_data, said, count, flat)
