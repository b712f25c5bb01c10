"""gkn predict --times: roll an operator out from the states in a file."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
import typer
from torch import Tensor

from gkn.cli.shell import console, plain, settings, warn
from gkn.data.groups import by_name, ranges_of
from gkn.data.readers import ReadOptions, listed_files, parameters_of, read_files
from gkn.data.readers.series import trajectories_of
from gkn.data.sample import Trajectory
from gkn.data.writers.series import check_series, save_series
from gkn.operator.operator import Operator
from gkn.operator.rollout import Law, Rollout

if TYPE_CHECKING:
    from gkn.cli.predict import PredictOptions


def forecast(options: PredictOptions, operator: Operator) -> None:
    """Roll out from the first states in a file to given times, and write a series; print errors if the file has the truth."""
    law = Law.of(operator)
    for name in ("at", "how", "m", "r"):
        if getattr(options, name) is not None:
            raise typer.BadParameter("a rollout is on the points of its initial state; leave this out", param_hint=f"--{name}")
    files = [*listed_files(options.input_, options.parameters)]
    if len(files) != 1:
        raise typer.BadParameter(f"{len(files)} files; a rollout begins with the states in one", param_hint="--input")
    check_series(options.out, law.states)
    times = _times(options.times or "")
    start = _start(options, operator, law)
    begin = float(start.times[law.stepping.history - 1])
    slack = 1e-9 * float(torch.cat([times, torch.tensor([begin], dtype=times.dtype)]).abs().max())
    after = times[times > begin + slack]
    if not len(after):
        raise typer.BadParameter(f"no time after that of the initial state, {begin:.6g}", param_hint="--times")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        rollout = operator.rollout(start, after, step=options.step)
        numbers = {name: float(start.a[0, j]) for j, name in enumerate(law.static) if _is_number(operator, name)}
        errors: list[float] = []
        static = _static(operator, law, start)
        states = _named(operator, rollout, start, errors, bool(((times - begin).abs() <= slack).any()))
        written = ((time, {**static, **fields}) for time, fields in states)
        found = save_series(options.out, start.domain, written if options.out.suffix.lower() != ".gif" else states, numbers)
    for each in caught:
        warn(str(each.message))
    text = f"{plain(options.out)}: {', '.join(law.states)} at {len(found)} times and {len(start.domain)} points"
    text = text if found else f"{plain(options.out)}: no state could be computed"
    if errors:
        mean = sum(errors) / len(errors)
        text += f"; relative error {mean:.4f} on average over {len(errors)} times, {errors[-1]:.4f} at the last"
    console.print(text, soft_wrap=True)
    if rollout.stopped:
        kept = f"the {len(found)} states before are in {options.out}" if found else f"nothing was written to {options.out}"
        raise ArithmeticError(f"{rollout.stopped}; {kept}")


def _named(
    operator: Operator, rollout: Rollout, start: Trajectory, errors: list[float], first: bool
) -> Iterator[tuple[float, dict[str, Any]]]:
    """Yield the states as fields by name; note the error of each for which the file has the truth."""
    if first:
        yield float(rollout.end.times[-1]), operator.named_states(rollout.end.u[-1])
    for time, state in rollout:
        near = (start.times - time).abs()
        if float(near.min()) <= 1e-6 * float(start.times.diff().min() if len(start.times) > 1 else 0):
            truth, w = start.u[int(near.argmin())].double(), start.domain.weights[:, None]
            errors.append(float((w * (state - truth).square()).sum().sqrt() / (w * truth.square()).sum().sqrt()))
        yield time, operator.named_states(state)


def _static(operator: Operator, law: Law, start: Trajectory) -> dict[str, Any]:
    """Return the static fields by name, so that a rollout can begin with the file that is written."""
    assert operator.features is not None
    columns = [j for j, name in enumerate(law.static) if not _is_number(operator, name)]
    names = [law.static[j] for j in columns]
    return by_name(start.a[:, columns], ranges_of(names, operator.features.groups))


def _is_number(operator: Operator, name: str) -> bool:
    return operator.features is not None and name in operator.features.parameters


def _start(options: PredictOptions, operator: Operator, law: Law) -> Trajectory:
    """Return the states in the file, all of them: those that the rollout does not begin with are truths."""
    known = operator.features
    assert known is not None
    content = read_files(options.input_, ReadOptions.from_json(operator.about.get("reading") or {}))
    given = {**content.fields, **content.parameters}
    numbers = settings(options.set_ or [], dict.fromkeys(known.parameters, float))
    if options.parameters is not None:
        numbers = {**parameters_of(options.parameters, listed_files(options.input_).__next__()), **numbers}
    names = [name for name in known.given_fields if name in given]
    if content.series:
        outputs = [name for name in names if {*known.groups.get(name, (name,))} <= {*law.states}]
        inputs = [name for name in names if name not in outputs and name not in ("t", "tau")]
        data = trajectories_of(content, {name: given[name] for name in names if name in (*outputs, *inputs)}, outputs, inputs)
        if not options.sample < len(data):
            raise typer.BadParameter(f"the file has {len(data)} trajectories, from 0 on", param_hint="--sample")
        whole = data.trajectory(options.sample)
        fields: dict[str, Any] = dict(zip(data.outputs, whole.u.unbind(-1), strict=True))
        fields |= dict(zip(data.inputs, whole.a.T, strict=True)) | numbers
        return operator.start(whole.domain, time=whole.times, **fields)
    if not options.sample < len(content):
        raise typer.BadParameter(f"the file has {len(content)} samples, from 0 on", param_hint="--sample")
    one = {name: values[options.sample] for name, values in given.items() if name in names}
    time = float(given["time"][options.sample]) if "time" in given else 0.0
    return operator.start(content.domain_of(options.sample), time=time, **{**one, **numbers})


def _times(text: str) -> Tensor:
    """Return the times that T1,T2,... or START:STOP:COUNT stand for."""
    try:
        if ":" in text:
            start, stop, count = text.split(":")
            found = torch.linspace(float(start), float(stop), int(count), dtype=torch.float64)
        else:
            found = torch.tensor([float(each) for each in text.split(",")], dtype=torch.float64)
    except (ValueError, RuntimeError):
        found = torch.zeros(0, dtype=torch.float64)
    if not len(found) or not bool(torch.isfinite(found).all()) or bool((found.diff() <= 0).any()):
        text = f"{text!r}: needed increasing times, e.g. 0.1,0.2,0.5 or 0:1:11"
        raise typer.BadParameter(text, param_hint="--times")
    return found
