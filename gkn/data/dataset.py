"""Dataset: pairs of functions {a_j, u_j} as named fields on one domain, or on one domain per sample."""

from __future__ import annotations

import operator
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, SupportsIndex

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from gkn.data import storage
from gkn.data.geometric import Geometric
from gkn.data.groups import Groups, expanded, ranges_of
from gkn.data.memory import Given, Memory
from gkn.data.over_time import OverTime
from gkn.data.parts import parts_of
from gkn.data.sample import Sample
from gkn.data.source import Extended, Kept, Smoothed, Source, inside
from gkn.data.stored import Stored
from gkn.data.transfer import brought_together
from gkn.geometry.domain import Domain
from gkn.geometry.frame import Frame
from gkn.system.checks import check_device
from gkn.system.files import digest

GEOMETRY = "geometry."  # how the names of geometry features begin
BLOCK, NUMBERS = 64, 2**22  # samples on one domain that are read together, and how many numbers they have, at most


class Dataset(OverTime):
    """Named fields of n samples. Fields named in `outputs` (by default "u") are to be learned.

        Dataset(grid, a=a, u=u)                          (n, K) arrays on one domain
        Dataset([mesh_0, mesh_1], a=[a_0, a_1], u=...)   one domain per sample
        Dataset(meshes, load=[1.0, 2.5], u=...)          a parameter: one number per sample
        Dataset(grid, velocity=v, outputs=["velocity"])  v (n, K, 2): a vector, with components velocity_x and velocity_y
        Dataset(mesh, a=a, u=u, input_domain=sensors)    inputs on other points than outputs
        Dataset(grid, u=u, times=t)                      trajectories: outputs (n, T, K) are functions of times (T,) or (n, T)
        Dataset.open("data/darcy241")                    from disk, read when needed

    Arrays may be numpy's or torch's. By default all fields that are no outputs are inputs; there may be none. `take`, `split`,
    `every` and `smoothed` return views: nothing is copied or computed until it is read.
    """

    def __init__(
        self,
        domain: Domain | Sequence[Domain],
        /,
        *,
        outputs: Sequence[str] = ("u",),
        inputs: Sequence[str] | None = None,
        input_domain: Domain | Sequence[Domain] | None = None,
        times: Given = None,
        **fields: Given,
    ) -> None:
        self._fill(domain, fields, outputs, inputs, input_domain, times=times)

    def _fill(
        self,
        domain: Domain | Sequence[Domain],
        fields: Mapping[str, Given],
        outputs: Sequence[str],
        inputs: Sequence[str] | None,
        input_domain: Domain | Sequence[Domain] | None,
        files: Sequence[str] = (),
        keep_gradients: bool = False,
        times: Given = None,
    ) -> Dataset:
        moved: dict[str, tuple[str, ...]] = {}
        if input_domain is not None:
            named = [name for name in fields if name not in outputs] if inputs is None else inputs
            fields, moved = brought_together(fields, named, input_domain, domain)
            inputs = None if inputs is None else [name for name in fields if name not in outputs]
        source = Memory(domain, fields, files, keep_gradients, times, () if times is None else outputs)
        source.groups |= moved
        missing = [name for name in (*outputs, *(inputs or ())) if name not in {*source.names, *source.groups}]
        if missing or not outputs or len({*outputs}) != len(outputs):
            raise ValueError(f"Dataset(outputs={[*outputs]}, fields {[*fields]}): needed every output among the fields")
        numbers = [name for name in outputs if name in source.parameters]
        if numbers:
            raise ValueError(f"Dataset: the output {numbers[0]!r} is one number per sample; needed a field (samples, points)")
        wanted = expanded(outputs, source.groups)
        others = [name for name in source.names if name not in wanted]
        given = tuple(others) if inputs is None else expanded(inputs, source.groups)
        return self._set(source, range(source.n), 1, given, wanted, None)

    @staticmethod
    def of(
        domain: Domain | Sequence[Domain],
        fields: Mapping[str, Given],
        outputs: Sequence[str] = ("u",),
        inputs: Sequence[str] | None = None,
        input_domain: Domain | Sequence[Domain] | None = None,
        files: Sequence[str] = (),
        keep_gradients: bool = False,
        times: Given = None,
    ) -> Dataset:
        """Make a dataset of fields in a dictionary. Unlike with keywords, a field may have any name.

        times            the times of trajectories, (T,) for all or one list for each
        files            the file that each sample came from, for messages and reports
        keep_gradients   let derivatives with respect to given tensors pass through the samples
        """
        return Dataset.__new__(Dataset)._fill(domain, fields, outputs, inputs, input_domain, files, keep_gradients, times)

    @staticmethod
    def of_source(
        source: Source, inputs: Sequence[str], outputs: Sequence[str], manifest: storage.Manifest | None = None
    ) -> Dataset:
        """Make a dataset of all samples of a source."""
        return Dataset.__new__(Dataset)._set(source, range(source.n), 1, tuple(inputs), tuple(outputs), manifest)

    @staticmethod
    def open(path: str | os.PathLike[str], partial: bool = False) -> Dataset:
        """Open a dataset folder; with `partial`, also an unfinished one. A file is compared with its hash when first read."""
        reader = Stored(Path(path), partial)
        return Dataset.of_source(reader, reader.manifest.inputs, reader.manifest.outputs, reader.manifest)

    def _set(
        self,
        source: Source,
        index: Sequence[int],
        stride: int,
        inputs: tuple[str, ...],
        outputs: tuple[str, ...],
        manifest: storage.Manifest | None,
    ) -> Dataset:
        self._source, self._index, self._stride = source, index, stride
        self.inputs, self.outputs, self.manifest = inputs, outputs, manifest
        mixed = [name for name in outputs if name not in source.evolving] if {*outputs} & {*source.evolving} else []
        mixed += [name for name in inputs if name in source.evolving]
        if mixed:
            what = "is an input, but a function of time" if mixed[0] in inputs else "is an output, but no function of time"
            raise ValueError(f"Dataset: {mixed[0]} {what}; all outputs of trajectories are functions of time, no input is")
        whole = source.common_domain
        self._domain, self._nodes = whole, None
        if stride != 1:
            if whole is None or whole.shape is None:
                raise ValueError(f"Dataset.every({stride}): only a grid has strides; this dataset is on {described(whole)}")
            self._domain, self._nodes = whole.every(stride), whole.stride(stride)
        return self

    def _view(self, **changes: Any) -> Dataset:
        now = {"source": self._source, "index": self._index, "stride": self._stride, "manifest": self.manifest}
        return Dataset.__new__(Dataset)._set(**{**now, "inputs": self.inputs, "outputs": self.outputs, **changes})

    def __len__(self) -> int:
        return len(self._index)

    def __repr__(self) -> str:
        inputs, outputs = (", ".join(ranges_of(names, self.groups)) for names in (self.inputs, self.outputs))
        if self.in_time:
            fields, what = f"{outputs} over time{', given ' + inputs if inputs else ''}", "trajectories"
        else:
            fields, what = f"{inputs or 'the geometry'} -> {outputs}", "samples"
        return f"Dataset({len(self)} {what}, {fields}, on {described(self._domain)})"

    # --- reading

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all fields, inputs first."""
        return (*self.inputs, *self.outputs)

    @property
    def groups(self) -> Groups:
        """Vectors and tensors, with the names of their components."""
        return self._source.groups

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of fields that are one number per sample."""
        return tuple(name for name in self._source.parameters if name in self.names)

    @property
    def output_fields(self) -> dict[str, tuple[int, int]]:
        """Output fields, vectors as a whole, with their columns (first, last + 1) among the outputs."""
        return ranges_of(self.outputs, self.groups)

    @property
    def frame(self) -> Frame | None:
        """The frame that the domains are in; None: they are in the user's unit."""
        return self._source.frame

    @property
    def domain(self) -> Domain:
        """The domain of all samples."""
        if self._domain is None:
            raise ValueError("every sample of this dataset has a domain of its own: dataset[i].domain")
        return self._domain

    @property
    def one_domain(self) -> bool:
        """True if all samples share one domain."""
        return self._domain is not None

    @property
    def dim(self) -> int:
        """Dimension of the points."""
        return self.domain_of(0).dim if self._domain is None else self._domain.dim

    def domains(self) -> Iterator[Domain]:
        """Iterate over the different domains: the common one, or that of each sample."""
        return iter([self._domain]) if self._domain is not None else (self._source.domain(i) for i in self._index)

    def domain_of(self, i: int) -> Domain:
        """Return the domain of one sample, without reading its fields."""
        return self._source.domain(self._index[self._position(i)]) if self._domain is None else self._domain

    def field(self, name: str) -> Float[Tensor, "n *T K"]:
        """Return one field of all samples, if they share their domain; of trajectories also their number of times."""
        self._known(name)
        if self._domain is None:
            raise ValueError(f"Dataset.field({name!r}): every sample has a domain of its own: use dataset[i]")
        values = self._source.read_all(name, self._index)
        return values if self._nodes is None else values[..., self._nodes]

    def value(self, name: str, i: int) -> Tensor:
        """Return one field (K,) of one sample; a vector as (K, c). A function of time has T times before that: (T, K)."""
        self._known(name)
        if name in self.groups and name not in self.names:
            return torch.stack([self.value(part, i) for part in self.groups[name]], -1)
        values = self._source.read(name, self._index[self._position(i)])
        return values if self._nodes is None else values[..., self._nodes]

    def blocks(self, names: Sequence[str]) -> Iterator[tuple[range, list[Tensor]]]:
        """Iterate over all samples in their order, several at a time: their numbers, and each of some fields (n, K).

        One at a time if every sample has a domain of its own, or if fields are smoothed: then all fields of one sample are
        computed together.
        """
        many = bool(len(self)) and self.one_domain and not self.smoothing
        numbers = sum(self.value(name, 0).numel() for name in names) if many else 0
        together = max(1, min(BLOCK, NUMBERS // max(1, numbers))) if many else 1
        for start in range(0, len(self), together):
            which = range(start, min(start + together, len(self)))
            if together == 1:
                yield which, [self.value(name, start)[None] for name in names]
            else:
                yield which, [self.take(which).field(name) for name in names]

    def __getitem__(self, i: Any) -> Sample:
        if self.in_time:
            raise ValueError(
                "these samples are trajectories: dataset.trajectory(i) is one; dataset.pairs() and dataset.between(0, -1) make "
                "samples of them"
            )
        u = torch.stack([self.value(name, self._position(i)) for name in self.outputs], -1)
        rows = [self.value(name, i) for name in self.inputs]
        return Sample(self.domain_of(i), torch.stack(rows, -1) if rows else u.new_zeros(len(u), 0), u, self.frame)

    def parameter(self, name: str, i: int) -> float:
        """Return a parameter of one sample."""
        self._known(name)
        return self._source.parameter(name, self._index[self._position(i)])

    def __iter__(self) -> Iterator[Sample]:
        return (self[i] for i in range(len(self)))

    def number(self, i: int) -> int:
        """Return the index of sample i in the original dataset, if this is a part of one."""
        return self._source.number(int(self._index[self._position(i)]))

    def file(self, i: int) -> str:
        """Return the file that sample i was imported from, or an empty string."""
        return self._source.file(int(self._index[self._position(i)]))

    def is_read_from(self, folder: Path) -> bool:
        """True if the samples are read from this folder."""
        place = self._source.read_from()
        return place is not None and folder.resolve() == place.resolve()

    def label(self, i: int) -> str:
        """Return the number of sample i in the original dataset and, if it was imported, its file: "17 (run17.vtu)"."""
        known = [each for each in (self.file(i), self._source.part(int(self._index[self._position(i)]))) if each]
        return f"{self.number(i)} ({', '.join(known)})" if known else str(self.number(i))

    def damaged(self) -> list[str]:
        """Compare every file of a dataset on disk with its hash; return a list of problems."""
        return self._source.damaged()

    def _position(self, i: Any) -> int:
        if isinstance(i, slice):
            raise TypeError("dataset[...]: needed the number of one sample; several are dataset.take([0, 1, 2])")
        if not -len(self) <= i < len(self):
            raise IndexError(f"sample {i} of a dataset of {len(self)}")
        return int(i) % len(self)

    def _known(self, name: str) -> None:
        if name not in self.names and not {*self.groups.get(name, ("",))} <= {*self.names}:
            raise KeyError(f"no field {name!r} in this dataset; it has {', '.join(self.names)}")

    # --- views

    def take(self, which: SupportsIndex | Sequence[SupportsIndex] | NDArray[Any] | Tensor) -> Dataset:
        """Return the first `which` samples, or the samples with the given numbers."""
        which = which.tolist() if isinstance(which, Tensor | np.ndarray) else which
        if isinstance(which, SupportsIndex):
            which = operator.index(which)
            if not 0 <= which <= len(self):
                raise ValueError(f"Dataset.take({which}): this dataset has {len(self)} samples")
            return self._view(index=self._index[:which])
        if any(i is True or i is False for i in which):
            raise ValueError("Dataset.take: numbers of samples are needed, not a mask")
        return self._view(index=[self._index[self._position(operator.index(i))] for i in which])

    def split(self, *sizes: float | SupportsIndex, by: str | Sequence[Any] | None = None, seed: int = 0) -> tuple[Dataset, ...]:
        """Return disjoint parts. Shares are drawn at random, numbers of samples are taken in order from the first one.

        split(0.8)       80 percent of the samples, and the rest
        split(0.8, 0.1)  80 and 10 percent, and the rest is left out; split(0.8, 0.1, 0.1) leaves nothing out
        split(100, 40)   the first 100 samples and the next 40

        by     keep samples together that have the same label: a label for each sample, or the name of a parameter
        seed   of the random order
        """
        kinds = [self.parameter(by, i) for i in range(len(self))] if isinstance(by, str) else by
        if kinds is not None and len(kinds) != len(self):
            raise ValueError(f"Dataset.split(by=...): {len(kinds)} labels for {len(self)} samples; needed one for each")
        return tuple(self.take(part) for part in parts_of(sizes, kinds, len(self), seed))

    def every(self, k: int) -> Dataset:
        """Return the same functions on every k-th node of each axis of their grid."""
        if self._domain is not None and self._domain.shape is not None:
            self._domain.every(k)  # an error names the strides of the grid as it is now
        return self._view(stride=self._stride * k)

    def smoothed(self, width: float, name: str = "a") -> Dataset:
        """Add inputs: the input `name` smoothed by a Gaussian of standard deviation `width` (a length), and its gradient.

        They are computed on all points the samples have, before any `every`: lower resolutions see the same smooth function.
        """
        if name not in self.inputs:
            raise KeyError(f"no input {name!r} to smooth in this dataset; it has {', '.join(self.inputs)}")
        if not self._source.n:
            raise ValueError("Dataset.smoothed: this dataset has no samples")
        if isinstance(self._source, Kept):
            raise ValueError("Dataset.smoothed: a kept dataset may have lost points; smooth first, keep afterwards")
        source = Smoothed(self._source, name, width)
        twice = [added for added in source.added if added in self.names]
        if twice:
            raise ValueError(f"Dataset.smoothed({width}, {name!r}): there is a field {twice[0]!r} already")
        return self._view(source=source, inputs=(*self.inputs, *source.added))

    def extended(self, name: str) -> Dataset:
        """Add an input: the values of input `name` on the boundary, extended to all points by means of them.

        It is called g_inside for g, and g_inside_x for the component g_x of a vector. In the mean at x the value at y counts
        with |x - y|^-d: the closest ones count most.
        """
        if name not in self.inputs:
            raise KeyError(f"no input {name!r} to extend in this dataset; it has {', '.join(self.inputs)}")
        if not self._source.n:
            raise ValueError("Dataset.extended: this dataset has no samples")
        added, source = inside(name), self._source
        if added in self.names:
            raise ValueError(f"Dataset.extended({name!r}): there is a field {added!r} already")
        if added in source.names and any(each.name == name for each in source.computed()):
            return self._view(inputs=(*self.inputs, added))
        if isinstance(source, Kept):
            raise ValueError("Dataset.extended: a kept dataset may have lost points; extend first, keep afterwards")
        states = [] if self.stepping is None else self.inputs[: len(self.outputs) * self.stepping.history]
        if name not in self.given or name in (*self.parameters, *states):
            raise ValueError(f"Dataset.extended({name!r}): needed an input that is given, and neither a number nor a state")
        return self._view(source=Extended(source, name), inputs=(*self.inputs, added))

    def with_geometry(self) -> Dataset:
        """Add features of the geometry to the inputs: see `Geometric`. They are computed when read."""
        if not len(self):
            raise ValueError("Dataset.with_geometry: this dataset has no samples")
        source = Geometric(self._source)
        return self._view(source=source, inputs=(*self.inputs, *source.added))

    @property
    def has_geometry(self) -> bool:
        return any(name.startswith(GEOMETRY) for name in self.inputs)

    def framed(self, frame: Frame) -> Dataset:
        """Return the same samples with their points in a frame, in which an operator sees them."""
        if self.frame == frame:
            return self
        if self.frame is not None:
            raise ValueError("this dataset is in the frame of another operator; give the dataset as it was made")
        return self._view(source=self._source.framed(frame))

    def kept(self, device: torch.device | str = "cpu") -> Dataset:
        """Return the same samples with all values in memory. Smoothed fields are computed once, together, on `device`.

        The values must not be written to: they are handed out without a copy.
        """
        check_device(str(device))
        if self.in_time or self.stepping is not None:
            raise ValueError("Dataset.kept: needed samples of a steady problem; pairs of states are read when needed")
        if not len(self) or not self.one_domain:
            what = "no samples" if not len(self) else "a domain per sample"
            raise ValueError(f"Dataset.kept: this dataset has {what}; needed samples on one domain")
        values = {name: self._source.read_at(name, self._index, self._nodes, torch.device(device)) for name in self.names}
        return self._held(self.domain, values, digest(self.identity()))

    def elsewhere(self, domain: Domain, values: Mapping[str, Tensor]) -> Dataset:
        """Return the same functions on another domain, given all their fields (n, K) there, smoothed ones included."""
        for name in self.names:
            if values[name].shape != (len(self), len(domain)):
                raise ValueError(f"Dataset.elsewhere: {name} {[*values[name].shape]}; needed {[len(self), len(domain)]}")
        return self._held(domain, values, digest([self.identity(), domain.points.tolist()]))

    def _held(self, domain: Domain, values: Mapping[str, Tensor], identity: str) -> Dataset:
        samples = [(self.number(i), self.file(i)) for i in range(len(self))]
        return Dataset.of_source(Kept(self._source, domain, values, samples, identity), self.inputs, self.outputs)

    def using(self, inputs: Sequence[str] | None = None, outputs: Sequence[str] | None = None) -> Dataset:
        """Return the dataset with these inputs and outputs and no other fields."""
        inputs, outputs = self.inputs if inputs is None else inputs, self.outputs if outputs is None else outputs
        for name in (*inputs, *outputs):
            self._known(name)
        inputs, outputs = expanded(inputs, self.groups), expanded(outputs, self.groups)
        if not outputs or len({*inputs, *outputs}) != len(inputs) + len(outputs):
            raise ValueError(f"Dataset.using({[*inputs]}, {[*outputs]}): needed an output, and no field twice")
        return self._view(inputs=inputs, outputs=outputs)

    # --- what the data are

    def describe(self) -> str:
        """Return lines about samples, points, the box around them, and the range of every field and parameter."""
        from gkn.data.describe import description

        return description(self)

    def plot(self, path: str | os.PathLike[str] | None = None, samples: int = 4) -> Any:
        """Draw the first samples; save the picture if a path is given. Return matplotlib's figure."""
        from gkn.data.plot import draw_dataset, save_figure

        figure = draw_dataset(self, samples)
        return figure if path is None else save_figure(figure, Path(path))

    @property
    def smoothing(self) -> list[tuple[str, float]]:
        """(field, width) of every `smoothed`, in order."""
        return [(source.name, source.width) for source in self._source.computed() if isinstance(source, Smoothed)]

    @property
    def extensions(self) -> list[str]:
        """The field of every `extended`, in order."""
        return [source.name for source in self._source.computed() if isinstance(source, Extended)]

    @property
    def given(self) -> tuple[str, ...]:
        """The inputs that are not computed from others."""
        made = {name for source in self._source.computed() for name in source.added}
        return tuple(name for name in self.inputs if name not in made and not name.startswith(GEOMETRY))

    def identity(self) -> dict[str, Any]:
        """Return a description that is equal for two datasets only if they hold the same data."""
        chosen, names = digest([*self._index]), {"inputs": [*self.inputs], "outputs": [*self.outputs]}
        return {"source": self._source.identity(), "samples": chosen, "every": self._stride, **names}

    def save(self, path: str | os.PathLike[str], *, origin: Mapping[str, Any] | None = None, force: bool = False) -> None:
        """Write the dataset to a folder, shard by shard. Called again, it writes shards that are missing or damaged.

        If several processes save the same dataset, one writes and the others wait.

        origin   a description of how the data were made, for `gkn data info`
        force    replace another dataset in that folder
        """
        from gkn.data.saving import origin_of, save_dataset

        save_dataset(self, Path(path), origin_of(self) if origin is None else origin, force)


def described(domain: Domain | None) -> str:
    """Return a few words about the domain of a dataset, for messages."""
    return "a domain per sample" if domain is None else domain.describe()
