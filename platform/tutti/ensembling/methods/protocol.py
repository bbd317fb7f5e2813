"""The interface of combination methods: fitted on labelled rows, they combine the votes for any rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np

from tutti.ensembling.combine import average
from tutti.errors import Fault

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

        Raises:
            ValueError: if the number of members differs.
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

        Args:
            votes: ``(members, rows, classes)`` float32 probabilities, or ``(members, rows)`` float32 values.
            labels: ``(rows,)`` class indices, or numbers.

        Raises:
            ValueError: if shapes disagree, a number is not finite, a label is not a class, or the method does not
                support values.
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


def check(votes: np.ndarray, labels: np.ndarray, *, values: bool) -> None:
    """Validates the input of ``Method.fit``, with the errors documented there."""
    if votes.ndim not in (2, 3) or not votes.shape[0] or labels.shape != votes.shape[1:2]:
        got, rule = f"{votes.shape} and {labels.shape}", "have shapes (members, rows[, classes]) and (rows,)"
        raise ValueError(str(Fault("votes and labels", rule, got, "give one label for each row")))
    if votes.ndim == 2 and not values:
        rule, remedy = "have the shape (members, rows, classes) here", "choose a method that combines values"
        raise ValueError(str(Fault("votes", rule, f"values of the shape {votes.shape}", remedy)))
    if not (
        all(np.isfinite(vote).all() for vote in votes) and np.isfinite(labels).all()
    ):  # one member at a time, to limit memory
        raise ValueError(str(Fault("votes and labels", "be finite", "NaN or infinity", "leave such members out")))
    if votes.ndim == 3 and len(labels) and not (labels.min() >= 0 and labels.max() < votes.shape[2]):
        got = f"{labels.min()} to {labels.max()}"
        raise ValueError(str(Fault("labels", f"be classes from 0 to {votes.shape[2] - 1}", got, "correct the labels")))


def check_members(votes: np.ndarray, members: int) -> None:
    """Raises ValueError if the number of members differs from that of the fit."""
    if len(votes) != members:
        rule = f"be of the {members} members that the method was fitted to"
        raise ValueError(str(Fault("votes", rule, f"{len(votes)}", "give the same members in the same order")))
