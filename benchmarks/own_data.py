"""A user's own problems: units, plates with a hole, Poisson's equation on tetrahedra. Errors per field beside trivial answers.

    python -m benchmarks.own_data units                              the same samples in four units of length
    python -m benchmarks.own_data plates --dataset data/plates       examples/plate.py, imported: 548 to learn from, 50, 100
    python -m benchmarks.own_data poisson3d --dataset data/poisson3d --out runs/poisson3d   examples/poisson3d.py, imported
    python -m benchmarks.own_data large --dataset FILES --out runs/poisson3d                the same network on more nodes
    python -m benchmarks.own_data draw                                                      the answer on the most of them

Finished cells are kept in results/own-data/NAME.json and not computed again.
"""

import argparse
import os
import time
from pathlib import Path

import torch

from benchmarks import Cells, summary
from gkn import Cloud, Darcy, Dataset, Exact, Mesh, Spread, Support, fit, load, relative_l2, save
from gkn.data.plot import draw_answers, save_figure
from gkn.data.readers import read_sample
from gkn.operator.evaluate import relative_errors
from gkn.operator.trivial import Mean, Nearest, trivial_errors
from gkn.system.checks import device_named

CELLS = Cells("own-data")


# --- units: the four variants of the issue

UNITS = {"1": (1.0, 0.0), "times 1000": (1000.0, 0.0), "times 0.001": (0.001, 0.0), "offset of 500000": (1.0, 5e5)}


def units(options):
    """100 Darcy samples on 441 points, NearFar with its defaults: 80 to learn from, 20 to test.

    On a GPU some sums are added in any order. With --deterministic they are not, so that units alone can make a difference.
    """
    if options.deterministic:
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
        torch.use_deterministic_algorithms(True, warn_only=True)
    base = Darcy(size=21).generate(100)
    for name, (factor, offset) in UNITS.items():
        cell = name if options.deterministic or options.device == "cpu" else f"{name}, sums in any order"
        cell += f", seed {options.seed}" if options.seed else ""
        if cell in CELLS.done("units") or (options.only and options.only != name):
            continue
        cloud = Cloud(base.domain.points * factor + offset)
        train, test = Dataset(cloud, a=base.field("a"), u=base.field("u")).split(80, 20)
        start = time.perf_counter()
        changes = {"epochs": options.epochs} if options.epochs else {}
        operator = fit(train, size=options.size, device=options.device, seed=options.seed, **changes)
        found = {"errors": summary(relative_l2(operator, test)), "seconds": time.perf_counter() - start}
        CELLS.keep("units", cell, found)
        print(cell, round(found["errors"]["mean"], 4), f"{found['seconds']:.0f} s", flush=True)


# --- plates with a hole

PLATES = {"48 plates": range(48), "500 plates": range(48, 548)}
VALIDATION, TEST = range(548, 598), range(598, 698)


def plates(options):
    """NearFar on 48 and on 500 plates; displacement as a vector, its components, and the von Mises stress."""
    data = Dataset.open(options.dataset)
    validation, test = data.take(VALIDATION), data.take(TEST)
    for name, samples in PLATES.items():
        train = data.take(samples)
        for seed in range(options.seeds):
            cell = f"{name}, {options.size}" + (f", seed {seed}" if seed else "")
            if cell in CELLS.done("plates") or (options.only and options.only not in cell):
                continue
            start = time.perf_counter()
            changes = {"epochs": options.epochs} if options.epochs else {}
            operator = fit(train, size=options.size, validation=validation, seed=seed, device=options.device, **changes)
            seconds = time.perf_counter() - start
            errors = {"test": summary(relative_l2(operator, test)), "validation": summary(relative_l2(operator, validation))}
            by_component = components(operator, test)
            CELLS.keep("plates", cell, {**errors, "components": by_component, "seconds": seconds})
            print(cell, errors["test"]["by_field"], by_component, f"{seconds:.0f} s", flush=True)
        if f"{name}, trivial" not in CELLS.done("plates") and (not options.only or options.only == "trivial"):
            # Trivial answers take fields and normalisers from an operator; its parameters do not matter.
            operator = fit(train, size="small", epochs=1, device=options.device)
            trivial = {key: summary(each) for key, each in trivial_errors(operator, train, test).items()}
            by_component = {key: components(kind(operator, train), test) for key, kind in TRIVIAL.items()}
            found = {"test": trivial, "components": {**by_component, **scaled_mean(train, test)}}
            CELLS.keep("plates", f"{name}, trivial", found)
            print(name, {key: each["by_field"] for key, each in trivial.items()}, found["components"], flush=True)


TRIVIAL = {"mean of the training samples": Mean, "nearest training sample": Nearest}


def components(operator, test):
    """Return the mean relative errors of ux, uy and von Mises, each by itself."""
    errors = []
    for sample in operator.ready(test):
        found, w = operator(sample).cpu().double(), sample.weights[:, None]
        top, bottom = ((w * x.square()).sum(0) for x in (found - sample.u, sample.u.double()))
        errors.append((top / bottom).sqrt())
    mean = torch.stack(errors).mean(0)
    return dict(zip(("ux", "uy", "von Mises"), mean.tolist(), strict=True))


