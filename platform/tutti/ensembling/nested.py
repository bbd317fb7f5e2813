"""Nested cross-validation: every choice is scored on rows that had no part in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from tutti.tasks.objective import weighted_mean
from tutti.tasks.scorer import Scorer

MIN_TEXTS = 20
"""Below this many rows of different texts no choice is made by their scores, which would be chance."""

_FOLDS = 5
MIN_TEXTS_NESTED = MIN_TEXTS * _FOLDS // (_FOLDS - 1)
"""Below this many of them there is no nested estimate: four fifths of them are ``MIN_TEXTS`` rows."""

_REPEATED_TEXTS = 2000  # foldings are repeated until about this many texts were held out in total
_MAX_REPEATS = 5
_RESAMPLES = 500
_EXTRA_WRONG = 2  # expected decisions per resample that are replaced by wrong ones
_EXTRA_DIFFERING = 2  # rows added to those that only one of two compared decisions has right
_WIDTH = 1.96  # half-width of a 95 % interval in standard errors


@dataclass(frozen=True)
class Estimate:
    """A nested estimate of a score, or a mean or difference of such estimates.

    Attributes:
        error: standard error over samples of the rows and over foldings.
        low: lower end of the 95 % interval, ``score - 1.96 * error``.
        high: upper end; of a score it may be above the best possible one.
    """

    score: float
    error: float
    low: float = field(init=False)
    high: float = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "low", self.score - _WIDTH * self.error)
        object.__setattr__(self, "high", self.score + _WIDTH * self.error)

    @classmethod
    def mean(
        cls, estimates: Sequence[Estimate], overlap: Sequence[Sequence[float]], weights: Sequence[float]
    ) -> Estimate:
        """The weighted mean of the tasks' estimates.

        Args:
            overlap: ``(tasks, tasks)``, as ``overlap_of`` returns it: the highest correlation that the errors of two
                tasks can have, which is assumed.
            weights: of the tasks, as in ``weighted_mean``.
        """
        errors = np.array([estimate.error for estimate in estimates]) * weights
        error = np.sqrt(errors @ np.asarray(overlap) @ errors) / sum(weights)
        return cls(weighted_mean([estimate.score for estimate in estimates], weights), float(error))

    def __str__(self) -> str:
        """``0.8123 ± 0.0140``, the 95 % interval."""
        return f"{self.score:.4f} ± {_WIDTH * self.error:.4f}"


Split = tuple[int, np.ndarray, np.ndarray]
"""The repeat's number, the training rows and the held-out rows."""


