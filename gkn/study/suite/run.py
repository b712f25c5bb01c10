"""Running the suite: every cell is a training and its test, kept in a file of its own. All models get the same of everything.

The recipe, the loss, the features and the seconds are those of `NearFar` for every model. The number of epochs follows from the
seconds that a step takes on this machine.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from joblib import Parallel, delayed

from gkn.data.dataset import Dataset
from gkn.data.generate import followed, interrupts_held_back, leave_stopping_to, make_dataset
from gkn.data.problems import problem_named
from gkn.data.sample import BadNumbers
from gkn.data.stepping import Stepping
from gkn.models import MODELS, NearFar
from gkn.operator.operator import Operator
from gkn.study.suite.tasks import Scale, Task, models_for, ways
from gkn.study.timing import seconds_per_step
from gkn.study.work import FAILURES, Place, Progress, count_of, provenance
from gkn.system.files import canonical, digest, make_folder, read_regular, write
from gkn.system.machine import cores
from gkn.train.fit import fit
from gkn.train.recipe import recipe_named

EVALUATIONS = 4
"""Evaluations of the validation samples during a training."""
LEAST_EPOCHS = 40
"""Epochs of a training. If there is no time for as many passes over all samples, an epoch has some of them."""
FEW = 8
"""Samples of the training that measures a step: so few that the graphs of all of them are there before steps are measured."""
RATES = {"FNO": 2e-3, "Potential": 1e-3}
"""Models that are trained by AdamW, and their rates."""
FORM = 2
"""Raised when what `NearFar` suggests changes for all models: cells that were done before are then done again."""
RESERVE = 0.8
"""Share of the seconds that go into steps; the others are for evaluations between them."""


@dataclass(frozen=True)
class Cell:
    """One training and its test. `unroll`, the stepping of the task and the reach of NearFar's balls are part of it."""

    task: Task
    model: str
    settings: Mapping[str, Any]
    seconds: float
    seed: int
    precision: str
    unroll: float | None = None
    reach: float = 1.0

    @property
    def hash(self) -> str:
        said = asdict(self)
        del said["task"]["published"]
        return digest(json.loads(canonical({**said, "form": FORM})))[:16]


def rows_of(scale: Scale, seed: int) -> dict[str, dict[str, Cell]]:
    """Return the cells of the main table: task -> model -> cell."""
    return {
        task.name: {
            name: Cell(task, name, scale.sizes[name], scale.seconds, seed, scale.precision, reach=scale.reach)
            for name in models_for(task, scale)
        }
        for task in scale.tasks
    }


def ways_of(scale: Scale, seed: int) -> dict[str, dict[str, Cell]]:
    """Return the cells of the table of ways to step: way -> task -> cell, by NearFar."""
    from dataclasses import replace

    found: dict[str, dict[str, Cell]] = {}
    for name in scale.ways:
        task = next(each for each in scale.tasks if each.name == name)
        for way, (stepping, unroll) in ways(task).items():
            changed = replace(task, stepping=stepping)
            cell = Cell(changed, "NearFar", scale.sizes["NearFar"], scale.seconds, seed, scale.precision, unroll, scale.reach)
            found.setdefault(way, {})[name] = cell
    return found


def file_of(cell: Cell, place: Place) -> Path:
    return place.results / "cells" / f"{cell.hash}.json"


def result_of(cell: Cell, place: Place) -> dict[str, Any] | None:
    """Return the result of a cell; None if there is none yet, or if its file cannot be read."""
    try:
        found = json.loads(read_regular(file_of(cell, place)))
    except (OSError, ValueError, RecursionError):
        return None
    whole = isinstance(found, dict) and found.get("hash") == cell.hash and ("failed" in found or "error" in found)
    return found if whole else None


def fill(cells: list[Cell], place: Place, progress: Progress | None = None) -> list[str]:
    """Fill all cells that have no result yet, `jobs` at a time; return what failed, and why."""
    missing = [cell for cell in dict.fromkeys(_Key(cell) for cell in cells) if result_of(cell.cell, place) is None]
    if not missing:
        return []
    make_folder(place.results / "cells")
    for cell in missing:  # one after the other: workers would make the same data
        samples_of(cell.cell.task, place)
    failed = []
    for done, (name, wrong) in enumerate(_done([each.cell for each in missing], place), start=1):
        failed += [] if wrong is None else [wrong]
        if progress is not None:
            progress(done, len(missing), name)
    return failed


