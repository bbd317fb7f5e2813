"""Majority vote on the members' most likely classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tutti.ensembling.combine import average

_TIE = 1e-3  # weight of the mean probability as tie-breaker: too small to outvote one of up to 900 members


@dataclass(frozen=True)
class HardVote:
    """The share of members that vote for each class; the mean probability breaks ties."""

    values: ClassVar[bool] = False

    def fit(self, votes: np.ndarray, labels: np.ndarray) -> _Majority:
        return _Majority(np.full(len(votes), 1 / len(votes)))


@dataclass(frozen=True, eq=False)
class _Majority:
    weights: np.ndarray

    def combine(self, votes: np.ndarray) -> np.ndarray:
        counts = np.zeros(votes.shape[1:], dtype=np.float32)
        rows = np.arange(votes.shape[1])
        for vote in votes:
            counts[rows, vote.argmax(axis=1)] += 1
        return (1 - _TIE) * counts / np.float32(len(votes)) + np.float32(_TIE) * average(votes, self.weights)
