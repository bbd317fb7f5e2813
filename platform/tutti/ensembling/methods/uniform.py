"""The plain mean, which fits nothing."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tutti.ensembling.methods.protocol import Weighted


@dataclass(frozen=True)
class Uniform:
    """The mean of probabilities or of values."""

    def fit(self, votes: np.ndarray, labels: np.ndarray) -> Weighted:
        return Weighted(np.full(len(votes), 1 / len(votes)))
