"""Parts shared by all file formats: the registry of readers and their options."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

from torch import Tensor

from gkn.data.foreign.raw import Array, UnreadableFile
from gkn.geometry.domain import Domain
from gkn.system.files import CorruptFile, check_regular

Nodes = Literal["vertices", "centres", "left"]
Field: TypeAlias = "Tensor | list[Tensor]"
"""A field of n samples: (n, K), or (n, K, c) with c components; or n tensors (K_i,) or (K_i, c)."""


@dataclass(frozen=True, eq=False)
class Content:
    """The n samples of one or several files.

    domain        the domain of all samples, or one per sample
    fields        fields by name, see `Field`
    parameters    numbers by name, (n,) tensors
    inputs        fields and parameters that the format itself defines as inputs
    input_domain  the domain of `input_fields`, for formats whose inputs are given on other points than the outputs
    input_fields  fields on `input_domain`, (n, K_in) or (n, K_in, c)
    cell_data     values at cells in the order of `Domain.cell_blocks`, one array per block; only of files with one sample
    notes         sentences about what was understood, moved or dropped
    sources       the file of each sample, for messages; filled in by `read_file`
    missing       fields and parameters that only some of several files have, each with a file that lacks it
    table_inputs  parameters of an explicit table, which are inputs whatever else is chosen
    flat_axes     axes of the file that were dropped because all points have the same coordinate there, with it
    series        number of the trajectory that each sample is a state of, at the time of the parameter `time`; empty: of none
    """

    domain: Domain | list[Domain]
    fields: Mapping[str, Field]
    parameters: Mapping[str, Tensor] = field(default_factory=dict)
    inputs: tuple[str, ...] = ()
    input_domain: Domain | None = None
    input_fields: Mapping[str, Tensor] = field(default_factory=dict)
    cell_data: dict[str, list[Array]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    missing: Mapping[str, str] = field(default_factory=dict)
    table_inputs: tuple[str, ...] = ()
    flat_axes: Mapping[int, float] = field(default_factory=dict)
    series: tuple[int, ...] = ()

    def __len__(self) -> int:
        if self.sources:
            return len(self.sources)
        given = [*self.fields.values(), *self.parameters.values()]
        if given:
            return len(given[0])
        return len(self.domain) if isinstance(self.domain, list) else 1

    def domain_of(self, i: int) -> Domain:
        """Return the domain of sample i."""
        return self.domain[i] if isinstance(self.domain, list) else self.domain


@dataclass(frozen=True)
class ReadOptions:
    """Options of readers.

    nodes      position of the values of arrays without coordinates: "vertices" i/(s-1), "centres" (i+1/2)/s or "left" i/s;
               None is the position that the format defines
    low, high  values of a coefficient that is stored as False and True
    repair     drop points without cells, instead of refusing such a mesh
    box        lower and upper corner of the box of arrays without coordinates; None is the unit box
    periodic   True if arrays without coordinates are periodic
    as_samples True if the states of a trajectory are samples of their own, with the parameter `time`
    """

    nodes: Nodes | None = None
    low: float = 3.0
    high: float = 12.0
    repair: bool = False
    box: tuple[Sequence[float], Sequence[float]] | None = None
    periodic: bool = False
    as_samples: bool = False

    def json(self) -> dict[str, Any]:
        """Return the options that say how arrays are to be understood, as they are kept with a dataset and an operator."""
        box = {} if self.box is None else {"box": [[*map(float, corner)] for corner in self.box]}
        periodic = {"periodic": True} if self.periodic else {}
        return {"nodes": self.nodes or "", "low_is": self.low, "high_is": self.high, **box, **periodic}

    @staticmethod
    def from_json(said: Mapping[str, Any]) -> ReadOptions:
        box, low, high = said.get("box"), said.get("low_is", 3.0), said.get("high_is", 12.0)
        corners = None if box is None else (tuple(map(float, box[0])), tuple(map(float, box[1])))
        return ReadOptions(said.get("nodes") or None, float(low), float(high), False, corners, bool(said.get("periodic")))


READING = ("nodes", "low_is", "high_is", "box", "periodic")
"""Names of the entries of `ReadOptions.json`, in the origin of a dataset and in an operator."""
Reader: TypeAlias = Callable[[Path, ReadOptions], Content]
READERS: dict[str, Reader] = {}
"""The reader of each file name ending."""


def reader(*endings: str) -> Callable[[Reader], Reader]:
    """Register a function (path, options) -> Content as the reader of files with these endings."""

    def register(function: Reader) -> Reader:
        READERS.update(dict.fromkeys(endings, function))
        return function

    return register


def file_of(source: str) -> str:
    """Return the file that a sample came from, without the number of the sample in it."""
    return source.split(", sample ")[0].split(", time ")[0]


def without_series(content: Content, options: ReadOptions) -> Content:
    """Return the content with its states as samples of their own if that was asked for, or if there is one state only."""
    alone = len({*content.series}) == len(content.series)
    return replace(content, series=()) if options.as_samples or alone else content


def read_file(path: Path, options: ReadOptions) -> Content:
    """Read one file. Whatever goes wrong inside a parser becomes an `UnreadableFile` with the name of the file."""
    check_regular(path)
    ending = path.suffix.lower()
    if ending not in READERS:
        known = ", ".join(READERS)
        raise UnreadableFile(f"{path}: {ending or 'such'} files are not read; there are {known} (convert meshes to .vtu)")
    try:
        content = READERS[ending](path, options)
        n = len(content)
        names = (str(path),) if n == 1 else tuple(f"{path}, sample {i}" for i in range(n))
        return without_series(content if content.sources else replace(content, sources=names), options)
    except (UnreadableFile, ImportError):
        raise
    except MemoryError as error:
        raise UnreadableFile(f"{path}: would take more memory than there is") from error
    except CorruptFile as error:
        raise UnreadableFile(str(error)) from error
    except Exception as error:  # parsers of foreign formats raise anything at all on damaged bytes
        raise UnreadableFile(f"{path}: cannot be read: {type(error).__name__}: {error}") from error
