"""Compares a study's runs in MLflow with its trials, and repairs the differences."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import Run, ViewType
from mlflow.utils import get_results_from_paginated_fn

from tutti.config.folder import StudyFolder
from tutti.records import Finding, Repair, TrialRecord, TrialState, best_trial
from tutti.tracking.mlflow_tracker import PARENT, STATE, STATUS, STUDY, TRIAL, MlflowTracker, is_owned_by
from tutti.tracking.protocol import BEST_SCORE, SCORE, MetricRow, parent_of
from tutti.tracking.spool import undelivered, was_delivered
from tutti.tracking.store import store_faults

_DELETED = "deleted in MLflow, which can restore it"
_NOTICE = "created again by tutti doctor from the study's database: its times are the repair's, other curves are lost"


def run_findings(
    uri: str, *, experiment: str, folder: StudyFolder, trials: Sequence[TrialRecord], complete: bool
) -> list[Finding]:
    """Findings for runs that are missing, duplicate, without a trial, or in another state than their trial.

    The store is only written to when a finding is repaired, and deleted runs can be restored there. Runs that were not
    created by Tutti, or belong to another owner, are ignored.

    Args:
        experiment: the study's name.
        folder: the study's folder; runs tracked from another folder are reported but not deleted.
        trials: every trial of the study. None is running: interrupted ones have the state INTERRUPTED.
        complete: whether the study has all its trials, and each has ended.

    Raises:
        TrackingError: where the store cannot be reached.
    """
    with store_faults(uri):
        client = MlflowClient(tracking_uri=uri)
        stored = client.get_experiment_by_name(experiment)
        if stored is not None and stored.lifecycle_stage == "deleted":
            remedy = f"restore it (`mlflow experiments restore -x {stored.experiment_id}`)"
            return [Finding("MLflow, the study's experiment", "it was deleted", remedy)]
        runs = [] if stored is None else _all_runs(client, stored.experiment_id)
    comparison = _Comparison(uri, client, experiment, folder, {trial.key: trial for trial in trials})
    return comparison.findings(runs, study_state=TrialState.FINISHED if complete else TrialState.INTERRUPTED)


class _Comparison:
    """Compares the runs of one study with its trials."""

    def __init__(
        self, uri: str, client: MlflowClient, experiment: str, folder: StudyFolder, trials: Mapping[str, TrialRecord]
    ) -> None:
        self._uri, self._client, self._experiment = uri, client, experiment
        self._folder, self._owner, self._trials = folder, folder.owner, trials

    def findings(self, runs: Sequence[Run], *, study_state: TrialState) -> list[Finding]:
        by_key, deleted = defaultdict[str, list[Run]](list), defaultdict[str, list[Run]](list)
        for run in runs:
            if (key := self._key(run)) is not None:
                (by_key if run.info.lifecycle_stage == "active" else deleted)[key].append(run)
        all_delivered = not undelivered(self._folder.spool)  # a missing run may still be waiting for delivery
        if "" not in by_key:
            return [_lost(left=bool(by_key))] if by_key or (all_delivered and was_delivered(self._folder.spool)) else []
        run_ids: dict[str, str] = {}
        findings: list[Finding] = []
        for key in sorted(by_key, key=lambda key: (bool(key) + key.count("/"), key)):  # parents before children
            # Like the tracker, prefer the oldest run below the right parent; all others are duplicates.
            parent = run_ids.get(parent_of(key)) if key else None
            run, *duplicates = sorted(by_key[key], key=lambda run: run.data.tags.get(PARENT) != parent)
            if key and key.partition("/")[0] not in self._trials:
                findings += [self._run_without_trial(run) for run in by_key[key]]
                continue
            run_ids[key] = run.info.run_id
            findings += [self._duplicate(run) for run in duplicates]
            findings += self._run_of_trial(key, run, parent) if key else self._run_of_study(run, study_state)
        for trial in self._trials.values():
            if all_delivered and trial.key not in by_key:
                below = {key: runs for key, runs in by_key.items() if parent_of(key) == trial.key}
                findings += self._trial_without_run(trial, deleted, below, parent=run_ids[""])
        return findings

    def _key(self, run: Run) -> str | None:
        """The tracker's key of a run; None for a run of another owner, or not created by Tutti."""
        tags = run.data.tags
        if not is_owned_by(run, self._owner):
            return None
        return tags.get(TRIAL, "" if tags.get(STUDY) == self._experiment else None)

    def _run_without_trial(self, run: Run) -> Finding:
        checkpoint = Path(run.data.tags.get("tutti.checkpoint", ""))
        if (self._folder.trials / run.data.tags.get(TRIAL, "").partition("/")[0]).exists():
            remedy = "restore the database that has it from a copy, or move the trial's folder away"
            return Finding(_name(run), "the study has no such trial, but its folder", remedy)
        if checkpoint.is_relative_to(self._folder.path):
            return Finding(_name(run), "the study has no such trial", Repair(_DELETED, partial(self._delete, run)))
        remedy = "delete it in MLflow where no other study of this name needs it"
        return Finding(_name(run), f"the study has no such trial; it was tracked from {checkpoint}", remedy)

    def _duplicate(self, run: Run) -> Finding:
        return Finding(_name(run), "another run has the same key", Repair(_DELETED, partial(self._delete, run)))

    def _trial_without_run(
        self,
        trial: TrialRecord,
        deleted: Mapping[str, Sequence[Run]],
        below: Mapping[str, Sequence[Run]],
        *,
        parent: str,
    ) -> list[Finding]:
        """The findings of a trial without an active run.

        It may have a deleted run in ``deleted``, and active runs of its folds in ``below``, both by key.
        """
        if candidates := deleted.get(trial.key):
            run = min(candidates, key=lambda run: run.data.tags.get(PARENT) != parent)
            folds = [
                fold
                for key, runs in deleted.items()
                if parent_of(key) == trial.key and key not in below
                for fold in runs
                if fold.data.tags.get(PARENT) == run.info.run_id
            ]
            found, restore = "it was deleted, and the study has its trial", partial(self._restore, [run, *folds])
            return [
                Finding(_name(run), found, Repair("restored", restore)),
                *self._run_of_trial(trial.key, run, parent),
            ]
        if trial.state is TrialState.INTERRUPTED and not trial.scores_by_epoch:
            return []  # it may never have started; if so, it creates its run when it is resumed
        folds = [run for runs in below.values() for run in runs]
        repair = Repair(
            "created again, from what the study's database has of it", partial(self._recreate, trial, folds)
        )
        return [Finding(f"MLflow, trial {trial.key}", "it has no run", repair)]

    def _recreate(self, trial: TrialRecord, folds: Sequence[Run]) -> None:
        """Creates the trial's run from its record, and moves the runs of its folds below it."""
        tracker, now = self._tracker(), time.time()
        folder = self._folder.trial(trial.key)
        checkpoint = folder.path if folder.folds else folder.best
        tags = {"tutti.checkpoint": str(checkpoint), "tutti.notice": _NOTICE}
        tags |= {"tutti.exploited_from": trial.exploited_from} if trial.exchanges else {}
        tracker.start_trial(trial.key, number=trial.number, parameters=trial.parameters, tags=tags)
        with store_faults(self._uri):
            run_id = tracker.run_of(trial.key)
            for fold in folds:
                self._client.set_tag(fold.info.run_id, PARENT, run_id)
        scores = trial.scores_by_epoch.items()
        tracker.log_history(trial.key, [MetricRow({"validation_score": score}, step, now) for step, score in scores])
        seconds = {} if trial.seconds is None else {"seconds": trial.seconds}
        metrics = {**seconds, **trial.measured, **_scores(trial)}
        tracker.end_trial(trial.key, state=trial.state, reason=_reason(trial), metrics=metrics, tags={})

    def _run_of_trial(self, key: str, run: Run, parent: str | None) -> list[Finding]:
        """The findings of a run that has a trial: a wrong parent, an outdated state."""
        findings = self._outdated_state(key, run)
        return findings if parent in (None, run.data.tags.get(PARENT)) else [self._orphan(run, str(parent)), *findings]

    def _orphan(self, run: Run, parent: str) -> Finding:
        def attach() -> None:
            with store_faults(self._uri):
                self._client.set_tag(run.info.run_id, PARENT, parent)

        return Finding(_name(run), "it is below no run of this study", Repair("put below the study's", attach))

    def _run_of_study(self, run: Run, state: TrialState) -> list[Finding]:
        """The finding of a parent run that is still running."""
        if run.info.status != "RUNNING":
            return []
        best = best_trial(list(self._trials.values()))
        metrics = {BEST_SCORE: best.score} if best and best.score is not None else {}
        return [self._not_ended(run, "", state, None, metrics, "no process runs the study")]

    def _outdated_state(self, key: str, run: Run) -> list[Finding]:
        """The finding of a run with another state than its trial."""
        name, _, fold = key.partition("/")
        trial = self._trials[name]
        status, state = run.info.status, run.data.tags.get(STATE)
        # An interrupted trial's run, and a fold's, may have any state, but cannot be running.
        if status != "RUNNING" and (fold or trial.state is TrialState.INTERRUPTED):
            return []
        if (status, state) == (STATUS[trial.state], trial.state.value):
            return []
        metrics = {} if fold else _scores(trial)
        found = f"it says {state or status}, and its trial is {trial.state.value}"
        return [self._not_ended(run, key, trial.state, _reason(trial), metrics, found)]

    def _not_ended(
        self, run: Run, key: str, state: TrialState, reason: str | None, metrics: Mapping[str, float], found: str
    ) -> Finding:
        def end() -> None:
            self._tracker().end_trial(key, state=state, reason=reason, metrics=metrics, tags={})

        return Finding(_name(run), found, Repair(f"marked as {state.value}", end))

    def _tracker(self) -> MlflowTracker:
        return MlflowTracker(self._uri, experiment=self._experiment, owner=self._owner)

    def _delete(self, run: Run) -> None:
        with store_faults(self._uri):
            self._client.delete_run(run.info.run_id)

    def _restore(self, runs: Sequence[Run]) -> None:
        with store_faults(self._uri):
            for run in runs:
                self._client.restore_run(run.info.run_id)


def _lost(*, left: bool) -> Finding:
    found = "it is gone, and its trials' runs " + ("are left" if left else "with it")
    remedy = "restore it (`mlflow runs restore`), or resume the study and look again"
    return Finding("MLflow, the study's run", found, remedy)


def _scores(trial: TrialRecord) -> dict[str, float]:
    task_scores = {f"{SCORE}/{task}": score for task, score in trial.task_scores.items()}
    return {} if trial.score is None else {SCORE: trial.score, **task_scores}


def _reason(trial: TrialRecord) -> str | None:
    return "the study was interrupted" if trial.state is TrialState.INTERRUPTED else trial.reason


def _all_runs(client: MlflowClient, experiment_id: str) -> list[Run]:
    """Active and deleted runs, oldest first, in the tracker's order of preference."""
    page = partial(client.search_runs, [experiment_id], "", ViewType.ALL, order_by=["start_time ASC"])
    runs: list[Run] = get_results_from_paginated_fn(lambda size, token: page(size, page_token=token), 1000)
    return runs


def _name(run: Run) -> str:
    return f"MLflow, run {run.info.run_name} ({run.info.run_id[:8]})"
