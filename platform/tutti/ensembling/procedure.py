"""The whole way from a bank's votes to decisions, as one estimator that can be fitted, and so scored, on any rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import groupby
from operator import itemgetter

import numpy as np

from tutti.ensembling.calibrate import fit_temperature, known_units
from tutti.ensembling.fitted import Fitted, combined_by
from tutti.ensembling.methods.protocol import Method
from tutti.ensembling.methods.registry import compared, method_of
from tutti.ensembling.nested import MIN_TEXTS, Judged, Split, judge, on_label_scale, repeats_for, splits
from tutti.ensembling.pseudo import opinion
from tutti.ensembling.select import Selection
from tutti.tasks.kinds.protocol import Kind, Tuner
from tutti.tasks.scorer import Scorer

_INNER_REPEATS = 3  # foldings at most; in one alone, the option that wins often does so by chance
_INNER_RESAMPLES = 100  # of the rows, for a standard error


@dataclass(frozen=True, eq=False)
class Ballot:
    """The votes of all candidates on labelled rows.

    Attributes:
        votes: ``(candidates, rows, ...)`` float32 outputs.
        labels: ``(rows,)`` or ``(rows, k)``, as of the kind.
        score: higher is better.
        groups: ``(rows,)`` int64, equal for rows with the same texts, or of one group: they stay together where rows
            are split or drawn.
        weight: of its task in a standing by several tasks.
        texts_of: ``(rows,)`` int64, equal for rows with equal texts, whose votes are alike; by default ``groups``.
    """

    votes: np.ndarray
    labels: np.ndarray
    score: Scorer
    groups: np.ndarray
    weight: float = 1.0
    texts_of: np.ndarray | None = None

    @cached_property
    def texts(self) -> int:
        """How many sets of rows there are that can be split or drawn apart."""
        return len(np.unique(self.groups))

    @cached_property
    def decisions(self) -> np.ndarray:
        """``(candidates, rows, ...)``, each candidate's own, as it decides alone."""
        return self.decided_alone(self.votes, np.arange(len(self.votes)))

    @cached_property
    def _decision_alone(self) -> Sequence[np.ndarray | None]:
        return [self.score.alone(self.labels, vote) for vote in self.votes]

    def decided_alone(self, votes: np.ndarray, candidates: np.ndarray) -> np.ndarray:
        """``(chosen, rows, ...)``, what the candidates with ``(chosen,)`` indices decide alone by these votes."""
        decide = self.score.kind.decide
        if self.score.tuner is None:
            return decide(votes)
        return np.stack([decide(vote, self._decision_alone[one]) for vote, one in zip(votes, candidates, strict=True)])

    @cached_property
    def judged(self) -> np.ndarray:
        """``(candidates, rows, ...)``, what is scored of each candidate."""
        return self.decisions if self.score.decides else self.votes

    @cached_property
    def scores(self) -> np.ndarray:
        """``(candidates,)`` float64, each candidate's own score on all rows."""
        return self.scores_on(np.arange(len(self.labels)))

    def judge(self, decisions: np.ndarray) -> Judged:
        """The score of ``(repeats, rows, ...)`` judged outputs, and of resamples that are the same in every call."""
        return judge(decisions, self.labels, self.groups, score=self.score, seed=0)

    def scores_on(self, rows: np.ndarray) -> np.ndarray:
        """``(candidates,)`` float64, each candidate's own score on the rows with ``(chosen,)`` indices."""
        if self.score.tuner:  # on these rows, of which others have no part in it
            return np.array([self.score.score(self.labels[rows], vote[rows]) for vote in self.votes])
        return np.array([self.score(self.labels[rows], judged[rows]) for judged in self.judged])

    def first_of_texts(self, rows: np.ndarray) -> np.ndarray:
        """``(texts,)`` places in ``rows`` of the first one of each text: copies are no further evidence."""
        texts = self.groups if self.texts_of is None else self.texts_of
        return np.unique(texts[rows], return_index=True)[1]


@dataclass(frozen=True, eq=False)
class Ensemble(Fitted):
    """A fitted procedure.

    Attributes:
        voters: ``(voters,)`` indices of the candidates that vote, best first.
        method: name of the method.
        score: whose kind decides.
    """

    voters: np.ndarray
    method: str
    score: Scorer

    def label(self, combined: np.ndarray) -> np.ndarray:
        """Decisions as pseudo-labels have them: the likeliest class whatever its offset, labels at their thresholds."""
        return self.kind.decide(combined, self.decision if self.score.tuner else None)

    def judged(self, combined: np.ndarray) -> np.ndarray:
        """What is scored of combined outputs: decisions, or the outputs at the temperature.

        Independent labels and two classes keep their order at any temperature. Where that alone is scored, outputs are
        as they are: the temperatures of several folds would shift rows against each other, which counts as errors.
        """
        if self.score.decides:
            return self.decide(combined)
        ordered = self.score.scale_free and (not self.kind.exclusive or combined.shape[-1] == 2)
        return combined if ordered else self.calibrated(combined)


