"""Doing runs: data once, every training once, every cell a file. What is finished is never done again."""

from __future__ import annotations

import json
import math
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from joblib import Parallel, delayed
from joblib.externals.loky import process_executor
from scipy.ndimage import gaussian_filter
from torch import Tensor

from gkn.data.dataset import BadNumbers, Dataset, Sample
from gkn.data.generate import WorkerLost, leave_stopping_to, make_dataset
from gkn.data.problems import problem_named as recipe
from gkn.geometry.grid import Grid
from gkn.graph.rules import Nystrom, Radius
from gkn.models import MODELS
from gkn.operator.evaluate import Answers, Sampled, relative_l2
from gkn.operator.operator import Exact, How, Operator
from gkn.operator.saved import OPERATOR, load
from gkn.study.cells import Data, Run, Training, plain
from gkn.study.scattered import clouds, scattered
from gkn.system.files import CorruptFile, canonical, make_folder, write
from gkn.system.machine import commit, machine, versions
from gkn.system.randomness import stream
from gkn.train.baselines import fit_baseline
from gkn.train.fit import fit, products

Progress = Callable[[int, int, str], None]
COUNTED = 20  # graphs whose edges are counted
FAILURES = (ValueError, ArithmeticError, RuntimeError, MemoryError, ImportError, OSError)
ELAPSED = "elapsed.jsonl"


class RunsFailed(ValueError):
    """Some of it could not be done; the rest was, and is kept."""

    def __init__(self, failed: Sequence[str]) -> None:
        super().__init__(
            f"the pages are made, but {len(failed)} of all that was asked for could not be done: {'; '.join(failed)}"
        )


@dataclass(frozen=True)
class Place:
    """Where things are kept: results (small, to be committed), and data and trained networks (large)."""

    results: Path
    work: Path
    device: str = "cpu"
    jobs: int = 1
    command: str = ""

    def trained(self, training: Training) -> Path:
        """Where its network is, if it is there."""
        return self.work / "trained" / training.hash / OPERATOR

    def cell(self, run: Run) -> Path:
        return self.results / "cells" / f"{run.hash}.json"

    def done(self, run: Run) -> dict[str, Any] | None:
        """What is known of a run; None if it is still to be done. A file that cannot be read is done again."""
        path = self.cell(run)
        if not path.is_file():
            return None
        try:
            found = json.loads(path.read_text())
            whole = found["run"] == json.loads(canonical(plain(run))) and _believable(found)
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return None
        return found if whole else None


def _believable(found: dict[str, Any]) -> bool:
    """Does a cell have all that the pages ask of it?"""
    texts = all(isinstance(found[key], str) for key in ("training", "device", "machine", "commit", "command"))
    if not texts or not isinstance(found["jobs"], int):
        return False
    if "failed" in found:
        return isinstance(found["failed"], str)
    numbers = [found["error"]["mean"], found["error"]["spread"], *found["error"].get("each", [])]
    numbers += [found["seconds"]["fit"], found["seconds"]["judge"]]
    numbers += [x for x in (found["steps"], found["peak_bytes"]) if x is not None] + [*(found["edges"] or {}).values()]
    return all(isinstance(x, int | float) and math.isfinite(x) for x in numbers)


def do_all(runs: Iterable[Run], place: Place, progress: Progress | None = None, also: Iterable[Training] = ()) -> list[str]:
    """Everything that is missing, the longest trainings first, `jobs` at a time: by joblib, whose backend may be a cluster.

    `also`: trainings whose networks somebody wants, whatever is known of their runs. Returned is what could not be done, why.
    """
    tasks: dict[Training, list[Run]] = {training: [] for training in also if not place.trained(training).is_dir()}
    for run in dict.fromkeys(runs):
        if place.done(run) is None:
            tasks.setdefault(run.training, []).append(run)
    if not tasks:
        return []
    make_folder(place.results / "cells")
    make_data({judged_on(run)[0] for few in tasks.values() for run in few} | {training.data for training in tasks}, place)
    order = sorted(tasks, key=cost, reverse=True)
    work = [(training, tasks[training], place) for training in order]
    failed = []
    for done, (name, wrong) in enumerate(_parallel(work) if place.jobs > 1 else (_try(*each) for each in work), start=1):
        failed += [] if wrong is None else [wrong]
        if progress is not None:
            progress(done, len(order), name)
    return failed


