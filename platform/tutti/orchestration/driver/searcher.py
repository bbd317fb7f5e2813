"""Ray Tune's search algorithm: first the unfinished trials of earlier runs, then new ones from the study's store."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ray.tune.search import Searcher

from tutti.orchestration.broker.messages import TrialConfig, trial_config
from tutti.orchestration.driver.snapshot import NotSnapshotted
from tutti.search.limits import Ending
from tutti.search.study_store import StudyStore
from tutti.search.trial_attributes import Proposal


class StoreSearcher(NotSnapshotted, Searcher):
    """Suggests the trials that ``store`` proposes. Results reach the store through the study's log, not through here.

    Ray's own OptunaSearch reports trials that a scheduler stopped as complete, and cannot resume from a database that
    is ahead of Tune's snapshot. Here the store is the only source of truth, and Tune's snapshot is never read.

    Args:
        unfinished: trials to run again under the same key, number and parameters.
        new: number of trials to ask for after them.
        reached: the limit that the study has reached, if any. No new trial starts while there is one.
    """

    def __init__(
        self,
        store: StudyStore,
        *,
        unfinished: list[Proposal],
        new: int,
        reached: Callable[[], Ending | None] = lambda: None,
    ) -> None:
        super().__init__(metric="score", mode="max")
        self._store = store
        self._unfinished = list(unfinished)
        self._new = new
        self._reached = reached
        self._running: set[str] = set()

    def suggest(self, trial_id: str) -> TrialConfig | None:
        if self._unfinished:
            proposal = self._unfinished.pop(0)
        elif self._new > 0 and self._reached():
            return None if self._running else Searcher.FINISHED  # a running trial may still improve on the best
        elif self._new > 0:
            self._new -= 1
            proposal = self._store.ask()
        else:
            return Searcher.FINISHED
        self._running.add(trial_id)
        return trial_config(proposal)

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """Leaves the store alone: the study's log updates it, and knows why a trial ended."""
        self._running.discard(trial_id)

    def save(self, checkpoint_path: str) -> None:
        """Does nothing: the store is durable itself."""
