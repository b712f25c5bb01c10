"""gkn predict: evaluate an operator on functions in a file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
import typer

from gkn.cli.options import verb
from gkn.cli.shell import Best, Device, L, M, R, console, plain, progress_bar, warn, way_named
from gkn.data import writers
from gkn.data.readers import READERS, read_points, read_sample
from gkn.geometry.cloud import Cloud
from gkn.operator.operator import Operator
from gkn.operator.pretrained import names, pretrained
from gkn.operator.saved import load
from gkn.operator.ways import How
from gkn.system.checks import device_named


@dataclass(frozen=True)
class PredictOptions:
    """Options of `gkn predict`."""

    input_: Annotated[Path, typer.Option("--input", help=f"The input functions: {', '.join(READERS)}.")]
    out: Annotated[Path, typer.Option(help=f"The prediction: {' or '.join(writers.WRITERS)}.")]
    run: Annotated[Path | None, typer.Argument(help="The folder of a run or of a saved operator.")] = None
    at: Annotated[
        Path | None, typer.Option(help="Query points: a .npy of (points, dimension). By default the input's points.")
    ] = None
    pretrained_: Annotated[
        str | None, typer.Option("--pretrained", help=f"An operator that comes with gkn: {', '.join(names()) or 'none'}.")
    ] = None
    how: Annotated[str, typer.Option(help="exact, support or partition.")] = "exact"
    m: M = None
    l: L = 1
    r: R = None
    sample: Annotated[int, typer.Option(min=0, help="Number of the sample, if the file has several.")] = 0
    repair: Annotated[bool, typer.Option(help="Turn clockwise mesh cells round and drop unused points.")] = False
    best: Best = False
    device: Device = "auto"


@verb(PredictOptions)
def predict(options: PredictOptions) -> None:
    """Evaluate an operator on functions in a file, at any points."""
    out = options.out
    if (options.run is None) == (options.pretrained_ is None):
        raise typer.BadParameter("say which operator: a run's folder, or --pretrained NAME", param_hint="RUN")
    if out.resolve() == options.input_.resolve():
        raise typer.BadParameter("the prediction would overwrite the input; choose another file", param_hint="--out")
    writers.check(out, [])
    chosen = way_named(options.how, options.m, options.l)
    if not isinstance(chosen, How):
        raise typer.BadParameter("sampled is for eval; to predict use exact, support or partition", param_hint="--how")
    operator = _operator(options)
    outputs = operator.features.outputs if operator.features else ("u",)
    domain, given = read_sample(options.input_, options.sample, options.repair)
    writers.check(out, [*given, *outputs])
    asked = operator.sample(domain, **given)
    _warn_if_unusual(operator, asked.a, asked.x)
    points = None if options.at is None else read_points(options.at)
    with progress_bar("predict") as progress:
        found = operator(asked, points, how=chosen, r=options.r, progress=progress).cpu()
    answers = {name: found[:, i].double() for i, name in enumerate(outputs)}
    if points is None:
        known = {name: values.double() for name, values in given.items() if name not in outputs}
        writers.save(out, domain, {**known, **answers})
    else:
        writers.save(out, Cloud(points), answers)
    text = f"{plain(out)}: {', '.join(outputs)} at {len(found)} points"
    if points is None and all(name in given for name in outputs):
        truth = torch.stack([given[name].double() for name in outputs], 1)
        error = float((found.double() - truth).norm() / truth.norm())
        text += f"; relative error against {', '.join(outputs)} of the input {error:.4f}"
    console.print(text, soft_wrap=True)


def _operator(options: PredictOptions) -> Operator:
    device = device_named(options.device)
    if options.run is not None:
        return load(options.run, best=options.best, device=device)
    return pretrained(options.pretrained_ or "", device=device)


def _warn_if_unusual(operator: Operator, a: torch.Tensor, x: torch.Tensor) -> None:
    """Warn if inputs are far from those of training."""
    size = operator.inputs.encode(a, x).abs().amax(0)
    if float(size.max()) > 20:
        warn(
            f"the input is {float(size.max()):.0f} standard deviations away from what the operator was trained on; "
            f"do not trust its answer"
        )