@dataclass(frozen=True, eq=False)
class _Key:
    """A cell that is compared by its hash."""

    cell: Cell

    def __hash__(self) -> int:
        return hash(self.cell.hash)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and other.cell.hash == self.cell.hash


def _done(cells: list[Cell], place: Place) -> Iterator[tuple[str, str | None]]:
    if place.jobs == 1:
        yield from (_try(cell, place) for cell in cells)
        return
    pool = Parallel(n_jobs=place.jobs, return_as="generator_unordered", batch_size=1, pre_dispatch="n_jobs", **followed())
    with interrupts_held_back():
        done = pool(delayed(_try)(cell, place, os.getpid()) for cell in cells)
    yield from done


def _try(cell: Cell, place: Place, parent: int | None = None) -> tuple[str, str | None]:
    """Fill one cell; one that fails does not keep the others from being filled."""
    if parent is not None:
        leave_stopping_to(parent)
    name = f"{cell.task.name}: {cell.model}, seed {cell.seed}"
    try:
        with _threads(place):
            found = do(cell, place)
    except BadNumbers as error:
        found = {"failed": str(error)}
    except FAILURES as error:
        return f"{name}: not done: {error}", f"{name}: {error}"
    write(file_of(cell, place), canonical({"hash": cell.hash, "cell": described(cell), **provenance(place), **found}))
    mean = found.get("error", {}).get("mean")
    return f"{name}: {'diverged' if mean is None else f'{mean:.4f}'}", None


