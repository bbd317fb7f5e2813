"""The interface of combination methods: fitted on labelled rows, they combine the votes for any rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np

from tutti.ensembling.combine import average

Score = Callable[[np.ndarray, np.ndarray], float]
"""``(rows,)`` labels and ``(rows,)`` decisions (class indices, or values) to a number; higher is better."""


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
            votes: ``(members, rows, classes)`` float32 probabilities, or ``(members, rows)`` float32 values.

        Returns:
            ``(rows, classes)`` float32, each row at least 0 and summing to 1, or ``(rows,)`` float32 values.
        """
        ...


class Method(Protocol):
    """One way to combine votes.

    Attributes:
        values: whether it supports values of a regression too.
    """

    values: ClassVar[bool]

    def fit(self, votes: np.ndarray, labels: np.ndarray) -> Combiner:
        """Fits the method on labelled rows.

        Numbers are finite and labels are classes, as in all ``Predictions``.

        Args:
            votes: ``(members, rows, classes)`` float32 probabilities, or ``(members, rows)`` float32 values if
                ``values``; at least one member.
            labels: ``(rows,)`` class indices, or numbers.
        """
        ...


@dataclass(frozen=True, eq=False)
class Weighted:
    """The weighted mean of the votes, the combiner of every method that only fits weights."""

    weights: np.ndarray

    def combine(self, votes: np.ndarray) -> np.ndarray:
        return average(votes, self.weights)


def decisions_of(votes: np.ndarray) -> np.ndarray:
    """The members' most likely classes (ties go to the first), ``(members, rows)`` int64.

    Values, which have the shape ``(members, rows)``, are returned unchanged.
    """
    return votes.argmax(axis=-1) if votes.ndim == 3 else votes
