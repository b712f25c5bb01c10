"""Setup: what is trained, on what, and how, after defaults are filled in. `fit` and the command line both use it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from gkn.data.dataset import Dataset
from gkn.data.features import Features
from gkn.graph.rules import Rule, rule_from
from gkn.models import MODELS, Defaults, Model, NearFar
from gkn.operator.operator import check_same_radius
from gkn.operator.saved import RUN
from gkn.operator.ways import Exact, Sampled, Test
from gkn.system.files import read_sealed_json
from gkn.train.recipe import Recipe, changed, recipe_named

SCHEMA = 2


@dataclass(frozen=True)
class Choices:
    """A user's choices; None means the model's default for the data.

    model      a model; or its name or class, which is then built for the data; None: NearFar
    settings   of a model that is built: arguments of its constructor
    rule       a rule, or one for each dataset
    recipe     a recipe or its name
    changes    entries of the recipe that differ
    smoothing  widths of Gaussians for inputs that are also given smoothed, if a model is built
    weighted   count with quadrature weights
    test       a dataset; or the number of last samples to hold out
    how        how to evaluate on it
    units      of the fields
    """

    model: Model | type[Model] | str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    rule: Rule | Sequence[Rule] | None = None
    recipe: str | Recipe | None = None
    changes: Mapping[str, Any] = field(default_factory=dict)
    smoothing: Mapping[str, float] | None = None
    weighted: bool | None = None
    test: Dataset | int | None = None
    how: Test | None = None
    units: Mapping[str, str] | None = None


@dataclass(frozen=True, eq=False)
class Setup:
    """A training with nothing left to choose. The operator gets the first rule."""

    model: Model
    datasets: list[Dataset]
    rules: list[Rule]
    recipe: Recipe
    weighted: bool
    test: Dataset | None
    how: Test
    features: Features

    def config(self) -> dict[str, Any]:
        """Return everything the bits of a run depend on but the machine."""
        return {
            "schema": SCHEMA,
            "model": self.model.config(),
            "data": [each.identity() for each in self.datasets],
            "test": None if self.test is None else {"data": self.test.identity(), "how": repr(self.how)},
            "rules": [rule.config() for rule in self.rules],
            "weighted": self.weighted,
            "features": self.features.json(),
            "recipe": self.recipe.entries(),
        }


def set_up(dataset: Dataset | Sequence[Dataset], choices: Choices, device: str, out: Path | None) -> Setup:
    """Fill in the model's defaults for the data, build the model if need be, and check that everything fits."""
    datasets, test = _split([dataset] if isinstance(dataset, Dataset) else [*dataset], choices.test)
    if not datasets or not all(len(each) for each in datasets):
        raise ValueError("fit: there is nothing to learn: a dataset without samples")
    given = choices.model if isinstance(choices.model, Model) else None
    kind = _kind(choices.model) if given is None else type(given)
    if given is None:
        datasets, test = _smoothed(datasets, test, choices.smoothing or {})
    suggested = _suggestion(kind, datasets, choices.recipe if isinstance(choices.recipe, str) else None)
    recipe = _recipe(choices, suggested, device, out)
    if given is None and choices.smoothing is None:
        datasets, test = _smoothed(datasets, test, suggested.smoothing)
    _check_fields(datasets, test)
    model = given or _built(kind, datasets[0], _settings(kind, choices, suggested), recipe)
    rules = _rules(choices.rule, suggested, model, len(datasets))
    _check(model, datasets, rules, test)
    drawn = rules[0].drawn
    how = choices.how or (Exact() if drawn is None else Sampled(drawn))
    weighted = suggested.weighted if choices.weighted is None else choices.weighted
    return Setup(model, datasets, rules, recipe, weighted, test, how, Features.of(datasets[0], choices.units))


