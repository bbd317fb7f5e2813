"""Nested estimates: nothing is judged on rows that had a part in choosing it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from tutti.ensembling.methods.protocol import Score

LEAST = 20
"""Rows below which nothing is estimated: what so few say about a choice is chance."""

_FOLDS = 5
LEAST_JUDGED = LEAST * _FOLDS // (_FOLDS - 1)
"""Rows below which nothing is judged: with so many, each choice is made on ``LEAST`` rows."""

_REPEATED = 2000  # repeats are added until about so many rows were held out in all
_MOST = 5
_RESAMPLES = 500
_WRONG = 2  # of the decisions in a resample
_WIDTH = 1.96  # standard errors to each side of a 95 % interval


@dataclass(frozen=True)
class Estimate:
    """A score on rows that had no part in any choice, or a mean or difference of such scores.

    Attributes:
        error: its standard error: over samples of as many rows, and over the ways to make folds of them.
        low: the lower end of the 95 % interval, ``score - 1.96 * error``.
        high: the upper end; no score is above 1.
    """

    score: float
    error: float
    low: float = field(init=False)
    high: float = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "low", self.score - _WIDTH * self.error)
        object.__setattr__(self, "high", min(self.score + _WIDTH * self.error, 1.0))

    @classmethod
    def mean(cls, estimates: Sequence[Estimate]) -> Estimate:
        """The mean of estimates on different rows, such as those of several tasks.

        Of tasks with the same texts, which are hard or easy together, the interval is too narrow.
        """
        error = np.sqrt(sum(each.error**2 for each in estimates)) / len(estimates)
        return cls(float(np.mean([each.score for each in estimates])), float(error))

    def __str__(self) -> str:
        """``0.8123 ± 0.0140``, the 95 % interval."""
        return f"{self.score:.4f} ± {_WIDTH * self.error:.4f}"


def splits(labels: np.ndarray, *, repeats: int, seed: int) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """The number of the repeat, rows to choose on, and rows to judge on, five times for each repeat.

    Every row is judged on once in a repeat. Folds are alike in their labels, classes and numbers. (scikit-learn's
    stratified folds know no numbers, and complain of a class with fewer rows than folds.)
    """
    rng = np.random.default_rng(seed)
    for repeat in range(repeats):
        order = np.lexsort((rng.random(len(labels)), labels))
        blocks = -(-len(labels) // _FOLDS)
        fold = np.empty(len(labels), dtype=np.int64)
        fold[order] = rng.permuted(np.tile(np.arange(_FOLDS), (blocks, 1)), axis=1).ravel()[: len(labels)]
        for held in range(_FOLDS):
            yield repeat, np.flatnonzero(fold != held), np.flatnonzero(fold == held)


@dataclass(frozen=True, eq=False)
class Fold:
    """A fifth of the rows of each task, and who is chosen without them.

    Attributes:
        voters: keys.
        chosen_on: per task, indices of the rows that chose them.
        held: per task, those of the rows to judge on.
    """

    voters: tuple[str, ...]
    chosen_on: Mapping[str, np.ndarray]
    held: Mapping[str, np.ndarray]


def repeats_for(rows: int) -> int:
    """How often folds are made anew: the fewer rows, the more it matters which are together."""
    return int(np.clip(_REPEATED // max(rows, 1), 1, _MOST))


@dataclass(frozen=True, eq=False)
class Judged:
    """The score of decisions on rows that had no part in them, and of resamples of these rows.

    Attributes:
        resampled: ``(resamples,)`` float64. Of two that were judged on the same rows with the same seed, the same
            number belongs to the same rows, so that they can be compared in pairs.
    """

    score: float
    resampled: np.ndarray

    @property
    def estimate(self) -> Estimate:
        return Estimate(self.score, float(self.resampled.std(ddof=1)))

    def over(self, other: Judged) -> Estimate:
        """By how much it is better, with the interval of the difference."""
        return Estimate(self.score - other.score, float((self.resampled - other.resampled).std(ddof=1)))


def judge(decisions: np.ndarray, labels: np.ndarray, *, score: Score, seed: int) -> Judged:
    """Scores each repeat's decisions on all rows together, and resamples of the rows.

    Rows are drawn with replacement, and of each class at least one, so that no rare class is lost: a metric such as
    macro-F1 would be of fewer classes then. In each resample some two of the decided classes are taken as wrong, as
    Agresti and Coull (1998) add two wrong rows to those of an interval: rows of which all are right do not say that
    none ever is wrong.

    Args:
        decisions: ``(repeats, rows)`` class indices, or values.
        labels: ``(rows,)`` class indices, or numbers.
    """
    rng = np.random.default_rng(seed)
    rows = len(labels)
    order = np.argsort(labels, kind="stable")
    counts, classes = np.array([rows]), 0
    if np.issubdtype(labels.dtype, np.integer):
        counts, classes = np.unique_counts(labels).counts, max(int(labels.max()), 1) + 1
    groups = np.split(order, np.cumsum(counts)[:-1])
    resampled = np.empty(_RESAMPLES)
    for number in range(_RESAMPLES):
        sizes = np.maximum(rng.multinomial(rows, counts / rows), 1)
        drawn = np.concatenate([rng.choice(group, size) for group, size in zip(groups, sizes, strict=True)])
        decided = decisions[number % len(decisions), drawn]
        if classes:
            wrong = rng.random(len(drawn)) < _WRONG / (rows + 2 * _WRONG)
            another = (labels[drawn] + rng.integers(1, classes, len(drawn))) % classes
            decided = np.where(wrong, another, decided)
        resampled[number] = score(labels[drawn], decided)
    return Judged(float(np.mean([score(labels, one) for one in decisions])), resampled)
