"""A vote by hands: the class that most members would say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tutti.ensembling.methods.protocol import Weighted, check, check_members

_TIE = 1e-3  # share of the mean probability in what is said: too little to outvote one of up to 900 members


@dataclass(frozen=True)
class HardVote:
    """The share of members whose likeliest class it is; where shares are equal, the mean probability decides.

    Values of a regression have no likeliest class: ``fit`` refuses them.
    """

    values: ClassVar[bool] = False

    def fit(self, votes: np.ndarray, labels: np.ndarray) -> _Hands:
        check(votes, labels, values=self.values)
        return _Hands(np.full(len(votes), 1 / len(votes)))


@dataclass(frozen=True, eq=False)
class _Hands:
    weights: np.ndarray

    def combine(self, votes: np.ndarray) -> np.ndarray:
        check_members(votes, len(self.weights))
        hands = np.zeros(votes.shape[1:], dtype=np.float32)
        rows = np.arange(votes.shape[1])
        for vote in votes:
            hands[rows, vote.argmax(axis=1)] += 1
        return (1 - _TIE) * hands / np.float32(len(votes)) + np.float32(_TIE) * Weighted(self.weights).combine(votes)
