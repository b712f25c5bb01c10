"""Setup: what is trained, on what, and how, after defaults are filled in. `fit` and the command line both use it."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gkn.data.dataset import Dataset
from gkn.data.features import Features
from gkn.data.pairs import EQUAL, held_fields
from gkn.data.split import Split
from gkn.data.stepping import STEP, TIME, Stepping
from gkn.geometry.frame import Frame
from gkn.graph.rules import Rule, rule_from
from gkn.models import MODELS, Defaults, Model, NearFar, Stepper
from gkn.models.suggest import has_boundary
from gkn.operator.evaluate import judgeable
from gkn.operator.operator import Operator
from gkn.operator.runs import RUN, read_run
from gkn.operator.ways import Exact, Sampled, Test
from gkn.train.recipe import Recipe, changed, recipe_named

SCHEMA = 4


@dataclass(frozen=True)
class Choices:
    """A user's choices; None means the model's default for the data.

    model       a model; or its name or class, which is then built for the data; None: NearFar. Or an operator to go on from
    settings    of a model that is built: arguments of its constructor
    size        of a model that is built: small, medium or large; by default small on a CPU, large on a GPU
    rule        a rule, or one for each dataset
    recipe      a recipe or its name
    changes     entries of the recipe that differ
    smoothing   widths of Gaussians for inputs that are also given smoothed, if a model is built
    extended    inputs known on the boundary that are also given extended to all points, if a model is built
    geometry    features of the geometry are inputs; by default if domains differ, for a model that is built
    weighted    count with quadrature weights
    validation  a dataset; or the number of last samples to hold out; or a share of the samples, drawn at random
    how         how to evaluate on it
    units       of the fields
    stepping    how to learn steps from trajectories

    Radii and widths are in the unit of the data.
    """

    model: Model | type[Model] | str | Operator | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    rule: Rule | Sequence[Rule] | None = None
    recipe: str | Recipe | None = None
    changes: Mapping[str, Any] = field(default_factory=dict)
    smoothing: Mapping[str, float] | None = None
    extended: Sequence[str] | None = None
    geometry: bool | None = None
    weighted: bool | None = None
    validation: Dataset | float | None = None
    how: Test | None = None
    units: Mapping[str, str] | None = None
    size: str | None = None
    stepping: Stepping | None = None


@dataclass(frozen=True, eq=False)
class Setup:
    """A training with nothing left to choose. The operator gets the first rule.

    start      the operator that training goes on from: its normalisers are kept; None: training begins anew
    warnings   sentences about choices that make little sense for the data
    """

    model: Model
    datasets: list[Dataset]
    rules: list[Rule]
    recipe: Recipe
    weighted: bool
    validation: Dataset | None
    how: Test
    features: Features
    start: Operator | None = None
    warnings: tuple[str, ...] = ()

    def split(self) -> dict[str, Any] | None:
        """Return the numbers of the samples that are learned from and evaluated, if they are parts of a dataset on disk."""
        known = self.datasets[0].manifest
        if known is None:
            return None

        def numbers(datasets: Sequence[Dataset]) -> tuple[int, ...]:
            same = [each for each in datasets if each.manifest is not None and each.manifest.hash == known.hash]
            return tuple(sorted({each.number(i) for each in same for i in range(len(each))}))

        validation = () if self.validation is None else numbers([self.validation])
        return Split(numbers(self.datasets), validation, (), known.hash).json()

    def config(self) -> dict[str, Any]:
        """Return everything the bits of a run depend on but the machine."""
        return {
            "schema": SCHEMA,
            "model": self.model.config(),
            "data": [each.identity() for each in self.datasets],
            "validation": None if self.validation is None else {"data": self.validation.identity(), "how": repr(self.how)},
            "rules": [rule.config() for rule in self.rules],
            "weighted": self.weighted,
            "features": self.features.json(),
            "recipe": self.recipe.entries(),
            **({} if self.start is None else {"start": digest_of(self.start.model)}),
        }


def set_up(dataset: Dataset | Sequence[Dataset], choices: Choices, device: str, out: Path | None) -> Setup:
    """Fill in the model's defaults for the data, build the model if need be, and check that everything fits."""
    datasets, validation = _split([dataset] if isinstance(dataset, Dataset) else [*dataset], choices.validation)
    datasets, validation = _in_steps(datasets, validation, choices)
    datasets, validation, left_out = _without_zeros(datasets, validation, choices)
    if not datasets or not all(len(each) for each in datasets):
        raise ValueError("fit: there is nothing to learn: a dataset without samples")
    if isinstance(choices.model, Operator):
        setup = _continued(datasets, validation, choices, choices.model, device, out)
        return replace(setup, warnings=(*left_out, *setup.warnings))
    frame = Frame.of(domain for each in datasets for domain in each.domains())
    choices = _in_frame(choices, frame)
    datasets = [each.framed(frame) for each in datasets]
    validation = None if validation is None else validation.framed(frame)
    given = choices.model if isinstance(choices.model, Model) else None
    kind = _kind(choices.model) if given is None else type(given)
    if given is None:
        datasets, validation = _with_geometry(datasets, validation, choices.geometry)
        datasets, validation = _smoothed(datasets, validation, choices.smoothing or {})
    suggested = _suggestion(kind, datasets, choices.recipe if isinstance(choices.recipe, str) else None)
    recipe = _recipe(choices, suggested, device, out)
    if given is None and choices.smoothing is None:
        datasets, validation = _smoothed(datasets, validation, suggested.smoothing)
    if given is None:
        datasets, validation = _extended(datasets, validation, suggested.extended, choices.extended)
    _check_fields(datasets, validation)
    model = given or _in_time(_built(kind, datasets[0], _settings(kind, choices, suggested, device), recipe), datasets, recipe)
    rules = _rules(choices.rule, suggested, model, len(datasets))
    _check(model, datasets, rules, validation, recipe)
    weighted = suggested.weighted if choices.weighted is None else choices.weighted
    features = Features.of(datasets[0], choices.units)
    if given is None and choices.extended is None and suggested.extended and not datasets[0].extensions:
        names = ", ".join(suggested.extended)
        left_out = [*left_out, f"known on the boundary only, and not extended, as some samples have no boundary: {names}"]
    warnings = _warnings(datasets, rules, model, left_out)
    return Setup(model, datasets, rules, recipe, weighted, validation, _way(choices, rules), features, None, warnings)


