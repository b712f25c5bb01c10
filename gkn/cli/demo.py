"""gkn demo: the first five minutes. A network trained on 16 x 16 answers on 241 x 241."""

from __future__ import annotations

import json
import os
import platform
import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.table import Table

from gkn.cli.learn import training_bar
from gkn.cli.shell import console, plain, progress_bar
from gkn.data.dataset import Dataset
from gkn.data.generate import make_dataset
from gkn.data.problems import Darcy, DarcyMesh
from gkn.data.storage import ExistingDataset
from gkn.graph.rules import Nystrom
from gkn.models import GKN
from gkn.operator.card import CARD
from gkn.operator.evaluate import Errors, Test, relative_l2
from gkn.operator.operator import Exact, Operator, Partition
from gkn.operator.saved import METRICS, OPERATOR, load
from gkn.study.page import Page
from gkn.system.files import canonical, sha256, write
from gkn.system.machine import versions
from gkn.train.fit import fit
from gkn.train.recipe import SMOOTHING

# Small enough for two cores and three minutes.
NETWORK: dict[str, Any] = {"width": 32, "kernel": (32, 64), "steps": 6, "last_sigma": False}
RADIUS, NODES = 0.2, 256
# The paper's errors for training on 16 x 16: full grids (its table 1), and, where it has none, sampled nodes (table 3).
PAPER = {16: "0.0525", 31: "0.0591", 61: "0.0585", 121: "0.0768 *", 241: "0.0724 *"}
POINTS = 500
WHOLE = 1000  # points that are one graph; larger grids are answered in shifted sub-grids of 16 x 16, as in the paper


