"""What is done when a trial ends."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from tutti import mirror
from tutti.bank.bank import Bank
from tutti.errors import ClaimLostError, TuttiError
from tutti.orchestration.driver.pictures import PictureDrawer
from tutti.orchestration.driver.recording import Recorder
from tutti.orchestration.driver.trial_progress import TrialProgress
from tutti.orchestration.worker.folds import delete_states
from tutti.records import TrialState

if TYPE_CHECKING:
    from tutti.orchestration.driver.objectives import Measure

_logger = logging.getLogger(__name__)


class Ender:
    """Ends the trials of a study: in the tracker, in the store, and on the disk.

    Args:
        measure: measures a finished trial by the study's objectives; none if the score is the only objective.
        prune: called once a trial has ended, to keep the study's checkpoints within their limit.
    """

    def __init__(
        self, recorder: Recorder, pictures: PictureDrawer, *, measure: Measure | None, prune: Callable[[], object]
    ) -> None:
        self._recorder, self._pictures, self._measure, self._prune = recorder, pictures, measure, prune

    def complete(self, key: str, progress: TrialProgress) -> None:
        """Ends a trial that Tune no longer trains, in the state that its reports tell."""
        mirror.pull(self._recorder.folder.bank / key)
        if progress.failure:
            self.end(key, progress, TrialState.FAILED, progress.failure)
        elif "final" in progress.last_report:
            parameters = progress.last_report.get("parameters")
            seconds = progress.trained_seconds
            measured = self._measure(key, seconds=seconds, parameters=parameters) if self._measure else {}
            self.end(key, progress, TrialState.FINISHED, measured=measured)
        elif progress.epoch or progress.stop_reason:
            why = progress.stop_reason or "fell behind the others"
            self.end(key, progress, TrialState.STOPPED, f"{why} after {self._recorder.done(progress)}")
        else:
            self.end(key, progress, TrialState.FAILED, "ended without a single report")

    def end(
        self,
        key: str,
        progress: TrialProgress,
        state: TrialState,
        reason: str | None = None,
        measured: Mapping[str, float] | None = None,
    ) -> None:
        """Records the end of a trial in the tracker, then in the store: a driver that dies in between ends it again.

        Then deletes what the trial could have gone on from, and prunes the study's checkpoints.
        """
        recorder, measured = self._recorder, measured or {}
        store, folder = recorder.store, recorder.folder
        seconds = measured.get("seconds", progress.wall_seconds)
        report, is_finished = recorder.last_report(key, progress), state is TrialState.FINISHED
        if is_finished:
            self._pictures.submit(key)
        else:  # its predictions, written before its last report, must not vote
            Bank(folder.bank).remove(key)
            mirror.drop(folder.bank / key)
        recorder.end_open_folds(progress, state, reason)
        summary = recorder.summary(key, report, finished=is_finished)
        metrics = {"seconds": seconds, **progress.usage.metrics, **measured, **summary}
        tags = self._tags(key, progress)
        recorder.tracker.end_trial(key, state=state, reason=reason, metrics=metrics, tags=tags)
        uses_report = recorder.folds or is_finished
        store.finish(
            key,
            state=state,
            score=report.get("best_score", report.get("score")),
            task_scores=report.get("best_task_scores", report.get("task_scores")) if uses_report else None,
            reason=reason,
            seconds=seconds,
            infeasible=progress.infeasible,
            measured=measured,
        )
        delete_states(folder.trial(key))
        mirror.drop(folder.trial(key).path, inside="resume")
        try:
            self._prune()
        except ClaimLostError:
            raise
        except TuttiError as error:  # the end of the next trial prunes again
            _logger.warning("The checkpoints are beyond storage.max_gigabytes: %s", error)

    def _tags(self, key: str, progress: TrialProgress) -> dict[str, str]:
        tags = {
            "tutti.host": progress.last_report.get("host"),
            "tutti.precision": progress.precision,
            "tutti.halved_batch": progress.resumption.halved,
            "tutti.notice": "\n".join(progress.notices),
            "tutti.exploited_from": self._recorder.store.record(key).exploited_from,
        }
        return {name: value for name, value in tags.items() if value}

    def close(self) -> None:
        """Waits until all pictures are drawn."""
        self._pictures.close()
