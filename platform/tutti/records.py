"""Frozen value types that travel between rooms."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np

from tutti.errors import Fault, StorageError

Scalar = str | int | float | bool | None


class TrialState(StrEnum):
    """What became of a trial. The value is what users read."""

    RUNNING = "running"
    FINISHED = "finished"
    STOPPED = "stopped early"
    FAILED = "failed"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True)
class TrialRecord:
    """One trial as the study's store knows it.

    Attributes:
        key: the one identity that binds the Optuna trial, the Ray trial, the MLflow run and the checkpoint: ``t0007``.
            Optuna keeps it as the trial's attribute ``key``.
        number: its place among the study's trials, from 0. Optuna's number, but in a study that began with trials
            of older ones: theirs come first there.
        score: the best objective reported, or none before the first report; of a trial with folds that has ended, the
            one of its out-of-fold rows, or the mean of its folds where it did not finish.
        task_scores: per task, its metric at the report that gave ``score``.
        parameters: what the search space chose for this trial.
        scores_by_epoch: every reported objective by epoch, or by evaluation where an epoch has several; with folds, the
            mean of those that were whole, by how many.
        seconds: wall time from start to end, or none while running. Of a trial that went on in a later run of its
            study, that of all its runs, without what came after their last reports.
        reason: why it failed or was stopped, in one sentence.
        exchanges: with the scheduler ``pbt``, what it went on from that was another trial's state: of each the
            ``epoch``, the ``donor``'s key, and the ``parameters`` that it had from then on.
        measured: of a finished trial, by name, what a study with other objectives than the score has told Optuna, and
            the score: see ``search.objectives``.
    """

    key: str
    number: int
    state: TrialState
    score: float | None = None
    task_scores: Mapping[str, float] = field(default_factory=dict)
    parameters: Mapping[str, Scalar] = field(default_factory=dict)
    scores_by_epoch: Mapping[int, float] = field(default_factory=dict)
    seconds: float | None = None
    reason: str | None = None
    measured: Mapping[str, float] = field(default_factory=dict)
    exchanges: tuple[Mapping[str, Any], ...] = ()

    @property
    def best_parameters(self) -> Mapping[str, Scalar]:
        """What its best score was reached with: ``parameters``, but for what it went on from of another trial."""
        best = max(self.scores_by_epoch, key=lambda epoch: (self.scores_by_epoch[epoch], -epoch), default=0)
        taken = [exchange["parameters"] for exchange in self.exchanges if exchange["epoch"] < best]
        return taken[-1] if taken else self.parameters

    @property
    def exploited_from(self) -> str:
        """Whom it went on from and when, in words; empty where it never did."""
        return ", ".join(f"{each['donor']} after epoch {each['epoch']}" for each in self.exchanges)


@dataclass(frozen=True)
class CheckpointRecord:
    """The best weights of one trial, as the bank lists them.

    Attributes:
        key: the trial's key.
        path: folder that ``from_pretrained`` loads, or none once the weights were pruned. Of a trial with folds the
            trial's folder, in which ``fold-N/best`` is such a folder for each fold, N from 0: it is one member of an
            ensemble, whose predictions are those of all its folds.
        epoch: the epoch or evaluation, counted from 1, after which they were saved; of a trial with folds, how many it
            has.
        score: the study's objective on the validation rows, which with folds are all rows, each predicted out of fold.
        task_scores: per task, its metric on the validation rows.
        parameters: how many weights its last stage trained; none where that is not known.
    """

    key: str
    number: int
    epoch: int
    score: float
    task_scores: Mapping[str, float]
    path: str | None
    parameters: int | None = None


@dataclass(frozen=True, eq=False)
class Predictions:
    """What one checkpoint says about the rows of one part of one task, in the order of the part's file.

    Attributes:
        ids: ``(rows,)`` of str, unique.
        probabilities: ``(rows, classes)`` float32, each row summing to 1; none for regression.
        values: ``(rows,)`` float32 for regression; none for classification.
        labels: ``(rows,)`` int64 class indices (float32 for regression), or none where the part has no labels.
        class_names: ``(classes,)`` labels as they stand in the task's files; empty for regression.

    Raises:
        StorageError: where shapes disagree, an id stands twice, a number is not a probability, or a label is not of a
            class.
    """

    ids: np.ndarray
    probabilities: np.ndarray | None = None
    values: np.ndarray | None = None
    labels: np.ndarray | None = None
    class_names: tuple[str, ...] = ()

    @property
    def numbers(self) -> np.ndarray:
        """``(rows, classes)`` probabilities, or ``(rows,)`` values."""
        numbers = self.values if self.probabilities is None else self.probabilities
        assert numbers is not None
        return numbers

    def __post_init__(self) -> None:
        rows = len(self.ids)
        if (self.probabilities is None) == (self.values is None):
            raise _broken("hold either probabilities or values", "both or neither")
        if len(set(self.ids.tolist())) != rows:
            raise _broken("hold every id once", "an id that stands twice")
        if self.labels is not None and self.labels.shape != (rows,):
            raise _broken(f"have one label for each of its {rows} rows", f"labels of shape {self.labels.shape}")
        if self.values is not None:
            if self.values.shape != (rows,) or not _finite(self.values):
                raise _broken(f"have one finite value for each of its {rows} rows", f"shape {self.values.shape}")
            if self.labels is not None and not _finite(self.labels):
                raise _broken("have labels that are finite numbers", "some that are not")
            return
        assert self.probabilities is not None
        classes = len(self.class_names)
        if self.probabilities.shape != (rows, classes):
            raise _broken(f"have probabilities of shape ({rows}, {classes})", f"shape {self.probabilities.shape}")
        if not np.isfinite(self.probabilities).all():
            raise _broken("have probabilities that are numbers", "NaN or infinity")
        if rows and not np.allclose(self.probabilities.sum(axis=1, dtype=np.float64), 1.0, atol=1e-3):
            raise _broken("have rows of probabilities that sum to 1", "rows that do not")
        if (self.probabilities < 0).any():  # then none is above 1 either
            raise _broken("have probabilities from 0 to 1", f"{self.probabilities.min():g}")
        if self.labels is not None and rows:
            if self.labels.dtype.kind not in "iu":
                raise _broken("have labels that are indices of classes", f"labels of type {self.labels.dtype}")
            if strange := self.labels[(self.labels < 0) | (self.labels >= classes)].tolist():
                raise _broken(f"have labels from 0 to {classes - 1}, one for each class", str(strange[0]))


@dataclass(frozen=True)
class Finding:
    """Something in a study's folder or stores that is not as it should be, and what mends it.

    Attributes:
        what: the place: a trial, a run, a file.
        found: what is wrong there.
        mended: what becomes of it, to follow "to be": ``removed``. Where nothing can mend it here, what the user can
            do, in the imperative.
        mend: does it, once the findings before are mended; raises a TuttiError where it cannot. None where nothing can.
    """

    what: str
    found: str
    mended: str
    mend: Callable[[], object] | None = None


def best_trial(records: Sequence[TrialRecord]) -> TrialRecord | None:
    """The finished trial with the best score; only those have a checkpoint to vote with."""
    finished = [r for r in records if r.state is TrialState.FINISHED and r.score is not None]
    return max(finished, key=lambda r: r.score or 0.0, default=None)


def _finite(numbers: np.ndarray) -> bool:
    return numbers.dtype.kind in "iuf" and bool(np.isfinite(numbers).all())


def _broken(rule: str, got: str) -> StorageError:
    remedy = "restore the file from a copy, or move the trial's folder out of the bank: it has no vote then"
    return StorageError(Fault("a set of predictions", rule, got, remedy))