@dataclass(frozen=True, eq=False)
class Procedure:
    """All choices that are made on labelled rows: voters, method, temperature and parameters of decisions.

    Attributes:
        standing: ``(candidates,)`` scores on all rows by which candidates are ranked; NaN for those that may not vote.
        share: of a change of the candidate's score on these rows in its standing, times ``weight``: 1 if this score is
            the standing, 1/3 if the standing is the mean of three tasks. On fewer rows the standing changes so much.
        others: returns the ballots of the other tasks in the mean, with the same candidates and with ``groups`` that
            are equal for the same texts in all tasks. A text that is held out in one task has no part in the standing
            by another.
        weight: of the task of these rows, where the standing weighs its tasks; ``share`` is then 1 by all weights.
        methods: names, the default first. Another is used if it scores better in inner cross-validation by more than
            ``margin`` standard errors.
        tune: finds parameters of decisions, used unless the decisions without them are better by as much; or none.
        margin: by default such that the 95 % interval of the gain lies above 0; 0 for the best score.
    """

    selection: Selection
    standing: np.ndarray
    share: float
    methods: Sequence[str]
    tune: Tuner | None = None
    margin: float = 1.96
    others: Callable[[], Sequence[Ballot]] = tuple
    weight: float = 1.0

    def fit(self, ballot: Ballot, rows: np.ndarray | None = None, *, seed: int = 0) -> Ensemble:
        """Makes all choices on the rows with ``(chosen,)`` indices, by default all. At least one candidate may vote."""
        rows = np.arange(len(ballot.labels)) if rows is None else rows
        kind = ballot.score.kind
        voters = self.selection.choose(self._standing_on(ballot, rows), ballot.decisions[:, rows], kind)
        votes, labels, groups = ballot.votes[voters[:, None], rows], ballot.labels[rows], ballot.groups[rows]
        first = ballot.first_of_texts(rows)
        method, tunes, combined = self._best_option(votes, labels, groups, first, ballot.score, seed)
        rule = method_of(method, ballot.score)
        decision, temperature = None, 1.0
        if (kind.probabilistic or tunes) and len(np.unique(groups)) >= MIN_TEXTS:
            if combined is None:
                folds = list(splits(kind.strata(labels), groups, repeats=1, seed=seed))
                combined = _cross_fitted(rule, votes, labels, folds, kind)
            if tunes and self.tune is not None:
                decision = self.tune(combined[first], labels[first])
            if kind.probabilistic:
                temperature = fit_temperature(*known_units(kind, combined[first], labels[first]), own=kind.exchangeable)
        combiner = rule.fit(votes, labels)
        return Ensemble(kind, combiner, decision, temperature, voters, method, ballot.score)

    def _standing_on(self, ballot: Ballot, rows: np.ndarray) -> np.ndarray:
        """The standing without the held-out rows, and without the rows of other tasks that have their texts."""
        change = self.weight * (ballot.scores_on(rows) - ballot.scores)
        held_out = np.setdiff1d(ballot.groups, ballot.groups[rows])
        for other in self.others() if len(held_out) else ():
            kept = ~np.isin(other.groups, held_out)
            if kept.any() and not kept.all():
                change += other.weight * (other.scores_on(np.flatnonzero(kept)) - other.scores)
        return self.standing + self.share * change

    def _best_option(
        self, votes: np.ndarray, labels: np.ndarray, groups: np.ndarray, first: np.ndarray, score: Scorer, seed: int
    ) -> tuple[str, bool, np.ndarray | None]:
        """The method and whether to tune decisions: the pair with the best cross-validated score.

        With them, the votes that ``_cross_fitted`` combined by this method in the first folding; none without a choice.

        The first method, with tuned decisions if possible, is used unless that score is better by more than ``margin``
        standard errors, like the rule of one standard error for pruning trees (Breiman et al. 1984): the best of
        several is often so by chance.
        """
        options = [(method, tunes) for tunes in ((True, False) if self.tune else (False,)) for method in self.methods]
        texts = len(np.unique(groups))
        if len(options) == 1 or texts < MIN_TEXTS:
            return self.methods[0], False, None
        repeats = min(_INNER_REPEATS, repeats_for(texts))
        example = score.judged(votes[0])
        judged = np.empty((repeats, len(options), *example.shape), dtype=example.dtype)
        best, in_first_folding = 0, []
        strata = score.kind.strata(labels)
        for repeat, each in groupby(splits(strata, groups, repeats=repeats, seed=seed), key=itemgetter(0)):
            folds = list(each)
            for index, method in enumerate(self.methods):
                combined = _cross_fitted(method_of(method, score), votes, labels, folds, score.kind)
                if repeat == 0:
                    in_first_folding.append(combined)
                judged[repeat, index - len(self.methods)] = score.judged(combined)
                for _, train, held_out in folds if self.tune else ():
                    assert self.tune is not None
                    known = np.intersect1d(train, first)
                    decision = self.tune(combined[known], labels[known])
                    judged[repeat, index, held_out] = score.judged(combined[held_out], decision)
            best = _clearly_best(judged[: repeat + 1], labels, groups, score, self.margin, seed)
            if best == 0:  # most often so, which saves the other foldings
                break
        return *options[best], in_first_folding[best % len(self.methods)]


