"""gkn reproduce: the paper's tables and figures."""

from __future__ import annotations

from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from gkn.cli.options import verb
from gkn.cli.places import Pages, Seeds, Work, place_of, printed, show_pages
from gkn.cli.shell import Config, Device
from gkn.study.paper import reproduce as reproduction
from gkn.study.paper.reproduce import NAMES, RECIPES, chosen, only_pages
from gkn.study.paper.scale import SCALES


@dataclass(frozen=True)
class ReproduceOptions:
    """Options of `gkn reproduce`."""

    names: Annotated[list[str] | None, typer.Argument(help=f"all, tables, figures, or some of {', '.join(NAMES)}.")] = None
    scale: Annotated[str, typer.Option(help="smoke (seconds), small (two cores, an hour), paper (a GPU).")] = "small"
    recipe: Annotated[str, typer.Option(help="paper, ours or both.")] = "both"
    seeds: Seeds = 1
    under: Annotated[
        float | None, typer.Option(min=0.0, help="Further seeds only of cells whose first training took fewer seconds.")
    ] = None
    out: Annotated[Path | None, typer.Option(help="Folder for results and pages. By default runs/paper-SCALE.")] = None
    work: Work = None
    jobs: Annotated[int, typer.Option(min=1, help="Trainings at a time. On a GPU as many as fit, best under CUDA MPS.")] = 1
    backend: Annotated[str, typer.Option(help="Backend of joblib: loky (processes here), dask or ray (a cluster).")] = "loky"
    scheduler: Annotated[str | None, typer.Option(help="Address of Dask's scheduler, e.g. tcp://host:8786.")] = None
    device: Device = "auto"
    pages: Pages = False
    config: Config = None


@verb(ReproduceOptions)
def reproduce(options: ReproduceOptions) -> None:
    """Make every table and figure of the paper. Finished cells are kept: after an interruption, the same command resumes."""
    scale, recipe, names = options.scale, options.recipe, options.names or ["all"]
    if scale not in SCALES:
        raise typer.BadParameter(f"{scale!r}: use {', '.join(SCALES)}", param_hint="--scale")
    if recipe not in (*RECIPES, "both"):
        raise typer.BadParameter(f"{recipe!r}: use paper, ours or both", param_hint="--recipe")
    if options.under is not None and options.seeds == 1:
        raise typer.BadParameter("it is about further seeds: needs --seeds", param_hint="--under")
    place = place_of(options.out or Path("runs") / f"paper-{scale}", options.work, options.device, options.jobs)
    if options.pages:
        chosen(names)  # raises for unknown names
        show_pages(only_pages(place, scale))
        return
    with _workers(options.backend, options.scheduler, options.jobs):
        chosen_recipes = RECIPES if recipe == "both" else (recipe,)
        more: dict[str, Any] = {"seeds": options.seeds, "under": options.under, "progress": printed()}
        page = reproduction.reproduce(names, place, scale=scale, recipes=chosen_recipes, **more)
    show_pages(page)


def _workers(backend: str, scheduler: str | None, jobs: int) -> Any:
    """Return a context in which joblib reaches the workers. All machines of a cluster must share the folders."""
    if backend == "loky":
        if scheduler is not None:
            raise typer.BadParameter("only for --backend dask", param_hint="--scheduler")
        return nullcontext()
    if backend not in ("dask", "ray"):
        raise typer.BadParameter(f"{backend!r}: use loky, dask or ray", param_hint="--backend")
    if jobs == 1:
        raise typer.BadParameter(f"say how many trainings at a time: --jobs, with --backend {backend}", param_hint="--jobs")
    from joblib import parallel_config

    if backend == "dask":
        try:
            from dask.distributed import Client
        except ImportError as error:
            raise ImportError("--backend dask needs the package distributed: pip install 'gkn[cluster]'") from error
        here = {"processes": True, "n_workers": jobs, "threads_per_worker": 1, "dashboard_address": None}
        try:
            client = Client(scheduler) if scheduler else Client(**here)  # type: ignore[no-untyped-call]
        except (OSError, ValueError) as error:
            raise ValueError(f"--scheduler {scheduler}: no Dask there, e.g. tcp://host:8786 ({error})") from error
        both = ExitStack()
        both.enter_context(client)
        both.enter_context(parallel_config(backend="dask", wait_for_workers_timeout=60))
        return both
    try:
        from ray.util.joblib import register_ray
    except ImportError as error:
        raise ImportError("--backend ray needs the package ray: pip install ray") from error
    register_ray()
    return parallel_config(backend="ray")
