"""Drawing the paper's figures: coefficients in cividis, solutions in viridis, differences in PuOr with 0 in the middle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator

from gkn.data.plot import LINES, MARKS, save_twice, subplots

Arrays = Mapping[str, Any]


def _image(axis: Any, values: Any, title: str, low: float, high: float, colours: str) -> Any:
    side = round(len(values) ** 0.5)
    style: dict[str, Any] = {"origin": "lower", "extent": (0, 1, 0, 1), "interpolation": "nearest"}
    drawn = axis.imshow(np.asarray(values).reshape(side, side).T, vmin=low, vmax=high, cmap=colours, **style)
    axis.set_title(title, fontsize=10)
    axis.set_xticks([0, 1])
    axis.set_yticks([0, 1])
    return drawn


def _bar(figure: Figure, drawn: Any, axes: Any, label: str = "") -> None:
    bar = figure.colorbar(drawn, ax=axes, shrink=0.85, pad=0.02)
    bar.ax.yaxis.set_major_locator(MaxNLocator(5))
    bar.ax.tick_params(labelsize=8)
    bar.formatter.set_powerlimits((-2, 3))  # type: ignore[attr-defined]
    bar.set_label(label, fontsize=9)


def generalise(numbers: dict[str, Any], arrays: Arrays, stem: Path) -> None:
    figure, axes = subplots(1, 4, figsize=(13.2, 3.2))
    low, high = (float(f([f(arrays["truth"]), f(arrays["found"])])) for f in (np.min, np.max))
    squared = (arrays["found"] - arrays["truth"]) ** 2
    parts = [
        ("coefficient a", arrays["a"], float(arrays["a"].min()), float(arrays["a"].max()), "cividis"),
        (f"truth u on {numbers['asked on']} x {numbers['asked on']}", arrays["truth"], low, high, "viridis"),
        (f"prediction, trained on {numbers['trained on']} x {numbers['trained on']}", arrays["found"], low, high, "viridis"),
        ("squared error", squared, 0.0, float(squared.max()), "magma"),
    ]
    for axis, (title, values, least, most, colours) in zip(axes, parts, strict=True):
        _bar(figure, _image(axis, values, title, least, most, colours), axis)
    figure.suptitle(f"relative l2 error {numbers['relative l2 error of this function']:.4f}", fontsize=10)
    save_twice(figure, stem)


def methods(numbers: dict[str, Any], arrays: Arrays, stem: Path) -> None:
    """Draw a picture for each resolution, a column for each function. Truth and prediction share their colours."""
    for s, errors in numbers["relative l2 errors"].items():
        count = len(errors)
        figure, axes = subplots(4, count, figsize=(2.35 * count + 1.4, 9.2), squeeze=False)
        fields = {name: [arrays[f"{s}-{name}-{i}"] for i in range(count)] for name in ("a", "truth", "found")}
        fields["error"] = [np.abs(found - truth) for found, truth in zip(fields["found"], fields["truth"], strict=True)]
        shown = [*fields["truth"], *fields["found"]]
        low, high = min(float(x.min()) for x in shown), max(float(x.max()) for x in shown)
        most = max(float(x.max()) for x in fields["error"])
        a_low, a_high = (float(f(x.tolist())) for f, x in ((min, fields["a"][0]), (max, fields["a"][0])))
        rows = [
            ("coefficient a", "a", a_low, a_high, "cividis"),
            ("truth u", "truth", low, high, "viridis"),
            ("prediction", "found", low, high, "viridis"),
            ("|prediction - truth|", "error", 0.0, most, "magma"),
        ]
        for row, (title, name, least, largest, colours) in enumerate(rows):
            for column in range(count):
                heading = f"test function {column + 1}\nerror {errors[column]:.4f}" if row == 0 else ""
                drawn = _image(axes[row][column], fields[name][column], heading, least, largest, colours)
            axes[row][0].set_ylabel(title, fontsize=10)
            _bar(figure, drawn, axes[row].tolist())
        side = round(len(fields["a"][0]) ** 0.5)
        figure.suptitle(f"s = {side}: trained and evaluated on {side} x {side}, {numbers['way']}", fontsize=10)
        save_twice(figure, stem.with_name(f"{stem.name}-{s}"))


def interval(numbers: dict[str, Any], arrays: Arrays, stem: Path) -> None:
    figure, axes = subplots(1, 4, figsize=(14.6, 3.3))
    learned, exact, x = arrays["learned"], arrays["exact"], arrays["x"]
    most = max(float(np.abs(learned - exact).max()), 1e-300)
    parts = [("learned kernel", learned, 0.0, 0.25, "viridis"), ("exact G(x, y)", exact, 0.0, 0.25, "viridis")]
    parts.append(("difference", learned - exact, -most, most, "PuOr"))
    for axis, (title, values, low, high, colours) in zip(axes, parts, strict=False):
        _bar(figure, _image(axis, values.reshape(-1), title, low, high, colours), axis)
        axis.set(xlabel="x", ylabel="y")
    for i, place in enumerate((0.25, 0.5, 0.75)):
        row = int(np.abs(x - place).argmin())
        axes[3].plot(x, exact[row], color=LINES[i], linewidth=2.4, alpha=0.4)
        axes[3].plot(x, learned[row], "--", color=LINES[i], linewidth=1.2, label=f"x = {x[row]:.2f}")
    axes[3].plot([], [], color="grey", linewidth=2.4, alpha=0.4, label="exact")
    axes[3].plot([], [], "--", color="grey", linewidth=1.2, label="learned")
    axes[3].set(xlabel="y", title="G(x, .)")
    axes[3].legend(fontsize=8, frameon=False)
    kernel, u = numbers["error of the kernel"], numbers["error of u"]
    figure.suptitle(f"relative L2 error of the kernel {kernel:.4f}, of u {u:.4f}", fontsize=10)
    save_twice(figure, stem)


def samples(numbers: dict[str, Any], arrays: Arrays, stem: Path) -> None:
    names = {"dense": "dense network, f to u", "kernel of x, y": "graph kernel network, G(x, y)"}
    names["kernel of x, y, |x-y|, 0 on the boundary"] = "the same, also of |x - y|, 0 on the boundary"
    curves = {names[name]: (numbers["training pairs"], errors) for name, errors in numbers["errors"].items()}
    title = f"2-D Poisson equation, {numbers['tests']} test functions"
    _lines(curves, "training pairs", "relative l2 test error", title, stem)


def resolution(numbers: dict[str, Any], arrays: Arrays, stem: Path) -> None:
    titles = {
        "full-resolution": "trained on s x s (full grids), evaluated on s' x s'",
        "sampled-resolution": "trained on 200 nodes of s x s, evaluated on 200 of s' x s'",
        "methods": "methods, each trained and evaluated on s x s",
    }
    figure, axes = subplots(1, 3, figsize=(14, 3.9))
    for axis, (table, rows) in zip(axes, numbers["curves"].items(), strict=True):
        for i, (label, pairs) in enumerate(rows.items()):
            sides, errors = pairs[::2], pairs[1::2]
            axis.plot(sides, errors, marker=MARKS[i], color=LINES[i], label=label, linewidth=1.4, markersize=5)
        axis.set_xscale("log", base=2)
        ticks = sorted({side for pairs in rows.values() for side in pairs[::2]})
        axis.set_xticks(ticks, [str(tick) for tick in ticks])
        axis.xaxis.set_minor_locator(NullLocator())
        axis.set(xlabel="s" if table == "methods" else "s'", ylabel="relative l2 test error")
        axis.set_title(titles[table], fontsize=10)
        axis.set_yscale("log") if table == "methods" else axis.set_ylim(0)
        axis.grid(alpha=0.3, which="both")
        if rows:
            axis.legend(fontsize=8, frameon=False)
    save_twice(figure, stem)


def nystrom(numbers: dict[str, Any], arrays: Arrays, stem: Path) -> None:
    nodes, one, all_ = numbers["nodes"], numbers["differences of one integral"], numbers["differences"]
    slopes, first = (numbers["slope of one integral"], numbers["slope"]), nodes[-max(2, len(nodes) // 2)]
    curves = {
        f"one integral, slope {slopes[0]:.2f} from m = {first} on": (nodes, one),
        f"the trained network, T = 6, slope {slopes[1]:.2f} from m = {first} on": (nodes, all_),
    }
    guide = [one[0] * (nodes[0] / m) ** 0.5 for m in nodes]
    _lines(curves, "nodes m", "relative difference to all nodes", "from m random nodes", stem, ("$m^{-1/2}$", nodes, guide))


def _lines(
    curves: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    x: str,
    y: str,
    title: str,
    stem: Path,
    guide: tuple[str, Sequence[float], Sequence[float]] | None = None,
) -> None:
    figure, axis = subplots(figsize=(6.4, 4))
    for i, (name, (across, up)) in enumerate(curves.items()):
        axis.loglog(across, up, marker=MARKS[i], color=LINES[i], label=name, linewidth=1.4, markersize=5)
    if guide is not None:
        axis.loglog(guide[1], guide[2], ":", color="grey", label=guide[0])
    ticks = next(iter(curves.values()))[0]
    axis.set_xticks(ticks, [str(tick) for tick in ticks])
    axis.xaxis.set_minor_locator(NullLocator())
    axis.set(xlabel=x, ylabel=y)
    axis.set_title(title, fontsize=10)
    axis.grid(alpha=0.3, which="both")
    axis.legend(fontsize=9, frameon=False)
    save_twice(figure, stem)


def disk(numbers: dict[str, Any], arrays: Arrays, stem: Path) -> None:
    figure, axes = subplots(1, 3, figsize=(12.6, 3.9))
    rho, theta = arrays["rho"], arrays["theta"]
    x, y = (np.outer(rho, f(theta)) for f in (np.cos, np.sin))
    learned, exact = arrays["learned"], arrays["exact"]
    levels = np.linspace(0, 0.5, 11)
    for axis, title, values in ((axes[0], "learned G(0, 0; y)", learned), (axes[1], "exact G(0, 0; y)", exact)):
        drawn = axis.contourf(x, y, values, levels=levels, cmap="viridis", extend="both")
        axis.contour(x, y, values, levels=levels[1:], colors="white", linewidths=0.5)  # 0 is the rim
        axis.set(title=title, xlabel="$y_1$", ylabel="$y_2$")
        axis.title.set_fontsize(10)
        axis.set_aspect("equal")
    _bar(figure, drawn, axes[:2].tolist())
    axes[2].plot(rho, exact[:, 0], color=LINES[0], linewidth=2.4, alpha=0.5, label="exact")
    axes[2].fill_between(rho, learned.min(1), learned.max(1), color=LINES[1], alpha=0.3, label="learned, all directions")
    axes[2].plot(rho, learned.mean(1), color=LINES[1], linewidth=1.2, label="learned, mean")
    axes[2].axvspan(0, 0.05, color="grey", alpha=0.2, linewidth=0)
    axes[2].set(xlabel="distance from the centre", ylim=(-0.05, 0.6))
    axes[2].legend(fontsize=8, frameon=False)
    error = numbers["error of the kernel at the centre, away from a ball of 0.05"]
    figure.suptitle(f"relative L2 error away from a ball of 0.05: {error:.4f}; of u {numbers['error of u']:.4f}", fontsize=10)
    save_twice(figure, stem)
