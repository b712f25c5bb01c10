"""The loop: epochs of steps, evaluation between them, on one rank or many, in a run folder or in memory."""

from __future__ import annotations

import copy
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gkn.data.dataset import Dataset
from gkn.data.normalizer import LARGE, Normalizer, hidden_scales
from gkn.data.ranges import ranges_of_data
from gkn.graph.batches import Batches
from gkn.graph.rules import Rule
from gkn.models import Model
from gkn.operator.checkpoint import Checkpoint
from gkn.operator.evaluate import Errors, Judge, errors_of
from gkn.operator.nodes import periods_for
from gkn.operator.operator import Operator
from gkn.system.files import CorruptFile
from gkn.system.stopping import Stopped
from gkn.train.prefetch import Prefetcher
from gkn.train.progress import Progress, Report
from gkn.train.ranks import Stop, sum_over_ranks
from gkn.train.run_folder import RunFolder
from gkn.train.setup import Setup, digest_of
from gkn.train.step import Step, part_of, products_of
from gkn.train.symmetries import Symmetries
from gkn.train.unroll import Unroll
from gkn.train.watch import Watch

if TYPE_CHECKING:
    from lightning_fabric import Fabric

DIVERGED = 10
"""Factor by which the loss may exceed the smallest one so far before a warning."""
NOTHING = 2.0
"""Relative loss at the end of a training that has learned nothing."""


@dataclass(frozen=True)
class LoopOptions:
    """Options that do not change the trained model.

    evaluate_every   epochs between evaluations on the validation set
    report           called after every step, on the first rank
    capture          record steps as CUDA graphs
    about            what the operator is to remember
    warn             called with warnings, on the first rank
    """

    evaluate_every: int = 1
    report: Report | None = None
    capture: bool = True
    about: Mapping[str, Any] = field(default_factory=dict)
    warn: Callable[[str], None] = lambda text: None


