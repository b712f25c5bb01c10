"""The contents of several files as one."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from gkn.data.foreign.raw import UnreadableFile
from gkn.data.readers.format import Content, Field, file_of
from gkn.geometry.domain import Domain


def joined(contents: Sequence[Content]) -> Content:
    """Return the samples of all contents, one after the other, with the fields that all of them have."""
    first = contents[0]
    if len(contents) == 1:
        return first
    files = [_file(content) for content in contents]
    for file, content in zip(files, contents, strict=True):
        dim, needed = content.domain_of(0).dim, first.domain_of(0).dim
        if dim != needed:
            raise UnreadableFile(f"{file}: points in {dim} dimensions; {files[0]} has {needed}")
        here, there = content.domain_of(0).measure_dim, first.domain_of(0).measure_dim
        if here != there:
            raise UnreadableFile(f"{file}: cells of dimension {here}; {files[0]} has cells of dimension {there}")
    missing = {name: file for content in contents for name, file in content.missing.items()}
    fields = _common([content.fields.keys() for content in contents], files, missing)
    parameters = _common([content.parameters.keys() for content in contents], files, missing)
    domains = [content.domain_of(i) for content in contents for i in range(len(content))]
    one = domains[0]
    if all(each is one or one.same_as(each) for each in domains):
        domain: Domain | list[Domain] = one
    elif any(each.shape is not None for each in domains):
        other = next(file for file, content in zip(files, contents, strict=True) if not one.same_as(content.domain_of(0)))
        raise UnreadableFile(
            f"{other}: {_describe(contents[files.index(other)])}; {files[0]} has {one.describe()}: grids that differ cannot "
            "be one dataset, import them one by one"
        )
    else:
        domain = domains
    notes = [note for content in contents for note in dict.fromkeys(content.notes)]
    counted = [note if n == len(contents) else f"{note} ({n} of {len(contents)} files)" for note, n in Counter(notes).items()]
    input_domain, input_fields = _joined_inputs(files, contents)
    return Content(
        domain,
        {name: _rows(name, files, contents, isinstance(domain, list)) for name in fields},
        {name: torch.cat([content.parameters[name] for content in contents]) for name in parameters},
        tuple(name for name in first.inputs if name in fields or name in parameters or name in input_fields),
        input_domain,
        input_fields,
        first.cell_data if len(contents) == 1 else {},
        tuple(counted),
        tuple(source for content in contents for source in content.sources),
        missing,
        flat_axes=first.flat_axes,
        series=_joined_series(files, contents),
    )


def _file(content: Content) -> str:
    return file_of(content.sources[0]) if content.sources else "a file"


def _joined_series(files: Sequence[str], contents: Sequence[Content]) -> tuple[int, ...]:
    """Return the trajectory of each sample, numbered through all contents; empty if none has trajectories."""
    if not any(content.series for content in contents):
        return ()
    steady = next((file for file, content in zip(files, contents, strict=True) if not content.series), None)
    if steady is not None:
        moving = next(file for file, content in zip(files, contents, strict=True) if content.series)
        raise UnreadableFile(f"{steady}: no trajectory in it, as there is in {moving}; import them apart, or with as_samples")
    found: list[int] = []
    for content in contents:
        start = max(found, default=-1) + 1
        found += [start + number for number in content.series]
    return tuple(found)


def _describe(content: Content) -> str:
    return content.domain_of(0).describe()


def _common(names: Sequence[object], files: Sequence[str], missing: dict[str, str]) -> list[str]:
    """Return the names that all files have; note a file without it for every other name."""
    sets = [dict.fromkeys(each) for each in names]  # type: ignore[call-overload]
    union = dict.fromkeys(name for each in sets for name in each)
    for name in union:
        lacking = next((file for file, each in zip(files, sets, strict=True) if name not in each), None)
        if lacking is not None:
            missing.setdefault(name, lacking)
    return [name for name in union if all(name in each for each in sets)]


def _rows(name: str, files: Sequence[str], contents: Sequence[Content], per_sample: bool) -> Field:
    """Return the values of all samples. Vectors that lost a zero third component in some files get it back."""
    counts = {_components(content.fields[name]) for content in contents}
    most = max(counts)
    short = [content for content in contents if _components(content.fields[name]) == 2]
    if counts - {most} and (counts != {2, 3} or not all(content.flat_axes for content in short)):
        other = next(
            i
            for i, content in enumerate(contents)
            if _components(content.fields[name]) != _components(contents[0].fields[name])
        )
        here, there = (_components(contents[i].fields[name]) for i in (other, 0))
        raise UnreadableFile(f"{files[other]}: field {name} has {here} components; {files[0]} has {there}")
    kind = torch.float64 if any(row.dtype == torch.float64 for content in contents for row in content.fields[name]) else None
    rows: list[Tensor] = []
    for content in contents:
        for row in content.fields[name]:
            value = row if kind is None else row.to(kind)
            rows.append(in_space(value, content.flat_axes) if most == 3 and _components([row]) == 2 else value)
    return rows if per_sample else torch.stack(rows)


def in_space(values: Tensor, flat_axes: Mapping[int, float]) -> Tensor:
    """Return plane vectors (K, 2) with the component 0 that they lost with a flat axis: (K, 3)."""
    across = max(flat_axes)
    return torch.cat([values[:, :across], torch.zeros_like(values[:, :1]), values[:, across:]], 1)


def _components(values: Field) -> int:
    row = values[0]
    return row.shape[1] if row.ndim == 2 else 1


def _joined_inputs(files: Sequence[str], contents: Sequence[Content]) -> tuple[Domain | None, dict[str, Tensor]]:
    first = contents[0]
    for file, content in zip(files, contents, strict=True):
        ours, theirs = first.input_domain, content.input_domain
        same = (ours is None) == (theirs is None) and (ours is None or theirs is None or ours.same_as(theirs))
        if not same or content.input_fields.keys() != first.input_fields.keys():
            raise UnreadableFile(f"{file}: its inputs are given on other points than those of {files[0]}; import it apart")
    return first.input_domain, {name: torch.cat([c.input_fields[name] for c in contents]) for name in first.input_fields}


def names_of(sources: Sequence[str]) -> tuple[str, ...]:
    """Return the file of each sample, relative to the folder that holds them all; none if all come from one file."""
    sources = [file_of(source) for source in sources]
    if len({*sources}) < 2:
        return ()
    folder = os.path.commonpath([os.path.dirname(os.path.abspath(source)) for source in sources])
    return tuple(os.path.relpath(os.path.abspath(source), folder) for source in sources)