def splits(strata: np.ndarray, groups: np.ndarray, *, repeats: int, seed: int) -> Iterator[Split]:
    """Repeated stratified 5-fold splits, in which the rows of a group stay together.

    A group has the stratum of its first row. scikit-learn's StratifiedKFold takes no numbers, and warns of classes with
    fewer rows than folds.

    Args:
        strata: ``(rows,)`` classes or numbers, as of ``Kind.strata``.
        groups: ``(rows,)`` int64, as in ``Ballot``.
    """
    rng = np.random.default_rng(seed)
    _, first, groups = np.unique(groups, return_index=True, return_inverse=True)
    strata, count = strata[first], len(first)
    for repeat in range(repeats):
        order = np.lexsort((rng.random(count), strata))
        blocks = -(-count // _FOLDS)
        dealt = np.empty(count, dtype=np.int64)
        dealt[order] = rng.permuted(np.tile(np.arange(_FOLDS), (blocks, 1)), axis=1).ravel()[:count]
        fold = dealt[groups]
        for number in range(_FOLDS):
            yield repeat, np.flatnonzero(fold != number), np.flatnonzero(fold == number)


@dataclass(frozen=True, eq=False)
class Fold:
    """One fold of the rows of each task, and the voters that the other folds choose.

    Attributes:
        voters: keys of checkpoints.
        chosen_on: per task, indices of the rows that chose the voters.
        held_out: per task, indices of the rows to score on.
    """

    voters: tuple[str, ...]
    chosen_on: Mapping[str, np.ndarray]
    held_out: Mapping[str, np.ndarray]


def overlap_of(groups: Sequence[np.ndarray]) -> tuple[tuple[float, ...], ...]:
    """``(tasks, tasks)``: for two tasks of ``a`` and ``b`` texts of which ``c`` are the same, ``c / sqrt(a b)``.

    It is 1 for a task with itself and 0 for tasks without a text in common.

    Args:
        groups: by task ``(rows,)`` int64, equal for rows with the same texts in all tasks.
    """
    texts = [np.unique(of_task) for of_task in groups]
    return tuple(
        tuple(len(np.intersect1d(one, other)) / (len(one) * len(other)) ** 0.5 for other in texts) for one in texts
    )


def repeats_for(texts: int) -> int:
    """How many foldings to use: with fewer rows of different texts, scores vary more between foldings."""
    return int(np.clip(_REPEATED_TEXTS // max(texts, 1), 1, _MAX_REPEATS))


def on_label_scale(values: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """One regressor's values for all rows in float64, with the mean and standard deviation of their labels.

    Each fold has a regressor of its own. A correlation is blind to the scale of one, but not to the differences between
    those of several folds, which would count as errors.
    """
    centred = values.astype(np.float64) - values.mean(axis=0, dtype=np.float64)
    spread = centred.std(axis=0)
    spread = np.where(spread > 0, spread, 1.0)
    if not np.isnan(labels).any():
        return centred / spread * labels.std(axis=0) + labels.mean(axis=0)
    known = np.ma.masked_invalid(labels)  # of several columns, of which one without any label keeps no scale
    return centred / spread * known.std(axis=0).filled(1.0) + known.mean(axis=0).filled(0.0)


@dataclass(frozen=True, eq=False)
class Judged:
    """The score of decisions on held-out rows, and on bootstrap resamples of these rows.

    Attributes:
        resampled: ``(resamples,)`` float64. With the same rows and seed, an index means the same resample in every
            instance, so that two instances can be compared in pairs.
        one_row: how much the score changes where one row of other texts is wrong instead of right, the root mean square
            over rows; 0 where decisions are values.
        least: of errors. Of metrics of an order in each row, such as MAP@3, that of two further rows, which is as much
            as mistakes give to decisions: rows that are all right would give an interval of width 0.
    """

    score: float
    resampled: np.ndarray
    one_row: float
    least: float = 0.0

    @property
    def estimate(self) -> Estimate:
        return Estimate(self.score, max(float(self.resampled.std(ddof=1)), self.least))

    def over(self, other: Judged) -> Estimate:
        """The difference of the scores, with the error of paired resamples.

        Two classifications get the variance of two further rows that only one of them has right, as Agresti and Min
        (2005) add rows to a paired interval's: otherwise those that differ on no row would differ by 0 for certain.
        """
        error = float((self.resampled - other.resampled).std(ddof=1))
        further = _EXTRA_DIFFERING**0.5 * max(self.one_row, other.one_row)
        return Estimate(self.score - other.score, max(float(np.hypot(error, further)), self.least))


def judge(
    decisions: np.ndarray,
    labels: np.ndarray,
    groups: np.ndarray,
    *,
    score: Scorer,
    seed: int,
    resamples: int = _RESAMPLES,
) -> Judged:
    """Scores each repeat's decisions on all rows together, and on resamples of the rows.

    Groups of rows are drawn with replacement, at least one per class: a metric such as macro-F1 would otherwise average
    over fewer classes. Each resample gives about two groups mistakes, as Agresti and Coull (1998) add two wrong rows to
    an interval's: otherwise rows that are all right would give an interval of width 0.

    Args:
        decisions: ``(repeats, rows, ...)``, as ``score.judged`` returns them.
        labels: ``(rows,)`` or ``(rows, k)``, as of the kind.
        groups: ``(rows,)`` int64, as in ``Ballot``.
    """
    rng, kind = np.random.default_rng(seed), score.kind
    _, first, groups = np.unique(groups, return_index=True, return_inverse=True)
    count, of_group = len(first), kind.counted_strata(labels[first])
    if of_group is None:
        order, counts = np.arange(count), np.array([count])
    else:
        order, counts = np.argsort(of_group, kind="stable"), np.unique_counts(of_group).counts
    mistaken = of_group is not None and score.decides
    begins = np.cumsum(counts) - counts
    by_group, sizes = np.argsort(groups, kind="stable"), np.bincount(groups)
    starts = np.cumsum(sizes) - sizes
    resampled = np.empty(resamples)
    summed = [score.of_row(labels, of_repeat) for of_repeat in decisions] if score.of_row else None
    for number in range(resamples):
        shares = np.maximum(rng.multinomial(count, counts / count), 1)
        chosen = order[np.repeat(begins, shares) + rng.integers(np.repeat(counts, shares))]
        lengths = sizes[chosen]
        places = np.arange(lengths.sum()) + np.repeat(starts[chosen] - np.cumsum(lengths) + lengths, lengths)
        drawn = by_group[places]  # all rows of each chosen group
        if summed is not None and score.of_sums is not None and not mistaken:
            resampled[number] = score.of_sums(summed[number % len(decisions)][drawn].sum(axis=0))
            continue
        resample = decisions[number % len(decisions), drawn]
        if mistaken:
            wrong = np.repeat(rng.random(len(chosen)) < _EXTRA_WRONG / (count + 2 * _EXTRA_WRONG), lengths)
            resample = kind.with_mistakes(resample, labels, drawn, wrong, rng)
        resampled[number] = score(labels[drawn], resample)
    mean = float(np.mean([score(labels, of_repeat) for of_repeat in decisions]))
    rows = first[order[begins]].tolist() if mistaken else []
    one_row = _change_by_a_row(decisions[0], labels, rows, counts / count, score=score) * len(labels) / count
    of_order = not score.decides and ((score.scale_free and kind.exclusive) or kind.comparative)
    return Judged(mean, resampled, one_row, least=_EXTRA_WRONG**0.5 / count if of_order else 0.0)


def _change_by_a_row(
    decisions: np.ndarray, labels: np.ndarray, rows: Sequence[int], shares: np.ndarray, *, score: Scorer
) -> float:
    """The root mean square change of the score where one row is wrong instead of right, by a row of each stratum.

    The wrong decision is the commonest other one, as most are. It is 1 / rows of the accuracy, twice that of the
    correlation of Matthews with two classes, and more of a rare class than of others in macro-F1.

    Args:
        rows: ``(strata,)`` indices; empty where no decisions are wrong, which changes by 0.
        shares: ``(strata,)``, how often each of these strata occurs.
    """
    common = [rows[place] for place in np.argsort(-shares)[:2]] if rows else []
    changes = []
    for row in rows:
        right, wrong = decisions.copy(), decisions.copy()
        right[row], wrong[row] = score.kind.right_and_wrong(labels, row, common)
        changes.append(score(labels, right) - score(labels, wrong))
    return float(np.sqrt(shares @ np.square(changes))) if changes else 0.0
