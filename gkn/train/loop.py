"""The loop: a network, its optimiser and where they are, step by step, on one rank or many, in a folder or in none."""

from __future__ import annotations

import copy
import json
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor

from gkn.data.dataset import Dataset
from gkn.data.normalizer import Normalizer
from gkn.graph.batches import Batch, Batches
from gkn.graph.rules import Nystrom, Rule
from gkn.models import Model, Multigrid, NearFar, model_of
from gkn.operator.evaluate import Errors, Judge, Sampled, Test
from gkn.operator.operator import Exact, Features, Operator
from gkn.operator.saved import BEST, METRICS, OPERATOR, RUN, STEPS
from gkn.system.files import CorruptFile, difference, digest, read_sealed_json, unfinished, write, write_sealed_json
from gkn.system.machine import versions
from gkn.system.memory import keep_freed
from gkn.system.randomness import stream
from gkn.train.capture import Captured
from gkn.train.checkpoint import Checkpoint, Checkpoints
from gkn.train.prefetch import Ahead
from gkn.train.ranks import Stop, Stopped
from gkn.train.recipe import LOSSES, OPTIMIZERS, Recipe, differences
from gkn.train.symmetries import Symmetries
from gkn.train.watch import Watch

if TYPE_CHECKING:
    from lightning_fabric import Fabric

SCHEMA = 1


@dataclass(frozen=True)
class Status:
    """Where a run is."""

    step: int
    steps: int
    epoch: int
    epochs: int
    loss: float
    test: float | None
    edges_per_second: float
    seconds_left: float


Report: TypeAlias = Callable[[Status], None]


class OtherRun(ValueError):
    """The run folder holds a run of something else."""


