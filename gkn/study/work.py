"""Filling cells: data and trainings are made once, every cell is a file, and nothing that is finished is done again."""

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

from gkn.data.dataset import Dataset
from gkn.data.generate import WorkerLost, followed, interrupts_held_back, leave_stopping_to, make_dataset
from gkn.data.problems import problem_named
from gkn.data.sample import BadNumbers, Sample
from gkn.geometry.grid import Grid
from gkn.graph.rules import Rule
from gkn.models import MODELS
from gkn.operator.evaluate import relative_l2
from gkn.operator.operator import Operator
from gkn.operator.runs import OPERATOR
from gkn.operator.saved import load
from gkn.operator.ways import How
from gkn.study.cells import Cell, Data, Training, plain
from gkn.study.scattered import clouds, scattered
from gkn.system.checks import has_types
from gkn.system.files import CorruptFile, canonical, make_folder, read_regular, write
from gkn.system.machine import commit, cores, machine, versions
from gkn.system.randomness import stream
from gkn.train.fit import fit, products

Progress = Callable[[int, int, str], None]
COUNTED = 20  # graphs whose edges are counted
FAILURES = (ValueError, ArithmeticError, RuntimeError, MemoryError, ImportError, OSError)
ELAPSED = "elapsed.jsonl"
MOST_SEEDS = 5


class CellsFailed(ValueError):
    """Some cells could not be filled; the others were, and are kept."""

    def __init__(self, failed: Sequence[str]) -> None:
        super().__init__(
            f"the pages are made, but {len(failed)} of all that was asked for could not be done: {'; '.join(failed)}"
        )


@dataclass(frozen=True)
class Place:
    """Folders and the device of a study.

    results   small files, to be committed
    work      data and trained networks, which are large
    """

    results: Path
    work: Path
    device: str = "cpu"
    jobs: int = 1
    command: str = ""

    def trained(self, training: Training) -> Path:
        """Return the folder of a trained network, whether it is there or not."""
        return self.work / "trained" / training.hash / OPERATOR

    def file(self, cell: Cell) -> Path:
        """Return the file with the result of a cell."""
        return self.results / "cells" / f"{cell.hash}.json"

    def result(self, cell: Cell) -> dict[str, Any] | None:
        """Return the result of a cell; None if there is none yet, or if its file cannot be read."""
        path = self.file(cell)
        if not path.is_file():
            return None
        try:
            found = json.loads(read_regular(path))
            whole = found["cell"] == json.loads(canonical(plain(cell))) and _is_complete(found)
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return None
        return found if whole else None


def _is_complete(found: dict[str, Any]) -> bool:
    """True if a result has everything the pages need."""
    texts = dict.fromkeys(("training", "device", "machine", "commit", "command"), str)
    if not has_types(found, {**texts, "jobs": int}):
        return False
    if "failed" in found:
        return has_types(found, {"failed": str})
    numbers = [found["error"]["mean"], found["error"]["spread"], *found["error"].get("each", [])]
    numbers += [found["seconds"]["fit"], found["seconds"]["judge"]]
    numbers += [x for x in (found["steps"], found["peak_bytes"]) if x is not None] + [*(found["edges"] or {}).values()]
    return all(isinstance(x, int | float) and math.isfinite(x) for x in numbers)


def fill(cells: Iterable[Cell], place: Place, progress: Progress | None = None, also: Iterable[Training] = ()) -> list[str]:
    """Fill all cells that have no result yet, the longest trainings first, `jobs` at a time; return what failed, and why.

    joblib runs the jobs; its backend may be a cluster. `also`: trainings whose networks are needed, whatever their cells.
    """
    tasks: dict[Training, list[Cell]] = {training: [] for training in also if not place.trained(training).is_dir()}
    for cell in dict.fromkeys(cells):
        if place.result(cell) is None:
            tasks.setdefault(cell.training, []).append(cell)
    if not tasks:
        return []
    make_folder(place.results / "cells")
    make_data({evaluated_on(cell)[0] for some in tasks.values() for cell in some} | {each.data for each in tasks}, place)
    order = sorted(tasks, key=cost, reverse=True)
    work = [(training, tasks[training], place) for training in order]
    failed = []
    for done, (name, wrong) in enumerate(_parallel(work) if place.jobs > 1 else (_try(*each) for each in work), start=1):
        failed += [] if wrong is None else [wrong]
        if progress is not None:
            progress(done, len(order), name)
    return failed


