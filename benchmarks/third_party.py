"""Training on files that nobody here made: errors beside those of trivial answers and of a rival. One command each:

    python -m benchmarks.third_party darcy    neuraloperator's Darcy flow: learn on 16 x 16, answer on 16 x 16 and 32 x 32
    python -m benchmarks.third_party green    greenlearning's equations: the learned Green's function beside the exact one
    python -m benchmarks.third_party cars     ten car surfaces of ShapeNet-Car to learn from, ten others to judge
    python -m benchmarks.third_party flow     an unsteady flow of EZyRB: learn from 40 frames, roll out the next 19

`--data` is the folder with the files (see its README for sources and licences). Finished cells are kept in
results/third-party/NAME.json and not computed again.
"""

import argparse
import ast
import time
from pathlib import Path

import numpy as np
import torch

from benchmarks import Cells, summary
from gkn import Dataset, GreenNet, Mesh, Nystrom, Stepping, fit, import_files, relative_l2
from gkn.data.readers import read_files
from gkn.operator.over_time import Persistence, forecast_errors
from gkn.operator.trivial import trivial_errors
from gkn.study.paper.greens_functions import combined, matrix
from gkn.system.checks import device_named
from gkn.train.recipe import one_cycle

CELLS = Cells("third-party")


# --- Darcy flow of neuraloperator

FNO = {"width": 32, "modes": 8, "layers": 4}
NEARFAR = {"width": 64, "blocks": 5, "slices": 32, "head": 16, "kernel": (32, 8)}


def darcy(folder, device):
    """NearFar and FNO through `fit`: the same samples, features, loss and seed; 900 to learn from, 100 for validation."""
    source = folder / "neuraloperator"
    train = import_files(source / "darcy_train_16.pt")
    tests = {f"{s} x {s}": import_files(source / f"darcy_test_{s}.pt") for s in (16, 32)}
    learn, validation = train.split(900, 100)
    common = {"smoothing": {"a": 1 / 16}, "loss": "relative", "batch": 8, "geometry": False}
    rivals = {
        "NearFar": {"settings": NEARFAR, "epochs": 60, "gradient": 0.0},
        "FNO": {
            "settings": {"width": 32, "modes": 8, "layers": 4},
            "epochs": 200,
            "optimizer": "adamw",
            "lr": 3e-3,
            "decay": 1e-4,
        },
    }
    for name, options in rivals.items():
        for seed in range(3):
            cell = f"{name}, seed {seed}"
            if cell in CELLS.done("darcy"):
                continue
            start = time.perf_counter()
            operator = fit(learn, name, validation=validation, seed=seed, device=device, **common, **options)
            seconds = time.perf_counter() - start
            found = {where: summary(relative_l2(operator, test)) for where, test in tests.items()}
            known = operator.about["metrics"]["validation"]
            count = sum(x.numel() for x in operator.model.parameters())
            CELLS.keep("darcy", cell, {"errors": found, "validation": known, "seconds": seconds, "parameters": count})
            print(cell, {where: round(each["mean"], 4) for where, each in found.items()}, f"{seconds:.0f} s", flush=True)
    if "trivial" not in CELLS.done("darcy"):
        # Trivial answers take fields and normalisers from an operator; its parameters do not matter.
        operator = fit(learn, "Pointwise", smoothing={}, epochs=1, device=device)
        trivial = {
            where: {k: summary(e) for k, e in trivial_errors(operator, learn, test).items()} for where, test in tests.items()
        }
        CELLS.keep("darcy", "trivial", {"errors": trivial})


# --- Green's functions of greenlearning

HELD_OUT = 10  # functions of each equation that are not learned from; they choose between the networks below
STEPS, RATE, WHITE = 20000, 3e-3, 0.8
NETWORKS = {"two layers of 128": (128, 128), "two layers of 256": (256, 256), "three layers of 128": (128, 128, 128)}