class Run:
    """A network, its optimiser, and where they are: in epoch `epoch`, before batch `place`."""

    stop: Stop
    warn: Callable[[str], None]
    report: Report | None = None
    board: Any = None
    save_every: float = 60.0
    test_every: int = 1
    capture: bool = False
    about: dict[str, Any] = {}  # noqa: RUF012

    def __init__(
        self,
        model: Model,
        datasets: list[Dataset],
        rules: list[Rule],
        recipe: Recipe,
        test: Dataset | None,
        how: Test | None,
        weighted: bool,
        units: Mapping[str, str] | None,
        fabric: Fabric,
    ) -> None:
        self.recipe, self.rules, self.rule, self.weighted, self.fabric = recipe, rules, rules[0], weighted, fabric
        self.epoch, self.place = 0, 0
        self.metrics: list[dict[str, Any]] = []
        self.datasets, self.test, self.features = datasets, test, Features.of(datasets[0], units)
        self.how = how or (Sampled(self.rule.m) if isinstance(self.rule, Nystrom) else Exact())
        self.first, self.device = fabric.global_rank == 0, fabric.device
        self.model = model.to(self.device, torch.float64 if recipe.precision == "fp64" else torch.float32).train()
        self.parameters = [each for each in self.model.parameters() if each.requires_grad]
        self.inputs = Normalizer.fit(datasets, datasets[0].inputs)
        self.outputs = Normalizer.fit(datasets, datasets[0].outputs, recipe.pointwise, recipe.zero)
        self.symmetries = Symmetries.of(datasets, self.inputs) if recipe.symmetries else None
        self.average = copy.deepcopy(self.model).requires_grad_(False) if recipe.ema else None
        dtype = self.model.P.weight.dtype
        options: dict[str, Any] = {"device": self.device, "dtype": dtype, "weighted": weighted}
        sources = [
            Batches(each, rule, self.inputs, self.outputs, **options) for each, rule in zip(datasets, rules, strict=True)
        ]
        self.ahead = Ahead(sources, recipe, fabric.global_rank, fabric.world_size, self.device)
        self.steps = self.ahead.steps  # of an epoch
        fused = {"fused": True} if self.device.type == "cuda" else {"foreach": True}
        kind: Any = OPTIMIZERS[recipe.optimizer]
        self.optimizer = kind(self.parameters, lr=recipe.lr, weight_decay=recipe.decay, **fused)
        self.judge: Judge | None = None
        if test is not None:
            self.judge = Judge(self.operator(), test, self.how, seed=1)
        self.total, self.edges = torch.zeros((), dtype=torch.float64, device=self.device), 0
        self.best: dict[str, Any] | None = None
        self.seconds, self.started, self.saved = 0.0, time.monotonic(), time.monotonic()
        self.rate_since, self.rate_edges = time.monotonic(), 0
        self._begun = 0
        self.records: dict[Any, Captured] = {}
        self.checkpoints: Checkpoints | None = None
        self.folder: Path | None = None
        names = [name for name, each in self.model.named_parameters() if each.requires_grad]
        self.watch = Watch(names, ", ".join(self.features.outputs), fabric.world_size, recipe.loss == "relative")

    @property
    def step(self) -> int:
        return self.epoch * self.steps + self.place

    def operator(self) -> Operator:
        return self._operator(self.average or self.model, self.metrics)

    def _operator(self, model: Model, metrics: list[dict[str, Any]]) -> Operator:
        data = [repr(each) for each in self.datasets]
        about = {**self.about, "recipe": self.recipe.entries(), "data": data, "metrics": metrics[-1] if metrics else None}
        return Operator(model, self.rule, self.inputs, self.outputs, self.weighted, self.features, about)

    # --- from beginning to end

    def go(self) -> None:
        keep_freed()
        if self.fabric.world_size > 1:
            for network in (self.model, self.average):  # whatever the others were born with
                for x in [] if network is None else network.state_dict().values():
                    torch.distributed.broadcast(x, 0)
        batches = self.ahead.batches(self.epoch, self.place)
        while self.epoch < self.recipe.epochs:
            while self.place < self.steps:
                self._step(*next(batches))
                self.place += 1
                self._pause()
            self._end_of_epoch()
        self.watch.look()

    def _step(self, batch: Batch | None, graphs: int) -> None:
        share = 1 / graphs if LOSSES[self.recipe.loss][1] else 1.0
        self.optimizer.zero_grad()
        terms = self.total.new_zeros(0)
        loss = self.total.new_zeros((), dtype=self.model.P.weight.dtype)
        if batch is not None:
            if self.symmetries is not None:
                rank, world = self.fabric.global_rank, self.fabric.world_size
                batch = self.symmetries(batch, stream(self.recipe.seed, self.step, 7), range(rank, graphs, world))
            terms = self._captured(batch, share)(batch)
            loss = terms.sum() * share
            self.edges += batch.graph.num_edges
            self.rate_edges += batch.graph.num_edges
        told = loss.new_zeros(())
        gradients = [x.grad if x.grad is not None else torch.zeros_like(x) for x in self.parameters]
        if self.fabric.world_size > 1:
            loss, told = self._reduce(gradients, loss).unbind()
        norms = torch.stack(torch._foreach_norm(gradients))
        self.watch.see(self.step, loss, told, norms, terms, () if batch is None else batch.samples)
        if self.recipe.clip is not None:
            factor = (self.recipe.clip / (torch.linalg.vector_norm(norms) + 1e-6)).clamp(max=1.0)
            torch._foreach_mul_(gradients, factor)
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = gradient
        for group in self.optimizer.param_groups:
            group["lr"] = self.recipe.rate(self.step, self.steps)
        self.optimizer.step()
        if self.average is not None:
            rate = 1 - min(self.recipe.ema, (1 + self.step) / (10 + self.step))  # the first ones are forgotten soon
            with torch.no_grad():
                torch._foreach_lerp_([*self.average.parameters()], [*self.model.parameters()], rate)
        self.total += loss

    def _passes(self, batch: Batch, share: float) -> Tensor:
        """A term of the loss for each graph; the gradients of their sum, times the share, are in the parameters."""
        with self.fabric.autocast():
            found = self.model(batch.graph, batch.x, batch.a, batch.weights)
        found = found.to(batch.u.dtype)
        terms = LOSSES[self.recipe.loss][0](found, batch)
        if self.recipe.gradient:
            terms = terms + self.recipe.gradient * differences(found, batch)
        (terms.sum() * share).backward()
        return terms.detach()

    def _captured(self, batch: Batch, share: float) -> Callable[[Batch], Tensor]:
        """The passes; recorded, where one batch is like the other and the network is one of very many small kernels."""
        passes = partial(self._passes, share=share)
        if not (self.capture and self.device.type == "cuda" and self._recordable(batch)):
            return passes
        key = id(batch.graph) if batch.fixed else batch.sizes, share  # the record keeps the graph, and with it its identity
        if key not in self.records or not self.records[key].has_room(batch):
            if self.records.pop(key, None) is not None:
                torch.cuda.synchronize(self.device)  # what it recorded may still be running
            with _compiling(self.model):
                self.records[key] = Captured(passes, batch, self.parameters)
        return self.records[key]

    def _recordable(self, batch: Batch) -> bool:
        if batch.fixed:
            return isinstance(self.model, NearFar | Multigrid)
        return isinstance(self.model, NearFar) and self.model.on_chip({"bf16": torch.bfloat16}.get(self.recipe.precision))

    def _reduce(self, gradients: list[Tensor], loss: Tensor) -> Tensor:
        """Sums over ranks, in one message: of gradients, in place, of the loss, and of how many were told to stop."""
        told = loss.new_tensor(float(self.stop.number is not None))
        flat = torch.cat([*(x.reshape(-1) for x in gradients), loss[None], told[None]])
        whole = self._sum(flat)
        for x, part in zip(gradients, whole[:-2].split([x.numel() for x in gradients]), strict=True):
            x.copy_(part.reshape(x.shape))
        return whole[-2:]

    # --- between steps

    def _pause(self) -> None:
        if self.report is not None and self.first:
            self.report(self._status())
        self._maybe_stop(self.watch.told)
        if self.checkpoints is not None and self.first and time.monotonic() - self.saved >= self.save_every:
            self.save()

    def _maybe_stop(self, told: bool = False) -> None:
        """All ranks, or none: with several, it is what they told each other that counts."""
        if told or (self.fabric.world_size == 1 and self.stop.number is not None):
            self.watch.look()
            self.save()
            raise Stopped(self.stop.number or signal.SIGTERM)

    def _end_of_epoch(self) -> None:
        """Judge, log, and only then begin the next: a run stopped while it is judged will be judged again."""
        self.watch.look()
        speed = self._speed(time.monotonic())
        last = self.epoch + 1 == self.recipe.epochs
        test: float | None = None
        if self.judge is not None and (last or (self.epoch + 1) % self.test_every == 0):
            test = self._judged(self.judge).mean
        entry = {
            "epoch": self.epoch + 1,
            "step": self.step,
            "loss": float(self.total) / self.steps,
            "lr": self.recipe.rate(self.step - 1, self.steps),
            "test": test,
        }
        better = test is not None and (self.best is None or test < self.best["test"])
        now = time.monotonic()
        more = {"seconds": self.seconds + now - self.started, "edges_per_second": speed}
        self.metrics.append({**entry, **more})
        self.epoch, self.place = self.epoch + 1, 0
        self.total.zero_()
        if better:
            self.best = {"step": self.step, "test": test}
        self.rate_since, self.rate_edges = now, 0
        if self.first and self.folder is not None:
            with open(self.folder / METRICS, "a") as file:
                file.write(json.dumps(self.metrics[-1]) + "\n")
            for name, value in self.metrics[-1].items():
                if self.board is not None and value is not None:
                    self.board.add_scalar(name, value, self.epoch)
            if better or last:
                self.save()

    def _judged(self, judge: Judge) -> Errors:
        """Every rank takes its share of the test functions, and all know all errors."""
        rank, world = self.fabric.global_rank, self.fabric.world_size
        errors = torch.zeros(len(judge.dataset), dtype=torch.float64, device=self.device)
        parts = judge.parts()
        for start in range(0, len(parts), world):
            if start + rank < len(parts):
                part = range(*parts[start + rank])
                tick = (lambda *_: self._maybe_stop()) if world == 1 else None  # ranks must stop together
                errors[part.start : part.stop] = judge.errors(part, tick).to(self.device)
            self._maybe_stop(world > 1 and bool(self._sum(errors.new_tensor(float(self.stop.number is not None)))))
        return Errors((self._sum(errors) if world > 1 else errors).cpu())

    def _sum(self, x: Tensor) -> Tensor:
        whole = self.fabric.all_reduce(x, reduce_op="sum")
        assert isinstance(whole, Tensor)
        return whole

    def _speed(self, now: float) -> float:
        return self.rate_edges * self.fabric.world_size / max(now - self.rate_since, 1e-9)

    def _status(self) -> Status:
        now = time.monotonic()
        done, all_steps = self.step, self.steps * self.recipe.epochs
        so_far = done - self._begun
        left = (now - self.started) / max(so_far, 1) * (all_steps - done)
        test = next((entry["test"] for entry in reversed(self.metrics) if entry["test"] is not None), None)
        return Status(done, all_steps, self.epoch, self.recipe.epochs, self.watch.loss, test, self._speed(now), left)

    # --- the folder

    def config(self) -> dict[str, Any]:
        """What must agree for a call to go on with a run: everything its bits depend on but the machine."""
        return {
            "schema": SCHEMA,
            "model": self.model.config(),
            "data": [each.identity() for each in self.datasets],
            "test": None if self.test is None else {"data": self.test.identity(), "how": repr(self.how)},
            "rule": {"kind": type(self.rule).__name__, **vars(self.rule)},
            **self._other_rules(),
            "weighted": self.weighted,
            "features": self.features.json(),
            "recipe": self.recipe.entries(),
        }

    def _other_rules(self) -> dict[str, Any]:
        """Named only where they are others: a run of before is still the same run."""
        if all(rule == self.rule for rule in self.rules):
            return {}
        return {"rules": [{"kind": type(rule).__name__, **vars(rule)} for rule in self.rules]}

    def open(self, folder: Path, keep: int) -> None:
        """Begin a run in an empty folder, or go on with the one that is there."""
        self.folder, self.checkpoints, self.watch.kept = folder, Checkpoints(folder / STEPS, keep), True
        path, wanted = folder / RUN, self.config()
        if path.exists():
            there = {key: value for key, value in read_sealed_json(path).items() if key != "versions"}
            if there != wanted:
                raise OtherRun(
                    f"{folder} holds another run: {difference(there, wanted)}; choose another folder, or remove this one"
                )
        elif self.first:
            others = [each.name for each in sorted(folder.iterdir()) if not each.name.startswith((".lock", RUN))]
            if others:
                raise OtherRun(f"{folder} is not empty and holds no run ({', '.join(others[:3])}); choose another folder")
            write_sealed_json(path, {**wanted, "versions": versions()})
        found, wrong = self.checkpoints.newest()
        for text in wrong:
            self.warn(f"{text}; going on from {'the checkpoint before' if found else 'the beginning'}")
        if self.fabric.world_size > 1:
            self._agree("checkpoint", found.step if found else -1)
            self._agree("configuration", digest(wanted))
        if found is not None:
            self._restore(found)
        if self.first:
            for left in unfinished(folder, lambda name: name in (RUN, METRICS)):
                left.unlink(missing_ok=True)
            self.checkpoints.drop_after(self.step if found else -1)
            if found is None:
                self.save()  # the weights it was born with: who begins again begins with them
            write(folder / METRICS, "".join(json.dumps(entry) + "\n" for entry in self.metrics).encode())
        self._begun = self.step

    def _agree(self, what: str, mine: int | str) -> None:
        """All ranks have the same, or none goes on."""
        all_of_them: list[Any] = [None] * self.fabric.world_size
        torch.distributed.all_gather_object(all_of_them, mine)
        if len({*all_of_them}) > 1:
            raise OtherRun(f"{self.folder}: the ranks differ in their {what}: {all_of_them}; needed one folder, one command")

    def save(self) -> None:
        """A checkpoint of this moment, by the first rank; none if the numbers of the last step are bad: all ranks will stop."""
        if self.checkpoints is None or not self.first or not self.watch.good():
            return
        names = {id(parameter): name for name, parameter in self.model.named_parameters()}
        tensors = {f"model/{name}": x for name, x in self.model.state_dict().items()}
        if self.average is not None:
            tensors |= {f"average/{name}": x for name, x in self.average.state_dict().items()}
        for parameter, state in self.optimizer.state.items():
            for name, x in state.items():
                tensors[f"optimizer/{names[id(parameter)]}/{name}"] = torch.as_tensor(x)
        tensors["rng/cpu"] = torch.get_rng_state()
        if self.device.type == "cuda":
            tensors["rng/cuda"] = torch.cuda.get_rng_state(self.device)
        seconds = self.seconds + time.monotonic() - self.started
        state = {
            "epoch": self.epoch,
            "place": self.place,
            "total": float(self.total),
            "edges": self.edges,
            "metrics": self.metrics,
            "best": self.best,
            "seconds": seconds,
        }
        best = self.best["step"] if self.best else None
        self.checkpoints.save(self.step, state, tensors, best)
        self.saved = time.monotonic()

    def _restore(self, found: Checkpoint) -> None:
        state = found.state
        try:
            sound = (
                0 <= state["epoch"] <= self.recipe.epochs
                and 0 <= state["place"] <= self.steps
                and state["epoch"] * self.steps + state["place"] == found.step
                and [entry["epoch"] for entry in state["metrics"]] == [*range(1, state["epoch"] + 1)]
                and (state["best"] is None or {*state["best"]} == {"step", "test"})
            )
            if not sound:
                raise TypeError("its entries make no sense")
            weights = {name.removeprefix("model/"): x for name, x in found.tensors.items() if name.startswith("model/")}
            self.model.load_state_dict(weights)
            if self.average is not None:
                kept = {name.removeprefix("average/"): x for name, x in found.tensors.items() if name.startswith("average/")}
                self.average.load_state_dict(kept)
            for name, parameter in self.model.named_parameters():
                key = f"optimizer/{name}/"
                kept = {each.removeprefix(key): x for each, x in found.tensors.items() if each.startswith(key)}
                if kept:  # moments on the parameter's device; the count of steps stays where this optimiser wants it
                    here = parameter.device if self.device.type == "cuda" else torch.device("cpu")
                    self.optimizer.state[parameter] = {each: x.to(here) for each, x in kept.items()}
            self.epoch, self.place, self.metrics = state["epoch"], state["place"], [*state["metrics"]]
            self.total.fill_(state["total"])
            self.edges, self.best, self.seconds = state["edges"], state["best"], state["seconds"]
            torch.set_rng_state(found.tensors["rng/cpu"])
            if self.device.type == "cuda" and "rng/cuda" in found.tensors:
                torch.cuda.set_rng_state(found.tensors["rng/cuda"], self.device)
        except (KeyError, RuntimeError, TypeError, ValueError, AttributeError) as error:
            raise CorruptFile(f"{self.folder}: the checkpoint of step {found.step} is not of this run: {error}") from error

    def close(self) -> Operator:
        """Export the operator, and the best one if there was a test and it was not the last."""
        operator = self.operator()
        assert self.folder is not None
        assert self.checkpoints is not None
        if self.first:
            operator.save(self.folder / OPERATOR)
            if self.best is not None and self.best["step"] != self.step:
                try:
                    found = self.checkpoints.load(self.best["step"])
                except (CorruptFile, FileNotFoundError) as error:
                    self.warn(f"{error}; the best is not exported")
                    return operator
                other = model_of(self.model.config()).to(self.model.P.weight)
                part = "model/" if self.average is None else "average/"
                other.load_state_dict(
                    {name.removeprefix(part): x for name, x in found.tensors.items() if name.startswith(part)}
                )
                self._operator(other, found.state["metrics"]).save(self.folder / BEST)
        return operator


@contextmanager
def _compiling(model: Model) -> Iterator[None]:
    if isinstance(model, NearFar):
        model.compiled = True
    try:
        yield
    finally:
        if isinstance(model, NearFar):
            model.compiled = False
