"""The interface to a tracking store: one parent run for the study, one child run for each trial."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NotRequired, Protocol, TypedDict, Unpack

from tutti.errors import TrackingError
from tutti.records import Scalar, TrialState

SCORE = "score"
"""Metric of ``end_trial`` with a trial's best score; user interfaces sort by it."""

BEST_SCORE = "best_score"
"""Metric of ``end_study`` with the best trial's score. It is not ``SCORE``, so that in a list sorted by ``SCORE`` the
study's run is not listed among its trials."""

FOLD_SCORE = "fold_score"
"""Metric with a fold's best score, in the fold's run and in its trial's. It is not ``SCORE``, so that in a list sorted
by ``SCORE`` no fold is listed among the trials."""


class RefusedError(TrackingError):
    """The store refuses this call permanently: a retry cannot succeed."""


@dataclass(frozen=True)
class MetricRow:
    """Metrics of one step.

    Attributes:
        step: optimizer step or epoch, depending on the metrics' names.
        at: Unix time of the measurement in seconds.
    """

    metrics: Mapping[str, float]
    step: int
    at: float


class StudyStart(TypedDict):
    """What ``Tracker.start_study`` is told.

    Attributes:
        files: uploaded to the run: the study file, the split, the data's hashes. They replace files of the same name
            from an earlier start.
        columns: columns that a list of trials shows by default, with state and score: ``metrics.NAME``,
            ``params.NAME``.
    """

    parameters: Mapping[str, Scalar]
    tags: Mapping[str, str]
    files: Sequence[Path]
    columns: NotRequired[Sequence[str]]
    at: NotRequired[float | None]


class TrialStart(TypedDict):
    """What ``Tracker.start_trial`` is told."""

    number: int
    parameters: Mapping[str, Scalar]
    tags: Mapping[str, str]
    at: NotRequired[float | None]


class TrialEnd(TypedDict):
    """What ``Tracker.end_trial`` is told.

    Attributes:
        state: any but RUNNING.
        metrics: values of the trial as a whole, such as its best score as ``SCORE``, which by step is the best so far.
            No other name may be one of a metric logged by step. If a value changes, the last one counts.
    """

    state: TrialState
    reason: str | None
    metrics: Mapping[str, float]
    tags: Mapping[str, str]
    at: NotRequired[float | None]


class Tracker(Protocol):
    """Records the progress of a study. All calls are idempotent, also across processes.

    A key is a trial's key, or ``""`` for the parent run. ``TRIAL/NAME`` is the key of a run below the trial's, for one
    of its folds, and is allowed wherever a trial's key is. ``at`` is the Unix time of the event in seconds; None means
    now.

    Every method except ``close`` raises TrackingError where the store cannot be reached, and its subclass RefusedError
    where the store refuses the call permanently: a bad name, a run that was deleted or was never started.
    """

    def start_study(self, **start: Unpack[StudyStart]) -> None:
        """Creates the parent run, or reopens the existing one."""

    def start_trial(self, key: str, **start: Unpack[TrialStart]) -> None:
        """Creates the trial's run below the parent run, or reopens the existing one.

        The run of ``TRIAL/NAME`` is created below the trial's, which must have been started.
        """

    def log_metrics(self, key: str, metrics: Mapping[str, float], *, step: int, at: float) -> None:
        """Logs metrics of one step.

        A metric that already has a value at this step keeps it, unless the trial has started over between the two.
        """

    def log_history(self, key: str, rows: Sequence[MetricRow]) -> None:
        """Does the same as ``log_metrics`` for each row, in as few requests as possible."""

    def start_over(self, key: str, *, at: float) -> None:
        """Tells that metrics from before ``at`` are those of an attempt that was abandoned.

        Later ones count at the same steps. A store that cannot delete metrics keeps both and says when the run started
        over.
        """

    def log_picture(self, key: str, name: str, png: bytes) -> None:
        """Stores a PNG picture as ``pictures/NAME.png``, and replaces an earlier one of that name."""

    def end_trial(self, key: str, **end: Unpack[TrialEnd]) -> None:
        """Ends the trial's run."""

    def end_study(self, *, state: TrialState, metrics: Mapping[str, float], at: float | None = None) -> None:
        """Ends the parent run. ``metrics`` as in ``end_trial``."""

    def close(self, timeout: float = 30.0) -> int:
        """Releases the store, within ``timeout`` seconds.

        Returns:
            The number of undelivered calls; always 0 for a tracker that delivers immediately.
        """


def parent_of(key: str) -> str:
    """Key of a run's parent: ``""`` for a trial, the trial for ``TRIAL/NAME``."""
    return key.rpartition("/")[0]


def readable(value: float) -> float:
    """A value to four significant digits, and never less exact than to 1. MLflow shows as many digits as it is given.

    Example:
        >>> [readable(value) for value in (0.88928732, 0.00012345678, 1234567.8)]
        [0.8893, 0.0001235, 1234568.0]
    """
    return float(f"{value:.0f}") if abs(value) >= 1_000 else float(f"{value:.4g}")
