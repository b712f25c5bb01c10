"""Cost of a forward pass and of a training step over the number of points: our networks, a transformer and an FNO.

Points are drawn uniformly, and a ball always has about as many of them; the FNO has a grid. Seconds are those of one function,
bytes the peak.
"""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gkn.graph.levels import levels_of
from gkn.graph.neighbors import radius_graph
from gkn.graph.rules import Points
from gkn.models import MODELS
from gkn.models.rivals import FNO, Transformer
from gkn.study.beyond.tables import NETWORKS, SMALL, Scale
from gkn.study.work import Place, Progress, count_of, provenance
from gkn.system.files import canonical, make_folder, read_regular, write

BALLS = {"NearFar": 81, "Multigrid": 36}  # points in a ball: as many as on the grids they are trained on
INPUTS = 4  # a, a_eps and its gradient
LONG = 20.0  # seconds; what is expected to take longer is not measured
KINDS = ("NearFar", "Multigrid", "Transformer", "FNO")


def measure(scale: Scale, place: Place, progress: Progress | None = None) -> None:
    """Measure what is missing. A model that ran out of memory or time is not tried with more points."""
    folder = place.results / "cost"
    make_folder(folder)
    for kind in KINDS:
        for K in scale.points_of_cost:
            path = folder / f"{kind}-{K}.json"
            if path.exists():
                continue
            found = _measured(kind, K, scale, place.device, _last(folder, kind, K))
            write(path, canonical({"kind": kind, "points": K, "scale": scale.name, **found, **provenance(place)}))
            if progress is not None:
                progress(KINDS.index(kind) + 1, len(KINDS), f"{kind}, {K} points: {_said(found)}")


def known(folder: Path, scale: Scale) -> dict[str, dict[int, dict[str, Any]]]:
    """Return what was measured at a scale: model -> points -> its entry."""
    found: dict[str, dict[int, dict[str, Any]]] = {}
    for kind in KINDS:
        for K in scale.points_of_cost:
            path = folder / "cost" / f"{kind}-{K}.json"
            if path.exists() and (entry := json.loads(read_regular(path)))["scale"] == scale.name:
                found.setdefault(kind, {})[K] = entry
    return found


def slope(entries: dict[int, dict[str, Any]], what: str, start: int = 0, last: int | None = None) -> float | None:
    """Return the slope of seconds over points, in logarithms: from so many points on, or of the last so many entries."""
    some = [(K, each[what]["seconds"]) for K, each in sorted(entries.items()) if each.get(what) and start <= K]
    points = [(math.log(K), math.log(seconds)) for K, seconds in some[-last if last else 0 :]]
    return statistics.linear_regression(*zip(*points, strict=True)).slope if len(points) > 1 else None


def _said(entry: dict[str, Any]) -> str:
    texts = [f"{what} {entry[what]['seconds']:.3g} s" for what in ("forward", "step") if entry.get(what)]
    return ", ".join([*texts, *([entry["why"]] if entry.get("why") else [])])


def _last(folder: Path, kind: str, K: int) -> dict[str, Any] | None:
    """Return the entry of the largest smaller number of points."""
    smaller = sorted(int(path.stem.rpartition("-")[2]) for path in folder.glob(f"{kind}-*.json"))
    smaller = [points for points in smaller if points < K]
    return json.loads(read_regular(folder / f"{kind}-{smaller[-1]}.json")) if smaller else None


def _measured(kind: str, K: int, scale: Scale, device: str, before: dict[str, Any] | None) -> dict[str, Any]:
    if before is not None and before.get("step") is None:
        return {"why": f"not tried: {before['why']} with {before['points']}".replace("not tried: not tried", "not tried")}
    growth = 2 if kind == "Transformer" else 1
    if before is not None and before["step"]["seconds"] * (K / before["points"]) ** growth > LONG:
        return {"why": f"not tried: it would take more than {LONG:g} s"}
    found: dict[str, Any] = {}
    try:
        model, call, about = _made(kind, K, scale, device)
        found = {"parameters": count_of(model), **about}
        for what in ("forward", "step"):
            found[what] = _timed(model, call, device, what == "step", rounded=kind != "FNO")
    except ImportError as error:
        found["why"] = f"{error.name} is not installed"
    except (MemoryError, RuntimeError) as error:
        if "memory" not in str(error).lower():
            raise
        found["why"] = "out of memory"
    finally:
        if device.startswith("cuda"):
            torch.cuda.empty_cache()
    return found


def _made(kind: str, K: int, scale: Scale, device: str) -> tuple[nn.Module, Callable[[], Tensor], dict[str, float]]:
    """Return a network, a call of it on one function, and if it has edges, their number and the seconds to find them."""
    torch.manual_seed(0)
    settings = {**NETWORKS["NearFar"], **(SMALL["NearFar"] if scale.name == "smoke" else {})}
    if kind == "FNO":
        fno = FNO(2, INPUTS, 1, **scale.rivals["FNO"]).to(device)
        image = torch.randn(1, 2 + INPUTS, *[math.isqrt(K)] * 2, device=device)
        return fno, lambda: fno.image(image), {}
    x = torch.rand(K, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).to(device)
    a = torch.randn(K, INPUTS, device=device)
    if kind == "Transformer":
        transformer = Transformer(2, INPUTS, **{key: settings[key] for key in ("width", "blocks", "head")}).to(device)
        points, none = x.float(), Points().graph(x)
        return transformer, lambda: transformer(none, points, a), {}
    r, start = math.sqrt(BALLS[kind] / (math.pi * K)), time.perf_counter()
    graph = radius_graph(x, r=r)
    graph = graph.with_points(x, torch.full((K,), 1 / K, dtype=torch.float64, device=device))
    network = {**NETWORKS[kind], **(SMALL[kind] if scale.name == "smoke" else {}), "radius": r}
    if kind == "Multigrid":  # as many levels as make the last one small
        network["levels"] = max(2, round(math.log(K / 30, 4))) if scale.name == "full" else network["levels"]
    edges = graph.num_edges
    if kind == "Multigrid":
        for level in levels_of(graph, x, None, r, network["levels"])[1:]:  # kept with the graph
            edges += sum(each.num_edges for each in (level.within, level.down, level.up) if each is not None)
    _wait(device)
    searched = time.perf_counter() - start
    model, points = MODELS[kind](2, INPUTS, 1, **network).to(device), x.float()
    return model, lambda: model(graph, points, a), {"search": searched, "edges": edges}


def _timed(model: nn.Module, call: Callable[[], Tensor], device: str, step: bool, rounded: bool) -> dict[str, float]:
    """Time one call. Products are in bf16 on a GPU, except those of the FNO, since there is no Fourier transform in bf16."""
    cuda = device.startswith("cuda")
    kind = "cuda" if cuda else "cpu"
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)

    def once() -> None:
        with torch.set_grad_enabled(step):
            with torch.autocast(kind, torch.bfloat16, enabled=cuda and rounded):
                out = call()
            if step:
                optimizer.zero_grad()
                out.float().square().mean().backward()
                optimizer.step()

    once()
    _wait(device)
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    took: list[float] = []
    while (sum(took) < 1.0 and len(took) < 20) or (len(took) < 3 and sum(took) < LONG / 2):
        start = time.perf_counter()
        once()
        _wait(device)
        took.append(time.perf_counter() - start)
    model.zero_grad(set_to_none=True)
    found = {"seconds": statistics.median(took)}
    return {**found, "bytes": float(torch.cuda.max_memory_allocated())} if cuda else found


def _wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()
