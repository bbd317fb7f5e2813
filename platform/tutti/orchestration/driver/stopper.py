"""Ends a study or a trial that has reached a limit, and measures how long the study runs."""

from __future__ import annotations

import math
import time
from contextlib import suppress
from typing import Any

from ray.actor import ActorHandle
from ray.tune import Callback, Stopper
from ray.tune.experiment import Trial

from tutti.config.study import Search
from tutti.errors import StorageError
from tutti.orchestration.broker.broker import Broker
from tutti.orchestration.broker.messages import Report, is_last
from tutti.orchestration.driver.snapshot import NotSnapshotted
from tutti.orchestration.driver.trial_progress import TrialProgress
from tutti.search.limits import SECONDS_PER_HOUR, Ending, ending_of
from tutti.search.study_store import StudyStore

SAVE_SECONDS = 10.0
"""Time between two updates of the run time in the store. A killed driver loses at most this much."""


class StudyStopper(NotSnapshotted, Stopper, Callback):
    """Tune's stopper of a study. It is also a callback, to be listed after the study's log, that sees ended trials.

    Attributes:
        ending: the limit that ended the running trials, if any.
    """

    def __init__(self, store: StudyStore, search: Search, *, broker: ActorHandle[Broker]) -> None:
        self._store, self._search, self._broker = store, search, broker
        self._earlier_seconds, self._began = store.run_seconds(), time.monotonic()
        self._last_save = self._began
        self._progress: dict[str, TrialProgress] = {}
        self._records = store.records()
        self.ending: Ending | None = None

    def __call__(self, trial_id: str, result: Report) -> bool:
        """Whether to end a trial with this report: its time is over, or its score is not finite, which fails it."""
        if is_last(result):
            return False
        if "began" in result and self._search.max_trial_hours is not None:
            progress = self._progress.setdefault(trial_id, TrialProgress())
            progress.update_time(result)
            hours = progress.trained_seconds / SECONDS_PER_HOUR
            if hours >= self._search.max_trial_hours:
                result["stopped"] = f"had trained for {hours:.2g} h of at most {self._search.max_trial_hours:g}"
                return True
        return not math.isfinite(result.get("score", 0.0))

    def stop_all(self) -> bool:
        """Whether to end the study now. Tune asks after every event, many times a second."""
        if time.monotonic() - self._last_save > SAVE_SECONDS:
            with suppress(StorageError):  # the database is busy; the next update includes this time
                self.save_run_time()
        if self.ending is None and (ending := self.reached()) and ending.at_once:
            self.ending = ending
            self._broker.close.remote()  # Tune waits for its actors, and they would wait for further reports
        return self.ending is not None

    def reached(self) -> Ending | None:
        """The limit that the study has reached by now, if any."""
        return ending_of(self._search, self._records, seconds=self._seconds())

    def on_trial_complete(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        if self._search.target_score is not None or self._search.patience is not None:
            with suppress(StorageError):  # if the failure lasts, the study's log ends the study
                self._records = self._store.records()

    def save_run_time(self) -> None:
        """Stores how long the study has run."""
        self._last_save = time.monotonic()
        self._store.keep_run_seconds(self._seconds())

    def _seconds(self) -> float:
        return self._earlier_seconds + time.monotonic() - self._began
