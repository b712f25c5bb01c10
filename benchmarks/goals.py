"""Measurements of single problems of the suite, with more time than a cell of it has. One command each:

    python -m benchmarks.goals burgers   u(0) -> u(1): learn on 256 points, answer on 256 and on 1024
    python -m benchmarks.goals layers    single and double layer: learn on one curve, answer on two at once
    python -m benchmarks.goals sparse    Darcy on 1849 random points: the pretrained NearFar with corrected quadratures
    python -m benchmarks.goals lattices  Multigrid learned from one grid, and from a grid and random points
    python -m benchmarks.goals strict    Darcy known on 85 x 85 only: the pretrained NearFar, and its mean over symmetries
    python -m benchmarks.goals known     the same, learned from such functions: three trainings, and the mean of their answers
    python -m benchmarks.goals grids     Navier-Stokes: what recorded states change by if they are solved on finer grids
    python -m benchmarks.goals elements  how far the data on tetrahedra are from those of elements half as large
    python -m benchmarks.goals rows --only NAME --model MODEL --seconds S
                                         rows of the full scale of the suite, with these seconds for each training

Nothing is chosen by the test samples: the network with the smallest validation error is judged. Finished cells are kept in
results/goals/NAME.json and not computed again.
"""

import argparse
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import torch

from benchmarks import Cells, summary
from gkn import (
    Burgers,
    Darcy,
    DarcyMesh,
    Dataset,
    LayerPotential,
    Multigrid,
    NavierStokes,
    NearFar,
    Nystrom,
    PoissonMesh,
    Radius,
    fit,
    pretrained,
)
from gkn.data.generate import make_dataset
from gkn.operator.evaluate import errors_of, relative_errors
from gkn.operator.ways import Sampled
from gkn.study.beyond.tables import NETWORKS, RADIUS, RECIPE, SMOOTHING
from gkn.study.scattered import clouds, scattered
from gkn.study.suite.run import Cell, do
from gkn.study.suite.tasks import SCALES
from gkn.study.work import Place
from gkn.system.checks import device_named
from gkn.system.files import digest

CELLS = Cells("goals")
SMALL = {"width": 32, "blocks": 3, "slices": 16, "head": 8, "kernel": (8, 4)}
REACH = 0.6  # radius of balls relative to the suggested one, as at the small scale of the suite


def data_of(problem, count, seed, work, device="cpu"):
    """Return samples of a problem, made once into a folder."""
    folder = work / f"{problem.name}-{digest([problem.describe(), count])[:12]}-seed{seed}"
    return make_dataset(problem, count, seed, folder, workers=1, device=device)