def _continued(
    datasets: list[Dataset], validation: Dataset | None, choices: Choices, start: Operator, device: str, out: Path | None
) -> Setup:
    """Set up a training that goes on from a trained operator: with its network, fields, frame, normalisers and rule."""
    if start.features is None:
        raise ValueError("fit: an operator without names of fields cannot be trained further; train a model instead")
    features = (choices.smoothing, choices.extended, choices.geometry, choices.size)
    if choices.settings or any(each is not None for each in features):
        raise ValueError(
            "fit: settings, size, smoothing, extended and geometry are those of the operator that training goes on from"
        )
    choices = _in_frame(choices, start.frame)
    datasets = [start.ready(each) for each in datasets]
    validation = None if validation is None else start.ready(validation)
    model = copy.deepcopy(start.model)
    suggested = _suggestion(type(model), datasets, None)
    recipe = _recipe(choices, suggested, device, out)
    rules = [start.rule] * len(datasets) if choices.rule is None else _listed(choices.rule, len(datasets))
    _check(model, datasets, rules, validation, recipe)
    weighted = start.weighted if choices.weighted is None else choices.weighted
    warnings = _warnings(datasets, rules, model)
    how = _way(choices, rules)
    return Setup(model, datasets, rules, recipe, weighted, validation, how, start.features, start, warnings)


def _way(choices: Choices, rules: Sequence[Rule]) -> Test:
    drawn = rules[0].drawn
    return choices.how or (Exact() if drawn is None else Sampled(drawn))


def _in_frame(choices: Choices, frame: Frame) -> Choices:
    """Return the choices with radii and widths in units of the frame."""
    if frame.is_identity:
        return choices
    rules = choices.rule if choices.rule is None else [rule.scaled(1 / frame.scale) for rule in _listed(choices.rule, 1)]
    settings = {key: value / frame.scale if key == "radius" else value for key, value in choices.settings.items()}
    smoothing = choices.smoothing and {name: width / frame.scale for name, width in choices.smoothing.items()}
    one = rules[0] if isinstance(choices.rule, Rule) and rules else rules
    return replace(choices, rule=one, settings=settings, smoothing=smoothing)


def _with_geometry(
    datasets: list[Dataset], validation: Dataset | None, wanted: bool | None
) -> tuple[list[Dataset], Dataset | None]:
    """Add features of the geometry if they are wanted, or if domains differ and nothing was said."""
    if wanted is False or datasets[0].has_geometry:
        return datasets, validation
    if wanted is None and all(each.one_domain for each in datasets):
        return datasets, validation
    return [each.with_geometry() for each in datasets], None if validation is None else validation.with_geometry()


