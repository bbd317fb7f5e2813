"""The whole way from a bank's votes to decisions, as one estimator that can be fitted, and so scored, on any rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import groupby
from operator import itemgetter

import numpy as np

from tutti.ensembling.calibrate import fit_temperature, tempered
from tutti.ensembling.decide import decide, tune_offsets
from tutti.ensembling.methods.protocol import Combiner, Method, Score, decisions_of
from tutti.ensembling.methods.registry import METHODS
from tutti.ensembling.nested import MIN_TEXTS, Judged, Split, judge, on_label_scale, repeats_for, splits
from tutti.ensembling.pseudo import opinion
from tutti.ensembling.select import Selection

MIN_TEXTS_GREEDY = 300
"""Below this many rows of different texts ``auto`` does not try greedy selection, the method that overfits most."""

# The more methods compete, the more often chance decides. Those that almost equal the mean of probabilities (score) or
# lose to it (rank, hard) stay out: see benchmarks/auto_method.py. A correlation may gain from the mean of ranks.
_AUTO_CLASSES = ("stacking", "uniform", "greedy")
_AUTO_VALUES = ("uniform", "rank", "greedy", "stacking")
_INNER_REPEATS = 3  # foldings at most; in one alone, the option that wins often does so by chance
_INNER_RESAMPLES = 100  # of the rows, for a standard error


@dataclass(frozen=True, eq=False)
class Ballot:
    """The votes of all candidates on labelled rows.

    Attributes:
        votes: ``(candidates, rows, classes)`` float32 probabilities, or ``(candidates, rows)`` float32 values.
        labels: ``(rows,)`` int64 class indices, or numbers.
        score: higher is better.
        groups: ``(rows,)`` int64, equal for rows with the same texts: their votes are alike, so they stay together
            where rows are split or drawn.
        correlation: whether the score does not depend on the scale of the values.
    """

    votes: np.ndarray
    labels: np.ndarray
    score: Score
    groups: np.ndarray
    correlation: bool = False

    @cached_property
    def texts(self) -> int:
        """How many different texts the rows have."""
        return len(np.unique(self.groups))

    @cached_property
    def decisions(self) -> np.ndarray:
        """``(candidates, rows)``, each candidate's own classes or values."""
        return decisions_of(self.votes)

    @cached_property
    def scores(self) -> np.ndarray:
        """``(candidates,)`` float64, each candidate's own score on all rows."""
        return self.scores_on(np.arange(len(self.labels)))

    def judge(self, decisions: np.ndarray) -> Judged:
        """The score of ``(repeats, rows)`` decisions, and of resamples that are the same in every call."""
        return judge(decisions, self.labels, self.groups, score=self.score, seed=0)

    def scores_on(self, rows: np.ndarray) -> np.ndarray:
        """``(candidates,)`` float64, each candidate's own score on the rows with ``(chosen,)`` indices."""
        return np.array([self.score(self.labels[rows], decisions[rows]) for decisions in self.decisions])


@dataclass(frozen=True, eq=False)
class Ensemble:
    """A fitted procedure.

    Attributes:
        voters: ``(voters,)`` indices of the candidates that vote, best first.
        method: name of the method.
        offsets: ``(classes,)``, added to the log-probabilities before the argmax, or none.
        temperature: of the combined probabilities; 1 for values.
    """

    voters: np.ndarray
    method: str
    combiner: Combiner
    offsets: np.ndarray | None
    temperature: float

    def combine(self, votes: np.ndarray) -> np.ndarray:
        """``(rows, classes)`` probabilities before temperature scaling, or ``(rows,)`` values, from voters' votes."""
        return self.combiner.combine(votes)

    def decide(self, combined: np.ndarray) -> np.ndarray:
        """``(rows,)`` class indices of combined probabilities; values are returned unchanged."""
        return combined if combined.ndim == 1 else decide(combined, self.offsets)

    def calibrated(self, combined: np.ndarray) -> np.ndarray:
        """Combined probabilities at the fitted temperature, as ``tempered`` returns them."""
        return tempered(combined, self.temperature)