def _parallel(work: list[tuple[Training, list[Run], Place]]) -> Iterator[tuple[str, str | None]]:
    pool = Parallel(n_jobs=work[0][2].jobs, return_as="generator_unordered", batch_size=1, pre_dispatch="n_jobs")
    try:
        yield from pool(delayed(_try)(*each, parent=os.getpid()) for each in work)
    except BrokenProcessPool as error:
        jobs = work[0][2].jobs
        raise WorkerLost(
            f"a worker died, perhaps for want of memory; what was finished is kept: use fewer than {jobs} and run it again"
        ) from error


@contextmanager
def elapsed(place: Place, scale: str, recipes: Sequence[str]) -> Iterator[None]:
    """How long a call took, whether or not it came to its end: a line in a file."""
    start = time.perf_counter()
    try:
        yield
    finally:
        line = {"seconds": time.perf_counter() - start, "scale": scale, "recipes": [*recipes], **where(place)}
        make_folder(place.results)
        with open(place.results / ELAPSED, "a") as file:
            file.write(json.dumps(line, sort_keys=True) + "\n")


MOST_SEEDS = 5


def seeds_of(place: Place) -> list[int]:
    """Those of which there may be results: 0, and as many more as there are results with a seed at all."""
    most = 0
    for path in (place.results / "cells").glob("*.json"):
        with suppress(OSError, ValueError, TypeError, KeyError, RecursionError):
            most = max(most, int(json.loads(path.read_text())["run"]["training"]["seed"]))
    return [*range(min(most + 1, MOST_SEEDS))]


def where(place: Place) -> dict[str, Any]:
    """How a result came about."""
    here = {"device": place.device, "jobs": place.jobs, "machine": machine(), "versions": versions(), "commit": commit()}
    return {**here, "command": place.command}


