"""Majority vote on the members' most likely classes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tutti.ensembling.combine import average
from tutti.tasks.kinds.protocol import Kind

_TIE = 1e-3  # weight of the mean probability as tie-breaker: too small to outvote one of up to 900 members


@dataclass(frozen=True)
class HardVote:
    """The share of members that vote for each class or label; the mean probability breaks ties."""

    kind: Kind

    def fit(self, votes: np.ndarray, labels: np.ndarray) -> Majority:
        return Majority(self.kind, np.full(len(votes), 1 / len(votes)))


@dataclass(frozen=True, eq=False)
class Majority:
    """The shares of votes, with the mean of probabilities as tie-breaker."""

    kind: Kind
    weights: np.ndarray

    def combine(self, votes: np.ndarray) -> np.ndarray:
        first = self.kind.distributions(votes[0])
        counts, units = np.zeros(first.shape, dtype=np.float32), np.arange(len(first))
        for vote in votes:
            counts[units, self.kind.distributions(vote).argmax(axis=1)] += 1
        counts[np.isnan(first).any(axis=1)] = np.nan  # units that a row does not have
        shares = self.kind.from_distributions(counts, votes.shape[1])
        return (1 - _TIE) * shares / np.float32(len(votes)) + np.float32(_TIE) * average(votes, self.weights)
