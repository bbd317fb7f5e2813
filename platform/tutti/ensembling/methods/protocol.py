"""The interface of combination methods: fitted on labelled rows, they combine the votes for any rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from tutti.ensembling.combine import average
from tutti.tasks.kinds.preference import spreads


class Combiner(Protocol):
    """A fitted method.

    Attributes:
        weights: ``(members,)`` float64, each member's share of the result; they sum to 1.
    """

    @property
    def weights(self) -> np.ndarray: ...

    def combine(self, votes: np.ndarray) -> np.ndarray:
        """Combines the votes of the members that the method was fitted on, in the same order.

        Args:
            votes: ``(members, rows, ...)`` float32, each member's outputs in the shape of their kind.

        Returns:
            ``(rows, ...)`` float32 outputs of the same kind.
        """
        ...


class Method(Protocol):
    """One way to combine votes."""

    def fit(self, votes: np.ndarray, labels: np.ndarray) -> Combiner:
        """Fits the method on labelled rows.

        Args:
            votes: ``(members, rows, ...)`` float32, each member's outputs in their kind's shape; at least one member.
            labels: ``(rows,)`` or ``(rows, k)``, as of the kind.
        """
        ...


@dataclass(frozen=True, eq=False)
class Weighted:
    """The weighted mean of the votes, the combiner of every method that only fits weights."""

    weights: np.ndarray

    def combine(self, votes: np.ndarray) -> np.ndarray:
        return average(votes, self.weights)


@dataclass(frozen=True, eq=False)
class Standardized:
    """A method for values without a common unit: each member's are divided by their ``spreads`` on the fitted rows."""

    method: Method

    def fit(self, votes: np.ndarray, labels: np.ndarray) -> Combiner:
        units = spreads(votes)
        combiner = self.method.fit(votes / units, labels)
        return InUnits(combiner, units)


@dataclass(frozen=True, eq=False)
class InUnits:
    """A combiner of votes that are divided by each member's unit, ``(members, 1, 1)``, before."""

    combiner: Combiner
    units: np.ndarray

    @property
    def weights(self) -> np.ndarray:
        return self.combiner.weights

    def combine(self, votes: np.ndarray) -> np.ndarray:
        return self.combiner.combine(votes / self.units)