@contextmanager
def _threads(place: Place) -> Iterator[None]:
    """Divide the cores of a CPU among the jobs."""
    before = torch.get_num_threads()
    if place.device == "cpu":
        torch.set_num_threads(max(1, cores() // place.jobs))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def described(cell: Cell) -> dict[str, Any]:
    """Return what a cell is, for its file."""
    said: dict[str, Any] = json.loads(canonical(asdict(cell)))
    return said


def do(cell: Cell, place: Place) -> dict[str, Any]:
    """Train and test; return the result."""
    train, held, test = samples_of(cell.task, place)
    options = specification(cell, train, place)
    folder = place.work / "trained" / cell.hash
    # A run that was interrupted has its length from when it began: the machine may be slower or faster now.
    length = _kept(folder.with_suffix(".json"), lambda: length_for(cell, train, options, place))
    every = max(1, length["epochs"] // EVALUATIONS)
    about = {"task": cell.task.name}
    said: list[str] = []
    operator = fit(
        train,
        cell.model,
        **{**options, **length},
        validation=held,
        evaluate_every=every,
        out=folder,
        keep=1,
        save_every=30.0,
        about=about,
        warn=said.append,
        device=place.device,
    )
    start = time.perf_counter()
    errors = operator.evaluate(test)
    more = {"parameters": count_of(operator.model), **length, "warnings": said}
    metrics = operator.about["metrics"]
    if train.in_time:  # that of training is of single steps: ways to step are compared by rollouts
        more["rollouts"] = operator.evaluate(held).json()["mean"]
    seconds = {"fit": _seconds(folder), "judge": time.perf_counter() - start}
    return {"error": errors.json(), "validation": metrics["validation"], "seconds": seconds, **more}


def specification(cell: Cell, train: Dataset, place: Place) -> dict[str, Any]:
    """Return the options of `fit`, which are the same for all models but for what their structure demands.

    Rule, smoothing, recipe and loss are those that `NearFar` suggests. GKN and Multigrid have radii of their own, GKN nodes of
    its own. FNO has no step of Muon for its complex parameters, and Potential begins near its answer.
    """
    samples = _samples(cell, train)
    ours, theirs = NearFar.defaults(samples), MODELS[cell.model].defaults(samples)
    settings = {**cell.settings}
    recipe = {name: value for name, value in ours.changes.items() if name != "epochs"}
    recipe |= {"seed": cell.seed, "precision": cell.precision, "unroll": cell.unroll, "noise": cell.task.noise}
    recipe |= {"symmetries": True} if cell.task.symmetries else {}
    if cell.model in RATES:
        recipe |= {"optimizer": "adamw", "lr": RATES[cell.model]}
    if cell.model not in ("GKN", "Multigrid", "NearFar"):
        from gkn.graph.rules import rule_from

        recipe["rule"] = rule_from(ours.rule)
    smoothing = dict(ours.smoothing)
    if cell.model == "NearFar":
        settings["radius"] = cell.reach * ours.settings["radius"]
    settings |= {name: theirs.settings[name] for name in ("points",) if name in theirs.settings}
    return {
        "settings": settings,
        "recipe": "nearfar",
        "smoothing": smoothing,
        "extended": [*ours.extended],
        "weighted": True,
        "stepping": cell.task.stepping if train.in_time else None,
        **recipe,
    }


def length_for(cell: Cell, train: Dataset, options: Mapping[str, Any], place: Place) -> dict[str, int]:
    """Return the number of epochs that fit into the seconds of a cell and, if those are few, how many graphs each has."""
    step = seconds_per_step(train.take(min(len(train), FEW)), cell.model, place.device, **options)
    steps = max(1, math.floor(RESERVE * cell.seconds / step))
    recipe = recipe_named(options["recipe"])
    of_epoch = recipe.steps(len(_samples(cell, train)))
    if steps >= LEAST_EPOCHS * of_epoch:
        return {"epochs": steps // of_epoch}
    epochs = min(LEAST_EPOCHS, steps)
    return {"epochs": epochs, "per_epoch": recipe.batch * (steps // epochs)}


def _samples(cell: Cell, train: Dataset) -> Dataset:
    """Return what is learned from: pairs of states, if there are trajectories."""
    return train.pairs(cell.task.stepping) if train.in_time else train


def _kept(path: Path, make: Callable[[], dict[str, int]]) -> dict[str, int]:
    """Return the numbers in a file, or make them and write them there."""
    try:
        found = json.loads(read_regular(path))
        return {name: int(found[name]) for name in ("epochs", "per_epoch") if name in found or name == "epochs"}
    except (OSError, ValueError, TypeError, KeyError):
        numbers = make()
        make_folder(path.parent)
        write(path, canonical(numbers))
        return numbers


def _seconds(folder: Path) -> float:
    """Return the seconds of a training, to its last step."""
    entries = [json.loads(line) for line in read_regular(folder / "metrics.jsonl").decode().splitlines()]
    return float(entries[-1]["seconds"])


def samples_of(task: Task, place: Place) -> tuple[Dataset, Dataset, Dataset]:
    """Return the samples to train on, to validate and to test on. They are made if they are not there yet."""
    parameters = tuple(sorted(task.parameters.items()))
    train, held, test = task.counts
    if not task.elsewhere:
        whole = _made(task.problem, parameters, sum(task.counts), 0, place.work, place.device)
        parts = whole.split(train, held, test)
    else:
        whole = _made(task.problem, parameters, train + held, 0, place.work, place.device)
        other = tuple(sorted({**task.parameters, **task.elsewhere}.items()))
        parts = (*whole.split(train, held), _made(task.problem, other, test, 1, place.work, place.device))
    if task.between is not None:
        parts = tuple(part.between(*task.between) for part in parts)
    return parts  # type: ignore[return-value]


@lru_cache(maxsize=16)
def _made(name: str, parameters: tuple[tuple[str, Any], ...], count: int, seed: int, work: Path, device: str) -> Dataset:
    """Return samples of a problem, from a folder or made into it."""
    problem = problem_named(name, **dict(parameters))
    folder = work / "data" / f"{name}-{digest([parameters, count])[:12]}-seed{seed}"
    with suppress(OSError, ValueError):  # none yet, or an unfinished one
        found = Dataset.open(folder)
        header, wanted = found.manifest, json.loads(canonical(problem.describe()))
        same = header is not None and header.seed == seed and wanted.items() <= header.origin.items()
        if same and len(found) == count:  # perhaps made on another machine, which has the libraries for it
            return found
    gpu = "cuda" if device.startswith("cuda") and problem.on_gpu else "cpu"
    return make_dataset(problem, count, seed, folder, workers=cores(), device=gpu)


def answered(cell: Cell, place: Place) -> tuple[Operator, Dataset] | None:
    """Return the operator of a finished cell and its test samples, if the trained network is still there."""
    from gkn.operator.saved import load

    folder = place.work / "trained" / cell.hash
    if not folder.is_dir():
        return None
    return load(folder, best=True), samples_of(cell.task, place)[2]


def stepping_words(stepping: Stepping | None, noise: float | None = None) -> str:
    """Return a few words about how trajectories are learned."""
    if stepping is None:
        return "steady"
    history = f", {stepping.history} states in" if stepping.history > 1 else ""
    noisy = f", noise {noise:g}" if noise else ""
    return f"{stepping.target}, {'all pairs' if stepping.pairs == 'all' else 'one step'}{history}{noisy}"
