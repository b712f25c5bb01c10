"""Making datasets: problem + seed -> Dataset.

The function of sample i depends on the problem, the seed and i alone, and samples are solved in shards of a size that depends
on the problem alone: so the bits are the same whatever the number of workers and wherever a run was interrupted.
"""

from __future__ import annotations

import operator
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from itertools import chain
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import torch
from joblib import Parallel, delayed
from joblib.externals.loky.backend import resource_tracker as loky_tracker
from torch import Tensor

from gkn.data import storage
from gkn.data.dataset import Dataset
from gkn.data.groups import component_names, expanded
from gkn.data.problems.problem import Fields, Problem
from gkn.data.saving import SHARD_BYTES
from gkn.geometry.domain import Domain
from gkn.system.checks import check_device
from gkn.system.machine import versions
from gkn.system.stopping import end_with


class WorkerLost(RuntimeError):
    """A process that was making samples has died."""


Progress = Callable[[int, int], None]
"""Called with the number of samples that are written (or in memory), and the number of all."""


def make_dataset(
    problem: Problem,
    n: int,
    seed: int = 0,
    out: str | os.PathLike[str] | None = None,
    *,
    workers: int = 1,
    device: str = "cpu",
    force: bool = False,
    progress: Progress | None = None,
) -> Dataset:
    """Make n samples of a problem, in memory or in the folder `out`, where an interrupted run is resumed.

    With device="cpu" `workers` processes share the shards (joblib: its backends reach a cluster), one thread each,
    because the bits of a sum depend on the number of threads. With device="cuda" one process keeps the GPU busy.
    """
    if any(isinstance(each, bool) for each in (n, seed, workers)):
        raise ValueError(f"make_dataset(n={n}, workers={workers}, seed={seed}): needed whole numbers")
    n, seed, workers = operator.index(n), operator.index(seed), operator.index(workers)
    if n < 1 or workers < 1 or seed < 0:
        raise ValueError(f"make_dataset(n={n}, workers={workers}, seed={seed}): needed n >= 1, workers >= 1, seed >= 0")
    kind = check_device(device)
    if kind == "cuda" and not problem.on_gpu:
        raise ValueError(f"{problem.name} is made on the CPU, because its meshes are; use --device cpu")
    domain = problem.domain()
    count = _shard_size(problem, domain)
    shards = (range(start, min(start + count, n)) for start in range(0, n, count))
    if out is None:
        return _in_memory(problem, domain, seed, [*shards], device, progress)
    folder, groups = Path(out), {name: component_names(name, count) for name, count in problem.vectors.items()}
    header = storage.Manifest(
        n=n,
        inputs=expanded(problem.inputs, groups),
        outputs=expanded(problem.outputs, groups),
        domain=None,
        origin={**problem.describe(), "device": kind},
        seed=seed,
        versions=versions(),
        groups=groups,
        parameters=problem.parameters,
        evolving=expanded(problem.evolving, groups),
    )
    with storage.writing(folder, header, domain, force) as manifest:
        listed = {shard.start for shard in manifest.shards}
        jobs = ((number, samples) for number, samples in enumerate(shards) if samples.start not in listed)
        workers = min(workers, -(-n // count) - len(listed)) or 1
        done = sum(shard.count for shard in manifest.shards)
        if progress:
            progress(done, n)
        make = _on_cpu if kind == "cpu" else _on_gpu
        for prepared in make(problem, seed, folder, jobs, device, workers):
            manifest = storage.listing(folder, manifest, prepared)
            done += prepared.shard.count
            if progress:
                progress(done, n)
    return Dataset.open(folder)


def _shard_size(problem: Problem, domain: Domain | None) -> int:
    """Return the number of samples in a shard. A shard is a batch and fixes the bits, so this depends on the problem alone."""
    points = len(domain) if domain is not None else problem.points()
    times = problem.times()
    return int(min(16, max(1, SHARD_BYTES // (16 * points * (1 if times is None else len(times))))))


def _in_memory(
    problem: Problem, domain: Domain | None, seed: int, shards: list[range], device: str, progress: Progress | None
) -> Dataset:
    parts: list[Fields] = []
    domains: list[Domain] = []
    with _one_thread():
        for samples in shards:
            made, apart = problem.make(seed, samples, device)
            parts.append(_on_host(made))
            domains += apart or []
            if progress:
                progress(samples.stop, shards[-1].stop)
    joined: dict[str, Any] = {}
    for name in parts[0]:
        pieces: list[Any] = [part[name] for part in parts]
        joined[name] = torch.cat(pieces) if isinstance(pieces[0], Tensor) else [*chain(*pieces)]
    times = problem.times() if problem.evolving else None
    return Dataset.of(domains if domain is None else domain, joined, problem.outputs, problem.inputs, times=times)


def _on_cpu(
    problem: Problem, seed: int, folder: Path, jobs: Iterable[tuple[int, range]], device: str, workers: int
) -> Iterator[storage.Prepared]:
    tasks = (delayed(_make_shard)(problem, seed, folder, number, samples, os.getpid()) for number, samples in jobs)
    try:
        with interrupts_held_back():
            pool = Parallel(n_jobs=workers, return_as="generator_unordered", batch_size=1, **followed())
            made = pool(tasks)
        yield from made
    except BrokenProcessPool as error:
        raise WorkerLost(f"a worker died, perhaps for want of memory; use fewer than {workers} and run it again") from error


def _make_shard(problem: Problem, seed: int, folder: Path, number: int, samples: range, parent: int) -> storage.Prepared:
    leave_stopping_to(parent)
    with _one_thread():
        made, domains = problem.make(seed, samples, "cpu")
    return _prepared(problem, folder, number, samples, made, domains)


@contextmanager
def interrupts_held_back() -> Iterator[None]:
    """Hold back Ctrl-C while workers are started: they inherit that, and would print tracebacks otherwise.

    If it comes meanwhile, this process receives it afterwards.
    """
    if not hasattr(signal, "pthread_sigmask") or threading.current_thread() is not threading.main_thread():
        yield
        return
    for tracker in (resource_tracker, loky_tracker):  # processes of joblib and Python, whose start ends what is held back
        tracker.ensure_running()
    came: list[int] = []
    handler = signal.signal(signal.SIGINT, lambda number, frame: came.append(number))  # other threads may receive it
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGINT, handler)
        if came:
            signal.raise_signal(signal.SIGINT)


def leave_stopping_to(parent: int) -> None:
    """Ignore Ctrl-C in a worker process. It is sent to workers too, but their parent reports it and ends them."""
    if os.getpid() != parent and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def followed() -> dict[str, Any]:
    """Return options of joblib with which worker processes on this machine end when this process does."""
    return {"initializer": follow, "initargs": (os.getpid(),)}


def follow(parent: int) -> None:
    """Let this worker process end with its parent."""
    if os.getpid() != parent:  # a backend of threads has no other processes
        end_with(parent)


def _on_gpu(
    problem: Problem, seed: int, folder: Path, jobs: Iterable[tuple[int, range]], device: str, workers: int
) -> Iterator[storage.Prepared]:
    """Solve on the GPU while threads draw what comes next and write what came before."""

    def make(job: tuple[int, range]) -> Future[storage.Prepared]:
        number, samples = job
        made, domains = problem.make(seed, samples, device)
        return writers.submit(_prepared, problem, folder, number, samples, _on_host(made), domains)

    with ThreadPoolExecutor(4) as writers, ThreadPoolExecutor(2) as makers:
        for written in _ahead(makers, make, jobs, 3):
            yield written.result()


def _prepared(
    problem: Problem, folder: Path, number: int, samples: range, made: Fields, domains: list[Domain] | None
) -> storage.Prepared:
    """Write a shard to a temporary file. Components of vectors are fields, and functions of time have their times."""
    fields: dict[str, Any] = {}
    for name, rows in made.items():
        if name in problem.vectors:
            for j, part in enumerate(component_names(name, problem.vectors[name])):
                fields[part] = [row[..., j] for row in rows]
        else:
            fields[name] = rows
    groups = {name: component_names(name, count) for name, count in problem.vectors.items()}
    times = problem.times()
    evolving = {} if times is None else {name: [times] * len(samples) for name in expanded(problem.evolving, groups)}
    return storage.prepare_shard(folder, number, samples.start, fields, domains, evolving)


def _on_host(fields: Fields) -> Fields:
    return {name: values.cpu() if isinstance(values, Tensor) else values for name, values in fields.items()}


def _ahead(pool: ThreadPoolExecutor, function: Callable[[Any], Any], items: Iterable[Any], most: int) -> Iterator[Any]:
    """Map a function over items with at most `most` results waiting, so that memory stays bounded."""
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
