"""Votes of texts, which have no mean: the text that agrees best with all, or the one that most members write."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from tutti.ensembling.methods.protocol import Method
from tutti.tasks.scorer import Scorer


@dataclass(frozen=True)
class Consensus:
    """Minimum Bayes risk (Kumar and Byrne 2004): of a row's texts the one with the highest mean score against those of
    all members, where these stand in for the label.

    Attributes:
        score: the task's metric, which is the utility.
        weighing: the method that weighs members; None for equal weights.
    """

    score: Scorer
    weighing: Method | None = None

    def fit(self, votes: np.ndarray, labels: np.ndarray) -> _Agreement:
        even = np.full(len(votes), 1 / len(votes))
        return _Agreement(self.score, even if self.weighing is None else self.weighing.fit(votes, labels).weights)


@dataclass(frozen=True)
class Majority:
    """The text that most members write (self-consistency, Wang et al. 2023, arXiv 2203.11171), apart from white space
    and case; of several such texts the one that ``Consensus`` prefers.
    """

    score: Scorer

    def fit(self, votes: np.ndarray, labels: np.ndarray) -> _Agreement:
        return _Agreement(self.score, np.full(len(votes), 1 / len(votes)), by_count=True)


@dataclass(frozen=True, eq=False)
class _Agreement:
    score: Scorer
    weights: np.ndarray
    by_count: bool = False
    _known: dict[tuple[str, str], float] = field(default_factory=dict)

    def combine(self, votes: np.ndarray) -> np.ndarray:
        chosen = np.empty(votes.shape[1], dtype=object)
        for row, texts in enumerate(votes.T):
            chosen[row] = self._best(texts.tolist())
        return chosen

    def _best(self, texts: list[str]) -> str:
        """One of a row's texts, the first of those that are equally good."""
        candidates = list(dict.fromkeys(texts))
        if self.by_count:
            counts = Counter(map(_plain, texts))
            most = max(counts.values())
            candidates = [text for text in candidates if counts[_plain(text)] == most]
        if len(candidates) == 1:
            return candidates[0]
        voices = [(text, weight) for text, weight in zip(texts, self.weights, strict=True) if weight]
        return max(candidates, key=lambda text: sum(weight * self._utility(other, text) for other, weight in voices))

    def _utility(self, label: str, written: str) -> float:
        if (label, written) not in self._known:
            pair = np.empty((2, 1), dtype=object)
            pair[:, 0] = label, written
            self._known[label, written] = self.score(pair[0], pair[1])
        return self._known[label, written]


def _plain(text: str) -> str:
    return " ".join(text.casefold().split())
