"""Recipes: recipe + seed -> Dataset.

The function of sample i depends on the recipe, the seed and i alone, and samples are solved in shards of a size that depends
on the recipe alone: so the bits are the same whatever the number of workers and wherever a run was interrupted.
"""

from __future__ import annotations

import math
import operator
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

import torch
from joblib import Parallel, delayed
from torch import Tensor

from gkn.data import storage
from gkn.data.dataset import SHARD_BYTES, Dataset
from gkn.geometry.domain import Domain, Grid, Mesh
from gkn.geometry.fields import GaussianField, Series, check_phases, two_phase
from gkn.pde import solve_darcy
from gkn.system.checks import check_device
from gkn.system.machine import versions
from gkn.system.randomness import stream


class WorkerLost(RuntimeError):
    """A process that was making samples is gone."""


Fields = Mapping[str, Tensor | Sequence[Tensor]]
Progress = Callable[[int, int], None]
"""Called with the number of samples that are safe on disk (or in memory), and of all."""


@dataclass(frozen=True)
class Recipe:
    """How to make one kind of dataset. Frozen and plain: its parameters go into dataset.json as they are."""

    size: int
    name: ClassVar[str]
    inputs: ClassVar[tuple[str, ...]]
    on_gpu: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Whatever cannot work is said here, before a dataset that is in the way is removed."""
        if self.size < 3:
            raise ValueError(f"recipe {self.name}: size = {self.size}; needed at least 3 points a side, one of them inside")
        self.field()

    def field(self) -> GaussianField:
        """Where its random functions come from."""
        raise NotImplementedError

    def domain(self) -> Domain | None:
        """The one domain of all samples, or None where each has its own."""
        raise NotImplementedError

    def make(self, seed: int, samples: range, device: str) -> tuple[Fields, list[Domain] | None]:
        """Those samples, and their domains where each has its own."""
        raise NotImplementedError

    def describe(self) -> dict[str, Any]:
        return {"name": self.name, **asdict(self)}


def _draw(field: GaussianField, seed: int, samples: range, device: str) -> Series:
    """One random function per sample, each from its own generator, drawn on the CPU for every device."""
    with ThreadPoolExecutor(1 if device == "cpu" else os.cpu_count()) as pool:
        draws = pool.map(lambda i: field.draw(1, stream(seed, i)).coefficients, samples)
        return Series(field, torch.cat([*draws]).to(device))


def _check_darcy(low: float, high: float, f: float) -> None:
    check_phases(low, high)
    if not math.isfinite(f):
        raise ValueError(f"f = {f}: the source must be finite")


@dataclass(frozen=True)
class Darcy(Recipe):
    """The paper's data: a = high where N(0, (-Lap+tau^2)^-alpha) is positive, low elsewhere; -div(a grad u) = f, u = 0."""

    name = "darcy"
    inputs = ("a",)
    size: int = 241
    dim: int = 2
    tau: float = 3.0
    alpha: float = 2.0
    low: float = 3.0
    high: float = 12.0
    f: float = 1.0
    modes: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_darcy(self.low, self.high, self.f)

    def field(self) -> GaussianField:
        return GaussianField(self.tau, self.alpha, "neumann", dim=self.dim, modes=self.modes)

    def domain(self) -> Grid:
        return Grid(self.size, self.dim)

    def make(self, seed: int, samples: range, device: str) -> tuple[Fields, None]:
        grid = self.domain()
        a = two_phase(_draw(self.field(), seed, samples, device)(grid), self.low, self.high)
        return {"a": a, "u": solve_darcy(grid, a, self.f)}, None


