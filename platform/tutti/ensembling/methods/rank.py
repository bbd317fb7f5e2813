"""The mean of the members' ranks, which ignores how confident each member is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tutti.ensembling.combine import average

_TIE = 1e-3  # weight of the mean probability as tie-breaker; with less, float32 would lose small differences


@dataclass(frozen=True)
class RankAverage:
    """The mean of ranks, for members with different confidence or scale.

    Classes: each member ranks a row's classes by probability (Borda count; equal ones share their mean rank). The mean
    ranks are normalized to sum to 1, and the mean probability breaks ties. The result is not a probability: with many
    classes it is at most ``2 / classes`` even if all members agree, and with two classes it is a majority vote.

    Values of a regression: each value is ranked among the member's values for the fitted rows, and the mean rank is
    mapped back to the label of that rank. Values outside their range get the lowest or the highest label.
    """

    values: ClassVar[bool] = True

    def fit(self, votes: np.ndarray, labels: np.ndarray) -> _Ranks | _ValueRanks:
        weights = np.full(len(votes), 1 / len(votes))
        if votes.ndim == 3 or not votes.shape[1]:
            return _Ranks(weights)
        return _ValueRanks(weights, np.sort(votes, axis=1), np.sort(labels).astype(np.float64))


@dataclass(frozen=True, eq=False)
class _Ranks:
    weights: np.ndarray

    def combine(self, votes: np.ndarray) -> np.ndarray:
        from scipy.stats import rankdata

        classes = votes.shape[2]
        total = np.zeros(votes.shape[1:])
        for vote in votes:
            total += rankdata(vote, axis=1) - 1  # ranks from 0
        row_sum = len(votes) * classes * (classes - 1) / 2
        ranks = total / row_sum if row_sum else total + 1 / len(votes)
        tie = min(_TIE, 0.25 / max(row_sum, 1))  # too small to change an order by ranks, which differ by half a rank
        return ((1 - tie) * ranks + tie * average(votes, self.weights)).astype(np.float32)


@dataclass(frozen=True, eq=False)
class _ValueRanks:
    """``fitted`` ``(members, fitted rows)`` values and ``labels`` ``(fitted rows,)``, each sorted ascending."""

    weights: np.ndarray
    fitted: np.ndarray
    labels: np.ndarray

    def combine(self, votes: np.ndarray) -> np.ndarray:
        total = np.zeros(votes.shape[1])
        for vote, fitted in zip(votes, self.fitted, strict=True):
            total += np.searchsorted(fitted, vote, side="left") + np.searchsorted(fitted, vote, side="right")
        ranks = total / (2 * len(votes)) - 0.5  # from 0; ties get the mean of their first and last rank
        return np.interp(ranks, np.arange(len(self.labels)), self.labels).astype(np.float32)