def green(folder, device, only=""):
    """One GreenNet per equation: u(x) = u_hom(x) + integral of G(x, y) f(y) dy, learned from 90 functions.

    Of a few networks, the one with the least error on 10 further functions is taken. The exact kernel chooses nothing.
    """
    for path in sorted((folder / "greenlearning").glob("*.mat")):
        if path.stem in CELLS.done("green") or only not in path.stem:
            continue
        content, start = read_files(path), time.perf_counter()
        tried = {name: learn_green(content, device, sizes) for name, sizes in NETWORKS.items()}
        name = min(tried, key=lambda each: tried[each][HELD])
        found = {"network": name, **tried[name], "tried": {each: result[HELD] for each, result in tried.items()}}
        found["seconds"] = time.perf_counter() - start
        exact = exact_green(path, content)
        if exact is not None:
            learned = found.pop("kernel")
            found["error of the kernel"] = float(np.linalg.norm(learned - exact) / np.linalg.norm(exact))
        found.pop("kernel", None)
        CELLS.keep("green", path.stem, found)
        print(path.stem, found, flush=True)


HELD = "error of u, functions not learned from"


def learn_green(content, device, sizes):
    """Return errors and the kernel on (points of u) x (points of f). Points are scaled to the unit interval."""
    y, x = content.input_domain.points, content.domain.points
    f, u = content.input_fields["f"].double(), content.fields["u"].double()
    if "u_hom" in content.fields:
        u = u - content.fields["u_hom"].double()
    weights, low, scale = content.input_domain.weights, float(y.min()), float(y.max() - y.min())
    learn, test = range(len(f) - HELD_OUT), range(len(f) - HELD_OUT, len(f))
    given, wanted = combined(f[learn].T, u[learn].T, weights, WHITE)
    integrand = weights[:, None] * given
    size = float(wanted.norm() / integrand.norm())  # so that the network's numbers are of order 1
    torch.manual_seed(0)
    net = GreenNet(1, sizes, distance=True).to(device, torch.float64)
    places = [((points - low) / scale).to(device) for points in (x, y)]
    integrand, wanted = integrand.to(device) * size, wanted.to(device)
    optimizer = torch.optim.Adam(net.parameters(), lr=RATE)
    for step in range(STEPS):
        optimizer.param_groups[0]["lr"] = RATE * one_cycle(step / STEPS, 0.1)
        loss = (matrix(net, *places) @ integrand - wanted).norm() / wanted.norm()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        kernel = (matrix(net, *places) * size).cpu()
    answers = kernel @ (weights[:, None] * f[test].T)
    errors = (answers - u[test].T).norm(dim=0) / u[test].norm(dim=1)
    return {
        "kernel": kernel.numpy(),
        "error of u, functions not learned from": float(errors.mean()),
        "loss": float(loss.detach()),
    }


def exact_green(path, content):
    """Return the exact Green's function where the file has its formula. The formula is evaluated by a parser of our own."""
    from scipy.io import loadmat, whosmat

    if "ExactGreen" not in [entry[0] for entry in whosmat(path)]:
        return None
    text = str(loadmat(path, variable_names=["ExactGreen"])["ExactGreen"][0])
    x, y = np.meshgrid(content.domain.points[:, 0].numpy(), content.input_domain.points[:, 0].numpy(), indexing="ij")
    sign = -1.0 if path.stem in NEGATIVE else 1.0
    return sign * evaluated(ast.parse(text.strip(), mode="eval").body, {"x": x, "y": y})


NEGATIVE = ()  # equations whose file has the formula for the other sign of the operator

_OPERATIONS = {ast.Add: np.add, ast.Sub: np.subtract, ast.Mult: np.multiply, ast.Div: np.divide, ast.Pow: np.power}
_FUNCTIONS = {"exp": np.exp, "sin": np.sin, "cos": np.cos, "sinh": np.sinh, "cosh": np.cosh}


