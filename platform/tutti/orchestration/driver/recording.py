"""Records what a running trial reports in the store (Optuna) and the tracker (MLflow)."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from tutti import mirror
from tutti.config.folder import StudyFolder, fold_name
from tutti.errors import counted
from tutti.orchestration.broker.messages import Evaluation, Report, TrialConfig, is_first
from tutti.orchestration.driver.trial_progress import TrialProgress
from tutti.records import TrialState
from tutti.search.study_store import StudyStore
from tutti.search.trial_attributes import Resumption
from tutti.tracking.protocol import FOLD_SCORE, SCORE, MetricRow, Tracker


class Recorder:
    """Records the trials of one study.

    Args:
        tags: of every tracker run.
        folds, evals_per_epoch: of the study's trials. Each fold gets a tracker run below its trial's.
    """

    def __init__(
        self,
        *,
        store: StudyStore,
        tracker: Tracker,
        folder: StudyFolder,
        tags: Mapping[str, str],
        folds: bool,
        evals_per_epoch: int,
    ) -> None:
        self.store, self.tracker, self.folder = store, tracker, folder
        self.folds, self._evals_per_epoch, self._tags = folds, evals_per_epoch, tags

    def begin(self, config: TrialConfig, tags: Mapping[str, str] = MappingProxyType({})) -> TrialProgress:
        """Starts or resumes the tracker run of a trial, and that of the fold that an earlier run was training."""
        progress = TrialProgress(config["resumption"])
        tags = {**self._tags, **tags, "tutti.optuna_number": str(config["optuna_number"])}
        self.tracker.start_trial(config["key"], number=config["number"], parameters=config["parameters"], tags=tags)
        if progress.resumption.fold is not None:
            self._start_fold(config, progress, progress.resumption.fold)
        return progress

    def report(self, config: TrialConfig, progress: TrialProgress, report: Report) -> None:
        """Records a report of a trial, and what it tells for a resumption. A notice is not for here."""
        key, known, before = config["key"], progress.after(report), progress.resumption
        if "exchanged" in report:
            self._exchange(key, report["exchanged"])
        if "halved" in report:
            self.store.forget_reports(key)  # before the halving is kept, in case the driver dies
            progress.epoch, progress.last_report = 0, {}
        if report.keys() & {"exchanged", "halved", "overtime"}:
            self._keep(key, progress, known)
            return
        # That it fitted is kept later: only what has not fitted begins anew if resumed, and so starts over in the
        # tracker once halved. That it is stopping is kept now, in case the driver dies before the trial's end.
        self._keep(key, progress, replace(known, fitted=before.fitted, in_new_stage=before.in_new_stage))
        if "fold_epoch" in report:
            self._log_fold_epoch(config, progress, report)
        elif "failed" in report:
            progress.failure, progress.infeasible = report["failed"], bool(report.get("infeasible"))
        elif "score" in report:
            if "fold" in report:
                self._end_fold(config, progress, report)
            self._log_epoch(key, progress, report, fits=known.fitted)
        self._keep(key, progress, known)
        if "fold_epoch" not in report:
            progress.last_report = report

    def _keep(self, key: str, progress: TrialProgress, known: Resumption) -> None:
        if known != progress.resumption:
            progress.resumption = known
            self.store.keep(key, known)

    def _exchange(self, key: str, exchange: Mapping[str, Any]) -> None:
        """Replaces the trial's state by the donor's, before the exchange is kept. Neither is being trained."""
        from tutti.training.loop.exchange import take_over

        donor, own = (self.folder.trial(each).resume for each in (exchange["donor"], key))
        best = self.store.record(key).score
        mirror.pull(donor)
        mirror.pull(own)
        take_over(donor, own, best_score=-math.inf if best is None else best, exchange=exchange)
        mirror.push(own)
        numbers = {name: value for name, value in exchange["parameters"].items() if isinstance(value, int | float)}
        metrics = {f"pbt/{name}": float(value) for name, value in numbers.items()}
        self.tracker.log_metrics(key, metrics, step=exchange["epoch"], at=time.time())

    def _log_fold_epoch(self, config: TrialConfig, progress: TrialProgress, report: Report) -> None:
        key, fold, evaluation = config["key"], report["fold"], report["fold_epoch"]
        is_open = f"{key}/{fold_name(fold)}" in progress.open_folds
        fold_key = self._start_fold(config, progress, fold)
        at = evaluation.get("evaluated", report["at"])
        if is_first(evaluation) and (is_open or fold + 1 in self.store.record(key).scores_by_epoch):
            self.tracker.start_over(fold_key, at=at)
        self._track_epoch(fold_key, evaluation, at=at)
        progress.precision = evaluation.get("precision")

    def _start_fold(self, config: TrialConfig, progress: TrialProgress, fold: int) -> str:
        """Starts or resumes the tracker run of a fold, unless it is open already; the run's key."""
        fold_key = f"{config['key']}/{fold_name(fold)}"
        if fold_key not in progress.open_folds:
            checkpoint = self.folder.trial(config["key"]).fold(fold).best
            tags = {**self._tags, "tutti.fold": str(fold), "tutti.checkpoint": str(checkpoint)}
            self.tracker.start_trial(fold_key, number=config["number"], parameters={}, tags=tags)
            progress.open_folds.add(fold_key)
        return fold_key

    def _end_fold(self, config: TrialConfig, progress: TrialProgress, report: Report) -> None:
        """Ends the tracker run of a fold. Starts it before that if an earlier driver did, or its epochs were lost."""
        is_open = f"{config['key']}/{fold_name(report['fold'])}" in progress.open_folds
        if not is_open and report["epoch"] in self.store.record(config["key"]).scores_by_epoch:
            return  # a resumed trial repeats it
        fold_key = self._start_fold(config, progress, report["fold"])
        best = report["fold_best"]
        scores = {f"{FOLD_SCORE}/{task}": value for task, value in best["task_scores"].items()}
        metrics = {FOLD_SCORE: best["score"], "best_epoch": best["epoch"] / self._evals_per_epoch, **scores}
        tags = {"tutti.host": report["host"]}
        self.tracker.end_trial(fold_key, state=TrialState.FINISHED, reason=None, metrics=metrics, tags=tags)
        progress.open_folds.remove(fold_key)

    def _log_epoch(self, key: str, progress: TrialProgress, report: Report, *, fits: bool) -> None:
        """Records an evaluation in the tracker, then in the store, so that what the store has is in both.

        Args:
            fits: whether the trial's batches fit into memory. One that does not may begin anew and then have no score.
        """
        epoch, at = int(report["epoch"]), report.get("evaluated", report["at"])  # a complete fold is no evaluation
        progress.epoch, progress.precision = epoch, report.get("precision", progress.precision)
        known = self.store.record(key).scores_by_epoch
        if report.get("repeated") and epoch in known:
            return
        if is_first(report) and not self.folds and (progress.resumption.halved or known):
            self.tracker.start_over(key, at=at)
            self.store.forget_reports(key)  # its new weights have other scores
        if math.isfinite(report["score"]):
            best = report["score"] if self.folds else report.get("best_score", report["score"])
            self._track_epoch(key, report, at=at, so_far={SCORE: best} if fits else {})
        try:
            of_sets = {name: score for name, score in report.get("set_scores", {}).items() if math.isfinite(score)}
            scores = {**report["task_scores"], **of_sets}
            self.store.report(key, epoch=epoch, score=report["score"], task_scores=scores)
        except ValueError as error:  # the score is not finite
            progress.failure = str(error)

    def _track_epoch(
        self, run_key: str, report: Evaluation, *, at: float, so_far: Mapping[str, float] = MappingProxyType({})
    ) -> None:
        """Logs an evaluation's metrics, and those of the optimizer steps before it, to a tracker run."""
        # MLflow at first compares runs by the metric that was logged first: the score so far, which ends as the trial's
        metrics = {**so_far, "validation_score": report["score"], **report["metrics"]}
        self.tracker.log_metrics(run_key, metrics, step=int(report["epoch"]), at=at)
        steps = [
            MetricRow({f"train/{name}": value for name, value in values.items()}, step=step, at=at)
            for step, values in report.get("steps", ())
        ]
        self.tracker.log_history(run_key, steps)

    def end_open_folds(self, progress: TrialProgress, state: TrialState, reason: str | None) -> None:
        """Ends the tracker run of the fold that was being trained in the state of its trial."""
        for fold_key in sorted(progress.open_folds):
            self.tracker.end_trial(fold_key, state=state, reason=reason, metrics={}, tags={})
        progress.open_folds.clear()

    def last_report(self, key: str, progress: TrialProgress) -> Report:
        """The trial's last report; with folds one without a score, as of a failure, gets that of the complete folds."""
        report = progress.last_report
        if not self.folds or "score" in report or not (record := self.store.record(key)).scores_by_epoch:
            return report
        last, score = max(record.scores_by_epoch.items())
        return {**report, "epoch": last, "score": score, "task_scores": record.last_task_scores}

    def summary(self, key: str, report: Report, *, finished: bool = False) -> dict[str, float]:
        """Scores of a trial as a whole, under the tracker's names.

        Of a finished trial those of the checkpoint that it kept (with folds, of the out-of-fold rows), else those of
        its best evaluation so far, as ``tutti trials`` shows it; with folds, of ``report``.
        """
        if finished:
            score, epoch, task_scores = report["best_score"], report["best_epoch"], report["best_task_scores"]
        elif self.folds and "score" in report:
            score, epoch, task_scores = report["score"], report["epoch"], report["task_scores"]
        else:
            record = self.store.record(key)
            if not record.scores_by_epoch:
                return {}
            epoch, score = max(record.scores_by_epoch.items(), key=lambda item: item[1])
            task_scores = record.task_scores
        progress = {"folds": epoch} if self.folds else {"best_epoch": epoch / self._evals_per_epoch}
        return {SCORE: score, **progress, **{f"{SCORE}/{task}": value for task, value in task_scores.items()}}

    def done(self, progress: TrialProgress) -> str:
        """What a trial has done so far, in words: ``epoch 2.5``, ``2 folds``."""
        epochs = round(progress.epoch / self._evals_per_epoch, 2)
        return counted(progress.epoch, "fold") if self.folds else f"epoch {epochs:g}"