def _split(datasets: list[Dataset], held_out: Dataset | float | None) -> tuple[list[Dataset], Dataset | None]:
    """Hold out the last samples if a number is given, or a share of all; the validation set is then of the first dataset."""
    if held_out is None or isinstance(held_out, Dataset):
        return datasets, held_out
    if not isinstance(held_out, Integral):
        if not 0 <= held_out < 1:
            raise ValueError(f"fit(validation={held_out}): needed a dataset, a number of samples, or a share from 0 to 1")
        parts = [each.split(1 - float(held_out)) for each in datasets]
        return [part[0] for part in parts], parts[0][1] if len(parts[0][1]) else None
    held_out = int(held_out)
    fewest = min(len(each) for each in datasets)
    if not 0 <= held_out < fewest:
        raise ValueError(f"fit(validation={held_out}): needed fewer than the {fewest} samples there are")
    first = datasets[0]
    held = first.take(range(len(first) - held_out, len(first))) if held_out else None
    return [each.take(len(each) - held_out) for each in datasets], held


def _in_steps(datasets: list[Dataset], validation: Dataset | None, choices: Choices) -> tuple[list[Dataset], Dataset | None]:
    """Return the pairs of states of trajectories. Of validation trajectories at most `CHECKED` pairs are evaluated."""
    if not any(each.in_time for each in datasets):
        if choices.stepping is not None:
            raise ValueError(f"fit(stepping={choices.stepping}): needed trajectories; these samples have no time")
        return datasets, validation
    wrong = [each for each in (*datasets, *([] if validation is None else [validation])) if not each.in_time]
    if wrong:
        raise ValueError(f"fit: needed trajectories or steady samples; given are both, as {wrong[0]!r}")
    known = choices.model.features if isinstance(choices.model, Operator) else None
    stepping = choices.stepping or (known.stepping if known is not None else None) or Stepping()
    if known is not None and known.stepping is not None and choices.stepping is not None:
        raise ValueError("fit(stepping=...): training goes on from an operator with its own stepping; leave this one out")
    if stepping.held is None:
        kept = [set(held_fields(each)) for each in datasets]
        stepping = replace(stepping, held=tuple(name for name in datasets[0].outputs if all(name in each for each in kept)))
    unknown = [name for name in stepping.held or () if name not in datasets[0].outputs]
    if unknown:
        raise ValueError(f"Stepping(held=...): no output {unknown[0]!r}; there are {', '.join(datasets[0].outputs)}")
    pairs = [each.pairs(stepping) for each in datasets]
    if validation is None or not len(validation):
        return pairs, None
    whole = validation.pairs(stepping)
    places = np.unique(np.linspace(0, len(whole) - 1, min(CHECKED, len(whole))).round().astype(int))
    return pairs, whole.take(places)


CHECKED = 200
FEW_SAMPLES = 10
LOOKED_AT = 4  # samples whose graphs are looked at before training
SMALL = 64  # nodes of a graph in which every node may well be a neighbour of all others


def _without_zeros(
    datasets: list[Dataset], validation: Dataset | None, choices: Choices
) -> tuple[list[Dataset], Dataset | None, list[str]]:
    """Leave out samples with an output that is 0 at all points, of which no relative error is defined; say so."""
    loss = choices.recipe.loss if isinstance(choices.recipe, Recipe) else recipe_named(choices.recipe or "ours").loss
    said: list[str] = []
    if choices.changes.get("loss", loss) == "relative":
        pairs = [judgeable(each) for each in datasets]
        datasets, said = [dataset for dataset, _ in pairs], [text for _, texts in pairs for text in texts]
    if validation is not None:
        given = len(validation)
        validation, more = judgeable(validation)
        said += more
        if given and not len(validation):
            raise ValueError("fit: all validation samples have an output that is 0 at all points; give others")
    return datasets, validation, said