def demo(
    out: Annotated[Path, typer.Option(help="Where to put everything.")] = Path("runs/demo"),
    n: Annotated[int, typer.Option(min=7, help="How many Darcy problems.")] = 140,
    size: Annotated[int, typer.Option(min=17, help="Grid points a side.")] = 241,
    epochs: Annotated[int, typer.Option(min=1, help="How long to train.")] = 15,
    judged: Annotated[int, typer.Option(min=1, help="Test functions on the finest grids and on the mesh.")] = 8,
) -> None:
    """Make Darcy problems, train on 16 x 16 and 31 x 31, test up to 241 x 241. Interrupted, it goes on when run again."""
    start = time.perf_counter()
    data = _data(out / f"darcy{size}-{n}", Darcy(size=size), n, 0)
    mesh = _data(out / f"mesh-{judged}", DarcyMesh(size=31), judged, 1)  # other functions than those it learns from
    strides = [k for k in (16, 8, 4, 2, 1) if (size - 1) % k == 0 and (size - 1) // k >= 8]
    count = n // 7 * 5
    learn, judge = (data.take(range(*part)).smoothed(SMOOTHING["ours"]) for part in ((0, count), (count, n)))
    operator = _train(out / "run", [learn.every(k) for k in strides[:2]], judge.every(strides[0]), epochs)
    judge = operator.ready(data.take(range(count, n)))
    rows = []
    for k in strides:
        part = judge.every(k)
        side = (size - 1) // k + 1
        few = part if side**2 <= 4 * WHOLE else part.take(min(judged, len(part)))
        found = _judged(out, f"{side} x {side}", operator, few, _way(side**2))
        rows.append((f"{side} x {side}", found, PAPER.get(side, "")))
    found = _judged(out, "mesh", operator, operator.ready(mesh), Exact())
    rows.append((f"a mesh of {len(mesh.domain)} points, by finite elements", found, ""))
    coarse = judge.every(strides[1])
    asked = _asked(operator, coarse.take(min(judged, len(coarse))), judge)
    rows.append((f"{POINTS} random points, from {_side(coarse)} x {_side(coarse)}", asked, ""))
    report = _report(out, operator, rows, judge, mesh, time.perf_counter() - start)
    table = Table(
        f"trained on {_sides(size, strides)}, tested on", "error", "spread", "functions", "paper", box=None, pad_edge=False
    )
    for name, found, paper in rows:
        table.add_row(name, f"{found.mean:.4f}", f"{found.spread:.4f}", str(len(found.each)), paper)
    console.print(table)
    console.print(f"the report: {plain(report)}", soft_wrap=True)


def _data(folder: Path, recipe: Darcy | DarcyMesh, n: int, seed: int) -> Dataset:
    options: dict[str, Any] = {"workers": os.cpu_count() or 1}
    with progress_bar(f"{n} {recipe.name} problems") as progress:
        try:
            return make_dataset(recipe, n, seed, folder, progress=progress, **options)
        except ExistingDataset:  # by another version of gkn or torch; the demo's own data can be made again
            return make_dataset(recipe, n, seed, folder, progress=progress, force=True, **options)


def _train(folder: Path, parts: list[Dataset], test: Dataset, epochs: int) -> Operator:
    """Read back from the folder: what is judged is what is saved."""
    torch.manual_seed(0)
    model = GKN(dim=2, in_channels=len(test.inputs), **NETWORK)
    with training_bar(folder) as report:
        fit(
            model,
            parts,
            Nystrom(RADIUS, min(NODES, len(test.domain))),
            epochs=epochs,
            batch=4,
            lr=3e-3,
            test=test,
            how=Exact(),
            test_every=3,
            out=folder,
            save_every=20,
            report=report,
        )
    return load(folder)


def _judged(out: Path, name: str, operator: Operator, dataset: Dataset, how: Test) -> Errors:
    """Kept in a file, so that a demo that is run again does not judge again."""
    path = out / "results" / f"{name.replace(' ', '')}.json"
    key = {"operator": sha256(out / "run" / OPERATOR / CARD), "how": repr(how), "data": dataset.identity()}
    if path.is_file():
        with suppress(ValueError, KeyError, TypeError):  # not what was written: judged again
            kept = json.loads(path.read_text())
            if kept["of"] == key:
                return Errors(torch.tensor(kept["each"], dtype=torch.float64))
    with progress_bar(f"judging on {name}") as progress:
        found = relative_l2(operator, dataset, how, progress=progress)
    path.parent.mkdir(parents=True, exist_ok=True)
    write(path, canonical({"of": key, **found.json()}))
    return found


def _asked(operator: Operator, coarse: Dataset, fine: Dataset) -> Errors:
    """Nodes of the coarse grid carry the computation; the points are anywhere. What a and u are there, the fine grid says."""
    points = torch.rand(POINTS, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    errors = []
    for i, sample in enumerate(coarse):
        known = fine[i]
        a, truth = (fine.domain.interpolate(values, points) for values in (known.a, known.u))
        found = operator(sample, at=points, a=a).double()
        errors.append((found - truth).norm() / truth.norm())
    return Errors(torch.stack(errors))


def _report(
    out: Path, operator: Operator, rows: list[tuple[str, Errors, str]], judge: Dataset, mesh: Dataset, seconds: float
) -> Path:
    from gkn.data.plot import show_answers, show_losses

    fine, bent = judge[0], operator.ready(mesh)[0]
    side = _side(judge)
    chosen = ((f"{side} x {side}", fine, _way(side**2)), ("finite elements", bent, Exact()))
    answers = [(name, x.domain, x.a[:, 0], x.u[:, 0], operator(x, how=how)[:, 0].double()) for name, x, how in chosen]
    show_answers(answers, out / "prediction.png", f"trained on 16 x 16 and 31 x 31, asked on {side} x {side} and on a mesh")
    metrics = [json.loads(line) for line in (out / "run" / METRICS).read_text().splitlines()]
    show_losses(metrics, out / "loss.png")
    page = Page("gkn: trained on 16 x 16, asked on 241 x 241" if side == 241 else f"gkn: asked on {side} x {side}")
    page.text(
        "A graph kernel network learned the map from a coefficient a to the solution u of -div(a grad u) = 1, u = 0 on the "
        "boundary, from coarse grids. The same parameters answer on finer grids, on an unstructured mesh, and at any point."
    )
    page.picture(out / "prediction.png", "coefficient, truth, prediction and their difference")
    page.heading("Error by resolution")
    table = [
        (name, f"{e.mean:.4f}", f"{e.spread:.4f}", f"{e.worst[0]:.4f}", str(len(e.each)), paper) for name, e, paper in rows
    ]
    page.table(("tested on", "relative l2", "spread", "worst", "functions", "paper"), table)
    page.text(
        "The paper's column: its network, eight times as wide in its kernel, trained on 16 x 16 with 100 pairs: full grids "
        "(table 1), * sampled nodes (table 3). Above 31 x 31 the grid is answered in shifted sub-grids of 16 x 16.",
        small=True,
    )
    page.heading("Training")
    page.picture(out / "loss.png", "training loss and test error over epochs")
    page.heading("What was run, on what")
    recipe = operator.about["recipe"]
    page.code(
        f"gkn demo\nnetwork  {operator.model.config()}\nrule     {operator.rule}\nrecipe   {recipe}\n"
        f"machine  {platform.machine()}, {os.cpu_count()} cores, {torch.get_num_threads()} threads\n"
        f"versions {versions()}\ntraining {operator.about['metrics']['seconds']:.0f} s, this run of the demo {seconds:.0f} s"
    )
    page.text("Ask it yourself: gkn predict runs/demo/run --input sample.npz --at points.npy --out answer.npz", small=True)
    path = out / "report.html"
    page.write(path)
    return path


def _sides(size: int, strides: list[int]) -> str:
    sides = [(size - 1) // k + 1 for k in strides[:2]]
    return " and ".join(f"{side} x {side}" for side in sides)


def _side(dataset: Dataset) -> int:
    side: int = round(len(dataset.domain) ** 0.5)
    return side


def _way(points: int) -> Exact | Partition:
    return Exact() if points <= WHOLE else Partition(NODES)
