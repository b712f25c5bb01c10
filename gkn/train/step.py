"""One optimisation step: passes of the network, sums over ranks, clipping, and the update of the parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gkn.graph.batches import Batch
from gkn.models import Model
from gkn.system.randomness import stream
from gkn.train.capture import Captured
from gkn.train.losses import LOSSES, loss_terms
from gkn.train.ranks import Stop, sum_over_ranks
from gkn.train.recipe import OPTIMIZERS, Recipe
from gkn.train.symmetries import Symmetries
from gkn.train.unroll import Unroll
from gkn.train.watch import Watch

if TYPE_CHECKING:
    from lightning_fabric import Fabric

MOST_RECORDS = 8


class Step:
    """A model and its optimiser. Calling it with a batch updates the model.

    changes      of batches: draw a symmetry for each function, or None; change the states that pairs begin with, or None
    capture      record the passes as a CUDA graph where the model allows it
    """

    def __init__(
        self,
        model: Model,
        recipe: Recipe,
        changes: tuple[Symmetries | None, Unroll | None],
        fabric: Fabric,
        stop: Stop,
        capture: bool,
    ) -> None:
        self.model, self.recipe, self.fabric, self.stop = model, recipe, fabric, stop
        self.symmetries, self.unroll = changes
        self.device, self.capture = fabric.device, capture and fabric.device.type == "cuda"
        self.parameters = [each for each in model.parameters() if each.requires_grad]
        real = not any(each.is_complex() for each in self.parameters)  # there is no fused step for complex parameters
        fused = {"fused": True} if self.device.type == "cuda" and real else {"foreach": True}
        kind: Any = OPTIMIZERS[recipe.optimizer]
        self.optimizer = kind(self.parameters, lr=recipe.lr, weight_decay=recipe.decay, **fused) if self.parameters else None
        self._records: dict[Any, Captured] = {}
        self._seen: dict[Any, int] = {}  # batches of each size

    def __call__(self, batch: Batch | None, graphs: int, step: int, lr: float, watch: Watch) -> Tensor:
        """Do step number `step` with this rank's share of a batch of `graphs`; return the loss of the whole batch."""
        assert self.optimizer is not None
        share = 1 / graphs if LOSSES[self.recipe.loss][1] else 1.0
        self.optimizer.zero_grad()
        loss = torch.zeros((), dtype=self.model.like.dtype, device=self.device)
        terms = loss.new_zeros(0)
        samples: tuple[int, ...] = ()
        if batch is not None:
            batch = self._turned(self._begun(batch, graphs, step), graphs, step)
            terms, samples = self._passes(batch, share)(batch), batch.samples
            loss = terms.sum() * share
        stops = loss.new_zeros(())
        gradients = [x.grad if x.grad is not None else torch.zeros_like(x) for x in self.parameters]
        if self.fabric.world_size > 1:
            loss, stops = self._reduce(gradients, loss).unbind()
        norms = torch.stack(torch._foreach_norm(gradients))
        watch.see(step, loss, stops, norms, terms, samples)
        if self.recipe.clip is not None:
            factor = (self.recipe.clip / (torch.linalg.vector_norm(norms) + 1e-6)).clamp(max=1.0)
            torch._foreach_mul_(gradients, factor)
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = gradient
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.step()
        return loss

    def _begun(self, batch: Batch, graphs: int, step: int) -> Batch:
        """Let the pairs of a batch begin with predicted states, if it carries the pairs before, or with noisy ones."""
        lead = batch.lead
        if self.unroll is None:
            return batch
        if lead is None:
            numbers = range(self.fabric.global_rank, graphs, self.fabric.world_size)
            return self.unroll.noisy(batch, self.recipe, [stream(self.recipe.seed, step, 9, number) for number in numbers])
        with torch.no_grad(), self.fabric.autocast():
            found = self.model(lead.graph, lead.x, lead.a, lead.weights)
        return self.unroll(batch, lead, found.to(lead.deviation.dtype))

    def _turned(self, batch: Batch, graphs: int, step: int) -> Batch:
        """Apply a random symmetry to each function of the batch."""
        if self.symmetries is None:
            return batch
        rank, world = self.fabric.global_rank, self.fabric.world_size
        return self.symmetries(batch, stream(self.recipe.seed, step, 7), range(rank, graphs, world))

    def _forward_backward(self, batch: Batch, share: float) -> Tensor:
        """Return a term of the loss for each graph; leave the gradients of their sum, times `share`, in the parameters."""
        with self.fabric.autocast():
            found = self.model(batch.graph, batch.x, batch.a, batch.weights)
        terms = loss_terms(self.recipe.loss, self.recipe.gradient, found.to(batch.deviation.dtype), batch)
        (terms.sum() * share).backward()
        return terms.detach()

    def _passes(self, batch: Batch, share: float) -> Callable[[Batch], Tensor]:
        """Return the passes; as a recorded CUDA graph, if the model allows it for batches like this one."""
        passes = partial(self._forward_backward, share=share)
        changing = batch.graph.images is not None and not batch.fixed  # images of other nodes every time
        if changing or not (self.capture and self.model.recordable(batch.fixed, products_of(self.recipe))):
            return passes
        key = id(batch.graph) if batch.fixed else batch.sizes, share  # the record keeps the graph, and with it its identity
        if key not in self._records and not self._worth_recording(key, batch.fixed):
            return passes
        if key not in self._records or not self._records[key].fits(batch):
            if self._records.pop(key, None) is not None:
                torch.cuda.synchronize(self.device)  # the old record may still be running
            with self.model.compiling():
                self._records[key] = Captured(passes, batch, self.parameters)
        return self._records[key]

    def _worth_recording(self, key: Any, fixed: bool) -> bool:
        """True if batches of these sizes come again and again, and there are not too many such sizes.

        A record takes as much memory as a step. Samples with points of their own make batches of new sizes all the time.
        """
        if len(self._records) >= MOST_RECORDS:
            return False
        self._seen[key] = self._seen.get(key, 0) + 1
        return fixed or self._seen[key] > 1

    def _reduce(self, gradients: list[Tensor], loss: Tensor) -> Tensor:
        """Sum gradients, in place, the loss, and the number of ranks that are to stop, over all ranks in one message."""
        stops = loss.new_tensor(float(self.stop.number is not None))
        flat = torch.cat([*(x.reshape(-1) for x in gradients), loss[None], stops[None]])
        whole = sum_over_ranks(self.fabric, flat)
        for x, part in zip(gradients, whole[:-2].split([x.numel() for x in gradients]), strict=True):
            x.copy_(part.reshape(x.shape))
        return whole[-2:]

    # --- checkpoints

    def tensors(self) -> dict[str, Tensor]:
        """Return parameters, state of the optimiser and of the random generators, as a checkpoint keeps them."""
        names = {id(parameter): name for name, parameter in self.model.named_parameters()}
        tensors = {f"model/{name}": x for name, x in self.model.state_dict().items()}
        for parameter, state in self.optimizer.state.items() if self.optimizer is not None else ():
            for name, x in state.items():
                tensors[f"optimizer/{names[id(parameter)]}/{name}"] = torch.as_tensor(x)
        tensors["rng/cpu"] = torch.get_rng_state()
        if self.device.type == "cuda":
            tensors["rng/cuda"] = torch.cuda.get_rng_state(self.device)
        return tensors

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Go on from the tensors of a checkpoint."""
        self.model.load_state_dict(part_of(tensors, "model/"))
        for name, parameter in self.model.named_parameters():
            kept = part_of(tensors, f"optimizer/{name}/")
            if kept and self.optimizer is not None:  # moments live on the parameter's device
                here = parameter.device if self.device.type == "cuda" else torch.device("cpu")
                self.optimizer.state[parameter] = {each: x.to(here) for each, x in kept.items()}
        torch.set_rng_state(tensors["rng/cpu"])
        if self.device.type == "cuda" and "rng/cuda" in tensors:
            torch.cuda.set_rng_state(tensors["rng/cuda"], self.device)


def products_of(recipe: Recipe) -> torch.dtype | None:
    """Return the type that products are rounded to, if any."""
    return {"bf16": torch.bfloat16}.get(recipe.precision)


def part_of(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the tensors whose names begin with a prefix, without it."""
    return {name.removeprefix(prefix): x for name, x in tensors.items() if name.startswith(prefix)}
