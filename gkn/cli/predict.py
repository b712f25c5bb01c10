"""gkn predict: evaluate an operator on functions in a file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from gkn.cli.forecast import forecast
from gkn.cli.options import verb
from gkn.cli.shell import Best, Device, L, M, R, console, load_chosen, plain, progress_bar, settings, warn, way_named
from gkn.data import writers
from gkn.data.readers import READERS, FileSample, ReadOptions, listed_files, parameters_of, read_points, read_sample
from gkn.data.readers.join import in_space
from gkn.data.writers.series import ENDINGS
from gkn.geometry.cloud import Cloud
from gkn.operator.evaluate import MUCH, ratio_to_variation, relative_errors
from gkn.operator.operator import Operator
from gkn.operator.pretrained import names, pretrained
from gkn.operator.ways import How, Spread
from gkn.system.checks import device_named


@dataclass(frozen=True)
class PredictOptions:
    """Options of `gkn predict`."""

    input_: Annotated[
        list[str],
        typer.Option(
            "--input", help=f"Files with input functions, or a pattern in quotes; may be repeated: {', '.join(READERS)}."
        ),
    ]
    out: Annotated[
        Path, typer.Option(help=f"The answer: {' or '.join(writers.WRITERS)}; for several inputs a folder, for .vtu files.")
    ]
    run: Annotated[Path | None, typer.Argument(help="The folder of a run or of a saved operator.")] = None
    at: Annotated[
        Path | None, typer.Option(help="Query points: a .npy of (points, dimension). By default the input's points.")
    ] = None
    parameters: Annotated[
        Path | None, typer.Option(help="A .csv file with numbers of each file, as for `gkn data import`.")
    ] = None
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=NUMBER", help="A parameter that the files do not have, for all of them."),
    ] = None
    pretrained_: Annotated[
        str | None, typer.Option("--pretrained", help=f"An operator that comes with gkn: {', '.join(names()) or 'none'}.")
    ] = None
    how: Annotated[
        str | None,
        typer.Option(help="exact, spread, support or partition. By default exact, or spread for very many points."),
    ] = None
    m: M = None
    l: L = 1
    r: R = None
    times: Annotated[
        str | None,
        typer.Option(
            metavar="T1,T2,... or START:STOP:COUNT",
            help=f"Roll out to these times; the answer is a series: {', '.join(ENDINGS)}.",
        ),
    ] = None
    step: Annotated[float | None, typer.Option(help="With --times: the longest step. By default that of training.")] = None
    sample: Annotated[int, typer.Option(min=0, help="Number of the sample, if the file has several.")] = 0
    repair: Annotated[bool, typer.Option(help="Drop flat cells and points that belong to no cell.")] = False
    best: Best = None
    device: Device = "auto"


@verb(PredictOptions)
def predict(options: PredictOptions) -> None:
    """Answer for the functions in files, on their own points and cells or at any points.

    The answer has the name of the output. If a file has the truth, NAME_truth and NAME_error = answer - truth are written too.
    """
    if (options.run is None) == (options.pretrained_ is None):
        raise typer.BadParameter("say which operator: a run's folder, or --pretrained NAME", param_hint="RUN")
    chosen = None if options.how is None and options.m is None else way_named(options.how or "exact", options.m, options.l)
    if chosen is not None and not isinstance(chosen, How):
        raise typer.BadParameter("sampled is for eval; to predict use exact, spread, support or partition", param_hint="--how")
    if options.times is not None:
        forecast(options, _operator(options))
        return
    files = _targets(options)
    operator = _operator(options)
    if operator.features is not None and operator.features.stepping is not None:
        raise typer.BadParameter("this operator steps in time; say to which times, e.g. --times 0:1:11", param_hint="--times")
    points = None if options.at is None else read_points(options.at)
    for file, out in files.items():
        console.print(_answer(operator, file, out, options, chosen, points), soft_wrap=True)


def _targets(options: PredictOptions) -> dict[Path, Path]:
    """Return the answer file of each input file."""
    files = [*listed_files(options.input_, options.parameters)]
    if len(files) == 1 and options.out.suffix:
        found = {files[0]: options.out}
    else:
        if options.out.suffix:
            raise typer.BadParameter(f"{len(files)} inputs need a folder for their answers", param_hint="--out")
        found = {
            file: options.out / (file.name if file.suffix.lower() in writers.WRITERS else f"{file.stem}.vtu") for file in files
        }
    for file, out in found.items():
        if out.resolve() == file.resolve():
            raise typer.BadParameter("the answer would overwrite the input; choose another file", param_hint="--out")
        writers.check(out, [])
    if len({*found.values()}) < len(found):
        raise typer.BadParameter("two inputs have the same name; answer them in two calls", param_hint="--input")
    return found


def _answer(
    operator: Operator, file: Path, out: Path, options: PredictOptions, how: How | None, points: torch.Tensor | None
) -> str:
    """Answer for one file, write the answer, and return a sentence about it."""
    known = operator.features
    outputs = {"u": (0, 1)} if known is None else known.output_fields
    needed = None if known is None else known.given_fields
    reading = ReadOptions.from_json(operator.about.get("reading") or {})  # as the training data were read
    given = read_sample(file, options.sample, options.repair, needed, reading)
    if given.count > 1:
        console.print(plain(f"{file.name}: sample {options.sample} of {given.count}; --sample chooses another"), soft_wrap=True)
    numbers = {**given.parameters, **_numbers(options, file, known.parameters if known is not None else ())}
    fields: dict[str, Any] = {**_whole_vectors(given, operator), **numbers}
    if operator.about.get("between"):  # it maps a state to a later one; in files both have the name of the field
        starts = {name: name.removesuffix("_start") for name in needed or () if name.endswith("_start")}
        fields |= {name: fields[state] for name, state in starts.items() if name not in fields and state in fields}
    writers.check(out, [*given.fields, *outputs])
    try:
        asked = operator.sample(given.domain, **fields)
    except KeyError as missing:
        raise KeyError(f"{file}: {missing.args[0]}; a number can be given by --set or --parameters") from missing
    for text in operator.unusual(given.domain, fields, points):
        warn(f"{file.name}: {text}; do not trust the answer")
    if how is None:
        how = operator.usual_way(given.domain)
        if isinstance(how, Spread):
            said = f"{len(given.domain)} points are answered from {how.m} of them, spread evenly; --how exact takes all"
            console.print(plain(f"{file.name}: {said}"), soft_wrap=True)
    with progress_bar("predict") as progress:
        found = operator(asked, points, how=how, r=options.r, progress=progress, check=False).cpu().double()
    answers = {name: torch.from_numpy(values) for name, values in operator.named(found).items()}
    text = f"{plain(out)}: {', '.join(outputs)} at {len(found)} points"
    if points is not None:
        writers.save(out, Cloud(points), answers)
        return text
    truths = {name: fields[name].double() for name in outputs if name in given.fields}
    truths = {name: truth for name, truth in truths.items() if truth.shape == answers[name].shape}
    to_vtu = out.suffix == ".vtu"
    at_cells = {f"{name}_truth" if name in outputs else name: values for name, values in given.cell_data.items()}
    kept = {*outputs, *(at_cells if to_vtu else ())}
    copied = {name: x for name, x in given.fields.items() if name not in kept}
    others = {name: x for name, x in copied.items() if bool(torch.isfinite(x).all())}
    if len(others) < len(copied):
        lost = ", ".join(name for name in copied if name not in others)
        warn(f"{file.name}: not finite everywhere, and not copied to the answer: {lost}")
    for name, truth in truths.items():
        others |= {f"{name}_truth": truth, f"{name}_error": answers[name] - truth}
    domain, written = given.in_space({**others, **answers}) if to_vtu else (given.domain, {**others, **answers})
    writers.save(out, domain, written, at_cells if to_vtu else None, numbers)
    for name, truth in truths.items():
        start, stop = outputs[name]
        whole = truth.reshape(len(truth), -1)
        weights = given.domain.weights[:, None]
        if not bool(whole.any()):
            text += f"; {name} is 0 everywhere in the file, so its relative error is not defined"
            continue
        error = float(relative_errors(found[:, start:stop], whole, weights, [(0, stop - start)])[0])
        ratio = ratio_to_variation(whole, weights)
        text += f"; relative error of {name} {error:.4f}"
        text += f", relative to its variation {ratio * error:.4f}" if ratio > MUCH else ""
    return text


def _whole_vectors(given: FileSample, operator: Operator) -> dict[str, torch.Tensor]:
    """Return the fields of a file. Vectors in the plane get back a component 0 that other files of the training data have."""
    known = {} if operator.features is None else operator.features.groups
    return {
        name: in_space(x, given.flat_axes) if given.flat_axes and x.shape[1:] == (2,) and len(known.get(name, ())) == 3 else x
        for name, x in given.fields.items()
    }


def _numbers(options: PredictOptions, file: Path, known: Sequence[str]) -> dict[str, float]:
    """Return the numbers of `--parameters` and `--set` for one file."""
    found = {} if options.parameters is None else parameters_of(options.parameters, file)
    given = settings(options.set_ or [], dict.fromkeys(known, float))
    unknown = [name for name in given if name not in known]
    if unknown:
        text = f"{unknown[0]!r} is no parameter of this operator; it has {', '.join(known) or 'none'}"
        raise typer.BadParameter(text, param_hint="--set")
    return {**found, **given}


def _operator(options: PredictOptions) -> Operator:
    device = device_named(options.device)
    if options.run is not None:
        return load_chosen(options.run, options.best, device)
    return pretrained(options.pretrained_ or "", device=device)