@dataclass(frozen=True, eq=False)
class Procedure:
    """All choices that are made on labelled rows: voters, method, temperature and offsets.

    Attributes:
        standing: ``(candidates,)`` scores on all rows by which candidates are ranked; NaN for those that may not vote.
        share: weight of a candidate's score on these rows in its standing: 1 if this score is the standing, 1/3 if the
            standing is the mean of three tasks. On fewer rows the standing changes by this share of the score's change.
        others: returns the ballots of the other tasks in the mean, with the same candidates and with ``groups`` that
            are equal for the same texts in all tasks. A text that is held out in one task has no part in the standing
            by another.
        methods: names, the default first. Another is used if it scores better in inner cross-validation by more than
            ``margin`` standard errors.
        offsets: whether to use per-class offsets, unless the decisions without them are better by as much.
        counted: the one class whose F1 is the score, for which offsets are tuned; None for macro-F1.
        margin: by default such that the 95 % interval of the gain lies above 0; 0 for the best score.
    """

    selection: Selection
    standing: np.ndarray
    share: float
    methods: Sequence[str]
    offsets: bool = False
    counted: int | None = None
    margin: float = 1.96
    others: Callable[[], Sequence[Ballot]] = tuple

    def fit(self, ballot: Ballot, rows: np.ndarray | None = None, *, seed: int = 0) -> Ensemble:
        """Makes all choices on the rows with ``(chosen,)`` indices, by default all. At least one candidate may vote."""
        rows = np.arange(len(ballot.labels)) if rows is None else rows
        voters = self.selection.choose(self._standing_on(ballot, rows), ballot.decisions[:, rows])
        votes, labels, groups = ballot.votes[voters[:, None], rows], ballot.labels[rows], ballot.groups[rows]
        method, with_offsets, combined = self._best_option(votes, labels, groups, ballot.score, seed)
        rule = METHODS[method](ballot.score)
        offsets, temperature = None, 1.0
        if votes.ndim == 3 and len(np.unique(groups)) >= MIN_TEXTS:
            if combined is None:
                combined = _cross_fitted(rule, votes, labels, list(splits(labels, groups, repeats=1, seed=seed)))
            first = np.unique(groups, return_index=True)[1]  # copies of a text are no further evidence
            if with_offsets and (tuned := tune_offsets(combined[first], labels[first], counted=self.counted)).any():
                offsets = tuned
            temperature = fit_temperature(combined[first], labels[first])
        return Ensemble(voters, method, rule.fit(votes, labels), offsets, temperature)

    def _standing_on(self, ballot: Ballot, rows: np.ndarray) -> np.ndarray:
        """The standing without the held-out rows, and without the rows of other tasks that have their texts."""
        change = ballot.scores_on(rows) - ballot.scores
        held_out = np.setdiff1d(ballot.groups, ballot.groups[rows])
        for other in self.others() if len(held_out) else ():
            kept = ~np.isin(other.groups, held_out)
            if kept.any() and not kept.all():
                change += other.scores_on(np.flatnonzero(kept)) - other.scores
        return self.standing + self.share * change

    def _best_option(
        self, votes: np.ndarray, labels: np.ndarray, groups: np.ndarray, score: Score, seed: int
    ) -> tuple[str, bool, np.ndarray | None]:
        """The method and whether to use offsets: the pair with the best cross-validated score.

        With them, the votes that ``_cross_fitted`` combined by this method in the first folding; none without a choice.

        The first method, with offsets if they may be used, is used unless that score is better by more than ``margin``
        standard errors, like the rule of one standard error for pruning trees (Breiman et al. 1984): the best of
        several is often so by chance.
        """
        offset_options = (True, False) if self.offsets and votes.ndim == 3 else (False,)
        options = [(method, offsets) for offsets in offset_options for method in self.methods]
        first = np.unique(groups, return_index=True)[1]
        texts = len(first)
        if len(options) == 1 or texts < MIN_TEXTS:
            return self.methods[0], False, None
        repeats = min(_INNER_REPEATS, repeats_for(texts))
        shape = (repeats, len(options), len(labels))
        decisions = np.empty(shape, dtype=np.int64 if votes.ndim == 3 else np.float32)
        best, in_first_folding = 0, []
        for repeat, each in groupby(splits(labels, groups, repeats=repeats, seed=seed), key=itemgetter(0)):
            folds = list(each)
            for index, method in enumerate(self.methods):
                combined = _cross_fitted(METHODS[method](score), votes, labels, folds)
                if repeat == 0:
                    in_first_folding.append(combined)
                decisions[repeat, index - len(self.methods)] = combined if combined.ndim == 1 else decide(combined)
                if True in offset_options:
                    for _, train, held_out in folds:
                        known = np.intersect1d(train, first)
                        offsets = tune_offsets(combined[known], labels[known], counted=self.counted)
                        decisions[repeat, index, held_out] = decide(combined[held_out], offsets)
            best = _clearly_best(decisions[: repeat + 1], labels, groups, score, self.margin, seed)
            if best == 0:  # most often so, which saves the other foldings
                break
        return *options[best], in_first_folding[best % len(self.methods)]


