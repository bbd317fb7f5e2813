"""The whole way from a bank's votes to one answer, as one thing that can be fitted, and so judged, on any rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tutti.ensembling.calibrate import fit_temperature, tempered
from tutti.ensembling.decide import decide, tune_offsets
from tutti.ensembling.methods.known import METHODS, combines_values
from tutti.ensembling.methods.protocol import Combiner, Score, decided
from tutti.ensembling.nested import LEAST, repeats_for, splits
from tutti.ensembling.pseudo import opinion
from tutti.ensembling.select import Selection

GREEDY_ROWS = 300
"""Rows below which ``auto`` does not try greedy selection: it flatters itself most where rows are few."""


@dataclass(frozen=True, eq=False)
class Ballot:
    """What all who could vote say about labelled rows.

    Attributes:
        votes: ``(candidates, rows, classes)`` float32 probabilities, or ``(candidates, rows)`` float32 values.
        labels: ``(rows,)`` int64 class indices, or numbers.
        score: higher is better.
    """

    votes: np.ndarray
    labels: np.ndarray
    score: Score

    @cached_property
    def decided(self) -> np.ndarray:
        """``(candidates, rows)``, what each would say alone."""
        return decided(self.votes)

    @cached_property
    def scores(self) -> np.ndarray:
        """``(candidates,)`` float64, each one's score alone on all rows."""
        return self.scores_on(np.arange(len(self.labels)))

    def scores_on(self, rows: np.ndarray) -> np.ndarray:
        """``(candidates,)`` float64, each one's score alone on some rows."""
        return np.array([self.score(self.labels[rows], one[rows]) for one in self.decided])


@dataclass(frozen=True, eq=False)
class Ensemble:
    """What was chosen.

    Attributes:
        voters: ``(voters,)`` indices of the candidates that vote, best first.
        method: by its name.
        offsets: ``(classes,)`` of log-probabilities before the likeliest class is taken, or none.
        temperature: of what is said, after the votes were combined; 1 for values.
    """

    voters: np.ndarray
    method: str
    combiner: Combiner
    offsets: np.ndarray | None
    temperature: float

    def combine(self, votes: np.ndarray) -> np.ndarray:
        """``(rows, classes)`` probabilities, not tempered, or ``(rows,)`` values, of the voters' votes."""
        return self.combiner.combine(votes)

    def decide(self, said: np.ndarray) -> np.ndarray:
        """``(rows,)`` class indices of combined probabilities; values are what they are."""
        return said if said.ndim == 1 else decide(said, self.offsets)

    def calibrated(self, said: np.ndarray) -> np.ndarray:
        """Combined probabilities at the fitted temperature."""
        return tempered(said, self.temperature)