def _parallel(work: list[tuple[Training, list[Cell], Place]]) -> Iterator[tuple[str, str | None]]:
    options = {"return_as": "generator_unordered", "batch_size": 1, "pre_dispatch": "n_jobs", **followed()}
    pool = Parallel(n_jobs=work[0][2].jobs, **options)
    try:
        with interrupts_held_back():
            done = pool(delayed(_try)(*each, parent=os.getpid()) for each in work)
        yield from done
    except BrokenProcessPool as error:
        jobs = work[0][2].jobs
        raise WorkerLost(
            f"a worker died, perhaps for want of memory; what was finished is kept: use fewer than {jobs} and run it again"
        ) from error


@contextmanager
def elapsed(place: Place, scale: str, recipes: Sequence[str]) -> Iterator[None]:
    """Append the seconds a call took to a file, whether or not it came to its end."""
    start = time.perf_counter()
    try:
        yield
    finally:
        line = {"seconds": time.perf_counter() - start, "scale": scale, "recipes": [*recipes], **provenance(place)}
        make_folder(place.results)
        with open(place.results / ELAPSED, "a") as file:
            file.write(json.dumps(line, sort_keys=True) + "\n")


def seeds_of(place: Place) -> list[int]:
    """Return the seeds of which there may be results: 0 to the largest one found."""
    most = 0
    for path in (place.results / "cells").glob("*.json"):
        with suppress(OSError, ValueError, TypeError, KeyError, RecursionError):
            most = max(most, int(json.loads(read_regular(path))["cell"]["training"]["seed"]))
    return [*range(min(most + 1, MOST_SEEDS))]


def provenance(place: Place) -> dict[str, Any]:
    """Return how a result came about: machine, versions, commit, command."""
    here = {"device": place.device, "jobs": place.jobs, "machine": machine(), "versions": versions(), "commit": commit()}
    return {**here, "command": place.command}