def _cross_fitted(method: Method, votes: np.ndarray, labels: np.ndarray, folds: Sequence[Split]) -> np.ndarray:
    """The votes of each fold combined by the method fitted on the other folds, like those of new rows.

    On the rows that it was fitted on a combination looks surer and better than it is.
    """
    combined = np.empty(votes.shape[1:], dtype=np.float32)
    for _, train, held_out in folds:
        combined[held_out] = method.fit(votes[:, train], labels[train]).combine(votes[:, held_out])
    return combined


def _clearly_best(
    decisions: np.ndarray, labels: np.ndarray, groups: np.ndarray, score: Score, margin: float, seed: int
) -> int:
    """The best option by its mean score of those that exceed the first one's by ``margin`` standard errors, else 0.

    Args:
        decisions: ``(repeats, options, rows)``.
    """
    scores = [[score(labels, of_option) for of_option in of_repeat] for of_repeat in decisions]
    means = np.mean(scores, axis=0)
    better = [int(option) for option in np.argsort(-means, kind="stable") if means[option] > means[0]]
    if not better:
        return 0
    judged = partial(judge, labels=labels, groups=groups, score=score, seed=seed, resamples=_INNER_RESAMPLES)
    default = judged(decisions[:, 0])
    for option in better:
        gain = judged(decisions[:, option]).over(default)
        if gain.score > margin * gain.error:
            return option
    return 0


@dataclass(frozen=True, eq=False)
class OutOfFold:
    """Predictions of a procedure for rows that it was not fitted on.

    Attributes:
        decisions: ``(repeats, rows)`` class indices, or float32 values.
        scored: the same for ``Ballot.judge``; where the score is a correlation, float64 values on the labels' scale.
        probabilities: ``(rows, classes)`` float32 of the first repeat, or none for values.
        calibrated: the same at each fold's temperature, float64.
        agreement: ``(rows,)`` float32, the share of the fold's voters whose most likely class is the ensemble's.
    """

    decisions: np.ndarray
    scored: np.ndarray
    probabilities: np.ndarray | None
    calibrated: np.ndarray | None
    agreement: np.ndarray | None


def out_of_fold(procedure: Procedure, ballot: Ballot) -> OutOfFold:
    """Predicts each fold by the procedure fitted on the other folds."""
    rows, classes = len(ballot.labels), ballot.votes.shape[2:]
    repeats = repeats_for(ballot.texts)
    decisions = np.empty((repeats, rows), dtype=np.int64 if classes else np.float32)
    scored = np.empty((repeats, rows), dtype=np.float64) if ballot.correlation else decisions
    probabilities = np.empty((rows, *classes), dtype=np.float32)
    calibrated = np.empty((rows, *classes), dtype=np.float64)
    agreement = np.empty(rows, dtype=np.float32)
    folds = splits(ballot.labels, ballot.groups, repeats=repeats, seed=0)
    for number, (repeat, train, held_out) in enumerate(folds, start=1):
        ensemble = procedure.fit(ballot, train, seed=number)
        if ballot.correlation:
            values = ensemble.combine(ballot.votes[ensemble.voters])
            decisions[repeat, held_out] = values[held_out]
            scored[repeat, held_out] = on_label_scale(values, ballot.labels)[held_out]
            continue
        votes = ballot.votes[ensemble.voters[:, None], held_out]
        combined = ensemble.combine(votes)
        decisions[repeat, held_out] = ensemble.decide(combined)
        if classes and repeat == 0:
            probabilities[held_out], calibrated[held_out] = combined, ensemble.calibrated(combined)
            agreement[held_out] = opinion(combined, votes[ensemble.combiner.weights != 0]).agreement
    if not classes:
        return OutOfFold(decisions, scored, None, None, None)
    return OutOfFold(decisions, scored, probabilities, calibrated, agreement)


def auto_methods(*, texts: int, values: bool) -> tuple[str, ...]:
    """The methods that ``auto`` compares, its default first: the mean alone below ``MIN_TEXTS`` rows of different
    texts, and no greedy selection below ``MIN_TEXTS_GREEDY``.
    """
    if texts < MIN_TEXTS:
        return ("uniform",)
    return tuple(
        name for name in (_AUTO_VALUES if values else _AUTO_CLASSES) if name != "greedy" or texts >= MIN_TEXTS_GREEDY
    )