@dataclass(frozen=True, eq=False)
class Procedure:
    """All choices that are made on labelled rows: who votes, how votes are combined, how sure that is, what it decides.

    Attributes:
        standing: ``(candidates,)``, what they are ranked by, on all rows; NaN for who may not vote.
        share: of a candidate's score on some rows in its standing: 1 where they are ranked by this very score, a third
            where by the mean of three tasks. On fewer rows the standing moves by so much.
        methods: names; of several the one that does best in inner folds is taken.
        offsets: whether offsets by class may be used, where inner folds say that they help.
    """

    selection: Selection
    standing: np.ndarray
    share: float
    methods: Sequence[str]
    offsets: bool = False

    def fit(self, ballot: Ballot, rows: np.ndarray | None = None, *, seed: int = 0) -> Ensemble:
        """Chooses on some rows, or on all.

        Raises:
            ValueError: where nobody may vote, or the votes are such as ``Method.fit`` refuses.
        """
        rows = np.arange(len(ballot.labels)) if rows is None else rows
        moved = ballot.scores_on(rows) - ballot.scores
        voters = self.selection.choose(self.standing + self.share * moved, ballot.decided[:, rows])
        if not len(voters):
            raise ValueError("an ensemble must have a member with a score; got none; give scores that are numbers.")
        votes, labels = ballot.votes[voters[:, None], rows], ballot.labels[rows]
        method, with_offsets = self._choice(votes, labels, ballot.score, seed)
        combiner = METHODS[method](ballot.score).fit(votes, labels)
        offsets, temperature = None, 1.0
        if votes.ndim == 3 and len(labels) >= LEAST:
            said = combiner.combine(votes)
            offsets = tune_offsets(said, labels) if with_offsets else None
            temperature = fit_temperature(said, labels)
        return Ensemble(voters, method, combiner, offsets, temperature)

    def _choice(self, votes: np.ndarray, labels: np.ndarray, score: Score, seed: int) -> tuple[str, bool]:
        """The method, and whether to use offsets: what scores best on rows that it was not fitted to."""
        tuned = (False, True) if self.offsets and votes.ndim == 3 else (False,)
        options = [(method, offsets) for offsets in tuned for method in self.methods]
        if len(options) == 1 or len(labels) < LEAST:
            return options[0]
        out = np.empty((len(options), len(labels)), dtype=np.int64 if votes.ndim == 3 else np.float32)
        for _, train, held in splits(labels, repeats=1, seed=seed):
            chosen, judged = votes[:, train], votes[:, held]
            for place, method in enumerate(self.methods):
                combiner = METHODS[method](score).fit(chosen, labels[train])
                said = combiner.combine(judged)
                out[place, held] = said if said.ndim == 1 else decide(said)
                if True in tuned:
                    offsets = tune_offsets(combiner.combine(chosen), labels[train])
                    out[len(self.methods) + place, held] = decide(said, offsets)
        scores = [score(labels, one) for one in out]
        return options[int(np.argmax(scores))]


@dataclass(frozen=True, eq=False)
class OutOfFold:
    """What a procedure says about rows that it was not fitted to.

    Attributes:
        decisions: ``(repeats, rows)`` class indices, or values.
        said: ``(rows, classes)`` probabilities of the first repeat, or none for values.
        calibrated: the same at the temperature of the fold.
        agreement: ``(rows,)`` float32, the share of the fold's voters that would say the likeliest class alone.
    """

    decisions: np.ndarray
    said: np.ndarray | None
    calibrated: np.ndarray | None
    agreement: np.ndarray | None


def out_of_fold(procedure: Procedure, ballot: Ballot, *, seed: int = 0) -> OutOfFold:
    """Fits the procedure once for each fold, on the other folds, and lets it answer."""
    rows, classes = len(ballot.labels), ballot.votes.shape[2:]
    repeats = repeats_for(rows)
    decisions = np.empty((repeats, rows), dtype=np.int64 if classes else np.float32)
    said, calibrated = (np.empty((rows, *classes), dtype=np.float32) for _ in range(2))
    agreement = np.empty(rows, dtype=np.float32)
    for number, (repeat, train, held) in enumerate(splits(ballot.labels, repeats=repeats, seed=seed)):
        ensemble = procedure.fit(ballot, train, seed=seed + 1 + number)
        votes = ballot.votes[ensemble.voters[:, None], held]
        answer = ensemble.combine(votes)
        decisions[repeat, held] = ensemble.decide(answer)
        if classes and repeat == 0:
            said[held], calibrated[held] = answer, ensemble.calibrated(answer)
            agreement[held] = opinion(answer, votes[ensemble.combiner.weights != 0]).agreement
    if not classes:
        return OutOfFold(decisions, None, None, None)
    return OutOfFold(decisions, said, calibrated, agreement)


def auto_methods(*, rows: int, values: bool) -> tuple[str, ...]:
    """What ``auto`` chooses from, the plainest first: greedy selection not on fewer than 300 rows."""
    return tuple(
        name for name in METHODS if (not values or combines_values(name)) and (name != "greedy" or rows >= GREEDY_ROWS)
    )
