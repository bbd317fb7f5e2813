"""What a way of combining votes is: fitted to labelled rows, it turns any rows' votes into one answer."""

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
    """A method that was fitted.

    Attributes:
        weights: ``(members,)`` float64, each member's share of what is said; they sum to 1.
    """

    @property
    def weights(self) -> np.ndarray: ...

    def combine(self, votes: np.ndarray) -> np.ndarray:
        """One answer for each row, of the members that the method was fitted to, in the same order.

        Args:
            votes: ``(members, rows, classes)`` float32 probabilities, or ``(members, rows)`` float32 values.

        Returns:
            ``(rows, classes)`` float32, each row at least 0 and summing to 1, or ``(rows,)`` float32 values.

        Raises:
            ValueError: where ``votes`` are of another number of members.
        """
        ...


class Method(Protocol):
    """One way to combine votes.

    Attributes:
        values: whether it combines values of a regression too.
    """

    values: ClassVar[bool]

    def fit(self, votes: np.ndarray, labels: np.ndarray) -> Combiner:
        """Learns from labelled rows what it has to learn.

        Args:
            votes: ``(members, rows, classes)`` float32 probabilities, or ``(members, rows)`` float32 values.
            labels: ``(rows,)`` class indices, or numbers.

        Raises:
            ValueError: where shapes disagree, a number is not finite, a label is no class, or values are given to a
                method that has no use for them.
        """
        ...


@dataclass(frozen=True, eq=False)
class Weighted:
    """The weighted mean of the votes: what every method comes to that only weighs."""

    weights: np.ndarray

    def combine(self, votes: np.ndarray) -> np.ndarray:
        return average(votes, self.weights)


def decided(said: np.ndarray) -> np.ndarray:
    """The likeliest class along the last axis of probabilities (of equals the first), ``(members, rows)`` int64.

    Values, which have the shape ``(members, rows)``, are what they are.
    """
    return said.argmax(axis=-1) if said.ndim == 3 else said


def check(votes: np.ndarray, labels: np.ndarray, *, values: bool) -> None:
    """Refuses what no method can be fitted to, with the errors that ``Method.fit`` names."""
    if votes.ndim not in (2, 3) or not votes.shape[0] or labels.shape != votes.shape[1:2]:
        got, rule = f"{votes.shape} and {labels.shape}", "have shapes (members, rows[, classes]) and (rows,)"
        raise ValueError(str(Fault("votes and labels", rule, got, "give one label for each row")))
    if votes.ndim == 2 and not values:
        rule, remedy = "have the shape (members, rows, classes) here", "choose a method that combines values"
        raise ValueError(str(Fault("votes", rule, f"values of the shape {votes.shape}", remedy)))
    if not (all(np.isfinite(vote).all() for vote in votes) and np.isfinite(labels).all()):  # one member at a time
        raise ValueError(str(Fault("votes and labels", "be finite", "NaN or infinity", "leave such members out")))
    if votes.ndim == 3 and len(labels) and not (labels.min() >= 0 and labels.max() < votes.shape[2]):
        got = f"{labels.min()} to {labels.max()}"
        raise ValueError(str(Fault("labels", f"be classes from 0 to {votes.shape[2] - 1}", got, "correct the labels")))


def check_members(votes: np.ndarray, members: int) -> None:
    """Refuses votes of another number of members than the method was fitted to."""
    if len(votes) != members:
        rule = f"be of the {members} members that the method was fitted to"
        raise ValueError(str(Fault("votes", rule, f"{len(votes)}", "give the same members in the same order")))