@dataclass(frozen=True)
class PoissonInterval(Recipe):
    """Example 1: f ~ N(0, (-Lap + I)^-1) with periodic modes on [0, 1]; -u'' = f, u = 0 at both ends."""

    name = "poisson-interval"
    inputs = ("f",)
    size: int = 129
    tau: float = 1.0
    alpha: float = 1.0
    modes: int = 0

    def domain(self) -> Grid:
        return Grid(self.size, 1)

    def field(self) -> GaussianField:
        return GaussianField(self.tau, self.alpha, "periodic", dim=1, modes=self.modes, constant=True)

    def make(self, seed: int, samples: range, device: str) -> tuple[Fields, None]:
        f = _draw(self.field(), seed, samples, device)(self.domain())
        return {"f": f, "u": solve_darcy(self.domain(), torch.ones_like(f), f)}, None


@dataclass(frozen=True)
class PoissonSquare(Recipe):
    """Example 2: f is the Gaussian field of the Darcy measure before thresholding; -Lap u = f on [0,1]^2, u = 0."""

    name = "poisson-square"
    inputs = ("f",)
    size: int = 61
    tau: float = 3.0
    alpha: float = 2.0
    modes: int = 0

    def domain(self) -> Grid:
        return Grid(self.size, 2)

    def field(self) -> GaussianField:
        return GaussianField(self.tau, self.alpha, "neumann", modes=self.modes, scale=self.tau ** (self.alpha - 1))

    def make(self, seed: int, samples: range, device: str) -> tuple[Fields, None]:
        f = _draw(self.field(), seed, samples, device)(self.domain())
        return {"f": f, "u": solve_darcy(self.domain(), torch.ones_like(f), f)}, None


@dataclass(frozen=True)
class PoissonDisk(Recipe):
    """The same field on [-1,1]^2, restricted to the unit disk; -Lap u = f, u = 0. `size` points across, about."""

    name = "poisson-disk"
    inputs = ("f",)
    on_gpu = False
    size: int = 41
    tau: float = 3.0
    alpha: float = 2.0
    modes: int = 0

    def domain(self) -> Mesh:
        return _shape("disk", self.size)

    def field(self) -> GaussianField:
        scale = self.tau ** (self.alpha - 1)
        return GaussianField(self.tau, self.alpha, "neumann", modes=self.modes, scale=scale, lower=-1.0, upper=1.0)

    def make(self, seed: int, samples: range, device: str) -> tuple[Fields, None]:
        mesh = self.domain()
        f = _draw(self.field(), seed, samples, "cpu")(mesh)
        return {"f": f, "u": solve_darcy(mesh, 1.0, f)}, None


@dataclass(frozen=True)
class DarcyMesh(Recipe):
    """The Darcy measure on an unstructured mesh, solved by finite elements. `size` points across, about.

    In [0,1]^2 sample i of a seed is the same function a as sample i of that seed of `darcy`.

    shape: square, holes, l-shape (in [0,1]^2) or disk (the unit disk, the field on [-1,1]^2). vary: every sample has a
    mesh of its own, with edges of another length, and for "holes" another hole in another place.
    """

    name = "darcy-mesh"
    inputs = ("a",)
    on_gpu = False
    size: int = 41
    shape: str = "square"
    vary: bool = False
    tau: float = 3.0
    alpha: float = 2.0
    low: float = 3.0
    high: float = 12.0
    f: float = 1.0
    modes: int = 0

    def __post_init__(self) -> None:
        if self.shape not in _SHAPES:
            raise ValueError(f"darcy-mesh(shape={self.shape!r}): use one of {', '.join(_SHAPES)}")
        super().__post_init__()
        _check_darcy(self.low, self.high, self.f)

    def field(self) -> GaussianField:
        low, high = (-1.0, 1.0) if self.shape == "disk" else (0.0, 1.0)
        return GaussianField(self.tau, self.alpha, "neumann", modes=self.modes, lower=low, upper=high)

    def domain(self) -> Mesh | None:
        return None if self.vary else _shape(self.shape, self.size)

    def mesh(self, seed: int, sample: int) -> Mesh:
        rng = stream(seed, sample, 1)  # another stream than the field's
        h, x, y, radius = torch.rand(4, dtype=torch.float64, generator=rng).tolist()
        h = 2 ** (h - 0.5) / (self.size - 1)
        if self.shape == "holes":
            return Mesh.holes(h, [(0.3 + 0.4 * x, 0.3 + 0.4 * y, 0.08 + 0.12 * radius)])
        return _SHAPES[self.shape](2 * h if self.shape == "disk" else h)

    def make(self, seed: int, samples: range, device: str) -> tuple[Fields, list[Domain] | None]:
        series = _draw(self.field(), seed, samples, "cpu")
        one = self.domain()
        if one is not None:
            a = two_phase(series(one), self.low, self.high)
            return {"a": a, "u": solve_darcy(one, a, self.f, per="node")}, None
        meshes = [self.mesh(seed, i) for i in samples]
        draws = [Series(series.field, each[None]) for each in series.coefficients]
        coefficients = [two_phase(draw(mesh)[0], self.low, self.high) for draw, mesh in zip(draws, meshes, strict=True)]
        solutions = [solve_darcy(mesh, a, self.f, per="node") for mesh, a in zip(meshes, coefficients, strict=True)]
        return {"a": coefficients, "u": solutions}, [*meshes]


