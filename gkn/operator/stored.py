"""Stored: how an operator is written to a folder and read again."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from gkn.data.features import Features
from gkn.data.ranges import check_ranges
from gkn.graph.rules import rule_from
from gkn.models import model_from
from gkn.models.model import AtMost
from gkn.operator.card import CARD, describe_normalizer, read_card, restore_normalizer, write_card
from gkn.operator.operator import Operator
from gkn.system.files import CorruptFile
from gkn.system.machine import versions


def save_operator(operator: Operator, path: str | os.PathLike[str]) -> None:
    """Write a folder; see `Operator.save`."""
    if not str(path):
        raise ValueError("operator.save(''): needed the name of a folder")
    tensors = {f"model/{name}": x for name, x in operator.model.state_dict().items()}
    described = {}
    for name, normalizer in (("inputs", operator.inputs), ("outputs", operator.outputs)):
        described[name], more = describe_normalizer(normalizer, name)
        tensors |= more
    entries = {
        "model": operator.model.config(),
        "rule": operator.rule.config(),
        "weighted": operator.weighted,
        "features": None if operator.features is None else operator.features.json(),
        "normalizers": described,
        "about": {"versions": versions(), **operator.about},
    }
    write_card(Path(path), entries, tensors)


def load_operator(folder: Path, device: torch.device | str = "cpu", dtype: torch.dtype | None = None) -> Operator:
    """Read a folder; see `Operator.load`."""
    card, tensors = read_card(folder)
    try:
        stored = sum(name.startswith("model/") for name in tensors)
        with torch.device("meta"), AtMost(stored):  # built without memory: its sizes are then checked against the file
            model = model_from(card["model"])
        rule = rule_from(card["rule"])
        inputs, outputs = (restore_normalizer(card["normalizers"][name], name, tensors) for name in ("inputs", "outputs"))
        known = None if card["features"] is None else Features.from_json(card["features"])
        weighted, about = bool(card["weighted"]), dict(card["about"])
        check_ranges(about.get("ranges"))
    except (KeyError, TypeError, AttributeError, ValueError, RuntimeError, MemoryError, IndexError) as error:
        raise CorruptFile(f"{folder / CARD}: fields missing or unknown ({error})") from error
    weights = {name.removeprefix("model/"): x for name, x in tensors.items() if name.startswith("model/")}
    try:
        model.load_state_dict(weights, assign=True)
    except RuntimeError as error:
        said = "; ".join(line.strip() for line in str(error).splitlines()[1:3])
        raise CorruptFile(f"{folder}: the tensors are not those of the network it describes: {said}") from error
    numbers = [x for x in weights.values() if x.is_floating_point()]
    if len({x.dtype for x in numbers}) > 1 or not all(bool(torch.isfinite(x).all()) for x in numbers):
        raise CorruptFile(f"{folder}: its weights are not finite numbers of one type")
    return Operator(model.requires_grad_(True).to(device, dtype), rule, inputs, outputs, weighted, known, about)
