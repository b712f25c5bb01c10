"""Groups: vectors and tensors as named groups of scalar fields, their components."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from numpy.typing import NDArray
from torch import Tensor

Groups: TypeAlias = Mapping[str, tuple[str, ...]]
"""Name of a vector or tensor -> names of its components, in order."""

_AXES = "xyz"
_SUFFIXES = {
    2: ("x", "y"),
    3: ("x", "y", "z"),
    4: ("xx", "xy", "yx", "yy"),
    6: ("xx", "yy", "zz", "xy", "yz", "xz"),  # VTK's order of symmetric tensors
    9: tuple(i + j for i in _AXES for j in _AXES),
}


def component_names(name: str, count: int) -> tuple[str, ...]:
    """Return the names of the components of a field: the name itself for one, else with suffixes such as _x or _xy."""
    if count == 1:
        return (name,)
    return tuple(f"{name}_{suffix}" for suffix in _SUFFIXES.get(count, map(str, range(count))))


def expanded(names: Sequence[str], groups: Groups) -> tuple[str, ...]:
    """Return names with every group replaced by its components."""
    return tuple(part for name in names for part in groups.get(name, (name,)))


def ranges_of(names: Sequence[str], groups: Groups) -> dict[str, tuple[int, int]]:
    """Return the columns (first, last + 1) of every field among `names`: those of a vector if all its components are there.

    Components without the rest of their vector are fields of their own.
    """
    found: dict[str, tuple[int, int]] = {}
    place = 0
    while place < len(names):
        group = next((key for key, parts in groups.items() if tuple(names[place : place + len(parts)]) == tuple(parts)), None)
        width = 1 if group is None else len(groups[group])
        found[names[place] if group is None else group] = (place, place + width)
        place += width
    return found


def with_suffix(names: Sequence[str], groups: Groups, suffix: str) -> tuple[dict[str, str], dict[str, tuple[str, ...]]]:
    """Return new names, each with the name it was made of, and the groups of the new names.

    The suffix goes to the name of a vector, before that of the component: velocity_x -> velocity_rate_x.
    """
    made: dict[str, str] = {}
    new: dict[str, tuple[str, ...]] = {}
    for field, (start, stop) in ranges_of(names, groups).items():
        parts = [f"{field}_{suffix}{name.removeprefix(field)}" for name in names[start:stop]]
        made |= dict(zip(parts, names[start:stop], strict=True))
        if stop - start > 1:
            new[f"{field}_{suffix}"] = tuple(parts)
    return made, new


def by_name(columns: Tensor, fields: Mapping[str, tuple[int, int]]) -> dict[str, NDArray[Any]]:
    """Return the columns (P, c) of each field as plain arrays, (P,) or (P, c)."""
    plain = columns.detach().cpu().numpy()
    return {name: plain[:, start] if stop == start + 1 else plain[:, start:stop] for name, (start, stop) in fields.items()}