def cost(training: Training) -> float:
    """How long a training takes, in units that are good for nothing but an order."""
    if training.recipe is None:
        return 1e6 * training.data.size / training.data.every
    assert training.rule is not None
    layers, total = dict(training.settings)["kernel"], 0.0
    for every, rule in ((training.data.every, training.rule), *training.more):
        points = ((training.data.size - 1) // every + 1) ** 2
        m, l = (rule.m, rule.l) if isinstance(rule, Nystrom) else (points, 1)
        steps = training.recipe.epochs * -(-training.data.n * l // training.recipe.batch)
        edges = training.recipe.batch * m**2 * min(1.0, 3 * rule.r**2)
        total += steps * (1e5 + edges * (1 + sum(a * b for a, b in zip((6, *layers), layers, strict=False)) / 5e5))
    return total


def do(training: Training, runs: list[Run], place: Place) -> str:
    """Fit, or read what was fitted, and fill the cells. A training whose numbers are no longer finite fills them with that."""
    if place.device == "cpu" and place.jobs > 1:
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // place.jobs))
    cuda = place.device.startswith("cuda")
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    start = time.perf_counter()
    try:
        answers, about = fitted(training, place)
    except BadNumbers as error:
        for run in runs:
            _write(run, place, {"failed": str(error)})
        return f"{training.method} {describe(training)}: diverged"
    took = time.perf_counter() - start
    shown = []
    for run in runs:
        start = time.perf_counter()
        try:
            errors = judged(run, answers, place)
        except BadNumbers as error:
            _write(run, place, {"failed": str(error)})
            shown.append("no numbers")
            continue
        peak = torch.cuda.max_memory_allocated() if cuda else None  # a process's own peak is no run's
        seconds = {"fit": about["seconds"], "with set-up": took, "judge": time.perf_counter() - start}
        more = {"steps": about["steps"], "peak_bytes": peak, "edges": edges_of(run), "parameters": about.get("parameters")}
        _write(run, place, {"error": errors, "seconds": seconds, **more, "jobs": about.get("jobs", place.jobs)})
        shown.append(f"{errors['mean']:.4f}")
    return f"{training.method} {describe(training)}: {' '.join(shown)} ({took:.0f} s)"


def _write(run: Run, place: Place, found: dict[str, Any]) -> None:
    result = {"run": plain(run), "training": run.training.hash, **where(place), **found}
    write(place.cell(run), canonical(result))


def _try(training: Training, runs: list[Run], place: Place, parent: int | None = None) -> tuple[str, str | None]:
    """One that cannot be done does not keep the others from being done."""
    if parent is not None:
        leave_stopping_to(parent)
    if place.jobs > 1:  # joblib's own workers end when they have grown, as if that were a leak; these keep their data
        process_executor._MAX_MEMORY_LEAK_SIZE = math.inf
    try:
        return do(training, runs, place), None
    except FAILURES as error:
        text = f"{training.method} {describe(training)}"
        more = (
            f" (what is in {place.work} can be removed, it is made again)" if isinstance(error, CorruptFile | OSError) else ""
        )
        return f"{text}: not done: {error}{more}", f"{text}: {error}{more}"


def fitted(training: Training, place: Place) -> tuple[Operator | Answers, dict[str, Any]]:
    """What was learned, and how long that took. A network that is there is read."""
    folder = place.trained(training).parent
    if place.trained(training).is_dir():
        try:
            operator = load(place.trained(training), device=place.device)
            return operator, _effort(operator)
        except (CorruptFile, OSError):  # damaged; it is ours, and can be made again
            shutil.rmtree(folder)
    learn = samples_of(training.data, training.data.every, range(training.data.n), place)
    if training.method not in MODELS:
        start = time.perf_counter()
        settings = dict(training.settings)
        answers = fit_baseline(training.method, learn, seed=training.seed, device=place.device, **settings)
        effort = {"seconds": time.perf_counter() - start, "steps": answers.about.get("steps")}
        network = answers.model if isinstance(answers.model, torch.nn.Module) else None
        return answers, effort if network is None else {**effort, "parameters": size(network)}
    assert training.rule is not None
    assert training.recipe is not None
    torch.manual_seed(stream(training.seed, 5).initial_seed() % 2**31)  # another than that of the draws
    model = MODELS[training.method](dim=2, in_channels=len(learn.inputs), **dict(training.settings))
    others = [samples_of(training.data, stride, range(training.data.n), place) for stride, _ in training.more]
    rules = [training.rule, *(rule for _, rule in training.more)]
    options: dict[str, Any] = {"device": place.device, "weighted": training.weighted, "keep": 1, "save_every": 120.0}
    options["about"] = {"jobs": place.jobs}  # that its seconds were shared by
    operator = fit(model, [learn, *others], rules, training.recipe, out=folder, **options)
    return operator, _effort(operator)


def _effort(operator: Operator) -> dict[str, Any]:
    metrics, shared = operator.about["metrics"], {"jobs": operator.about["jobs"]} if "jobs" in operator.about else {}
    return {"seconds": metrics["seconds"], "steps": metrics["step"], "parameters": size(operator.model), **shared}


def size(model: torch.nn.Module) -> int:
    """How many real numbers it has."""
    return sum(each.numel() * (2 if each.is_complex() else 1) for each in model.parameters())


def judged(run: Run, answers: Operator | Answers, place: Place) -> dict[str, Any]:
    """What was learned with products rounded to bf16 is judged with products rounded to tf32, which is less."""
    tests, recipe = tests_of(run, place), run.training.recipe
    less = products("fp32" if recipe is None or recipe.precision in ("fp32", "fp64") else "tf32")
    with less, torch.autocast(torch.device(place.device).type, torch.bfloat16, enabled=run.rounded):
        if run.blur:
            assert isinstance(answers, Operator)
            assert not isinstance(run.how, Sampled)
            found = relative_l2(Blurred(answers, run.how, run.blur), tests, seed=1)
        else:
            found = relative_l2(answers, tests, run.how, seed=1)
    return found.json()


def tests_of(run: Run, place: Place) -> Dataset:
    """What a run is judged by."""
    data, every, which = judged_on(run)
    side = (data.size - 1) // every + 1
    if run.on not in ("mesh", "cloud"):
        return samples_of(replace(data, known=every) if run.alone else data, every, which, place)
    fine = samples_of(replace(data, smoothing=None) if run.alone else data, 1, which, place)
    return scattered(fine, side) if run.on == "mesh" else clouds(fine, side**2)


def judged_on(run: Run) -> tuple[Data, int, range]:
    """Which data, at which stride, which of their samples."""
    data = run.training.data
    if run.on == "fresh":
        return replace(data, seed=data.seed + 1, of=0), run.every, range(run.functions)
    first = 0 if run.on == "train" else data.of
    return data, run.every, range(first, first + run.functions)


class Blurred:
    """An operator on grids whose answers are smoothed, as the authors' were: a Gaussian, u = 0 outside."""

    def __init__(self, operator: Operator, how: How, pixels: float) -> None:
        self.operator, self.how, self.pixels = operator, how, pixels

    def ready(self, dataset: Dataset) -> Dataset:
        return self.operator.ready(dataset)

    def __call__(self, sample: Sample) -> Tensor:
        found = self.operator(sample, how=self.how, rng=torch.Generator().manual_seed(1)).cpu().double()
        assert sample.domain.shape is not None
        image = found.reshape(sample.domain.shape).numpy()
        return torch.from_numpy(gaussian_filter(image, self.pixels, mode="constant")).reshape(-1, 1)


def edges_of(run: Run) -> dict[str, float] | None:
    """Edges of a graph of the training, and of one of the test: the mean of some."""
    rule, data = run.training.rule, run.training.data
    if rule is None:
        return None
    found = {}
    tested: Any = Nystrom(rule.r, run.how.m) if isinstance(run.how, Sampled) else Radius(rule.r)
    for name, which, every in (("train", rule, data.every), ("test", tested, run.every)):
        if name == "train" or isinstance(run.how, Sampled | Exact):
            count = _edges(which, (data.size - 1) // every + 1)
            if count is not None:
                found[name] = count
    return found


@lru_cache(maxsize=256)
def _edges(rule: Nystrom | Radius, size: int) -> float | None:
    points = Grid(size).points
    many = (rule.m if isinstance(rule, Nystrom) else len(points)) ** 2 * min(1.0, 3 * rule.r**2)
    if many > 5e6:
        return None
    if isinstance(rule, Nystrom):
        draws = rule.draws(len(points), range(COUNTED if many < 2e5 else 1), seed=1)[:, 0]
        return sum(rule.graph(points[nodes]).num_edges for nodes in draws) / len(draws)
    return float(rule.graph(points).num_edges)


def describe(training: Training) -> str:
    data, rule = training.data, training.rule
    side = (data.size - 1) // data.every + 1
    words = [f"s={side}", f"N={data.n}"]
    if rule is not None and training.recipe is not None:
        words += [f"r={rule.r:g}", *([f"m={rule.m}", f"l={rule.l}"] if isinstance(rule, Nystrom) else [])]
        words += [f"kernel={'-'.join(str(x) for x in dict(training.settings)['kernel'])}", f"epochs={training.recipe.epochs}"]
    return " ".join(words)


# --- data --------------------------------------------------------------------------------------------------------------


def _folder(data: Data, place: Place) -> Path:
    return place.work / "data" / f"{data.name}{data.size}-{data.of + data.tests}-seed{data.seed}"


def make_data(wanted: set[Data], place: Place) -> None:
    """Whatever is not there yet, in full: every training takes its part."""
    for data in {_folder(each, place): each for each in wanted}.values():
        device = "cuda" if place.device.startswith("cuda") else "cpu"
        workers = os.cpu_count() or 1
        made = recipe(data.name, size=data.size)
        make_dataset(made, data.of + data.tests, data.seed, _folder(data, place), workers=workers, device=device)


def samples_of(data: Data, every: int, which: range, place: Place) -> Dataset:
    if every % data.known:
        raise ValueError(f"a is known at every {data.known}th point of a side; asked for every {every}th")
    return _kept(_folder(data, place), data.smoothing, data.known, every // data.known, which, place.device)


@lru_cache(maxsize=4)
def _kept(folder: Path, smoothing: float | None, known: int, every: int, which: range, device: str) -> Dataset:
    """In memory: several trainings use the same."""
    found = Dataset.open(folder).take(which)
    if known > 1:  # of a dataset that was only strided all points would still be smoothed
        coarse = found.every(known)
        found = Dataset.of(coarse.domain, {name: coarse.field(name) for name in coarse.names}, coarse.outputs)
    return (found if smoothing is None else found.smoothed(smoothing)).every(every).kept(device)
