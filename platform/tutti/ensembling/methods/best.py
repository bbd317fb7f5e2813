"""No ensemble at all: the member that is best alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tutti.ensembling.methods.protocol import Score, Weighted, check, decided


@dataclass(frozen=True)
class Best:
    """The member with the highest score on the rows that it is fitted to has the whole vote; of equals the first."""

    score: Score
    values: ClassVar[bool] = True

    def fit(self, votes: np.ndarray, labels: np.ndarray) -> Weighted:
        check(votes, labels, values=self.values)
        scores = [self.score(labels, one) for one in decided(votes)]
        return Weighted(np.eye(len(votes))[int(np.nanargmax([*scores, -np.inf])) % len(votes)])