_SHAPES: dict[str, Callable[[float], Mesh]] = {
    "square": Mesh.square,
    "holes": Mesh.holes,
    "l-shape": Mesh.l_shape,
    "disk": Mesh.disk,
}


def _shape(shape: str, size: int) -> Mesh:
    return _SHAPES[shape]((2.0 if shape == "disk" else 1.0) / (size - 1))


RECIPES: dict[str, type[Recipe]] = {
    recipe.name: recipe for recipe in (Darcy, PoissonInterval, PoissonSquare, PoissonDisk, DarcyMesh)
}


def recipe(name: str, **parameters: Any) -> Recipe:
    """A recipe by its name."""
    if name not in RECIPES:
        raise ValueError(f"no recipe {name!r}; there are {', '.join(RECIPES)}")
    known = {field.name: field.type for field in fields(RECIPES[name])}
    unknown = [key for key in parameters if key not in known]
    if unknown:
        raise ValueError(f"recipe {name} has no parameter {unknown[0]!r}; it has {', '.join(known)}")
    return RECIPES[name](**parameters)


def make_dataset(
    recipe: Recipe,
    n: int,
    seed: int = 0,
    out: str | os.PathLike[str] | None = None,
    *,
    workers: int = 1,
    device: str = "cpu",
    force: bool = False,
    progress: Progress | None = None,
) -> Dataset:
    """n samples of a recipe; in memory, or in the folder `out`, where an interrupted run goes on when called again.

    With device="cpu" `workers` processes share the shards (joblib: its backends reach a cluster), one thread each,
    because the bits of a sum depend on the number of threads. With device="cuda" one process keeps the GPU busy.
    """
    n, seed, workers = operator.index(n), operator.index(seed), operator.index(workers)
    if n < 1 or workers < 1 or seed < 0:
        raise ValueError(f"make_dataset(n={n}, workers={workers}, seed={seed}): needed n >= 1, workers >= 1, seed >= 0")
    kind = check_device(device)
    if kind == "cuda" and not recipe.on_gpu:
        raise ValueError(f"recipe {recipe.name} is made on the CPU: its meshes are; use --device cpu")
    domain = recipe.domain()
    count = _shard_size(recipe, domain)
    shards = (range(start, min(start + count, n)) for start in range(0, n, count))
    if out is None:
        return _in_memory(recipe, domain, seed, [*shards], device, progress)
    folder = Path(out)
    header = storage.Manifest(
        n=n,
        inputs=recipe.inputs,
        outputs=("u",),
        domain=None,
        recipe={**recipe.describe(), "device": kind},
        seed=seed,
        versions=versions(),
    )
    with storage.writing(folder, header, domain, force) as manifest:
        listed = {shard.start for shard in manifest.shards}
        jobs = ((number, samples) for number, samples in enumerate(shards) if samples.start not in listed)
        workers = min(workers, -(-n // count) - len(listed)) or 1
        done = sum(shard.count for shard in manifest.shards)
        if progress:
            progress(done, n)
        make = _on_cpu if kind == "cpu" else _on_gpu
        for prepared in make(recipe, seed, folder, jobs, device, workers):
            manifest = storage.listing(folder, manifest, prepared)
            done += prepared.shard.count
            if progress:
                progress(done, n)
    return Dataset.open(folder)


def _shard_size(recipe: Recipe, domain: Domain | None) -> int:
    """Samples a shard. Part of what fixes the bits (a shard is a batch), so it depends on the recipe alone."""
    points = len(domain) if domain is not None else recipe.size**2
    return int(min(16, max(1, SHARD_BYTES // (16 * points))))


def _in_memory(
    recipe: Recipe, domain: Domain | None, seed: int, shards: list[range], device: str, progress: Progress | None
) -> Dataset:
    parts: list[Fields] = []
    domains: list[Domain] = []
    with _one_thread():
        for samples in shards:
            made, own = recipe.make(seed, samples, device)
            parts.append({name: values.cpu() if isinstance(values, Tensor) else values for name, values in made.items()})
            domains += own or []
            if progress:
                progress(samples.stop, shards[-1].stop)
    joined: dict[str, Any] = {}
    for name in parts[0]:
        pieces: list[Any] = [part[name] for part in parts]
        joined[name] = torch.cat(pieces) if isinstance(pieces[0], Tensor) else [*chain(*pieces)]
    return Dataset(domains if domain is None else domain, **joined)


def _on_cpu(
    recipe: Recipe, seed: int, folder: Path, jobs: Iterable[tuple[int, range]], device: str, workers: int
) -> Iterator[storage.Prepared]:
    tasks = (delayed(_make_shard)(recipe, seed, folder, number, samples, os.getpid()) for number, samples in jobs)
    try:
        yield from Parallel(n_jobs=workers, return_as="generator_unordered", batch_size=1)(tasks)
    except BrokenProcessPool as error:
        raise WorkerLost(f"a worker died, perhaps for want of memory; use fewer than {workers} and run it again") from error


def _make_shard(recipe: Recipe, seed: int, folder: Path, number: int, samples: range, parent: int) -> storage.Prepared:
    leave_stopping_to(parent)
    with _one_thread():
        made, domains = recipe.make(seed, samples, "cpu")
    return storage.prepare_shard(folder, number, samples.start, made, domains)


def leave_stopping_to(parent: int) -> None:
    """Ctrl-C is sent to workers, too. It is their parent who says so and ends them; an idle one would show where it idles."""
    if os.getpid() != parent and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def _on_gpu(
    recipe: Recipe, seed: int, folder: Path, jobs: Iterable[tuple[int, range]], device: str, workers: int
) -> Iterator[storage.Prepared]:
    """Solve on the GPU while threads draw what comes next and write what came before."""

    def make(job: tuple[int, range]) -> Future[storage.Prepared]:
        number, samples = job
        made, domains = recipe.make(seed, samples, device)
        on_host: Fields = {name: values.cpu() if isinstance(values, Tensor) else values for name, values in made.items()}
        return writers.submit(storage.prepare_shard, folder, number, samples.start, on_host, domains)

    with ThreadPoolExecutor(4) as writers, ThreadPoolExecutor(2) as makers:
        for written in _ahead(makers, make, jobs, 3):
            yield written.result()


def _ahead(pool: ThreadPoolExecutor, function: Callable[[Any], Any], items: Iterable[Any], most: int) -> Iterator[Any]:
    """pool.map with at most `most` results waiting, so that memory stays bounded."""
    waiting: list[Future[Any]] = []
    for item in items:
        waiting.append(pool.submit(function, item))
        if len(waiting) >= most:
            yield waiting.pop(0).result()
    for future in waiting:
        yield future.result()


@contextmanager
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
