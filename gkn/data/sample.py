"""Sample: one pair of input and output functions; and a check of its numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from gkn.geometry.domain import Domain
from gkn.geometry.frame import Frame


class BadNumbers(ArithmeticError):
    """A number is not finite: in the data, the loss, or a gradient."""


@dataclass(frozen=True, eq=False)
class Sample:
    """One pair: c input and o output functions on the K points of a domain.

    frame   the frame that the domain is in; None: it is in the user's unit
    """

    domain: Domain
    a: Float[Tensor, "K c"]
    u: Float[Tensor, "K o"]
    frame: Frame | None = None

    @property
    def x(self) -> Float[Tensor, "K d"]:
        """The points."""
        return self.domain.points

    @property
    def weights(self) -> Float[Tensor, " K"]:
        """Quadrature weights of the points."""
        return self.domain.weights


@dataclass(frozen=True, eq=False)
class Trajectory:
    """States of o fields on the K points of a domain at T times, and c static fields there.

    frame   the frame that the domain is in; None: it is in the user's unit
    """

    domain: Domain
    a: Float[Tensor, "K c"]
    times: Float[Tensor, " T"]
    u: Float[Tensor, "T K o"]
    frame: Frame | None = None


def check_sample(values: Tensor, names: Sequence[str], sample: int | str, how: str = "") -> None:
    """Raise `BadNumbers` if fields (K, c) of a sample are not finite, with the field and the first bad point.

    sample   its number or label, for the message
    """
    bad = ~torch.isfinite(values)
    if bad.any():
        field = int(bad.any(0).nonzero()[0])
        count, first = int(bad[:, field].sum()), int(bad[:, field].nonzero()[0])
        raise BadNumbers(
            f"sample {sample}, field {names[field]!r}{how}: {count} of {len(values)} values are not finite, the first is "
            f"{float(values[first, field])} at point {first}"
        )