class Trainer:
    """Trains a model, step by step, and evaluates it.

    step       updates the model
    progress   says where the run is
    watch      stops it at bad numbers
    folder     keeps it, or None
    """

    def __init__(self, setup: Setup, fabric: Fabric, stop: Stop, options: LoopOptions) -> None:
        recipe, datasets = setup.recipe, setup.datasets
        self.setup, self.fabric, self.stop, self.options = setup, fabric, stop, options
        self.first, self.device = fabric.global_rank == 0, fabric.device
        self.folder: RunFolder | None = None
        if setup.start is None:
            self.inputs = Normalizer.fit(datasets, datasets[0].inputs)
            self.outputs = Normalizer.fit(datasets, datasets[0].outputs, recipe.pointwise, recipe.zero)
        else:
            self.inputs, self.outputs = setup.start.inputs, setup.start.outputs
        drawn = [rule.drawn for rule in setup.rules if rule.drawn is not None]
        self.ranges = {**ranges_of_data(datasets), **({"nodes": max(drawn)} if len(drawn) == len(datasets) else {})}
        self.model = setup.model.to(self.device, torch.float64 if recipe.precision == "fp64" else torch.float32).train()
        self.model.prepare(datasets, self.inputs, self.outputs)
        symmetries = Symmetries.of(datasets, self.inputs) if recipe.symmetries else None
        made: dict[str, Any] = {"device": self.device, "dtype": self.model.like.dtype, "weighted": setup.weighted}
        pairs = zip(datasets, setup.rules, strict=True)
        made |= {"periods": periods_for(self.model, datasets[0][0].domain), "degree": self.model.moments}
        as_usual = setup.start is None and not recipe.pointwise and recipe.zero is None
        hidden = made["hidden"] = hidden_scales(datasets, self.outputs if as_usual else None)
        made["fill"] = self._fills()
        sources = []
        for each, rule in pairs:
            lead = self._leads(each, rule, made)
            sources.append(Batches(each, rule, self.inputs, self.outputs, **made, lead=lead))
        self.prefetcher = Prefetcher(sources, recipe, fabric.global_rank, fabric.world_size, self.device)
        unroll = Unroll.of(datasets[0], self.inputs, sources[0].unit) if recipe.unroll or recipe.noise else None
        self.step = Step(self.model, recipe, (symmetries, unroll), fabric, stop, options.capture)
        self.progress = Progress(self.prefetcher.steps, recipe.epochs, self.device, fabric.world_size)
        self.judge = (
            None if setup.validation is None else Judge(self.operator(), setup.validation, setup.how, seed=1, hidden=hidden)
        )
        names = [name for name, each in self.model.named_parameters() if each.requires_grad]
        self.watch = Watch(names, ", ".join(setup.features.outputs), fabric.world_size, recipe.loss == "relative", datasets)
        self._warned = False
        self._best: dict[str, Tensor] | None = None  # parameters of the best network, if it was evaluated in this process
        for text in setup.warnings if self.first else ():
            options.warn(text)
        for name, (start, _) in datasets[0].output_fields.items():
            if self.first and hidden[start] > 0:
                much = f"the mean of {name} is more than {LARGE:g} times its standard deviation"
                options.warn(f"{much}: loss and validation error are relative to its variation")

    def _fills(self) -> bool:
        """True if graphs are filled up to one number of nodes, so that steps can be recorded."""
        recipe, model = self.setup.recipe, self.model
        recorded = self.options.capture and self.device.type == "cuda" and model.recordable(False, products_of(recipe))
        return recorded and model.fills and recipe.loss == "relative"

    def _leads(self, dataset: Dataset, rule: Rule, made: dict[str, Any]) -> Batches | None:
        """Return the batches of pairs before those of a dataset, if they are needed."""
        if not self.setup.recipe.unroll:
            return None
        return Batches(dataset.leads(), rule, self.inputs, self.outputs, **made)

    def operator(self, model: Model | None = None, metrics: list[dict[str, Any]] | None = None) -> Operator:
        """Return the model as it is now, or another one of the same run, as an operator."""
        setup = self.setup
        log = self.progress.metrics if metrics is None else metrics
        data = [repr(each) for each in setup.datasets]
        about = {**self.options.about, "recipe": setup.recipe.entries(), "data": data, "metrics": log[-1] if log else None}
        about["ranges"] = self.ranges
        about |= {} if self.folder is None else {"run": self.folder.digest}
        chosen = self.model if model is None else model
        return Operator(chosen, setup.rules[0], self.inputs, self.outputs, setup.weighted, setup.features, about)

    # --- the run

    def open(self, folder: RunFolder) -> None:
        """Begin in a folder, or go on with the run that is there."""
        self.folder = folder
        self.watch.keep_checkpoints()
        found = folder.open(digest_of(self.model))
        if found is not None:
            self._restore(found)
        self.progress.patient_since = folder.continued_at
        folder.begin(-1 if found is None else self.progress.step, self.progress.metrics)
        if found is None:
            self.save()  # a run that is killed early begins again with these parameters
        folder.describe(self.operator())

    def go(self, board: Any = None) -> None:
        """Train to the end. `board`: TensorBoard's writer, if metrics are to be written for it."""
        if self.fabric.world_size > 1:
            for x in self.model.state_dict().values():  # all ranks begin with the first one's parameters
                torch.distributed.broadcast(x, 0)
        progress, batches = self.progress, self.prefetcher.batches(self.progress.epoch, self.progress.place)
        while not progress.is_over(self.setup.recipe.patience):
            while progress.place < progress.steps:
                batch, graphs = next(batches)
                if self.step.parameters:
                    rate = self.setup.recipe.rate(progress.step, progress.steps)
                    progress.total += self.step(batch, graphs, progress.step, rate, self.watch)
                progress.advance(0 if batch is None else batch.graph.num_edges)
                progress.place += 1
                self._pause()
            self._end_epoch(board)
        self.watch.look()

    def close(self) -> Operator:
        """Export the operator and, if that is another one, the best by the validation set. Return the best."""
        last, best = self.operator(), self._best_operator()
        if self.progress.best is not None:
            last.about["best_step"] = self.progress.step if best is None else self.progress.best["step"]
        if self.folder is not None:
            self.folder.export(last, best)
        return best or last

    def _best_operator(self) -> Operator | None:
        """Return the operator with the smallest validation error; None if that is the last one, or there is none."""
        best = self.progress.best
        if best is None or best["step"] == self.progress.step:
            return None
        if self._best is None and self.folder is not None:  # from before an interruption
            try:
                found = self.folder.checkpoints.load(best["step"])
                self._best = part_of(found.tensors, "model/")
            except (CorruptFile, FileNotFoundError) as error:
                self._best = self.folder.kept_best(best["step"])
                if self._best is None and self.first:
                    self.options.warn(f"{error}; the last network is taken for the best")
        if self._best is None:
            return None
        model = copy.deepcopy(self.model)
        model.load_state_dict(self._best)
        return self.operator(model, [entry for entry in self.progress.metrics if entry["step"] <= best["step"]])

    def save(self) -> None:
        """Write a checkpoint of this moment; none if the numbers of the last step are bad: all ranks will stop."""
        if self.folder is not None and self.first and self.watch.good():
            best = self.progress.best
            state, tensors = self.progress.state(), self.step.tensors()
            self.folder.save(self.progress.step, state, tensors, best["step"] if best else None)

    def _restore(self, found: Checkpoint) -> None:
        try:
            self.progress.restore(found.state, found.step)
            self.step.restore(found.tensors)
        except (KeyError, RuntimeError, TypeError, ValueError, AttributeError) as error:
            where = self.folder.path if self.folder else ""
            raise CorruptFile(f"{where}: the checkpoint of step {found.step} is not of this run: {error}") from error

    # --- between steps

    def _pause(self) -> None:
        if self.options.report is not None and self.first:
            self.options.report(self.progress.status(self.watch.loss))
        self._maybe_stop(self.watch.stopping)
        if self.folder is not None and self.folder.is_due():
            self.save()

    def _maybe_stop(self, stopping: bool = False) -> None:
        """Save and raise `Stopped` if a signal came: on all ranks or none, so with several what they agreed on counts."""
        if stopping or (self.fabric.world_size == 1 and self.stop.number is not None):
            self.watch.look()
            self.save()
            raise Stopped(self.stop.number or signal.SIGTERM)

    def _end_epoch(self, board: Any) -> None:
        """Evaluate, log, and only then begin the next epoch: a run stopped during evaluation will evaluate again."""
        self.watch.look()
        progress, speed = self.progress, self.progress.speed
        last = progress.epoch + 1 == self.setup.recipe.epochs
        validation: float | None = None
        if self.judge is not None and (last or (progress.epoch + 1) % self.options.evaluate_every == 0):
            validation = self._evaluate(self.judge).mean
        before = progress.best
        entry = progress.end_epoch(self.setup.recipe.rate(progress.step - 1, progress.steps), validation, speed)
        self._warn_if_diverged()
        if progress.best is not before:
            self._best = {name: x.detach().cpu().clone() for name, x in self.model.state_dict().items()}
        if self.folder is not None and self.first:
            self.folder.log(entry)
            for name, value in entry.items():
                if board is not None and value is not None:
                    board.add_scalar(name, value, progress.epoch)
            if progress.best is not before or progress.is_over(self.setup.recipe.patience):
                self.save()

    def _warn_if_diverged(self) -> None:
        """Warn once if the loss of an epoch is much larger than that of an earlier one, or than that of no answer at all."""
        losses, recipe = [entry["loss"] for entry in self.progress.metrics], self.setup.recipe
        if self.first and len(losses) == recipe.epochs and recipe.loss == "relative" and losses[-1] > NOTHING:
            self.options.warn(
                f"the last loss is {losses[-1]:.3g}, that of answering 0 everywhere is about 1; training diverged: use a "
                "smaller learning rate"
            )
            return
        if self.first and not self._warned and losses[-1] > DIVERGED * min(losses):
            self._warned = True
            self.options.warn(
                f"epoch {len(losses)}: the loss is {losses[-1]:.3g} after {min(losses):.3g} in an earlier epoch; training "
                "diverges: use a smaller learning rate"
            )

    def _evaluate(self, judge: Judge) -> Errors:
        """Evaluate on the validation set. Every rank takes its share of the functions, and all get all errors."""
        rank, world = self.fabric.global_rank, self.fabric.world_size
        fields = len(judge.dataset.output_fields)
        errors = torch.zeros(len(judge.dataset), fields, dtype=torch.float64, device=self.device)
        parts = judge.parts()
        for start in range(0, len(parts), world):
            if start + rank < len(parts):
                part = range(*parts[start + rank])
                tick: Callable[[int, int], None] | None = None
                if world == 1:  # several ranks must stop together
                    tick = lambda *_: self._maybe_stop()  # noqa: E731
                errors[part.start : part.stop] = judge.errors(part, tick).to(self.device)
            self._maybe_stop(world > 1 and bool(self._sum(errors.new_tensor(float(self.stop.number is not None)))))
        return errors_of((self._sum(errors) if world > 1 else errors).cpu(), judge.dataset)

    def _sum(self, x: Tensor) -> Tensor:
        return sum_over_ranks(self.fabric, x)