def _split(datasets: list[Dataset], test: Dataset | int | None) -> tuple[list[Dataset], Dataset | None]:
    """Hold out the last samples if `test` is a number; the test set is then on the points of the first dataset."""
    if test is None or isinstance(test, Dataset):
        return datasets, test
    if not 0 <= test < min(len(each) for each in datasets):
        raise ValueError(f"fit(test={test}): needed fewer than the {min(len(each) for each in datasets)} samples there are")
    first = datasets[0]
    held = first.take(range(len(first) - test, len(first))) if test else None
    return [each.take(len(each) - test) for each in datasets], held


def _smoothed(
    datasets: list[Dataset], test: Dataset | None, widths: Mapping[str, float]
) -> tuple[list[Dataset], Dataset | None]:
    for name, width in widths.items():
        datasets = [each.smoothed(width, name) for each in datasets]
        test = None if test is None else test.smoothed(width, name)
    return datasets, test


def _kind(given: Model | type[Model] | str | None) -> type[Model]:
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
        precision = read_sealed_json(out / RUN).get("recipe", {}).get("precision", precision)
    return replace(chosen, precision=precision)


def _settings(kind: type[Model], choices: Choices, suggested: Defaults) -> dict[str, Any]:
    """Return the settings of a model that is built. Its radius is that of the rule, if one was chosen."""
    rules = [] if choices.rule is None else _listed(choices.rule, 1)
    radius = {"radius": rules[0].r} if rules and "radius" in kind.settings else {}
    unsmoothed = choices.smoothing is not None and suggested.smoothing  # the suggested features do not exist then
    features = {"features": None} if unsmoothed and "features" in suggested.settings else {}
    return {**suggested.settings, **features, **radius, **choices.settings}


def _built(kind: type[Model], dataset: Dataset, settings: Mapping[str, Any], recipe: Recipe) -> Model:
    """Build a model with parameters drawn from the recipe's seed, whatever was drawn before."""
    sizes = {"dim": dataset.dim, "in_channels": len(dataset.inputs), "out_channels": len(dataset.outputs)}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        try:
            return kind(**sizes, **settings)
        except TypeError as error:
            raise ValueError(f"{kind.__name__}: {error}; it takes {', '.join(kind.settings)}") from error


def _rules(given: Rule | Sequence[Rule] | None, suggested: Defaults, model: Model, count: int) -> list[Rule]:
    if given is None:
        numbers = {**suggested.rule, **({} if model.radius is None else {"r": model.radius})}
        return [rule_from(numbers)] * count
    return _listed(given, count)


def _listed(rules: Rule | Sequence[Rule], count: int) -> list[Rule]:
    """Return one rule for each dataset; one that is given alone is for all."""
    return [rules] * count if isinstance(rules, Rule) else [*rules]


def _check_fields(datasets: Sequence[Dataset], test: Dataset | None) -> None:
    first = datasets[0]
    for each in [*datasets, *([] if test is None else [test])]:
        if (each.inputs, each.outputs) != (first.inputs, first.outputs):
            ours, other = (f"{', '.join(d.inputs)} -> {', '.join(d.outputs)}" for d in (first, each))
            raise ValueError(f"fit: datasets of different fields: {ours}, and {other}; choose with Dataset.using and smoothed")


def _check(model: Model, datasets: Sequence[Dataset], rules: Sequence[Rule], test: Dataset | None) -> None:
    for rule in rules:
        if not isinstance(rule, Rule):
            raise ValueError(f"fit(rule={rule!r}): needed a rule, e.g. Radius(r) or Nystrom(r, m, l)")
        check_same_radius(model, rule.r)
    if len(rules) != len(datasets):
        raise ValueError(f"fit: {len(rules)} rules for {len(datasets)} datasets; needed one, or one for each")
    first = datasets[0]
    sizes = {"inputs": (first.inputs, model.in_channels), "outputs": (first.outputs, model.out_channels)}
    for what, (names, needed) in sizes.items():
        if len(names) != needed:
            raise ValueError(
                f"fit: the dataset has {len(names)} {what} ({', '.join(names)}); the network was made for {needed}"
            )
    for each in [*datasets, *([] if test is None or not len(test) else [test])]:
        if each.dim != model.dim:
            raise ValueError(f"fit: a dataset has points of dimension {each.dim}; the network was made for {model.dim}")
