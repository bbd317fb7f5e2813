"""The seam to a tracking store: one parent run for the study, one child run for each trial."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tutti.errors import TrackingError
from tutti.records import Scalar, TrialState

SCORE = "score"
"""Name of the metric that ``end_trial`` gives a trial's best objective under; user interfaces sort by it."""

BEST_SCORE = "best_score"
"""Name of the metric that ``end_study`` gives the best trial's objective under: not ``SCORE``, so that in a list sorted
by that the study's run does not stand among its trials."""

FOLD_SCORE = "fold_score"
"""Name of the metric that a fold's best objective goes by, in its own run and in its trial's: not ``SCORE``, so that
in a list sorted by that no fold stands among the trials."""


class RefusedError(TrackingError):
    """The store refuses this one call for good: trying it again cannot help."""


@dataclass(frozen=True)
class MetricRow:
    """Metrics of one step.

    Attributes:
        step: optimisation step or epoch, as the metrics' names say.
        at: when they were measured, in Unix seconds.
    """

    metrics: Mapping[str, float]
    step: int
    at: float


class Tracker(Protocol):
    """Where a study's progress is shown. Every call may be repeated, also by a later process: nothing stands twice.

    A key is a trial's key, or ``""`` for the parent run. ``TRIAL/NAME`` is the key of a run below the trial's: of one
    of its folds. It may stand wherever a trial's key may. ``at`` is when a thing happened, in Unix seconds; now where
    it is none.

    Every method but ``close`` raises TrackingError where the store cannot be reached, and its subclass RefusedError
    where the store refuses the call for good: a bad name, a run that was deleted or was never started.
    """

    def start_study(
        self,
        *,
        parameters: Mapping[str, Scalar],
        tags: Mapping[str, str],
        files: Sequence[Path],
        columns: Sequence[str] = (),
        at: float | None = None,
    ) -> None:
        """Opens the parent run, or goes on in the one that is there.

        Args:
            files: kept with the run: the study file, the split, the data's hashes. Files of the same name replace
                those of an earlier start.
            columns: what a list of the trials shows at first beside state and score: ``metrics.NAME``, ``params.NAME``.
        """

    def start_trial(
        self,
        key: str,
        *,
        number: int,
        parameters: Mapping[str, Scalar],
        tags: Mapping[str, str],
        at: float | None = None,
    ) -> None:
        """Opens the trial's run below the parent run, or goes on in the one that is there.

        The run of ``TRIAL/NAME`` is opened below the trial's, which must have been started.
        """

    def log_metrics(self, key: str, metrics: Mapping[str, float], *, step: int, at: float) -> None:
        """Keeps metrics of one step. A metric that has a value at this step keeps it."""

    def log_history(self, key: str, rows: Sequence[MetricRow]) -> None:
        """The same as ``log_metrics`` for each row, in as few requests as the store allows."""

    def log_picture(self, key: str, name: str, png: bytes) -> None:
        """Keeps a PNG picture as ``pictures/NAME.png``, in the place of an earlier one of that name."""

    def end_trial(
        self,
        key: str,
        *,
        state: TrialState,
        reason: str | None,
        metrics: Mapping[str, float],
        tags: Mapping[str, str],
        at: float | None = None,
    ) -> None:
        """Ends the trial's run.

        Args:
            metrics: values of the trial as a whole, such as its best score under the name ``SCORE``. Their names must
                not be those of metrics logged by step. When they change, the last value counts.

        Raises:
            ValueError: where ``state`` is RUNNING.
        """

    def end_study(self, *, state: TrialState, metrics: Mapping[str, float], at: float | None = None) -> None:
        """Ends the parent run. ``metrics`` as in ``end_trial``.

        Raises:
            ValueError: where ``state`` is RUNNING.
        """

    def close(self, timeout: float = 30.0) -> int:
        """Lets the store go, after ``timeout`` seconds at the latest.

        Returns:
            How many calls were not delivered; always 0 for a tracker that delivers at once.
        """


def parent_of(key: str) -> str:
    """Key of the run that a run stands below: ``""`` for a trial, the trial for ``TRIAL/NAME``."""
    return key.rpartition("/")[0]


def check_ended(state: TrialState) -> None:
    """Raises ValueError where ``state`` is not one that a run can end in."""
    if state is TrialState.RUNNING:
        raise ValueError("a run cannot end in the state running")
