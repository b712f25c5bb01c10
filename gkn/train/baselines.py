"""The methods a graph kernel network is compared with. Trained on a Dataset, judged by `relative_l2`, as an operator is."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from gkn.data.dataset import BadNumbers, Dataset, Sample, check_sample, described
from gkn.data.normalizer import Normalizer
from gkn.geometry.domain import Domain
from gkn.geometry.grid import Grid
from gkn.models.rivals.dense import Dense
from gkn.models.rivals.fcn import FCN
from gkn.models.rivals.pca import PCANet
from gkn.models.rivals.pointwise import Pointwise
from gkn.models.rivals.rbm import ReducedBasis
from gkn.models.rivals.transformer import Transformer
from gkn.system.checks import check_device
from gkn.system.randomness import stream
from gkn.train.recipe import one_cycle

Answer = Callable[[Tensor, Tensor], Tensor]


class Baseline:
    """Answers on a sample's own points: `baseline(sample)` -> (K, 1), raw a in, raw u out.

    name     of `BASELINES`
    model    what was fitted
    domain   the points it was fitted on, and the only ones it can take; None: it takes any
    about    settings and what the training came to
    """

    def __init__(
        self, name: str, model: Any, answer: Answer, domain: Domain | None, fields: tuple[str, str], about: dict[str, Any]
    ) -> None:
        self.name, self.model, self.domain, self.about = name, model, domain, about
        self._answer, self._fields = answer, fields

    def ready(self, dataset: Dataset) -> Dataset:
        """The dataset with the fields of this baseline; refused where it has other points than those of the training."""
        a, u = self._fields
        for i in range(len(dataset) if not dataset.one_domain else min(1, len(dataset))):
            self._check(dataset[i].domain)
        return dataset.using([a], [u])

    @torch.no_grad()
    def __call__(self, sample: Sample) -> Tensor:
        self._check(sample.domain)
        return self._answer(sample.x, sample.a[:, 0])[:, None]

    def _check(self, domain: Domain) -> None:
        if domain.dim != self.about["dim"]:
            raise ValueError(f"{self.name} was fitted in dimension {self.about['dim']}; given points of dimension {domain.dim}")
        if self.domain is None:
            return
        same = type(domain) is type(self.domain) and domain.points.shape == self.domain.points.shape
        if not same or not torch.equal(domain.points, self.domain.points):
            raise ValueError(
                f"{self.name} answers only on the points it was fitted on, {described(self.domain)}; given "
                f"{described(domain)}. Fit it again on these points, or use a GKN, which takes any"
            )


def fit_baseline(
    name: str,
    dataset: Dataset,
    *,
    seed: int = 0,
    device: str | torch.device = "cpu",
    **settings: Any,
) -> Baseline:
    """Fit one of `BASELINES` on pairs (a, u) with one input and one output on one domain.

    settings   others than in `BASELINES`. epochs, batch and lr are those of Adam, one cycle; f is the source of the equation,
               which RBM alone knows; places, whether FCN sees x beside a; the others are sizes of the model.
    """
    chosen = _settings(name, settings, seed)
    check_device(str(device))
    if not len(dataset):
        raise ValueError(f"{name}: there is nothing to learn: a dataset without samples")
    if len(dataset.given) != 1 or len(dataset.outputs) != 1:
        names = f"{', '.join(dataset.given)} -> {', '.join(dataset.outputs)}"
        raise ValueError(f"{name} maps one field to one field; this dataset has {names}: choose with Dataset.using")
    fields = (dataset.given[0], dataset.outputs[0])
    dataset = dataset.using(*([each] for each in fields))
    make, grids, _ = BASELINES[name]
    if not dataset.one_domain:
        raise ValueError(f"{name} needs all samples on one {'grid' if grids else 'domain'}; here every sample has its own")
    if grids and not isinstance(dataset.domain, Grid):
        raise ValueError(f"{name} needs a regular grid; this dataset is on {described(dataset.domain)}. Use a GKN, or NN")
    for i in range(len(dataset)):
        sample = dataset[i]
        for which, values in ((dataset.inputs, sample.a), (dataset.outputs, sample.u)):
            check_sample(values, which, dataset.number(i))
        if name != "RBM" and not float(sample.u.double().norm()) > 0:
            raise ValueError(f"{name}: u of sample {dataset.number(i)} is 0 everywhere and has no relative error; leave it out")
    how: dict[str, Any] = {key: chosen.pop(key) for key in ("epochs", "batch", "lr") if key in chosen}
    torch.manual_seed(seed)
    model, answer, about = make(dataset, torch.device(device), seed, how, chosen)
    domain = None if name in ANYWHERE else dataset.domain
    about = {"name": name, "dim": dataset.domain.dim, "seed": seed, **how, **chosen, **about}
    return Baseline(name, model, answer, domain, fields, about)


def _settings(name: str, given: dict[str, Any], seed: int) -> dict[str, Any]:
    """All settings of a baseline, those given instead of the usual ones."""
    if name not in BASELINES:
        raise ValueError(f"no baseline {name!r}; there are {', '.join(BASELINES)}")
    usual = BASELINES[name][2]
    unknown = [key for key in given if key not in usual]
    if unknown:
        raise ValueError(f"{name} has no setting {unknown[0]!r}; it has {', '.join(usual)}")
    chosen = {**usual, **given}
    for key in ("epochs", "batch", "inputs", "outputs", "size", "start", "growth", "width", "head", "modes", "layers"):
        if key in chosen and (not isinstance(chosen[key], int) or chosen[key] < 1):
            raise ValueError(f"{name}({key}={chosen[key]!r}): needed a whole number, at least 1")
    for key, count in (("hidden", None), ("blocks", 3)):
        layers = chosen.get(key, (1,) * (count or 1))
        whole = isinstance(layers, tuple | list) and all(isinstance(x, int) and x >= 1 for x in layers)
        if not whole or not layers or len(layers) != (count or len(layers)):
            raise ValueError(f"{name}({key}={layers!r}): needed {count or 'some'} sizes, whole numbers, at least 1")
    if not isinstance(chosen.get("places", True), bool):
        raise ValueError(f"{name}(places={chosen['places']!r}): needed True or False")
    if "lr" in chosen and not 0 < chosen["lr"] < math.inf:
        raise ValueError(f"{name}(lr={chosen['lr']!r}): needed a number > 0")
    if not isinstance(seed, int) or not 0 <= seed < 2**62:
        raise ValueError(f"{name}(seed={seed!r}): needed a whole number, 0 to 2^62")
    return chosen


Made = tuple[Any, Answer, dict[str, Any]]
ANYWHERE = ("NN", "transformer")  # these take any points


def _pointwise(data: Dataset, device: torch.device, seed: int, how: dict[str, Any], sizes: dict[str, Any]) -> Made:
    inputs, outputs = (Normalizer.fit(data, names) for names in (data.inputs, data.outputs))
    model = Pointwise(data.domain.dim, 1, 1, **sizes).to(device)
    x = data.domain.points.float().to(device)
    a, u = (_on(device, data.field(name)) for name in data.names)
    points = min(len(x), 2**13)  # of each function and step: neighbours have no say, so any will do

    def answer(x: Tensor, a: Tensor) -> Tensor:
        found = model(x.float().to(device), inputs.encode(a[:, None]).float().to(device))
        return outputs.decode(found)[:, 0].double().cpu()

    def loss(some: Tensor, rng: torch.Generator) -> Tensor:
        chosen = torch.randint(len(x), (points,), generator=rng).to(device) if points < len(x) else slice(None)
        here = a[some][:, chosen]
        found = model(x[chosen].expand(len(some), -1, -1), inputs.encode(here[..., None]).float())[..., 0]
        return _relative(found * float(outputs.std) + float(outputs.mean), u[some][:, chosen])

    return model, answer, _descend(model, loss, len(data), seed, **how)


def _fcn(data: Dataset, device: torch.device, seed: int, how: dict[str, Any], sizes: dict[str, Any]) -> Made:
    grid = data.domain
    assert isinstance(grid, Grid)
    if grid.dim != 2:
        raise ValueError(f"FCN sees images; this dataset is {grid.dim}-dimensional")
    inputs, outputs = (Normalizer.fit(data, names) for names in (data.inputs, data.outputs))
    places = sizes["places"]
    model = FCN(3 if places else 1, 1, **{key: size for key, size in sizes.items() if key != "places"}).to(device)
    x = (2 * grid.points - 1).T.reshape(1, 2, *grid.shape).float().to(device)
    if device.type == "cuda":
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    a, u = (_on(device, data.field(name)).reshape(-1, 1, *grid.shape) for name in data.names)

    def run(a: Tensor) -> Tensor:
        a = (a - float(inputs.mean)) / float(inputs.std)
        a = torch.cat([a, x.expand(len(a), -1, -1, -1)], 1) if places else a
        with _rounded(device):
            found = model(a.contiguous(memory_format=torch.channels_last))
        out: Tensor = found.float() * float(outputs.std) + float(outputs.mean)
        return out

    def answer(points: Tensor, a: Tensor) -> Tensor:
        model.eval()
        return run(a.float().to(device).reshape(1, 1, *grid.shape)).reshape(-1).double().cpu()

    def loss(some: Tensor, rng: torch.Generator) -> Tensor:
        model.train()
        return _relative(run(a[some]).flatten(1), u[some].flatten(1))

    return model, answer, _descend(model, loss, len(data), seed, **how)


def _pca(data: Dataset, device: torch.device, seed: int, how: dict[str, Any], sizes: dict[str, Any]) -> Made:
    a, u = (data.field(name).to(device) for name in data.names)
    model = PCANet(a, u, data.domain.weights.to(device), **sizes).to(device)
    a, u = a.float(), u.float()
    coefficients = model.encode(a)
    # The loss in coefficients: the basis is orthonormal in L2, so this is the L2 error of what can be represented.
    wanted = ((u - model.u_mean) * model.weights) @ model.u_basis / model.u_std
    norms = (u.square() * model.weights).sum(1).sqrt()

    def answer(x: Tensor, a: Tensor) -> Tensor:
        model.eval()
        found: Tensor = model(a.float().to(device)[None])
        return found[0].double().cpu()

    def loss(some: Tensor, rng: torch.Generator) -> Tensor:
        model.train()
        error = (model.layers(coefficients[some]) - wanted[some]) * model.u_std
        relative: Tensor = (error.norm(dim=1) / norms[some]).mean()
        return relative

    about = _descend(model, loss, len(data), seed, **how)
    return model, answer, {**about, "coefficients": [len(model.a_std), len(model.u_std)]}


def _rbm(data: Dataset, device: torch.device, seed: int, how: dict[str, Any], sizes: dict[str, Any]) -> Made:
    grid = data.domain
    assert isinstance(grid, Grid)
    f = sizes["f"]
    model = ReducedBasis(grid, data.field(data.outputs[0]).to(device), sizes["size"])
    return model, lambda x, a: model.solve(a[None], f)[0].cpu(), {"functions": model.basis.shape[1]}


def _dense(data: Dataset, device: torch.device, seed: int, how: dict[str, Any], sizes: dict[str, Any]) -> Made:
    inputs, outputs = (Normalizer.fit(data, names) for names in (data.inputs, data.outputs))
    model = Dense(len(data.domain), **sizes).to(device)
    a, u = (_on(device, data.field(name)) for name in data.names)

    def run(a: Tensor) -> Tensor:
        found: Tensor = model((a - float(inputs.mean)) / float(inputs.std))
        return found * float(outputs.std) + float(outputs.mean)

    def loss(some: Tensor, rng: torch.Generator) -> Tensor:
        return _relative(run(a[some]), u[some])

    return model, lambda x, a: run(a.float().to(device)[None])[0].double().cpu(), _descend(model, loss, len(data), seed, **how)


def _transformer(data: Dataset, device: torch.device, seed: int, how: dict[str, Any], sizes: dict[str, Any]) -> Made:
    inputs, outputs = (Normalizer.fit(data, names) for names in (data.inputs, data.outputs))
    model = Transformer(data.domain.dim, 1, 1, sizes["width"], sizes["layers"], sizes["head"]).to(device)
    x = data.domain.points.float().to(device)
    a, u = (_on(device, data.field(name)) for name in data.names)

    def run(x: Tensor, a: Tensor, rounded: bool) -> Tensor:
        with _rounded(device, rounded):
            found = model(x.expand(len(a), -1, -1), (a[..., None] - float(inputs.mean)) / float(inputs.std))[..., 0]
        out: Tensor = found.float() * float(outputs.std) + float(outputs.mean)
        return out

    def loss(some: Tensor, rng: torch.Generator) -> Tensor:
        return _relative(run(x, a[some], rounded=True), u[some])

    def answer(x: Tensor, a: Tensor) -> Tensor:
        return run(x.float().to(device), a.float().to(device)[None], rounded=False)[0].double().cpu()

    return model, answer, _descend(model, loss, len(data), seed, **how)


def _fno(data: Dataset, device: torch.device, seed: int, how: dict[str, Any], sizes: dict[str, Any]) -> Made:
    """That of neuraloperator, which adds x to a by itself. Its sums over frequencies are in float32."""
    try:
        from neuralop.models import FNO  # type: ignore[import-not-found,unused-ignore]
    except ImportError as error:
        raise ImportError("FNO is neuraloperator's: pip install neuraloperator", name=error.name) from error
    grid = data.domain
    assert isinstance(grid, Grid)
    inputs, outputs = (Normalizer.fit(data, names) for names in (data.inputs, data.outputs))
    modes = (sizes["modes"],) * grid.dim
    model: nn.Module = FNO(modes, 1, 1, hidden_channels=sizes["width"], n_layers=sizes["layers"]).to(device)
    a, u = (_on(device, data.field(name)).reshape(-1, 1, *grid.shape) for name in data.names)

    def run(a: Tensor) -> Tensor:
        found: Tensor = model((a - float(inputs.mean)) / float(inputs.std))
        return found * float(outputs.std) + float(outputs.mean)

    def loss(some: Tensor, rng: torch.Generator) -> Tensor:
        return _relative(run(a[some]).flatten(1), u[some].flatten(1))

    def answer(x: Tensor, a: Tensor) -> Tensor:
        return run(a.float().to(device).reshape(1, 1, *grid.shape)).reshape(-1).double().cpu()

    return model, answer, _descend(model, loss, len(data), seed, **how)


def _rounded(device: torch.device, rounded: bool = True) -> torch.autocast:
    """On a GPU products are in bf16, if they may be."""
    return torch.autocast(device.type, torch.bfloat16, enabled=rounded and device.type == "cuda")


def _descend(
    model: nn.Module,
    loss: Callable[[Tensor, torch.Generator], Tensor],
    n: int,
    seed: int,
    epochs: int,
    batch: int,
    lr: float,
) -> dict[str, Any]:
    """Adam with one cycle of the learning rate; every sample once an epoch."""
    steps = -(-n // batch) * epochs
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    rng, device = stream(seed, 4), next(model.parameters()).device
    last, step = math.nan, 0
    for _ in range(epochs):
        total = torch.zeros((), device=device)
        for some in torch.randperm(n, generator=rng).split(batch):
            optimizer.param_groups[0]["lr"] = lr * one_cycle(step / steps, 0.2)
            optimizer.zero_grad()
            value = loss(some.to(device), rng)
            value.backward()
            optimizer.step()
            step += 1
            total += value.detach() * len(some)
        last = float(total) / n
        if not math.isfinite(last):
            raise BadNumbers(f"the loss became {last}; use a smaller learning rate than {lr}")
    return {"loss": last, "steps": steps}


def _relative(found: Tensor, u: Tensor) -> Tensor:
    errors: Tensor = (found - u).norm(dim=1) / u.norm(dim=1)
    return errors.mean()


def _on(device: torch.device, values: Tensor) -> Tensor:
    return values.float().to(device)


BASELINES: dict[str, tuple[Callable[..., Made], bool, dict[str, Any]]] = {
    "NN": (_pointwise, False, {"epochs": 10, "batch": 8, "lr": 3e-3, "hidden": (128, 128, 128)}),
    "FCN": (
        _fcn,
        True,
        {"epochs": 40, "batch": 16, "lr": 2e-3, "start": 48, "growth": 16, "blocks": (3, 6, 3), "places": True},
    ),
    "PCA+NN": (
        _pca,
        False,
        {"epochs": 250, "batch": 64, "lr": 1e-3, "inputs": 100, "outputs": 100, "hidden": (512, 512, 512)},
    ),
    "RBM": (_rbm, True, {"size": 200, "f": 1.0}),
    "transformer": (_transformer, False, {"epochs": 16, "batch": 4, "lr": 1e-3, "width": 128, "layers": 8, "head": 16}),
    "FNO": (_fno, True, {"epochs": 80, "batch": 8, "lr": 2e-3, "modes": 16, "width": 64, "layers": 4}),
    "dense": (_dense, False, {"epochs": 1000, "batch": 20, "lr": 1e-3, "hidden": (512, 512)}),
}
"""How each is fitted; does it need a grid; and its settings."""
