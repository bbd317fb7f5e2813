"""Votes in proportion to how well each member does alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tutti.ensembling.methods.protocol import Score, Weighted, check, decided


@dataclass(frozen=True)
class ScoreWeighted:
    """The mean, weighed by the members' scores on the rows that it is fitted to.

    A score that is not above 0, or not finite, gets weight 0. Where that is so of all (a squared error is never above
    0), all weigh the same.
    """

    score: Score
    values: ClassVar[bool] = True

    def fit(self, votes: np.ndarray, labels: np.ndarray) -> Weighted:
        check(votes, labels, values=self.values)
        return Weighted(by_score(np.array([self.score(labels, one) for one in decided(votes)])))


def by_score(scores: np.ndarray) -> np.ndarray:
    """Weights ``(members,)`` float64 that sum to 1, in proportion to ``scores`` ``(members,)``."""
    scores = np.asarray(scores, dtype=np.float64)
    votes = np.where(np.isfinite(scores) & (scores > 0), scores, 0.0)
    if not votes.any():
        return np.full(len(scores), 1 / len(scores))
    votes = votes / votes.max()  # first by the largest, so that no sum overflows
    return votes / votes.sum()