def trained(data, validation, model, seed, device, **options):
    """Return an operator, the seconds it took to train, and its validation error."""
    start = time.perf_counter()
    options = {"evaluate_every": max(1, options["epochs"] // 10), "warn": lambda text: None, **options}
    operator = fit(data, model, validation=validation, seed=seed, device=device, **options)
    facts = {"seconds": time.perf_counter() - start, "validation": operator.about["metrics"]["validation"]}
    facts["parameters"] = sum(x.numel() for x in operator.model.parameters())
    return operator, facts


def keep(name, cell, found):
    """Add a finished cell to the results, and print its errors."""
    CELLS.keep(name, cell, found)
    errors = {where: round(each["mean"], 5) for where, each in found["errors"].items()}
    print(name, cell, errors, f"{found.get('seconds', 0):.0f} s", flush=True)


def burgers(work, device, seeds):
    """1000 training functions on 256 points; 200 test functions on 256 points, and the same ones on 1024."""
    train, held = data_of(Burgers(size=256, frames=1), 1050, 0, work).between(0, -1).split(1000, 50)
    tests = {f"{size} points": data_of(Burgers(size=size, frames=1), 200, 1, work).between(0, -1) for size in (256, 1024)}
    radius = REACH * suggested(train)
    for seed in range(seeds):
        cell = f"NearFar, seed {seed}"
        if cell in CELLS.done("burgers"):
            continue
        settings = {**SMALL, "radius": radius}
        operator, facts = trained(train, held, "NearFar", seed, device, settings=settings, epochs=20)
        keep("burgers", cell, {"errors": {where: summary(operator.evaluate(test)) for where, test in tests.items()}, **facts})


def suggested(data):
    """Return the radius that NearFar suggests for a dataset."""
    return NearFar.defaults(data).settings["radius"]


def layers(work, device, seeds):
    """500 densities on one curve each; 100 test densities on one curve, and on two at once."""
    for kind in ("single", "double"):
        train, held = data_of(LayerPotential(kind=kind), 550, 0, work).split(500, 50)
        tests = {
            f"{count} curve{'s' * (count > 1)}, {size} points each": data_of(
                LayerPotential(kind=kind, size=size, curves=count), 100, 1, work
            )
            for count, size in ((1, 200), (2, 200), (2, 400))
        }
        for seed in range(seeds):
            cell = f"{kind}, Potential, seed {seed}"
            if cell in CELLS.done("layers"):
                continue
            operator, facts = trained(train, held, "Potential", seed, device, epochs=4, evaluate_every=1)
            keep(
                "layers", cell, {"errors": {where: summary(operator.evaluate(test)) for where, test in tests.items()}, **facts}
            )


def sparse(work, device, seeds):
    """The pretrained NearFar, which was trained without corrections, on 20 functions of another seed."""
    fine = data_of(Darcy(size=421), 20, 7, work)
    coarse, mesh = fine.every(5), scattered(fine, 85)
    operator = pretrained("darcy-nearfar").moved(device)
    for degree in (0, 2, 1):
        cell = f"moments up to degree {degree}"
        if cell in CELLS.done("sparse"):
            continue
        operator.model.moments, start = degree, time.perf_counter()
        errors = {"85 x 85": operator.evaluate(coarse), "1849 random points": operator.evaluate(fine, how=Sampled(1849))}
        errors["unstructured mesh"] = operator.evaluate(mesh)
        errors["own clouds of 1849 points"] = operator.evaluate(clouds(fine, 1849))
        found = {where: summary(each) for where, each in errors.items()}
        keep("sparse", cell, {"errors": found, "seconds": time.perf_counter() - start})


def strict(work, device, seeds):
    """100 functions of another seed, of which 85 x 85 values are known; they are smoothed on that grid, too."""
    some = data_of(Darcy(size=421), 100, 7, work).every(5)
    coarse = Dataset(some.domain, a=some.field("a"), u=some.field("u"))  # a view would be smoothed on 421 x 421
    operator = pretrained("darcy-nearfar").moved(device)
    for cell, chosen in (("NearFar", operator), ("NearFar, mean over the 8 symmetries", operator.symmetric())):
        if cell not in CELLS.done("strict"):
            start = time.perf_counter()
            errors = {"85 x 85": summary(chosen.evaluate(coarse))}
            keep("strict", cell, {"errors": errors, "seconds": time.perf_counter() - start})


def known(work, device, seeds, count=1000, tests=200, size=421, **settings):
    """Darcy flow, a known on 85 x 85 only: 1000 functions to learn from, 24 to choose the epoch by, 200 of another seed.

    They are learned as those of `gkn beyond` are, on 43 x 43 and on 1849 points drawn from 85 x 85 for each step.
    """
    stride = (size - 1) // 84 or 1
    learned, others = (data_of(Darcy(size=size), n, seed, work, device) for n, seed in ((count + 24, 0), (tests, 1)))
    coarse = others.every(stride)
    test = Dataset(coarse.domain, a=coarse.field("a"), u=coarse.field("u"))
    some = learned.every(stride)
    train, held = Dataset(some.domain, a=some.field("a"), u=some.field("u")).smoothed(SMOOTHING).split(count, 24)
    rules = [Radius(RADIUS), Nystrom(RADIUS, len(train.every(2).domain))]
    options = {"rule": rules, "recipe": RECIPE, "settings": {**NETWORKS["NearFar"], **settings}, "smoothing": {}}
    if device == "cpu":
        options["precision"] = "fp32"
    total, started = torch.zeros(len(test), len(test.domain), 1, dtype=torch.float64), time.perf_counter()
    for seed in range(seeds):
        folder = work / f"known-seed{seed}"
        operator, facts = trained(
            [train.every(2), train], held, "NearFar", seed, device, epochs=24, weighted=True, out=folder, **options
        )
        chosen = operator.symmetric()
        total += torch.stack([chosen(sample, check=False).cpu().double() for sample in chosen.ready(test)])
        errors = {"one answer": summary(operator.evaluate(test)), "mean over the 8 symmetries": summary(chosen.evaluate(test))}
        means, fields = total / (seed + 1), [*test.output_fields.values()]
        away = [relative_errors(u, sample.u, sample.weights, fields) for u, sample in zip(means, test, strict=True)]
        errors[f"mean over these, of {seed + 1} networks"] = summary(errors_of(torch.stack(away), test))
        keep("known", f"NearFar, seed {seed}", {"errors": errors, **facts, "all_seconds": time.perf_counter() - started})


def lattices(work, device, seeds):
    """400 functions of 127 x 127, learned on 43 x 43 alone, or also on 924 of its points drawn at random; as many steps.

    50 test functions on 43 x 43, and the first 10 or 20 of them elsewhere.
    """
    fine = data_of(Darcy(size=127), 470, 0, work).smoothed(0.03)
    train, held, test = fine.split(400, 20, 50)
    grid = train.every(3)
    radius = 0.08
    settings = {"width": 24, "cycles": 2, "levels": 3, "kernel": (16, 8), "radius": radius}
    points = grid.domain.shape[0] ** 2 // 2
    rules = {"grid": [Radius(radius)], "grid and random points": [Radius(radius), Nystrom(radius, points)]}
    for seed in range(seeds):
        for label, chosen in rules.items():
            cell = f"Multigrid, {label}, seed {seed}"
            if cell in CELLS.done("lattices"):
                continue
            datasets = [grid] if len(chosen) == 1 else [grid, grid]
            options = {"rule": chosen if len(chosen) > 1 else chosen[0], "settings": settings, "smoothing": {}}
            epochs = 6 if len(chosen) == 1 else 3
            operator, facts = trained(datasets, held.every(3), Multigrid, seed, device, epochs=epochs, **options)
            errors = {"43 x 43": operator.evaluate(test.every(3)), "64 x 64": operator.evaluate(test.every(2).take(20))}
            errors |= {
                "127 x 127": operator.evaluate(test.take(10)),
                "1849 random points": operator.evaluate(test.take(20), how=Sampled(1849)),
            }
            errors["mesh"] = operator.evaluate(scattered(test.take(20), 43))
            keep("lattices", cell, {"errors": {where: summary(each) for where, each in errors.items()}, **facts})


def grids(work, device, seeds):
    """Four trajectories at nu = 1e-5, recorded on 64 x 64, solved on finer and finer grids; relative differences in l2."""
    sides, states = (128, 256, 512), {}
    if "128 to 256" in CELLS.done("grids"):
        return
    start = time.perf_counter()
    for fine in sides:
        fields, _ = NavierStokes(nu=1e-5, fine=fine).make(0, range(4), device)
        states[fine] = fields["w"].cpu()
    for coarse, fine in pairwise(sides):
        away = (states[coarse] - states[fine]).norm(dim=-1) / states[fine].norm(dim=-1)
        found = {"times": [1, 5, 10, 15, 20], "mean": [away[:, t].mean().item() for t in (1, 5, 10, 15, 20)]}
        found |= {"largest": away.max().item(), "seconds": time.perf_counter() - start}
        CELLS.keep("grids", f"{coarse} to {fine}", found)
        print(coarse, fine, found, flush=True)


def elements(work, device, seeds):
    """Four samples of the rows in three dimensions, and the same functions solved for on meshes twice as fine."""
    for kind in (PoissonMesh, DarcyMesh):
        for alpha in (2.0, 2.5):
            problem, start, away = kind(shape="cube", vary=True, alpha=alpha), time.perf_counter(), []
            cell = f"{problem.name}, alpha = {alpha:g}"
            if cell in CELLS.done("elements"):
                continue
            for i in range(4):
                mesh, draw = problem.mesh(0, i), problem.draw(0, range(i, i + 1), "cpu")
                fine = mesh.cube(0.5 * (mesh.measure / len(mesh)) ** (1 / 3))
                u, better = (problem.solved(each, draw(each))["u"][0] for each in (mesh, fine))
                better, w = fine.interpolate(better[:, None], mesh.points)[:, 0], mesh.weights.sqrt()
                away.append(((w * (u - better)).norm() / (w * better).norm()).item())
            found = {"each": away, "mean": sum(away) / len(away), "seconds": time.perf_counter() - start}
            CELLS.keep("elements", cell, found)
            print(cell, found, flush=True)


def rows(work, device, seeds, only, models, seconds, train):
    """Rows of the full scale of the suite whose names contain one of `only`, by each of the models. Killed runs are resumed.

    train   learn from so many samples, or from as many as the row has; then there are a tenth as many of both other kinds
    """
    scale, place = SCALES["full"], Place(work, work, device)
    for seed in seeds:
        for task in (task for task in scale.tasks if any(part in task.name for part in only)):
            name = task.name
            if train is not None:
                name, task = f"{name}, {train} samples", replace(task, counts=(train, train // 10, train // 10))
            for model in models:
                label = f"{name}: {model}, {seconds:g} s, seed {seed}"
                if label in CELLS.done("rows"):
                    continue
                cell = Cell(task, model, scale.sizes[model], seconds, seed, scale.precision, reach=scale.reach)
                found = do(cell, place)
                CELLS.keep("rows", label, found)
                print(label, found["error"]["mean"], found["validation"], found["seconds"], flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    measurements = {each.__name__: each for each in (burgers, layers, sparse, strict, known, lattices, grids, elements)}
    parser.add_argument("what", choices=[*measurements, "rows"])
    parser.add_argument("--work", type=Path, default=Path("runs/goals"), help="Folder for data.")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", action="append", help="rows: part of the names of problems")
    parser.add_argument("--model", action="append", help="rows: a model; by default NearFar")
    parser.add_argument("--seconds", type=float, default=300.0, help="rows: of each training")
    parser.add_argument("--seed", type=int, action="append", help="rows: one of the seeds; by default all")
    parser.add_argument("--train", type=int, help="rows: number of samples to learn from")
    given = parser.parse_args()
    device = device_named(given.device)
    if given.what == "rows":
        only, models, seeds = given.only or [""], given.model or ["NearFar"], given.seed or [*range(given.seeds)]
        rows(given.work, device, seeds, only, models, given.seconds, given.train)
    else:
        measurements[given.what](given.work, device, given.seeds)


if __name__ == "__main__":
    main()
