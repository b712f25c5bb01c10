"""Pictures of functions of time: states side by side, errors over time, and animations."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from torch import Tensor

from gkn.data.plot import LINES, MARKS, draw, subplots
from gkn.geometry.domain import Domain
from gkn.system.files import make_folder, write

SHOWN = 5  # states in a picture
MILLISECONDS = 120  # a frame of an animation


def chosen_frames(count: int, shown: int = SHOWN) -> list[int]:
    """Return the numbers of a few frames, spread evenly, the first and the last among them."""
    return sorted({round(i * (count - 1) / max(1, shown - 1)) for i in range(min(shown, count))})


def draw_states(domain: Domain, times: Sequence[float], fields: Mapping[str, Sequence[Tensor]], title: str = "") -> Figure:
    """Draw states at a few times: a row for each field with its truth, answer and difference, or with one kind of states.

    fields   name -> (T, K) states of one kind, or truth and answer
    """
    frames = chosen_frames(len(times))
    if domain.dim == 1:
        return _lines(domain, times, fields, frames, title)
    kinds = [(name, what, k) for name, states in fields.items() for k, what in enumerate(_kinds(states))]
    size = (2.3 * len(frames) + 1.2, 2.2 * len(kinds) + 0.5)
    figure, axes = subplots(len(kinds), len(frames), figsize=size, squeeze=False)
    for row, (name, what, k) in enumerate(kinds):
        states = fields[name]
        values = states[1] - states[0] if k == 2 else states[k]
        shared = values if k == 2 else states[0]
        low, high = float(shared.min()), float(shared.max())
        if k == 2:
            low, high = -float(shared.abs().max()), float(shared.abs().max())
        drawn = None
        for axis, frame in zip(axes[row], frames, strict=True):
            drawn = draw(axis, domain, values[frame], low, high, "PuOr" if k == 2 else "viridis")
            if row == 0:
                axis.set_title(f"t = {times[frame]:.4g}", fontsize=9)
        axes[row][0].set_ylabel(f"{name}\n{what}".replace("$", r"\$"), fontsize=9)
        if drawn is not None:
            figure.colorbar(drawn, ax=axes[row].tolist(), shrink=0.9, pad=0.02)
    figure.suptitle(title.replace("$", r"\$"), fontsize=10)
    return figure


def _kinds(states: Sequence[Tensor]) -> tuple[str, ...]:
    return ("",) if len(states) == 1 else ("truth", "answer", "answer - truth")


def _lines(
    domain: Domain, times: Sequence[float], fields: Mapping[str, Sequence[Tensor]], frames: Sequence[int], title: str
) -> Figure:
    """Draw functions on an interval as lines, the truth dashed."""
    figure, axes = subplots(1, len(fields), figsize=(5.2 * len(fields) + 0.6, 3.4), squeeze=False)
    x, order = domain.points[:, 0].numpy(), domain.points[:, 0].argsort().numpy()
    for axis, (name, states) in zip(axes[0], fields.items(), strict=True):
        for k, frame in enumerate(frames):
            colour = LINES[k % len(LINES)]
            axis.plot(x[order], states[-1][frame].numpy()[order], color=colour, linewidth=1.3, label=f"t = {times[frame]:.4g}")
            if len(states) > 1:
                axis.plot(x[order], states[0][frame].numpy()[order], "--", color=colour, linewidth=1)
        axis.set_xlabel("x")
        axis.set_ylabel(f"{name}{' (dashed: truth)' if len(states) > 1 else ''}".replace("$", r"\$"))
        axis.legend(frameon=False, fontsize=8)
    figure.suptitle(title.replace("$", r"\$"), fontsize=10)
    return figure


def draw_over_time(curves: Mapping[str, tuple[Sequence[float], Sequence[float]]], title: str = "") -> Figure:
    """Draw errors over time: name -> (times, errors)."""
    figure, axis = subplots(figsize=(6.4, 3.4))
    for k, (name, (times, errors)) in enumerate(curves.items()):
        style = {"color": LINES[k % len(LINES)], "marker": MARKS[k % len(MARKS)], "markersize": 4, "linewidth": 1.2}
        axis.semilogy(times, errors, label=name.replace("$", r"\$"), **style)
    axis.set_xlabel("time")
    axis.set_ylabel("relative l2 error")
    axis.grid(alpha=0.3, which="both")
    axis.legend(frameon=False, fontsize=8)
    axis.set_title(title.replace("$", r"\$"), fontsize=10)
    return figure


def animate(path: Path, domain: Domain, times: Sequence[float], fields: Mapping[str, Tensor]) -> None:
    """Write an animated picture (.gif) of fields (T, K), side by side."""
    from PIL import Image

    pictures = []
    ends = {name: (float(states.min()), float(states.max())) for name, states in fields.items()}
    for frame, time in enumerate(times):
        figure, axes = subplots(1, len(fields), figsize=(3.6 * len(fields) + 0.4, 3.2), squeeze=False)
        for axis, (name, states) in zip(axes[0], fields.items(), strict=True):
            drawn: Any = draw(axis, domain, states[frame], *ends[name], "viridis")
            axis.set_title(f"{name}, t = {time:.4g}".replace("$", r"\$"), fontsize=9)
            if drawn is not None:
                figure.colorbar(drawn, ax=axis, shrink=0.85)
        image = io.BytesIO()
        figure.savefig(image, format="png", dpi=90)
        pictures.append(Image.open(image).convert("P", palette=Image.Palette.ADAPTIVE))
    out = io.BytesIO()
    pictures[0].save(out, format="GIF", save_all=True, append_images=pictures[1:], duration=MILLISECONDS, loop=0)
    make_folder(path.parent)
    write(path, out.getvalue())