def _cross_fitted(
    method: Method, votes: np.ndarray, labels: np.ndarray, folds: Sequence[Split], kind: Kind
) -> np.ndarray:
    """The votes of each fold combined by the method fitted on the other folds, like those of new rows.

    On the rows that it was fitted on a combination looks surer and better than it is.
    """
    combined = np.empty(votes.shape[1:], dtype=votes.dtype)
    for _, train, held_out in folds:
        combined[held_out] = combined_by(method.fit(votes[:, train], labels[train]), votes[:, held_out], kind)
    return combined


def _clearly_best(
    judged: np.ndarray, labels: np.ndarray, groups: np.ndarray, score: Scorer, margin: float, seed: int
) -> int:
    """The best option by its mean score of those that exceed the first one's by ``margin`` standard errors, else 0.

    Args:
        judged: ``(repeats, options, rows, ...)``.
    """
    scores = [[score(labels, of_option) for of_option in of_repeat] for of_repeat in judged]
    means = np.mean(scores, axis=0)
    better = [int(option) for option in np.argsort(-means, kind="stable") if means[option] > means[0]]
    if not better:
        return 0
    resampled = partial(judge, labels=labels, groups=groups, score=score, seed=seed, resamples=_INNER_RESAMPLES)
    default = resampled(judged[:, 0])
    for option in better:
        gain = resampled(judged[:, option]).over(default)
        if gain.score > margin * gain.error:
            return option
    return 0


@dataclass(frozen=True, eq=False)
class OutOfFold:
    """Predictions of a procedure for rows that it was not fitted on.

    Attributes:
        decisions: ``(repeats, rows, ...)``.
        scored: the same for ``Ballot.judge``, as ``Ensemble.judged`` returns it; where the score does not depend on the
            scale, float64 values on the labels' scale.
        probabilities: ``(rows, ...)`` float32 of the first repeat, or none for kinds without.
        calibrated: the same at each fold's temperature, float64.
        labelled: ``(rows, ...)`` decisions of the first repeat as pseudo-labels have them.
        agreement: ``(rows,)`` float32, the share of the fold's voters who decide so alone.
    """

    decisions: np.ndarray
    scored: np.ndarray
    probabilities: np.ndarray | None
    calibrated: np.ndarray | None
    labelled: np.ndarray
    agreement: np.ndarray | None


def out_of_fold(
    procedure: Procedure, ballot: Ballot, *, said: Callable[[int, int], object] = lambda number, of: None
) -> OutOfFold:
    """Predicts each fold by the procedure fitted on the other folds.

    Args:
        said: is called with the number of each fold, and how many there are.
    """
    score, kind = ballot.score, ballot.score.kind
    shape, repeats = ballot.votes.shape[1:], repeats_for(ballot.texts)
    rescaled = score.scale_free and not kind.probabilistic
    decided = ballot.decisions[0]
    decisions = np.empty((repeats, *decided.shape), dtype=decided.dtype)
    scored = decisions if score.decides and not rescaled else np.empty((repeats, *shape), dtype=np.float64)
    probabilities = np.empty(shape, dtype=np.float32)
    calibrated = np.empty(shape, dtype=np.float64)
    labelled = np.empty_like(decided)
    agreement = np.empty(shape[0], dtype=np.float32)
    folds = [*splits(kind.strata(ballot.labels), ballot.groups, repeats=repeats, seed=0)]
    for number, (repeat, train, held_out) in enumerate(folds, start=1):
        said(number, len(folds))
        ensemble = procedure.fit(ballot, train, seed=number)
        if rescaled:
            values = ensemble.combine(ballot.votes[ensemble.voters])
            decisions[repeat, held_out] = values[held_out]
            scored[repeat, held_out] = on_label_scale(values, ballot.labels)[held_out]
            continue
        votes = ballot.votes[ensemble.voters[:, None], held_out]
        combined = ensemble.combine(votes)
        decisions[repeat, held_out] = ensemble.decide(combined)
        if scored is not decisions:
            scored[repeat, held_out] = ensemble.judged(combined)
        if kind.probabilistic and repeat == 0:
            probabilities[held_out], calibrated[held_out] = combined, ensemble.calibrated(combined)
            labelled[held_out] = ensemble.label(combined)
            voting = ensemble.voters[ensemble.combiner.weights != 0]
            by_members = ballot.decisions[voting[:, None], held_out]
            agreement[held_out] = opinion(kind, combined, labelled[held_out], by_members).agreement
    if not kind.probabilistic:
        return OutOfFold(decisions, scored, None, None, decisions[0], None)
    return OutOfFold(decisions, scored, probabilities, calibrated, labelled, agreement)


def auto_methods(kind: Kind, *, texts: int) -> tuple[str, ...]:
    """The methods that ``auto`` compares, its default first: below ``MIN_TEXTS`` rows of different texts, the mean."""
    if texts < MIN_TEXTS:
        return ("uniform",)
    return compared(probabilities=kind.probabilistic, texts=texts, generative=kind.generative)