def evaluated(node, names):
    """Evaluate a formula of +, -, *, /, **, <=, > and a few functions of np, and nothing else."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return float(node.value)
    if isinstance(node, ast.Name):
        return names[node.id]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -evaluated(node.operand, names)
    if isinstance(node, ast.BinOp):
        return _OPERATIONS[type(node.op)](evaluated(node.left, names), evaluated(node.right, names))
    if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.LtE | ast.Gt):
        left, right = evaluated(node.left, names), evaluated(node.comparators[0], names)
        return (left <= right if isinstance(node.ops[0], ast.LtE) else left > right).astype(float)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return _FUNCTIONS[node.func.attr](evaluated(node.args[0], names))
    raise ValueError(f"a formula with {ast.dump(node)[:60]}, which is not evaluated")


# --- cars

CAR_EPOCHS = 300


def cars(folder, device):
    """NearFar on ten car surfaces, judged on ten others, beside the mean and the nearest of the ten."""
    files = {part: sorted((folder / "plaid-cars").glob(f"{part}-*.cgns")) for part in ("train", "test")}
    train, test = (import_files(files[part], outputs=["pressure"]) for part in ("train", "test"))
    for seed in range(3):
        cell = f"NearFar, seed {seed}"
        if cell in CELLS.done("cars"):
            continue
        start = time.perf_counter()
        operator = fit(train, settings=NEARFAR, epochs=CAR_EPOCHS, batch=2, seed=seed, device=device)
        found = {"errors": summary(relative_l2(operator, test)), "seconds": time.perf_counter() - start}
        CELLS.keep("cars", cell, found)
        print(cell, round(found["errors"]["mean"], 4), f"{found['seconds']:.0f} s", flush=True)
        if "trivial" not in CELLS.done("cars"):
            trivial = {name: summary(each) for name, each in trivial_errors(operator, train, test).items()}
            CELLS.keep("cars", "trivial", {"errors": trivial})
            print({name: round(each["mean"], 4) for name, each in trivial.items()}, flush=True)


# --- an unsteady flow of EZyRB

LEARN, KNOWN = 32, 40  # frames to learn from while choosing, and afterwards; those between them choose
FLOW_STEPS = 520  # of each training, one pair of states a step
FLOW_NODES = {"r": 0.2, "m": 768}  # drawn anew for each pair; the mesh has 3067 nodes
TRIED = {
    "from frame 12": {"first": 11},
    "from frame 21": {"first": 20},
    "from frame 21, value": {"first": 20, "target": "value"},
    "from frame 21, history 3": {"first": 20, "history": 3},
    "from frame 21, history 3, last 0.2 unrolled": {"first": 20, "history": 3, "unroll": 0.2},
    "from frame 21, history 5": {"first": 20, "history": 5},
}  # what steps are learned from, and how. The time between frames is 1, so difference and quotient are the same target


def flow(folder, device):
    """NearFar on one trajectory of velocity and pressure: 40 frames to learn from, and a rollout of the 19 after them.

    Everything is chosen by the rollout of frames 33 to 40 after training on frames up to 32, for NearFar as for the linear
    model. Then it is trained on the frames up to 40. A rollout is given no frame after those of its training.
    """
    data = flow_data(folder / "ezyrb-flow")
    for name, options in TRIED.items():
        if f"validation: {name}" not in CELLS.done("flow"):
            found = forecast_flow(data, LEARN, KNOWN, device, **options)
            CELLS.keep("flow", f"validation: {name}", found)
            print(name, found["errors"]["by_field"], f"{found['seconds']:.0f} s", flush=True)
    if "baselines" not in CELLS.done("flow"):
        chosen = min(linear_choices(), key=lambda each: linear_errors(data, LEARN, KNOWN, *each).mean)
        found = {}
        for what, start, stop in (("validation", LEARN, KNOWN), ("test", KNOWN, None)):
            persistence = forecast_errors(Persistence(1), data.window(start - 1, stop), 1)
            linear = linear_errors(data, start, stop, *chosen)
            found[what] = {"persistence": summary(persistence), "linear model": summary(linear)}
        CELLS.keep("flow", "baselines", {"first frame, rank": [chosen[0] + 1, chosen[1]], "errors": found})
        print(chosen, {name: each["by_field"] for name, each in found["test"].items()}, flush=True)
    errors = {name: CELLS.done("flow")[f"validation: {name}"]["errors"]["mean"] for name in TRIED}
    name = min(errors, key=errors.get)
    for seed in range(3):
        cell = f"NearFar, seed {seed}"
        if cell not in CELLS.done("flow"):
            found = forecast_flow(data, KNOWN, None, device, seed=seed, **TRIED[name])
            CELLS.keep("flow", cell, {"chosen": name, **found})
            print(cell, name, found["errors"]["by_field"], f"{found['seconds']:.0f} s", flush=True)


def flow_data(folder):
    """Return the flow as one trajectory. Its points have a third coordinate, which is 0."""
    points, cells, times, vx, vy, pressure = (
        np.load(folder / f"{name}.npy")
        for name in ("pts", "cells", "time", "snapshots_vx", "snapshots_vy", "snapshots_pressure")
    )
    fields = {"velocity": np.stack([vx, vy], -1)[None], "pressure": pressure[None]}
    return Dataset(Mesh(points[:, :2], cells), **fields, outputs=[*fields], times=times[:, 0].astype(float))


def forecast_flow(data, last, stop, device, first, history=1, target="quotient", unroll=None, seed=0):
    """Train on the steps from frame `first` on to frame `last` - 1; roll out the frames after them, to `stop` - 1.

    Frames are counted from 0 here, as in the arrays.
    """
    stepping = Stepping(target=target, history=history, clock=False)
    learn, test = data.window(first - history + 1, last), data.window(last - history, stop)
    changes = {"epochs": round(FLOW_STEPS / (last - 1 - first)), "batch": 1, "unroll": unroll, "seed": seed}
    start = time.perf_counter()
    rule = Nystrom(**FLOW_NODES)
    operator = fit(learn, "NearFar", rule, size="small", stepping=stepping, device=device, **changes)
    seconds = time.perf_counter() - start
    count = sum(x.numel() for x in operator.model.parameters())
    settings = {"stepping": stepping.json(), "rule": FLOW_NODES, "size": "small", "first frame": first + 1, **changes}
    return {"errors": summary(operator.evaluate(test)), "seconds": seconds, "parameters": count, "settings": settings}


def linear_choices():
    """Return the first frames and ranks that are tried for the linear model."""
    return [(first, rank) for first in range(10, 26, 2) for rank in range(1, LEARN - 1 - first)]


def linear_errors(data, last, stop, first, rank):
    """Return the errors of the linear model of frames `first` to `last` - 1, for the frames after them."""
    known = data.trajectory(0)
    forecast = linear_model(known.u[first:last].double(), known.domain.weights, rank)
    return forecast_errors(forecast, data.window(last - 1, stop), 1)


def linear_model(states, weights, rank):
    """Return the forecast by dynamic mode decomposition: the linear map of a rank that maps each state to the next one.

    states   (T, K, o); each of the o components counts relative to its variation over domain and time
    """
    variation = (weights[:, None] * (states - states.mean(0)).square()).sum((0, 1))
    scale = (weights[:, None] / variation).sqrt()
    columns = (states * scale).flatten(1).T
    left, sizes, right = torch.linalg.svd(columns[:, :-1], full_matrices=False)
    basis = left[:, :rank]
    step = basis.T @ columns[:, 1:] @ right[:rank].T / sizes[:rank]

    def forecast(trajectory):
        codes = [basis.T @ (trajectory.u[0].double() * scale).flatten()]
        for _ in trajectory.times[1:]:
            codes.append(step @ codes[-1])
        return (torch.stack(codes[1:]) @ basis.T).unflatten(1, scale.shape) / scale

    return forecast


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["darcy", "green", "cars", "flow"])
    parser.add_argument("--data", type=Path, default=Path("../shared/third-party"))
    parser.add_argument("--device", default="auto")
    parser.add_argument("--only", default="", help="For green: only equations whose names contain this.")
    given = parser.parse_args()
    device = device_named(given.device)
    if given.what == "green":
        green(given.data, device, given.only)
    else:
        {"darcy": darcy, "cars": cars, "flow": flow}[given.what](given.data, device)


if __name__ == "__main__":
    main()