def _warnings(
    datasets: Sequence[Dataset], rules: Sequence[Rule], model: Model, left_out: Sequence[str] = ()
) -> tuple[str, ...]:
    """Return sentences about too few samples, isolated nodes, and neighbourhoods of nothing or of everything."""
    found = [*left_out]
    if not any(each.given for each in datasets) and all(each.one_domain for each in datasets):
        found.append("the samples have no input and share one domain: an operator can only learn their mean")
    count = sum(len(each) for each in datasets)
    if count < FEW_SAMPLES:
        found.append(f"{count} training samples are very few; expect large errors on new ones")
    if datasets[0][0].domain.periods is not None and not model.periodic:
        name = type(model.inner if isinstance(model, Stepper) else model).__name__
        found.append(f"{name} does not wrap around the periodic axes of the domain")
    for dataset, rule in zip(datasets, rules, strict=True):
        if rule.r is None:
            continue
        for i in range(min(LOOKED_AT, 1 if dataset.one_domain else len(dataset))):
            x = dataset[i].domain.points
            if rule.drawn is not None:
                x = x[rule.draws(len(x), [i])[0, 0]]
            found += _about_graph(rule, x, dataset.label(i), dataset.frame)
    return tuple(dict.fromkeys(found))


def _about_graph(rule: Rule, x: Tensor, sample: str, frame: Frame | None) -> list[str]:
    """Return a warning about the graph of some nodes, if there is a reason for one."""
    some = x[torch.linspace(0, len(x) - 1, min(len(x), 1000)).long()]
    degrees = rule.graph(x, some).degrees
    assert rule.r is not None
    r = rule.r if frame is None else rule.r * frame.scale
    alone = int((degrees <= 1).sum())
    if alone == len(some) and len(x) > 1:
        return [f"within r = {r:.4g} no node of sample {sample} has a neighbour; use a larger radius, in the data's unit"]
    if alone:
        return [f"within r = {r:.4g} about {alone / len(some):.1%} of the nodes of sample {sample} have no neighbour"]
    if int(degrees.min()) == len(x) > SMALL:
        return [f"within r = {r:.4g} all {len(x)} nodes of sample {sample} are neighbours of each other; that is slow"]
    return []


def digest_of(model: Model) -> str:
    """Return a digest of the parameters of a model."""
    tensors = {name: x.detach().cpu().contiguous() for name, x in model.state_dict().items()}
    return hashlib.sha256(b"".join(name.encode() + x.numpy().tobytes() for name, x in sorted(tensors.items()))).hexdigest()


def _smoothed(
    datasets: list[Dataset], validation: Dataset | None, widths: Mapping[str, float]
) -> tuple[list[Dataset], Dataset | None]:
    for name, width in widths.items():
        datasets = [each.smoothed(width, name) for each in datasets]
        validation = None if validation is None else validation.smoothed(width, name)
    return datasets, validation


def _extended(
    datasets: list[Dataset], validation: Dataset | None, suggested: Sequence[str], chosen: Sequence[str] | None
) -> tuple[list[Dataset], Dataset | None]:
    """Extend the chosen fields, or those that are suggested, unless some sample has no boundary to extend them from."""
    if isinstance(chosen, str):
        raise ValueError(f"fit(extended={chosen!r}): needed a list of fields: [{chosen!r}]")
    everything = [*datasets, *([] if validation is None else [validation])]
    names = [name for name in suggested if all(map(has_boundary, everything))] if chosen is None else chosen
    for name in names:
        everything = [each if name in each.extensions else each.extended(name) for each in everything]
    return everything[: len(datasets)], everything[len(datasets)] if validation is not None else None


def _kind(given: type[Model] | str | Model | Operator | None) -> type[Model]:
    if given is None:
        return NearFar
    if isinstance(given, str):
        if given not in MODELS:
            raise ValueError(f"no model {given!r}; there are {', '.join(MODELS)}")
        return MODELS[given]
    if not isinstance(given, type) or not issubclass(given, Model):
        raise ValueError(f"fit(model={given!r}): needed a gkn.Model, its class or its name; the dataset comes first")
    return given


def _suggestion(kind: type[Model], datasets: Sequence[Dataset], recipe: str | None) -> Defaults:
    """Return the defaults for the coarsest of several datasets."""
    return max((kind.defaults(each, recipe) for each in datasets), key=lambda each: each.rule.get("r") or 0.0)


def _recipe(choices: Choices, suggested: Defaults, device: str, out: Path | None) -> Recipe:
    if isinstance(choices.recipe, Recipe):
        return changed(choices.recipe, **choices.changes)
    name = choices.recipe or suggested.recipe
    usual = suggested.changes if choices.recipe is None else {}  # a recipe that is named is meant as it is
    chosen = recipe_named(name, **{**usual, **choices.changes})
    if "precision" in choices.changes:
        return chosen
    precision = ("tf32" if name == "paper" else "bf16") if device.startswith("cuda") else "fp32"
    if out is not None and (out / RUN).is_file():  # perhaps begun on another kind of device
        precision = read_run(out)["recipe"].get("precision", precision)
    return replace(chosen, precision=precision)


