"""Metrics of a running study for Prometheus. Ray's nodes export them beside their own, with the prefix ``ray_``."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import ray
from ray import tune
from ray.exceptions import RayError
from ray.util.metrics import Gauge

from tutti.errors import StorageError
from tutti.orchestration.broker.broker import Broker
from tutti.orchestration.driver.snapshot import NotSnapshotted
from tutti.records import TrialState, best_trial

if TYPE_CHECKING:
    from ray.actor import ActorHandle
    from ray.tune.experiment import Trial

    from tutti.search.study_store import StudyStore

SECONDS = 5.0  # between two updates; Ray itself exports every 10 s
TRIALS, ASKED, BEST, WAITING = "tutti_trials", "tutti_trials_asked", "tutti_best_score", "tutti_waiting"
DESCRIPTIONS = {
    TRIALS: "Trials of the study, by state",
    ASKED: "How many trials the study shall have",
    BEST: "The best score of a finished trial",
    WAITING: "What waits to be delivered, by where it goes: events for the tracker",
}
_LIVE = (TrialState.QUEUED, TrialState.ASSIGNED, TrialState.RUNNING, TrialState.WAITING)
_ENDED = (TrialState.FINISHED, TrialState.STOPPED, TrialState.FAILED)


class StudyMetrics(NotSnapshotted, tune.Callback):
    """A Tune callback that sets the study's gauges. A failure to do so is of no consequence.

    Args:
        asked: how many trials the study shall have.
        backlogs: by what it is for, how much waits to be delivered; may raise OSError.
    """

    def __init__(
        self,
        store: StudyStore,
        broker: ActorHandle[Broker],
        *,
        study: str,
        asked: int,
        backlogs: Mapping[str, Callable[[], int]],
    ) -> None:
        self._store, self._broker, self._backlogs = store, broker, backlogs
        self._study, self._asked, self._last_update = study, asked, 0.0
        keys = {TRIALS: ("study", "state"), WAITING: ("study", "destination")}
        self._gauges = {name: Gauge(name, text, keys.get(name, ("study",))) for name, text in DESCRIPTIONS.items()}

    def on_step_begin(self, iteration: int, trials: list[Trial], **info: Any) -> None:
        if time.monotonic() - self._last_update > SECONDS:
            self._last_update = time.monotonic()
            with suppress(StorageError, RayError, OSError):
                self.update()

    def update(self) -> None:
        """Sets every gauge."""
        live = ray.get(self._broker.count_by_state.remote())
        records = self._store.records()
        ended = Counter(record.state for record in records)
        for state in (*_LIVE, *_ENDED):
            count = live.get(state, 0) if state in _LIVE else ended[state]
            self._set(TRIALS, count, state=state.value)
        self._set(ASKED, self._asked)
        if best := best_trial(records):
            self._set(BEST, best.score)
        for destination, waiting in self._backlogs.items():
            self._set(WAITING, waiting(), destination=destination)

    def _set(self, name: str, value: float | None, **tags: str) -> None:
        self._gauges[name].set(value, {"study": self._study, **tags})
