"""What happens in a study is told to the store (Optuna), the tracker (MLflow) and whoever watches, from one place."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from ray.tune import Callback
from ray.tune.experiment import Trial

from tutti.bank.bank import Bank
from tutti.config.folder import StudyFolder
from tutti.records import Predictions, Scalar, TrialState
from tutti.search.study_store import StudyStore
from tutti.tracking.protocol import SCORE, MetricRow, Tracker

_logger = logging.getLogger(__name__)


@dataclass
class Seen:
    """What the log remembers of a running trial."""

    started: float = field(default_factory=time.time)
    epoch: int = 0
    result: dict[str, Any] = field(default_factory=dict)
    final: bool = False
    failed: str | None = None


class StudyLog(Callback):
    """A Tune callback that turns Ray's events into the study's own records.

    Args:
        watch: called after every event, with nothing; reads the store itself.
        picture: makes a PNG of a task's validation predictions, given them and the task's name.
    """

    def __init__(
        self,
        *,
        store: StudyStore,
        tracker: Tracker,
        folder: StudyFolder,
        tags: dict[str, str],
        watch: Callable[[], None],
        picture: Callable[[str, Predictions], bytes],
    ) -> None:
        self._store, self._tracker, self._folder, self._tags = store, tracker, folder, tags
        self._watch, self._picture = watch, picture
        self._seen: dict[str, Seen] = {}
        self._drawing = ThreadPoolExecutor(max_workers=1, thread_name_prefix="tutti-pictures")

    def __getstate__(self) -> dict[str, Any]:
        """Nothing: Tune writes a snapshot of all it was given, and no run ever reads it back."""
        return {}

    def on_trial_start(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        key = trial.config["key"]
        if key in self._seen:  # the same trial, tried again
            return
        self._seen[key] = Seen()
        parameters: dict[str, Scalar] = trial.config["parameters"]
        tags = {
            **self._tags,
            "tutti.ray_trial": trial.trial_id,
            "tutti.checkpoint": str(self._folder.trial(key) / "best"),
        }
        self._tracker.start_trial(key, number=trial.config["number"], parameters=parameters, tags=tags)
        self._watch()

    def on_trial_result(
        self, iteration: int, trials: list[Trial], trial: Trial, result: dict[str, Any], **info: Any
    ) -> None:
        key = trial.config["key"]
        seen = self._seen[key]
        if "failed" in result:
            seen.failed = result["failed"]
        elif "score" in result:
            self._log_epoch(key, seen, result)
        seen.result, seen.final = result, bool(result.get("final"))
        self._watch()

    def _log_epoch(self, key: str, seen: Seen, result: dict[str, Any]) -> None:
        epoch = int(result["epoch"])
        try:
            self._store.report(key, epoch=epoch, score=result["score"], task_scores=result["task_scores"])
        except ValueError as error:  # a score that is no number
            seen.failed = str(error)
            return
        at = result["at"]
        # The first metric of a run is the one that MLflow compares trials by at first.
        self._tracker.log_metrics(key, {"validation_score": result["score"], **result["metrics"]}, step=epoch, at=at)
        steps = [
            MetricRow({f"train/{name}": value for name, value in values.items()}, step=step, at=at)
            for step, values in result.get("steps", ())
        ]
        self._tracker.log_history(key, steps)
        seen.epoch = epoch

    def on_trial_complete(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        key = trial.config["key"]
        seen = self._seen[key]
        if seen.failed:
            self._end(key, TrialState.FAILED, reason=seen.failed)
        elif seen.final:
            self._end(key, TrialState.FINISHED)
        elif seen.epoch:
            self._end(key, TrialState.STOPPED, reason=f"fell behind the others after epoch {seen.epoch}")
        else:
            self._end(key, TrialState.FAILED, reason="ended without a single report")

    def on_trial_error(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        error = trial.get_error()
        lines = str(getattr(error, "cause", None) or error or "the trial's actor died").splitlines()
        self._end(trial.config["key"], TrialState.FAILED, reason=next((x for x in lines if x.strip()), "")[:500])

    def _end(self, key: str, state: TrialState, reason: str | None = None) -> None:
        seen = self._seen.pop(key)
        seconds = time.time() - seen.started
        result = seen.result
        if state is TrialState.FINISHED:  # a report on its way is lost with a worker: the best one must not be
            best = {"epoch": result["best_epoch"], "score": result["best_score"]}
            self._store.report(key, **best, task_scores=result["best_task_scores"])
            self._drawing.submit(self._draw, key).add_done_callback(_warn)
        metrics = {"seconds": seconds, **(_kept(result) if state is TrialState.FINISHED else self._best(key))}
        tags = {"tutti.host": result["host"]} if "host" in result else {}
        self._tracker.end_trial(key, state=state, reason=reason, metrics=metrics, tags=tags)
        # The store last: a driver that dies before it runs the trial's end again, and telling the tracker twice is
        # harmless.
        self._store.finish(
            key, state=state, score=result.get("best_score", result.get("score")), reason=reason, seconds=seconds
        )
        shutil.rmtree(self._folder.trial(key) / "resume", ignore_errors=True)  # several times the size of the weights
        self._watch()

    def _best(self, key: str) -> dict[str, float]:
        """The best epoch so far of a trial that did not finish, as ``tutti trials`` shows it."""
        record = next(record for record in self._store.records() if record.key == key)
        if not record.scores_by_epoch:
            return {}
        epoch, score = max(record.scores_by_epoch.items(), key=lambda item: item[1])
        return _ending(score=score, epoch=epoch, task_scores=record.task_scores)

    def _draw(self, key: str) -> None:
        bank = Bank(self._folder.bank)
        for task, parts in bank.parts(key).items():
            if "validation" in parts:
                png = self._picture(task, bank.predictions(key, task, "validation"))
                self._tracker.log_picture(key, f"confusion_matrix/{task}", png)

    def interrupt(self) -> list[str]:
        """Marks every trial still running as interrupted in the tracker; in the store it stays, to be resumed."""
        keys = list(self._seen)
        for key in keys:
            seen = self._seen.pop(key)
            self._tracker.end_trial(
                key,
                state=TrialState.INTERRUPTED,
                reason="the study was interrupted",
                metrics={"seconds": time.time() - seen.started, **self._best(key)},
                tags={},
            )
        return keys

    def close(self) -> None:
        """Waits for the last pictures."""
        self._drawing.shutdown(wait=True)


def _warn(drawing: Future[None]) -> None:
    """A picture that could not be drawn costs the trial nothing, but is not passed over in silence."""
    if error := drawing.exception():
        _logger.warning("The confusion matrices of a trial were not drawn: %s", error)


def _kept(result: Mapping[str, Any]) -> dict[str, float]:
    """The epoch whose weights a finished trial kept."""
    return _ending(score=result["best_score"], epoch=result["best_epoch"], task_scores=result["best_task_scores"])


def _ending(*, score: float, epoch: int, task_scores: Mapping[str, float]) -> dict[str, float]:
    """A trial as a whole, in the tracker's names."""
    return {SCORE: score, "best_epoch": epoch, **{f"{SCORE}/{task}": value for task, value in task_scores.items()}}