def _settings(kind: type[Model], choices: Choices, suggested: Defaults, device: str) -> dict[str, Any]:
    """Return the settings of a model that is built. Its radius is that of the rule, if one was chosen."""
    rules = [] if choices.rule is None else _listed(choices.rule, 1)
    radius = {"radius": rules[0].r} if rules and "radius" in kind.settings else {}
    unsmoothed = choices.smoothing is not None and suggested.smoothing  # the suggested features do not exist then
    features = {"features": None} if unsmoothed and "features" in suggested.settings else {}
    size = choices.size or ("large" if device.startswith("cuda") else "small")
    if choices.size is not None and size not in kind.sizes:
        known = ", ".join(kind.sizes) or "no sizes: use settings"
        raise ValueError(f"{kind.__name__} of size {size!r}; it has {known}")
    return {**kind.sizes.get(size, {}), **suggested.settings, **features, **radius, **choices.settings}


def _built(kind: type[Model], dataset: Dataset, settings: Mapping[str, Any], recipe: Recipe) -> Model:
    """Build a model with parameters drawn from the recipe's seed, whatever was drawn before."""
    sizes = {"dim": dataset.dim, "in_channels": len(dataset.inputs), "out_channels": len(dataset.outputs)}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        try:
            return kind(**sizes, **settings)
        except TypeError as error:
            raise ValueError(f"{kind.__name__}: {error}; it takes {', '.join(kind.settings)}") from error


def _in_time(model: Model, datasets: Sequence[Dataset], recipe: Recipe) -> Model:
    """Let the norms of a model depend on t and tau if it learns to step, and if these are not always the same."""
    first = datasets[0]
    if first.stepping is None or not first.stepping.conditioned:
        return model
    varying = []
    for name in (TIME, STEP):
        if name in first.inputs:
            values = [each.parameter(name, i) for each in datasets for i in range(len(each))]
            if max(values) - min(values) > EQUAL * max(map(abs, values)):
                varying.append(first.inputs.index(name))
    if not varying:
        return model
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        return Stepper(model.dim, model.in_channels, model.out_channels, model, varying)


def _rules(given: Rule | Sequence[Rule] | None, suggested: Defaults, model: Model, count: int) -> list[Rule]:
    if given is None:
        numbers = {**suggested.rule, **({} if model.radius is None else {"r": model.radius})}
        return [rule_from(numbers)] * count
    return _listed(given, count)


def _listed(rules: Rule | Sequence[Rule], count: int) -> list[Rule]:
    """Return one rule for each dataset; one that is given alone is for all."""
    return [rules] * count if isinstance(rules, Rule) else [*rules]


def _check_fields(datasets: Sequence[Dataset], validation: Dataset | None) -> None:
    first = datasets[0]
    for each in [*datasets, *([] if validation is None else [validation])]:
        if (each.inputs, each.outputs) != (first.inputs, first.outputs):
            ours, other = (f"{', '.join(d.inputs)} -> {', '.join(d.outputs)}" for d in (first, each))
            raise ValueError(f"fit: datasets of different fields: {ours}, and {other}; choose with Dataset.using and smoothed")


def _check(
    model: Model, datasets: Sequence[Dataset], rules: Sequence[Rule], validation: Dataset | None, recipe: Recipe
) -> None:
    for rule in rules:
        if not isinstance(rule, Rule):
            raise ValueError(f"fit(rule={rule!r}): needed a rule, e.g. Radius(r) or Nystrom(r, m, l)")
        model.check_same_radius(rule.r)
    of_steps = [name for name in ("unroll", "noise") if getattr(recipe, name)]
    if of_steps and any(each.stepping is None for each in datasets):
        raise ValueError(f"Recipe({of_steps[0]}=...): needed trajectories; these samples have no time")
    if len(rules) != len(datasets):
        raise ValueError(f"fit: {len(rules)} rules for {len(datasets)} datasets; needed one, or one for each")
    first = datasets[0]
    sizes = {"inputs": (first.inputs, model.in_channels), "outputs": (first.outputs, model.out_channels)}
    for what, (names, needed) in sizes.items():
        if len(names) != needed:
            raise ValueError(
                f"fit: the dataset has {len(names)} {what} ({', '.join(names)}); the network was made for {needed}"
            )
    for each in [*datasets, *([] if validation is None or not len(validation) else [validation])]:
        if each.dim != model.dim:
            raise ValueError(f"fit: a dataset has points of dimension {each.dim}; the network was made for {model.dim}")
