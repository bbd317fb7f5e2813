"""Ray Tune's view of the study's store: first the trials a dead driver left behind, then new ones up to the budget."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ray.tune.search import Searcher

from tutti.orchestration.broker import config_of
from tutti.search.limits import Ending
from tutti.search.study_store import StudyStore
from tutti.search.trial_attributes import Proposal


class StoreSearcher(Searcher):
    """Suggests what ``store`` proposes. Results reach the store through the study's log, not through here.

    Ray's own OptunaSearch tells trials that a scheduler stopped as complete, and cannot go on from a database that is
    ahead of Tune's snapshot; here the store is the only truth and Tune's snapshot is never read.

    Args:
        unfinished: trials to run again under the same key, number and parameters.
        new: how many trials to ask for after them.
        reached: the limit that the study has reached, if any: it gets no new trial while it has.
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

    def __getstate__(self) -> dict[str, Any]:
        """Nothing: Tune writes a snapshot of all it was given, and no run ever reads it back."""
        return {}

    def suggest(self, trial_id: str) -> dict[str, Any] | None:
        if self._unfinished:
            proposal = self._unfinished.pop(0)
        elif self._new > 0 and self._reached():
            return None if self._running else Searcher.FINISHED  # one that runs may yet be better, and give patience
        elif self._new > 0:
            self._new -= 1
            proposal = self._store.ask()
        else:
            return Searcher.FINISHED
        self._store.bind(proposal.key, key=proposal.key, ray_trial=trial_id)
        self._running.add(trial_id)
        return config_of(proposal)

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """Tells the store nothing: the study's log does, for it knows why a trial ended."""
        self._running.discard(trial_id)

    def save(self, checkpoint_path: str) -> None:
        """Nothing: the store is durable itself."""

    def restore(self, checkpoint_path: str) -> None:
        """Nothing: the store is durable itself."""
