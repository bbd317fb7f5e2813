"""Follows the events of a study that Ray Tune runs: each is recorded, and a trial's end carried out."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from typing import Any

from ray.tune import Callback
from ray.tune.experiment import Trial

from tutti.errors import StorageError, TuttiError, first_line
from tutti.orchestration.broker.messages import Report, TrialConfig, trial_config
from tutti.orchestration.driver.ending import Ender
from tutti.orchestration.driver.recording import Recorder
from tutti.orchestration.driver.snapshot import NotSnapshotted
from tutti.orchestration.driver.trial_progress import TrialProgress
from tutti.records import TrialState


def _defer_error(event: Callable[..., None]) -> Callable[..., None]:
    """Stores a TuttiError raised in an event of Tune for ``on_step_end`` to raise, and ignores all later events.

    Tune would wrap an error raised here into one of its own, or fail the trial for it.
    """

    @wraps(event)
    def handle(self: StudyLog, *arguments: Any, **named: Any) -> None:
        if self.failure is None:
            try:
                event(self, *arguments, **named)
            except TuttiError as error:
                self.failure = error

    return handle


class StudyLog(NotSnapshotted, Callback):
    """A Tune callback that has Ray's events recorded and trials ended.

    If a record cannot be written, the study ends with that error. A resumed study continues the trials that ran.

    Args:
        watch: called after every event; reads the store itself.
        notify: called with messages that users should see at once, though no trial ends.

    Attributes:
        failure: the error that kept a record from being written.
        check_pools: called before a trial whose actor was lost is recorded as failed. Raises a TuttiError if no pool
            is left to train any trial.
    """

    def __init__(
        self, recorder: Recorder, ender: Ender, *, watch: Callable[[], None], notify: Callable[[str], None]
    ) -> None:
        self._recorder, self._ender, self._watch, self._notify = recorder, ender, watch, notify
        self._store = recorder.store
        self._running: dict[str, TrialProgress] = {}
        self._interrupted: set[str] = set()
        self.failure: TuttiError | None = None
        self.check_pools: Callable[[], None] = lambda: None

    @_defer_error
    def on_trial_start(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        key = trial.config["key"]
        if key in self._running:  # Tune retries the trial
            return
        folder = self._recorder.folder.trial(key)
        checkpoint = folder.path if self._recorder.folds else folder.best
        tags = {"tutti.ray_trial": trial.trial_id, "tutti.checkpoint": str(checkpoint)}
        self._running[key] = self._recorder.begin(trial.config, tags)
        self._watch()

    @_defer_error
    def on_trial_result(self, iteration: int, trials: list[Trial], trial: Trial, result: Report, **info: Any) -> None:
        config: TrialConfig = trial.config
        progress = self._running[config["key"]]
        progress.stop_reason = result.get("stopped")
        progress.update_time(result)
        if "notice" in result:
            progress.notices.append(result["notice"])
            self._notify(f"{config['key']}: {result['notice']}")
            return
        if "halved" in result:
            self._notify(f"{config['key']}: starts again with half the batch, out of memory: {result['halved']}")
        self._recorder.report(config, progress, result)
        if not result.keys() & {"halved", "overtime", "fold_epoch"}:
            self._watch()

    @_defer_error
    def on_trial_complete(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        key = trial.config["key"]
        if self._has_to_end(key):
            self._ender.complete(key, self._running[key])
            self._ended(key)

    @_defer_error
    def on_trial_error(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        self.check_pools()
        error = trial.get_error()
        cause = getattr(error, "cause", None) or error
        reason = first_line(cause)[:500] if cause else "the trial's actor died"
        self._end(trial.config, TrialState.FAILED, reason)

    def on_step_end(self, iteration: int, trials: list[Trial], **info: Any) -> None:
        """Raises a deferred error. Tune does not catch errors raised here."""
        if self.failure is not None:
            raise self.failure

    def _end(self, config: TrialConfig, state: TrialState, reason: str) -> None:
        key = config["key"]
        if self._has_to_end(key):
            if key not in self._running:  # it has not begun in this run
                self._running[key] = self._recorder.begin(config)
            self._ender.end(key, self._running[key], state, reason)
            self._ended(key)

    def _has_to_end(self, key: str) -> bool:
        """Whether a trial runs in the store. If not, another driver has ended it, whose word counts."""
        if self._store.record(key).state is TrialState.RUNNING:
            return True
        self._running.pop(key, None)
        return False

    def _ended(self, key: str) -> None:
        self._running.pop(key)  # not earlier: until its end is stored, an interruption has to mark it
        self._watch()

    def stop(self, reason: str) -> None:
        """Ends every unfinished trial as stopped early, including those that have not begun in this run."""
        for proposal in self._store.unfinished():
            rest = ""
            if proposal.key not in self._running:
                ran_before = proposal.resumption.fitted or proposal.resumption.seconds
                rest = "; it had not gone on" if ran_before else "; it had not begun"
            self._end(trial_config(proposal), TrialState.STOPPED, reason + rest)

    def interrupt(self, reason: str = "the study was interrupted") -> list[str]:
        """Marks every unfinished trial as interrupted in the tracker. In the store it stays running, to be resumed.

        This includes trials of an earlier run that have not continued in this one: a killed driver marks nothing.

        Returns:
            Keys of the trials that were marked.

        Raises:
            ClaimLostError: if another driver has taken the study over. The tracker is left unchanged then.
        """
        recorder = self._recorder
        with suppress(StorageError):  # a failing store may be the reason of the interruption
            for proposal in self._store.unfinished():
                if proposal.key not in self._running and proposal.key not in self._interrupted:
                    self._running[proposal.key] = recorder.begin(trial_config(proposal))
        keys = list(self._running)
        self._interrupted.update(keys)
        for key in keys:
            progress = self._running.pop(key)
            recorder.end_open_folds(progress, TrialState.INTERRUPTED, reason)
            metrics = {"seconds": progress.wall_seconds, **progress.usage.metrics}
            with suppress(StorageError):
                metrics |= recorder.summary(key, recorder.last_report(key, progress))
            recorder.tracker.end_trial(key, state=TrialState.INTERRUPTED, reason=reason, metrics=metrics, tags={})
        return keys

    def close(self) -> None:
        """Waits until all pictures are drawn."""
        self._ender.close()
