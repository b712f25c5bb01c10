"""Pictures. Colour maps are perceptually uniform and safe for the colour-blind; samples share their colour bars."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from gkn.data.dataset import Dataset
from gkn.geometry.domain import Domain

# Coefficients and sources in cividis, solutions in viridis: easy to distinguish, both uniform in lightness.
_COLOURS = {"a": "cividis", "f": "cividis", "u": "viridis"}
# Lines in the colours of Okabe and Ito, which the colour-blind can distinguish; markers differ for print in grey.
LINES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
MARKS = "osD^v*P"


def subplots(rows: int = 1, columns: int = 1, *, figsize: tuple[float, float], **options: Any) -> tuple[Figure, Any]:
    """Return a figure and its axes, as pyplot does, but drawn without a screen and whatever the user's backend is."""
    figure = Figure(figsize=figsize, layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, columns, **options)


def show_dataset(dataset: Dataset, out: Path, samples: int = 4, title: str = "") -> None:
    """Draw the first samples into a file."""
    save_figure(draw_dataset(dataset, samples, title), out)


def draw_dataset(dataset: Dataset, samples: int = 4, title: str = "") -> Figure:
    """Draw the first samples: a column for each, a row for each field. Parameters are numbers above the columns.

    Trajectories are drawn by their first and last states.
    """
    dataset = dataset.between() if dataset.in_time else dataset
    count = min(samples, len(dataset))
    names = [name for name in dataset.names if name not in dataset.parameters]
    one_dimension = dataset[0].domain.dim == 1
    size = (2.4 * count + 1.4, 2.3 * len(names) + 0.5)
    figure, axes = subplots(len(names), count, figsize=size, squeeze=False)
    for row, name in enumerate(names):
        values = [dataset.value(name, i) for i in range(count)]
        low, high = min(float(v.min()) for v in values), max(float(v.max()) for v in values)
        drawn = None
        for column, (axis, each) in enumerate(zip(axes[row], values, strict=True)):
            drawn = draw(axis, dataset[column].domain, each, low, high, _COLOURS.get(name, "viridis"))
            if row == 0:
                numbers = "".join(f"\n{name} = {dataset.parameter(name, column):.4g}" for name in dataset.parameters)
                axis.set_title(_shown(f"sample {column}{numbers}"), fontsize=9)
            if column == 0:
                axis.set_ylabel(f"{_shown(name)}(x)" if one_dimension else _shown(name), fontsize=11)
            if one_dimension and row == len(names) - 1:
                axis.set_xlabel("x")
        if drawn is not None:
            bar = figure.colorbar(drawn, ax=axes[row].tolist(), shrink=0.9, pad=0.02)
            bar.ax.yaxis.set_major_locator(MaxNLocator(5))
            bar.formatter.set_powerlimits((-2, 3))  # type: ignore[attr-defined]
    figure.suptitle(_shown(title or repr(dataset).removeprefix("Dataset(").removesuffix(")")), fontsize=10)
    return figure


def save_figure(figure: Figure, out: Path) -> Figure:
    """Save a figure and return it."""
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=160)
    return figure


def save_twice(figure: Figure, stem: Path) -> None:
    """Save as PNG for screens and as PDF for print."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(stem.with_name(stem.name + ".png"), dpi=150)
    figure.savefig(stem.with_name(stem.name + ".pdf"), metadata={"CreationDate": None})


def show_answers(
    rows: Sequence[tuple[str, Domain, Tensor, Tensor, Tensor, Tensor]],
    out: Path,
    title: str = "",
    given: str = "coefficient a",
) -> None:
    """Draw input, truth, answer and difference in a row for each (name, domain, input, truth, answer, difference).

    Truth and answer share a colour scale; the difference has its own, with white for 0.
    """
    save_figure(draw_answers(rows, title, given), out)


def draw_answers(
    rows: Sequence[tuple[str, Domain, Tensor, Tensor, Tensor, Tensor]], title: str = "", given: str = "coefficient a"
) -> Figure:
    """Return the figure of `show_answers`."""
    size = (11.6, 2.65 * len(rows) + 0.45)
    figure, axes = subplots(len(rows), 4, figsize=size, squeeze=False)
    for row, (name, domain, a, truth, found, error) in enumerate(rows):
        low, high = float(truth.min()), float(truth.max())
        most = max(float(error.abs().max()), 1e-300)
        vector = name.startswith("|")  # the difference of vectors is shown by its length
        parts = [
            (_shown(given), a, float(a.min()), float(a.max()), "cividis"),
            ("truth", truth, low, high, "viridis"),
            ("answer", found, low, high, "viridis"),
            ("|answer - truth|", error, 0.0, most, "magma_r") if vector else ("answer - truth", error, -most, most, "PuOr"),
        ]
        for axis, (what, values, least, largest, colours) in zip(axes[row], parts, strict=True):
            drawn = draw(axis, domain, values, least, largest, colours)
            axis.set_title(what if row == 0 or "truth|" in what else "", fontsize=10)
            if drawn is None:
                continue
            bar = figure.colorbar(drawn, ax=axis, shrink=0.85, pad=0.02)
            bar.ax.tick_params(labelsize=7)
            bar.ax.yaxis.set_major_locator(MaxNLocator(5))
            bar.formatter.set_powerlimits((-2, 3))  # type: ignore[attr-defined]
        axes[row][0].set_ylabel(_shown(name), fontsize=9)
    figure.suptitle(_shown(title), fontsize=10)
    return figure


def _shown(text: str) -> str:
    """Return text that matplotlib does not take for a formula."""
    return text.replace("$", r"\$")


def show_losses(metrics: Sequence[dict[str, Any]], out: Path, title: str = "") -> None:
    """Draw training loss and validation error over epochs."""
    figure, axis = subplots(figsize=(6.4, 3.2))
    axis.semilogy(
        [each["epoch"] for each in metrics], [each["loss"] for each in metrics], color="#1f4e79", label="training loss"
    )
    tested = [(each["epoch"], each["validation"]) for each in metrics if each["validation"] is not None]
    if tested:
        axis.semilogy(*zip(*tested, strict=True), "o-", color="#d95f02", markersize=4, label="validation error")
    axis.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    axis.set_xlabel("epoch")
    axis.set_ylabel("relative l2")
    axis.grid(alpha=0.3, which="both")
    axis.legend(frameon=False)
    axis.set_title(title, fontsize=10)
    save_figure(figure, out)


def draw(axis: Any, domain: Domain, values: Tensor, low: float, high: float, colours: str) -> Any:
    """Draw one function on its domain: a line in 1-D, else as the domain draws it."""
    if high <= low:
        low, high = low - 0.5, high + 0.5
    function = values.numpy()
    if domain.dim == 1:
        points = domain.points[:, 0].numpy()
        order = points.argsort()
        axis.plot(points[order], function[order], color="#1f4e79", linewidth=1.2)
        axis.set_ylim(low - 0.05 * (high - low), high + 0.05 * (high - low))
        return None
    axis.set_aspect("equal")
    axis.set_xticks([])
    axis.set_yticks([])
    return domain.draw(axis, function, vmin=low, vmax=high, cmap=colours)
