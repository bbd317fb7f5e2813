"""The mean of ranks: how sure a member is does not count, only what it puts before what."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tutti.ensembling.methods.protocol import Weighted, check, check_members

_TIE = 1e-5  # share of the mean probability in what is said: too little to move what ranks put apart


@dataclass(frozen=True)
class RankAverage:
    """Each member ranks, and the mean rank decides. It helps where members are differently sure, or scaled.

    A member ranks the classes of a row by their probability (Borda's count; equal ones share their mean rank), and the
    mean ranks are divided by their sum; where they are equal, the mean probability decides. They are no probabilities:
    of many classes even a row that all members agree on is said with no more than ``2 / classes``, and of two classes
    this is a vote by hands.

    Values of a regression have no ranks within a row: each is ranked among the member's values of the rows that were
    fitted, and the mean rank is read back as a label of the same rank. What lies beyond all these rows gets the first
    or the last label.
    """

    values: ClassVar[bool] = True

    def fit(self, votes: np.ndarray, labels: np.ndarray) -> _Ranks | _ValueRanks:
        check(votes, labels, values=self.values)
        weights = np.full(len(votes), 1 / len(votes))
        if votes.ndim == 3 or not votes.shape[1]:
            return _Ranks(weights)
        return _ValueRanks(weights, np.sort(votes, axis=1), np.sort(labels).astype(np.float64))


@dataclass(frozen=True, eq=False)
class _Ranks:
    weights: np.ndarray

    def combine(self, votes: np.ndarray) -> np.ndarray:
        from scipy.stats import rankdata

        check_members(votes, len(self.weights))
        classes = votes.shape[2]
        total = np.zeros(votes.shape[1:])
        for vote in votes:
            total += rankdata(vote, axis=1) - 1  # the lowest counts 0
        most = len(votes) * classes * (classes - 1) / 2
        ranks = total / most if most else total + 1 / len(votes)
        return ((1 - _TIE) * ranks + _TIE * Weighted(self.weights).combine(votes)).astype(np.float32)


@dataclass(frozen=True, eq=False)
class _ValueRanks:
    """``known`` ``(members, fitted rows)`` and ``labels`` ``(fitted rows,)``, each in rising order."""

    weights: np.ndarray
    known: np.ndarray
    labels: np.ndarray

    def combine(self, votes: np.ndarray) -> np.ndarray:
        check_members(votes, len(self.weights))
        total = np.zeros(votes.shape[1])
        for vote, known in zip(votes, self.known, strict=True):
            total += np.searchsorted(known, vote, side="left") + np.searchsorted(known, vote, side="right")
        places = total / (2 * len(votes)) - 0.5  # the mean of first and last place, counted from 0
        return np.interp(places, np.arange(len(self.labels)), self.labels).astype(np.float32)