def cost(training: Training) -> float:
    """Estimate how long a training takes, in units that are good for an order only."""
    layers, total = dict(training.settings).get("kernel", (256,)), 0.0
    for every, rule in ((training.data.every, training.rule), *training.more):
        points = ((training.data.size - 1) // every + 1) ** 2
        nodes = rule.drawn or points
        steps = training.recipe.epochs * -(-training.data.n * rule.graphs // training.recipe.batch)
        edges = training.recipe.batch * nodes**2 * min(1.0, 3 * (rule.r or 0.0) ** 2)
        total += steps * (1e5 + nodes + edges * (1 + sum(a * b for a, b in zip((6, *layers), layers, strict=False)) / 5e5))
    return total


def do(training: Training, cells: list[Cell], place: Place) -> str:
    """Train, or read what was trained, and fill the cells. A training that diverges fills them with that."""
    if place.device == "cpu" and place.jobs > 1:
        torch.set_num_threads(max(1, cores() // place.jobs))
    cuda = place.device.startswith("cuda")
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    start = time.perf_counter()
    try:
        operator = trained(training, place)
    except BadNumbers as error:
        for cell in cells:
            _write(cell, place, {"failed": str(error)})
        return f"{training.model} {describe(training)}: diverged"
    took, effort = time.perf_counter() - start, _effort(operator)
    shown = []
    for cell in cells:
        start = time.perf_counter()
        try:
            errors = evaluated(cell, operator, place)
        except BadNumbers as error:
            _write(cell, place, {"failed": str(error)})
            shown.append("no numbers")
            continue
        peak = torch.cuda.max_memory_allocated() if cuda else None  # unknown on a CPU: a process fills several cells
        seconds = {"fit": effort["seconds"], "with set-up": took, "judge": time.perf_counter() - start}
        more = {"steps": effort["steps"], "peak_bytes": peak, "edges": edges_of(cell), "parameters": effort["parameters"]}
        _write(cell, place, {"error": errors, "seconds": seconds, **more, "jobs": effort.get("jobs", place.jobs)})
        shown.append(f"{errors['mean']:.4f}")
    return f"{training.model} {describe(training)}: {' '.join(shown)} ({took:.0f} s)"


def _write(cell: Cell, place: Place, found: dict[str, Any]) -> None:
    result = {"cell": plain(cell), "training": cell.training.hash, **provenance(place), **found}
    write(place.file(cell), canonical(result))


def _try(training: Training, cells: list[Cell], place: Place, parent: int | None = None) -> tuple[str, str | None]:
    """Do a training; one that fails does not keep the others from being done."""
    if parent is not None:
        leave_stopping_to(parent)
    if place.jobs > 1:  # joblib ends workers that have grown, as if that were a leak; these keep their data
        process_executor._MAX_MEMORY_LEAK_SIZE = math.inf
    try:
        return do(training, cells, place), None
    except FAILURES as error:
        text = f"{training.model} {describe(training)}"
        more = (
            f" (what is in {place.work} can be removed, it is made again)" if isinstance(error, CorruptFile | OSError) else ""
        )
        return f"{text}: not done: {error}{more}", f"{text}: {error}{more}"


def trained(training: Training, place: Place) -> Operator:
    """Return the operator of a training, trained now or read from its folder."""
    folder = place.trained(training).parent
    if place.trained(training).is_dir():
        try:
            return load(place.trained(training), device=place.device)
        except (CorruptFile, OSError):  # damaged; it is ours, and can be made again
            shutil.rmtree(folder)
    learn = samples_of(training.data, training.data.every, range(training.data.n), place)
    others = [samples_of(training.data, stride, range(training.data.n), place) for stride, _ in training.more]
    kind, settings = MODELS[training.model], dict(training.settings)
    suggested = kind.defaults(learn).settings  # sizes that follow from the data, such as the number of points
    sizes = {name: suggested[name] for name in ("points", "inputs", "outputs") if name in suggested and name not in settings}
    torch.manual_seed(stream(training.seed, 5).initial_seed() % 2**31)  # another seed than that of the draws
    model = kind(dim=2, in_channels=len(learn.inputs), out_channels=1, **settings, **sizes)
    rules = [training.rule, *(rule for _, rule in training.more)]
    options: dict[str, Any] = {"device": place.device, "weighted": training.weighted, "keep": 1, "save_every": 120.0}
    options["about"] = {"jobs": place.jobs}  # trainings that shared the machine
    options["warn"] = lambda text: None  # small scales of a table have few samples and sparse graphs on purpose
    return fit([learn, *others], model, rules, training.recipe, out=folder, **options)


def _effort(operator: Operator) -> dict[str, Any]:
    metrics, shared = operator.about["metrics"], {"jobs": operator.about["jobs"]} if "jobs" in operator.about else {}
    return {"seconds": metrics["seconds"], "steps": metrics["step"], "parameters": count_of(operator.model), **shared}


def count_of(model: torch.nn.Module) -> int:
    """Return the number of real parameters of a model."""
    return sum(each.numel() * (2 if each.is_complex() else 1) for each in model.parameters())


def evaluated(cell: Cell, operator: Operator, place: Place) -> dict[str, Any]:
    """Return the errors of a cell. A network trained in bf16 is evaluated with products rounded to tf32, which is less."""
    tests, recipe = tests_of(cell, place), cell.training.recipe
    plain = (tests.domain if tests.one_domain else tests[0].domain).shape is not None  # the paper's sums over grids
    less = products("fp32" if recipe.precision in ("fp32", "fp64") else "tf32")
    with less, torch.autocast(torch.device(place.device).type, torch.bfloat16, enabled=cell.rounded):
        if cell.blur:
            assert isinstance(cell.how, How)
            found = relative_l2(Blurred(operator, cell.how, cell.blur), tests, seed=1, weighted=not plain)
        else:
            found = relative_l2(operator, tests, cell.how, seed=1, weighted=not plain)
    return found.json()


def tests_of(cell: Cell, place: Place) -> Dataset:
    """Return the samples a cell is evaluated on."""
    data, every, which = evaluated_on(cell)
    side = (data.size - 1) // every + 1
    if cell.on not in ("mesh", "cloud"):
        return samples_of(replace(data, known=every) if cell.alone else data, every, which, place)
    fine = samples_of(replace(data, smoothing=None) if cell.alone else data, 1, which, place)
    return scattered(fine, side) if cell.on == "mesh" else clouds(fine, side**2)


def evaluated_on(cell: Cell) -> tuple[Data, int, range]:
    """Return the data, the stride and the samples a cell is evaluated on."""
    data = cell.training.data
    if cell.on == "fresh":
        return replace(data, seed=data.seed + 1, of=0), cell.every, range(cell.functions)
    first = 0 if cell.on == "train" else data.of
    return data, cell.every, range(first, first + cell.functions)


class Blurred:
    """An operator on grids whose answers are smoothed, as the authors' were: a Gaussian, with u = 0 outside."""

    def __init__(self, operator: Operator, how: How, pixels: float) -> None:
        self.operator, self.how, self.pixels = operator, how, pixels

    def ready(self, dataset: Dataset) -> Dataset:
        return self.operator.ready(dataset)

    def __call__(self, sample: Sample) -> Tensor:
        found = self.operator(sample, how=self.how, rng=torch.Generator().manual_seed(1)).cpu().double()
        assert sample.domain.shape is not None
        image = found.reshape(sample.domain.shape).numpy()
        return torch.from_numpy(gaussian_filter(image, self.pixels, mode="constant")).reshape(-1, 1)


def edges_of(cell: Cell) -> dict[str, float] | None:
    """Return the number of edges of a graph of the training, and of one of the test: the mean of some."""
    rule, data = cell.training.rule, cell.training.data
    if rule.r is None:
        return None
    found = {}
    for name, which, every in (("train", rule, data.every), ("test", cell.how.batched(rule), cell.every)):
        if which is not None:
            count = _edges(which, (data.size - 1) // every + 1)
            if count is not None:
                found[name] = count
    return found


@lru_cache(maxsize=256)
def _edges(rule: Rule, size: int) -> float | None:
    points = Grid(size).points
    many = (rule.drawn or len(points)) ** 2 * min(1.0, 3 * (rule.r or 0.0) ** 2)
    if many > 5e6:
        return None
    if rule.drawn is None:
        return float(rule.graph(points).num_edges)
    draws = rule.draws(len(points), range(COUNTED if many < 2e5 else 1), seed=1)[:, 0]
    return sum(rule.graph(points[nodes]).num_edges for nodes in draws) / len(draws)


def describe(training: Training) -> str:
    """Return a few words about a training."""
    data, rule = training.data, training.rule
    words = [f"s={(data.size - 1) // data.every + 1}", f"N={data.n}"]
    words += [] if rule.r is None else [f"r={rule.r:g}"]
    words += [] if rule.drawn is None else [f"m={rule.drawn}", f"l={rule.graphs}"]
    kernel = dict(training.settings).get("kernel")
    words += [] if kernel is None else [f"kernel={'-'.join(str(x) for x in kernel)}"]
    return " ".join([*words, f"epochs={training.recipe.epochs}"])


# --- data --------------------------------------------------------------------------------------------------------------


def _folder(data: Data, place: Place) -> Path:
    return place.work / "data" / f"{data.name}{data.size}-{data.of + data.tests}-seed{data.seed}"


def make_data(wanted: set[Data], place: Place) -> None:
    """Make the datasets that are not there yet, in full: every training takes its part."""
    for data in {_folder(each, place): each for each in wanted}.values():
        device = "cuda" if place.device.startswith("cuda") else "cpu"
        made = problem_named(data.name, size=data.size)
        workers = cores()
        make_dataset(made, data.of + data.tests, data.seed, _folder(data, place), workers=workers, device=device)


def samples_of(data: Data, every: int, which: range, place: Place) -> Dataset:
    """Return some samples of the data at a stride, in memory."""
    if every % data.known:
        raise ValueError(f"a is known at every {data.known}th point of a side; asked for every {every}th")
    return _kept(_folder(data, place), data.smoothing, data.known, every // data.known, which, place.device)


@lru_cache(maxsize=4)
def _kept(folder: Path, smoothing: float | None, known: int, every: int, which: range, device: str) -> Dataset:
    """Return a dataset in memory; several trainings use the same."""
    found = Dataset.open(folder).take(which)
    if known > 1:  # a dataset that was only strided would still be smoothed on all points
        coarse = found.every(known)
        found = Dataset.of(coarse.domain, {name: coarse.field(name) for name in coarse.names}, coarse.outputs)
    return (found if smoothing is None else found.smoothed(smoothing)).every(every).kept(device)
