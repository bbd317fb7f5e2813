"""No ensemble: the best single member."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tutti.ensembling.methods.protocol import Score, Weighted, check, decisions_of


@dataclass(frozen=True)
class Best:
    """Gives all weight to the member with the highest score on the fitted rows; ties go to the first."""

    score: Score
    values: ClassVar[bool] = True

    def fit(self, votes: np.ndarray, labels: np.ndarray) -> Weighted:
        check(votes, labels, values=self.values)
        scores = [self.score(labels, decisions) for decisions in decisions_of(votes)]
        best = int(np.nanargmax([*scores, -np.inf])) % len(votes)  # if all scores are NaN, the first member
        return Weighted(np.eye(len(votes))[best])
