"""The mean weighted by the members' own scores."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tutti.ensembling.methods.protocol import Weighted
from tutti.tasks.scorer import Scorer


@dataclass(frozen=True)
class ScoreWeighted:
    """The mean weighted by the members' scores on the fitted rows.

    A score that is not finite or not above 0 gets weight 0. If that applies to all members, as with the negative
    squared error, weights are equal.
    """

    score: Scorer

    def fit(self, votes: np.ndarray, labels: np.ndarray) -> Weighted:
        return Weighted(by_score(np.array([self.score.score(labels, vote) for vote in votes])))


def by_score(scores: np.ndarray) -> np.ndarray:
    """Weights ``(members,)`` float64 that sum to 1, in proportion to ``scores`` ``(members,)``."""
    scores = np.asarray(scores, dtype=np.float64)
    weights = np.where(np.isfinite(scores) & (scores > 0), scores, 0.0)
    if not weights.any():
        return np.full(len(scores), 1 / len(scores))
    return weights / weights.sum()
