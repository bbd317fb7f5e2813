"""The mean of the members' ranks, which ignores how confident each member is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tutti.ensembling.combine import average
from tutti.tasks.kinds.protocol import Kind

_TIE = 1e-3  # weight of the mean probability as tie-breaker; with less, float32 would lose small differences


@dataclass(frozen=True)
class RankAverage:
    """The mean of ranks, for members with different confidence or scale.

    Classes: each member ranks a row's classes, or a unit's tags, by probability (Borda count; equal ones share their
    mean rank). The mean ranks are normalized to sum to 1, and the mean probability breaks ties. The result is not a
    probability: with many classes it is at most ``2 / classes`` even if all members agree, and with two classes it is a
    majority vote.

    Other outputs: each one is ranked among the member's outputs for the fitted rows, and the mean rank is mapped back:
    values to the label of that rank, probabilities of labels to the mean probability of that rank. What lies outside
    the fitted range gets the lowest or the highest. Values of compared texts are ranked together, and mapped to the
    mean value of that rank.
    """

    kind: Kind

    def fit(self, votes: np.ndarray, labels: np.ndarray) -> Ranks | ColumnRanks:
        members, rows = votes.shape[:2]
        weights = np.full(members, 1 / members)
        if self.kind.exclusive or self.kind.sequential or not rows:
            return Ranks(weights)
        joined, labelled = self.kind.comparative, not (self.kind.probabilistic or self.kind.comparative)
        by_column = np.sort(votes.reshape(members, -1, 1) if joined else votes.reshape(members, rows, -1), axis=1)
        of_ranks = by_column.mean(axis=0) if not labelled else np.sort(labels.reshape(rows, -1), axis=0)
        known = [column[~np.isnan(column)] for column in of_ranks.astype(np.float64).T]
        return ColumnRanks(weights, by_column, known)


@dataclass(frozen=True, eq=False)
class Ranks:
    """The mean rank of each alternative among a row's."""

    weights: np.ndarray

    def combine(self, votes: np.ndarray) -> np.ndarray:
        classes = votes.shape[-1]
        total = np.zeros(votes.shape[1:])
        for vote in votes:
            total += _ranks(vote)
        row_sum = len(votes) * classes * (classes - 1) / 2
        ranks = total / row_sum if row_sum else total + 1 / len(votes)
        tie = min(_TIE, 0.25 / max(row_sum, 1))  # too small to change an order by ranks, which differ by half a rank
        return ((1 - tie) * ranks + tie * average(votes, self.weights)).astype(np.float32)


def _ranks(vote: np.ndarray) -> np.ndarray:
    """Ranks from 0 along the last axis, equal values with their mean; NaN for rows of NaN."""
    ranks = np.empty(vote.shape)
    for place in range(vote.shape[-1]):
        own = vote[..., place, None]
        ranks[..., place] = (vote < own).sum(axis=-1) + ((vote == own).sum(axis=-1) - 1) / 2
    return np.where(np.isnan(vote), np.nan, ranks)


@dataclass(frozen=True, eq=False)
class ColumnRanks:
    """``fitted`` ``(members, fitted rows, columns)`` outputs and, by column, what ranks stand for, sorted ascending."""

    weights: np.ndarray
    fitted: np.ndarray
    of_ranks: Sequence[np.ndarray]

    def combine(self, votes: np.ndarray) -> np.ndarray:
        by_column = votes.reshape(len(votes), -1, self.fitted.shape[2])
        combined = np.empty(by_column.shape[1:], dtype=np.float32)
        for column, known in enumerate(self.of_ranks):
            total = np.zeros(by_column.shape[1])
            for vote, fitted in zip(by_column[..., column], self.fitted[..., column], strict=True):
                total += np.searchsorted(fitted, vote, side="left") + np.searchsorted(fitted, vote, side="right")
            if not len(known):  # no fitted row says what a rank stands for
                combined[:, column] = by_column[..., column].mean(axis=0)
                continue
            ranks = total / (2 * len(votes)) - 0.5  # from 0; ties get the mean of their first and last rank
            places = np.arange(len(known)) * ((self.fitted.shape[1] - 1) / max(len(known) - 1, 1))
            combined[:, column] = np.interp(ranks, places, known)
        return np.where(np.isnan(votes[0]), np.nan, combined.reshape(votes.shape[1:])).astype(np.float32)
