"""Ends a study or a trial that has reached a limit, and keeps the time that the study runs."""

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
from tutti.orchestration.broker import FAILED, FINAL, Broker
from tutti.search.limits import SECONDS, Ending, ending_of
from tutti.search.study_store import StudyStore

STOPPED = "stopped"  # the key of a report that tells the study's log why its trial ends with it
KEEP_SECONDS = 10.0
"""Between two times that the study's time is kept: as much is lost of it where the driver is killed."""


class StudyStopper(Stopper, Callback):
    """Tune's stopper of a study. As a callback, to stand after the study's log, it hears when a trial has ended.

    Attributes:
        ending: the limit that ended the running trials, once one did.
    """

    def __init__(self, store: StudyStore, search: Search, *, broker: ActorHandle[Broker]) -> None:
        self._store, self._search, self._broker = store, search, broker
        self._before, self._began = store.run_seconds(), time.monotonic()
        self._kept = self._began
        self._trials_began: dict[str, float] = {}
        self._records = store.records()
        self.ending: Ending | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Nothing: Tune writes a snapshot of all it was given, and no run ever reads it back."""
        return {}

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        """Whether a trial ends with this report: its time is over, or its score is no number, for which it fails."""
        if result.keys() & {FINAL, FAILED}:
            return False
        if "began" in result and self._search.max_trial_hours is not None:
            hours = (result["at"] - self._trials_began.setdefault(trial_id, result["began"])) / SECONDS
            if hours >= self._search.max_trial_hours:
                result[STOPPED] = f"had trained for {hours:.2g} h of at most {self._search.max_trial_hours:g}"
                return True
        return not math.isfinite(result.get("score", 0.0))

    def stop_all(self) -> bool:
        """Whether the study ends at once. Tune asks many times a second, after each event."""
        if time.monotonic() - self._kept > KEEP_SECONDS:
            with suppress(StorageError):  # a database that is busy has it the next time
                self.keep_time()
        if self.ending is None and (found := self.reached()) and found.at_once:
            self.ending = found
            self._broker.close.remote()  # Tune waits for its actors, and they for reports that need not come
        return self.ending is not None

    def reached(self) -> Ending | None:
        """The limit that the study has reached by now."""
        return ending_of(self._search, self._records, seconds=self._seconds())

    def on_trial_complete(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        if self._search.target_score is not None or self._search.patience is not None:
            with suppress(StorageError):  # where that lasts, the study's log halts the study
                self._records = self._store.records()

    def keep_time(self) -> None:
        """Keeps how long the study has run."""
        self._kept = time.monotonic()
        self._store.keep_run_seconds(self._seconds())

    def _seconds(self) -> float:
        return self._before + time.monotonic() - self._began