def scaled_mean(train, test):
    """Return the errors of ux, uy and von Mises of "the mean of the training samples over traction, times traction"."""
    from scipy.spatial import cKDTree

    some = [train[i] for i in range(0, len(train), max(1, len(train) // 64))]
    loads = [train.parameter("traction", i) for i in range(0, len(train), max(1, len(train) // 64))]
    trees = [cKDTree(sample.x.numpy()) for sample in some]
    errors = []
    for i, sample in enumerate(test):
        at = sample.x.numpy()
        rows = [s.u.double()[torch.from_numpy(t.query(at)[1])] / load for s, t, load in zip(some, trees, loads, strict=True)]
        found, w = torch.stack(rows).mean(0) * test.parameter("traction", i), sample.weights[:, None]
        top, bottom = ((w * x.square()).sum(0) for x in (found - sample.u, sample.u.double()))
        errors.append((top / bottom).sqrt())
    mean = torch.stack(errors).mean(0)
    return {"mean times traction": dict(zip(("ux", "uy", "von Mises"), mean.tolist(), strict=True))}


# --- Poisson's equation on tetrahedra


def poisson3d(options):
    """NearFar on 120 meshes of about 2000 nodes, 15 for validation, 15 to test."""
    data = Dataset.open(options.dataset)
    train, validation, test = data.split(120, 15, 15)
    if "NearFar" not in CELLS.done("poisson3d"):
        start = time.perf_counter()
        changes = {"epochs": options.epochs} if options.epochs else {}
        operator = fit(train, size=options.size, validation=validation, device=options.device, out=options.out, **changes)
        found = {"test": summary(relative_l2(operator, test)), "seconds": time.perf_counter() - start}
        found["trivial"] = {name: summary(each) for name, each in trivial_errors(operator, train, test).items()}
        CELLS.keep("poisson3d", "NearFar", found)
        print(
            found["test"]["mean"], {name: each["mean"] for name, each in found["trivial"].items()}, f"{found['seconds']:.0f} s"
        )


NODES = 2500  # as many as the training meshes have
WAYS = {20_000: (Exact(), Spread(NODES), Support(NODES)), 200_000: (Spread(NODES), Support(NODES)), 2_000_000: (Spread(NODES),)}


def large(options):
    """Answer with a trained operator on files of many nodes in several ways, write .vtu, and read it with meshlane."""
    import resource

    import meshlane

    operator = load(options.out)
    for path in sorted(options.dataset.glob("*.vtu")):
        start = time.perf_counter()
        given = read_sample(path)
        count, read = len(given.domain), time.perf_counter() - start
        for how in next(ways for most, ways in WAYS.items() if count <= most):
            cell = f"{count}, {how!r}"
            if cell in CELLS.done("poisson3d-large"):
                continue
            start = time.perf_counter()
            u = operator(operator.sample(given.domain, f=given.fields["f"]), how=how).double()
            answered = time.perf_counter() - start
            truth = given.fields["u"].double()[:, None]
            error = float(relative_errors(u, truth, given.domain.weights[:, None], [(0, 1)])[0])
            start = time.perf_counter()
            out = options.answers / f"answer-{count}-{type(how).__name__.lower()}.vtu"
            fields = {"f": given.fields["f"], "u": u[:, 0], "u_truth": truth[:, 0], "u_error": u[:, 0] - truth[:, 0]}
            save(out, given.domain, fields)
            seconds = {"read": read, "answer": answered, "write": time.perf_counter() - start}
            mesh = meshlane.read(out)
            assert len(mesh.points) == count
            memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
            found = {"nodes": count, "error": error, "how": repr(how), "seconds": seconds, "peak GiB": memory}
            CELLS.keep("poisson3d-large", cell, {**found, "fields": [*mesh.point_data]})
            print(cell, found, flush=True)


def draw(options):
    """Read the answer on the most nodes with meshlane, as another program would, and draw f, truth, answer and difference."""
    import meshlane

    path = max(options.answers.glob("answer-*.vtu"), key=lambda each: int(each.name.split("-")[1]))
    mesh = meshlane.read(path)
    domain = Mesh(mesh.points, {block.type: block.data for block in mesh.cells})
    f, truth, answer, error = (torch.from_numpy(mesh.point_data[name]) for name in ("f", "u_truth", "u", "u_error"))
    save_figure(
        draw_answers([("u", domain, f, truth, answer, error)], f"{len(domain)} nodes", "f"),
        CELLS.folder / "poisson3d-million.png",
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["units", "plates", "poisson3d", "large", "draw"])
    parser.add_argument("--dataset", type=Path, default=None)
    parser.add_argument("--out", type=Path, default=None, help="Folder of the run, for poisson3d.")
    parser.add_argument("--answers", type=Path, default=Path("runs"), help="Folder of the answers, for large.")
    parser.add_argument("--size", default=None)
    parser.add_argument("--epochs", type=int, default=None)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0, help="Seed, for units.")
    parser.add_argument("--deterministic", action="store_true", help="For units, on a GPU: add up in one order.")
    parser.add_argument("--only", default="")
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    options.device = device_named(options.device)
    {"units": units, "plates": plates, "poisson3d": poisson3d, "large": large, "draw": draw}[options.what](options)


if __name__ == "__main__":
    main()
