"""Records the events of a study in the store (Optuna) and the tracker (MLflow)."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import wraps
from types import MappingProxyType
from typing import Any

from ray.tune import Callback
from ray.tune.experiment import Trial

from tutti.bank.bank import Bank
from tutti.config.folder import StudyFolder, fold_name
from tutti.errors import ClaimLostError, StorageError, TuttiError, counted, first_line
from tutti.orchestration.broker.messages import Evaluation, Report, TrialConfig, fitted_by, is_first, trial_config
from tutti.orchestration.driver.objectives import Measure
from tutti.orchestration.driver.pictures import PictureDrawer
from tutti.orchestration.driver.snapshot import NotSnapshotted
from tutti.orchestration.driver.trial_progress import TrialProgress
from tutti.orchestration.worker.folds import delete_states
from tutti.records import TrialState
from tutti.search.study_store import StudyStore
from tutti.search.trial_attributes import FITTED, FOLD, STOPPING
from tutti.tasks.predictions import Predictions
from tutti.tracking.protocol import FOLD_SCORE, SCORE, MetricRow, Tracker

_logger = logging.getLogger(__name__)


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
    """A Tune callback that records Ray's events in the study's store and tracker.

    If a record cannot be written, the study ends with that error. A resumed study continues the trials that ran.

    Args:
        folds, evals_per_epoch: of the study's trials. Each fold gets a tracker run below its trial's.
        watch: called after every event; reads the store itself.
        picture: makes a PNG of a task's validation predictions, from the task's name and the predictions.
        measure: measures a finished trial by the study's objectives; none if the score is the only objective.
        prune: called once a trial has ended, to keep the study's checkpoints within their limit.
        notify: called with messages that users should see at once, though no trial ends.

    Attributes:
        failure: the error that kept a record from being written.
        check_pools: called before a trial whose actor was lost is recorded as failed. Raises a TuttiError if no pool
            is left to train any trial.
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
        folds: bool,
        evals_per_epoch: int,
        measure: Measure | None,
        prune: Callable[[], object],
        notify: Callable[[str], None],
    ) -> None:
        self._store, self._tracker, self._folder, self._tags = store, tracker, folder, tags
        self._folds, self._evals_per_epoch, self._measure = folds, evals_per_epoch, measure
        self._watch, self._prune, self._notify = watch, prune, notify
        self._running: dict[str, TrialProgress] = {}
        self._interrupted: set[str] = set()
        self.failure: TuttiError | None = None
        self.check_pools: Callable[[], None] = lambda: None
        self._pictures = PictureDrawer(folder=folder, tracker=tracker, picture=picture)

    @_defer_error
    def on_trial_start(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        key = trial.config["key"]
        if key in self._running:  # Tune retries the trial
            return
        folder = self._folder.trial(key)
        checkpoint = folder.path if self._folds else folder.best
        self._begin(trial.config, {"tutti.ray_trial": trial.trial_id, "tutti.checkpoint": str(checkpoint)})
        self._watch()

    def _begin(self, config: TrialConfig, tags: Mapping[str, str] = MappingProxyType({})) -> None:
        """Starts or resumes the tracker run of a trial, and that of the fold that an earlier run was training."""
        key = config["key"]
        progress = self._running[key] = TrialProgress(config.get("trained", 0.0), halved=config.get("halved"))
        tags = {**self._tags, **tags, "tutti.optuna_number": str(config["optuna_number"])}
        self._tracker.start_trial(key, number=config["number"], parameters=config["parameters"], tags=tags)
        if "fold" in config:
            self._start_fold(config, progress, config["fold"])

    @_defer_error
    def on_trial_result(self, iteration: int, trials: list[Trial], trial: Trial, result: Report, **info: Any) -> None:
        key = trial.config["key"]
        progress = self._running[key]
        if progress.attempt is None:  # the trial may have waited for its workers
            progress.began = result.get("began", progress.began)
        progress.stop_reason = result.get("stopped")
        if "notice" in result:
            progress.notices.append(result["notice"])
            self._notify(f"{key}: {result['notice']}")
            return
        progress.update_time(result)
        if "began" in result:
            self._store.bind(key, **progress.measured)
        if "exchanged" in result:
            self._exchange(key, result["exchanged"])
        if "halved" in result:
            progress.halved = result["halved"]
            self._notify(f"{key}: starts again with half the batch, out of memory: {progress.halved}")
            self._store.forget_reports(key)  # before what binds the halving, in case the driver dies
            progress.epoch, progress.last_report, progress.fitted = 0, {}, {}
            self._store.bind(key, **{FITTED: False}, halved=progress.halved)  # in this order, for the same reason
        if result.keys() & {"exchanged", "halved", "overtime"}:
            return
        if "fold_epoch" in result:
            self._log_fold_epoch(trial.config, progress, result)
        elif "failed" in result:
            progress.failure, progress.infeasible = result["failed"], bool(result.get("infeasible"))
        elif "score" in result:
            if "fold" in result:
                self._end_fold(trial.config, progress, result)
            is_stopping = result.get("done") and not result.keys() & {"final", "stopped"}
            if is_stopping:  # in case the driver dies before the trial's end
                self._store.bind(key, **{STOPPING: int(result["epoch"])})
            self._log_epoch(key, progress, result)
        # Not earlier: only what has not fitted begins anew if resumed, and so starts over in the tracker once halved.
        if (fitted := fitted_by(result)) not in ({}, progress.fitted):
            progress.fitted = fitted
            self._store.bind(key, **fitted)
        if "fold_epoch" in result:
            return
        progress.last_report, progress.is_final = result, bool(result.get("final"))
        self._watch()

    def _exchange(self, key: str, exchange: Mapping[str, Any]) -> None:
        """Replaces the trial's state by the donor's, then records the exchange. Neither is being trained."""
        from tutti.training.loop.exchange import take_over

        donor, own = (self._folder.trial(each).resume for each in (exchange["donor"], key))
        record = self._store.record(key)
        take_over(donor, own, best_score=-math.inf if record.score is None else record.score, exchange=exchange)
        self._store.exchange(key, **exchange)
        numbers = {name: value for name, value in exchange["parameters"].items() if isinstance(value, int | float)}
        metrics = {f"pbt/{name}": float(value) for name, value in numbers.items()}
        self._tracker.log_metrics(key, metrics, step=exchange["epoch"], at=time.time())
        self._watch()

    def _log_fold_epoch(self, config: TrialConfig, progress: TrialProgress, report: Report) -> None:
        key, fold, evaluation = config["key"], report["fold"], report["fold_epoch"]
        is_open = f"{key}/{fold_name(fold)}" in progress.open_folds
        if not is_open:  # not in _start_fold, which repeated reports on older folds call too
            self._store.bind(key, **{FOLD: fold})
        fold_key = self._start_fold(config, progress, fold)
        at = evaluation.get("evaluated", report["at"])
        if is_first(evaluation) and (is_open or fold + 1 in self._store.record(key).scores_by_epoch):
            self._tracker.start_over(fold_key, at=at)
        self._track_epoch(fold_key, evaluation, at=at)
        progress.precision = evaluation.get("precision")

    def _start_fold(self, config: TrialConfig, progress: TrialProgress, fold: int) -> str:
        """Starts or resumes the tracker run of a fold, unless it is open already; the run's key."""
        fold_key = f"{config['key']}/{fold_name(fold)}"
        if fold_key not in progress.open_folds:
            checkpoint = self._folder.trial(config["key"]).fold(fold).best
            tags = {**self._tags, "tutti.fold": str(fold), "tutti.checkpoint": str(checkpoint)}
            self._tracker.start_trial(fold_key, number=config["number"], parameters={}, tags=tags)
            progress.open_folds.add(fold_key)
        return fold_key

    def _end_fold(self, config: TrialConfig, progress: TrialProgress, report: Report) -> None:
        """Ends the tracker run of a fold. Starts it before that if an earlier driver did, or its epochs were lost."""
        is_open = f"{config['key']}/{fold_name(report['fold'])}" in progress.open_folds
        if not is_open and report["epoch"] in self._store.record(config["key"]).scores_by_epoch:
            return  # a resumed trial repeats it
        fold_key = self._start_fold(config, progress, report["fold"])
        best = report["fold_best"]
        scores = {f"{FOLD_SCORE}/{task}": value for task, value in best["task_scores"].items()}
        metrics = {FOLD_SCORE: best["score"], "best_epoch": best["epoch"] / self._evals_per_epoch, **scores}
        tags = {"tutti.host": report["host"]}
        self._tracker.end_trial(fold_key, state=TrialState.FINISHED, reason=None, metrics=metrics, tags=tags)
        progress.open_folds.remove(fold_key)

    def _log_epoch(self, key: str, progress: TrialProgress, report: Report) -> None:
        """Records an evaluation in the tracker, then in the store, so that what the store has is in both."""
        epoch, at = int(report["epoch"]), report.get("evaluated", report["at"])  # a complete fold is no evaluation
        progress.epoch, progress.precision = epoch, report.get("precision", progress.precision)
        if report.get("repeated") and epoch in self._store.record(key).scores_by_epoch:
            return
        if is_first(report) and not self._folds and (progress.halved or self._store.record(key).scores_by_epoch):
            self._tracker.start_over(key, at=at)
            self._store.forget_reports(key)  # its new weights have other scores
        if math.isfinite(report["score"]):
            self._track_epoch(key, report, at=at)
        try:
            self._store.report(key, epoch=epoch, score=report["score"], task_scores=report["task_scores"])
        except ValueError as error:  # the score is not finite
            progress.failure = str(error)

    def _track_epoch(self, run_key: str, report: Evaluation, *, at: float) -> None:
        """Logs an evaluation's metrics, and those of the optimizer steps before it, to a tracker run."""
        # MLflow's page of runs at first compares them by the metric that was logged first.
        metrics = {"validation_score": report["score"], **report["metrics"]}
        self._tracker.log_metrics(run_key, metrics, step=int(report["epoch"]), at=at)
        steps = [
            MetricRow({f"train/{name}": value for name, value in values.items()}, step=step, at=at)
            for step, values in report.get("steps", ())
        ]
        self._tracker.log_history(run_key, steps)

    @_defer_error
    def on_trial_complete(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        key = trial.config["key"]
        progress = self._running[key]
        if progress.failure:
            self._end(key, TrialState.FAILED, reason=progress.failure)
        elif progress.is_final:
            self._finish(key, progress)
        elif progress.epoch or progress.stop_reason:
            epochs = round(progress.epoch / self._evals_per_epoch, 2)
            done = counted(progress.epoch, "fold") if self._folds else f"epoch {epochs:g}"
            reason = f"{progress.stop_reason or 'fell behind the others'} after {done}"
            self._end(key, TrialState.STOPPED, reason=reason)
        else:
            self._end(key, TrialState.FAILED, reason="ended without a single report")

    def _finish(self, key: str, progress: TrialProgress) -> None:
        parameters = progress.last_report.get("parameters")
        measured = self._measure(key, seconds=progress.trained_seconds, parameters=parameters) if self._measure else {}
        self._end(key, TrialState.FINISHED, measured=measured)

    @_defer_error
    def on_trial_error(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        self.check_pools()
        if trial.config["key"] not in self._running:  # its actor was lost before it started
            self._begin(trial.config)
        error = trial.get_error()
        cause = getattr(error, "cause", None) or error
        reason = first_line(cause)[:500] if cause else "the trial's actor died"
        self._end(trial.config["key"], TrialState.FAILED, reason=reason)

    def on_step_end(self, iteration: int, trials: list[Trial], **info: Any) -> None:
        """Raises a deferred error. Tune does not catch errors raised here."""
        if self.failure is not None:
            raise self.failure

    def _end(
        self, key: str, state: TrialState, reason: str | None = None, measured: Mapping[str, float] | None = None
    ) -> None:
        """Records the end of a trial in the tracker, then in the store: a driver that dies in between ends it again."""
        if self._store.record(key).state is not TrialState.RUNNING:  # another driver has ended it, whose word counts
            self._running.pop(key, None)
            return
        progress = self._running[key]
        measured = measured or {}
        seconds = measured.get("seconds", progress.wall_seconds)
        report = self._last_report(key, progress)
        is_finished = state is TrialState.FINISHED
        if is_finished:
            if not self._folds:  # states of earlier versions do not contain their epoch's report
                self._store.report(
                    key,
                    epoch=report["best_epoch"],
                    score=report["best_score"],
                    task_scores=report["best_task_scores"],
                )
            self._pictures.submit(key)
        else:  # its predictions, written before its last report, must not vote
            Bank(self._folder.bank).remove(key)
        self._end_open_folds(progress, state, reason)
        if is_finished:  # scores of the checkpoint that it kept; with folds, of the out-of-fold rows
            summary = self._summary(report["best_score"], report["best_epoch"], report["best_task_scores"])
        else:
            summary = self._best_metrics(key, report)
        metrics = {"seconds": seconds, **progress.usage.metrics, **measured, **summary}
        self._tracker.end_trial(key, state=state, reason=reason, metrics=metrics, tags=self._end_tags(key, progress))
        uses_report = self._folds or is_finished
        self._store.finish(
            key,
            state=state,
            score=report.get("best_score", report.get("score")),
            task_scores=report.get("best_task_scores", report.get("task_scores")) if uses_report else None,
            reason=reason,
            seconds=seconds,
            infeasible=progress.infeasible,
            measured=measured,
        )
        self._running.pop(key, None)  # not earlier: until its end is stored, an interruption has to mark it
        delete_states(self._folder.trial(key))
        try:
            self._prune()
        except ClaimLostError:
            raise
        except TuttiError as error:  # the end of the next trial prunes again
            _logger.warning("The checkpoints are beyond storage.max_gigabytes: %s", error)
        self._watch()

    def _end_tags(self, key: str, progress: TrialProgress) -> dict[str, str]:
        report, donors = progress.last_report, self._store.record(key).exploited_from
        tags = {
            "tutti.host": report.get("host"),
            "tutti.precision": progress.precision,
            "tutti.halved_batch": progress.halved,
            "tutti.notice": "\n".join(progress.notices),
            "tutti.exploited_from": donors,
        }
        return {name: value for name, value in tags.items() if value}

    def _end_open_folds(self, progress: TrialProgress, state: TrialState, reason: str | None) -> None:
        """Ends the tracker run of the fold that was being trained in the state of its trial."""
        for fold_key in sorted(progress.open_folds):
            self._tracker.end_trial(fold_key, state=state, reason=reason, metrics={}, tags={})
        progress.open_folds.clear()

    def _last_report(self, key: str, progress: TrialProgress) -> Report:
        """The trial's last report; with folds one without a score, as of a failure, gets that of the complete folds."""
        report = progress.last_report
        if not self._folds or "score" in report or not (record := self._store.record(key)).scores_by_epoch:
            return report
        last, score = max(record.scores_by_epoch.items())
        return {**report, "epoch": last, "score": score, "task_scores": record.last_task_scores}

    def _best_metrics(self, key: str, report: Report) -> dict[str, float]:
        """The best evaluation so far of an unfinished trial, as ``tutti trials`` shows it; with folds, ``report``."""
        if self._folds and "score" in report:
            return self._summary(report["score"], report["epoch"], report["task_scores"])
        record = self._store.record(key)
        if not record.scores_by_epoch:
            return {}
        epoch, score = max(record.scores_by_epoch.items(), key=lambda item: item[1])
        return self._summary(score, epoch, record.task_scores)

    def _summary(self, score: float, epoch: int, task_scores: Mapping[str, float]) -> dict[str, float]:
        """Scores of a trial as a whole, under the tracker's names."""
        progress = {"folds": epoch} if self._folds else {"best_epoch": epoch / self._evals_per_epoch}
        return {SCORE: score, **progress, **{f"{SCORE}/{task}": value for task, value in task_scores.items()}}

    def stop(self, reason: str) -> None:
        """Ends every unfinished trial as stopped early, including those that have not begun in this run."""
        for proposal in self._store.unfinished():
            key, trial_reason = proposal.key, reason
            if key not in self._running:
                self._begin(trial_config(proposal))
                ran_before = proposal.fitted or proposal.seconds
                trial_reason += "; it had not gone on" if ran_before else "; it had not begun"
            self._end(key, TrialState.STOPPED, trial_reason)

    def interrupt(self, reason: str = "the study was interrupted") -> list[str]:
        """Marks every unfinished trial as interrupted in the tracker. In the store it stays running, to be resumed.

        This includes trials of an earlier run that have not continued in this one: a killed driver marks nothing.

        Returns:
            Keys of the trials that were marked.

        Raises:
            ClaimLostError: if another driver has taken the study over. The tracker is left unchanged then.
        """
        with suppress(StorageError):  # a failing store may be the reason of the interruption
            for proposal in self._store.unfinished():
                if proposal.key not in self._running and proposal.key not in self._interrupted:
                    self._begin(trial_config(proposal))
        keys = list(self._running)
        self._interrupted.update(keys)
        for key in keys:
            progress = self._running.pop(key)
            self._end_open_folds(progress, TrialState.INTERRUPTED, reason)
            metrics = {"seconds": progress.wall_seconds, **progress.usage.metrics}
            with suppress(StorageError):
                metrics |= self._best_metrics(key, self._last_report(key, progress))
            self._tracker.end_trial(key, state=TrialState.INTERRUPTED, reason=reason, metrics=metrics, tags={})
        return keys

    def close(self) -> None:
        """Waits until all pictures are drawn."""
        self._pictures.close()
