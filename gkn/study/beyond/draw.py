"""Drawing the figures past the paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gkn.data.plot import LINES, MARKS, save_twice, subplots


def cost(found: Mapping[str, Mapping[int, Mapping[str, Any]]], stem: Path) -> None:
    """Draw seconds over points, one line for each network; grey: linear growth."""
    figure, axes = subplots(1, 2, figsize=(9.6, 3.8), sharey=True)
    for axis, (what, title) in zip(axes, (("forward", "prediction"), ("step", "a training step")), strict=True):
        for i, (kind, entries) in enumerate(found.items()):
            known = [(K, each[what]["seconds"]) for K, each in sorted(entries.items()) if each.get(what)]
            if known:
                axis.loglog(*zip(*known, strict=True), marker=MARKS[i], color=LINES[i], label=kind, linewidth=1.4, markersize=5)
                if i == 0:
                    (first, _), (last, seconds) = known[0], known[-1]
                    axis.loglog([first, last], [seconds * first / last, seconds], color="0.7", linewidth=3, zorder=0)
        axis.set_title(title, fontsize=10)
        axis.set_xlabel("points")
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("seconds")
    axes[0].legend(fontsize=8)
    save_twice(figure, stem)


def accuracy(found: Sequence[tuple[str, float, float]], published: Mapping[str, float], stem: Path) -> None:
    """Draw errors over seconds of training; published errors as lines."""
    figure, axis = subplots(figsize=(7.2, 4.4))
    for i, (label, seconds, error) in enumerate(found):
        style: dict[str, Any] = {"linestyle": "none", "markersize": 8, "color": LINES[i % len(LINES)]}
        axis.loglog([seconds], [error], marker=MARKS[i % len(MARKS)], label=label, **style)
    for i, (label, error) in enumerate(sorted(published.items(), key=lambda item: item[1])):
        axis.axhline(error, color="0.6", linewidth=0.8, linestyle="--")
        place: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "ha": "right", "va": "bottom" if i % 2 else "top"}
        axis.annotate(label, (0.995, error), fontsize=7, color="0.35", **place)
    most = max(seconds for _, seconds, _ in found)
    axis.set_xlim(min(seconds for _, seconds, _ in found) / 2, most * 6)
    axis.set_xlabel("seconds of training")
    axis.set_ylabel("relative l2 error, s = 85")
    axis.grid(alpha=0.3)
    figure.legend(fontsize=8, loc="outside lower center", ncols=3)
    save_twice(figure, stem)


def resolution(columns: Sequence[str], rows: Mapping[str, Mapping[str, float]], stem: Path) -> None:
    """Draw errors over kinds of points, with one kind of mark for each row."""
    figure, axis = subplots(figsize=(9.6, 4.6))
    for i, (label, errors) in enumerate(rows.items()):
        beside = 0.08 * (i - (len(rows) - 1) / 2)  # so that marks of the same height do not hide each other
        places = [(j + beside, errors[column]) for j, column in enumerate(columns) if column in errors]
        style: dict[str, Any] = {"color": LINES[i % len(LINES)], "linestyle": "none", "markersize": 7}
        axis.semilogy(*zip(*places, strict=True), marker=MARKS[i % len(MARKS)], label=label, **style)
    broken = [column.replace(" points", "\npoints").replace(" mesh", "\nmesh") for column in columns]
    axis.set_xticks(range(len(columns)), broken)
    axis.tick_params(labelsize=8)
    axis.set_ylabel("relative l2 error")
    axis.grid(alpha=0.3, which="both")
    figure.legend(fontsize=8, loc="outside lower center")
    save_twice(figure, stem)
